//! Where events stand in the journal, by stream and position.

use std::collections::BTreeMap;

use crate::error::LogError;
use crate::event::Kind;
use crate::extent::{Check, Extent, Extents};
use crate::frame::{self, HEADER_LEN, StreamKey, View, stream_key, stream_of_key};
use crate::id::{Seq, Stream};
use crate::journal::Journal;
use crate::manifest::Mark;
use crate::source::Header;

/// The most bytes that are read at a time, unless one extent has more.
const SPAN: u64 = 1 << 18;
/// Bytes of other streams that are read along rather than left out by a second call.
const GAP: u64 = 1 << 12;
/// Bytes behind a frame's header in which a short one says how long its event's body is.
const SHORT_HEAD: u64 = 4;

/// A frame's bytes in the journal, or those of frames next to one another.
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

/// What is known of an event without its body.
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

/// An event's frame, as far as whoever knows the order has it.
#[derive(Debug)]
pub(crate) enum Held {
    /// It must be read from the journal.
    Away,
    /// It was read from the journal.
    Journal(sled::IVec),
    /// The ordered store holds it.
    Ordered(sled::IVec),
}

/// An event's entry, with its frame where that is at hand.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) entry: Entry,
    pub(crate) held: Held,
}

/// Numbers of a stream in order, each with its event or with why that cannot be read.
pub(crate) type Chunk = Vec<(Seq, Result<Slot, LogError>)>;

/// Something that knows a stream's events in order.
pub(crate) trait Order: Send + Sync {
    /// About `limit` events from position `from` on, fewer where they are long; none at the end. Holes are simply not there.
    fn chunk(&self, journal: &Journal, stream: Stream, from: Seq, limit: usize) -> Result<Chunk, LogError>;
}

/// Every event of a journal, in memory: one or two bytes each where they are written some at a time, and 16 where each is
/// written alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    streams: BTreeMap<StreamKey, Box<Extents>>,
}

impl Index {
    pub(crate) fn push(&mut self, stream: Stream, entry: &Entry) {
        self.streams.entry(stream_key(stream)).or_default().push(entry);
    }

    /// Where a stream's last event ends.
    pub(crate) fn end(&self, key: &StreamKey) -> Option<Mark> {
        let last = self.streams.get(key)?.last()?;
        Some(Mark { file: last.place.file, offset: last.end() })
    }

    /// The streams in key order, each with its extents.
    pub(crate) fn streams(&self) -> impl Iterator<Item = (Stream, &Extents)> {
        self.streams.iter().filter_map(|(key, extents)| Some((stream_of_key(key)?, &**extents)))
    }
}

impl Order for Index {
    fn chunk(&self, journal: &Journal, stream: Stream, from: Seq, limit: usize) -> Result<Chunk, LogError> {
        let Some(extents) = self.streams.get(&stream_key(stream)) else { return Ok(Vec::new()) };
        let (mut chunk, mut group, mut bytes) = (Vec::new(), Vec::<Extent>::new(), 0);
        for extent in extents.from(from.0) {
            let wanted: usize = group.iter().map(|extent| extent.count as usize).sum();
            if chunk.len() + wanted >= limit || bytes >= SPAN {
                break;
            }
            if !joins(&group, &extent) {
                read(journal, stream, &group, &mut chunk);
                group.clear();
            }
            bytes += if extent.is_alone() { HEADER_LEN as u64 } else { u64::from(extent.place.len) };
            group.push(extent);
        }
        read(journal, stream, &group, &mut chunk);
        chunk.retain(|(seq, _)| *seq >= from);
        Ok(chunk)
    }
}

/// The entries of an extent, as the journal has them.
pub(crate) fn entries(
    journal: &Journal,
    stream: Stream,
    extent: &Extent,
) -> impl Iterator<Item = Result<Entry, LogError>> + use<> {
    let mut chunk = Vec::new();
    read(journal, stream, &[*extent], &mut chunk);
    chunk.into_iter().map(|(_, slot)| Ok(slot?.entry))
}

/// Whether an extent is read together with those before it.
fn joins(group: &[Extent], extent: &Extent) -> bool {
    let (Some(first), Some(last)) = (group.first(), group.last()) else { return true };
    let gap = extent.place.offset.checked_sub(last.end());
    let is_near = first.place.file == extent.place.file && gap.is_some_and(|gap| gap <= GAP);
    is_near && !last.is_alone() && !extent.is_alone() && extent.end().wrapping_sub(first.place.offset) <= SPAN
}

/// Reads the headers of extents that lie close to one another, and the frames of those that are not alone.
fn read(journal: &Journal, stream: Stream, group: &[Extent], chunk: &mut Chunk) {
    let (Some(first), Some(last)) = (group.first(), group.last()) else { return };
    let start = first.place.offset;
    let whole = last.end().wrapping_sub(start);
    let is_alone = first.is_alone();
    let wanted = if is_alone { whole.min(HEADER_LEN as u64 + SHORT_HEAD) } else { whole };
    let bytes = journal.bytes(Mark { file: first.place.file, offset: start }, wanted).map(sled::IVec::from);
    for extent in group {
        match &bytes {
            Ok(bytes) => chunk.extend(slots(stream, extent, bytes, extent.place.offset.wrapping_sub(start), is_alone)),
            Err(error) => chunk.extend((extent.first..extent.next()).map(|seq| (Seq(seq), Err(error.clone())))),
        }
    }
}

/// The events of an extent, whose frames begin `at` in the bytes. They must be the ones that were indexed; where one alone
/// is not, it is the one that fails.
fn slots(stream: Stream, extent: &Extent, bytes: &sled::IVec, at: u64, is_alone: bool) -> Chunk {
    let damaged = |seq: u64, reason: String| {
        let place = format!("{} at byte {}", Journal::shown(extent.place.file), extent.place.offset);
        (Seq(seq), Err(LogError::Damaged { stream, seq: Seq(seq), place, reason }))
    };
    let exchanged = |seq| damaged(seq, "another event stands in its place".to_owned());
    let read = walk(stream, extent, bytes, at, is_alone);
    let (mut slots, check) = read.unwrap_or_default();
    let wrong = extent.check.differs_at(check, extent.count);
    let wrong = wrong.and_then(|wrong| usize::try_from(wrong).ok());
    if extent.count == 1 && (slots.is_empty() || check != extent.check) {
        return vec![exchanged(extent.first)];
    }
    let doubted = |at: &usize| slots.get(*at).is_none_or(Option::is_none);
    let is_known = check == extent.check || wrong.is_some();
    if !is_known || (0..extent.count as usize).any(|at| doubted(&at) && Some(at) != wrong) {
        let reason =
            format!("of {} events that were written together, several were exchanged or damaged", extent.count);
        return (extent.first..extent.next()).map(|seq| damaged(seq, reason.clone())).collect();
    }
    if let Some(slot) = wrong.and_then(|wrong| slots.get_mut(wrong)) {
        *slot = None;
    }
    let slot = |(seq, slot): (u64, Option<Slot>)| match slot {
        Some(slot) => (Seq(seq), Ok(slot)),
        None => exchanged(seq),
    };
    (extent.first..).zip(slots).map(slot).collect()
}

/// What stands in the journal in an extent's place: the events, where a header says that it is the right one's, and the
/// check over all of them. `None` if the frames are not even of the right lengths.
fn walk(
    stream: Stream,
    extent: &Extent,
    bytes: &sled::IVec,
    at: u64,
    is_alone: bool,
) -> Option<(Vec<Option<Slot>>, Check)> {
    let mut at = usize::try_from(at).ok()?;
    let (mut offset, mut check, mut slots) = (extent.place.offset, Check::default(), Vec::new());
    for (place, seq) in (0..extent.count).zip(extent.first..) {
        let glance = bytes.get(at..).and_then(frame::glance)?;
        let len = glance.len as usize;
        let held = if is_alone {
            Held::Away
        } else {
            at.checked_add(len).filter(|end| *end <= bytes.len())?;
            Held::Journal(bytes.subslice(at, len))
        };
        let kind = Kind::from_code(glance.kind_code).filter(|_| (glance.stream, glance.seq.0) == (Some(stream), seq));
        slots.push(kind.map(|kind| {
            let at = Place { offset, file: extent.place.file, len: glance.len };
            let (at_us, crc, body_len) = (glance.at_us, glance.crc, glance.body_len);
            let entry = Entry { seq: Seq(seq), at_us, place: at, crc, body_len, kind };
            check = check.with(place, &entry);
            Slot { entry, held }
        }));
        (at, offset) = (at + len, offset.wrapping_add(u64::from(glance.len)));
    }
    (offset == extent.end()).then_some((slots, check))
}
