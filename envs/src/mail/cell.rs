//! Actions as scripted policies write them.

use serde_json::json;

use super::mailbox::Search;
use super::reward::Final;

/// A thought and a cell in the agents' format.
pub(super) fn action_text(thought: &str, code: &str) -> String {
    format!("<thought>{thought}</thought>\n<python>{code}</python>")
}

/// A string literal: JSON's are Python's too.
pub(super) fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// One search, not awaited.
pub(super) fn search_call(search: &Search) -> String {
    let keywords: Vec<String> = search.keywords.iter().map(|keyword| literal(keyword)).collect();
    let mut call = format!("search_emails([{}]", keywords.join(", "));
    let named = [
        ("from_addr", &search.from_addr),
        ("to_addr", &search.to_addr),
        ("sent_after", &search.sent_after),
        ("sent_before", &search.sent_before),
    ];
    for (name, value) in named {
        if let Some(value) = value {
            call.push_str(&format!(", {name}={}", literal(value)));
        }
    }
    if let Some(limit) = search.max_results {
        call.push_str(&format!(", max_results={limit}"));
    }
    call.push(')');
    call
}

/// Makes searches and prints their hits.
pub(super) fn search_code(searches: &[Search]) -> String {
    side_by_side(&searches.iter().map(search_call).collect::<Vec<_>>())
}

/// Reads mails and prints them.
pub(super) fn read_code(ids: &[String]) -> String {
    side_by_side(&ids.iter().map(|id| format!("read_email({})", literal(id))).collect::<Vec<_>>())
}

/// Launches subagents and prints what they answer, a line each.
pub(super) fn delegation(goals: &[String]) -> String {
    side_by_side(&goals.iter().map(|goal| launch(goal)).collect::<Vec<_>>())
}

/// One launch, not awaited.
pub(super) fn launch(goal: &str) -> String {
    format!("launch_subagent({})", literal(goal))
}

/// Ends a node with a text.
pub(super) fn finish(text: &str) -> String {
    format!("finish({})", literal(text))
}

/// An answer as JSON text.
pub(super) fn finish_json(last: &Final) -> String {
    json!({ "answer": last.answer, "sources": last.sources }).to_string()
}

/// Awaits calls and prints their values, a line each.
fn side_by_side(calls: &[String]) -> String {
    match calls {
        [call] => format!("print(await {call})"),
        calls => format!("import asyncio\nfor r in await asyncio.gather({}):\n    print(r)", calls.join(", ")),
    }
}
