//! The journal's bytes as a pass reads them: file by file, a window at a time, and on to the next intact frame behind damage.

use crate::error::LogError;
use crate::files::{ReadFile, read_full};
use crate::frame::{self, FrameError, HEADER_LEN, View};
use crate::journal::Journal;
use crate::manifest::Mark;

/// How much of a file is read at a time.
const WINDOW: usize = 1 << 18;

/// What comes after a damaged place.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    pub(super) intact: Option<Mark>,
    pub(super) commit: bool,
}

/// The journal's files as the pass found them.
pub(super) struct Windows<'a> {
    pub(super) journal: &'a Journal,
    pub(super) numbers: Vec<u32>,
}

impl Windows<'_> {
    pub(super) fn open(&self, number: u32) -> Result<Option<Window>, LogError> {
        if !self.numbers.contains(&number) {
            return Ok(None);
        }
        Window::open(self.journal, number).map(Some)
    }

    pub(super) fn after(&self, number: u32) -> Option<u32> {
        self.numbers.iter().copied().find(|other| *other > number)
    }

    /// Looks beyond the damaged frame at `from` for the next intact one, and for the beginning of a later commit.
    pub(super) fn look_ahead(&self, from: Mark, window: &mut Window) -> Result<Ahead, LogError> {
        let mut ahead = Ahead::default();
        let Some(mut at) = window.resync(from.offset)? else { return self.look_in_later(from.file, ahead) };
        ahead.intact = Some(Mark { file: from.file, offset: at });
        while at < window.len {
            let next = match window.frame(at)? {
                Ok(view) if view.begins_commit() => {
                    ahead.commit = true;
                    return Ok(ahead);
                }
                Ok(view) => Some(at + view.bytes().len() as u64),
                Err(_) => window.resync(at)?,
            };
            let Some(next) = next else { break };
            at = next;
        }
        self.look_in_later(from.file, ahead)
    }

    /// Every file begins with the beginning of a commit.
    fn look_in_later(&self, file: u32, mut ahead: Ahead) -> Result<Ahead, LogError> {
        let mut at = file;
        while let Some(number) = self.after(at) {
            let mut window = Window::open(self.journal, number)?;
            ahead.commit |= window.len > 0 && (window.frame(0)?.is_ok() || window.resync(0)?.is_some());
            at = number;
        }
        Ok(ahead)
    }
}

/// A file read piece by piece.
pub(super) struct Window {
    file: std::sync::Arc<dyn ReadFile>,
    path: std::path::PathBuf,
    /// The file's length when it was opened; what is appended later is not looked at.
    pub(super) len: u64,
    start: u64,
    buffer: Vec<u8>,
}

impl Window {
    fn open(journal: &Journal, number: u32) -> Result<Self, LogError> {
        let path = journal.path(number);
        let file = journal.get(number)?;
        let len = file.len().map_err(|error| LogError::io("read the journal file", &path, error))?;
        Ok(Window { file, path, len, start: 0, buffer: Vec::new() })
    }

    /// `want` bytes from `offset` on, or as many as there are.
    pub(super) fn bytes(&mut self, offset: u64, want: usize) -> Result<&[u8], LogError> {
        let there = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let want = want.min(there);
        let held = offset.checked_sub(self.start).and_then(|from| usize::try_from(from).ok());
        let held = held.filter(|from| from.checked_add(want).is_some_and(|end| end <= self.buffer.len()));
        let from = match held {
            Some(from) => from,
            None => {
                self.buffer.resize(want.max(WINDOW).min(there), 0);
                let read = read_full(self.file.as_ref(), &mut self.buffer, offset);
                let read = read.map_err(|error| LogError::io("read the journal file", &self.path, error))?;
                self.buffer.truncate(read);
                self.start = offset;
                0
            }
        };
        let end = (from + want).min(self.buffer.len());
        Ok(self.buffer.get(from..end).unwrap_or_default())
    }

    /// The frame at `offset`, or why there is none.
    pub(super) fn frame(&mut self, offset: u64) -> Result<Result<View<'_>, FrameError>, LogError> {
        let need = match frame::frame_len(self.bytes(offset, HEADER_LEN)?) {
            Ok(need) => need,
            Err(error) => return Ok(Err(error)),
        };
        let have = self.len - offset.min(self.len);
        if need > have {
            return Ok(Err(FrameError::Short { have, need }));
        }
        let bytes = self.bytes(offset, usize::try_from(need).unwrap_or(usize::MAX))?;
        Ok(View::parse(bytes))
    }

    /// Where the next intact frame behind a damaged one begins.
    fn resync(&mut self, damaged: u64) -> Result<Option<u64>, LogError> {
        // If only the body is damaged, the header still says where the frame ends. That also passes over whatever
        // looks like a frame inside a body.
        if let Ok(length) = frame::frame_len(self.bytes(damaged, HEADER_LEN)?) {
            let next = damaged + length;
            if next < self.len && self.frame(next)?.is_ok() {
                return Ok(Some(next));
            }
        }
        let mut at = damaged + 1;
        while at < self.len {
            let bytes = self.bytes(at, WINDOW)?;
            let searched = bytes.len() as u64;
            let hit = bytes.windows(frame::MAGIC.len()).position(|four| four == frame::MAGIC);
            match hit {
                Some(hit) => {
                    at += hit as u64;
                    if self.frame(at)?.is_ok() {
                        return Ok(Some(at));
                    }
                    at += 1;
                }
                // The magic bytes may lie across the end of the piece.
                None if searched > frame::MAGIC.len() as u64 => at += searched - (frame::MAGIC.len() as u64 - 1),
                None => break,
            }
        }
        Ok(None)
    }
}
