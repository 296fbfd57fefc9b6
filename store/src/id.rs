//! Identifiers and units: one type for each, so that a depth is never added to a sequence number.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One invocation of `record` or `train`: a UUID version 7, the only random identifier in a log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunId(pub [u8; 16]);

/// A rollout's number inside its run, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RolloutId(pub u32);

/// A node's place in its execution tree: the spawn ordinals from the root, written `0`, `0.1`, `0.1.2`.
///
/// Derived from the order of spawns, never random. The root is `0`; its second child is `0.1`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodePath(Vec<u32>);

/// An event's position in its stream, dense from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Seq(pub u64);

/// A node's distance from its root; the root has depth 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Depth(pub u32);

/// A vocabulary entry of the run's tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TokenId(pub u32);

/// The natural logarithm of a token's probability, as the sampler had it (f32, bit for bit).
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
pub struct LogProb(pub f32);

/// How many optimizer steps the weights that acted had seen; 0 for weights as loaded without a training history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PolicyVersion(pub u64);

/// A blake3 digest (32 bytes), written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Digest(pub [u8; 32]);

/// A text that is not the identifier it was read as.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {wanted}")]
pub struct IdError {
    /// What was given.
    pub text: String,
    /// What was expected, in words.
    pub wanted: &'static str,
}

impl IdError {
    fn new(text: &str, wanted: &'static str) -> Self {
        IdError { text: text.to_owned(), wanted }
    }
}

impl RunId {
    /// Wraps a version 7 UUID made by the caller, who owns the clock and the randomness.
    #[must_use]
    pub fn from_uuid(uuid: uuid::Uuid) -> Self {
        RunId(*uuid.as_bytes())
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        uuid::Uuid::from_bytes(self.0).simple().fmt(f)
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunId({self})")
    }
}

impl FromStr for RunId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        uuid::Uuid::try_parse(text)
            .map(Self::from_uuid)
            .map_err(|_| IdError::new(text, "run id (32 hexadecimal digits)"))
    }
}

impl fmt::Display for RolloutId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Depth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl NodePath {
    /// The root of every tree.
    #[must_use]
    pub fn root() -> Self {
        NodePath(vec![0])
    }

    /// The path of this node's child number `ordinal`, counted from 0 in spawn order.
    #[must_use]
    pub fn child(&self, ordinal: u32) -> Self {
        let mut ordinals = self.0.clone();
        ordinals.push(ordinal);
        NodePath(ordinals)
    }

    /// The parent's path, or `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        match self.0.split_last() {
            Some((_, rest)) if !rest.is_empty() => Some(NodePath(rest.to_vec())),
            _ => None,
        }
    }

    /// The number of edges between the root and this node.
    #[must_use]
    pub fn depth(&self) -> Depth {
        Depth(u32::try_from(self.0.len().saturating_sub(1)).unwrap_or(u32::MAX))
    }

    /// The path with these ordinals, as a stored body has it.
    pub(crate) fn from_ordinals(ordinals: Vec<u32>) -> Self {
        NodePath(ordinals)
    }

    /// The spawn ordinals, the root's 0 first.
    #[must_use]
    pub fn ordinals(&self) -> &[u32] {
        &self.0
    }

    /// True when `self` is `other` or lies below it.
    #[must_use]
    pub fn is_within(&self, other: &NodePath) -> bool {
        self.0.starts_with(&other.0)
    }
}

impl fmt::Display for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, ordinal) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(".")?;
            }
            ordinal.fmt(f)?;
        }
        Ok(())
    }
}

impl FromStr for NodePath {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let wanted = "node path such as 0.1.2";
        let ordinals: Vec<u32> =
            text.split('.').map(str::parse).collect::<Result<_, _>>().map_err(|_| IdError::new(text, wanted))?;
        if ordinals.first() != Some(&0) {
            return Err(IdError::new(text, wanted));
        }
        Ok(NodePath(ordinals))
    }
}

impl Digest {
    /// The digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Digest(*blake3::hash(bytes).as_bytes())
    }

    /// The digest of `first` with `second` behind it.
    pub(crate) fn of_both(first: &[u8], second: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(first).update(second);
        Digest(*hasher.finalize().as_bytes())
    }

    /// The first 12 hexadecimal digits, enough to tell digests apart on a screen.
    #[must_use]
    pub fn short(&self) -> String {
        self.to_string().chars().take(12).collect()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        blake3::Hash::from_hex(text)
            .map(|hash| Digest(*hash.as_bytes()))
            .map_err(|_| IdError::new(text, "digest (64 hexadecimal digits)"))
    }
}

/// An ordered, hash-chained sequence of events: a run's own, one of its rollouts', or a training run's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Stream {
    /// The run's manifest and its end.
    Run(RunId),
    /// One execution tree.
    Rollout(RunId, RolloutId),
    /// Credit and steps of one training run.
    Training(RunId),
}

impl Stream {
    /// The run that the stream belongs to.
    #[must_use]
    pub fn run(&self) -> RunId {
        match *self {
            Stream::Run(run) | Stream::Rollout(run, _) | Stream::Training(run) => run,
        }
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stream::Run(run) => write!(f, "{run}"),
            Stream::Rollout(run, rollout) => write!(f, "{run}/{rollout}"),
            Stream::Training(run) => write!(f, "{run}/training"),
        }
    }
}

/// One event's address, written `RUN/ROLLOUT#SEQ`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Address {
    /// The stream that holds the event.
    pub stream: Stream,
    /// Its position there.
    pub seq: Seq,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.stream, self.seq)
    }
}
