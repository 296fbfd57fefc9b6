//! What happens next, decided from the tree alone.

use std::cmp::Reverse;

use rao_store::{NodePath, Seq};

use super::{Move, Rollout, Session};
use crate::config::Scheduler;
use crate::error::EngineError;
use crate::repl::Progress;
use crate::tree::{Node, Phase};

impl Rollout {
    /// Decides what happens next, from the tree alone. In order:
    ///
    /// 1. whatever one event made due: a prompt for a new node, verdict and reward of one that ended, the end of a
    ///    step, the rest of a running cell;
    /// 2. an action for every node that became ready before the round's first action (the rest of a batch);
    /// 3. the cell of the first node, in path order, that has acted;
    /// 4. the answers that the first suspended node can be given;
    /// 5. a new round: an action for every ready node.
    ///
    /// Under `arrival`, 2 and 5 fall away: a node's cell runs as soon as it has acted, and when nothing is left to do the
    /// rollout waits for the action of any ready node, or for a call that runs by itself.
    pub(super) fn next_move(&self) -> Result<Move, EngineError> {
        if self.tree.is_empty() {
            return Ok(Move::Spawn);
        }
        if let Some(due) = self.due() {
            return Ok(due);
        }
        let nodes: Vec<&Node> = self.active_nodes().collect();
        if self.scheduler() == Scheduler::Arrival {
            return Ok(self.next_arrival_move(&nodes));
        }
        let batch_start =
            nodes.iter().filter_map(|n| if let Phase::Acted { at } = n.phase { Some(at) } else { None }).min();
        let ready = |limit: Option<Seq>| -> Vec<NodePath> {
            let is_ready = |n: &&&Node| match n.phase {
                Phase::Ready { since } => limit.is_none_or(|limit| since < limit),
                _ => false,
            };
            nodes.iter().filter(is_ready).map(|n| n.path.clone()).collect()
        };
        if let Some(start) = batch_start {
            let rest = ready(Some(start));
            if !rest.is_empty() {
                return Ok(Move::Sample(rest));
            }
            if let Some(node) = nodes.iter().find(|n| matches!(n.phase, Phase::Acted { .. })) {
                return Ok(Move::RunCell(node.path.clone()));
            }
        }
        if let Some(node) = nodes.iter().find(|n| n.phase == Phase::InCell && !self.deliverable(n).is_empty()) {
            return Ok(Move::Deliver(node.path.clone()));
        }
        let all = ready(None);
        if !all.is_empty() {
            return Ok(Move::Sample(all));
        }
        match (self.tree.root().and_then(|root| root.reward.as_ref()), &self.tree.finished) {
            (Some(_), None) => Ok(Move::Finish),
            (Some(_), Some(_)) => Ok(Move::Nothing),
            (None, _) => Err(EngineError::Internal("no node of the rollout can go on".into())),
        }
    }

    fn next_arrival_move(&self, nodes: &[&Node]) -> Move {
        if let Some(node) = nodes.iter().find(|n| matches!(n.phase, Phase::Acted { .. })) {
            return Move::RunCell(node.path.clone());
        }
        if let Some(node) = nodes.iter().find(|n| n.phase == Phase::InCell && !self.deliverable(n).is_empty()) {
            return Move::Deliver(node.path.clone());
        }
        match (self.tree.root().and_then(|root| root.reward.as_ref()), &self.tree.finished) {
            (Some(_), None) => Move::Finish,
            (Some(_), Some(_)) => Move::Nothing,
            (None, _) => {
                let ready = nodes.iter().filter(|n| matches!(n.phase, Phase::Ready { .. }));
                Move::Wait(ready.map(|n| n.path.clone()).collect())
            }
        }
    }

    pub(super) fn due(&self) -> Option<Move> {
        let find = |test: &dyn Fn(&Node) -> bool| self.active_nodes().find(|n| test(n)).map(|n| n.path.clone());
        if let Some(node) = find(&|n| n.phase == Phase::Spawned) {
            return Some(Move::Prompt(node));
        }
        if let Some(node) = self.unsettled() {
            return Some(Move::Settle(node));
        }
        if let Some(node) = find(&|n| n.phase == Phase::CellDone) {
            return Some(Move::Conclude(node));
        }
        find(&|n| n.phase == Phase::InCell && !self.is_suspended(n)).map(Move::Drive)
    }

    /// The next ended node that lacks its verdict or reward and can be given it. Those that wait for the root come once it
    /// has its verdict: first every verdict, in path order, then every reward, the deepest first.
    fn unsettled(&self) -> Option<NodePath> {
        let mut ended = self.active_nodes().filter(|n| n.phase == Phase::Ended);
        if !self.root_is_judged() {
            return ended.find(|n| !self.deferred.contains(&n.path)).map(|n| n.path.clone());
        }
        let ended: Vec<&Node> = ended.collect();
        let unjudged = ended.iter().find(|n| n.success().is_none());
        let deepest = || ended.iter().min_by_key(|n| (Reverse(n.depth), &n.path));
        unjudged.or_else(deepest).map(|n| n.path.clone())
    }

    /// Whether the node's cell waits for answers that are not there yet.
    fn is_suspended(&self, node: &Node) -> bool {
        match self.sessions.get(&node.path) {
            Some(Session { progress: Some(Progress::Blocked { .. }), .. }) => true,
            Some(Session { progress: Some(Progress::Call(call)), .. }) => {
                let is_issued = node.last_step().is_some_and(|step| step.calls.len() > call.call as usize);
                is_issued && !call.is_async && !self.has_come(node, call.call)
            }
            _ => false,
        }
    }
}
