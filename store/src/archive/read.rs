//! Reading an archive.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::check;
use super::columns::{Row, inflate};
use super::error::ArchiveError;
use super::footer::{self, Footer, Place, Tail, kind_bit};
use super::segment::{Segment, Stored};
use super::{ArchiveSummary, HEAD_LEN, TAIL_LEN};
use crate::error::LogError;
use crate::event::Kind;
use crate::files::{Files, RealFiles, read_full};
use crate::frame::Frame;
use crate::id::{RunId, Seq, Stream};
use crate::report::Finding;
use crate::source::{EventSource, Filter, FrameIter, Head, Header, HeaderIter};

/// Decoded segments that are kept.
const KEPT: usize = 3;

/// A sealed archive open for reading.
///
/// Opening reads head and footer. A scan decodes one segment (1 MiB of frames, or one event if that is longer) after the
/// other and keeps the last three, so memory does not grow with the file but for its footer: 96 bytes for each stream, and
/// 56 for each part of one in a segment.
///
/// Reading an event checks the checksum of its segment, and that the hash chain through the segment ends where the
/// footer says. [`verify_archive`](super::verify_archive) checks the rest.
#[derive(Debug)]
pub struct ArchiveReader {
    files: Arc<dyn Files>,
    path: PathBuf,
    len: u64,
    tail: Tail,
    footer: Footer,
    kept: Mutex<VecDeque<(usize, Arc<Segment>)>>,
}

impl ArchiveReader {
    /// Opens an archive.
    ///
    /// # Errors
    /// [`LogError::Archive`] if it is none, is cut, has a damaged footer or was written by a later program, and
    /// [`LogError::Io`].
    pub fn open(path: &Path) -> Result<ArchiveReader, LogError> {
        Self::open_with(Arc::new(RealFiles), path)
    }

    /// As [`ArchiveReader::open`], with another file layer.
    ///
    /// # Errors
    /// As [`ArchiveReader::open`].
    pub fn open_with(files: Arc<dyn Files>, path: &Path) -> Result<ArchiveReader, LogError> {
        let failed = |error| LogError::io("read the archive", path, error);
        let file = files.read(path).map_err(failed)?;
        let len = file.len().map_err(failed)?;
        let read = |at: u64, count: usize| {
            let mut bytes = vec![0; count];
            let read = read_full(file.as_ref(), &mut bytes, at).map_err(failed)?;
            bytes.truncate(read);
            Ok::<_, LogError>(bytes)
        };
        let wrong = |error: ArchiveError| error.in_file(path);
        footer::check_head(&read(0, HEAD_LEN)?).map_err(wrong)?;
        let short = || wrong(ArchiveError::NotOne { reason: "it is too short" });
        let tail_at = len.checked_sub(TAIL_LEN as u64).ok_or_else(short)?;
        let tail = Tail::read(&read(tail_at, TAIL_LEN)?).map_err(wrong)?;
        let start = footer::footer_start(len, tail.footer_len)
            .ok_or_else(|| wrong(ArchiveError::damaged("end", "its footer's length is impossible")))?;
        let bytes = read(start, usize::try_from(tail.footer_len).map_err(|_| short())?)?;
        if crc32fast::hash(&bytes) != tail.footer_crc {
            return Err(wrong(ArchiveError::damaged("footer", "its checksum is wrong")));
        }
        let footer = Footer::decode(&bytes, start).map_err(wrong)?;
        let path = path.to_owned();
        Ok(ArchiveReader { files, path, len, tail, footer, kept: Mutex::default() })
    }

    /// The run that it holds.
    #[must_use]
    pub fn run(&self) -> RunId {
        self.footer.run
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Counts, sizes and the digest that the file states of itself.
    #[must_use]
    pub fn summary(&self) -> ArchiveSummary {
        ArchiveSummary {
            run: self.footer.run,
            streams: self.footer.streams.len() as u64,
            events: self.footer.events,
            raw_bytes: self.footer.raw_bytes,
            bytes: self.len,
            digest: self.tail.digest,
        }
    }

    /// Bytes before the stored digest.
    pub(super) fn digested_len(&self) -> u64 {
        self.len - (TAIL_LEN as u64 - 12)
    }

    pub(super) fn read(&self, at: u64, count: usize) -> Result<Vec<u8>, LogError> {
        let mut bytes = vec![0; count];
        // Not kept open: a log may have more archives than a process may have files.
        let read = self.files.read(&self.path).and_then(|file| read_full(file.as_ref(), &mut bytes, at));
        let read = read.map_err(|error| LogError::io("read the archive", &self.path, error))?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// The file's name, for reports.
    pub(crate) fn shown(&self) -> String {
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let folder = self.path.parent().and_then(name);
        let file = name(&self.path).unwrap_or_default();
        match folder.as_deref() {
            Some(crate::sealed::FOLDER) => format!("{}/{file}", crate::sealed::FOLDER),
            _ => self.path.display().to_string(),
        }
    }

    fn stored(&self, offset: u64, len: u32, crc: u32) -> Result<Result<Vec<u8>, String>, LogError> {
        let bytes = self.read(offset, len as usize)?;
        Ok(if crc32fast::hash(&bytes) == crc { Ok(bytes) } else { Err("its checksum is wrong".to_owned()) })
    }

    /// A segment's frames; the inner error is damage.
    fn segment(&self, number: usize) -> Result<Result<Arc<Segment>, String>, LogError> {
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, segment)) = kept().iter().find(|(kept, _)| *kept == number) {
            return Ok(Ok(Arc::clone(segment)));
        }
        let Some(entry) = self.footer.segments.get(number) else { return Ok(Err("it is not there".to_owned())) };
        let bytes = match self.stored(entry.offset, entry.len, entry.crc)? {
            Ok(bytes) => bytes,
            Err(reason) => return Ok(Err(reason)),
        };
        let stream = |number: usize| self.footer.streams.get(number).map(|(stream, _)| *stream);
        let trouble = Mutex::new(None);
        let block = |number: usize| match self.block(number) {
            Ok(block) => block,
            Err(error) => {
                *trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                Err("it could not be read".to_owned())
            }
        };
        let first = entry.first_piece as usize;
        let pieces: Vec<_> = (first..)
            .zip(self.footer.pieces_of(entry))
            .map(|(at, piece)| (*piece, self.footer.after(at).unwrap_or(piece.previous)))
            .collect();
        let decoded = match Stored::parse(&bytes) {
            Some(stored) => stored.decode(&pieces, stream, block),
            None => Err("its columns contradict one another".to_owned()),
        };
        if let Some(error) = trouble.into_inner().unwrap_or_else(PoisonError::into_inner) {
            return Err(error);
        }
        Ok(decoded.map(|segment| {
            let segment = Arc::new(segment);
            let mut kept = kept();
            kept.truncate(KEPT - 1);
            kept.push_front((number, Arc::clone(&segment)));
            segment
        }))
    }

    fn block(&self, number: usize) -> Result<Result<Vec<u8>, String>, LogError> {
        let Some(entry) = self.footer.blocks.get(number) else {
            return Ok(Err("it names a block that is not there".to_owned()));
        };
        Ok(match self.stored(entry.offset, entry.len, entry.crc)? {
            Ok(bytes) => inflate(&bytes, entry.raw as usize).ok_or_else(|| "one of its blocks is damaged".to_owned()),
            Err(_) => Err("the checksum of one of its blocks is wrong".to_owned()),
        })
    }

    /// A segment's header fields, without its bodies.
    fn rows(&self, number: usize) -> Result<Result<Vec<Row>, String>, LogError> {
        let Some(entry) = self.footer.segments.get(number) else { return Ok(Err("it is not there".to_owned())) };
        let count: u64 = self.footer.pieces_of(entry).iter().map(|piece| u64::from(piece.count)).sum();
        Ok(self.stored(entry.offset, entry.len, entry.crc)?.and_then(|bytes| {
            let rows = Stored::parse(&bytes).and_then(|stored| stored.rows(usize::try_from(count).ok()?));
            rows.ok_or_else(|| "its columns contradict one another".to_owned())
        }))
    }

    fn damaged(&self, stream: Stream, seq: Seq, place: &Place, reason: &str) -> LogError {
        let offset = self.footer.segments.get(place.segment).map_or(0, |segment| segment.offset);
        let lost = place.piece.end().saturating_sub(seq.0);
        let more = if lost > 1 { format!("{lost} events from here on are in a damaged part: ") } else { String::new() };
        let place = format!("{} at byte {offset}", self.shown());
        LogError::Damaged { stream, seq, place, reason: format!("{more}{reason}") }
    }

    /// The places of a stream's pieces among all.
    fn pieces(&self, stream: Stream) -> Range<usize> {
        self.footer.find(stream).map_or(0..0, |stream| self.footer.pieces_with(stream))
    }

    /// Everything that is wrong with the archive, by a full check of it.
    pub(crate) fn check(&self) -> Result<Vec<Finding>, LogError> {
        check::check(self)
    }
}

/// Where a scan stands among the pieces of a stream.
struct Position<'a> {
    archive: &'a ArchiveReader,
    stream: Stream,
    /// The pieces that are left, the present one first.
    pieces: Range<usize>,
    present: Option<Place>,
    next: u64,
}

impl<'a> Position<'a> {
    fn new(archive: &'a ArchiveReader, stream: Stream, from: Seq) -> Self {
        let pieces = archive.pieces(stream);
        let of_stream = archive.footer.pieces.get(pieces.clone()).unwrap_or_default();
        let start = pieces.start + of_stream.partition_point(|piece| piece.end() <= from.0);
        let (pieces, present) = (start..pieces.end, None);
        let mut position = Position { archive, stream, pieces, present, next: from.0 };
        position.look();
        position
    }

    fn look(&mut self) {
        self.present = if self.pieces.is_empty() { None } else { self.archive.footer.place(self.pieces.start) };
    }

    /// The piece that holds the next event.
    fn place(&mut self) -> Option<Place> {
        let place = self.present?;
        if place.piece.holds(Seq(self.next)) {
            return Some(place);
        }
        self.skip();
        self.present
    }

    /// Passes over the rest of the present piece.
    fn skip(&mut self) {
        if let Some(place) = self.present {
            self.next = place.piece.end();
            self.pieces.next();
            self.look();
        }
    }

    fn index(&self, place: &Place) -> usize {
        usize::try_from(place.before + (self.next - place.piece.first)).unwrap_or(usize::MAX)
    }

    fn fail(&mut self, place: &Place, reason: &str) -> LogError {
        let error = self.archive.damaged(self.stream, Seq(self.next), place, reason);
        self.skip();
        error
    }
}

struct Frames<'a> {
    at: Position<'a>,
    filter: Filter,
    /// The segment being read.
    segment: Option<(usize, Arc<Segment>)>,
}

impl Frames<'_> {
    fn load(&mut self, place: &Place) -> Result<Arc<Segment>, LogError> {
        if let Some((number, segment)) = &self.segment
            && *number == place.segment
        {
            return Ok(Arc::clone(segment));
        }
        self.segment = None;
        match self.at.archive.segment(place.segment) {
            Ok(Ok(segment)) => {
                self.segment = Some((place.segment, Arc::clone(&segment)));
                Ok(segment)
            }
            Ok(Err(reason)) => Err(self.at.fail(place, &reason)),
            Err(error) => {
                self.at.skip();
                Err(error)
            }
        }
    }
}

impl Iterator for Frames<'_> {
    type Item = Result<Frame, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let place = self.at.place()?;
            let wanted = self
                .filter
                .kinds
                .as_ref()
                .is_none_or(|kinds| kinds.iter().any(|kind| place.piece.kinds & kind_bit(kind.code()) != 0));
            if !wanted {
                self.at.skip();
                continue;
            }
            let segment = match self.load(&place) {
                Ok(segment) => segment,
                Err(error) => return Some(Err(error)),
            };
            let index = self.at.index(&place);
            let admitted = segment.rows.get(index).and_then(|row| Kind::from_code(row.kind));
            if !admitted.is_some_and(|kind| self.filter.admits(kind)) {
                self.at.next += 1;
                continue;
            }
            let frame = segment.frame(index).and_then(|bytes| Frame::parse(bytes.to_vec()).ok());
            return Some(match frame {
                Some(frame) => {
                    self.at.next += 1;
                    if !self.filter.admits_frame(&frame) {
                        continue;
                    }
                    Ok(frame)
                }
                None => Err(self.at.fail(&place, "its columns contradict one another")),
            });
        }
    }
}

struct Headers<'a> {
    at: Position<'a>,
    rows: Option<(usize, Vec<Row>)>,
}

impl Headers<'_> {
    fn load(&mut self, place: &Place) -> Result<(), LogError> {
        if self.rows.as_ref().is_some_and(|(number, _)| *number == place.segment) {
            return Ok(());
        }
        self.rows = None;
        match self.at.archive.rows(place.segment) {
            Ok(Ok(rows)) => {
                self.rows = Some((place.segment, rows));
                Ok(())
            }
            Ok(Err(reason)) => Err(self.at.fail(place, &reason)),
            Err(error) => {
                self.at.skip();
                Err(error)
            }
        }
    }
}

impl Iterator for Headers<'_> {
    type Item = Result<Header, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        let place = self.at.place()?;
        if let Err(error) = self.load(&place) {
            return Some(Err(error));
        }
        let row = self.rows.as_ref().and_then(|(_, rows)| rows.get(self.at.index(&place)));
        let header = row.and_then(|row| {
            let (stream, seq) = (self.at.stream, Seq(self.at.next));
            let kind = Kind::from_code(row.kind)?;
            Some(Header { stream, seq, at_us: row.at_us, kind, body_len: u32::try_from(row.body_len).ok()? })
        });
        Some(match header {
            Some(header) => {
                self.at.next += 1;
                Ok(header)
            }
            None => Err(self.at.fail(&place, "its columns contradict one another")),
        })
    }
}

impl EventSource for ArchiveReader {
    fn runs(&self) -> Vec<RunId> {
        vec![self.footer.run]
    }

    fn streams(&self, run: RunId) -> Vec<Stream> {
        if run == self.footer.run {
            self.footer.streams.iter().map(|(stream, _)| *stream).collect()
        } else {
            Vec::new()
        }
    }

    fn head(&self, stream: Stream) -> Option<Head> {
        self.footer.streams.get(self.footer.find(stream)?).map(|(_, head)| *head)
    }

    fn findings(&self) -> Vec<Finding> {
        Vec::new()
    }

    fn headers(&self, stream: Stream, from: Seq) -> HeaderIter<'_> {
        Box::new(Headers { at: Position::new(self, stream, from), rows: None })
    }

    fn frames(&self, stream: Stream, from: Seq, filter: &Filter) -> FrameIter<'_> {
        Box::new(Frames { at: Position::new(self, stream, from), filter: filter.clone(), segment: None })
    }
}
