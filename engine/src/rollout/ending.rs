//! The ends of steps, of nodes and of the rollout.

use rao_envs::{Act, Ending, Value};
use rao_store::event::{NodeFinished, Outcome, RewardAssigned, Role, RolloutFinished};
use rao_store::{Depth, NodePath};

use super::{Rollout, cell_output, length, shown};
use crate::answer;
use crate::error::EngineError;
use crate::outside::Asking;
use crate::protocol;
use crate::session;
use crate::tree::{Node, Step};

impl Rollout {
    /// Ends a node's step: cancels what it left running, then ends the node or appends the observation.
    pub(super) fn conclude(&mut self, path: &NodePath) -> Result<(), EngineError> {
        let is_left = |n: &&Node| n.outcome.is_none() && n.path != *path && n.path.is_within(path);
        let running = self.active_nodes().rev().find(is_left).map(|n| n.path.clone());
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
        let asking = Asking { node: path, goal: &goal, ancestors: &[], step, budget, context };
        match self.parts.outside.observation(&asking, stop, &output)? {
            Some(extension) => self.extend(path, Role::Observation, step + 1, extension),
            None => self.end(path, Outcome::ContextOverflow),
        }
    }

    pub(super) fn end(&mut self, path: &NodePath, outcome: Outcome) -> Result<(), EngineError> {
        self.sessions.remove(path);
        self.heavy.remove(path);
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

    /// Judges a node that ended or, if it has its verdict, assigns its reward (Eq. 1).
    pub(super) fn settle_node(&mut self, path: &NodePath) -> Result<(), EngineError> {
        let node = self.node(path)?;
        let Some(own) = node.success() else { return self.judge(path) };
        let children = node.children.iter().filter_map(|child| self.tree.node(child));
        let scores: Vec<f64> = children.map(|child| child.success().unwrap_or(0.0)).collect();
        let body = reward(path, own, &scores, self.parts.config.lambda)?;
        self.active.remove(path);
        self.emit(body.into())
    }

    /// Whether the root has its verdict, so that none has to wait for it any more.
    pub(super) fn root_is_judged(&self) -> bool {
        self.tree.root().is_some_and(|root| root.success().is_some())
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

/// How a node ended: what its judge is shown of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    value: Option<Value>,
    history: Vec<Act>,
    error: Option<&'static str>,
}

impl Ended {
    /// Of a node that ended.
    ///
    /// # Errors
    /// When the stored value cannot be read.
    pub fn of(node: &Node) -> Result<Self, EngineError> {
        Ok(Ended {
            value: node.finish.as_deref().map(|json| answer::value(&node.path, json)).transpose()?,
            history: node.steps.iter().map(act).collect(),
            error: node.outcome.filter(|outcome| *outcome != Outcome::Finished).map(protocol::unfinished),
        })
    }

    /// For the environment and its judges.
    #[must_use]
    pub fn as_ending(&self) -> Ending<'_> {
        Ending { value: self.value.as_ref(), history: &self.history, error: self.error }
    }
}

fn act(step: &Step) -> Act {
    Act { action: step.text.clone(), output: step.output.as_ref().map(shown).unwrap_or_default() }
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
