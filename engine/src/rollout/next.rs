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
    /// 3. the verdicts of judges outside this process on nodes that ended before that first action;
    /// 4. the cell of the first node, in path order, that has acted;
    /// 5. the answers that the first suspended node can be given;
    /// 6. a new round: an action for every ready node;
    /// 7. where nobody is ready, the verdicts of judges outside that are left.
    ///
    /// Under `arrival`, 2, 3, 6 and 7 fall away: a node's cell runs as soon as it has acted, and when nothing is left to do
    /// the rollout waits for the action of any ready node, for a call that runs by itself, or for a verdict.
    pub(super) fn next_move(&self) -> Result<Move, EngineError> {
        if self.tree.is_empty() {
            return Ok(Move::Spawn);
        }
        if self.stands_still() {
            return Ok(Move::Await);
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
            if let Some(due) = self.verdicts_due(Some(start)) {
                return Ok(due);
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
        if let Some(due) = self.verdicts_due(None) {
            return Ok(due);
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

    /// The next ended node that can be given its verdict or its reward. Rewards wait while a judge outside is being asked.
    /// Verdicts that are the root's come once it has its own: first every verdict, in path order, then every reward, the
    /// deepest first.
    fn unsettled(&self) -> Option<NodePath> {
        let ended = || self.active_nodes().filter(|n| n.phase == Phase::Ended);
        let mut unjudged = ended().filter(|n| n.success().is_none());
        let root_is_judged = self.root_is_judged();
        let can_be_judged = |n: &&Node| match (self.docket.has(&n.path), self.deferred.contains(&n.path)) {
            (true, _) => self.scheduler() == Scheduler::Arrival && self.verdict_has_come(&n.path),
            (false, true) => root_is_judged,
            (false, false) => true,
        };
        if let Some(node) = unjudged.find(can_be_judged) {
            return Some(node.path.clone());
        }
        if !self.docket.is_empty() {
            return None;
        }
        let has_all = |n: &&Node| {
            let children = n.children.iter().filter_map(|child| self.tree.node(child));
            n.success().is_some() && (root_is_judged || children.into_iter().all(|child| child.success().is_some()))
        };
        let node = match root_is_judged {
            true => ended().filter(has_all).min_by_key(|n| (Reverse(n.depth), &n.path)),
            false => ended().find(has_all),
        };
        node.map(|n| n.path.clone())
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
