//! The scripted policy that finds what can be found. It knows the hops and their pages, but answers only from pages that
//! it has been shown: a page that no search of its finds stays unknown to it.
//!
//! It keeps no state. What it does follows from what the node has searched, read and launched, and from the last
//! observation. Hop after hop, it searches the sub-question and reads the page. With three and more hops left it has the
//! next one found by a child and checked by a second one side by side; with six and more it hands over the next three
//! together, where they can be asked in one question. What children get wrong it does itself.

use super::chain::{self, Hop};
use super::episode::{Aim, DiveEpisode, NodeState};
use crate::Turn;

/// Hops left from which the next one is delegated.
const DELEGATED_FROM: usize = 3;

/// Hops left from which a stretch is delegated, and how long that is.
const STRETCHES_FROM: usize = 6;
const STRETCH: usize = 3;

/// Results that a second search asks for.
const WIDE: u32 = 20;

/// Pages that are read where it is not known which one tells the answer.
const LOOKS: usize = 3;

/// The answer when there is none.
pub(super) const NOT_FOUND: &str = "I could not find it.";

/// What the engine's refusals have in common; after one, the oracle does the work itself.
const REFUSED: &str = "perform the task yourself";

/// What stands between two answers that a cell prints.
const BETWEEN: &str = " | ";

/// What the oracle does in one cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    /// Search and print addresses and titles.
    Search {
        /// The query.
        query: String,
        /// Results, if not as many as usual.
        count: Option<u32>,
    },
    /// Print a page.
    Read {
        /// Its address.
        url: String,
    },
    /// Launch one subagent per goal, side by side, and print what they answer.
    Delegate {
        /// The goals.
        goals: Vec<String>,
    },
    /// Give the answer.
    Finish {
        /// The answer.
        answer: String,
    },
}

/// The oracle's next action.
pub(super) fn next_move(episode: &DiveEpisode, turn: &Turn<'_>) -> Move {
    let Some(state) = episode.node(turn.node) else { return give_up() };
    match state.aim {
        Aim::Hops(from, to) if from < to && to <= episode.hops().len() => {
            hop_by_hop(episode.hops(), state, turn, from, to)
        }
        Aim::Fact(ref fact) => look(state, Some(fact)),
        _ => look(state, None),
    }
}

fn give_up() -> Move {
    Move::Finish { answer: NOT_FOUND.to_owned() }
}

/// Where no hops are known: one search, and the first results' pages until one holds the answer.
fn look(state: &NodeState, fact: Option<&String>) -> Move {
    if let (Some(fact), true) = (fact, state.read.iter().any(|(_, tells)| *tells)) {
        return Move::Finish { answer: fact.clone() };
    }
    let question = state.goal.lines().next().unwrap_or_default();
    let Some((_, found)) = state.searches.last() else {
        return Move::Search { query: question.to_owned(), count: None };
    };
    let unread = found.iter().take(LOOKS).find(|url| state.read.iter().all(|(read, _)| read != *url));
    unread.map_or_else(give_up, |url| Move::Read { url: url.clone() })
}

fn hop_by_hop(hops: &[Hop], state: &NodeState, turn: &Turn<'_>, from: usize, to: usize) -> Move {
    let mut at = current(hops, state, from, to);
    if is_read(hops, state, at) {
        at += 1;
    } else if let Some(end) = answered(hops, state, turn, at) {
        at = end;
    } else if tries(hops, state, at) > 0 {
        return find(hops, state, at);
    } else if state.launched.iter().any(|aim| matches!(aim, Aim::Hops(start, _) if *start == at)) {
        // The children were wrong, or could not be launched.
        return find(hops, state, at);
    }
    if at >= to {
        let last = to.checked_sub(1).and_then(|last| hops.get(last));
        return last.map_or_else(give_up, |hop| Move::Finish { answer: hop.answer.clone() });
    }
    let left = to - at;
    if may_delegate(turn)
        && left >= STRETCHES_FROM
        && left > STRETCH
        && let Some(goal) = chain::compose(hops, at..at + STRETCH)
    {
        return Move::Delegate { goals: vec![goal] };
    }
    if may_delegate(turn)
        && left >= DELEGATED_FROM
        && let Some(goal) = chain::filled(hops, at)
    {
        let check = chain::filled_also(hops, at).unwrap_or_else(|| format!("Check independently: {goal}"));
        return Move::Delegate { goals: vec![goal, check] };
    }
    find(hops, state, at)
}

/// The hop that the node was last at work on.
fn current(hops: &[Hop], state: &NodeState, from: usize, to: usize) -> usize {
    let searched = (from..to).rev().find(|&at| tries(hops, state, at) > 0);
    let launched = state.launched.iter().filter_map(|aim| match aim {
        Aim::Hops(start, end) if (*start, *end) != (from, to) && (from..to).contains(start) => Some(*start),
        _ => None,
    });
    launched.chain(searched).max().unwrap_or(from)
}

/// How often the node has searched for a hop.
fn tries(hops: &[Hop], state: &NodeState, at: usize) -> usize {
    let [first, second] = [chain::filled(hops, at), chain::filled_also(hops, at)];
    let is_for = |query: &String| Some(query) == first.as_ref() || Some(query) == second.as_ref();
    state.searches.iter().filter(|(query, _)| is_for(query)).count()
}

/// Whether the node has searched for a hop and has its page on its screen.
fn is_read(hops: &[Hop], state: &NodeState, at: usize) -> bool {
    let pages = hops.get(at).map(|hop| hop.pages.as_slice()).unwrap_or_default();
    tries(hops, state, at) > 0 && state.read.iter().any(|(url, _)| pages.contains(url))
}

/// The hop after the stretch that children have just answered, all of them rightly.
fn answered(hops: &[Hop], state: &NodeState, turn: &Turn<'_>, at: usize) -> Option<usize> {
    let end = state.launched.iter().rev().find_map(|aim| match aim {
        Aim::Hops(start, end) if *start == at => Some(*end),
        _ => None,
    })?;
    let hop = hops.get(end.checked_sub(1)?)?;
    let last = turn.observation?.trim_end().lines().last()?;
    last.split(BETWEEN).all(|answer| hop.is_answer(answer)).then_some(end)
}

/// Finds a hop's page: the question, then wider, then in other words.
fn find(hops: &[Hop], state: &NodeState, at: usize) -> Move {
    let (Some(hop), Some(question)) = (hops.get(at), chain::filled(hops, at)) else { return give_up() };
    let other = chain::filled_also(hops, at);
    let found = |url: &&String| {
        let mine = state.searches.iter().filter(|(query, _)| *query == question || Some(query) == other.as_ref());
        mine.flat_map(|(_, found)| found).any(|other| other == *url)
    };
    if let Some(url) = hop.pages.iter().find(found) {
        return Move::Read { url: url.clone() };
    }
    match tries(hops, state, at) {
        0 => Move::Search { query: question, count: None },
        1 => Move::Search { query: question, count: Some(WIDE) },
        2 => match other {
            Some(query) => Move::Search { query, count: Some(WIDE) },
            None => give_up(),
        },
        _ => give_up(),
    }
}

pub(super) fn may_delegate(turn: &Turn<'_>) -> bool {
    let refused = turn.observation.is_some_and(|text| text.contains(REFUSED));
    // The root has depth 0 and a path of one ordinal, so a child's depth is the length of its parent's path.
    turn.recursive && turn.node.len() <= turn.max_depth as usize && !refused
}

/// The action text of a move.
pub(super) fn render(action: &Move) -> String {
    match action {
        Move::Search { query, count } => action_text("Search for what is needed next.", &search_code(query, *count)),
        Move::Read { url } => action_text("Read the page.", &read_code(url)),
        Move::Delegate { goals } if goals.len() == 1 => action_text("Delegate the next part.", &delegation(goals)),
        Move::Delegate { goals } => action_text("Delegate the next step, and have it checked.", &delegation(goals)),
        Move::Finish { answer } => action_text("That is all.", &format!("finish({})", literal(answer))),
    }
}

/// Searches, and prints addresses and titles.
pub(super) fn search_code(query: &str, count: Option<u32>) -> String {
    let count = count.map_or_else(String::new, |count| format!(", max_results={count}"));
    format!(
        "found = await search_web({}{count})\nfor result in found[\"results\"]:\n    print(result[\"url\"], result[\"title\"])",
        literal(query)
    )
}

/// Prints a page.
pub(super) fn read_code(url: &str) -> String {
    format!("print(await view_webpage_content({}))", literal(url))
}

/// Launches all goals and prints what they answer.
pub(super) fn delegation(goals: &[String]) -> String {
    let calls: Vec<String> = goals.iter().map(|goal| format!("launch_subagent({})", literal(goal))).collect();
    match calls.as_slice() {
        [call] => format!("print(await {call})"),
        calls => {
            let calls = calls.join(", ");
            let join = literal(BETWEEN);
            format!(
                "import asyncio\nanswers = await asyncio.gather({calls})\nprint({join}.join([str(answer) for answer in answers]))"
            )
        }
    }
}

/// A thought and a cell in the agents' format.
pub(super) fn action_text(thought: &str, code: &str) -> String {
    format!("<thought>{thought}</thought>\n<python>{code}</python>")
}

/// A string literal: what JSON escapes, Python reads alike.
pub(super) fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
