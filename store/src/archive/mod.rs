//! Sealed archives: a finished run as one columnar, compressed, checksummed `.raolog` file.
//!
//! An archive gives back every frame byte for byte, so checksums, hash chains and content digests are those of the log
//! that it was made from. `docs/format.md` describes the bytes.
//!
//! * [`ArchiveReader`] is an [`crate::EventSource`] that holds one part of the file in memory at a time.
//! * [`write_archive`] makes an archive of a finished run, [`verify_archive`] checks every byte and event of one.
//! * [`seal`], [`export`] and [`import`] move runs between logs and archives.

mod check;
mod columns;
mod cursor;
mod error;
mod footer;
mod ops;
mod read;
mod segment;
mod split;
mod write;

pub use check::{ArchiveReport, verify_archive, verify_archive_with};
pub use error::ArchiveError;
pub(crate) use ops::unfinished;
pub use ops::{ImportReport, SealReport, check_sealable, export, import, seal, seal_with};
pub use read::ArchiveReader;
pub use write::{ArchiveSummary, write_archive};

/// The newest archive layout that this program reads. It writes it for runs with long texts.
pub const ARCHIVE_VERSION: u16 = 2;
/// The layout of other archives, which older programs read as well: no text lies in a block without the rest of its body.
const PLAIN_VERSION: u16 = 1;
/// The ending of an archive's file name.
pub const EXTENSION: &str = "raolog";
/// A segment is closed once the frames in it have this many bytes.
const SEGMENT_BYTES: usize = 1 << 20;
/// A segment is closed once it has this many events.
const SEGMENT_EVENTS: usize = 4096;
/// What is left of a body without its columns goes into a block of its own from this length on.
const BLOCK_BYTES: usize = 1 << 16;
/// Magic bytes, version, zeros, checksum.
const HEAD_LEN: usize = 12;
/// Footer length, footer checksum, file digest, magic bytes.
const TAIL_LEN: usize = 48;
const HEAD_MAGIC: [u8; 4] = *b"RAOA";
const TAIL_MAGIC: [u8; 4] = *b"RAOZ";
