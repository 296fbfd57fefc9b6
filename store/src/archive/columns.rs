//! The columns of a segment and how they are compressed.

use std::io::Read;

use super::cursor::{Cursor, put_varint, unzigzag, zigzag};
use super::split::Split;
use crate::event::MAX_BODY;
use crate::frame::View;

/// Header fields, token ids, four byte planes of log-probabilities, the rest of the bodies.
pub(super) const COLUMNS: usize = 7;
pub(super) const HEADERS: usize = 0;
pub(super) const IDS: usize = 1;
pub(super) const PLANES: [usize; 4] = [2, 3, 4, 5];
pub(super) const REST: usize = 6;
/// No column of a segment is longer than this, compressed or not: the longest body, and what a segment has beside it.
pub(super) const MAX_COLUMN: usize = MAX_BODY + (8 << 20);
/// zstd's levels for columns. They are no part of the format.
const LEVEL: i32 = 9;
const PLANE_LEVEL: i32 = 3;
/// The largest window that a reader grants: 16 MiB.
const WINDOW_LOG: u32 = 24;

const FLAG_COMMIT: u64 = 1;
const FLAG_SPLIT: u64 = 2;
const FLAG_BLOCK: u64 = 4;
const FLAG_TEXTS: u64 = 8;

/// What the header column says of one event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) kind: u16,
    pub(super) layout: u16,
    pub(super) begins_commit: bool,
    pub(super) at_us: u64,
    pub(super) body_len: usize,
    pub(super) split: Split,
    /// Where the rest of the body lies.
    pub(super) rest: RestAt,
}

/// Where the rest of a body lies: the body without its runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RestAt {
    /// In the last column.
    Column,
    /// In the block of that number.
    Block(usize),
    /// In the last column, but for these texts, in order.
    Texts(Vec<Text>),
}

/// A text in the rest of a body that lies in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Text {
    /// Where it begins in the rest.
    pub(super) at: usize,
    /// The block's number.
    pub(super) block: usize,
}

impl Row {
    pub(super) fn of(view: &View<'_>, split: Split, rest: RestAt) -> Row {
        Row {
            kind: view.kind_code(),
            layout: view.layout(),
            begins_commit: view.begins_commit(),
            at_us: view.at_us(),
            body_len: view.body().len(),
            split,
            rest,
        }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>, previous_at: u64) {
        let split = if self.split.is_empty() { 0 } else { FLAG_SPLIT };
        let block = match self.rest {
            RestAt::Column => 0,
            RestAt::Block(_) => FLAG_BLOCK,
            RestAt::Texts(_) => FLAG_TEXTS,
        };
        put_varint(out, u64::from(self.kind));
        put_varint(out, u64::from(self.layout));
        let commit = if self.begins_commit { FLAG_COMMIT } else { 0 };
        put_varint(out, commit | split | block);
        put_varint(out, zigzag(self.at_us.wrapping_sub(previous_at) as i64));
        put_varint(out, self.body_len as u64);
        if split != 0 {
            let Split { ids_at, ids, logprobs_at, logprobs } = self.split;
            for value in [ids_at, ids, logprobs_at, logprobs] {
                put_varint(out, value as u64);
            }
        }
        match &self.rest {
            RestAt::Column => {}
            RestAt::Block(block) => put_varint(out, *block as u64),
            RestAt::Texts(texts) => {
                put_varint(out, texts.len() as u64);
                for text in texts {
                    put_varint(out, text.at as u64);
                    put_varint(out, text.block as u64);
                }
            }
        }
    }

    fn read(cursor: &mut Cursor<'_>, previous_at: u64) -> Option<Row> {
        let kind = u16::try_from(cursor.varint()?).ok()?;
        let layout = u16::try_from(cursor.varint()?).ok()?;
        let flags = cursor.varint()?;
        let is_one = flags & (FLAG_BLOCK | FLAG_TEXTS) != FLAG_BLOCK | FLAG_TEXTS;
        if flags & !(FLAG_COMMIT | FLAG_SPLIT | FLAG_BLOCK | FLAG_TEXTS) != 0 || !is_one {
            return None;
        }
        let at_us = previous_at.wrapping_add(unzigzag(cursor.varint()?) as u64);
        let mut number = || usize::try_from(cursor.varint()?).ok();
        let body_len = number()?;
        let mut split = Split::default();
        if flags & FLAG_SPLIT != 0 {
            split = Split { ids_at: number()?, ids: number()?, logprobs_at: number()?, logprobs: number()? };
        }
        let rest = if flags & FLAG_BLOCK != 0 {
            RestAt::Block(number()?)
        } else if flags & FLAG_TEXTS != 0 {
            let count = number()?;
            // Nothing is reserved: a forged count ends with the column.
            let mut texts = Vec::new();
            for _ in 0..count {
                texts.push(Text { at: number()?, block: number()? });
            }
            RestAt::Texts(texts)
        } else {
            RestAt::Column
        };
        if body_len > MAX_BODY || split.taken(body_len).is_none() {
            return None;
        }
        Some(Row { kind, layout, begins_commit: flags & FLAG_COMMIT != 0, at_us, body_len, split, rest })
    }
}

/// The `count` rows of a header column, which holds nothing else.
pub(super) fn rows(column: &[u8], count: usize) -> Option<Vec<Row>> {
    let mut cursor = Cursor::new(column);
    // A row has at least five bytes: a forged count reserves no memory.
    let mut rows = Vec::with_capacity(count.min(column.len() / 5));
    let mut at_us = 0;
    for _ in 0..count {
        let row = Row::read(&mut cursor, at_us)?;
        at_us = row.at_us;
        rows.push(row);
    }
    cursor.is_empty().then_some(rows)
}

/// Compressed, or as it is where that is not shorter.
pub(super) fn deflate(raw: &[u8], column: usize) -> std::io::Result<Vec<u8>> {
    let level = if PLANES.contains(&column) { PLANE_LEVEL } else { LEVEL };
    let packed = zstd::bulk::compress(raw, level)?;
    Ok(if packed.len() < raw.len() { packed } else { raw.to_vec() })
}

/// The other way round. `raw` is the length that must come out; it reserves no memory before the bytes are there.
pub(super) fn inflate(stored: &[u8], raw: usize) -> Option<Vec<u8>> {
    if stored.len() == raw {
        return Some(stored.to_vec());
    }
    if raw > MAX_COLUMN || stored.len() > raw {
        return None;
    }
    let mut decoder = zstd::stream::read::Decoder::with_buffer(stored).ok()?;
    decoder.window_log_max(WINDOW_LOG).ok()?;
    let mut out = Vec::new();
    decoder.take(raw as u64 + 1).read_to_end(&mut out).ok()?;
    (out.len() == raw).then_some(out)
}
