//! Appends from submission to acknowledgement: one committer thread, which commits whatever waits, and behind it one
//! applier thread, which carries committed events into the ordered store and writes the manifest.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};

use crossbeam::channel::{Receiver, Sender};

use crate::digest::chain_content;
use crate::error::LogError;
use crate::event::Kind;
use crate::files::Files;
use crate::frame::{self, Parts, StreamKey, stream_key};
use crate::id::{Digest, Seq, Stream};
use crate::index::{Entry, Index, Place};
use crate::journal::{Journal, JournalWriter};
use crate::manifest::{Manifest, Mark};
use crate::ordered::Ordered;
use crate::scan::Scan;
use crate::sealed::Sealed;
use crate::source::Head;

/// A commit takes no further submission once it has this many bytes.
const COMMIT_BYTES: usize = 4 << 20;

/// Where in its stream an append must land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// At the end, wherever that is.
    Any,
    /// The first event must get this number; otherwise nothing is appended and the answer is
    /// [`LogError::Conflict`]. A writer that knows its stream's end uses this, and learns of any other writer.
    Exactly(Seq),
}

/// The durable positions of an append's events: `first..=last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The first event's number.
    pub first: Seq,
    /// The last event's number.
    pub last: Seq,
}

/// A submitted append.
///
/// Dropping it does not undo the append; it only gives up knowing how it went.
#[derive(Debug)]
#[must_use = "an append is acknowledged, or has failed, only once `wait` has returned"]
pub struct Ticket {
    pub(crate) state: TicketState,
}

#[derive(Debug)]
pub(crate) enum TicketState {
    Refused(LogError),
    Waiting { reply: Receiver<Result<Ack, LogError>>, dir: PathBuf },
}

impl Ticket {
    /// Waits until the events are durable.
    ///
    /// # Errors
    /// Whatever kept them from it: [`LogError::Conflict`], [`LogError::Io`], [`LogError::Tokens`] and others. The log
    /// then holds none of the append's events; only if it says [`LogError::Poisoned`] from then on, the next opening
    /// decides whether it does.
    pub fn wait(self) -> Result<Ack, LogError> {
        match self.state {
            TicketState::Refused(error) => Err(error),
            TicketState::Waiting { reply, dir } => reply.recv().unwrap_or(Err(LogError::Closed { dir })),
        }
    }
}

/// Where the answer to a submission goes.
pub(crate) type Reply = Sender<Result<Ack, LogError>>;

/// An encoded body.
#[derive(Debug)]
pub(crate) struct Encoded {
    pub(crate) kind: Kind,
    pub(crate) layout: u16,
    pub(crate) bytes: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Submission {
    pub(crate) stream: Stream,
    pub(crate) expected: Expected,
    pub(crate) at_us: u64,
    pub(crate) bodies: Vec<Encoded>,
    /// The number of failures that the submitter could have known of.
    pub(crate) failures: u64,
    pub(crate) reply: Reply,
}

#[derive(Debug)]
pub(crate) enum Message {
    Append(Submission),
    /// Answered once everything before it is.
    Barrier(Sender<()>),
}

/// What the threads and the readers of an open log share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) dir: PathBuf,
    pub(crate) files: Arc<dyn Files>,
    pub(crate) journal: Journal,
    /// The streams' acknowledged ends.
    pub(crate) heads: RwLock<BTreeMap<StreamKey, Head>>,
    pub(crate) ordered: RwLock<Ordered>,
    /// The archives, which do not change while the log is open.
    pub(crate) sealed: Sealed,
    /// Failed commits so far.
    pub(crate) failures: AtomicU64,
    pub(crate) progress: Progress,
}

/// How far the ordered store is behind the journal.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    committed: AtomicU64,
    applied: Mutex<u64>,
    moved: Condvar,
}

impl Progress {
    /// Waits until everything that is acknowledged now is in the ordered store.
    pub(crate) fn catch_up(&self) {
        let wanted = self.committed.load(Ordering::SeqCst);
        let mut applied = self.applied();
        while *applied < wanted {
            applied = self.moved.wait(applied).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn applied(&self) -> MutexGuard<'_, u64> {
        self.applied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn advance(&self) {
        *self.applied() += 1;
        self.moved.notify_all();
    }

    /// Lets no reader wait for an applier that has ended.
    fn release(&self) {
        *self.applied() = u64::MAX;
        self.moved.notify_all();
    }
}

impl Shared {
    pub(crate) fn head(&self, key: &StreamKey) -> Option<Head> {
        self.heads.read().unwrap_or_else(PoisonError::into_inner).get(key).copied()
    }
}

/// A durable commit on its way to the ordered store.
#[derive(Debug)]
pub(crate) struct Commit {
    bytes: Vec<u8>,
    start: u64,
    events: Vec<(Stream, Entry)>,
    heads: Vec<(StreamKey, Head)>,
    end: Mark,
}

/// A commit being put together.
#[derive(Default)]
struct Draft {
    bytes: Vec<u8>,
    events: Vec<(Stream, Entry)>,
    heads: BTreeMap<StreamKey, Head>,
    replies: Vec<(Reply, Ack)>,
}

/// The committer thread: the only one that writes to the journal.
pub(crate) struct Committer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) writer: JournalWriter,
    pub(crate) inbox: Receiver<Message>,
    pub(crate) outbox: Sender<Commit>,
    /// Why the last commit failed, for those that were submitted behind it.
    pub(crate) last_failure: String,
}

impl Committer {
    /// Runs until every sender of the inbox is gone.
    pub(crate) fn run(mut self) {
        while let Ok(first) = self.inbox.recv() {
            let mut draft = Draft::default();
            let mut barriers = Vec::new();
            self.take(first, &mut draft, &mut barriers);
            while draft.bytes.len() < COMMIT_BYTES
                && let Ok(next) = self.inbox.try_recv()
            {
                self.take(next, &mut draft, &mut barriers);
            }
            self.commit(draft);
            for barrier in barriers {
                // Whoever asked may have stopped waiting.
                let _ = barrier.send(());
            }
        }
    }

    fn take(&mut self, message: Message, draft: &mut Draft, barriers: &mut Vec<Sender<()>>) {
        match message {
            Message::Barrier(reply) => barriers.push(reply),
            Message::Append(submission) => {
                if let Err((reply, error)) = self.place(submission, draft) {
                    let _ = reply.send(Err(error));
                }
            }
        }
    }

    /// Adds a submission's frames to the commit.
    fn place(&mut self, submission: Submission, draft: &mut Draft) -> Result<(), (Reply, LogError)> {
        let Submission { stream, expected, at_us, bodies, failures, reply } = submission;
        if failures < self.shared.failures.load(Ordering::SeqCst) {
            return Err((reply, LogError::AfterFailure { stream, reason: self.last_failure.clone() }));
        }
        if draft.bytes.is_empty()
            && let Err(error) = self.writer.make_room()
        {
            self.note_failure(&error);
            return Err((reply, error));
        }
        let key = stream_key(stream);
        let mut head = draft.heads.get(&key).copied().or_else(|| self.shared.head(&key)).unwrap_or(Head::EMPTY);
        let next = Seq(head.count);
        if let Expected::Exactly(expected) = expected
            && expected != next
        {
            return Err((reply, LogError::Conflict { stream, expected, next }));
        }
        let end = self.writer.end();
        for body in bodies {
            let start = draft.bytes.len();
            let parts = Parts {
                stream,
                seq: Seq(head.count),
                at_us,
                kind: body.kind.code(),
                layout: body.layout,
                begins_commit: start == 0,
                previous: head.chain,
            };
            let crc = frame::write(&mut draft.bytes, &parts, &body.bytes);
            let written = draft.bytes.get(start..).unwrap_or_default();
            head.chain = Digest::of(written);
            if body.kind.is_content() {
                head.content = chain_content(head.content, body.kind, body.layout, &body.bytes);
            }
            head.count += 1;
            let len = u32::try_from(written.len()).unwrap_or(u32::MAX);
            let place = Place { offset: end.offset + start as u64, file: end.file, len };
            draft.events.push((stream, Entry { seq: parts.seq, at_us, place, crc, kind: body.kind }));
        }
        draft.heads.insert(key, head);
        draft.replies.push((reply, Ack { first: next, last: Seq(head.count.saturating_sub(1)) }));
        Ok(())
    }

    /// Makes the commit durable, answers its submitters, and passes it on.
    fn commit(&mut self, draft: Draft) {
        if draft.bytes.is_empty() {
            return;
        }
        let start = self.writer.end().offset;
        if let Err(error) = self.writer.commit(&draft.bytes) {
            self.note_failure(&error);
            for (reply, _) in draft.replies {
                let _ = reply.send(Err(error.clone()));
            }
            return;
        }
        let heads: Vec<(StreamKey, Head)> = draft.heads.into_iter().collect();
        self.shared.heads.write().unwrap_or_else(PoisonError::into_inner).extend(heads.iter().copied());
        self.shared.progress.committed.fetch_add(1, Ordering::SeqCst);
        for (reply, ack) in draft.replies {
            let _ = reply.send(Ok(ack));
        }
        let commit = Commit { bytes: draft.bytes, start, events: draft.events, heads, end: self.writer.end() };
        if self.outbox.send(commit).is_err() {
            // The applier only ends before us if it panicked; nobody must wait for it.
            self.shared.progress.release();
        }
    }

    fn note_failure(&mut self, error: &LogError) {
        self.last_failure = error.to_string();
        self.shared.failures.fetch_add(1, Ordering::SeqCst);
        tracing::warn!(%error, "an append failed");
    }
}

/// The applier thread.
pub(crate) struct Applier {
    pub(crate) shared: Arc<Shared>,
    pub(crate) inbox: Receiver<Commit>,
    /// Stream ends as far as they are applied.
    pub(crate) heads: BTreeMap<StreamKey, Head>,
    pub(crate) end: Mark,
    pub(crate) checkpoint_bytes: u64,
    pub(crate) unsaved: u64,
}

impl Applier {
    /// Runs until the committer has ended, and then brings manifest and ordered store to the journal's state.
    pub(crate) fn run(mut self) -> Result<(), LogError> {
        while let Ok(commit) = self.inbox.recv() {
            self.apply(&commit);
            self.unsaved += commit.bytes.len() as u64;
            let new_file = commit.end.file != self.end.file;
            self.end = commit.end;
            self.heads.extend(commit.heads);
            self.shared.progress.advance();
            if (new_file || self.unsaved >= self.checkpoint_bytes)
                && let Err(error) = self.checkpoint()
            {
                // The next one may succeed, and closing reports it if it does not.
                tracing::warn!(%error, "the manifest could not be written");
            }
        }
        let saved = if self.unsaved > 0 { self.checkpoint() } else { Ok(()) };
        self.shared.progress.release();
        saved
    }

    fn apply(&self, commit: &Commit) {
        let failed = match &*self.shared.ordered.read().unwrap_or_else(PoisonError::into_inner) {
            Ordered::Sled(store) => store.apply(&commit.events, |entry| commit.frame(entry)).err(),
            Ordered::Memory(_) => None,
        };
        if let Some(reason) = failed {
            self.give_up_sled(&reason, commit);
            return;
        }
        if let Ordered::Memory(index) = &mut *self.shared.ordered.write().unwrap_or_else(PoisonError::into_inner) {
            commit.events.iter().for_each(|(stream, entry)| index.push(*stream, *entry));
        }
    }

    /// The ordered store failed (a full disk, say). The journal has everything: read from it until the log is opened
    /// again, which compares the two and repairs the store.
    fn give_up_sled(&self, reason: &str, commit: &Commit) {
        tracing::warn!(reason, "the ordered store failed; reading from the journal until the log is opened again");
        let mut scan = Scan::new(None);
        let scanned = scan.advance(&self.shared.journal, &self.shared.dir);
        let index = match scanned {
            Ok(_) => scan.index.before(commit.end),
            Err(_) => Index::default(),
        };
        *self.shared.ordered.write().unwrap_or_else(PoisonError::into_inner) = Ordered::Memory(index);
    }

    /// Writes down what must be there from now on. The ordered store is flushed first: it is expected to hold all that
    /// the manifest counts.
    fn checkpoint(&mut self) -> Result<(), LogError> {
        if let Ordered::Sled(store) = &*self.shared.ordered.read().unwrap_or_else(PoisonError::into_inner)
            && let Err(reason) = store.flush()
        {
            return Err(LogError::Ordered { dir: self.shared.dir.clone(), reason });
        }
        let manifest = Manifest::new(self.end, &self.heads).with_sealed(&self.shared.sealed.entries);
        manifest.write(self.shared.files.as_ref(), &self.shared.dir)?;
        self.unsaved = 0;
        Ok(())
    }
}

impl Commit {
    /// The bytes of one of the commit's frames.
    fn frame(&self, entry: &Entry) -> Option<&[u8]> {
        let from = usize::try_from(entry.place.offset.checked_sub(self.start)?).ok()?;
        self.bytes.get(from..from.checked_add(entry.place.len as usize)?)
    }
}
