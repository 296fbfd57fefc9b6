//! The oracle with seeded mistakes, so that logs hold what goes wrong with real agents: refusals, errors, retries,
//! wasted children, failed nodes.

use super::episode::CraftEpisode;
use super::oracle::{
    action_text, craft_call, craft_line, delegation, dict, ingredients, launch, literal, may_delegate,
};
use super::recipes::{ItemId, PlanStep};
use super::{Move, oracle};
use crate::{Turn, mistakes};

/// How likely a turn is to hold a mistake, if any fits it.
pub const MISTAKE_RATE: f64 = 0.2;

/// The kinds of mistakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mistake {
    /// One ingredient too many in a craft.
    WrongAmount,
    /// Asks for as many items as there are executions, leaving the yield out.
    ForgetYield,
    /// Launches subagents without awaiting them.
    ForgetAwait,
    /// Delegates a craft that it could make itself.
    OverDelegate,
    /// Hands its whole goal to a child.
    WholeGoal,
    /// Finishes before anything was made.
    FinishEarly,
    /// Launches the same subgoal twice, side by side.
    Duplicate,
    /// Writes a cell that does not parse.
    SyntaxError,
    /// Only thinks: no Python block.
    NoPython,
    /// Writes a cell that raises.
    Raises,
    /// Asks a child for a base item, which is refused.
    BaseItem,
}

/// Every mistake with its weight among those that fit the turn.
pub const MISTAKES: [(Mistake, u64); 11] = [
    (Mistake::WrongAmount, 4),
    (Mistake::ForgetYield, 4),
    (Mistake::ForgetAwait, 4),
    (Mistake::OverDelegate, 4),
    (Mistake::WholeGoal, 2),
    (Mistake::FinishEarly, 2),
    (Mistake::Duplicate, 4),
    (Mistake::SyntaxError, 2),
    (Mistake::NoPython, 1),
    (Mistake::Raises, 2),
    (Mistake::BaseItem, 2),
];

/// What the noisy policy writes: decided by the rollout's seed, the node and the step.
pub(super) fn act(episode: &CraftEpisode, turn: &Turn<'_>) -> String {
    let action = oracle::next_move(episode, turn);
    let spoilt = mistakes::draw("textcraft noisy", turn, MISTAKE_RATE, &MISTAKES, |mistake| {
        spoil(episode, turn, &action, mistake)
    });
    spoilt.unwrap_or_else(|| oracle::render(episode, &action))
}

/// The turn with a mistake in it, or `None` if this mistake does not fit the turn.
fn spoil(episode: &CraftEpisode, turn: &Turn<'_>, action: &Move, mistake: Mistake) -> Option<String> {
    let db = episode.world().db();
    let crafts = if let Move::Craft { crafts, .. } = action { crafts.as_slice() } else { &[] };
    let groups = if let Move::Delegate { groups, .. } = action { groups.as_slice() } else { &[] };
    match mistake {
        Mistake::WrongAmount => spoil_craft(episode, crafts.first()?, |parts, _, total| {
            if let Some(part) = parts.first_mut() {
                part.1 += 1;
            }
            total
        }),
        Mistake::ForgetYield => {
            let step = crafts.iter().find(|step| step.total != step.executions)?;
            spoil_craft(episode, step, |_, executions, _| executions)
        }
        Mistake::ForgetAwait => {
            let calls: Vec<String> = groups.iter().map(|group| launch(db, group)).collect();
            (!calls.is_empty()).then(|| action_text("Delegate the missing parts.", &calls.join("\n")))
        }
        Mistake::OverDelegate => {
            let goal = episode.targets(turn);
            let step = crafts.iter().find(|step| goal.iter().all(|target| target.0 != step.item))?;
            let call = delegation(db, &[vec![(step.item, step.total)]]);
            may_delegate(turn).then(|| action_text("Delegate the missing parts.", &call))
        }
        Mistake::WholeGoal => {
            let call = delegation(db, &[episode.targets(turn)]);
            may_delegate(turn).then(|| action_text("Delegate it all.", &call))
        }
        Mistake::FinishEarly => Some(action_text("All made.", "finish(\"done\")")),
        Mistake::Duplicate => {
            let first = groups.first()?;
            let twice: Vec<_> = groups.iter().chain([first]).cloned().collect();
            Some(action_text("Delegate the missing parts.", &delegation(db, &twice)))
        }
        Mistake::SyntaxError => {
            let target = literal(db.name(episode.targets(turn).first()?.0));
            Some(action_text("Look up the recipe.", &format!("print(get_info([{target}))")))
        }
        Mistake::NoPython => Some("<thought>Look up the recipe first.</thought>".to_owned()),
        Mistake::Raises => {
            let target = literal(db.name(episode.targets(turn).first()?.0));
            Some(action_text("Look into the stock.", &format!("stock = {{}}\nprint(stock[{target}])")))
        }
        Mistake::BaseItem => {
            let base = db.closure(&[episode.targets(turn).first()?.0]).into_iter().find(|&item| db.is_base(item))?;
            let call = format!("print(await launch_subagent({}))", dict([(db.name(base), 1)]));
            turn.recursive.then(|| action_text("Delegate the missing parts.", &call))
        }
    }
}

/// A craft with amounts changed by `change(parts, executions, total) -> total`.
fn spoil_craft(
    episode: &CraftEpisode,
    step: &PlanStep,
    change: impl FnOnce(&mut Vec<(ItemId, u64)>, u64, u64) -> u64,
) -> Option<String> {
    let db = episode.world().db();
    let mut parts = ingredients(db, step);
    let total = change(&mut parts, step.executions, step.total);
    let code = craft_call(db, &parts, step.item, total);
    (code != craft_line(db, step)).then(|| action_text("Craft the next parts.", &code))
}
