//! The ends of steps, of nodes and of the rollout.

use rao_store::event::{NodeFinished, Outcome, RewardAssigned, Role, RolloutFinished, Verdict};
use rao_store::{Depth, Digest, NodePath};

use super::{Rollout, cell_output, length};
use crate::answer;
use crate::error::EngineError;
use crate::outside::Asking;
use crate::session;
use crate::tree::Node;

impl Rollout {
    /// Ends a node's step: cancels what it left running, then ends the node or appends the observation.
    pub(super) fn conclude(&mut self, path: &NodePath) -> Result<(), EngineError> {
        let running =
            self.active_nodes().rev().find(|n| n.path != *path && n.path.is_within(path)).map(|n| n.path.clone());
        if let Some(running) = running {
            return self.end(&running, Outcome::Cancelled);
        }
        let node = self.node(path)?;
        let Some(last) = node.last_step() else {
            return Err(EngineError::Internal(format!("node {path} has no step to conclude")));
        };
        if session::finish_value(path, last)?.is_some() {
            return self.end(path, Outcome::Finished);
        }
        if self.remaining(path)? == 0 {
            return self.end(path, Outcome::OutOfSteps);
        }
        let Some(output) = last.output.as_ref().map(cell_output) else {
            return Err(EngineError::Internal(format!("node {path} has no output to show")));
        };
        let stop = last.stop;
        let step = length(node.steps.len())?.saturating_sub(1);
        let (budget, context) = (node.budget, node.tokens.len());
        let goal = self.goal(path)?;
        let asking = Asking { node: path, goal: &goal, step, budget, context };
        match self.parts.outside.observation(&asking, stop, &output)? {
            Some(extension) => self.extend(path, Role::Observation, step + 1, extension),
            None => self.end(path, Outcome::ContextOverflow),
        }
    }

    pub(super) fn end(&mut self, path: &NodePath, outcome: Outcome) -> Result<(), EngineError> {
        self.sessions.remove(path);
        self.detached.forget(path);
        self.released.extend(self.rows.remove(path));
        let node = self.node(path)?;
        let value = match (outcome, node.last_step()) {
            (Outcome::Finished, Some(step)) => session::finish_value(path, step)?.map(|v| v.to_json_text()),
            _ => None,
        };
        let (steps, tokens) = (length(node.steps.len())?, length(node.generated())?);
        self.emit(NodeFinished { node: path.clone(), outcome, value, steps, tokens }.into())
    }

    /// Judges a node that ended and assigns its reward (Eq. 1).
    pub(super) fn settle_node(&mut self, path: &NodePath) -> Result<(), EngineError> {
        let node = self.node(path)?;
        let Some(own) = node.success() else {
            let value = node.finish.as_deref().map(|json| answer::value(path, json)).transpose()?;
            let judgement = self.parts.outside.verify(path, value.as_ref());
            let evidence = judgement.evidence.to_string();
            let evidence_digest = Digest::of(evidence.as_bytes());
            let (score, source) = (judgement.score, judgement.source);
            let node = path.clone();
            return self.emit(Verdict { node, source, score, evidence, evidence_digest, judge: None }.into());
        };
        let scores: Vec<f64> = node
            .children
            .iter()
            .filter_map(|child| self.tree.node(child))
            .map(|c| c.success().unwrap_or(0.0))
            .collect();
        let body = reward(path, own, &scores, self.parts.config.lambda)?;
        self.active.remove(path);
        self.emit(body.into())
    }

    pub(super) fn finish(&mut self) -> Result<(), EngineError> {
        let mut max_depth = Depth(0);
        let (mut steps, mut tokens) = (0, 0);
        for node in self.tree.nodes() {
            max_depth = max_depth.max(node.depth);
            steps += length(node.steps.len())?;
            tokens += node.generated() as u64;
        }
        let nodes = length(self.tree.len())?;
        let success = self.tree.root().and_then(Node::success).unwrap_or(0.0);
        self.emit(RolloutFinished { nodes, steps, tokens, max_depth, success }.into())
    }
}

/// Eq. 1: own success plus lambda times the mean of the launched children's own success, summed in spawn order.
///
/// # Errors
/// Never for trees of a sensible size.
pub fn reward(node: &NodePath, own: f64, children: &[f64], lambda: f64) -> Result<RewardAssigned, EngineError> {
    let count = length(children.len())?;
    let child_mean = if count == 0 { 0.0 } else { children.iter().sum::<f64>() / f64::from(count) };
    let reward = own + lambda * child_mean;
    Ok(RewardAssigned { node: node.clone(), own, children: count, child_mean, lambda, reward })
}
