//! Flags of `train` that decide how a step is computed: adapters, reference, ablations, memory.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use rao_replay::credit::{BaselineRule, RewardRule};
use rao_replay::trainer::{LoraSettings, Resources, Settings};

use super::memory;

/// How a node is rewarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RewardName {
    /// Eq. 1: own success and lambda times the mean of the children's.
    Own,
    /// Every node has its root's success: the sparse reward.
    Root,
    /// Own success and lambda times the number of children that succeeded.
    Count,
}

/// What a reward is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BaselineName {
    /// Eq. 3: the mean root reward of the group's other rollouts.
    Loo,
    /// The mean root reward of the whole group.
    Mean,
}

/// How a step is computed.
#[derive(Args, Clone, Debug)]
pub(crate) struct TuningArgs {
    /// The most memory that training may take, such as 800M or 4G. It decides time, never results.
    #[arg(long, value_name = "SIZE", value_parser = memory::size, help_heading = "Training")]
    memory: Option<u64>,
    /// Compute every trajectory on its own, beginnings that others share included.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set, hide_default_value = true, hide_possible_values = true,
        help_heading = "Training")]
    no_prefix_sharing: bool,
    /// Let norm weights decay too; without, only matrices do.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set, hide_default_value = true, hide_possible_values = true,
        help_heading = "Training")]
    decay_vectors: bool,
    /// Train a low-rank adapter of this rank in place of the weights.
    #[arg(long, value_name = "RANK", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Training")]
    lora: Option<u16>,
    /// What the adapter adds is scaled by this over the rank [default: twice the rank].
    #[arg(long, value_name = "A", requires = "lora", help_heading = "Training")]
    lora_alpha: Option<f64>,
    /// The layers that are adapted: some of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "q_proj,v_proj",
        help_heading = "Training"
    )]
    lora_targets: Vec<String>,
    /// Also save the model with the adapter merged into its weights, as a folder of its own.
    #[arg(long, value_name = "DIR", help_heading = "Training")]
    pub(crate) merge_into: Option<PathBuf>,
    /// Weights that the policy is compared with (KL): mini or a model folder.
    #[arg(long, value_name = "MODEL", help_heading = "Training")]
    pub(crate) reference: Option<String>,
    /// Weight of the mean KL term in the loss; at 0 it is only measured.
    #[arg(long, value_name = "C", default_value_t = 0.0, help_heading = "Training")]
    kl_coef: f64,
    /// How nodes are rewarded.
    #[arg(long, value_enum, default_value = "own", help_heading = "Training")]
    reward: RewardName,
    /// What rewards are compared with.
    #[arg(long, value_enum, default_value = "loo", help_heading = "Training")]
    baseline: BaselineName,
}

impl TuningArgs {
    /// Puts the flags into the settings; `reference` is the digest of the weights that are compared with.
    pub(crate) fn apply(&self, settings: &mut Settings, reference: Option<String>) {
        settings.prefix_sharing = !self.no_prefix_sharing;
        settings.optimizer.decay_vectors = self.decay_vectors;
        settings.lora = self.lora.map(|rank| LoraSettings {
            rank: usize::from(rank),
            alpha: self.lora_alpha.unwrap_or_else(|| 2.0 * f64::from(rank)),
            targets: self.lora_targets.clone(),
        });
        settings.reference = reference;
        settings.kl_coefficient = self.kl_coef;
        settings.reward = match self.reward {
            RewardName::Own => RewardRule::Own,
            RewardName::Root => RewardRule::Root,
            RewardName::Count => RewardRule::Count,
        };
        settings.baseline = match self.baseline {
            BaselineName::Loo => BaselineRule::LeaveOneOut,
            BaselineName::Mean => BaselineRule::GroupMean,
        };
    }

    /// What the training may use.
    pub(crate) fn resources(&self) -> Resources {
        Resources { memory: self.memory, ..Resources::default() }
    }
}
