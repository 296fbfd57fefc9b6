use rao_store::NodePath;

use crate::repl::ReplError;
use crate::tree::TreeError;

/// Why a rollout cannot go on. None of these is an agent's fault: what agents do wrong is part of the record.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The log did not take an event.
    #[error(transparent)]
    Log(#[from] rao_store::LogError),
    /// The policy, its tokenizer or its model failed.
    #[error(transparent)]
    Policy(#[from] rao_policy::PolicyError),
    /// The environment failed.
    #[error(transparent)]
    Env(#[from] rao_envs::EnvError),
    /// A verdict that had to be on record is not.
    #[error(transparent)]
    Judge(#[from] rao_envs::judge::JudgeError),
    /// The interpreter failed.
    #[error("the interpreter of node {node} failed: {source}; `rao-log replay` rebuilds it from the log")]
    Repl {
        /// The node.
        node: NodePath,
        /// Why.
        source: ReplError,
    },
    /// An event does not fit the tree.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// Re-running a logged cell did not do what the log says.
    #[error(
        "node {node}, step {step}: re-running the logged cell gave something else ({reason}); `rao-log replay --check cells` shows where"
    )]
    Rebuild {
        /// The node.
        node: NodePath,
        /// The step.
        step: u32,
        /// What differs.
        reason: String,
    },
    /// A stored value that is not what it should be.
    #[error("node {node}: {what} cannot be read from the log: {reason}")]
    Stored {
        /// The node.
        node: NodePath,
        /// What was read.
        what: &'static str,
        /// Why it failed.
        reason: String,
    },
    /// A setting outside its range.
    #[error("{0}")]
    Config(String),
    /// A replay found the first event that differs; the comparing sink holds the details.
    #[error("the replay differs from the log at event {seq}")]
    Diverged {
        /// The event's position in its rollout.
        seq: u64,
    },
    /// The user stopped the run; what was acknowledged stays.
    #[error("stopped; everything acknowledged so far is in the log")]
    Stopped,
    /// A rule of this program is broken.
    #[error("internal error: {0}; please report it with the log")]
    Internal(String),
}
