//! Events, byte format, journal and ordered store of rao-log.
//!
//! A log is a directory. Its journal (append-only files of checksummed, hash-chained frames) is the truth: an append is
//! acknowledged when `fdatasync` on the journal has returned. Behind it stand a `MANIFEST` with counts and chain heads,
//! so that a journal that lost its end is noticed, and a sled tree in key order, which is only ever a copy: it is
//! compared with the journal whenever a writer opens it, brought up where a writer did without it, and rebuilt when it
//! disagrees. Where a stream's events stand in the journal is kept in memory, in a byte or two for each.
//!
//! * [`Log`] writes, and reads through sled. One process at a time.
//! * [`Reader`] reads the journal alone: no lock, no sled, any number of processes beside the writer.
//! * [`EventSource`] is what both have in common; write against it.
//! * [`archive`] holds finished runs as compressed files, which both see as if they were still in the journal.
//! * [`prune`] drops old runs, whole.
//! * [`verify()`] checks a directory and changes nothing.
//!
//! The bytes are described in `docs/format.md`. It is not a general database: values are events, keys are streams with
//! dense sequence numbers, nothing is updated in place.

#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing, clippy::unwrap_used)]

mod address;
mod apply;
pub mod archive;
mod commit;
mod digest;
mod dropped;
mod durability;
mod error;
pub mod event;
mod extent;
mod fence;
mod fetch;
pub mod files;
mod follow;
mod frame;
mod holdings;
mod id;
mod index;
mod journal;
mod log;
mod manifest;
mod opening;
mod ordered;
mod payload;
mod prefix;
pub mod prune;
mod reader;
mod report;
mod scan;
mod sealed;
mod share;
mod size;
mod source;
mod sweep;
mod verify;

pub use address::{RunRole, Target, resolve_run, resolve_target};
pub use commit::{Ack, Expected, Ticket};
pub use digest::{chain_content, content_digest_of_run};
pub use dropped::DroppedRun;
pub use durability::Durability;
pub use error::{ErrorClass, LogError};
pub use follow::{Follower, Wanted};
pub use frame::{FORMAT_VERSION, Frame, FrameError, HEADER_LEN};
pub use id::{
    Address, Depth, Digest, IdError, LogProb, NodePath, PolicyVersion, RolloutId, RunId, Seq, Stream, TokenId,
};
pub use log::{Clock, Log, Options};
pub use manifest::{Manifest, ManifestError, Mark};
pub use prefix::SharedPrefix;
pub use reader::Reader;
pub use report::{Finding, FindingClass, OpenReport};
pub use sealed::SealedEntry;
pub use size::{StreamSize, stream_size};
pub use source::{EventIter, EventSource, Filter, FrameIter, Head, Header, HeaderIter};
pub use verify::{VerifyReport, verify, verify_with};
