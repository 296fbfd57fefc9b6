//! A session as bytes: a marker, the length and text of a JSON head, the session before the running cell, and the
//! session itself.

use serde::{Deserialize, Serialize};

use super::ReplError;
use super::machine::Cell;

const MARKER: &[u8] = b"rao-repl\x01";

/// What stands beside the interpreter's own bytes.
#[derive(Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) identity: String,
    pub(super) seed: u64,
    pub(super) fresh: bool,
    pub(super) cell: Cell,
}

/// A snapshot taken apart.
pub(super) struct Parts {
    pub(super) head: Head,
    /// The session before the running cell, unless none is running or it was a fresh one.
    pub(super) before: Option<Vec<u8>>,
    pub(super) state: Vec<u8>,
}

pub(super) fn write(parts: &Parts) -> Result<Vec<u8>, ReplError> {
    let head = serde_json::to_vec(&parts.head).map_err(|error| ReplError::snapshot(error.to_string()))?;
    let mut out = MARKER.to_vec();
    for part in [&head, parts.before.as_ref().unwrap_or(&Vec::new())] {
        out.extend((part.len() as u64).to_le_bytes());
        out.extend(part);
    }
    out.extend(&parts.state);
    Ok(out)
}

pub(super) fn read(identity: &str, bytes: &[u8]) -> Result<Parts, ReplError> {
    let rest = bytes.strip_prefix(MARKER).ok_or_else(|| ReplError::snapshot("these bytes are none"))?;
    let (head, rest) = part(rest)?;
    let (before, state) = part(rest)?;
    let head: Head = serde_json::from_slice(head).map_err(|error| ReplError::snapshot(error.to_string()))?;
    if head.identity != identity {
        return Err(ReplError::snapshot(format!("`{}` wrote it, and this is `{identity}`", head.identity)));
    }
    Ok(Parts { head, before: (!before.is_empty()).then(|| before.to_vec()), state: state.to_vec() })
}

fn part(bytes: &[u8]) -> Result<(&[u8], &[u8]), ReplError> {
    let cut = || ReplError::snapshot("it is cut short");
    let (len, rest) = bytes.split_first_chunk().ok_or_else(cut)?;
    let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| cut())?;
    rest.split_at_checked(len).ok_or_else(cut)
}
