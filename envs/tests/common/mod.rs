//! A tiny stand-in for the engine: runs the oracle's moves on a tree of nodes without Python, in rounds (all ready nodes
//! decide on the same world, then act in node order) or depth first (a child runs to its end before its next sibling).
#![expect(clippy::unwrap_used, reason = "only test functions are exempt by configuration")]

use std::collections::BTreeMap;

use rao_envs::textcraft::{CraftEpisode, ItemId, Move};
use rao_envs::{Args, Ending, Episode, Goal, Judgement, Turn, Value};

pub(crate) fn dict<'a>(pairs: impl IntoIterator<Item = (&'a str, u64)>) -> Value {
    Value::dict(pairs.into_iter().map(|(name, count)| (name, Value::Int(count as i64))))
}

pub(crate) fn craft_args<'a>(parts: impl IntoIterator<Item = (&'a str, u64)>, item: &str, total: u64) -> Args {
    Args::positional([dict(parts), Value::Tuple(vec![Value::str(item), Value::Int(total as i64)])])
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    Rounds,
    DepthFirst,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) budget: u32,
    pub(crate) max_depth: u32,
    pub(crate) recursive: bool,
}

#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) node: Vec<u32>,
    pub(crate) steps: u32,
    pub(crate) judgement: Judgement,
}

struct Node {
    goal: Goal,
    step: u32,
    children: u32,
    waiting: Vec<Vec<u32>>,
}

/// Runs the oracle on a whole tree; the nodes in the order in which they ended.
pub(crate) fn run(episode: &mut CraftEpisode, limits: Limits, order: Order) -> Vec<Ended> {
    let mut live: BTreeMap<Vec<u32>, Node> = BTreeMap::new();
    let mut ended = Vec::new();
    let root = episode.root_goal();
    start(episode, &mut live, vec![0], root);
    while !live.is_empty() {
        let ready: Vec<Vec<u32>> =
            live.iter().filter(|(_, node)| node.waiting.is_empty()).map(|(key, _)| key.clone()).collect();
        let ready = match order {
            Order::Rounds => ready,
            Order::DepthFirst => ready.into_iter().take(1).collect(),
        };
        let moves: Vec<Move> = ready.iter().map(|key| decide(episode, key, &live[key], limits)).collect();
        for (key, action) in ready.iter().zip(moves) {
            live.get_mut(key).unwrap().step += 1;
            let steps = live[key].step;
            let finished = act(episode, &mut live, key, action);
            if finished || steps == limits.budget {
                live.remove(key);
                let message = Value::str("done");
                let judgement = episode.verify(key, &Ending::with(finished.then_some(&message))).judged().unwrap();
                live.values_mut().for_each(|node| node.waiting.retain(|child| child != key));
                ended.push(Ended { node: key.clone(), steps, judgement });
            }
        }
    }
    ended
}

fn start(episode: &mut CraftEpisode, live: &mut BTreeMap<Vec<u32>, Node>, key: Vec<u32>, goal: Goal) {
    episode.enter(&key, &goal);
    live.insert(key, Node { goal, step: 0, children: 0, waiting: Vec::new() });
}

fn decide(episode: &CraftEpisode, key: &[u32], node: &Node, limits: Limits) -> Move {
    episode.next_move(&Turn {
        node: key,
        goal: &node.goal,
        step: node.step,
        budget: limits.budget,
        max_depth: limits.max_depth,
        recursive: limits.recursive,
        observation: None,
        seed: 1,
    })
}

/// Carries a move out; whether it finished the node.
fn act(episode: &mut CraftEpisode, live: &mut BTreeMap<Vec<u32>, Node>, key: &[u32], action: Move) -> bool {
    match action {
        Move::Inspect { .. } => false,
        Move::Craft { crafts, finish, .. } => {
            let db = episode.world().db().clone();
            for step in crafts {
                let recipe = db.recipe(step.item).unwrap();
                let parts = recipe.ingredients.iter().map(|&(part, amount)| (db.name(part), amount * step.executions));
                episode.call(key, "craft", &craft_args(parts, db.name(step.item), step.total));
            }
            finish
        }
        Move::Delegate { groups, .. } => {
            for group in groups {
                let args = Args::positional([named(episode, &group)]);
                let goal = episode.delegate(key, &args).unwrap();
                let node = live.get_mut(key).unwrap();
                let mut child = key.to_vec();
                child.push(node.children);
                node.children += 1;
                node.waiting.push(child.clone());
                start(episode, live, child, goal);
            }
            false
        }
        Move::Finish | Move::GiveUp => true,
    }
}

fn named(episode: &CraftEpisode, group: &[(ItemId, u64)]) -> Value {
    let db = episode.world().db();
    dict(group.iter().map(|&(item, count)| (db.name(item), count)))
}
