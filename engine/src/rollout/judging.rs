//! Verdicts: those given at once, those that wait for the root's, and those that a judge outside this process is asked for.
//!
//! Nothing waits for a verdict: a parent is given its child's value as soon as the child has ended. When a verdict of a
//! judge outside is logged depends on the scheduler:
//!
//! * under `arrival`, when it comes; a replay takes the order from the log;
//! * under `rounds`, behind the actions of the round that follows the node's end, or once nobody has to act any more; of
//!   several, in node order. That follows from the tree, so neither a slow judge nor an interruption changes it.
//!
//! While one is outstanding no reward is assigned. Logs of versions that waited for their judges have these verdicts right
//! behind the ends of their nodes; that is taken from the log too.

use std::collections::BTreeMap;

use rao_envs::Judgement;
use rao_envs::judge::{Inquiry, Ruling, proxy};
use rao_store::event::Verdict;
use rao_store::{Digest, NodePath, Seq};
use serde_json::json;

use super::{Ended, Move, Rollout};
use crate::error::EngineError;
use crate::tree::Node;

/// Nodes whose verdict a judge outside this process gives, and that is not logged yet.
#[derive(Default)]
pub(super) struct Docket {
    open: BTreeMap<NodePath, Case>,
    /// Questions that nobody has taken to ask yet.
    waiting: Vec<(NodePath, Inquiry)>,
}

#[derive(Default)]
struct Case {
    /// Who was asked; nobody is where the log has the verdict.
    judge: Option<String>,
    /// What the judge said.
    said: Option<Judgement>,
}

impl Docket {
    pub(super) fn has(&self, node: &NodePath) -> bool {
        self.open.contains_key(node)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

impl Rollout {
    /// Questions to judges outside this process since the last time, to be asked beside everything else. What they say goes
    /// to [`Rollout::hear`].
    pub fn take_inquiries(&mut self) -> Vec<(NodePath, Inquiry)> {
        std::mem::take(&mut self.docket.waiting)
    }

    /// Takes the verdict on a node whose judge was asked; one that nobody waits for is dropped.
    pub fn hear(&mut self, node: &NodePath, judgement: Judgement) {
        if let Some(case) = self.docket.open.get_mut(node) {
            case.said = Some(judgement);
        }
    }

    /// Whether the verdict of a node whose judge was asked is there.
    pub(super) fn verdict_has_come(&self, node: &NodePath) -> bool {
        match self.parts.outside.is_verdict_next(node) {
            Some(is_next) => is_next,
            None => self.docket.open.get(node).is_some_and(|case| case.said.is_some()),
        }
    }

    /// Under `rounds`, the verdicts that are due now: of nodes that ended before `before`, or of all.
    pub(super) fn verdicts_due(&self, before: Option<Seq>) -> Option<Move> {
        let is_due = |path: &&NodePath| match before {
            Some(before) => self.tree.node(path).and_then(|node| node.ended).is_some_and(|ended| ended < before),
            None => true,
        };
        let due: Vec<&NodePath> = self.docket.open.keys().filter(is_due).collect();
        let first = due.first().copied()?;
        if self.verdict_has_come(first) {
            return Some(Move::Settle(first.clone()));
        }
        Some(Move::Judge(due.into_iter().cloned().collect()))
    }

    pub(super) fn judge(&mut self, path: &NodePath) -> Result<(), EngineError> {
        if self.deferred.contains(path)
            && let Some(score) = self.tree.root().and_then(Node::success)
        {
            let judgement = Judgement { score, source: "root".into(), evidence: json!({ "root": score }) };
            return self.give_verdict(path, judgement, Some(proxy().to_json()));
        }
        if let Some(Case { judge, said: Some(judgement) }) = self.docket.open.remove(path) {
            return self.give_verdict(path, judgement, judge);
        }
        let ended = Ended::of(self.node(path)?)?;
        match self.parts.outside.verify(path, &ended.as_ending())? {
            Some(Ruling::Given { judgement, judge }) => self.give_verdict(path, judgement, judge),
            Some(Ruling::AsRoot) if *path == NodePath::root() => {
                Err(EngineError::Internal("the root's success cannot be its own measure".into()))
            }
            Some(Ruling::AsRoot) => {
                self.deferred.insert(path.clone());
                Ok(())
            }
            Some(Ruling::Asked(inquiry)) => {
                let case = Case { judge: Some(inquiry.judge().to_owned()), said: None };
                self.docket.open.insert(path.clone(), case);
                self.docket.waiting.push((path.clone(), inquiry));
                Ok(())
            }
            None => {
                self.docket.open.insert(path.clone(), Case::default());
                Ok(())
            }
        }
    }

    fn give_verdict(
        &mut self,
        path: &NodePath,
        judgement: Judgement,
        judge: Option<String>,
    ) -> Result<(), EngineError> {
        let Judgement { score, source, evidence } = judgement;
        let evidence = evidence.to_string();
        let evidence_digest = Digest::of(evidence.as_bytes());
        self.emit(Verdict { node: path.clone(), source, score, evidence, evidence_digest, judge }.into())
    }
}
