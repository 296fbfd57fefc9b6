//! Runs that were dropped: what `MANIFEST` says of them, so that nothing that is left of one counts.

use crate::frame::{u32_at, u64_at};
use crate::id::RunId;

/// Bytes of an entry in `MANIFEST`.
pub(crate) const DROPPED_LEN: usize = 40;
/// Something of the run may still be on the disk.
const UNFINISHED: u32 = 1;

/// A run that was dropped from a log, as `MANIFEST` lists it.
///
/// From the moment at which it is listed the run does not exist: what the journal, an archive or the ordered store may
/// still hold of it is passed over, and taken away when the log is next opened for writing. The entry stays behind as a
/// note, until an archive of the run is imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DroppedRun {
    /// The run.
    pub run: RunId,
    /// The events that it had.
    pub events: u64,
    /// When it was dropped, in microseconds since the Unix epoch.
    pub at_us: u64,
    /// True as long as something of it may be on the disk.
    pub unfinished: bool,
}

impl DroppedRun {
    pub(crate) fn new(run: RunId, events: u64, at_us: u64) -> Self {
        DroppedRun { run, events, at_us, unfinished: true }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.run.0);
        out.extend_from_slice(&self.events.to_le_bytes());
        out.extend_from_slice(&self.at_us.to_le_bytes());
        out.extend_from_slice(&u32::from(self.unfinished).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
    }

    /// Reads an entry of [`DROPPED_LEN`] bytes; `None` if a field has a value that no program writes.
    pub(crate) fn read(bytes: &[u8]) -> Option<DroppedRun> {
        let run = RunId(bytes.get(..16)?.try_into().ok()?);
        let flags = u32_at(bytes, 32);
        if flags & !UNFINISHED != 0 || bytes.get(36..DROPPED_LEN)? != [0; 4] {
            return None;
        }
        Some(DroppedRun { run, events: u64_at(bytes, 16), at_us: u64_at(bytes, 24), unfinished: flags != 0 })
    }
}
