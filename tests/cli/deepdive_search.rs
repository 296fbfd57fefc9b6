//! Searches that take long, under the scheduler that does not wait for them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{Place, text};
use crate::fake::{Like, about, honest};
use crate::server::{Reply, Request, Server};

/// Subagents, each of which searches for something of its own and for something that all search for.
const PARTS: u64 = 4;

/// A "model" whose root launches subagents side by side.
fn model() -> Server {
    Server::start(|request, _| {
        about(Like::Chat, request).unwrap_or_else(|| honest(Like::Chat, request, &next(request)))
    })
}

fn next(request: &Request) -> String {
    let messages = request.body["messages"].as_array().unwrap();
    let step = messages.iter().filter(|message| message["role"] == "assistant").count();
    let goal = messages[1]["content"].as_str().unwrap();
    let part = goal.split("Part ").nth(1).and_then(|rest| rest.chars().next());
    let cell = match (part, step) {
        (None, 0) => format!(
            "await asyncio.gather(*[launch_subagent('Part ' + str(n)) for n in range(1, {})])\nprint('all')",
            PARTS + 1
        ),
        (None, _) => "finish('Orsel')".to_owned(),
        (Some(part), 0) => format!(
            "common, own = await asyncio.gather(search_web('all'), search_web('town {part}'))\n\
             print(common['results'][0]['content'], own['results'][0]['content'])"
        ),
        (Some(_), _) => "finish('found')".to_owned(),
    };
    format!("<python>{cell}</python>")
}

/// How long a search takes: the first subagent's takes longest.
fn wait(query: &str) -> Duration {
    let part = query.strip_prefix("town ").and_then(|part| part.parse::<u64>().ok());
    Duration::from_millis(part.map_or(300, |part| 1_200 - 100 * part))
}

fn service() -> Server {
    Server::start(|request, before| {
        let query = request.body["query"].as_str().unwrap();
        let content = format!("{query}, asked as number {before}");
        let result = json!({ "url": "https://p.example/1", "title": "T", "content": content, "score": 0.9 });
        Reply::json(&json!({ "results": [result] })).late(wait(query))
    })
}

/// The nodes to which a search of their own was answered, in the order of the log.
fn answered(place: &Place) -> Vec<String> {
    let lines = place.out(&["tail", "latest", "--kind", "call_answered", "--json"]);
    let bodies = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["body"].clone());
    let own = bodies.filter(|body| body.to_string().contains("town "));
    own.map(|body| text(&body, "node").to_owned()).collect()
}

#[test]
fn searches_of_several_nodes_take_the_time_of_one() {
    let (place, model, search) = (Place::new(), model(), service());
    let row = json!({ "id": 1, "question": "Which of the towns is the oldest?", "answer": "Orsel" });
    std::fs::write(place.path().join("qa_rl.jsonl"), format!("{row}\n")).unwrap();
    let (policy, service) = (format!("openai:{}", model.url()), format!("search=tavily:{}", search.url()));
    let mut flags =
        vec!["record", "--env", "deepdive", "--data", "qa_rl.jsonl", "--policy", &policy, "--server", "text"];
    flags.extend(["--scheduler", "arrival", "--prompt", "brief", "--tasks", "1", "--group", "1"]);
    flags.extend(["--env-option", &service, "--env-option", "rate=0", "--env-option", "record=answers.jsonl"]);
    let run = place.json(&flags);
    assert_eq!((&run["solved"], &run["nodes"]), (&json!(1), &json!(1 + PARTS)), "{run}");

    // One after the other they would take 3.8 seconds and more.
    assert!(run["seconds"].as_f64().unwrap() < 2.5, "{run}");
    assert!(search.most_at_once() >= PARTS as usize, "{} at a time", search.most_at_once());
    let asked = search.all();
    let common = asked.iter().filter(|request| request.body["query"] == "all").count();
    assert_eq!((common, asked.len()), (1, 1 + PARTS as usize), "equal requests are asked once, and nothing twice");
    assert_eq!(answered(&place), ["0.3", "0.2", "0.1", "0.0"], "the log has the order in which answers came");

    // The recording has them in that order too; a replay asks nobody, and gives each call its own.
    for check in ["fold", "cells", "tools"] {
        for from in ["latest/0#0", "latest/0#20"] {
            let replayed = place.json(&["replay", "--from", from, "--check", check, "--data", "answers.jsonl"]);
            assert!(replayed["divergence"].is_null(), "{check} {from}: {replayed}");
            let row = &replayed["rollouts"][0];
            if from.ends_with("#0") {
                assert_eq!(row["compared"], run["events"], "{check}: {row}");
            }
            let calls = row["tool_calls"].as_u64().unwrap();
            assert_eq!(calls > 0, check == "tools", "{check} {from}: {row}");
        }
    }
    assert_eq!(search.all().len(), asked.len());

    // An answer that changed is found at the call that it was given to.
    let file = place.path().join("answers.jsonl");
    let changed = std::fs::read_to_string(&file).unwrap().replace("town 2, asked", "town 2, told");
    std::fs::write(&file, changed).unwrap();
    let replayed = place.rao(&["replay", "--check", "tools", "--data", "answers.jsonl", "--json"]).output().unwrap();
    assert_eq!(replayed.status.code(), Some(3));
    let replayed: Value = serde_json::from_slice(&replayed.stdout).unwrap();
    let found = &replayed["divergence"];
    assert_eq!((text(found, "node"), text(found, "kind")), ("0.1", "call_answered"), "{found}");
    assert!(found["got"].to_string().contains("town 2, told"), "{found}");
}
