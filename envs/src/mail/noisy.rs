//! The oracle with seeded mistakes, so that logs hold what goes wrong with real agents: searches that find nothing,
//! errors, guesses, invented sources, wasted children.

use super::cell::{action_text, delegation, finish, finish_json, launch, read_code, search_code};
use super::episode::MailEpisode;
use super::mailbox::Search;
use super::oracle::{self, Move, may_delegate};
use super::query::NO_ANSWER;
use super::reward::Final;
use crate::{Turn, mistakes};

/// How likely a turn is to hold a mistake, if any fits it.
pub const MISTAKE_RATE: f64 = 0.25;

/// The kinds of mistakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mistake {
    /// Answers from the snippets of one search, without reading.
    Guess,
    /// Demands far too many words.
    TooManyKeywords,
    /// Writes a date in a form that the search does not understand.
    BadDate,
    /// Reads a mail whose id it made up.
    InventedId,
    /// Names a source that does not exist.
    InventedSource,
    /// Asks for more hits than allowed, which raises.
    TooManyResults,
    /// Launches subagents without awaiting them.
    ForgetAwait,
    /// Hands its whole goal to a child.
    WholeGoal,
    /// Gives up too early.
    GiveUp,
    /// Finishes with prose instead of JSON.
    Prose,
    /// Writes a cell that does not parse.
    SyntaxError,
    /// Only thinks: no Python block.
    NoPython,
    /// Uses a mail that is not there as if it were.
    Raises,
}

/// Every mistake with its weight among those that fit the turn.
pub const MISTAKES: [(Mistake, u64); 13] = [
    (Mistake::Guess, 4),
    (Mistake::TooManyKeywords, 3),
    (Mistake::BadDate, 3),
    (Mistake::InventedId, 3),
    (Mistake::InventedSource, 2),
    (Mistake::TooManyResults, 2),
    (Mistake::ForgetAwait, 3),
    (Mistake::WholeGoal, 3),
    (Mistake::GiveUp, 2),
    (Mistake::Prose, 2),
    (Mistake::SyntaxError, 2),
    (Mistake::NoPython, 1),
    (Mistake::Raises, 2),
];

const INVENTED: &str = "<0000000.0@nowhere.example>";

/// What the noisy policy writes: decided by the rollout's seed, the node and the step.
pub(super) fn act(episode: &MailEpisode, turn: &Turn<'_>) -> String {
    let action = oracle::next_move(episode, turn);
    let spoilt =
        mistakes::draw("mail noisy", turn, MISTAKE_RATE, &MISTAKES, |mistake| spoil(episode, turn, &action, mistake));
    spoilt.unwrap_or_else(|| oracle::render(&action))
}

/// The turn with a mistake in it, or `None` if this mistake does not fit the turn.
fn spoil(episode: &MailEpisode, turn: &Turn<'_>, action: &Move, mistake: Mistake) -> Option<String> {
    let search = if let Move::Search(searches) = action { searches.first() } else { None };
    let parts = if let Move::Delegate(parts) = action { parts.as_slice() } else { &[] };
    let seen = episode.seen(turn.node);
    let own = seen.goal.split("\n\n").next().unwrap_or_default().to_owned();
    match mistake {
        Mistake::Guess => {
            let hits = &seen.searches.first()?.hits;
            matches!(action, Move::Read(_)).then(|| {
                let guess = Final { answer: "yes".to_owned(), sources: hits.iter().take(1).cloned().collect() };
                action_text("The snippet should do.", &finish(&finish_json(&guess)))
            })
        }
        Mistake::TooManyKeywords => {
            let keywords = own.split_whitespace().map(str::to_owned).collect();
            let search = Search { keywords, ..search?.clone() };
            Some(action_text("Search for everything.", &search_code(&[search])))
        }
        Mistake::BadDate => {
            let search = Search { sent_before: Some("01/31/2031".to_owned()), ..search?.clone() };
            Some(action_text("Search before that day.", &search_code(&[search])))
        }
        Mistake::InventedId => matches!(action, Move::Read(_) | Move::Search(_))
            .then(|| action_text("Read the mail.", &read_code(&[INVENTED.to_owned()]))),
        Mistake::InventedSource => {
            let Move::Finish(last) = action else { return None };
            let last = Final { answer: last.answer.clone(), sources: vec![INVENTED.to_owned()] };
            Some(action_text("Answer.", &finish(&finish_json(&last))))
        }
        Mistake::TooManyResults => {
            let search = Search { max_results: Some(50), ..search?.clone() };
            Some(action_text("Search for many.", &search_code(&[search])))
        }
        Mistake::ForgetAwait => {
            let calls: Vec<String> = parts.iter().map(|part| launch(&part.text())).collect();
            (!calls.is_empty()).then(|| action_text("Delegate the parts.", &calls.join("\n")))
        }
        Mistake::WholeGoal => {
            let fits = may_delegate(turn) && !matches!(action, Move::Finish(_));
            fits.then(|| action_text("Delegate it all.", &delegation(&[own])))
        }
        Mistake::GiveUp => {
            let last = Final { answer: NO_ANSWER.to_owned(), sources: Vec::new() };
            Some(action_text("It is not to be found.", &finish(&finish_json(&last))))
        }
        Mistake::Prose => {
            let Move::Finish(last) = action else { return None };
            Some(action_text("Answer.", &finish(&format!("I think that it is {}.", last.answer))))
        }
        Mistake::SyntaxError => Some(action_text("Look again.", "print(await search_emails([\"report\"))")),
        Mistake::NoPython => Some("<thought>I should search first.</thought>".to_owned()),
        Mistake::Raises => {
            let code = format!("m = await read_email(\"{INVENTED}\")\nprint(m[\"body\"])");
            Some(action_text("Read the mail.", &code))
        }
    }
}
