use serde::{Deserialize, Serialize};

use crate::id::{Address, Depth, Digest, NodePath, RolloutId, RunId};

/// The loss of a training run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LossKind {
    /// Eq. 5 as printed: a sum over tokens and trajectories.
    Pg,
    /// Token-level importance sampling.
    Is,
    /// Clipped importance ratios (PPO).
    Ppo,
    /// Clipped, detached importance weights (CISPO), as the authors trained.
    Cispo,
    /// Supervised fine-tuning on the actions.
    Sft,
}

/// A training run's beginning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainStarted {
    /// Every setting that decides the result, as JSON.
    pub config: String,
    /// The loss.
    pub loss: LossKind,
    /// Digest of the weights trained from.
    pub weights: Digest,
    /// Digest of the tokenizer.
    pub tokenizer: Digest,
    /// The runs trained on, with the content digest of each.
    pub runs: Vec<(RunId, Digest)>,
}

/// A trajectory's place in the batch: Eqs. 3 and 4.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreditAssigned {
    /// The optimizer step that used it, from 0 in the training run.
    pub step: u64,
    /// The reward event it was computed from.
    pub source: Address,
    /// The run.
    pub run: RunId,
    /// The rollout.
    pub rollout: RolloutId,
    /// The node.
    pub node: NodePath,
    /// The node's depth.
    pub depth: Depth,
    /// The node's reward (Eq. 1).
    pub reward: f64,
    /// Mean root reward of the group's other trees (Eq. 3).
    pub baseline: f64,
    /// `reward - baseline` (Eq. 3).
    pub advantage: f64,
    /// Trajectories of this depth in the batch (Eq. 4).
    pub count: u64,
    /// The depth's weight (Eq. 4).
    pub weight: f64,
    /// Tokens that the node generated.
    pub tokens: u64,
}

/// What the weights being trained said of a trajectory, before the step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrajectoryScored {
    /// The optimizer step.
    pub step: u64,
    /// The run.
    pub run: RunId,
    /// The rollout.
    pub rollout: RolloutId,
    /// The node.
    pub node: NodePath,
    /// Log-probabilities of the node's generated tokens under the current weights, in order.
    pub logprobs: Vec<f32>,
    /// The trajectory's share of the step's loss, in f64 from the log-probabilities above and the stored ones.
    pub loss: f64,
}

/// One optimizer step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainStep {
    /// The step, from 0 in the training run.
    pub step: u64,
    /// Digest over the addresses and credits of the batch, in order.
    pub batch: Digest,
    /// Trajectories in the batch.
    pub trajectories: u64,
    /// Loss tokens in the batch.
    pub tokens: u64,
    /// The loss: the sum of the trajectories' shares in order.
    pub loss: f64,
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Gradient norm before clipping.
    pub gradient_norm: f64,
    /// Mean importance ratio over loss tokens.
    pub mean_ratio: f64,
    /// Share of loss tokens whose ratio was clipped.
    pub clip_fraction: f64,
    /// Weights before.
    pub weights_before: Digest,
    /// Weights after.
    pub weights_after: Digest,
}

/// A training run's end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainFinished {
    /// Steps taken.
    pub steps: u64,
    /// Digest of the final weights.
    pub weights: Digest,
}
