//! The scripted policy that solves every solvable task. It may look at the recipe book, and it keeps no state: what it
//! does follows from the world, the node's goal and the turn.
//!
//! A node first reads its targets' recipes. If few crafts are left it makes them and finishes. Otherwise it hands out
//! the direct ingredients that are lacking. Ingredients whose recipe trees need the same intermediates would take each
//! other's goods, so what they share is made first, in one go; the rest is independent and is delegated side by side.
//! Counts are always what the plan for the whole goal needs less what is in stock. Each delegated tree is less deep than
//! its parent's, so the recursion ends; at the depth cap a node makes everything itself, a few crafts per cell.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::episode::CraftEpisode;
use super::recipes::{ItemId, Need, PlanStep, RecipeDb};
use crate::Turn;

/// The fewest crafts that go into one cell when a node has to make everything itself.
const CHUNK: usize = 8;

/// The most targets that the oracle asks one child for: with 45, as some hard tasks would have it, the child's
/// transcript is several times as long.
const MAX_TARGETS: usize = 16;

/// What the engine's refusals have in common; after one, the oracle does the work itself.
const REFUSED: &str = "perform the task yourself";

/// An item and how many of it.
type Amount = (ItemId, u64);

/// What the oracle does in one cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    /// Print the recipes of some items.
    Inspect {
        /// The items.
        items: Vec<ItemId>,
        /// Whether these are the node's own targets.
        targets: bool,
    },
    /// Launch one subagent per group, side by side.
    Delegate {
        /// Each subagent's targets.
        groups: Vec<Vec<(ItemId, u64)>>,
        /// Whether this is what other parts have in common.
        shared: bool,
        /// Items whose recipes the cell prints as well, since the node will craft them itself.
        look: Vec<ItemId>,
    },
    /// Craft, in this order.
    Craft {
        /// The crafts.
        crafts: Vec<PlanStep>,
        /// Whether the node is done then.
        finish: bool,
        /// Items whose recipes the cell prints as well, since they come next.
        look: Vec<ItemId>,
    },
    /// Finish: everything has been made.
    Finish,
    /// Finish without success: base items have run out.
    GiveUp,
}

/// How a goal falls into parts.
struct Parts {
    /// The crafts that several parts need, in the order of the plan. What these take, unless base or in stock, is among
    /// them.
    shared: Vec<PlanStep>,
    /// Direct ingredients of the targets that no one else needs.
    direct: Vec<Amount>,
}

/// The oracle's next action.
pub(super) fn next_move(episode: &CraftEpisode, turn: &Turn<'_>) -> Move {
    let goal: Vec<ItemId> = episode.targets(turn).iter().map(|target| target.0).collect();
    if turn.step == 0 {
        return Move::Inspect { items: goal, targets: true };
    }
    let action = act(episode, turn, &goal);
    if let (1, Move::Craft { crafts, .. }) = (turn.step, &action) {
        // What it is about to write must be on its screen: the recipes of its own targets are, others are not yet.
        let items: Vec<ItemId> = crafts.iter().map(|step| step.item).filter(|item| !goal.contains(item)).collect();
        if !items.is_empty() {
            return Move::Inspect { items, targets: false };
        }
    }
    action
}

fn act(episode: &CraftEpisode, turn: &Turn<'_>, goal: &[ItemId]) -> Move {
    let (db, stock) = (episode.world().db().as_ref(), episode.world().stock());
    let remaining = episode.remaining(turn);
    if remaining.is_empty() {
        return Move::Finish;
    }
    let Ok(steps) = db.plan(&remaining, stock) else { return Move::GiveUp };
    if steps.len() <= episode.batch {
        return Move::Craft { crafts: steps, finish: true, look: Vec::new() };
    }
    if !may_delegate(turn) {
        return craft_some(steps, turn, goal);
    }
    let needs = db.needs(&remaining, stock);
    let parts = split(db, &remaining, &needs, &steps);
    if !parts.shared.is_empty() {
        if episode.batch > 1 && parts.shared.len() <= episode.batch {
            return Move::Craft { crafts: parts.shared, finish: false, look: Vec::new() };
        }
        let most = MAX_TARGETS.max(parts.shared.len().div_ceil(cells_left(turn)));
        return Move::Delegate {
            groups: vec![bottom(db, &needs, &parts.shared, most)],
            shared: true,
            look: Vec::new(),
        };
    }
    let size = |amounts: &[Amount]| db.steps(&db.needs(amounts, stock)).len();
    // A part of one or two crafts is not worth an agent, if the oracle is allowed to do that much itself.
    let (own, handed): (Vec<Amount>, Vec<Amount>) =
        parts.direct.into_iter().partition(|&part| size(&[part]) <= episode.batch / 4);
    if handed.is_empty() {
        return craft_some(steps, turn, goal);
    }
    let look = db.steps(&db.needs(&own, stock)).iter().map(|step| step.item).collect();
    Move::Delegate { groups: handed.into_iter().map(|part| vec![part]).collect(), shared: false, look }
}

pub(super) fn may_delegate(turn: &Turn<'_>) -> bool {
    let refused = turn.observation.is_some_and(|text| text.contains(REFUSED));
    // The root has depth 0 and a path of one ordinal, so a child's depth is the length of its parent's path.
    turn.recursive && turn.node.len() <= turn.max_depth as usize && !refused
}

fn cells_left(turn: &Turn<'_>) -> usize {
    turn.budget.saturating_sub(turn.step).max(1) as usize
}

/// The next few crafts of a plan: as many as are needed to be done within the budget.
fn craft_some(mut steps: Vec<PlanStep>, turn: &Turn<'_>, goal: &[ItemId]) -> Move {
    let rest = steps.split_off(steps.len().min(CHUNK.max(steps.len().div_ceil(cells_left(turn)))));
    let next = rest.iter().take(CHUNK).map(|step| step.item).filter(|item| !goal.contains(item));
    Move::Craft { crafts: steps, finish: rest.is_empty(), look: next.collect() }
}

/// Who needs an item: the node itself, or one of its targets' direct ingredients.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum User {
    Node,
    Part(ItemId),
}

/// Finds what the direct ingredients' trees have in common. `steps` must be the plan that belongs to `needs`.
fn split(db: &RecipeDb, targets: &[Amount], needs: &BTreeMap<ItemId, Need>, steps: &[PlanStep]) -> Parts {
    let is_target = |item: ItemId| targets.iter().any(|target| target.0 == item);
    let mut users: BTreeMap<ItemId, BTreeSet<User>> = BTreeMap::new();
    let mut parts = Parts { shared: Vec::new(), direct: Vec::new() };
    for &(item, _) in targets {
        users.entry(item).or_default().insert(User::Node);
    }
    // From the deepest down, so that all users of an item are known when it comes up.
    for step in steps.iter().rev() {
        let item = step.item;
        let mine = users.get(&item).cloned().unwrap_or_default();
        let (own, shared, direct) = (is_target(item), mine.len() > 1, mine.contains(&User::Node));
        if shared {
            parts.shared.push(*step);
        } else if direct && !own {
            parts.direct.push((item, needs.get(&item).map_or(0, |need| need.missing)));
        }
        let passed_on: BTreeSet<User> = if !direct || (own && !shared) {
            mine
        } else {
            mine.into_iter().filter(|user| *user != User::Node).chain([User::Part(item)]).collect()
        };
        let ingredients = db.recipe(item).into_iter().flat_map(|recipe| &recipe.ingredients);
        for &(part, _) in ingredients.filter(|part| !db.is_base(part.0)) {
            users.entry(part).or_default().extend(passed_on.iter().copied());
        }
    }
    parts.shared.reverse();
    parts.direct.reverse();
    parts
}

/// As much of the shared crafts, from the simplest up, as can be asked for with at most `most` targets: what the crafts
/// above them and the node itself take, all at once.
fn bottom(db: &RecipeDb, needs: &BTreeMap<ItemId, Need>, shared: &[PlanStep], most: usize) -> Vec<Amount> {
    for length in (1..=shared.len()).rev() {
        let crafts = shared.get(..length).unwrap_or_default();
        let mut inside: BTreeMap<ItemId, u64> = BTreeMap::new();
        for (part, amount) in crafts.iter().flat_map(|step| ingredients(db, step)) {
            let used = inside.entry(part).or_default();
            *used = used.saturating_add(amount);
        }
        let wanted = crafts.iter().filter_map(|step| {
            let need = needs.get(&step.item)?;
            // `missing` has the stock taken off where it may be; what the crafts among themselves use, they make as well.
            let count = need.missing.saturating_sub(inside.get(&step.item).copied().unwrap_or(0));
            (count > 0).then_some((step.item, count))
        });
        let wanted: Vec<Amount> = wanted.collect();
        if !wanted.is_empty() && wanted.len() <= most {
            return wanted;
        }
    }
    Vec::new()
}

/// The action text of a move.
pub(super) fn render(episode: &CraftEpisode, action: &Move) -> String {
    let db = episode.world().db();
    let mut code = String::new();
    let thought = match action {
        Move::Inspect { items, targets } => {
            push_look(&mut code, db, items);
            if episode.show_stock && *targets {
                code.push_str("\nprint(view_inventory())");
            }
            if *targets { "Look up the recipe." } else { "Look up the parts." }
        }
        Move::Delegate { groups, shared, look } => {
            code.push_str(&delegation(db, groups));
            if episode.show_stock {
                code.push_str("\nprint(view_inventory())");
            }
            push_look(&mut code, db, look);
            if *shared { "Delegate what the parts share." } else { "Delegate the missing parts." }
        }
        Move::Craft { crafts, finish, look } => {
            code = crafts.iter().map(|step| craft_line(db, step)).collect::<Vec<_>>().join("\n");
            push_look(&mut code, db, look);
            if *finish {
                code.push_str("\nfinish(\"done\")");
            }
            if *finish { "Craft and finish." } else { "Craft the next parts." }
        }
        Move::Finish => {
            code.push_str("finish(\"done\")");
            "All made."
        }
        Move::GiveUp => {
            code.push_str("finish(\"not enough base items\")");
            "Base items ran out."
        }
    };
    action_text(thought, &code)
}

/// A thought and a cell in the agents' format.
pub(super) fn action_text(thought: &str, code: &str) -> String {
    format!("<thought>{thought}</thought>\n<python>{code}</python>")
}

/// A string literal; item names need no escapes, whatever else comes is escaped alike in JSON and Python.
pub(super) fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Such as `{"m0_ore": 4, "m0_i1": 2}`.
pub(super) fn dict<'a>(pairs: impl IntoIterator<Item = (&'a str, u64)>) -> String {
    let pairs = pairs.into_iter().map(|(name, count)| format!("{}: {count}", literal(name)));
    format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
}

/// One call of `launch_subagent`, not awaited.
pub(super) fn launch(db: &RecipeDb, group: &[(ItemId, u64)]) -> String {
    format!("launch_subagent({})", dict(group.iter().map(|&(item, count)| (db.name(item), count))))
}

/// Launches all groups and prints what they answer.
pub(super) fn delegation(db: &RecipeDb, groups: &[Vec<(ItemId, u64)>]) -> String {
    let calls: Vec<String> = groups.iter().map(|group| launch(db, group)).collect();
    match calls.as_slice() {
        [call] => format!("print(await {call})"),
        calls => format!("import asyncio\nprint(await asyncio.gather({}))", calls.join(", ")),
    }
}

/// What one craft takes.
pub(super) fn ingredients(db: &RecipeDb, step: &PlanStep) -> Vec<(ItemId, u64)> {
    let parts = db.recipe(step.item).into_iter().flat_map(|recipe| &recipe.ingredients);
    parts.map(|&(part, amount)| (part, amount.saturating_mul(step.executions))).collect()
}

/// Such as `print(craft({"m0_ore": 4}, ("m0_i1", 6)))`.
pub(super) fn craft_line(db: &RecipeDb, step: &PlanStep) -> String {
    craft_call(db, &ingredients(db, step), step.item, step.total)
}

/// The same with amounts as given.
pub(super) fn craft_call(db: &RecipeDb, parts: &[(ItemId, u64)], item: ItemId, total: u64) -> String {
    let parts = dict(parts.iter().map(|&(part, amount)| (db.name(part), amount)));
    format!("print(craft({parts}, ({}, {total})))", literal(db.name(item)))
}

fn push_look(code: &mut String, db: &RecipeDb, items: &[ItemId]) {
    if items.is_empty() {
        return;
    }
    let names: Vec<String> = items.iter().map(|&item| literal(db.name(item))).collect();
    let line_break = if code.is_empty() { "" } else { "\n" };
    let _ = write!(code, "{line_break}print(get_info([{}]))", names.join(", "));
}
