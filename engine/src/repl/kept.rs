//! Sessions kept on the disk, so that a rollout that is entered again at a late step need not run all cells before it.
//!
//! A kept session is found by a digest of everything that it follows from: the engine, its settings, and the cells with
//! their answers. So one of another history is never taken. It is a shortcut and no more: what cannot be read is as if it
//! were not there, and whoever finds a difference behind a kept session is to look again without ([`ReplEngine::plain`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rao_store::Digest;

use super::{CellLimits, Function, Repl, ReplEngine, ReplError};

/// What a folder of kept sessions may take, in bytes. With more, it is emptied and begun again.
const MOST_BYTES: u64 = 256 << 20;

const ENDING: &str = "session";

/// A folder of kept sessions: one file each, named by the digest of its history, that holds the digest of the rest of the
/// file (32 bytes) and then what [`Repl::snapshot`] wrote.
#[derive(Debug)]
pub struct KeptSessions {
    folder: PathBuf,
    taken: AtomicU64,
}

impl KeptSessions {
    /// Sessions in a folder, which is made when the first one is kept.
    #[must_use]
    pub fn new(folder: &Path) -> KeptSessions {
        KeptSessions { folder: folder.to_owned(), taken: AtomicU64::new(0) }
    }

    /// How many sessions were taken from the folder.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    fn path(&self, history: &Digest) -> PathBuf {
        self.folder.join(format!("{history}.{ENDING}"))
    }

    /// The snapshot of the session with this history; `None` if there is none that is whole.
    pub(crate) fn read(&self, history: &Digest) -> Option<Vec<u8>> {
        let bytes = fs::read(self.path(history)).ok()?;
        let (digest, snapshot) = bytes.split_first_chunk()?;
        (Digest::of(snapshot).0 == *digest).then(|| snapshot.to_vec())
    }

    /// Counts a session that was taken up.
    pub(crate) fn count(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// Keeps a session. A folder that cannot be written keeps none.
    pub(crate) fn write(&self, history: &Digest, snapshot: &[u8]) {
        let written = self.make_room(snapshot.len() as u64).and_then(|()| {
            let mut bytes = Digest::of(snapshot).0.to_vec();
            bytes.extend_from_slice(snapshot);
            // Another process may be writing the same.
            let partial = self.folder.join(format!("{history}.{}", std::process::id()));
            fs::write(&partial, bytes)?;
            fs::rename(&partial, self.path(history))
        });
        if let Err(error) = written {
            tracing::debug!(folder = %self.folder.display(), %error, "a session could not be kept");
        }
    }

    fn make_room(&self, wanted: u64) -> std::io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            files.push((entry.path(), entry.metadata()?.len()));
        }
        if files.iter().map(|(_, bytes)| bytes).sum::<u64>() + wanted <= MOST_BYTES {
            return Ok(());
        }
        let mut own = files.iter().filter(|(path, _)| path.extension().is_some_and(|ending| ending == ENDING));
        own.try_for_each(|(path, _)| fs::remove_file(path))
    }
}

/// An engine whose sessions are kept.
pub struct Keeping {
    engine: Arc<dyn ReplEngine>,
    sessions: Arc<KeptSessions>,
}

impl Keeping {
    /// Keeps the sessions of `engine`, if its snapshots hold them. (Those of CPython hold their cells, and run them.)
    #[must_use]
    pub fn of(engine: Arc<dyn ReplEngine>, sessions: &Arc<KeptSessions>) -> Arc<dyn ReplEngine> {
        if engine.snapshots_are_quick() { Arc::new(Keeping { engine, sessions: Arc::clone(sessions) }) } else { engine }
    }
}

impl ReplEngine for Keeping {
    fn identity(&self) -> String {
        self.engine.identity()
    }

    fn open(&self, functions: &[Function], limits: &CellLimits, seed: u64) -> Result<Box<dyn Repl>, ReplError> {
        self.engine.open(functions, limits, seed)
    }

    fn restore(&self, functions: &[Function], limits: &CellLimits, bytes: &[u8]) -> Result<Box<dyn Repl>, ReplError> {
        self.engine.restore(functions, limits, bytes)
    }

    fn snapshots_are_quick(&self) -> bool {
        true
    }

    fn kept(&self) -> Option<&KeptSessions> {
        Some(&self.sessions)
    }

    fn plain(&self) -> Option<Arc<dyn ReplEngine>> {
        Some(Arc::clone(&self.engine))
    }
}
