//! Appends from submission to acknowledgement: one committer thread, which commits whatever waits. Behind it stands the
//! applier thread, which carries committed events into the ordered store and writes the manifest.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use crossbeam::channel::{self, Receiver, Sender};
use crossbeam::select;

use crate::apply::{Applied, Commit};
use crate::digest::chain_content;
use crate::durability::Durability;
use crate::error::LogError;
use crate::event::Kind;
use crate::fetch::Source;
use crate::files::Files;
use crate::frame::{self, Parts, StreamKey, stream_key};
use crate::holdings::Holdings;
use crate::id::{Digest, Seq, Stream};
use crate::index::{Entry, Place};
use crate::journal::{Journal, JournalWriter};
use crate::ordered::Ordered;
use crate::payload::{self, PayloadPlaces, Payloads, Piece};
use crate::prefix::{Prefix, PrefixMap, Prefixes};
use crate::report::Finding;
use crate::sealed::Sealed;
use crate::source::{Filter, Head};

/// A commit takes no further submission once it has this many bytes.
const COMMIT_BYTES: usize = 4 << 20;

/// Where in its stream an append must land.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// At the end, wherever that is.
    Any,
    /// The first event has this number. A writer that knows its stream's end uses this, and learns of any other writer:
    /// if another event has the number, nothing is appended and the answer is [`LogError::Conflict`].
    ///
    /// An append can be repeated: events that already stand at these numbers with the same bodies are not appended again,
    /// those that are missing at the end are, and the acknowledgement is that of the first time. So an event is known by
    /// its stream, its number and its content, and whoever did not hear of an acknowledgement submits once more.
    Exactly(Seq),
}

/// The positions of an append's events: `first..=last`.
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
    /// Waits until the append is acknowledged: with [`Durability::Durable`], until its events are durable.
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
    /// The parts of it that are stored on their own.
    pub(crate) payloads: Vec<Piece>,
}

impl Encoded {
    pub(crate) fn new(kind: Kind, layout: u16, bytes: Vec<u8>) -> Self {
        let payloads = payload::find(kind, layout, &bytes);
        Encoded { kind, layout, bytes, payloads }
    }
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

/// A stream that is to begin with events of another one.
#[derive(Debug)]
pub(crate) struct Sharing {
    pub(crate) stream: Stream,
    /// Without its place.
    pub(crate) prefix: Prefix,
    /// As in a [`Submission`].
    pub(crate) failures: u64,
    pub(crate) reply: Reply,
}

#[derive(Debug)]
pub(crate) enum Message {
    Append(Submission),
    Share(Sharing),
    /// Answered once everything before it is answered and durable.
    Barrier(Sender<Result<(), LogError>>),
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
    /// Where long texts stand in the journal.
    pub(crate) payloads: RwLock<PayloadPlaces>,
    /// What streams share with others by reference.
    pub(crate) prefixes: RwLock<PrefixMap>,
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

    pub(crate) fn advance(&self) {
        *self.applied() += 1;
        self.moved.notify_all();
    }

    /// Lets no reader wait for an applier that has ended.
    pub(crate) fn release(&self) {
        *self.applied() = u64::MAX;
        self.moved.notify_all();
    }
}

impl Shared {
    pub(crate) fn head(&self, key: &StreamKey) -> Option<Head> {
        self.heads.read().unwrap_or_else(PoisonError::into_inner).get(key).copied()
    }

    /// Where events are read from. `findings` explains holes in the journal.
    pub(crate) fn holdings<'a>(&'a self, findings: &'a [Finding]) -> Holdings<'a> {
        Holdings {
            order: &self.ordered,
            source: Source { journal: &self.journal, payloads: &self.payloads },
            findings,
            sealed: &self.sealed,
            prefixes: &self.prefixes,
        }
    }
}

/// A commit being put together.
#[derive(Default)]
struct Draft {
    bytes: Vec<u8>,
    events: Vec<(Stream, Entry)>,
    heads: BTreeMap<StreamKey, Head>,
    payloads: PayloadPlaces,
    prefixes: PrefixMap,
    replies: Vec<(Reply, Ack)>,
    /// Whether an event in it ends a run.
    ends_run: bool,
}

/// The committer thread: the only one that writes to the journal.
pub(crate) struct Committer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) writer: JournalWriter,
    pub(crate) inbox: Receiver<Message>,
    pub(crate) outbox: Sender<Applied>,
    pub(crate) durability: Durability,
    /// Speaks when what is written must become durable; never, while nothing is due.
    pub(crate) timer: Receiver<Instant>,
    /// Whether the timer runs.
    pub(crate) is_timed: bool,
    /// Why the last commit failed, for those that were submitted behind it.
    pub(crate) last_failure: String,
}

impl Committer {
    /// Runs until every sender of the inbox is gone, and makes everything durable then.
    pub(crate) fn run(mut self) -> Result<(), LogError> {
        loop {
            let message = select! {
                recv(self.timer) -> _ => {
                    // A failure poisons the journal, so the next append tells it.
                    let _ = self.sync();
                    continue;
                }
                recv(self.inbox) -> message => message,
            };
            let Ok(first) = message else { return self.sync() };
            let mut draft = Draft::default();
            let mut barriers = Vec::new();
            self.take(first, &mut draft, &mut barriers);
            while draft.bytes.len() < COMMIT_BYTES
                && let Ok(next) = self.inbox.try_recv()
            {
                self.take(next, &mut draft, &mut barriers);
            }
            self.commit(draft);
            self.answer(barriers);
            // However much comes in, what is due is due.
            if self.timer.try_recv().is_ok() {
                let _ = self.sync();
            }
        }
    }

    fn answer(&mut self, barriers: Vec<Sender<Result<(), LogError>>>) {
        if barriers.is_empty() {
            return;
        }
        let synced = self.sync();
        for barrier in barriers {
            // Whoever asked may have stopped waiting.
            let _ = barrier.send(synced.clone());
        }
    }

    fn take(&mut self, message: Message, draft: &mut Draft, barriers: &mut Vec<Sender<Result<(), LogError>>>) {
        match message {
            Message::Barrier(reply) => barriers.push(reply),
            Message::Append(submission) => {
                if let Err((reply, error)) = self.place(submission, draft) {
                    let _ = reply.send(Err(error));
                }
            }
            Message::Share(sharing) => {
                if let Err((reply, error)) = self.place_prefix(sharing, draft) {
                    let _ = reply.send(Err(error));
                }
            }
        }
    }

    /// Adds a submission's frames to the commit.
    fn place(&mut self, mut submission: Submission, draft: &mut Draft) -> Result<(), (Reply, LogError)> {
        let count = submission.bodies.len() as u64;
        let mut first = None;
        if let Expected::Exactly(expected) = submission.expected
            && expected.0 < self.next(submission.stream, draft).0
        {
            // What may be repeated must be readable.
            self.commit(std::mem::take(draft));
            match self.standing(&submission, expected) {
                Ok(standing) => drop(submission.bodies.drain(..standing)),
                Err(error) => return Err((submission.reply, error)),
            }
            first = Some(expected);
        }
        let Submission { stream, expected, at_us, bodies, failures, reply } = submission;
        if failures < self.shared.failures.load(Ordering::SeqCst) {
            return Err((reply, LogError::AfterFailure { stream, reason: self.last_failure.clone() }));
        }
        let key = stream_key(stream);
        let mut head = self.head(&key, draft);
        let next = Seq(head.count);
        if let (Expected::Exactly(expected), None) = (expected, first)
            && expected != next
        {
            return Err((reply, LogError::Conflict { stream, expected, next }));
        }
        if draft.bytes.is_empty()
            && let Err(error) = self.make_room()
        {
            self.note_failure(&error);
            return Err((reply, error));
        }
        let is_empty = bodies.is_empty();
        // Each is gone once it is written: bodies may be long.
        for body in bodies {
            self.write(stream, at_us, &body, &mut head, draft);
        }
        let first = first.unwrap_or(next);
        let ack = Ack { first, last: Seq(first.0 + count.saturating_sub(1)) };
        if is_empty {
            // All of it stands already.
            let _ = reply.send(Ok(ack));
            return Ok(());
        }
        draft.heads.insert(key, head);
        draft.replies.push((reply, ack));
        Ok(())
    }

    /// Adds a stream's prefix frame to the commit, unless it stands already.
    fn place_prefix(&mut self, sharing: Sharing, draft: &mut Draft) -> Result<(), (Reply, LogError)> {
        let Sharing { stream, prefix, failures, reply } = sharing;
        let key = stream_key(stream);
        let ack = Ack { first: Seq(0), last: Seq(prefix.count.saturating_sub(1)) };
        if self.head(&key, draft).count > 0 {
            // What may be repeated must be committed.
            self.commit(std::mem::take(draft));
        }
        if failures < self.shared.failures.load(Ordering::SeqCst) {
            return Err((reply, LogError::AfterFailure { stream, reason: self.last_failure.clone() }));
        }
        let next = self.next(stream, draft);
        if next > Seq(0) {
            let standing = self.shared.prefixes.of(stream).map(|prefix| prefix.shared());
            if standing != Some(prefix.shared()) {
                return Err((reply, LogError::Conflict { stream, expected: Seq(0), next }));
            }
            let _ = reply.send(Ok(ack));
            return Ok(());
        }
        if draft.bytes.is_empty()
            && let Err(error) = self.make_room()
        {
            self.note_failure(&error);
            return Err((reply, error));
        }
        let (start, begins_commit) = (draft.bytes.len(), self.begins_commit(draft));
        frame::write_prefix(&mut draft.bytes, stream, prefix.at_us, begins_commit, &prefix.body());
        let place = self.place_of(start, draft);
        draft.heads.insert(key, prefix.head());
        draft.prefixes.insert(key, Prefix { place, ..prefix });
        draft.replies.push((reply, ack));
        Ok(())
    }

    fn head(&self, key: &StreamKey, draft: &Draft) -> Head {
        draft.heads.get(key).copied().or_else(|| self.shared.head(key)).unwrap_or(Head::EMPTY)
    }

    fn next(&self, stream: Stream, draft: &Draft) -> Seq {
        Seq(self.head(&stream_key(stream), draft).count)
    }

    /// How many of a submission's events stand already, from its first on. Everything must be committed.
    fn standing(&self, submission: &Submission, first: Seq) -> Result<usize, LogError> {
        let (stream, bodies) = (submission.stream, &submission.bodies);
        let next = self.shared.head(&stream_key(stream)).map_or(0, |head| head.count);
        self.shared.progress.catch_up();
        let end = next.min(first.0.saturating_add(bodies.len() as u64));
        let mut standing = 0;
        for (frame, body) in self.shared.holdings(&[]).frames(stream, first, end, &Filter::all()).zip(bodies) {
            let frame = frame?;
            if frame.kind()? != body.kind || frame.layout() != body.layout || frame.body() != body.bytes {
                return Err(LogError::Conflict { stream, expected: first, next: Seq(next) });
            }
            standing += 1;
        }
        Ok(standing)
    }

    /// Before the frames of a commit are placed.
    fn make_room(&mut self) -> Result<(), LogError> {
        if !self.writer.is_full() {
            return self.writer.check();
        }
        // A file is only begun once everything before it is durable.
        self.sync()?;
        self.writer.next_file()
    }

    /// Writes one event into the commit: its long texts, unless the journal has them, and its frame.
    fn write(&self, stream: Stream, at_us: u64, body: &Encoded, head: &mut Head, draft: &mut Draft) {
        for piece in &body.payloads {
            self.write_payload(at_us, piece, &body.bytes, draft);
        }
        let start = draft.bytes.len();
        let parts = Parts {
            stream,
            seq: Seq(head.count),
            at_us,
            kind: body.kind.code(),
            layout: body.layout,
            begins_commit: self.begins_commit(draft),
            previous: head.chain,
        };
        let crc = if body.payloads.is_empty() {
            let crc = frame::write(&mut draft.bytes, &parts, &body.bytes);
            head.chain = Digest::of(draft.bytes.get(start..).unwrap_or_default());
            crc
        } else {
            // The digest is that of the whole event, however it is stored.
            (_, head.chain) = frame::digest(&parts, &body.bytes);
            frame::write_short(&mut draft.bytes, &parts, &payload::shorten(&body.bytes, &body.payloads))
        };
        if body.kind.is_content() {
            head.content = chain_content(head.content, body.kind, body.layout, &body.bytes);
        }
        head.count += 1;
        draft.ends_run |= matches!(body.kind, Kind::RunFinished | Kind::TrainFinished);
        let place = self.place_of(start, draft);
        let body_len = u32::try_from(body.bytes.len()).unwrap_or(u32::MAX);
        draft.events.push((stream, Entry { seq: parts.seq, at_us, place, crc, body_len, kind: body.kind }));
    }

    fn write_payload(&self, at_us: u64, piece: &Piece, body: &[u8], draft: &mut Draft) {
        if draft.payloads.contains_key(&piece.digest) || self.shared.payloads.place(&piece.digest).is_some() {
            return;
        }
        let start = draft.bytes.len();
        let begins_commit = self.begins_commit(draft);
        let bytes = body.get(piece.range.clone()).unwrap_or_default();
        frame::write_payload(&mut draft.bytes, piece.digest, at_us, begins_commit, bytes);
        let place = self.place_of(start, draft);
        draft.payloads.insert(piece.digest, place);
    }

    /// A frame says that everything before it is durable: it is the first after a sync.
    fn begins_commit(&self, draft: &Draft) -> bool {
        draft.bytes.is_empty() && self.writer.is_synced()
    }

    /// The place of the frame that begins at `start` in the commit and is its last so far.
    fn place_of(&self, start: usize, draft: &Draft) -> Place {
        let end = self.writer.end();
        let len = u32::try_from(draft.bytes.len() - start).unwrap_or(u32::MAX);
        Place { offset: end.offset + start as u64, file: end.file, len }
    }

    /// Writes the commit, makes it durable if it has to be, answers its submitters, and passes it on.
    fn commit(&mut self, draft: Draft) {
        if draft.bytes.is_empty() {
            return;
        }
        let start = self.writer.end().offset;
        let durable = self.durability == Durability::Durable || draft.ends_run;
        if let Err(error) = self.writer.commit(&draft.bytes, durable) {
            self.note_failure(&error);
            for (reply, _) in draft.replies {
                let _ = reply.send(Err(error.clone()));
            }
            return;
        }
        let heads: Vec<(StreamKey, Head)> = draft.heads.into_iter().collect();
        if !draft.payloads.is_empty() {
            self.shared.payloads.write().unwrap_or_else(PoisonError::into_inner).extend(draft.payloads);
        }
        if !draft.prefixes.is_empty() {
            self.shared.prefixes.write().unwrap_or_else(PoisonError::into_inner).extend(draft.prefixes);
        }
        self.shared.heads.write().unwrap_or_else(PoisonError::into_inner).extend(heads.iter().copied());
        self.shared.progress.committed.fetch_add(1, Ordering::SeqCst);
        for (reply, ack) in draft.replies {
            let _ = reply.send(Ok(ack));
        }
        for (key, head) in &heads {
            if let Some(stream) = frame::stream_of_key(key) {
                tracing::trace!(%stream, events = head.count, "acknowledged");
            }
        }
        let commit = Commit { bytes: draft.bytes, start, events: draft.events, heads, end: self.writer.end() };
        self.pass_on(Applied::Commit(commit));
        if durable {
            self.stop_timer();
            self.pass_on(Applied::Synced);
        } else if let (Durability::Relaxed(delay), false) = (self.durability, self.is_timed) {
            (self.timer, self.is_timed) = (channel::after(delay), true);
        }
    }

    /// Makes everything that is written durable.
    fn sync(&mut self) -> Result<(), LogError> {
        self.stop_timer();
        if self.writer.is_synced() {
            return Ok(());
        }
        let synced = self.writer.sync();
        match &synced {
            Ok(()) => self.pass_on(Applied::Synced),
            Err(error) => self.note_failure(error),
        }
        synced
    }

    fn stop_timer(&mut self) {
        (self.timer, self.is_timed) = (channel::never(), false);
    }

    fn pass_on(&self, applied: Applied) {
        if self.outbox.send(applied).is_err() {
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
