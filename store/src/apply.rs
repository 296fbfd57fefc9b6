//! Behind the committer: committed events on their way into the ordered store and the manifest.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use crossbeam::channel::Receiver;

use crate::commit::Shared;
use crate::error::LogError;
use crate::frame::StreamKey;
use crate::id::Stream;
use crate::index::Entry;
use crate::manifest::Mark;
use crate::source::Head;

/// What the committer tells.
#[derive(Debug)]
pub(crate) enum Applied {
    /// A commit is written.
    Commit(Commit),
    /// Every commit told of before is durable.
    Synced,
}

/// A commit on its way to the ordered store.
#[derive(Debug)]
pub(crate) struct Commit {
    pub(crate) bytes: Vec<u8>,
    pub(crate) start: u64,
    pub(crate) events: Vec<(Stream, Entry)>,
    pub(crate) heads: Vec<(StreamKey, Head)>,
    pub(crate) end: Mark,
}

/// The applier thread.
pub(crate) struct Applier {
    pub(crate) shared: Arc<Shared>,
    pub(crate) inbox: Receiver<Applied>,
    /// Stream ends as far as they are durable.
    pub(crate) heads: BTreeMap<StreamKey, Head>,
    /// The journal's end as far as it is durable.
    pub(crate) end: Mark,
    pub(crate) checkpoint_bytes: u64,
    /// Durable bytes that the manifest does not count.
    pub(crate) unsaved: u64,
    /// What is applied and not yet durable.
    pub(crate) ahead: Ahead,
}

#[derive(Debug, Default)]
pub(crate) struct Ahead {
    heads: BTreeMap<StreamKey, Head>,
    end: Option<Mark>,
    bytes: u64,
}

impl Applier {
    /// Runs until the committer has ended, and then brings manifest and ordered store to the journal's durable state.
    pub(crate) fn run(mut self) -> Result<(), LogError> {
        while let Ok(applied) = self.inbox.recv() {
            match applied {
                Applied::Commit(commit) => {
                    self.apply(&commit);
                    self.ahead.bytes += commit.bytes.len() as u64;
                    self.ahead.end = Some(commit.end);
                    self.ahead.heads.extend(commit.heads);
                    self.shared.progress.advance();
                }
                Applied::Synced => self.settle(),
            }
        }
        let saved = if self.unsaved > 0 { self.checkpoint() } else { Ok(()) };
        self.shared.progress.release();
        saved
    }

    /// What was applied is durable: the manifest may count it, and does now and then.
    fn settle(&mut self) {
        let ahead = std::mem::take(&mut self.ahead);
        let Some(end) = ahead.end else { return };
        let new_file = end.file != self.end.file;
        self.end = end;
        self.heads.extend(ahead.heads);
        self.unsaved += ahead.bytes;
        if (new_file || self.unsaved >= self.checkpoint_bytes)
            && let Err(error) = self.checkpoint()
        {
            // The next one may succeed, and closing reports it if it does not.
            tracing::warn!(%error, "the manifest could not be written");
        }
    }

    fn apply(&self, commit: &Commit) {
        let failed = match &self.shared.ordered.read().unwrap_or_else(PoisonError::into_inner).sled {
            Some(store) => store.apply(&commit.events, |entry| commit.frame(entry)).err(),
            None => None,
        };
        let ordered = &mut *self.shared.ordered.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = failed {
            // A full disk, say. The journal has everything: the next opening compares the two and repairs the store.
            tracing::warn!(reason, "the ordered store failed; reading from the journal until the log is opened again");
            ordered.sled = None;
        }
        commit.events.iter().for_each(|(stream, entry)| ordered.index.push(*stream, entry));
    }

    /// Writes down what must be there from now on. The ordered store is flushed first: it is expected to hold all that
    /// the manifest counts.
    fn checkpoint(&mut self) -> Result<(), LogError> {
        if let Some(store) = &self.shared.ordered.read().unwrap_or_else(PoisonError::into_inner).sled
            && let Err(reason) = store.flush()
        {
            return Err(LogError::Ordered { dir: self.shared.dir.clone(), reason });
        }
        let manifest = self.shared.sealed.manifest(self.end, &self.heads);
        manifest.write(self.shared.files.as_ref(), &self.shared.dir)?;
        self.unsaved = 0;
        Ok(())
    }
}

impl Commit {
    /// The bytes of one of the commit's frames.
    fn frame(&self, entry: &Entry) -> Option<&[u8]> {
        let from = usize::try_from(entry.place.offset.checked_sub(self.start)?).ok()?;
        self.bytes.get(from..from.checked_add(entry.place.len as usize)?)
    }
}
