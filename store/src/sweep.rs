//! Takes the events of sealed runs out of the journal.
//!
//! A file is replaced by one without them, under the same number, so that a crash leaves either. `MANIFEST` lists the
//! run as sealed before, and its mark then lies at the beginning of a later file, so what is left of the run's events
//! is passed over by every pass, whether it is all, some or none of them.

use std::collections::BTreeSet;
use std::path::Path;

use crate::error::LogError;
use crate::files::{Files, ReadFile, read_full};
use crate::frame::{self, HEADER_LEN, View};
use crate::id::RunId;
use crate::journal::{self, Journal};

/// Bytes that are gathered before they are written.
const PART: usize = 1 << 20;

/// Rewrites the journal files `numbers` without the events of `sealed` and returns how many bytes that gave back.
/// Files that hold anything but whole events stay as they are.
pub(crate) fn sweep(
    files: &dyn Files,
    dir: &Path,
    numbers: &BTreeSet<u32>,
    sealed: &BTreeSet<RunId>,
) -> Result<u64, LogError> {
    let mut freed = 0;
    for number in numbers {
        freed += sweep_file(files, dir, *number, sealed)?;
    }
    Ok(freed)
}

fn sweep_file(files: &dyn Files, dir: &Path, number: u32, sealed: &BTreeSet<RunId>) -> Result<u64, LogError> {
    let folder = dir.join(journal::FOLDER);
    let path = folder.join(journal::file_name(number));
    let new = folder.join(format!("{}.new", journal::file_name(number)));
    let failed = |error| LogError::io("take sealed events out of the journal file", &path, error);
    let old = files.read(&path).map_err(failed)?;
    let len = old.len().map_err(failed)?;
    let mut out = files.open(&new).map_err(failed)?;
    out.truncate(0).map_err(failed)?;
    let (mut at, mut kept, mut part) = (0, 0u64, Vec::new());
    while at < len {
        let Some(bytes) = frame_at(old.as_ref(), at).map_err(failed)? else {
            tracing::warn!(file = Journal::shown(number), at, "a damaged journal file is not rewritten");
            out.truncate(0).map_err(failed)?;
            return Ok(0);
        };
        at += bytes.len() as u64;
        let Ok(view) = View::parse(&bytes) else { continue };
        if !sealed.contains(&view.stream().run()) {
            kept += bytes.len() as u64;
            part.extend_from_slice(&bytes);
        }
        if part.len() >= PART {
            out.append(&part).map_err(failed)?;
            part.clear();
        }
    }
    out.append(&part).and_then(|()| out.sync()).map_err(failed)?;
    files.rename(&new, &path).and_then(|()| files.sync_dir(&folder)).map_err(failed)?;
    Ok(len - kept)
}

/// The whole, intact frame at a place; `None` if there is none.
fn frame_at(file: &dyn ReadFile, at: u64) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; HEADER_LEN];
    let read = read_full(file, &mut bytes, at)?;
    bytes.truncate(read);
    let Some(need) = frame::frame_len(&bytes).ok().and_then(|need| usize::try_from(need).ok()) else {
        return Ok(None);
    };
    // The file's length bounds what a damaged length can ask for.
    if u64::try_from(need).unwrap_or(u64::MAX) > file.len()?.saturating_sub(at) {
        return Ok(None);
    }
    bytes.resize(need, 0);
    let read = read_full(file, &mut bytes, at)?;
    bytes.truncate(read);
    Ok(View::parse(&bytes).is_ok().then_some(bytes))
}
