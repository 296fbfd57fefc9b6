//! The oracle: looks at the length, prints and reads a short text, splits a long one between lines, hands on the pieces,
//! adds up what comes back, and answers.

use super::episode::{Node, OolongEpisode};
use super::query::{Answer, Finish, Noun, Query, Verb};
use super::question::Asked;
use super::transcript;
use crate::{Turn, Value};

/// The longest piece that is read in one go, in characters.
const LONGEST: usize = 10_000;

/// Into about how many leaves a text falls at most.
const LEAVES: usize = 64;

/// From how many leaves on they are put under nodes in between, where depth allows it.
const WIDE: usize = 12;

/// What a node does now.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Move {
    /// Prints the length, and the text if it is short enough.
    Look { limit: usize },
    /// Prints a part of the text.
    Read { from: usize, to: usize },
    /// Splits the text up to its `episodes`-th episode's end into pieces of about `size` characters and hands them on.
    Delegate { size: usize, pieces: usize, episodes: Option<usize>, query: Query },
    /// Adds up what came back and finishes.
    Merge { query: Query, finish: Option<Finish> },
    /// Finishes with what it has read.
    Answer { value: Answer, finish: Option<Finish> },
    /// Finishes with a text that was read off: questions whose gold is all that is known.
    Told { answer: String },
}

/// What the oracle writes.
pub(super) fn act(episode: &OolongEpisode, turn: &Turn<'_>) -> String {
    render(&next_move(episode, turn))
}

/// The characters that a node of this rollout reads in one go.
pub(super) fn limit(episode: &OolongEpisode) -> usize {
    let share = episode.text().chars().count().div_ceil(LEAVES);
    share.clamp(episode.chunk, LONGEST.max(episode.chunk))
}

/// What a node wants to know, and how it answers: a root by its question, a child by its query.
fn wanted(episode: &OolongEpisode, turn: &Turn<'_>, node: &Node) -> Option<(Query, Option<Finish>, Option<usize>)> {
    if turn.node.len() > 1 {
        return node.query.clone().map(|query| (query, None, None));
    }
    let Asked { query, finish, up_to, .. } = episode.task.asked.clone()?;
    Some((query, Some(finish), up_to))
}

pub(super) fn next_move(episode: &OolongEpisode, turn: &Turn<'_>) -> Move {
    let limit = limit(episode);
    let Some(node) = episode.node(turn.node) else { return Move::Look { limit } };
    let length = node.text.chars().count();
    if turn.step == 0 {
        return Move::Look { limit };
    }
    let depth = u32::try_from(turn.node.len() - 1).unwrap_or(u32::MAX);
    let Some((query, finish, up_to)) = wanted(episode, turn, node) else {
        // Nothing is known but the right answer: read it all, then give it.
        return read_on(turn, length, limit, || Move::Told { answer: told(episode, turn) });
    };
    let scope = Asked { text: String::new(), query: query.clone(), finish: Finish::Plain, up_to };
    let end = scope.scope(&node.text);
    let read = || {
        let text = node.text.slice(0..end).unwrap_or_else(|| node.text.clone());
        let range = node.range.as_ref().map(|range| range.start..range.start + end);
        let records = episode.records(&query, &text, range.as_ref()).unwrap_or_default();
        Move::Answer { value: query.answer(records.iter()), finish: finish.clone() }
    };
    if length <= limit || !turn.recursive || depth >= turn.max_depth {
        return read_on(turn, length, limit, read);
    }
    if turn.step > 1 {
        return Move::Merge { query, finish };
    }
    let leaves = length.div_ceil(limit);
    let between = turn.max_depth - depth > 1 && leaves > WIDE;
    let size = if between { limit * integer_root(leaves) } else { limit };
    // A piece ends between lines, so pieces are a little shorter than asked for and one or two more of them.
    let pieces = 2 * length.div_ceil(size) + 2;
    Move::Delegate { size, pieces, episodes: up_to, query }
}

/// Prints part after part of a text that is too long for one look, then goes on.
fn read_on(turn: &Turn<'_>, length: usize, limit: usize, then: impl FnOnce() -> Move) -> Move {
    let from = (turn.step as usize - 1) * limit;
    if length <= limit || from >= length { then() } else { Move::Read { from, to: (from + limit).min(length) } }
}

/// The answer to a question of which only the gold is known: in a box, or behind a colon as synthetic questions ask.
fn told(episode: &OolongEpisode, turn: &Turn<'_>) -> String {
    if turn.node.len() > 1 {
        return "None".to_owned();
    }
    let answer = &episode.task.answer;
    match episode.task.scoring.answer_type() {
        None => format!("\\boxed{{{answer}}}"),
        Some(_) => {
            let inside = answer.trim_start_matches('[').trim_end_matches(']');
            let date = inside.strip_prefix("datetime.date(").and_then(|rest| rest.strip_suffix(')'));
            let plain = date.map_or_else(|| inside.replace(['\'', '"'], ""), |date| date.replace(", ", "-"));
            format!("Answer: {plain}")
        }
    }
}

fn integer_root(number: usize) -> usize {
    (1..).find(|root| root * root >= number).unwrap_or(1)
}

/// A turn as agents write it.
pub(super) fn action_text(thought: &str, code: &str) -> String {
    format!("<thought>{thought}</thought>\n<python>\n{code}\n</python>")
}

/// A text as a Python literal.
pub(super) fn literal(text: &str) -> String {
    Value::str(text).repr()
}

pub(super) fn render(action: &Move) -> String {
    match action {
        Move::Look { limit } => action_text(
            "See how long the text is, and read it if it is short.",
            &format!("print(len(context))\nif len(context) <= {limit}:\n    print(context)"),
        ),
        Move::Read { from, to } => action_text("Read the next part.", &format!("print(context[{from}:{to}])")),
        Move::Delegate { size, pieces, episodes, query } => {
            let code = format!("{}{}", split(*size, *pieces, *episodes), gather(query, Some(query)));
            action_text("Split the text between lines and hand the pieces on.", &code)
        }
        Move::Merge { query, finish } => {
            let code = format!("{}\n{}", merge(query), finish_line(query, finish.as_ref()));
            action_text("Add up what came back.", &code)
        }
        Move::Answer { value, finish } => {
            let value_text = value.to_value().repr();
            let code = match finish {
                None => format!("finish({value_text})"),
                Some(finish) => format!("finish({})", literal(&format!("\\boxed{{{}}}", finish.gold(value)))),
            };
            action_text("That is what the text says.", &code)
        }
        Move::Told { answer } => action_text("That is what the text says.", &format!("finish({})", literal(answer))),
    }
}

/// Python that cuts the text into pieces between lines: `cuts` holds where each begins and the last one ends.
pub(super) fn split(size: usize, pieces: usize, episodes: Option<usize>) -> String {
    let end = match episodes {
        None => "end = len(context)\n".to_owned(),
        Some(episodes) => format!(
            "end = 0\nfor _ in range({episodes}):\n    end = context.index({}, end) + {}\n",
            literal(transcript::END),
            transcript::END.len()
        ),
    };
    format!(
        "{end}cuts = [0]\nfor _ in range({pieces}):\n    if cuts[-1] < end:\n        at = min(cuts[-1] + {size}, end)\n        \
         if at < end:\n            back = context.rfind('\\n', cuts[-1], at) + 1\n            at = back if back > cuts[-1] else \
         context.find('\\n', at) + 1 or end\n        cuts.append(min(at, end))\n"
    )
}

/// Python that hands the pieces on and waits for all of them: `parts` holds what came back.
pub(super) fn gather(goal: &Query, query: Option<&Query>) -> String {
    let goal = literal(&describe(goal));
    let query = query.map_or(String::new(), |query| format!(", {}", query.to_python()));
    format!(
        "parts = await asyncio.gather(*[launch_subagent({goal}, context[a:b]{query}) for a, b in zip(cuts, cuts[1:])])\n\
         print(parts)"
    )
}

/// A query in words, as the goal of a child.
pub(super) fn describe(query: &Query) -> String {
    let things = match (query.noun, &query.phrase) {
        (Noun::Turns, _) => "lines of dialogue".to_owned(),
        (Noun::Words, _) => "words of dialogue".to_owned(),
        (Noun::Phrase, phrase) => format!("places where {} is said", literal(phrase.as_deref().unwrap_or_default())),
        (Noun::Rolls, _) => "rolls of dice that were made".to_owned(),
        (Noun::Spells, _) => "spells that were cast".to_owned(),
    };
    let only: Vec<String> = query.filters.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let only = if only.is_empty() { String::new() } else { format!(" with {}", only.join(" and ")) };
    let by = query.by.as_deref().unwrap_or_default();
    match query.verb {
        Verb::Count => format!("Count the {things}{only} in the text. Finish with an int."),
        Verb::Tally => format!("Count the {things}{only} in the text by {by}. Finish with a dict of {by} to int."),
        Verb::First | Verb::Last => {
            let which = if query.verb == Verb::First { "first" } else { "last" };
            let n = query.n.map_or(String::new(), |n| format!(" {n}"));
            let once = if query.distinct { ", each name once" } else { "" };
            format!("List the {by} of the {which}{n} {things}{only} in the text, in order{once}. Finish with a list.")
        }
    }
}

/// Python that makes `total` of `parts`.
pub(super) fn merge(query: &Query) -> String {
    match query.verb {
        Verb::Count => "total = sum([part for part in parts if isinstance(part, int)])".to_owned(),
        Verb::Tally => "total = {}\nfor part in parts:\n    if isinstance(part, dict):\n        for name, count in \
                        part.items():\n            total[name] = total.get(name, 0) + count"
            .to_owned(),
        Verb::First | Verb::Last => {
            let mut code =
                "total = []\nfor part in parts:\n    if isinstance(part, list):\n        total += part".to_owned();
            let last = query.verb == Verb::Last;
            if last {
                code.push_str("\ntotal = total[::-1]");
            }
            if query.distinct {
                code.push_str(
                    "\nonce = []\nfor name in total:\n    if name not in once:\n        once.append(name)\ntotal = once",
                );
            }
            if let Some(n) = query.n {
                code.push_str(&format!("\ntotal = total[:{n}]"));
            }
            if last {
                code.push_str("\ntotal = total[::-1]");
            }
            code
        }
    }
}

/// Python that finishes with `total`, or with what a question makes of it.
fn finish_line(query: &Query, finish: Option<&Finish>) -> String {
    let Some(finish) = finish else { return "finish(total)".to_owned() };
    let answer = match finish {
        Finish::Plain if query.verb == Verb::Count => "answer = total".to_owned(),
        Finish::Plain => "answer = ', '.join(total)".to_owned(),
        Finish::Most | Finish::Least => {
            let best = if *finish == Finish::Most { "max" } else { "min" };
            format!(
                "best = {best}(total.values()) if total else 0\nanswer = ', '.join(sorted([name for name, count in \
                 total.items() if count == best]))"
            )
        }
        Finish::Names => "answer = len(total)".to_owned(),
        Finish::Percent(name) => format!(
            "whole = sum(total.values())\nanswer = round(100 * total.get({}, 0) / whole) if whole else 0",
            literal(name)
        ),
        Finish::Shared => {
            "names = [key.split(' by ')[0] for key in total]\nanswer = ', '.join(sorted({name for name in \
                           names if names.count(name) > 1}))"
                .to_owned()
        }
    };
    format!("{answer}\nfinish('\\\\boxed{{' + str(answer) + '}}')")
}
