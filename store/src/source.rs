//! Reading events: one trait for every place that holds them.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::error::LogError;
use crate::event::{Body, BodyError, Event, Kind, node_of};
use crate::frame::Frame;
use crate::id::{Address, Digest, NodePath, RunId, Seq, Stream};
use crate::prefix::SharedPrefix;
use crate::report::Finding;

/// Headers in order of their sequence numbers.
pub type HeaderIter<'a> = Box<dyn Iterator<Item = Result<Header, LogError>> + Send + 'a>;
/// Undecoded events in order of their sequence numbers.
pub type FrameIter<'a> = Box<dyn Iterator<Item = Result<Frame, LogError>> + Send + 'a>;
/// Events in order of their sequence numbers.
pub type EventIter<'a> = Box<dyn Iterator<Item = Result<Event, LogError>> + Send + 'a>;

/// The end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The number of events, which is also the next sequence number.
    pub count: u64,
    /// The hash chain's digest after the last event: blake3 over that event's frame.
    pub chain: Digest,
    /// The content digest: a chain over kinds, layout versions and bodies alone. Equal content, equal digest, whatever
    /// the clock, the host and the run's id.
    pub content: Digest,
}

impl Head {
    /// The head of a stream without events.
    pub const EMPTY: Head = Head { count: 0, chain: Digest([0; 32]), content: Digest([0; 32]) };
}

/// What is known of an event without its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The stream.
    pub stream: Stream,
    /// The position in it.
    pub seq: Seq,
    /// Microseconds since the Unix epoch.
    pub at_us: u64,
    /// The kind.
    pub kind: Kind,
    /// The encoded body's length in bytes.
    pub body_len: u32,
}

/// Which events a scan wants. Events of other kinds are neither read from the disk nor decoded, those of other nodes are
/// not decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Filter {
    /// The kinds wanted; `None` wants all of them.
    pub kinds: Option<BTreeSet<Kind>>,
    /// The node whose events are wanted; `None` wants those of all nodes and those of none.
    pub node: Option<NodePath>,
}

impl Filter {
    /// Every event.
    #[must_use]
    pub fn all() -> Self {
        Filter::default()
    }

    /// Events of these kinds only.
    #[must_use]
    pub fn kinds(kinds: impl IntoIterator<Item = Kind>) -> Self {
        Filter { kinds: Some(kinds.into_iter().collect()), node: None }
    }

    /// Of these, only the events of one node.
    #[must_use]
    pub fn of_node(mut self, node: NodePath) -> Self {
        self.node = Some(node);
        self
    }

    /// Whether the scan wants this event, whose kind it admits.
    pub(crate) fn admits_frame(&self, frame: &Frame) -> bool {
        let Some(wanted) = &self.node else { return true };
        let node = frame.kind().ok().and_then(|kind| node_of(kind, frame.layout(), frame.body()));
        node.as_ref() == Some(wanted)
    }

    /// Whether the scan wants events of `kind`.
    #[must_use]
    pub fn admits(&self, kind: Kind) -> bool {
        self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&kind))
    }
}

/// A place that holds events: a log open for writing, a read-only view of one, a sealed archive.
///
/// Scans hold a bounded number of events in memory whatever the stream's length. They give what was acknowledged when
/// they began; whether they also give what came later is not promised. Every read checks the event's checksum, its
/// address and that no number is missing: a hole or a damaged event is one `Err` in its place, and the scan goes on
/// behind it with what is intact.
pub trait EventSource: Send + Sync {
    /// The runs, recorded and training alike, in the order in which they were started (by id).
    fn runs(&self) -> Vec<RunId>;

    /// The streams of a run: its own, its rollouts by number, its training stream.
    fn streams(&self, run: RunId) -> Vec<Stream>;

    /// The end of a stream; `None` if it has no events.
    fn head(&self, stream: Stream) -> Option<Head>;

    /// Which of a stream's first events are not stored with it, but shared with another stream by reference. They are
    /// read as any others.
    fn shared(&self, stream: Stream) -> Option<SharedPrefix> {
        let _ = stream;
        None
    }

    /// What was found damaged when the source was opened. Whoever computes with the events should refuse to, unless
    /// this is empty or holds only torn tails.
    fn findings(&self) -> Vec<Finding>;

    /// Headers from position `from` on. No body is read.
    fn headers(&self, stream: Stream, from: Seq) -> HeaderIter<'_>;

    /// Events from position `from` on as frames: checked, but not decoded.
    fn frames(&self, stream: Stream, from: Seq, filter: &Filter) -> FrameIter<'_>;

    /// Events from position `from` on.
    fn events(&self, stream: Stream, from: Seq, filter: &Filter) -> EventIter<'_> {
        Box::new(self.frames(stream, from, filter).map(|frame| decode(&frame?)))
    }

    /// One event.
    ///
    /// # Errors
    /// [`LogError::UnknownEvent`] beyond the stream's end, [`LogError::Damaged`] if it cannot be read.
    fn event(&self, address: Address) -> Result<Event, LogError> {
        let count = self.head(address.stream).map_or(0, |head| head.count);
        let unknown = LogError::UnknownEvent { address, count };
        if address.seq.0 >= count {
            return Err(unknown);
        }
        self.events(address.stream, address.seq, &Filter::all()).next().ok_or(unknown)?
    }
}

/// Decodes a checked frame.
pub(crate) fn decode(frame: &Frame) -> Result<Event, LogError> {
    let address = frame.address();
    let kind = frame.kind()?;
    let body = Body::decode(kind, frame.layout(), frame.body()).map_err(|source| match source {
        BodyError::Version { .. } => LogError::Newer { place: address.to_string(), what: source.to_string() },
        source => LogError::Body { address, source: Arc::new(source) },
    })?;
    Ok(Event { stream: address.stream, seq: address.seq, at_us: frame.at_us(), body })
}
