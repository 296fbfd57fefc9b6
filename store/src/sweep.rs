//! Takes the events of sealed and dropped runs out of the journal, and long texts that no other event has in it.
//!
//! A file is replaced by one without them, under the same number, so that a crash leaves either. `MANIFEST` lists the
//! run as sealed or dropped before, and its mark then lies at the beginning of a later file, so what is left of the run's
//! events is passed over by every pass, whether it is all, some or none of them.

use std::collections::BTreeSet;
use std::path::Path;

use crate::error::LogError;
use crate::files::{Files, ReadFile, read_full};
use crate::frame::{self, Form, HEADER_LEN, View};
use crate::id::{Digest, RunId};
use crate::journal::{self, Journal};

/// Bytes that are gathered before they are written.
const PART: usize = 1 << 20;

/// What a sweep leaves.
pub(crate) struct Sweep<'a> {
    /// Runs whose events go.
    pub(crate) gone: &'a BTreeSet<RunId>,
    /// Long texts that stay.
    pub(crate) payloads: &'a BTreeSet<Digest>,
}

impl Sweep<'_> {
    fn keeps(&self, view: &View<'_>) -> bool {
        match view.form() {
            Form::Payload => self.payloads.contains(&view.previous()),
            Form::Whole | Form::Short | Form::Prefix => !self.gone.contains(&view.stream().run()),
        }
    }
}

/// Rewrites the journal files `numbers` and returns how many bytes that gave back. Files that hold anything but whole
/// frames stay as they are.
pub(crate) fn sweep(files: &dyn Files, dir: &Path, numbers: &BTreeSet<u32>, what: &Sweep<'_>) -> Result<u64, LogError> {
    let mut freed = 0;
    for number in numbers {
        freed += sweep_file(files, dir, *number, what)?;
    }
    Ok(freed)
}

fn sweep_file(files: &dyn Files, dir: &Path, number: u32, what: &Sweep<'_>) -> Result<u64, LogError> {
    let folder = dir.join(journal::FOLDER);
    let path = folder.join(journal::file_name(number));
    let new = folder.join(format!("{}.new", journal::file_name(number)));
    let failed =
        |error| LogError::io("take the events of sealed and dropped runs out of the journal file", &path, error);
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
        if what.keeps(&view) {
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
