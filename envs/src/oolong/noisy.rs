//! The oracle with seeded mistakes of the kinds that real agents make with long texts.

use super::episode::OolongEpisode;
use super::oracle::{self, Move, action_text, describe, gather, literal, merge, render, split};
use super::query::{Answer, Finish, Query, Verb};
use crate::{Turn, mistakes};

/// How likely a turn is to hold a mistake, if any fits it.
pub const MISTAKE_RATE: f64 = 0.2;

/// The kinds of mistakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mistake {
    /// Prints the whole text, however long it is.
    PrintAll,
    /// Cuts the text into equal pieces, in the middle of lines.
    SplitMidLine,
    /// Leaves the last piece out.
    LeaveOut,
    /// Lets neighbouring pieces overlap.
    Overlap,
    /// Hands on goals in words only.
    NoQuery,
    /// Hands its whole text to one child.
    WholeText,
    /// Launches subagents without awaiting them.
    ForgetAwait,
    /// Averages the pieces' percentages in place of adding up their counts.
    AveragePercent,
    /// Answers without a box.
    NoBox,
    /// Answers in a sentence.
    Prose,
    /// Miscounts by one.
    OffByOne,
    /// Asks for a query that does not exist.
    BadQuery,
    /// Writes a cell that does not parse.
    SyntaxError,
    /// Only thinks: no Python block.
    NoPython,
}

/// Every mistake with its weight among those that fit the turn.
pub const MISTAKES: [(Mistake, u64); 14] = [
    (Mistake::PrintAll, 3),
    (Mistake::SplitMidLine, 4),
    (Mistake::LeaveOut, 3),
    (Mistake::Overlap, 3),
    (Mistake::NoQuery, 4),
    (Mistake::WholeText, 2),
    (Mistake::ForgetAwait, 2),
    (Mistake::AveragePercent, 4),
    (Mistake::NoBox, 3),
    (Mistake::Prose, 3),
    (Mistake::OffByOne, 4),
    (Mistake::BadQuery, 2),
    (Mistake::SyntaxError, 1),
    (Mistake::NoPython, 1),
];

/// What the noisy policy writes: decided by the rollout's seed, the node and the step.
pub(super) fn act(episode: &OolongEpisode, turn: &Turn<'_>) -> String {
    let action = oracle::next_move(episode, turn);
    let spoilt = mistakes::draw("oolong noisy", turn, MISTAKE_RATE, &MISTAKES, |mistake| spoil(turn, &action, mistake));
    spoilt.unwrap_or_else(|| render(&action))
}

/// The turn with a mistake in it, or `None` if this mistake does not fit the turn.
fn spoil(turn: &Turn<'_>, action: &Move, mistake: Mistake) -> Option<String> {
    match (mistake, action) {
        (Mistake::PrintAll, Move::Look { .. }) => Some(action_text("Read it all.", "print(context)")),
        (Mistake::SyntaxError, Move::Look { .. }) => Some(action_text("Look at it.", "print(len(context)")),
        (Mistake::NoPython, Move::Look { .. }) => {
            Some("<thought>First I should look at the text.</thought>".to_owned())
        }
        (_, Move::Delegate { size, pieces, episodes, query }) => {
            spoil_delegation(mistake, (*size, *pieces, *episodes), query)
        }
        (Mistake::AveragePercent, Move::Merge { query, finish: Some(Finish::Percent(name)) }) => {
            let name = literal(name);
            let share = format!("100 * part.get({name}, 0) / max(1, sum(part.values()))");
            let code = format!(
                "shares = [{share} for part in parts if isinstance(part, dict)]\nanswer = round(sum(shares) / \
                 max(1, len(shares)))\nfinish('\\\\boxed{{' + str(answer) + '}}')"
            );
            (query.verb == Verb::Tally).then(|| action_text("Take the mean of the parts.", &code))
        }
        (Mistake::NoBox | Mistake::Prose, Move::Merge { query, finish: Some(Finish::Plain) }) => {
            let answer = if query.verb == Verb::Count { "str(total)" } else { "', '.join(total)" };
            Some(action_text("Answer.", &format!("{}\n{}", merge(query), loose(mistake, answer))))
        }
        (Mistake::NoBox | Mistake::Prose, Move::Answer { value, finish: Some(finish) }) => {
            Some(action_text("Answer.", &loose(mistake, &literal(&finish.gold(value)))))
        }
        (Mistake::OffByOne, Move::Answer { value: Answer::Count(count), finish }) => {
            let value = Answer::Count(count + 1);
            Some(render(&Move::Answer { value, finish: finish.clone() }))
        }
        (Mistake::OffByOne, Move::Answer { value: Answer::Tally(tally), finish }) if turn.node.len() > 1 => {
            let mut tally = tally.clone();
            *tally.values_mut().next()? += 1;
            Some(render(&Move::Answer { value: Answer::Tally(tally), finish: finish.clone() }))
        }
        _ => None,
    }
}

fn loose(mistake: Mistake, answer: &str) -> String {
    match mistake {
        Mistake::NoBox => format!("finish({answer})"),
        _ => format!("finish('After reading the text I would say it is ' + {answer} + ', more or less.')"),
    }
}

fn spoil_delegation(
    mistake: Mistake,
    (size, pieces, episodes): (usize, usize, Option<usize>),
    query: &Query,
) -> Option<String> {
    let cut = split(size, pieces, episodes);
    let hand_on = gather(query, Some(query));
    let goal = literal(&describe(query));
    let code = match mistake {
        Mistake::SplitMidLine => {
            format!("cuts = list(range(0, len(context), {size})) + [len(context)]\n{hand_on}")
        }
        Mistake::LeaveOut => format!("{cut}cuts = cuts[:-1]\n{hand_on}"),
        Mistake::Overlap => {
            format!("{cut}{}", hand_on.replace("context[a:b]", "context[max(0, a - 400):b]"))
        }
        Mistake::NoQuery => format!("{cut}{}", gather(query, None)),
        Mistake::WholeText => {
            format!("parts = [await launch_subagent({goal}, context, {})]\nprint(parts)", query.to_python())
        }
        Mistake::ForgetAwait => format!("launch_subagent({goal}, context[:{size}])\nprint('launched')"),
        Mistake::BadQuery => format!("{cut}{}", hand_on.replace("'kind': '", "'kind': 'find_")),
        _ => return None,
    };
    Some(action_text("Hand the pieces on.", &code))
}
