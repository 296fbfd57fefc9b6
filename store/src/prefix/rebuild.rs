//! A stream's shared events, made from those of its base.

use super::Prefix;
use crate::digest::chain_content;
use crate::error::LogError;
use crate::event::Event;
use crate::frame::{self, Frame, HEADER_LEN, Parts};
use crate::id::{Address, Digest, Seq, Stream};
use crate::source::{FrameIter, Head, Header, decode};

/// Where shared events are to stand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readdressed {
    pub(crate) stream: Stream,
    pub(crate) prefix: Prefix,
}

impl Readdressed {
    /// An event of a base as the sharing stream's.
    pub(crate) fn event(&self, frame: Result<Frame, LogError>) -> Result<Event, LogError> {
        let frame = frame.map_err(|error| self.error(error))?;
        let event = decode(&frame).map_err(|error| self.error(error))?;
        Ok(Event { stream: self.stream, at_us: self.prefix.at_us, ..event })
    }

    /// A header of a base as the sharing stream's.
    pub(crate) fn header(&self, header: Result<Header, LogError>) -> Result<Header, LogError> {
        let header = header.map_err(|error| self.error(error))?;
        Ok(Header { stream: self.stream, at_us: self.prefix.at_us, ..header })
    }

    /// What is wrong with an event of a base is wrong with the shared one.
    pub(crate) fn error(&self, error: LogError) -> LogError {
        let stream = self.stream;
        match error {
            LogError::Damaged { stream: holder, seq, place, reason } => {
                let reason = format!("it is shared with {holder}, where it stands: {reason}");
                LogError::Damaged { stream, seq, place, reason }
            }
            LogError::Body { address, source } => {
                LogError::Body { address: Address { stream, seq: address.seq }, source }
            }
            error => error,
        }
    }

    fn damaged(&self, seq: Seq, reason: String) -> LogError {
        let place = &self.prefix.place;
        let place = format!("{} at byte {}", crate::journal::Journal::shown(place.file), place.offset);
        LogError::Damaged { stream: self.stream, seq, place, reason }
    }
}

/// The sharing stream's frame of an event whose frame in the base is `frame`. It begins no commit.
fn readdress(frame: &Frame, stream: Stream, at_us: u64, previous: Digest) -> Result<Vec<u8>, LogError> {
    let parts = Parts {
        stream,
        seq: frame.address().seq,
        at_us,
        kind: frame.kind()?.code(),
        layout: frame.layout(),
        begins_commit: false,
        previous,
    };
    let mut bytes = Vec::with_capacity(HEADER_LEN + frame.body().len());
    frame::write(&mut bytes, &parts, frame.body());
    Ok(bytes)
}

/// The shared events as frames, from the first one on: each one's chain digest follows from the one before. Behind a
/// damaged event they cannot be known, so what is left is one error.
pub(crate) struct Rebuilt<'a> {
    held: FrameIter<'a>,
    to: Readdressed,
    /// The chain digest before the next event, as long as it is known.
    chain: Option<Digest>,
    next: u64,
    /// The first event that is wanted.
    from: u64,
}

impl<'a> Rebuilt<'a> {
    /// `held` gives all shared events as their holders have them. Those before `from` are given and not wanted.
    pub(crate) fn new(held: FrameIter<'a>, to: Readdressed, from: Seq) -> Self {
        Rebuilt { held, to, chain: Some(Head::EMPTY.chain), next: 0, from: from.0 }
    }

    fn rebuild(&mut self, frame: &Frame, previous: Digest) -> Result<Frame, LogError> {
        let seq = frame.address().seq;
        let prefix = &self.to.prefix;
        let bytes = readdress(frame, self.to.stream, prefix.at_us, previous)?;
        let chain = Digest::of(&bytes);
        self.chain = Some(chain);
        self.next = seq.0 + 1;
        if self.next == prefix.count && chain != prefix.chain {
            let reason = format!("what it shares with {} is not what it shared when it began", prefix.base);
            return Err(self.to.damaged(seq, reason));
        }
        Ok(Frame::checked(bytes, self.to.stream))
    }
}

impl Iterator for Rebuilt<'_> {
    type Item = Result<Frame, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.to.prefix.count {
            return None;
        }
        let Some(previous) = self.chain else {
            let first = self.next.max(self.from);
            self.next = self.to.prefix.count;
            let count = self.next.checked_sub(first).filter(|count| *count > 0)?;
            let reason =
                format!("the {count} shared events from here on have no chain digest, since one before is damaged");
            return Some(Err(self.to.damaged(Seq(first), reason)));
        };
        match self.held.next()? {
            Ok(frame) => Some(self.rebuild(&frame, previous)),
            Err(error) => {
                let seq = if let LogError::Damaged { seq, .. } = &error { seq.0 } else { self.next };
                (self.chain, self.next) = (None, seq.saturating_add(1));
                Some(Err(self.to.error(error)))
            }
        }
    }
}

/// What the digests behind shared events come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digests {
    pub(crate) base_chain: Digest,
    /// The sharing stream's.
    pub(crate) chain: Digest,
    pub(crate) content: Digest,
}

/// A stream that shares `count` events, and when it began to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sharer {
    pub(crate) stream: Stream,
    pub(crate) at_us: u64,
    pub(crate) count: u64,
}

/// The digests of streams that share the first events of one base, whose frames are `held`, in one pass over it. The
/// pass ends at the first event that cannot be read, which `failed` is told: streams that share it, or more events than
/// there are, get no digests.
pub(crate) fn digests(
    held: FrameIter<'_>,
    sharers: &[Sharer],
    failed: impl FnOnce(LogError),
) -> Result<Vec<Option<Digests>>, LogError> {
    let longest = sharers.iter().map(|sharer| sharer.count).max().unwrap_or(0);
    let mut done = vec![None; sharers.len()];
    let mut chains = vec![Head::EMPTY.chain; sharers.len()];
    let (mut content, mut next) = (Head::EMPTY.content, 0);
    for frame in held {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error @ LogError::Damaged { .. }) => {
                failed(error);
                break;
            }
            Err(error) => return Err(error),
        };
        let kind = frame.kind()?;
        if kind.is_content() {
            content = chain_content(content, kind, frame.layout(), frame.body());
        }
        next += 1;
        for ((sharer, chain), done) in sharers.iter().zip(&mut chains).zip(&mut done) {
            if sharer.count < next {
                continue;
            }
            *chain = Digest::of(&readdress(&frame, sharer.stream, sharer.at_us, *chain)?);
            if sharer.count == next {
                *done = Some(Digests { base_chain: frame.chain(), chain: *chain, content });
            }
        }
        if next == longest {
            break;
        }
    }
    Ok(done)
}
