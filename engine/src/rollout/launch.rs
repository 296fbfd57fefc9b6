//! Launches: what is admitted, what is refused, and what it costs.

use rao_envs::{Args, Goal};
use rao_store::NodePath;
use rao_store::event::{RefusalReason, SpawnRefused};

use super::{Rollout, length};
use crate::config::BudgetModel;
use crate::error::EngineError;
use crate::outside::CallSite;
use crate::protocol;

struct Refused {
    reason: RefusalReason,
    goal: String,
    text: String,
}

impl Rollout {
    /// Launches, or refuses to. The arguments may hold long texts: they are gone when this returns.
    pub(super) fn launch(&mut self, path: &NodePath, step: u32, call: u32, args: Args) -> Result<(), EngineError> {
        let logged = self.node(path)?.last_step().and_then(|s| s.calls.get(call as usize));
        if logged.is_some_and(|logged| logged.child.is_some() || logged.refused.is_some()) {
            return Ok(());
        }
        let site = CallSite { node: path, step, call };
        match self.admit(&site, args)? {
            Ok((goal, budget)) => {
                let ordinal = length(self.node(path)?.children.len())?;
                self.spawn(path.child(ordinal), Some((step, call)), goal, budget)?;
                self.prompt(&path.child(ordinal))
            }
            Err(refused) => {
                let Refused { reason, goal, text } = refused;
                let node = path.clone();
                self.emit(SpawnRefused { node, step, call, reason, goal, text }.into())
            }
        }
    }

    /// Decides on a launch before anything is made for it.
    fn admit(&mut self, site: &CallSite<'_>, mut args: Args) -> Result<Result<(Goal, u32), Refused>, EngineError> {
        let (path, config) = (site.node, self.parts.config.clone());
        let asked_steps = match config.budget {
            BudgetModel::PerAgent => None,
            BudgetModel::Shared => split_steps(&mut args),
        };
        let goal = match self.parts.outside.delegate(site, &args) {
            Ok(goal) => goal,
            Err(text) => return Ok(Err(Refused { reason: RefusalReason::Goal, goal: String::new(), text })),
        };
        drop(args);
        let refuse = |reason, text| Ok(Err(Refused { reason, goal: goal.text.clone(), text }));
        if path.depth().0 + 1 > config.max_depth {
            let text = protocol::refusal::depth(&goal.text, config.max_depth);
            return refuse(RefusalReason::Depth, text);
        }
        if self.tree.len() >= config.max_nodes as usize {
            let text = protocol::refusal::nodes(&goal.text, config.max_nodes);
            return refuse(RefusalReason::Nodes, text);
        }
        let budget = match config.budget {
            BudgetModel::PerAgent => config.max_steps,
            BudgetModel::Shared => {
                let remaining = self.remaining(path)?;
                let steps = asked_steps.unwrap_or(remaining / 2);
                if steps == 0 || steps.saturating_add(1) > remaining {
                    return refuse(RefusalReason::Budget, protocol::refusal::budget(&goal.text, remaining));
                }
                steps
            }
        };
        Ok(Ok((goal, budget)))
    }

    /// Steps that the node can still take or give away: its budget, less its own steps, less what its children used or
    /// have reserved.
    pub(super) fn remaining(&self, path: &NodePath) -> Result<u32, EngineError> {
        let node = self.node(path)?;
        let mut left = node.budget.saturating_sub(length(node.steps.len())?);
        if self.parts.config.budget == BudgetModel::Shared {
            for child in &node.children {
                left = left.saturating_sub(self.charged(child)?);
            }
        }
        Ok(left)
    }

    fn charged(&self, child: &NodePath) -> Result<u32, EngineError> {
        let node = self.node(child)?;
        if node.outcome.is_none() {
            return Ok(node.budget.saturating_add(1));
        }
        let mut used = length(node.steps.len())?;
        for grandchild in &node.children {
            used = used.saturating_add(self.charged(grandchild)?);
        }
        Ok(used)
    }
}

/// Takes the optional `num_steps` keyword, which only the shared budget knows, out of a launch's arguments.
fn split_steps(args: &mut Args) -> Option<u32> {
    let at = args.kwargs.iter().position(|(name, _)| name == "num_steps")?;
    let (_, asked) = args.kwargs.remove(at);
    asked.as_int().map(|steps| u32::try_from(steps).unwrap_or(0))
}
