//! Where events stand in the journal, by stream and position.

use std::collections::BTreeMap;

use crate::error::LogError;
use crate::event::Kind;
use crate::frame::{HEADER_LEN, StreamKey, View, stream_key, stream_of_key};
use crate::id::{Seq, Stream};
use crate::manifest::Mark;
use crate::source::Header;

/// A frame's bytes in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    pub(crate) file: u32,
    pub(crate) len: u32,
}

impl Place {
    pub(crate) fn of(view: &View<'_>, file: u32, offset: u64) -> Self {
        Place { offset, file, len: u32::try_from(view.bytes().len()).unwrap_or(u32::MAX) }
    }
}

/// What is kept of every event: 48 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) seq: Seq,
    pub(crate) at_us: u64,
    pub(crate) place: Place,
    /// The frame's own checksum: tells an exchanged frame from the one that was indexed.
    pub(crate) crc: u32,
    /// The length of the event's body, which is longer than the frame's where the frame is short.
    pub(crate) body_len: u32,
    pub(crate) kind: Kind,
}

impl Entry {
    pub(crate) fn new(view: &View<'_>, kind: Kind, body_len: u32, file: u32, offset: u64) -> Self {
        let place = Place::of(view, file, offset);
        Entry { seq: view.seq(), at_us: view.at_us(), place, crc: view.crc(), body_len, kind }
    }

    /// Whether the frame is a short one.
    pub(crate) fn is_short(&self) -> bool {
        u64::from(self.place.len) != HEADER_LEN as u64 + u64::from(self.body_len)
    }

    pub(crate) fn header(&self, stream: Stream) -> Header {
        Header { stream, seq: self.seq, at_us: self.at_us, kind: self.kind, body_len: self.body_len }
    }
}

/// An event's entry, with its frame where the ordered store holds it.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) entry: Entry,
    pub(crate) frame: Option<sled::IVec>,
}

/// Something that knows a stream's events in order.
pub(crate) trait Order: Send + Sync {
    /// Up to `limit` events from position `from` on; none at the end. Holes are simply not there.
    fn chunk(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Slot>, LogError>;
}

/// Every event of a journal, in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    streams: BTreeMap<StreamKey, Vec<Entry>>,
}

impl Index {
    pub(crate) fn push(&mut self, stream: Stream, entry: Entry) {
        self.streams.entry(stream_key(stream)).or_default().push(entry);
    }

    pub(crate) fn last(&self, key: &StreamKey) -> Option<&Entry> {
        self.streams.get(key)?.last()
    }

    /// Without what begins at `end` or later.
    pub(crate) fn before(mut self, end: Mark) -> Self {
        for entries in self.streams.values_mut() {
            entries.retain(|entry| Mark { file: entry.place.file, offset: entry.place.offset } < end);
        }
        self
    }

    /// Every entry with its stream, in key order.
    pub(crate) fn all(&self) -> Vec<(Stream, Entry)> {
        self.iter().filter_map(|(key, entry)| Some((stream_of_key(key)?, *entry))).collect()
    }

    /// Every entry in key order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&StreamKey, &Entry)> {
        self.streams.iter().flat_map(|(key, entries)| entries.iter().map(move |entry| (key, entry)))
    }
}

impl Order for Index {
    fn chunk(&self, stream: Stream, from: Seq, limit: usize) -> Result<Vec<Slot>, LogError> {
        let Some(entries) = self.streams.get(&stream_key(stream)) else { return Ok(Vec::new()) };
        let start = entries.partition_point(|entry| entry.seq < from);
        let rest = entries.get(start..).unwrap_or_default();
        Ok(rest.iter().take(limit).map(|entry| Slot { entry: *entry, frame: None }).collect())
    }
}
