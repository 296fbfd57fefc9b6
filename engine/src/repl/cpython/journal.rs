//! What a session ran and was answered: enough to make it again, because CPython has no snapshots.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::super::ReplError;
use super::run::Run;

const MARKER: &[u8] = b"rao-cpython\x01";

/// One stop of a cell: what the worker said there, and the host's reply.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Turn {
    /// Digest of the stop.
    pub(super) seen: String,
    /// The reply as it was sent.
    pub(super) reply: Json,
    /// The pending calls that it answered.
    pub(super) answered: Vec<u32>,
}

/// A cell that ended by itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Finished {
    pub(super) code: String,
    pub(super) turns: Vec<Turn>,
    /// Digest of its output and error.
    pub(super) end: String,
}

/// The running cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Current {
    pub(super) code: String,
    pub(super) turns: Vec<Turn>,
    pub(super) run: Run,
}

/// Everything that a session is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Journal {
    pub(super) identity: String,
    pub(super) seed: u64,
    pub(super) finished: Vec<Finished>,
    pub(super) current: Option<Current>,
}

impl Journal {
    pub(super) fn write(&self) -> Result<Vec<u8>, ReplError> {
        let mut out = MARKER.to_vec();
        serde_json::to_writer(&mut out, self).map_err(|error| ReplError::snapshot(error.to_string()))?;
        Ok(out)
    }

    pub(super) fn read(identity: &str, bytes: &[u8]) -> Result<Journal, ReplError> {
        let text = bytes.strip_prefix(MARKER).ok_or_else(|| ReplError::snapshot("these bytes are none"))?;
        let journal: Journal = serde_json::from_slice(text).map_err(|error| ReplError::snapshot(error.to_string()))?;
        if journal.identity != identity {
            return Err(ReplError::snapshot(format!("`{}` wrote it, and this is `{identity}`", journal.identity)));
        }
        Ok(journal)
    }
}
