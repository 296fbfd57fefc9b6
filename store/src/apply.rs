//! Behind the committer: committed events on their way into the ordered store and the manifest.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use crossbeam::channel::Receiver;

use crate::commit::Shared;
use crate::error::LogError;
use crate::frame::StreamKey;
use crate::id::Stream;
use crate::index::{Entry, Index};
use crate::manifest::Mark;
use crate::ordered::Ordered;
use crate::scan::Scan;
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
        let failed = match &*self.shared.ordered.read().unwrap_or_else(PoisonError::into_inner) {
            Ordered::Sled(store) => store.apply(&commit.events, |entry| commit.frame(entry)).err(),
            Ordered::Memory(_) => None,
        };
        if let Some(reason) = failed {
            self.give_up_sled(&reason, commit);
            return;
        }
        if let Ordered::Memory(index) = &mut *self.shared.ordered.write().unwrap_or_else(PoisonError::into_inner) {
            commit.events.iter().for_each(|(stream, entry)| index.push(*stream, *entry));
        }
    }

    /// The ordered store failed (a full disk, say). The journal has everything: read from it until the log is opened
    /// again, which compares the two and repairs the store.
    fn give_up_sled(&self, reason: &str, commit: &Commit) {
        tracing::warn!(reason, "the ordered store failed; reading from the journal until the log is opened again");
        let mut scan = Scan::new(None);
        let scanned = scan.advance(&self.shared.journal, &self.shared.dir);
        let index = match scanned {
            Ok(_) => scan.index.before(commit.end),
            Err(_) => Index::default(),
        };
        *self.shared.ordered.write().unwrap_or_else(PoisonError::into_inner) = Ordered::Memory(index);
    }

    /// Writes down what must be there from now on. The ordered store is flushed first: it is expected to hold all that
    /// the manifest counts.
    fn checkpoint(&mut self) -> Result<(), LogError> {
        if let Ordered::Sled(store) = &*self.shared.ordered.read().unwrap_or_else(PoisonError::into_inner)
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
