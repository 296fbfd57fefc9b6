//! The facts that a log holds: one frozen struct per kind and version.
//!
//! Bodies are encoded positionally (bincode 2.0.1, legacy configuration), so a struct here never changes once
//! released: a new field means a new version of that kind beside the old one, and an upcaster.
//! Data that belongs to an environment (task definitions, tool arguments, finish values) is JSON text: this crate
//! neither knows nor checks its shape.

mod credit;
mod layouts;
mod node;
mod run;
mod spawned;
mod tree;

pub use credit::{CreditAssigned, LossKind, TrainFinished, TrainStarted, TrainStep, TrajectoryScored};
pub(crate) use node::node_of;
pub use run::{ForkBase, HostFacts, Note, PolicyIdentity, RolloutStarted, RunFinished, RunStarted};
pub use spawned::Context;
pub use tree::{
    ActionSampled, Answer, CallAnswered, CallIssued, CellFinished, CellStarted, ContextExtended, LimitKind,
    LogProbKind, NodeFinished, NodeSpawned, Outcome, RefusalReason, RewardAssigned, Role, RolloutFinished,
    SamplerSettings, SpawnRefused, StopReason, TokenCountError, Verdict,
};

use crate::id::{Address, Seq, Stream};

/// An event as read: where it stands, when it was written, and what it says.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The stream it belongs to.
    pub stream: Stream,
    /// Its position in the stream.
    pub seq: Seq,
    /// Wall-clock time of the append in microseconds since the Unix epoch. Not part of the content digest.
    pub at_us: u64,
    /// The fact.
    pub body: Body,
}

impl Event {
    /// The event's address.
    #[must_use]
    pub fn address(&self) -> Address {
        Address { stream: self.stream, seq: self.seq }
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// The kinds of event. The numbers are part of the byte format.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum Kind { $($(#[$doc])* $name = $code,)* }

        impl Kind {
            /// Every kind, in the order of its number.
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)*];

            /// The number that stands in a frame.
            #[must_use]
            pub fn code(self) -> u16 { self as u16 }

            /// The kind with that number, if this version knows it.
            #[must_use]
            pub fn from_code(code: u16) -> Option<Kind> {
                match code { $($code => Some(Kind::$name),)* _ => None }
            }

            /// The newest layout of the kind's body that this program reads, and the one that it writes.
            #[must_use]
            pub fn layout(self) -> u16 { layouts::newest(self) }

            /// The kind's name as commands print and accept it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Kind::$name => $text,)* }
            }
        }

        /// What an event says.
        #[derive(Clone, Debug, PartialEq)]
        #[expect(missing_docs, reason = "each variant carries the documented struct of its name")]
        pub enum Body { $($name($name),)* }

        impl Body {
            /// The body's kind.
            #[must_use]
            pub fn kind(&self) -> Kind {
                match self { $(Body::$name(_) => Kind::$name,)* }
            }

            /// The version of the kind's layout that this body is written in: the oldest that can hold it.
            #[must_use]
            pub fn version(&self) -> u16 { layouts::of(self) }

            /// The positional bytes of the body, without frame.
            ///
            /// # Errors
            /// When the codec refuses the value, which no value of these types makes it do.
            pub fn encode(&self) -> Result<Vec<u8>, bincode::error::EncodeError> {
                if let Some(older) = layouts::encode_older(self) {
                    return older;
                }
                match self { $(Body::$name(body) => bincode::serde::encode_to_vec(body, bincode::config::legacy()),)* }
            }

            /// The body as JSON, its fields in the order of their layout.
            #[must_use]
            pub fn to_json(&self) -> serde_json::Value {
                match self { $(Body::$name(body) => serde_json::to_value(body).unwrap_or_default(),)* }
            }

            /// Reads the bytes of a body of `kind` and `version`; trailing bytes are an error.
            ///
            /// # Errors
            /// When the version is unknown or the bytes are not such a body.
            pub fn decode(kind: Kind, version: u16, bytes: &[u8]) -> Result<Body, BodyError> {
                if version == 0 || version > kind.layout() {
                    return Err(BodyError::Version { kind: kind.name(), version });
                }
                if let Some(older) = layouts::decode_older(kind, version, bytes) {
                    return older;
                }
                match kind { $(Kind::$name => Ok(Body::$name(layouts::decode(kind, bytes)?)),)* }
            }
        }

        $(impl From<$name> for Body { fn from(body: $name) -> Body { Body::$name(body) } })*
    };
}

/// The largest encoded body in bytes (1 GiB); a longer one is refused before it is written.
pub const MAX_BODY: usize = 1 << 30;

kinds! {
    /// A run's manifest.
    RunStarted = 1, "run_started";
    /// The host, its clock and its program: facts outside the content digest.
    HostFacts = 2, "host_facts";
    /// A rollout's task, seed and policy.
    RolloutStarted = 3, "rollout_started";
    /// A node came into being.
    NodeSpawned = 4, "node_spawned";
    /// A spawn was refused; no node came into being.
    SpawnRefused = 5, "spawn_refused";
    /// Prompt or observation tokens were appended to a node's context.
    ContextExtended = 6, "context_extended";
    /// The policy's completion.
    ActionSampled = 7, "action_sampled";
    /// A cell was handed to the REPL.
    CellStarted = 8, "cell_started";
    /// A cell called a tool or asked for a spawn.
    CallIssued = 9, "call_issued";
    /// The cell was resumed with one or more answers.
    CallAnswered = 10, "call_answered";
    /// A cell ended.
    CellFinished = 11, "cell_finished";
    /// A node ended.
    NodeFinished = 12, "node_finished";
    /// A judgement of a node.
    Verdict = 13, "verdict";
    /// A node's reward (Eq. 1).
    RewardAssigned = 14, "reward_assigned";
    /// A rollout ended.
    RolloutFinished = 15, "rollout_finished";
    /// A run ended.
    RunFinished = 16, "run_finished";
    /// A training run's settings.
    TrainStarted = 17, "train_started";
    /// A trajectory's baseline, advantage and weight (Eqs. 3 and 4).
    CreditAssigned = 18, "credit_assigned";
    /// A trajectory's log-probabilities and loss under the weights being trained.
    TrajectoryScored = 19, "trajectory_scored";
    /// One optimizer step.
    TrainStep = 20, "train_step";
    /// A training run ended.
    TrainFinished = 21, "train_finished";
    /// A remark by a user or a tool.
    Note = 22, "note";
}

impl Kind {
    /// Whether events of this kind are part of a stream's content digest.
    #[must_use]
    pub fn is_content(self) -> bool {
        !matches!(self, Kind::HostFacts)
    }
}

/// Why bytes are not an event body.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// A later program wrote it.
    #[error("a {kind} event has layout version {version}, which this program does not know: use a newer rao-log")]
    Version {
        /// The kind's name.
        kind: &'static str,
        /// The version in the frame.
        version: u16,
    },
    /// The bytes are not such a body.
    #[error("the body of a {kind} event cannot be read: {source}")]
    Codec {
        /// The kind's name.
        kind: &'static str,
        /// The codec's reason.
        source: bincode::error::DecodeError,
    },
    /// The body ends before its bytes do.
    #[error("the body of a {kind} event is followed by {extra} bytes that do not belong to it")]
    Trailing {
        /// The kind's name.
        kind: &'static str,
        /// How many bytes are left.
        extra: usize,
    },
}
