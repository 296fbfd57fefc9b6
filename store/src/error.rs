//! What can go wrong with a log, and which kind of trouble it is.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::archive::ArchiveError;
use crate::event::{BodyError, TokenCountError};
use crate::id::{Address, RunId, Seq, Stream};

/// A failed operation on a log. Every message names the thing, the reason and what to do next.
///
/// It is cheap to clone, since one failed commit answers every append that was part of it.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// There is no log in the directory.
    #[error(
        "{dir}: there is no log here; make one with `rao-log record --log DIR`, or name the right directory with `--log`"
    )]
    NoLog {
        /// The directory that was asked for.
        dir: PathBuf,
    },
    /// Another process, or another [`crate::Log`] of this one, has the log open for writing.
    #[error(
        "{dir}: another process is writing to this log; wait until it ends, or write to another directory with `--log`"
    )]
    Busy {
        /// The log's directory.
        dir: PathBuf,
    },
    /// The operating system refused an operation.
    #[error("{path}: cannot {action}: {source}; {next}")]
    Io {
        /// What was tried, such as `append to the journal`.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        source: Arc<io::Error>,
        /// What to do next.
        next: &'static str,
    },
    /// A later program wrote this.
    #[error("{place}: {what}, which this program does not know; use a newer rao-log. Nothing was changed")]
    Newer {
        /// Where it stands.
        place: String,
        /// What is too new.
        what: String,
    },
    /// A stored event is damaged or missing.
    #[error(
        "event {stream}#{seq} cannot be read ({place}): {reason}; run `rao-log verify` for the whole picture, and restore the file from a copy if you have one"
    )]
    Damaged {
        /// The stream.
        stream: Stream,
        /// The event's position.
        seq: Seq,
        /// Where it stands or should stand, such as `journal/0000000000.log at byte 512`.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// The stream is damaged, so its next position is not known and nothing is appended to it.
    #[error(
        "{stream}: nothing is appended to a damaged stream; run `rao-log verify` to see what is lost, and record into a new run"
    )]
    DamagedStream {
        /// The stream.
        stream: Stream,
    },
    /// The stream did not end where the writer thought.
    #[error(
        "{stream}: the append expected to be number {expected}, but the stream's next number is {next}; read the stream's end again before appending"
    )]
    Conflict {
        /// The stream.
        stream: Stream,
        /// The position that the writer expected to fill.
        expected: Seq,
        /// The position that comes next.
        next: Seq,
    },
    /// Token ids and log-probabilities do not match.
    #[error("{stream}: {source}; the recorder must hand over exactly what was sampled")]
    Tokens {
        /// The stream.
        stream: Stream,
        /// The numbers.
        source: TokenCountError,
    },
    /// An event is too large to be stored.
    #[error(
        "{stream}: a {kind} event has {bytes} bytes, more than the {limit} that a log takes; cut its text before appending"
    )]
    TooLarge {
        /// The stream.
        stream: Stream,
        /// The kind's name.
        kind: &'static str,
        /// The body's length.
        bytes: usize,
        /// The longest body.
        limit: usize,
    },
    /// The codec refused a body.
    #[error("{stream}: a {kind} event cannot be encoded: {reason}; please report this as a bug")]
    Encode {
        /// The stream.
        stream: Stream,
        /// The kind's name.
        kind: &'static str,
        /// The codec's reason.
        reason: String,
    },
    /// An append without events.
    #[error("{stream}: an append needs at least one event; leave the call out when there is nothing to say")]
    EmptyAppend {
        /// The stream.
        stream: Stream,
    },
    /// A body whose checksum is right cannot be decoded.
    #[error("event {address}: {source}; it was written by a program that does not keep the format")]
    Body {
        /// The event.
        address: Address,
        /// The reason.
        source: Arc<BodyError>,
    },
    /// There is no such event.
    #[error("there is no event {address}: the stream has {count} events, numbered from 0; see `rao-log show`")]
    UnknownEvent {
        /// The address that was asked for.
        address: Address,
        /// The stream's length; 0 if there is no such stream.
        count: u64,
    },
    /// No run has that name.
    #[error("no {role} run is called `{text}`; {known}")]
    UnknownRun {
        /// What was asked for.
        text: String,
        /// `recorded` or `training`.
        role: &'static str,
        /// What there is instead, in words.
        known: String,
    },
    /// Several runs have that prefix.
    #[error("`{text}` stands for {count} runs: {candidates}; give more digits", count = .runs.len())]
    AmbiguousRun {
        /// What was asked for.
        text: String,
        /// The runs, in time order.
        runs: Vec<RunId>,
        /// Their ids, shortened where there are many.
        candidates: String,
    },
    /// A run has no such stream.
    #[error("run {run} has no {what}; see `rao-log list`")]
    UnknownStream {
        /// The run.
        run: RunId,
        /// The missing part, such as `rollout 7`.
        what: String,
    },
    /// A text is not an address.
    #[error(
        "`{text}` is no address: {reason}; write RUN, RUN/ROLLOUT, RUN/training or one of them with #SEQ, such as latest/3#120"
    )]
    BadAddress {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The run has not the events that the operation needs.
    #[error("run {run}: {reason}; finish it with `rao-log record --resume`, or choose another run")]
    Incomplete {
        /// The run.
        run: RunId,
        /// What is missing.
        reason: String,
    },
    /// An append that was submitted before this one failed, so this one was not tried.
    #[error(
        "{stream}: not appended, because an append submitted before it failed ({reason}); submit it again once the cause is gone"
    )]
    AfterFailure {
        /// The stream.
        stream: Stream,
        /// Why the earlier one failed.
        reason: String,
    },
    /// After a failed write the journal could not be brought back to its last good end.
    #[error(
        "{dir}: no more appends after a failed write could not be undone ({reason}); end the program, free the disk and open the log again: everything acknowledged is kept"
    )]
    Poisoned {
        /// The log's directory.
        dir: PathBuf,
        /// Why.
        reason: String,
    },
    /// The committer has ended.
    #[error("{dir}: the log is closed; open it again to append")]
    Closed {
        /// The log's directory.
        dir: PathBuf,
    },
    /// A file is no archive, or a damaged one.
    #[error("{path}: {source}; restore the file from a copy if you have one")]
    Archive {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Arc<ArchiveError>,
    },
    /// A file to import failed its check.
    #[error("{path}: not imported, because its check found {finding}; get the file again from where it came from")]
    Imported {
        /// The file.
        path: PathBuf,
        /// The first finding.
        finding: String,
    },
    /// The run is sealed: it takes no more events.
    #[error("run {run} is sealed, so nothing is added to it; it can be read, replayed and trained on as before")]
    Sealed {
        /// The run.
        run: RunId,
    },
    /// The run was dropped: it takes no more events.
    #[error("run {run} was dropped from this log by `rao-log prune`, so nothing is added to it; record a new run")]
    Dropped {
        /// The run.
        run: RunId,
    },
    /// A log with damage in it is not pruned: what is damaged may belong to any run.
    #[error(
        "{dir}: nothing is pruned from a damaged log ({finding}); run `rao-log doctor` first, and restore the named file from a copy if you have one"
    )]
    DamagedLog {
        /// The log's directory.
        dir: PathBuf,
        /// The first finding.
        finding: String,
    },
    /// Too many bases stand behind one another.
    #[error(
        "{base}: nothing more is shared with it by reference, since {limit} streams stand behind one another already; `rao-log seal` its run first, which makes it stand by itself"
    )]
    TooManyBases {
        /// The stream that was to be shared with.
        base: Stream,
        /// The most that may.
        limit: usize,
    },
    /// A run of the same id is there, with other content.
    #[error("run {run} is already in the log, and is not the one in the file; import it into another log with `--log`")]
    Present {
        /// The run.
        run: RunId,
    },
    /// The ordered store failed in a way that opening the log again repairs.
    #[error("{dir}: the ordered store (sled) failed: {reason}; open the log again, which rebuilds it from the journal")]
    Ordered {
        /// The log's directory.
        dir: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Kinds of trouble, as exit codes tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The caller asked for something that is not there or cannot be.
    Usage,
    /// Another process writes.
    Busy,
    /// Stored data is damaged.
    Integrity,
    /// Stored data is intact but unfinished.
    Incomplete,
    /// The operating system refused.
    Io,
    /// A later program wrote the data.
    Newer,
}

impl LogError {
    /// Which kind of trouble it is.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            LogError::NoLog { .. }
            | LogError::Sealed { .. }
            | LogError::Dropped { .. }
            | LogError::Present { .. }
            | LogError::TooManyBases { .. }
            | LogError::Tokens { .. }
            | LogError::TooLarge { .. }
            | LogError::Encode { .. }
            | LogError::EmptyAppend { .. }
            | LogError::UnknownEvent { .. }
            | LogError::UnknownRun { .. }
            | LogError::AmbiguousRun { .. }
            | LogError::UnknownStream { .. }
            | LogError::BadAddress { .. } => ErrorClass::Usage,
            LogError::Busy { .. } | LogError::Conflict { .. } => ErrorClass::Busy,
            LogError::Archive { source, .. } if matches!(**source, ArchiveError::Newer { .. }) => ErrorClass::Newer,
            LogError::Archive { .. } | LogError::Imported { .. } | LogError::DamagedLog { .. } => ErrorClass::Integrity,
            LogError::Damaged { .. } | LogError::DamagedStream { .. } | LogError::Body { .. } => ErrorClass::Integrity,
            LogError::Incomplete { .. } => ErrorClass::Incomplete,
            LogError::Io { .. }
            | LogError::AfterFailure { .. }
            | LogError::Poisoned { .. }
            | LogError::Closed { .. }
            | LogError::Ordered { .. } => ErrorClass::Io,
            LogError::Newer { .. } => ErrorClass::Newer,
        }
    }

    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        let next = match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "free some space and try again: everything acknowledged is kept"
            }
            io::ErrorKind::FileTooLarge => {
                "raise the limit on file sizes (`ulimit -f`) and try again: everything acknowledged is kept"
            }
            io::ErrorKind::PermissionDenied => "check the permissions of the directory",
            io::ErrorKind::NotFound => "check that the directory was not moved or removed",
            _ => "check the disk and the directory's permissions",
        };
        LogError::Io { action, path: path.to_owned(), source: Arc::new(source), next }
    }
}
