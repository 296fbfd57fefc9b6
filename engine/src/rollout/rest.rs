//! Sessions that hold much and have nothing to do.
//!
//! A node that waits for its children, or for its policy, cannot run, but its interpreter holds its text and whatever the
//! cells made of it. While the sessions of a rollout hold more together than [`AWAKE`], those nearest to the root rest: they
//! wait the longest. It decides memory and speed, not content.

use rao_store::NodePath;

use super::{Rollout, repl_error};
use crate::error::EngineError;

/// A session that holds less (in bytes) is left alone.
const HEAVY: usize = 256 << 10;

/// What the waiting sessions of one rollout may hold together, in bytes.
const AWAKE: usize = 4 << 20;

impl Rollout {
    /// A node's cell has stopped: lets sessions rest until the others hold little enough.
    pub(super) fn ease(&mut self, path: &NodePath) -> Result<(), EngineError> {
        let held = self.sessions.get(path).map_or(0, |session| session.repl.held());
        if held < HEAVY {
            self.heavy.remove(path);
            return Ok(());
        }
        self.heavy.insert(path.clone(), held);
        while self.heavy.values().sum::<usize>() > AWAKE {
            let Some((path, _)) = self.heavy.pop_first() else { return Ok(()) };
            if let Some(session) = self.sessions.get_mut(&path) {
                session.repl.rest().map_err(|source| repl_error(&path, source))?;
            }
        }
        Ok(())
    }
}
