//! A log open for writing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{File, TryLockError};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::{self, JoinHandle};

use crossbeam::channel::{self, Sender};

use crate::apply::{Ahead, Applier};
use crate::commit::{
    Ack, Committer, Encoded, Expected, Message, Progress, Reply, Shared, Submission, Ticket, TicketState,
};
use crate::dropped::DroppedRun;
use crate::durability::Durability;
use crate::error::LogError;
use crate::event::{Body, MAX_BODY};
use crate::fetch::Source;
use crate::files::{Files, RealFiles};
use crate::frame::{StreamKey, stream_key};
use crate::holdings::Holdings;
use crate::id::{RunId, Seq, Stream};
use crate::journal::{Journal, JournalWriter};
use crate::manifest::Mark;
use crate::opening::{self, Cleared, Promised};
use crate::ordered::Ordered;
use crate::prefix::{self, Prefixes, SharedPrefix};
use crate::reader::{load_manifest, runs, streams};
use crate::report::{Finding, FindingClass, OpenReport};
use crate::scan::Scan;
use crate::sealed::{Sealed, SealedEntry};
use crate::source::{EventIter, EventSource, Filter, FrameIter, Head, HeaderIter};

/// The clock that stamps events: microseconds since the Unix epoch.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

const LOCK: &str = "LOCK";
/// Submissions that may wait before submitting blocks.
const WAITING_SUBMISSIONS: usize = 1024;
/// Commits that may wait for the ordered store before committing blocks.
const WAITING_COMMITS: usize = 8;

/// How a log is opened for writing.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Stamps the events.
    pub clock: Clock,
    /// Whether events are carried into sled and read from there. Without it the index in memory takes its place, a byte or
    /// two for every event of the log, and a database that is there stays as it is: the next opening with it carries in
    /// what it misses. Opening sled reads all of it, and keeps it in memory.
    pub ordered_store: bool,
    /// Events whose frame has at most this many bytes are stored in sled whole; of longer ones it holds the place in the
    /// journal. At most 100,000; sled keeps what it has seen in memory, so a large value costs memory and disk.
    pub inline_bytes: usize,
    /// A journal file that has reached this many bytes is followed by a new one.
    pub rotate_bytes: u64,
    /// The manifest is rewritten after about this many journal bytes, and on closing.
    pub checkpoint_bytes: u64,
    /// How an acknowledgement relates to the disk.
    pub durability: Durability,
    /// Whether opening computes every digest, rather than taking those from the manifest that it vouches for. It costs a
    /// few seconds for each GB, and notices events that were exchanged together with their checksums: for whoever computes
    /// with what a log holds.
    pub check_digests: bool,
}

impl Options {
    /// The usual settings: durable, sled, files of 64 MiB, a manifest every 16 MiB.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Options {
            clock,
            ordered_store: true,
            inline_bytes: 512,
            rotate_bytes: 64 << 20,
            checkpoint_bytes: 16 << 20,
            durability: Durability::Durable,
            check_digests: false,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("ordered_store", &self.ordered_store)
            .field("rotate_bytes", &self.rotate_bytes)
            .field("checkpoint_bytes", &self.checkpoint_bytes)
            .field("durability", &self.durability)
            .finish_non_exhaustive()
    }
}

/// A log directory open for writing, by this process alone.
///
/// An append is acknowledged once it is durable: the journal's `fdatasync` has returned; or earlier, if [`Options`] ask for
/// another [`Durability`]. Appends from any number of threads share commits. Reading gives everything acknowledged before
/// the call.
///
/// Dropping a log closes it as [`Log::close`] does, but has nobody to tell of a failure.
pub struct Log {
    shared: Arc<Shared>,
    clock: Clock,
    inbox: Option<Sender<Message>>,
    durability: Durability,
    committer: Option<JoinHandle<Result<(), LogError>>>,
    applier: Option<JoinHandle<Result<(), LogError>>>,
    findings: Vec<Finding>,
    closed_streams: ClosedStreams,
    lock: File,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("dir", &self.shared.dir).finish_non_exhaustive()
    }
}

/// Streams that take no more events, because damage makes their end uncertain.
#[derive(Debug, Default)]
struct ClosedStreams(BTreeSet<StreamKey>);

impl Log {
    /// Opens the log in `dir` for writing, and makes it if there is none.
    ///
    /// What a crash left is repaired and told in the report: an unfinished last commit is cut off, an ordered store that
    /// is behind or damaged is brought up to the journal, a missing or damaged manifest is rebuilt. Damage to events is
    /// reported and left as it is: intact events can be read, and streams that are whole can be appended to.
    ///
    /// # Errors
    /// [`LogError::Busy`] if another process writes to it, [`LogError::Newer`] if a later program wrote any of it (it is
    /// then left untouched), or [`LogError::Io`].
    pub fn open(dir: &Path, options: Options) -> Result<(Log, OpenReport), LogError> {
        Self::open_with(Arc::new(RealFiles), dir, options)
    }

    /// As [`Log::open`], with another file layer under journal and manifest. The lock and sled use real files always.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn open_with(files: Arc<dyn Files>, dir: &Path, options: Options) -> Result<(Log, OpenReport), LogError> {
        opening::make_folders(files.as_ref(), dir)?;
        let lock = lock(dir)?;
        let (manifest, trouble) = load_manifest(files.as_ref(), dir)?;
        let listed = manifest.as_ref().map(|manifest| manifest.sealed.clone()).unwrap_or_default();
        let journal = Journal::new(Arc::clone(&files), dir);
        let pass = if options.check_digests { Scan::full } else { Scan::quick };
        let scan = pass(&journal, dir, manifest.clone())?;
        let promised = Promised::read(files.as_ref(), dir, manifest.as_ref())?;
        if !options.ordered_store {
            promised.leave(files.as_ref(), dir, manifest.as_ref())?;
        }
        let Cleared { journal, mut scan, freed, dropped, changed } =
            opening::remove_gone(&files, dir, journal, scan, manifest)?;
        let mut report = OpenReport { findings: scan.findings.clone(), freed_bytes: freed, ..OpenReport::default() };
        report.lines.extend(scan.findings.iter().map(Finding::to_string));
        let in_journal = |run| runs(scan.heads.keys()).contains(&run);
        let sealed = Sealed::load(&files, dir, (&listed, &dropped), in_journal)?;
        report.lines.extend(sealed.findings.iter().map(Finding::to_string));
        report.findings.extend(sealed.findings.iter().cloned());
        let sharing = check_sharing(&journal, &scan, &sealed)?;
        report.lines.extend(sharing.iter().map(Finding::to_string));
        report.findings.extend(sharing.iter().cloned());
        let is_new = sealed.entries.is_empty() && scan.events == 0 && scan.findings.is_empty() && scan.torn.is_none();
        if let Some(trouble) = trouble.as_ref().filter(|_| !is_new) {
            report.lines.push(format!("MANIFEST was rebuilt from the journal ({})", trouble.detail));
        }
        let end = opening::repair_end(files.as_ref(), &journal, &scan, &mut report)?;
        let rotate_bytes = options.rotate_bytes.clamp(1, u64::from(u32::MAX));
        let writer = JournalWriter::open(Arc::clone(&files), dir, end, rotate_bytes)?;
        let sled = if options.ordered_store {
            opening::open_ordered(dir, options.inline_bytes, &journal, &scan, &promised, &mut report)?
        } else {
            None
        };
        let changed =
            changed || sealed.adopted > 0 || trouble.is_some() || report.torn_tail_bytes > 0 || report.reapplied > 0;
        if let Some(store) = sled.as_ref().filter(|_| changed || promised.is_behind()) {
            store.flush().map_err(|reason| LogError::Ordered { dir: dir.to_owned(), reason })?;
        }
        if changed {
            sealed.manifest(end, &scan.heads).write(files.as_ref(), dir)?;
        }
        if sled.is_some() {
            promised.fulfil(files.as_ref(), dir)?;
        }
        let ordered = Ordered { index: std::mem::take(&mut scan.index), sled };
        let closed_streams = ClosedStreams::new(scan.findings.iter().chain(&sharing), &scan.heads);
        let shared = Arc::new(Shared {
            dir: dir.to_owned(),
            files,
            journal,
            heads: RwLock::new(dense(scan.heads)),
            payloads: RwLock::new(scan.payloads),
            prefixes: RwLock::new(scan.prefixes),
            ordered: RwLock::new(ordered),
            sealed,
            failures: AtomicU64::new(0),
            progress: Progress::default(),
        });
        let findings = report.findings.clone();
        let log = start(shared, writer, options, findings, closed_streams, lock)?;
        Ok((log, report))
    }

    /// Hands over events to be appended to a stream, in order and next to one another, and returns at once, unless more
    /// than a thousand submissions are waiting.
    ///
    /// Numbers are given in the order of submission. Nothing is acknowledged before [`Ticket::wait`] has returned. If an
    /// append fails, everything that was submitted behind it before it failed fails as well, so no stream gets an event
    /// without those that were submitted before it. After a crash a beginning of the append may be there.
    ///
    /// Errors come out of [`Ticket::wait`]: among them [`LogError::Tokens`] for an action whose ids and
    /// log-probabilities do not match one to one.
    pub fn submit(&self, stream: Stream, expected: Expected, bodies: Vec<Body>) -> Ticket {
        let state = match self.enqueue(stream, expected, &bodies) {
            Ok(state) => state,
            Err(error) => TicketState::Refused(error),
        };
        Ticket { state }
    }

    fn enqueue(&self, stream: Stream, expected: Expected, bodies: &[Body]) -> Result<TicketState, LogError> {
        let failures = self.failures();
        self.check_open(stream)?;
        if bodies.is_empty() {
            return Err(LogError::EmptyAppend { stream });
        }
        let bodies = bodies.iter().map(|body| encode(stream, body)).collect::<Result<Vec<_>, _>>()?;
        let at_us = self.now_us();
        self.send(|reply| Message::Append(Submission { stream, expected, at_us, bodies, failures, reply }))
    }

    /// Hands a message to the committer.
    pub(crate) fn send(&self, message: impl FnOnce(Reply) -> Message) -> Result<TicketState, LogError> {
        let closed = || LogError::Closed { dir: self.shared.dir.clone() };
        let (reply, answer) = channel::bounded(1);
        self.inbox.as_ref().ok_or_else(closed)?.send(message(reply)).map_err(|_| closed())?;
        Ok(TicketState::Waiting { reply: answer, dir: self.shared.dir.clone() })
    }

    /// The number of failed commits so far.
    pub(crate) fn failures(&self) -> u64 {
        self.shared.failures.load(Ordering::SeqCst)
    }

    pub(crate) fn now_us(&self) -> u64 {
        (self.clock)()
    }

    /// How many live streams stand behind this one, each the base of the one before.
    pub(crate) fn bases_behind(&self, stream: Stream) -> usize {
        prefix::depth(&self.shared.prefixes, &self.shared.sealed, stream)
    }

    /// Appends events and waits until they are acknowledged: [`Log::submit`] and [`Ticket::wait`].
    ///
    /// # Errors
    /// As [`Ticket::wait`].
    pub fn append(&self, stream: Stream, expected: Expected, bodies: Vec<Body>) -> Result<Ack, LogError> {
        self.submit(stream, expected, bodies).wait()
    }

    /// Waits until every append submitted before has failed or is durable, whatever the [`Durability`], and is readable
    /// through this log.
    ///
    /// # Errors
    /// [`LogError::Io`] if what was acknowledged could not be made durable, [`LogError::Closed`] if the log's threads have
    /// ended. Failed appends tell it through their tickets.
    pub fn flush(&self) -> Result<(), LogError> {
        let closed = || LogError::Closed { dir: self.shared.dir.clone() };
        let (reply, answer) = channel::bounded(1);
        self.inbox.as_ref().ok_or_else(closed)?.send(Message::Barrier(reply)).map_err(|_| closed())?;
        answer.recv().map_err(|_| closed())??;
        self.shared.progress.catch_up();
        Ok(())
    }

    /// Finishes what was submitted, makes it durable, brings manifest and ordered store up to the journal, and lets others
    /// write.
    ///
    /// # Errors
    /// If the manifest or the ordered store could not be written: what was durable is so all the same. If the last sync
    /// failed, which only a mode other than [`Durability::Durable`] leaves for the end.
    pub fn close(mut self) -> Result<(), LogError> {
        self.stop()
    }

    /// Whether the run lies in an archive: it can be read as any other, and takes no more events.
    #[must_use]
    pub fn is_sealed(&self, run: RunId) -> bool {
        self.shared.sealed.holds(run)
    }

    /// The archives of the log.
    pub(crate) fn sealed_entries(&self) -> &[SealedEntry] {
        &self.shared.sealed.entries
    }

    /// Ends the log's threads and, while it is still locked, changes what the manifest lists as sealed and dropped. The
    /// events of these runs in the journal do not count from then on; the next opening removes them.
    pub(crate) fn hand_over(
        mut self,
        change: impl FnOnce(&mut Vec<SealedEntry>, &mut Vec<DroppedRun>),
    ) -> Result<(), LogError> {
        self.stop()?;
        let (files, dir) = (self.shared.files.as_ref(), &self.shared.dir);
        let number = self.shared.journal.numbers(dir)?.last().copied().unwrap_or(0);
        let is_empty = self.shared.journal.get(number)?.is_empty();
        let is_empty = is_empty
            .map_err(|error| LogError::io("read the journal file", &self.shared.journal.path(number), error))?;
        // Everything before the mark is complete; nothing that is rewritten may hold the mark.
        let mark = Mark { file: if is_empty { number } else { number.saturating_add(1) }, offset: 0 };
        drop(JournalWriter::open(Arc::clone(&self.shared.files), dir, mark, u64::MAX)?);
        let mut manifest = self.shared.sealed.manifest(mark, &self.heads());
        change(&mut manifest.sealed, &mut manifest.dropped);
        manifest.sealed.sort_by_key(|entry| entry.run);
        manifest.dropped.sort_by_key(|dropped| dropped.run);
        let gone = manifest.gone();
        manifest.heads.retain(|(stream, _)| !gone.contains(&stream.run()));
        manifest.write(files, dir)
    }

    /// How an acknowledgement relates to the disk.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// The log's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.shared.dir
    }

    fn stop(&mut self) -> Result<(), LogError> {
        self.inbox = None;
        let ended = |reason: &str| LogError::Ordered { dir: self.shared.dir.clone(), reason: reason.to_owned() };
        let synced = match self.committer.take() {
            Some(committer) => committer.join().map_err(|_| ended("the committer panicked"))?,
            None => Ok(()),
        };
        let saved = match self.applier.take() {
            Some(applier) => applier.join().map_err(|_| ended("the applier panicked"))?,
            None => Ok(()),
        };
        synced.and(saved)
    }

    /// Whether the stream takes events.
    pub(crate) fn check_open(&self, stream: Stream) -> Result<(), LogError> {
        let run = stream.run();
        if self.closed_streams.0.contains(&stream_key(stream)) {
            Err(LogError::DamagedStream { stream })
        } else if self.is_sealed(run) {
            Err(LogError::Sealed { run })
        } else if self.shared.sealed.dropped(run) {
            Err(LogError::Dropped { run })
        } else {
            Ok(())
        }
    }

    /// What can be read now, and where the stream ends in it.
    fn holdings(&self, stream: Stream) -> (Holdings<'_>, u64) {
        let end = self.head(stream).map_or(0, |head| head.count);
        self.shared.progress.catch_up();
        (self.shared.holdings(&self.findings), end)
    }

    fn heads(&self) -> std::sync::RwLockReadGuard<'_, BTreeMap<StreamKey, Head>> {
        self.shared.heads.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            tracing::warn!(%error, "closing a log failed");
        }
        // Closing the file alone would not do while a process that is just being started shares it.
        let _ = self.lock.unlock();
    }
}

impl EventSource for Log {
    fn runs(&self) -> Vec<RunId> {
        self.shared.sealed.with_runs(runs(self.heads().keys()))
    }

    fn streams(&self, run: RunId) -> Vec<Stream> {
        match self.shared.sealed.of(run) {
            Some(archive) => archive.streams(run),
            None => streams(self.heads().keys(), run),
        }
    }

    fn head(&self, stream: Stream) -> Option<Head> {
        match self.shared.sealed.of(stream.run()) {
            Some(archive) => archive.head(stream),
            None => self.shared.head(&stream_key(stream)),
        }
    }

    fn findings(&self) -> Vec<Finding> {
        self.findings.clone()
    }

    fn headers(&self, stream: Stream, from: Seq) -> HeaderIter<'_> {
        let (holdings, end) = self.holdings(stream);
        holdings.headers(stream, from, end)
    }

    fn frames(&self, stream: Stream, from: Seq, filter: &Filter) -> FrameIter<'_> {
        let (holdings, end) = self.holdings(stream);
        holdings.frames(stream, from, end, filter)
    }

    fn events(&self, stream: Stream, from: Seq, filter: &Filter) -> EventIter<'_> {
        let (holdings, end) = self.holdings(stream);
        holdings.events(stream, from, end, filter)
    }

    fn shared(&self, stream: Stream) -> Option<SharedPrefix> {
        let is_live = self.shared.sealed.of(stream.run()).is_none();
        self.shared.prefixes.of(stream).filter(|_| is_live).map(|prefix| prefix.shared())
    }
}

impl ClosedStreams {
    fn new<'a>(findings: impl Iterator<Item = &'a Finding>, heads: &BTreeMap<StreamKey, Head>) -> Self {
        let uncertain = |finding: &&Finding| {
            matches!(
                finding.class,
                FindingClass::InteriorDamage
                    | FindingClass::MissingEvents
                    | FindingClass::ChainBreak
                    | FindingClass::ManifestDisagreement
                    | FindingClass::BaseDisagreement
            )
        };
        let mut keys = BTreeSet::new();
        for finding in findings.filter(uncertain) {
            match finding.stream {
                Some(stream) => drop(keys.insert(stream_key(stream))),
                // It may have been any stream's last event.
                None => keys.extend(heads.keys().copied()),
            }
        }
        ClosedStreams(keys)
    }
}

/// The same map in less memory: one that grew in order is half empty, one that is made of sorted entries is not.
fn dense(heads: BTreeMap<StreamKey, Head>) -> BTreeMap<StreamKey, Head> {
    heads.into_iter().collect()
}

/// What is wrong with what streams share by reference.
fn check_sharing(journal: &Journal, scan: &Scan, sealed: &Sealed) -> Result<Vec<Finding>, LogError> {
    let holdings = Holdings {
        order: &scan.index,
        source: Source { journal, payloads: &scan.payloads },
        findings: &scan.findings,
        sealed,
        prefixes: &scan.prefixes,
    };
    let head = |stream: Stream| match sealed.of(stream.run()) {
        Some(archive) => archive.head(stream),
        None => scan.heads.get(&stream_key(stream)).copied(),
    };
    prefix::check(holdings, &scan.prefixes, head, scan.computed)
}

fn encode(stream: Stream, body: &Body) -> Result<Encoded, LogError> {
    if let Body::ActionSampled(action) = body {
        action.check().map_err(|source| LogError::Tokens { stream, source })?;
    }
    let kind = body.kind();
    let bytes =
        body.encode().map_err(|error| LogError::Encode { stream, kind: kind.name(), reason: error.to_string() })?;
    if bytes.len() > MAX_BODY {
        return Err(LogError::TooLarge { stream, kind: kind.name(), bytes: bytes.len(), limit: MAX_BODY });
    }
    Ok(Encoded::new(kind, body.version(), bytes))
}

fn lock(dir: &Path) -> Result<File, LogError> {
    let path = dir.join(LOCK);
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|error| LogError::io("open the lock file", &path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(LogError::Busy { dir: dir.to_owned() }),
        Err(TryLockError::Error(error)) => Err(LogError::io("lock the log", &path, error)),
    }
}

fn start(
    shared: Arc<Shared>,
    writer: JournalWriter,
    options: Options,
    findings: Vec<Finding>,
    closed_streams: ClosedStreams,
    lock: File,
) -> Result<Log, LogError> {
    let (inbox, submissions) = channel::bounded(WAITING_SUBMISSIONS);
    let (outbox, commits) = channel::bounded(WAITING_COMMITS);
    let applier = Applier {
        shared: Arc::clone(&shared),
        inbox: commits,
        heads: dense(shared.heads.read().unwrap_or_else(PoisonError::into_inner).clone()),
        end: writer.end(),
        checkpoint_bytes: options.checkpoint_bytes,
        unsaved: 0,
        ahead: Ahead::default(),
    };
    let committer = Committer {
        shared: Arc::clone(&shared),
        writer,
        inbox: submissions,
        outbox,
        durability: options.durability,
        timer: channel::never(),
        is_timed: false,
        last_failure: String::new(),
    };
    let failed = |error| LogError::io("start a thread for the log", &shared.dir, error);
    let applier =
        thread::Builder::new().name("rao-log-apply".to_owned()).spawn(move || applier.run()).map_err(failed)?;
    let committer =
        thread::Builder::new().name("rao-log-commit".to_owned()).spawn(move || committer.run()).map_err(failed)?;
    Ok(Log {
        shared,
        clock: options.clock,
        durability: options.durability,
        inbox: Some(inbox),
        committer: Some(committer),
        applier: Some(applier),
        findings,
        closed_streams,
        lock,
    })
}
