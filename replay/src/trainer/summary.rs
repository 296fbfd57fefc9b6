//! What the rollouts of a batch were like: the curves that one looks at first.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::fold::{Folded, RolloutNumbers};

/// A mean over so many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mean {
    /// How many.
    pub count: u64,
    /// Their mean; 0 of none.
    pub mean: f64,
}

/// The finished rollouts of the chosen runs in numbers. Sums run in the order of the rollouts and nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BatchSummary {
    /// Rollouts, and the mean reward of their roots (Eq. 1 as recorded, or under the lambda that was asked for).
    pub reward: Mean,
    /// Own success of nodes by depth.
    pub success_by_depth: BTreeMap<u32, Mean>,
    /// Own success of roots by their tasks' difficulty.
    pub success_by_difficulty: BTreeMap<String, Mean>,
    /// Nodes of a rollout.
    pub nodes: Mean,
    /// Depth of a rollout's deepest node.
    pub depth: Mean,
}

#[derive(Default)]
struct Sum {
    count: u64,
    total: f64,
}

impl Sum {
    fn add(&mut self, value: f64) {
        self.count += 1;
        self.total += value;
    }

    #[expect(clippy::cast_precision_loss, reason = "a log has far fewer than 2^53 nodes")]
    fn mean(&self) -> Mean {
        Mean { count: self.count, mean: self.total / self.count.max(1) as f64 }
    }
}

impl BatchSummary {
    /// Of folded runs.
    #[must_use]
    pub fn new(folded: &Folded) -> Self {
        let mut all = Sums::default();
        folded.rollouts.iter().for_each(|rollout| all.add(rollout));
        all.summary()
    }
}

/// A summary in the making.
#[derive(Default)]
pub(crate) struct Sums {
    reward: Sum,
    depths: BTreeMap<u32, Sum>,
    difficulties: BTreeMap<String, Sum>,
    nodes: Sum,
    depth: Sum,
}

impl Sums {
    /// Adds a rollout.
    #[expect(clippy::cast_precision_loss, reason = "a rollout has far fewer than 2^53 nodes")]
    pub(crate) fn add(&mut self, rollout: &RolloutNumbers) {
        let mut deepest = 0;
        for node in &rollout.nodes {
            let depth = node.node.depth().0;
            deepest = deepest.max(depth);
            self.depths.entry(depth).or_default().add(node.own);
            if depth == 0 {
                self.reward.add(node.reward);
                self.difficulties.entry(rollout.difficulty.clone()).or_default().add(node.own);
            }
        }
        self.nodes.add(rollout.nodes.len() as f64);
        self.depth.add(f64::from(deepest));
    }

    /// The summary.
    pub(crate) fn summary(&self) -> BatchSummary {
        BatchSummary {
            reward: self.reward.mean(),
            success_by_depth: self.depths.iter().map(|(depth, sum)| (*depth, sum.mean())).collect(),
            success_by_difficulty: self.difficulties.iter().map(|(name, sum)| (name.clone(), sum.mean())).collect(),
            nodes: self.nodes.mean(),
            depth: self.depth.mean(),
        }
    }
}
