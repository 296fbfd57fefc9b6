//! The trainer's settings.

use rao_policy::AdapterConfig;
use rao_store::Digest;
use rao_store::event::LossKind;
use serde::{Deserialize, Serialize};

use super::TrainError;
use crate::credit::{self, BaselineRule, RewardRule};
use crate::objective::Objective;
use crate::optimizer::AdamWSettings;
use crate::schedule::Schedule;

/// Which nodes `sft` learns from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SftFilter {
    /// Nodes that called `finish` and have own success 1.
    #[default]
    Verified,
    /// Every node that acted.
    All,
}

/// Every setting that decides what training gives. Missing keys take their defaults; unknown keys are refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The loss.
    pub objective: Objective,
    /// The optimizer.
    pub optimizer: AdamWSettings,
    /// The learning rate by step.
    pub schedule: Schedule,
    /// The lambda of Eq. 1; `None` takes the rewards as recorded.
    pub lambda: Option<f64>,
    /// Eq. 4 (off: every weight is 1).
    pub depth_weighting: bool,
    /// Leave out groups in which every trajectory has the same advantage (off by default, as the equations are printed).
    pub drop_flat_groups: bool,
    /// Take forked rollouts too. Off by default: a fork shares a beginning with its base, so the two are no independent
    /// draws, which Eq. 3's baseline supposes. `sft` takes them always.
    pub forks: bool,
    /// Tokens of a micro-batch; a longer trajectory is one of its own.
    pub micro_tokens: u64,
    /// Reinforcement: how many times a call goes through its batch.
    pub epochs: u64,
    /// Reinforcement: optimizer steps per pass through the batch, over contiguous parts of it. Credit is always that of
    /// the whole batch.
    pub minibatches: u64,
    /// `sft`: which nodes to learn from.
    pub sft_filter: SftFilter,
    /// `sft`: optimizer steps of a call. Not part of what a resumed training must share.
    pub steps: u64,
    /// `sft`: trajectories of an optimizer step.
    pub batch_trajectories: u64,
    /// `sft`: seed of the order of trajectories. Also of a fresh adapter.
    pub seed: u64,
    /// Compute each prefix that trajectories share once. Off, every trajectory is computed on its own, which differs by
    /// rounding.
    #[serde(skip_serializing_if = "is_true")]
    pub prefix_sharing: bool,
    /// Train a low-rank adapter in place of the weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraSettings>,
    /// Digest of the weights that the KL term compares with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// What multiplies the mean KL term in the loss; needs a reference unless it is 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub kl_coefficient: f64,
    /// How a node is rewarded.
    #[serde(skip_serializing_if = "is_default")]
    pub reward: RewardRule,
    /// What a reward is compared with.
    #[serde(skip_serializing_if = "is_default")]
    pub baseline: BaselineRule,
}

/// A low-rank adapter's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraSettings {
    /// Rows of the inner matrices.
    pub rank: usize,
    /// The addition is scaled by `alpha / rank`.
    pub alpha: f64,
    /// Which linear layers have one.
    pub targets: Vec<String>,
}

impl LoraSettings {
    /// As the decoder takes them.
    #[must_use]
    pub fn config(&self) -> AdapterConfig {
        AdapterConfig { rank: self.rank, alpha: self.alpha, targets: self.targets.clone() }
    }
}

impl From<&AdapterConfig> for LoraSettings {
    fn from(config: &AdapterConfig) -> Self {
        LoraSettings { rank: config.rank, alpha: config.alpha, targets: config.targets.clone() }
    }
}

// Settings that are at their default are left out, so that a checkpoint's digest of its settings stays what it was when a
// setting is added.

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives references")]
fn is_true(value: &bool) -> bool {
    *value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives references")]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            objective: Objective::default(),
            optimizer: AdamWSettings::default(),
            schedule: Schedule::default(),
            lambda: None,
            depth_weighting: true,
            drop_flat_groups: false,
            forks: false,
            micro_tokens: 1024,
            epochs: 1,
            minibatches: 1,
            sft_filter: SftFilter::Verified,
            steps: 100,
            batch_trajectories: 8,
            seed: 0,
            prefix_sharing: true,
            lora: None,
            reference: None,
            kl_coefficient: 0.0,
            reward: RewardRule::default(),
            baseline: BaselineRule::default(),
        }
    }
}

impl Settings {
    /// Refuses settings that cannot be meant.
    ///
    /// # Errors
    /// Names the setting, its value and its range.
    pub fn check(&self) -> Result<(), TrainError> {
        let problem = self.objective.problem().or_else(|| self.optimizer.problem()).or_else(|| self.schedule.problem());
        if let Some(problem) = problem {
            return Err(TrainError::Settings(problem));
        }
        if let Some(lambda) = self.lambda.filter(|lambda| !(lambda.is_finite() && *lambda >= 0.0)) {
            return Err(TrainError::Settings(format!("lambda is {lambda}; it must be a finite number of at least 0")));
        }
        if !(self.kl_coefficient.is_finite() && self.kl_coefficient >= 0.0) {
            let value = self.kl_coefficient;
            return Err(TrainError::Settings(format!(
                "kl_coefficient is {value}; it must be a finite number of at least 0"
            )));
        }
        if self.kl_coefficient > 0.0 && self.reference.is_none() {
            let reason = "a KL coefficient needs a policy to compare with; name one with --reference";
            return Err(TrainError::Settings(reason.to_owned()));
        }
        if let Some(problem) = self.lora.as_ref().and_then(|lora| lora.config().problem()) {
            return Err(TrainError::Settings(format!("lora: {problem}")));
        }
        let counts = [
            ("micro_tokens", self.micro_tokens),
            ("epochs", self.epochs),
            ("minibatches", self.minibatches),
            ("steps", self.steps),
            ("batch_trajectories", self.batch_trajectories),
        ];
        match counts.iter().find(|(_, count)| *count == 0) {
            Some((name, _)) => Err(TrainError::Settings(format!("{name} is 0; it must be at least 1"))),
            None => Ok(()),
        }
    }

    /// True for `sft`.
    #[must_use]
    pub fn is_sft(&self) -> bool {
        self.objective.loss == LossKind::Sft
    }

    pub(crate) fn credit_options(&self) -> credit::Options {
        credit::Options {
            depth_weighting: self.depth_weighting,
            drop_flat_groups: self.drop_flat_groups,
            baseline: self.baseline,
        }
    }

    /// The settings as JSON, keys in their declared order.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Serialising a struct of numbers, booleans and names cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Digest of the settings that a resumed training must share: all but `steps`.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let shared = Settings { steps: 1, ..self.clone() };
        Digest::of(shared.to_json().as_bytes())
    }
}

/// Means that decide time and memory, never results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Micro-batches computed side by side, each with its own activations; 0 takes as many as rayon's pool has threads.
    /// Gradients are added in the order of the micro-batches whatever it is.
    pub lanes: usize,
    /// `sft`: the most bytes of token sequences kept in memory; what does not fit is read from the log each time, which takes
    /// little beside training on it.
    pub cache_bytes: usize,
    /// The most bytes that the process may take. Fewer lanes, and checkpoints in place of activations, keep to it; where even
    /// one lane with checkpoints does not fit, training does not start.
    pub memory: Option<u64>,
}

impl Default for Resources {
    fn default() -> Self {
        Resources { lanes: 0, cache_bytes: 1 << 20, memory: None }
    }
}

impl Resources {
    pub(crate) fn lanes(&self) -> usize {
        if self.lanes == 0 { rayon::current_num_threads().max(1) } else { self.lanes }
    }

    /// Bytes of token sequences that `sft` keeps in memory: of a bound, an eighth at most.
    pub(crate) fn cache_bytes(&self) -> usize {
        let share = self.memory.map_or(usize::MAX, |bound| usize::try_from(bound / 8).unwrap_or(usize::MAX));
        self.cache_bytes.min(share)
    }
}
