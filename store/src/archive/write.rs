//! Writing an archive.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::columns::Text;
use super::error::ArchiveError;
use super::footer::{self, BlockEntry, Footer, SegmentEntry};
use super::segment::{Draft, Rest, rest_of};
use super::split::Split;
use super::{ARCHIVE_VERSION, BLOCK_BYTES, PLAIN_VERSION, SEGMENT_BYTES, SEGMENT_EVENTS, TAIL_MAGIC, columns, split};
use crate::error::LogError;
use crate::event::Kind;
use crate::files::{Files, JournalFile};
use crate::frame::View;
use crate::id::{Digest, RunId, Seq};
use crate::payload;
use crate::source::{EventSource, Filter};

/// What an archive holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArchiveSummary {
    /// The run.
    pub run: RunId,
    /// Its streams.
    pub streams: u64,
    /// Its events.
    pub events: u64,
    /// Bytes that its events have in a journal.
    pub raw_bytes: u64,
    /// Bytes of the archive.
    pub bytes: u64,
    /// The file's digest: blake3 over everything before the digest itself.
    pub digest: Digest,
}

/// Writes every event of a run into a new archive and makes it durable. Memory holds one segment, and beside it a
/// digest for each long payload.
///
/// The file's directory is not synced: whoever gives the file its final name does that.
///
/// # Errors
/// Whatever reading the source meets, among it any damaged event of the run; [`LogError::Io`] while writing.
pub fn write_archive(
    files: &dyn Files,
    path: &Path,
    source: &dyn EventSource,
    run: RunId,
) -> Result<ArchiveSummary, LogError> {
    let failed = |error| LogError::io("write the archive", path, error);
    let mut file = files.open(path).map_err(failed)?;
    // An earlier attempt may have left something.
    file.truncate(0).map_err(failed)?;
    let mut writer = Writer {
        file,
        path: path.to_owned(),
        at: 0,
        hasher: blake3::Hasher::new(),
        footer: Footer {
            run,
            events: 0,
            raw_bytes: 0,
            streams: Vec::new(),
            segments: Vec::new(),
            pieces: Vec::new(),
            blocks: Vec::new(),
        },
        draft: Draft::default(),
        blocks: BTreeMap::new(),
    };
    writer.put(&footer::head(version_for(source, run)?))?;
    for (number, stream) in source.streams(run).into_iter().enumerate() {
        let head = source.head(stream).ok_or_else(|| missing(run))?;
        writer.footer.streams.push((stream, head));
        for frame in source.frames(stream, Seq(0), &Filter::all()) {
            writer.event(number, frame?.bytes())?;
        }
    }
    writer.finish()
}

/// The long texts in the rest of a body, as places in the rest: not those that are runs.
fn texts_in(kind: Kind, view: &View<'_>, split: Split) -> Vec<Range<usize>> {
    let runs = [(split.ids_at, split.ids * 4), (split.logprobs_at, split.logprobs * 4)];
    let runs = runs.map(|(at, len)| at..at + len);
    let in_rest = |range: Range<usize>| {
        let overlaps = |run: &Range<usize>| run.start < range.end && range.start < run.end;
        let before: usize = runs.iter().filter(|run| run.end <= range.start).map(Range::len).sum();
        (!runs.iter().any(overlaps)).then(|| range.start - before..range.end - before)
    };
    payload::find(kind, view.layout(), view.body()).into_iter().filter_map(|piece| in_rest(piece.range)).collect()
}

/// The version that an archive of the run has: the first one if no text of it is long enough to lie in a block alone.
fn version_for(source: &dyn EventSource, run: RunId) -> Result<u16, LogError> {
    for stream in source.streams(run) {
        for header in source.headers(stream, Seq(0)) {
            if header?.body_len as usize >= BLOCK_BYTES {
                return Ok(ARCHIVE_VERSION);
            }
        }
    }
    Ok(PLAIN_VERSION)
}

fn missing(run: RunId) -> LogError {
    LogError::Incomplete { run, reason: "one of its streams has no events".to_owned() }
}

struct Writer {
    file: Box<dyn JournalFile>,
    path: PathBuf,
    at: u64,
    hasher: blake3::Hasher,
    footer: Footer,
    draft: Draft,
    /// Long payloads that are in the file already.
    blocks: BTreeMap<Digest, usize>,
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) -> Result<(), LogError> {
        self.hasher.update(bytes);
        self.put_unhashed(bytes)
    }

    fn put_unhashed(&mut self, bytes: &[u8]) -> Result<(), LogError> {
        self.file.append(bytes).map_err(|error| LogError::io("write the archive", &self.path, error))?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    fn event(&mut self, stream: usize, bytes: &[u8]) -> Result<(), LogError> {
        let unreadable = |error: crate::FrameError| ArchiveError::damaged("event", error.to_string());
        let view = View::parse(bytes).map_err(|error| unreadable(error).in_file(&self.path))?;
        let kind = Kind::from_code(view.kind_code());
        let split = kind.map_or_else(Split::default, |kind| split::find(kind, view.layout(), view.body()));
        let rest = rest_of(view.body(), split);
        let texts = kind.map_or_else(Vec::new, |kind| texts_in(kind, &view, split));
        if !texts.is_empty() {
            let (left, texts) = self.take_out(&rest, texts)?;
            self.draft.push(stream, &view, split, Rest::Texts(&left, texts));
        } else if rest.len() >= BLOCK_BYTES {
            let block = self.block(&rest)?;
            self.draft.push(stream, &view, split, Rest::Block(block));
        } else {
            self.draft.push(stream, &view, split, Rest::Here(&rest));
        }
        self.footer.events += 1;
        self.footer.raw_bytes += bytes.len() as u64;
        if self.draft.raw_bytes >= SEGMENT_BYTES || self.draft.events >= SEGMENT_EVENTS {
            self.segment()?;
        }
        Ok(())
    }

    /// Puts texts of a rest into blocks, and gives what is left of it.
    fn take_out(&mut self, rest: &[u8], texts: Vec<Range<usize>>) -> Result<(Vec<u8>, Vec<Text>), LogError> {
        let (mut left, mut placed, mut at) = (Vec::new(), Vec::new(), 0);
        for text in texts {
            left.extend_from_slice(rest.get(at..text.start).unwrap_or_default());
            let block = self.block(rest.get(text.clone()).unwrap_or_default())?;
            placed.push(Text { at: text.start, block });
            at = text.end;
        }
        left.extend_from_slice(rest.get(at..).unwrap_or_default());
        Ok((left, placed))
    }

    /// Stores a long payload, unless the file has it already, and gives its number.
    fn block(&mut self, payload: &[u8]) -> Result<usize, LogError> {
        let digest = Digest::of(payload);
        if let Some(known) = self.blocks.get(&digest) {
            return Ok(*known);
        }
        let packed = columns::deflate(payload, columns::REST)
            .map_err(|error| LogError::io("compress a part of the archive", &self.path, error))?;
        let number = self.footer.blocks.len();
        let entry = BlockEntry {
            offset: self.at,
            len: u32::try_from(packed.len()).unwrap_or(u32::MAX),
            raw: u32::try_from(payload.len()).unwrap_or(u32::MAX),
            crc: crc32fast::hash(&packed),
        };
        self.put(&packed)?;
        self.footer.blocks.push(entry);
        self.blocks.insert(digest, number);
        Ok(number)
    }

    fn segment(&mut self) -> Result<(), LogError> {
        let draft = std::mem::take(&mut self.draft);
        if draft.events == 0 {
            return Ok(());
        }
        let bytes =
            draft.encode().map_err(|error| LogError::io("compress a part of the archive", &self.path, error))?;
        let entry = SegmentEntry {
            offset: self.at,
            len: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            crc: crc32fast::hash(&bytes),
            first_piece: u32::try_from(self.footer.pieces.len()).unwrap_or(u32::MAX),
            pieces: u32::try_from(draft.pieces.len()).unwrap_or(u32::MAX),
        };
        self.footer.pieces.extend(draft.pieces);
        self.put(&bytes)?;
        self.footer.segments.push(entry);
        Ok(())
    }

    fn finish(mut self) -> Result<ArchiveSummary, LogError> {
        self.segment()?;
        if self.footer.events == 0 {
            return Err(missing(self.footer.run));
        }
        let footer = self.footer.encode();
        self.put(&footer)?;
        self.put(&(footer.len() as u64).to_le_bytes())?;
        self.put(&crc32fast::hash(&footer).to_le_bytes())?;
        let digest = Digest(*self.hasher.finalize().as_bytes());
        self.put_unhashed(&digest.0)?;
        self.put_unhashed(&TAIL_MAGIC)?;
        self.file.sync().map_err(|error| LogError::io("sync the archive", &self.path, error))?;
        Ok(ArchiveSummary {
            run: self.footer.run,
            streams: self.footer.streams.len() as u64,
            events: self.footer.events,
            raw_bytes: self.footer.raw_bytes,
            bytes: self.at,
            digest,
        })
    }
}
