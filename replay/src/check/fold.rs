//! The `fold` check: the tree is rebuilt, and every number that follows from other events is computed again.

use rao_engine::{Node, Tree};
use rao_store::event::{Body, Event, NodeFinished, RolloutFinished, Verdict};
use rao_store::{Depth, Digest, RolloutId, RunId, Seq};

use super::Checked;
use super::compare::same;
use super::divergence::Divergence;

/// Folds a rollout and compares every derived number from `from` on.
pub(super) fn check(run: RunId, rollout: RolloutId, events: &[Event], from: Seq, complete: bool) -> Checked {
    let mut checked = Checked::new(events, from, complete);
    let mut tree = Tree::new();
    for (at, event) in events.iter().enumerate() {
        let again = derived(&tree, &event.body);
        let compared = event.seq >= from;
        let difference = match again {
            Some(again) if compared && !same(&again, &event.body) => Some(Divergence::of_bodies(events, at, &again)),
            _ => tree.apply(event).err().map(|error| Divergence::of_kind(events, at, error.to_string())),
        };
        if let Some(difference) = difference {
            checked.divergence = Some(difference.placed(run, rollout));
            break;
        }
        checked.compared += u64::from(compared);
    }
    checked
}

/// The event as it follows from the tree before it, for events that state a derived number.
fn derived(tree: &Tree, body: &Body) -> Option<Body> {
    match body {
        Body::NodeFinished(stored) => {
            let node = tree.node(&stored.node)?;
            let steps = u32::try_from(node.steps.len()).ok()?;
            let tokens = u32::try_from(node.generated()).ok()?;
            Some(NodeFinished { steps, tokens, ..stored.clone() }.into())
        }
        Body::Verdict(stored) => {
            let evidence_digest = Digest::of(stored.evidence.as_bytes());
            Some(Verdict { evidence_digest, ..stored.clone() }.into())
        }
        Body::RewardAssigned(stored) => {
            let node = tree.node(&stored.node)?;
            let scores: Vec<f64> =
                node.children.iter().filter_map(|c| tree.node(c)).map(|c| c.success().unwrap_or(0.0)).collect();
            rao_engine::reward(&stored.node, node.success()?, &scores, stored.lambda).ok().map(Body::from)
        }
        Body::RolloutFinished(_) => Some(totals(tree)?.into()),
        _ => None,
    }
}

fn totals(tree: &Tree) -> Option<RolloutFinished> {
    Some(RolloutFinished {
        nodes: u32::try_from(tree.len()).ok()?,
        steps: u32::try_from(tree.nodes().map(|n| n.steps.len()).sum::<usize>()).ok()?,
        tokens: tree.nodes().map(|n| n.generated() as u64).sum(),
        max_depth: tree.nodes().map(|n| n.depth).max().unwrap_or(Depth(0)),
        success: tree.root().and_then(Node::success).unwrap_or(0.0),
    })
}
