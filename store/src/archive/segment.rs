//! Segments: events to columns and back.

use super::SEGMENT_BYTES;
use super::columns::{COLUMNS, HEADERS, IDS, MAX_COLUMN, PLANES, REST, RestAt, Row, Text, deflate, inflate, rows};
use super::cursor::{Cursor, put_varint};
use super::footer::{Piece, kind_bit};
use super::split::Split;
use crate::frame::{self, Parts, View};
use crate::id::{Digest, Seq, Stream};

/// Two lengths for each column.
const DIRECTORY: usize = COLUMNS * 8;

/// A segment being put together.
#[derive(Debug, Default)]
pub(super) struct Draft {
    columns: [Vec<u8>; COLUMNS],
    pub(super) pieces: Vec<Piece>,
    pub(super) events: usize,
    /// Bytes of the frames taken in.
    pub(super) raw_bytes: usize,
    at_us: u64,
}

impl Draft {
    /// Takes in an event. `rest` is its body without the runs of `split`; none if it lies in a block.
    pub(super) fn push(&mut self, stream: usize, view: &View<'_>, split: Split, rest: Rest<'_>) {
        let seq = view.seq().0;
        let stream = u32::try_from(stream).unwrap_or(u32::MAX);
        let continues = |piece: &Piece| piece.stream == stream && piece.end() == seq;
        if !self.pieces.last().is_some_and(continues) {
            let previous = view.previous();
            self.pieces.push(Piece { stream, count: 0, first: seq, kinds: 0, previous });
        }
        if let Some(piece) = self.pieces.last_mut() {
            piece.count += 1;
            piece.kinds |= kind_bit(view.kind_code());
        }
        let [headers, ids, plane0, plane1, plane2, plane3, text] = &mut self.columns;
        let at = match rest {
            Rest::Here(bytes) => {
                text.extend_from_slice(bytes);
                RestAt::Column
            }
            Rest::Block(block) => RestAt::Block(block),
            Rest::Texts(bytes, texts) => {
                text.extend_from_slice(bytes);
                RestAt::Texts(texts)
            }
        };
        Row::of(view, split, at).put(headers, self.at_us);
        self.at_us = view.at_us();
        for id in fours(view.body(), split.ids_at, split.ids) {
            put_varint(ids, u64::from(u32::from_le_bytes(id)));
        }
        for [a, b, c, d] in fours(view.body(), split.logprobs_at, split.logprobs) {
            plane0.push(a);
            plane1.push(b);
            plane2.push(c);
            plane3.push(d);
        }
        self.events += 1;
        self.raw_bytes += view.bytes().len();
    }

    /// The segment's bytes.
    pub(super) fn encode(&self) -> std::io::Result<Vec<u8>> {
        let packed: Vec<Vec<u8>> =
            self.columns.iter().enumerate().map(|(i, column)| deflate(column, i)).collect::<Result<_, _>>()?;
        let mut out = Vec::new();
        for (raw, stored) in self.columns.iter().zip(&packed) {
            for length in [raw.len(), stored.len()] {
                out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
            }
        }
        packed.iter().for_each(|column| out.extend_from_slice(column));
        Ok(out)
    }
}

/// The rest of a body, on its way into a segment.
#[derive(Clone, Debug)]
pub(super) enum Rest<'a> {
    /// All of it.
    Here(&'a [u8]),
    /// It lies in a block.
    Block(usize),
    /// What is left of it without these texts, which lie in blocks.
    Texts(&'a [u8], Vec<Text>),
}

fn fours(body: &[u8], at: usize, count: usize) -> impl Iterator<Item = [u8; 4]> {
    let run = body.get(at..at + count * 4).unwrap_or_default();
    run.chunks_exact(4).filter_map(|four| four.try_into().ok())
}

/// A body without the runs of `split`.
pub(super) fn rest_of(body: &[u8], split: Split) -> Vec<u8> {
    let ids_end = split.ids_at + split.ids * 4;
    let (middle, end) = match split.logprobs {
        0 => (body.len(), body.len()),
        count => (split.logprobs_at, split.logprobs_at + count * 4),
    };
    let parts = [body.get(..split.ids_at), body.get(ids_end..middle), body.get(end..)];
    parts.into_iter().flatten().flatten().copied().collect()
}

/// A decoded segment: its frames, byte for byte.
#[derive(Debug)]
pub(super) struct Segment {
    frames: Vec<u8>,
    /// Where each frame ends.
    ends: Vec<usize>,
    pub(super) rows: Vec<Row>,
}

impl Segment {
    pub(super) fn frame(&self, index: usize) -> Option<&[u8]> {
        let start = match index.checked_sub(1) {
            Some(before) => *self.ends.get(before)?,
            None => 0,
        };
        self.frames.get(start..*self.ends.get(index)?)
    }
}

/// The stored columns of a segment.
pub(super) struct Stored<'a> {
    columns: [(&'a [u8], usize); COLUMNS],
}

impl<'a> Stored<'a> {
    /// Finds the columns in the bytes of a segment, which must be filled by them.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Stored<'a>> {
        let mut directory = Cursor::new(bytes.get(..DIRECTORY)?);
        let mut data = Cursor::new(bytes.get(DIRECTORY..)?);
        let mut columns = [(&[][..], 0); COLUMNS];
        for column in &mut columns {
            let raw = usize::try_from(directory.u32()?).ok()?;
            let stored = usize::try_from(directory.u32()?).ok()?;
            (raw <= MAX_COLUMN && stored <= raw).then_some(())?;
            *column = (data.take(stored)?, raw);
        }
        data.is_empty().then_some(Stored { columns })
    }

    fn column(&self, number: usize) -> Option<Vec<u8>> {
        let (stored, raw) = *self.columns.get(number)?;
        inflate(stored, raw)
    }

    /// Header fields alone.
    pub(super) fn rows(&self, count: usize) -> Option<Vec<Row>> {
        rows(&self.column(HEADERS)?, count)
    }

    /// Builds the frames again and checks that each stream's hash chain leads to where the footer says: each piece comes with
    /// the digest behind it.
    pub(super) fn decode(
        &self,
        pieces: &[(Piece, Digest)],
        stream: impl Fn(usize) -> Option<Stream>,
        block: impl Fn(usize) -> Result<Vec<u8>, String>,
    ) -> Result<Segment, String> {
        let contradiction = || "its columns contradict one another".to_owned();
        let count: u64 = pieces.iter().map(|(piece, _)| u64::from(piece.count)).sum();
        let rows = usize::try_from(count).ok().and_then(|count| self.rows(count)).ok_or_else(contradiction)?;
        let mut columns = Columns::new(self).ok_or_else(contradiction)?;
        let (mut frames, mut ends) = (Vec::new(), Vec::with_capacity(rows.len()));
        let mut next = rows.iter();
        for (piece, after) in pieces {
            let stream = stream(piece.stream as usize).ok_or_else(contradiction)?;
            let (mut previous, mut kinds) = (piece.previous, 0);
            for seq in piece.first..piece.end() {
                let row = next.next().ok_or_else(contradiction)?;
                let start = frames.len();
                // A writer begins a new segment then; so memory stays bounded whatever a file says.
                if start >= SEGMENT_BYTES {
                    return Err(contradiction());
                }
                let body = columns.body(row, &block)?.ok_or_else(contradiction)?;
                let parts = Parts {
                    stream,
                    seq: Seq(seq),
                    at_us: row.at_us,
                    kind: row.kind,
                    layout: row.layout,
                    begins_commit: row.begins_commit,
                    previous,
                };
                frame::write(&mut frames, &parts, &body);
                previous = Digest::of(frames.get(start..).unwrap_or_default());
                kinds |= kind_bit(row.kind);
                ends.push(frames.len());
            }
            if previous != *after || kinds != piece.kinds {
                return Err(format!("the events of {stream} in it are not those that its footer names"));
            }
        }
        if !columns.is_used_up() {
            return Err(contradiction());
        }
        Ok(Segment { frames, ends, rows })
    }
}

/// Columns being read.
struct Columns {
    ids: Vec<u8>,
    planes: Vec<Vec<u8>>,
    rest: Vec<u8>,
    ids_at: usize,
    planes_at: usize,
    rest_at: usize,
}

impl Columns {
    fn new(stored: &Stored<'_>) -> Option<Columns> {
        let planes = PLANES.iter().map(|number| stored.column(*number)).collect::<Option<Vec<_>>>()?;
        let (ids, rest) = (stored.column(IDS)?, stored.column(REST)?);
        Some(Columns { ids, planes, rest, ids_at: 0, planes_at: 0, rest_at: 0 })
    }

    /// Puts a body together; the inner `None` is a contradiction, the error a damaged block.
    fn body(
        &mut self,
        row: &Row,
        block: &impl Fn(usize) -> Result<Vec<u8>, String>,
    ) -> Result<Option<Vec<u8>>, String> {
        let Some(rest_len) = row.split.taken(row.body_len).and_then(|taken| row.body_len.checked_sub(taken)) else {
            return Ok(None);
        };
        let rest = match &row.rest {
            RestAt::Column => self.take_rest(rest_len).map(<[u8]>::to_vec),
            RestAt::Block(number) => Some(block(*number)?).filter(|bytes| bytes.len() == rest_len),
            RestAt::Texts(texts) => self.rest_with(texts, rest_len, block)?,
        };
        Ok(rest.and_then(|rest| self.with_runs(row, &rest)))
    }

    fn take_rest(&mut self, count: usize) -> Option<&[u8]> {
        let end = self.rest_at.checked_add(count)?;
        let taken = self.rest.get(self.rest_at..end)?;
        self.rest_at = end;
        Some(taken)
    }

    /// A rest of `rest_len` bytes whose texts lie in blocks.
    fn rest_with(
        &mut self,
        texts: &[Text],
        rest_len: usize,
        block: &impl Fn(usize) -> Result<Vec<u8>, String>,
    ) -> Result<Option<Vec<u8>>, String> {
        let mut rest = Vec::new();
        for text in texts {
            let Some(before) = text.at.checked_sub(rest.len()).and_then(|count| self.take_rest(count)) else {
                return Ok(None);
            };
            rest.extend_from_slice(before);
            let bytes = block(text.block)?;
            // Checked at once, so that a file cannot make us gather more than the body has.
            if bytes.is_empty() || rest.len() + bytes.len() > rest_len {
                return Ok(None);
            }
            rest.extend_from_slice(&bytes);
        }
        let Some(behind) = self.take_rest(rest_len - rest.len()) else { return Ok(None) };
        rest.extend_from_slice(behind);
        Ok(Some(rest))
    }

    /// The body: its rest, and the runs of ids and log-probabilities in their places.
    fn with_runs(&mut self, row: &Row, rest: &[u8]) -> Option<Vec<u8>> {
        let Split { ids_at, ids, logprobs_at, logprobs } = row.split;
        let mut rest = Cursor::new(rest);
        // Columns are already in memory, so a body is no longer than they allow.
        let mut body = Vec::new();
        body.extend_from_slice(rest.take(ids_at)?);
        let mut column = Cursor::new(self.ids.get(self.ids_at..)?);
        let before = column.len();
        for _ in 0..ids {
            body.extend_from_slice(&u32::try_from(column.varint()?).ok()?.to_le_bytes());
        }
        self.ids_at += before - column.len();
        if logprobs > 0 {
            body.extend_from_slice(rest.take(logprobs_at.checked_sub(body.len())?)?);
            for at in self.planes_at..self.planes_at.checked_add(logprobs)? {
                for plane in &self.planes {
                    body.push(*plane.get(at)?);
                }
            }
            self.planes_at += logprobs;
        }
        body.extend_from_slice(rest.take(rest.len())?);
        (body.len() == row.body_len).then_some(body)
    }

    fn is_used_up(&self) -> bool {
        let planes = self.planes.iter().all(|plane| plane.len() == self.planes_at);
        planes && self.ids.len() == self.ids_at && self.rest.len() == self.rest_at
    }
}
