//! The footer: what is in the file, and where. Everything in it is untrusted until checked here.

use std::collections::BTreeMap;
use std::ops::Range;

use super::cursor::Cursor;
use super::error::ArchiveError;
use super::{ARCHIVE_VERSION, HEAD_LEN, HEAD_MAGIC, SEGMENT_BYTES, TAIL_LEN, TAIL_MAGIC};
use crate::event::{Kind, MAX_BODY};
use crate::frame::{HEADER_LEN, StreamKey, stream_key, stream_of_key};
use crate::id::{Digest, RunId, Seq, Stream};
use crate::source::Head;

const FOOTER_HEAD: usize = 48;
const STREAM_LEN: usize = 96;
const SEGMENT_LEN: usize = 24;
const PIECE_LEN: usize = 56;
const BLOCK_LEN: usize = 24;

/// The events of one stream that stand next to one another in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The stream's place among the file's.
    pub(super) stream: u32,
    pub(super) count: u32,
    pub(super) first: u64,
    /// Bit `n` is set if an event of kind `n` is among them.
    pub(super) kinds: u64,
    /// Chain digest of the stream before the first of them. The one after the last is that of the stream's next piece, or of
    /// its head.
    pub(super) previous: Digest,
}

/// A compressed part of the file: events of one or more streams, in the order of streams and numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentEntry {
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) crc: u32,
    /// Its pieces: the first one's place among all, and how many there are.
    pub(super) first_piece: u32,
    pub(super) pieces: u32,
}

/// A long text on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockEntry {
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) raw: u32,
    pub(super) crc: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Footer {
    pub(super) run: RunId,
    pub(super) events: u64,
    /// Bytes that the frames have in a journal.
    pub(super) raw_bytes: u64,
    /// Each stream's end, in key order.
    pub(super) streams: Vec<(Stream, Head)>,
    pub(super) segments: Vec<SegmentEntry>,
    /// The pieces of all segments, in order, which is that of the streams as well.
    pub(super) pieces: Vec<Piece>,
    pub(super) blocks: Vec<BlockEntry>,
}

/// A piece and where it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The segment's number.
    pub(super) segment: usize,
    /// Events in the segment before the piece.
    pub(super) before: u64,
    pub(super) piece: Piece,
}

/// The bit of a kind's number. Numbers beyond 62 share the last one.
pub(super) fn kind_bit(code: u16) -> u64 {
    1 << code.min(63)
}

fn known_kinds() -> u64 {
    Kind::ALL.iter().map(|kind| kind_bit(kind.code())).fold(0, |all, bit| all | bit)
}

pub(super) fn head(version: u16) -> [u8; HEAD_LEN] {
    let mut head = [0; HEAD_LEN];
    let [low, high] = version.to_le_bytes();
    let [a, b, c, d] = HEAD_MAGIC;
    let fields = [a, b, c, d, low, high, 0, 0];
    let crc = crc32fast::hash(&fields).to_le_bytes();
    head.iter_mut().zip(fields.into_iter().chain(crc)).for_each(|(to, from)| *to = from);
    head
}

pub(super) fn check_head(bytes: &[u8]) -> Result<(), ArchiveError> {
    let not = |reason| ArchiveError::NotOne { reason };
    let mut cursor = Cursor::new(bytes);
    let (magic, version, zero) = (cursor.array::<4>(), cursor.array::<2>(), cursor.array::<2>());
    if magic != Some(HEAD_MAGIC) {
        return Err(not("it does not begin as an archive does"));
    }
    let crc = bytes.get(..8).map(crc32fast::hash);
    if cursor.u32() != crc {
        return Err(not("its first bytes do not fit their checksum"));
    }
    let version = version.map_or(0, u16::from_le_bytes);
    if version > ARCHIVE_VERSION {
        return Err(ArchiveError::Newer { what: format!("archive version {version}") });
    }
    if version == 0 || zero != Some([0, 0]) {
        return Err(not("its first bytes say something that no program writes"));
    }
    Ok(())
}

/// What stands at the very end of the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    pub(super) footer_len: u64,
    pub(super) footer_crc: u32,
    /// Over every byte before it.
    pub(super) digest: Digest,
}

impl Tail {
    pub(super) fn read(bytes: &[u8]) -> Result<Tail, ArchiveError> {
        let not = ArchiveError::NotOne { reason: "it does not end as an archive does; perhaps it was cut" };
        let mut cursor = Cursor::new(bytes);
        let read = || Some((cursor.u64()?, cursor.u32()?, Digest(cursor.array()?), cursor.array::<4>()?));
        match { read }() {
            Some((footer_len, footer_crc, digest, TAIL_MAGIC)) => Ok(Tail { footer_len, footer_crc, digest }),
            _ => Err(not),
        }
    }
}

impl Footer {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&self.run.0);
        for count in [self.streams.len(), self.segments.len(), self.pieces.len(), self.blocks.len()] {
            out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
        }
        out.extend_from_slice(&self.events.to_le_bytes());
        out.extend_from_slice(&self.raw_bytes.to_le_bytes());
        for (stream, head) in &self.streams {
            out.extend_from_slice(&stream_key(*stream));
            out.extend_from_slice(&[0; 3]);
            out.extend_from_slice(&head.count.to_le_bytes());
            out.extend_from_slice(&head.chain.0);
            out.extend_from_slice(&head.content.0);
        }
        for segment in &self.segments {
            out.extend_from_slice(&segment.offset.to_le_bytes());
            out.extend_from_slice(&segment.len.to_le_bytes());
            out.extend_from_slice(&segment.crc.to_le_bytes());
            out.extend_from_slice(&u64::from(segment.pieces).to_le_bytes());
        }
        for piece in &self.pieces {
            out.extend_from_slice(&piece.stream.to_le_bytes());
            out.extend_from_slice(&piece.count.to_le_bytes());
            out.extend_from_slice(&piece.first.to_le_bytes());
            out.extend_from_slice(&piece.kinds.to_le_bytes());
            out.extend_from_slice(&piece.previous.0);
        }
        for block in &self.blocks {
            out.extend_from_slice(&block.offset.to_le_bytes());
            out.extend_from_slice(&block.len.to_le_bytes());
            out.extend_from_slice(&block.raw.to_le_bytes());
            out.extend_from_slice(&block.crc.to_le_bytes());
            out.extend_from_slice(&[0; 4]);
        }
        out
    }

    /// Reads a footer whose checksum is right. `body_end` is where it begins in the file.
    pub(super) fn decode(bytes: &[u8], body_end: u64) -> Result<Footer, ArchiveError> {
        let damaged = |reason: &str| ArchiveError::damaged("footer", reason);
        let footer = parse(bytes).ok_or_else(|| damaged("its parts do not fit together"))?;
        footer.check_streams().map_err(damaged)?;
        if footer.pieces.iter().any(|piece| piece.kinds & !known_kinds() != 0) {
            return Err(ArchiveError::Newer { what: "events of an unknown kind".to_owned() });
        }
        footer.check_places(body_end).map_err(damaged)?;
        Ok(footer)
    }

    /// The pieces of a segment.
    pub(super) fn pieces_of(&self, segment: &SegmentEntry) -> &[Piece] {
        let (first, count) = (segment.first_piece as usize, segment.pieces as usize);
        self.pieces.get(first..first.saturating_add(count)).unwrap_or_default()
    }

    /// A stream's place among the file's.
    pub(super) fn find(&self, stream: Stream) -> Option<usize> {
        let key = stream_key(stream);
        self.streams.binary_search_by(|(other, _)| stream_key(*other).cmp(&key)).ok()
    }

    /// The places of a stream's pieces among all.
    pub(super) fn pieces_with(&self, stream: usize) -> Range<usize> {
        let until = |end: usize| self.pieces.partition_point(|piece| (piece.stream as usize) < end);
        until(stream)..until(stream.saturating_add(1))
    }

    /// A piece by its place among all.
    pub(super) fn place(&self, at: usize) -> Option<Place> {
        let piece = *self.pieces.get(at)?;
        let segment = self.segments.partition_point(|segment| segment.first_piece as usize <= at).checked_sub(1)?;
        let first = self.segments.get(segment)?.first_piece as usize;
        let before = self.pieces.get(first..at)?.iter().map(|piece| u64::from(piece.count)).sum();
        Some(Place { segment, before, piece })
    }

    /// The chain digest behind a piece, by its place among all.
    pub(super) fn after(&self, at: usize) -> Option<Digest> {
        let stream = self.pieces.get(at)?.stream;
        match self.pieces.get(at.checked_add(1)?).filter(|next| next.stream == stream) {
            Some(next) => Some(next.previous),
            None => self.streams.get(stream as usize).map(|(_, head)| head.chain),
        }
    }

    /// Streams in key order, of this run, with pieces that follow one another without gaps.
    fn check_streams(&self) -> Result<(), &'static str> {
        let keys: Vec<StreamKey> = self.streams.iter().map(|(stream, _)| stream_key(*stream)).collect();
        if keys.windows(2).any(|pair| pair.first() >= pair.last()) || keys.is_empty() {
            return Err("its streams are out of order");
        }
        if self.streams.iter().any(|(stream, head)| stream.run() != self.run || head.count == 0) {
            return Err("it names a stream that is not the run's");
        }
        let mut at = BTreeMap::<u32, u64>::new();
        let mut last = 0;
        let mut events = 0u64;
        for segment in &self.segments {
            let mut in_segment = 0u64;
            for piece in self.pieces_of(segment) {
                let next = at.entry(piece.stream).or_insert(0);
                let count = self.streams.get(piece.stream as usize).map_or(0, |(_, head)| head.count);
                let end = piece.first.saturating_add(u64::from(piece.count));
                if piece.first != *next || piece.count == 0 || end > count || piece.stream < last {
                    return Err("its parts of streams do not follow one another");
                }
                if piece.first == 0 && piece.previous != Head::EMPTY.chain {
                    return Err("a stream's first event continues another one");
                }
                *next = end;
                last = piece.stream;
                in_segment += u64::from(piece.count);
            }
            if in_segment == 0 || in_segment > super::SEGMENT_EVENTS as u64 {
                return Err("a segment has an impossible number of events");
            }
            events += in_segment;
        }
        let whole = (0..).zip(&self.streams).all(|(i, (_, head))| at.get(&i) == Some(&head.count));
        if !whole || events != self.events {
            return Err("its counts contradict one another");
        }
        let least = self.events.saturating_mul(HEADER_LEN as u64);
        if self.raw_bytes < least {
            return Err("its events have an impossible size");
        }
        Ok(())
    }

    /// Segments and blocks lie between head and footer without gaps.
    fn check_places(&self, body_end: u64) -> Result<(), &'static str> {
        let segments = self.segments.iter().map(|segment| (segment.offset, segment.len));
        let mut places: Vec<(u64, u32)> =
            segments.chain(self.blocks.iter().map(|block| (block.offset, block.len))).collect();
        places.sort_unstable();
        let mut at = HEAD_LEN as u64;
        for (offset, len) in places {
            if offset != at || len == 0 {
                return Err("its parts leave gaps");
            }
            at = offset.saturating_add(u64::from(len));
        }
        if at != body_end {
            return Err("its parts do not fill the file");
        }
        let longest = (MAX_BODY + SEGMENT_BYTES) as u64;
        if self.blocks.iter().any(|block| u64::from(block.raw) > longest || block.len > block.raw) {
            return Err("a block has an impossible length");
        }
        Ok(())
    }
}

fn parse(bytes: &[u8]) -> Option<Footer> {
    let mut cursor = Cursor::new(bytes);
    let run = RunId(cursor.array()?);
    let mut counts = [0usize; 4];
    for count in &mut counts {
        *count = usize::try_from(cursor.u32()?).ok()?;
    }
    let [streams, segments, pieces, blocks] = counts;
    let (events, raw_bytes) = (cursor.u64()?, cursor.u64()?);
    let sizes = [(streams, STREAM_LEN), (segments, SEGMENT_LEN), (pieces, PIECE_LEN), (blocks, BLOCK_LEN)];
    let total = sizes.iter().try_fold(FOOTER_HEAD, |sum, (count, size)| sum.checked_add(count.checked_mul(*size)?));
    if total != Some(bytes.len()) {
        return None;
    }
    let mut footer = Footer {
        run,
        events,
        raw_bytes,
        // The file's length bounds what these counts can ask for.
        streams: Vec::with_capacity(streams),
        segments: Vec::with_capacity(segments),
        pieces: Vec::with_capacity(pieces),
        blocks: Vec::with_capacity(blocks),
    };
    for _ in 0..streams {
        let stream = stream_of_key(cursor.take(21)?)?;
        (cursor.array()? == [0u8; 3]).then_some(())?;
        let head = Head { count: cursor.u64()?, chain: Digest(cursor.array()?), content: Digest(cursor.array()?) };
        footer.streams.push((stream, head));
    }
    let mut placed = 0u32;
    for _ in 0..segments {
        let (offset, len, crc) = (cursor.u64()?, cursor.u32()?, cursor.u32()?);
        let count = u32::try_from(cursor.u64()?).ok()?;
        footer.segments.push(SegmentEntry { offset, len, crc, first_piece: placed, pieces: count });
        placed = placed.checked_add(count)?;
    }
    (placed as usize == pieces).then_some(())?;
    for _ in 0..pieces {
        let (stream, count, first, kinds) = (cursor.u32()?, cursor.u32()?, cursor.u64()?, cursor.u64()?);
        footer.pieces.push(Piece { stream, count, first, kinds, previous: Digest(cursor.array()?) });
    }
    for _ in 0..blocks {
        let (offset, len, raw, crc) = (cursor.u64()?, cursor.u32()?, cursor.u32()?, cursor.u32()?);
        (cursor.array()? == [0u8; 4]).then_some(())?;
        footer.blocks.push(BlockEntry { offset, len, raw, crc });
    }
    Some(footer)
}

/// Where a footer of that length begins in a file of that length.
pub(super) fn footer_start(file_len: u64, footer_len: u64) -> Option<u64> {
    let start = file_len.checked_sub(TAIL_LEN as u64)?.checked_sub(footer_len)?;
    (start >= HEAD_LEN as u64).then_some(start)
}

impl Piece {
    /// Whether the event with that number is in it.
    pub(super) fn holds(&self, seq: Seq) -> bool {
        (self.first..self.end()).contains(&seq.0)
    }

    /// The number behind its last event's.
    pub(super) fn end(&self) -> u64 {
        self.first.saturating_add(u64::from(self.count))
    }
}
