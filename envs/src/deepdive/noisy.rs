//! The oracle with seeded mistakes, so that logs hold what goes wrong with real agents: wrong answers, errors, wasted
//! children, failed nodes.

use super::episode::DiveEpisode;
use super::oracle::{self, Move, NOT_FOUND, action_text, delegation, literal, may_delegate, read_code, search_code};
use crate::{Turn, mistakes};

/// How likely a turn is to hold a mistake, if any fits it.
pub const MISTAKE_RATE: f64 = 0.2;

/// The kinds of mistakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mistake {
    /// Answers with the first result's title, without reading.
    FirstResult,
    /// Reads the first result whatever it is.
    FirstPage,
    /// Gives up instead of searching again.
    NoRefinement,
    /// Prints the whole of every page that a search finds.
    WholePages,
    /// Hands its own goal on as it is.
    WholeGoal,
    /// Calls an async tool without awaiting it.
    ForgetAwait,
    /// Asks for more results than there may be.
    TooMany,
    /// Reads a page that it made up.
    InventedPage,
    /// Finishes before anything was found.
    FinishEarly,
    /// Reads the field that is always empty.
    Raises,
    /// Writes a cell that does not parse.
    SyntaxError,
    /// Only thinks: no Python block.
    NoPython,
}

/// Every mistake with its weight among those that fit the turn.
pub const MISTAKES: [(Mistake, u64); 12] = [
    (Mistake::FirstResult, 4),
    (Mistake::FirstPage, 4),
    (Mistake::NoRefinement, 4),
    (Mistake::WholePages, 3),
    (Mistake::WholeGoal, 2),
    (Mistake::ForgetAwait, 3),
    (Mistake::TooMany, 2),
    (Mistake::InventedPage, 2),
    (Mistake::FinishEarly, 1),
    (Mistake::Raises, 2),
    (Mistake::SyntaxError, 2),
    (Mistake::NoPython, 1),
];

/// What the noisy policy writes: decided by the rollout's seed, the node and the step.
pub(super) fn act(episode: &DiveEpisode, turn: &Turn<'_>) -> String {
    let action = oracle::next_move(episode, turn);
    let spoilt = mistakes::draw("deepdive noisy", turn, MISTAKE_RATE, &MISTAKES, |mistake| {
        spoil(episode, turn, &action, mistake)
    });
    spoilt.unwrap_or_else(|| oracle::render(&action))
}

/// The turn with a mistake in it, or `None` if this mistake does not fit the turn.
fn spoil(episode: &DiveEpisode, turn: &Turn<'_>, action: &Move, mistake: Mistake) -> Option<String> {
    let state = episode.node(turn.node)?;
    let query = if let Move::Search { query, .. } = action { Some(query) } else { None };
    let page = if let Move::Read { url } = action { Some(url) } else { None };
    match mistake {
        Mistake::FirstResult => {
            page?;
            let code = "finish(found[\"results\"][0][\"title\"])";
            Some(action_text("The first result should be it.", code))
        }
        Mistake::FirstPage => {
            let first = state.searches.last()?.1.first()?;
            (page? != first).then(|| action_text("Read the first page.", &read_code(first)))
        }
        Mistake::NoRefinement => (query.is_some() && !state.searches.is_empty() && turn.step > 0).then(|| {
            let code = format!("finish({})", literal(NOT_FOUND));
            action_text("Nothing was found.", &code)
        }),
        Mistake::WholePages => {
            let code = format!(
                "found = await search_web({})\nfor result in found[\"results\"]:\n    print(await view_webpage_content(result[\"url\"]))",
                literal(query?)
            );
            Some(action_text("Read everything.", &code))
        }
        Mistake::WholeGoal => may_delegate(turn).then(|| {
            let own = state.goal.lines().next().unwrap_or_default().to_owned();
            action_text("Delegate it all.", &delegation(&[own]))
        }),
        Mistake::ForgetAwait => match action {
            Move::Search { query, .. } => {
                Some(action_text("Search for it.", &format!("found = search_web({})\nprint(found)", literal(query))))
            }
            Move::Delegate { goals } => {
                let calls: Vec<String> =
                    goals.iter().map(|goal| format!("launch_subagent({})", literal(goal))).collect();
                Some(action_text("Delegate the next step.", &calls.join("\n")))
            }
            _ => None,
        },
        Mistake::TooMany => Some(action_text("Search for everything.", &search_code(query?, Some(50)))),
        Mistake::InventedPage => {
            let address = format!("https://pages.example/{}", query?.split_whitespace().last()?.to_lowercase());
            Some(action_text("There must be a page on it.", &read_code(&address)))
        }
        Mistake::FinishEarly => Some(action_text("It is not to be found.", &format!("finish({})", literal(NOT_FOUND)))),
        Mistake::Raises => {
            let code = format!("found = await search_web({})\nprint(found[\"answer\"].strip())", literal(query?));
            Some(action_text("Take the service's answer.", &code))
        }
        Mistake::SyntaxError => {
            Some(action_text("Search for it.", &format!("print(await search_web({})", literal(query?))))
        }
        Mistake::NoPython => Some("<thought>First I have to work out what is asked.</thought>".to_owned()),
    }
}
