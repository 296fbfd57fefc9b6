//! Events that a stream shares with another one by reference.
//!
//! A fork begins with everything that its base had said up to one event. Instead of copies, its stream has one *prefix
//! frame* in the journal, which names the base and how many of its events are shared. Readers put these events together
//! from the base's, with the fork's stream, the prefix frame's time and chain digests of their own, so nobody but the
//! journal knows. What the fork's end is after them, the prefix frame says itself: the base need not be read for that.
//!
//! The base may be live or sealed, and may itself share its beginning with a third stream. An archive is always whole,
//! so a chain of bases ends at a sealed one.

mod check;
mod rebuild;

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

pub(crate) use check::{check, damage_of_bases};
pub(crate) use rebuild::{Digests, Readdressed, Rebuilt, Sharer, digests};

use crate::frame::{StreamKey, View, stream_key, stream_of_key, u64_at};
use crate::id::{Digest, Seq, Stream};
use crate::index::Place;
use crate::sealed::Sealed;
use crate::source::Head;

/// The length of a prefix frame's body.
pub(crate) const PREFIX_LEN: usize = 128;
/// How many live bases may stand behind one another. Sealing one of them makes room again.
pub(crate) const MAX_BASES: usize = 256;

/// The events that a stream shares with another one by reference: its own first ones, which are the other's first ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedPrefix {
    /// The stream that holds them.
    pub base: Stream,
    /// How many they are.
    pub count: u64,
}

/// What a prefix frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefix {
    pub(crate) base: Stream,
    /// Shared events, at least one.
    pub(crate) count: u64,
    /// The base's chain digest behind the last of them.
    pub(crate) base_chain: Digest,
    /// The sharing stream's own digests behind the last of them.
    pub(crate) chain: Digest,
    pub(crate) content: Digest,
    /// The time of all of them.
    pub(crate) at_us: u64,
    /// Where the frame stands in the journal.
    pub(crate) place: Place,
}

impl Prefix {
    /// Reads a prefix frame. Everything in it is untrusted: `None` if no program writes it so.
    pub(crate) fn parse(view: &View<'_>, place: Place) -> Option<Prefix> {
        let body: &[u8; PREFIX_LEN] = view.body().try_into().ok()?;
        let digest = |at: usize| body.get(at..at + 32).and_then(|bytes| bytes.try_into().ok()).map(Digest);
        let base = stream_of_key(body.get(..21)?)?;
        let count = u64_at(body, 24);
        let header = view.seq() == Seq(0) && view.kind_code() == 0 && view.layout() == 1;
        let fits = header && view.previous() == Head::EMPTY.chain && body.get(21..24)? == [0; 3];
        let is_possible = base != view.stream() && (1..u64::MAX).contains(&count);
        let (base_chain, chain, content) = (digest(32)?, digest(64)?, digest(96)?);
        let prefix = Prefix { base, count, base_chain, chain, content, at_us: view.at_us(), place };
        (fits && is_possible).then_some(prefix)
    }

    /// The body of the prefix frame.
    pub(crate) fn body(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(PREFIX_LEN);
        body.extend_from_slice(&stream_key(self.base));
        body.extend_from_slice(&[0; 3]);
        body.extend_from_slice(&self.count.to_le_bytes());
        for digest in [self.base_chain, self.chain, self.content] {
            body.extend_from_slice(&digest.0);
        }
        body
    }

    /// The stream's end behind the shared events.
    pub(crate) fn head(&self) -> Head {
        Head { count: self.count, chain: self.chain, content: self.content }
    }

    pub(crate) fn shared(&self) -> SharedPrefix {
        SharedPrefix { base: self.base, count: self.count }
    }
}

/// The prefixes by stream.
pub(crate) type PrefixMap = BTreeMap<StreamKey, Prefix>;

/// Something that knows which streams share their beginning.
pub(crate) trait Prefixes: Send + Sync {
    fn of(&self, stream: Stream) -> Option<Prefix>;
}

impl Prefixes for PrefixMap {
    fn of(&self, stream: Stream) -> Option<Prefix> {
        self.get(&stream_key(stream)).copied()
    }
}

impl Prefixes for RwLock<PrefixMap> {
    fn of(&self, stream: Stream) -> Option<Prefix> {
        self.read().unwrap_or_else(PoisonError::into_inner).of(stream)
    }
}

/// Events `from..to` of a stream, which the stream holds itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) stream: Stream,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// The bases of a stream do not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its bases lead in a circle, or more than {MAX_BASES} of them stand behind one another")]
pub(crate) struct Endless;

/// Where the first `end` events of a stream lie, in order.
pub(crate) fn spans(prefixes: &dyn Prefixes, sealed: &Sealed, stream: Stream, end: u64) -> Result<Vec<Span>, Endless> {
    let (mut spans, mut at, mut end) = (Vec::new(), stream, end);
    for _ in 0..=MAX_BASES {
        let prefix = if sealed.of(at.run()).is_some() { None } else { prefixes.of(at) };
        let from = prefix.map_or(0, |prefix| prefix.count.min(end));
        if from < end {
            spans.push(Span { stream: at, from, to: end });
        }
        let Some(prefix) = prefix.filter(|_| from > 0) else {
            spans.reverse();
            return Ok(spans);
        };
        (at, end) = (prefix.base, from);
    }
    Err(Endless)
}

/// How many live bases stand behind a stream.
pub(crate) fn depth(prefixes: &dyn Prefixes, sealed: &Sealed, stream: Stream) -> usize {
    let mut at = stream;
    for depth in 0..=MAX_BASES {
        let live = sealed.of(at.run()).is_none();
        let Some(prefix) = prefixes.of(at).filter(|_| live) else { return depth };
        at = prefix.base;
    }
    MAX_BASES
}
