use serde::{Deserialize, Serialize};

use crate::id::{Digest, PolicyVersion, RolloutId, RunId, Seq};

/// Who acted: enough to refuse a replay or a training that would use something else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyIdentity {
    /// `scripted` or `local`.
    pub kind: String,
    /// `oracle`, `noisy`, `mini`, or the model folder's own name; never a path of the machine.
    pub name: String,
    /// Digest of the weights' tensors; `None` where there are none.
    pub weights: Option<Digest>,
    /// Digest of the tokenizer file's bytes.
    pub tokenizer: Digest,
    /// How many optimizer steps the weights had seen.
    pub version: PolicyVersion,
}

/// A run's manifest: everything that decides its content, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStarted {
    /// The environment's name, such as `textcraft`.
    pub env: String,
    /// The environment's settings, as JSON.
    pub env_config: String,
    /// The engine's settings (budgets, depth cap, context window, guards, sampler), as JSON.
    pub engine_config: String,
    /// The policy.
    pub policy: PolicyIdentity,
    /// The REPL engine with its version and prelude digest, such as `monty 1.4.0 prelude 1f2e..`.
    pub repl: String,
    /// The run's seed.
    pub seed: u64,
    /// Rollouts drawn for each task.
    pub group_size: u32,
    /// The number of tasks.
    pub tasks: u32,
    /// The rollouts that the run is to hold, by number.
    pub rollouts: Vec<RolloutId>,
    /// How an acknowledgement relates to the disk: `durable`.
    pub durability: String,
}

/// Facts about the machine and the moment. They explain a run; they do not decide it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// The program's version.
    pub program: String,
    /// Pairs such as (`cpu`, `x86_64 avx512f`), (`threads`, `2`), (`command`, `record --policy mini`).
    pub facts: Vec<(String, String)>,
}

/// Where a forked rollout left its base.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkBase {
    /// The base's run.
    pub run: RunId,
    /// The base rollout.
    pub rollout: RolloutId,
    /// The last event that the fork shares with it.
    pub seq: Seq,
}

/// A rollout's beginning. A fork's stream has its base's first, and its own behind the events that the two share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutStarted {
    /// The task's id, unique in its environment.
    pub task_id: String,
    /// The task's difficulty label; rates are reported by it.
    pub difficulty: String,
    /// The whole task as the environment defines it, as JSON: enough to open it again.
    pub task: String,
    /// The task's ordinal in the run: rollouts with equal `group` are compared with one another (Eq. 3).
    pub group: u32,
    /// The rollout's place in its group, from 0.
    pub member: u32,
    /// The seed of everything random in this rollout.
    pub seed: u64,
    /// The policy, which can change between the rollouts of a run only by a fork.
    pub policy: PolicyIdentity,
    /// Set for a fork.
    pub fork_base: Option<ForkBase>,
}

/// A run's end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFinished {
    /// Finished rollouts.
    pub rollouts: u32,
    /// Digest over the manifest's content and the rollouts' content digests in their order.
    pub content: Digest,
}

/// A remark; it changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The remark.
    pub text: String,
}
