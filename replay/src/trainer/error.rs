//! Why training stops.

use std::path::PathBuf;

use rao_store::event::TokenCountError;
use rao_store::{Address, Digest, ErrorClass, LogError, NodePath, RolloutId, RunId};

use crate::credit::CreditError;
use crate::objective::ObjectiveError;
use crate::optimizer::OptimizerError;

/// What kind of failure an error is: a program maps it to its exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A setting, or a wish that cannot be met.
    Usage,
    /// The log or a checkpoint is not what was written.
    Integrity,
    /// The log does not hold what the training needs.
    Incomplete,
    /// The model cannot be loaded or run.
    Model,
    /// The file system.
    Io,
    /// Another writer holds the log.
    Busy,
}

/// Why training stops. Nothing is written to a checkpoint after one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A setting out of range.
    #[error("training setting: {0}")]
    Settings(String),
    /// A bound on memory that the model does not fit into.
    #[error(
        "training needs about {} MiB with this model, and the bound is {} MiB: give more with `--memory`, or make micro-batches smaller with `--micro-tokens` (now {rows} tokens at most; the longest trajectory has {longest}), or train an adapter with `--lora`",
        needed.div_ceil(1 << 20), bound >> 20
    )]
    Memory {
        /// The bound in bytes.
        bound: u64,
        /// The least that would do, in bytes.
        needed: u64,
        /// Tokens of the largest micro-batch.
        rows: u64,
        /// Tokens of the longest trajectory.
        longest: u64,
    },
    /// No run was named, or one was named twice.
    #[error("{0}")]
    Runs(String),
    /// A training run's settings in the log that this program cannot read.
    #[error("the settings of training run {run} cannot be read: {reason}; use the version of rao-log that wrote them")]
    Config {
        /// The training run.
        run: RunId,
        /// Why.
        reason: String,
    },
    /// No trajectory is left to train on.
    #[error("nothing to train on: {0}")]
    Nothing(String),
    /// The log's answer.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log has known damage.
    #[error("the log is damaged: {finding}; run `rao-log verify` and train on an intact copy")]
    Damaged {
        /// The first finding.
        finding: String,
    },
    /// A run's events are not those that it ended with.
    #[error(
        "run {run} was finished with content {stored}, but its events give {computed}: they were changed; run `rao-log verify`"
    )]
    Content {
        /// The run.
        run: RunId,
        /// The digest in its last event.
        stored: Digest,
        /// The digest of its events.
        computed: Digest,
    },
    /// An append that does not continue a node's context.
    #[error("event {address}: node {node} has {expected} tokens of context, but the event continues at position {at}: the sequence differs from position {}", at.min(expected))]
    Prefix {
        /// The event.
        address: Address,
        /// The node.
        node: NodePath,
        /// Where the event says that it continues.
        at: u64,
        /// How long the context is.
        expected: u64,
    },
    /// An action that nothing comes before: its first token has no probability.
    #[error("event {address}: node {node} acts without a context: its first token cannot be scored")]
    NoContext {
        /// The event.
        address: Address,
        /// The node.
        node: NodePath,
    },
    /// Ids and log-probabilities that do not pair up.
    #[error("event {address}: {source}")]
    TokenCount {
        /// The event.
        address: Address,
        /// What does not match.
        source: TokenCountError,
    },
    /// An event that does not fit its rollout.
    #[error("event {address}: {reason}")]
    Event {
        /// The event.
        address: Address,
        /// What does not fit.
        reason: String,
    },
    /// A stored reward that is not what the stored successes give.
    #[error(
        "event {address}: node {node}: stored {what} is {stored:?}, the log's own numbers give {computed:?}: the event was changed; run `rao-log verify`"
    )]
    Reward {
        /// The reward event.
        address: Address,
        /// The node.
        node: NodePath,
        /// Which number.
        what: &'static str,
        /// As stored.
        stored: f64,
        /// As computed.
        computed: f64,
    },
    /// A finished rollout without a node's reward.
    #[error(
        "rollout {run}/{rollout} is finished, but node {node} has no {what}: the log is not whole; run `rao-log verify`"
    )]
    Missing {
        /// The run.
        run: RunId,
        /// The rollout.
        rollout: RolloutId,
        /// The node.
        node: NodePath,
        /// What is missing.
        what: &'static str,
    },
    /// A loss that compares probabilities, and actions that have none.
    #[error(
        "event {address}: the action has no log-probabilities of a known distribution, which the loss `{loss}` needs (it was scripted, or its server gave only text or does not say what its numbers are of): train with `--loss sft`, or record with a local policy, or with a server that gives tokens and log-probabilities, at temperature 1"
    )]
    NoLogprobs {
        /// The first such action.
        address: Address,
        /// The loss.
        loss: &'static str,
    },
    /// A loss that needs samples of the model's own distribution.
    #[error(
        "event {address}: sampled at temperature {temperature}, but the loss `{loss}` needs samples of the model's own distribution: record with temperature 1, or train with `--loss sft`"
    )]
    Temperature {
        /// The first such action.
        address: Address,
        /// Its temperature.
        temperature: f32,
        /// The loss.
        loss: &'static str,
    },
    /// A loss that needs samples of the whole distribution.
    #[error(
        "event {address}: top-p or top-k left tokens out when the action was sampled, but the loss `{loss}` needs samples of the model's own distribution: record without them, or train with `--loss sft`"
    )]
    Truncated {
        /// The first such action.
        address: Address,
        /// The loss.
        loss: &'static str,
    },
    /// Token ids of another tokenizer.
    #[error(
        "rollout {run}/{rollout} was recorded with tokenizer {recorded}, the model has {model}: its token ids mean something else; train the model that recorded it, or record with this one"
    )]
    Tokenizer {
        /// The run.
        run: RunId,
        /// The rollout.
        rollout: RolloutId,
        /// Digest in the log.
        recorded: Digest,
        /// Digest of the model's tokenizer.
        model: Digest,
    },
    /// A trajectory that the model has no positions for.
    #[error(
        "node {node} of rollout {run}/{rollout} has {tokens} tokens, the model takes {limit}: record with a smaller `--context`, or train another model"
    )]
    TooLong {
        /// The run.
        run: RunId,
        /// The rollout.
        rollout: RolloutId,
        /// The node.
        node: NodePath,
        /// Its length.
        tokens: u64,
        /// The model's limit.
        limit: u64,
    },
    /// Numbers that the equations do not admit.
    #[error("credit: {0}")]
    Credit(#[from] CreditError),
    /// A loss without a value.
    #[error("node {node} of rollout {run}/{rollout}: {source}")]
    Objective {
        /// The run.
        run: RunId,
        /// The rollout.
        rollout: RolloutId,
        /// The node.
        node: NodePath,
        /// Why.
        source: ObjectiveError,
    },
    /// The optimizer.
    #[error(transparent)]
    Optimizer(#[from] OptimizerError),
    /// The model.
    #[error("model: {0}")]
    Model(#[from] rao_policy::PolicyError),
    /// The tensor library.
    #[error("model: {0}")]
    Tensor(#[from] candle_core::Error),
    /// A checkpoint that does not hold together or does not fit the settings.
    #[error("checkpoint {}: {reason}", path.display())]
    Checkpoint {
        /// The folder or file.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
        /// Whether the files contradict one another (otherwise they are whole, but do not fit what is asked).
        broken: bool,
    },
    /// The file system.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Its answer.
        source: std::io::Error,
    },
}

impl TrainError {
    /// The kind of failure.
    #[must_use]
    pub fn class(&self) -> Class {
        use TrainError as E;
        match self {
            E::Log(error) => log_class(error),
            E::Settings(_)
            | E::Runs(_)
            | E::NoLogprobs { .. }
            | E::Temperature { .. }
            | E::Truncated { .. }
            | E::Tokenizer { .. } => Class::Usage,
            E::TooLong { .. } | E::Config { .. } | E::Memory { .. } => Class::Usage,
            E::Nothing(_) => Class::Incomplete,
            E::Damaged { .. } | E::Content { .. } | E::Prefix { .. } | E::NoContext { .. } | E::TokenCount { .. } => {
                Class::Integrity
            }
            E::Event { .. } | E::Reward { .. } | E::Missing { .. } | E::Credit(_) => Class::Integrity,
            E::Checkpoint { broken, .. } => {
                if *broken {
                    Class::Integrity
                } else {
                    Class::Usage
                }
            }
            E::Objective { .. } | E::Model(_) | E::Tensor(_) => Class::Model,
            E::Optimizer(error) => match error {
                OptimizerError::Format(_) | OptimizerError::State { .. } => Class::Integrity,
                _ => Class::Model,
            },
            E::Io { .. } => Class::Io,
        }
    }
}

fn log_class(error: &LogError) -> Class {
    match error.class() {
        ErrorClass::Usage => Class::Usage,
        ErrorClass::Busy => Class::Busy,
        ErrorClass::Integrity => Class::Integrity,
        ErrorClass::Incomplete => Class::Incomplete,
        ErrorClass::Io => Class::Io,
        ErrorClass::Newer => Class::Usage,
    }
}
