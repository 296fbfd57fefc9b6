//! Opening what a command works on: logs, runs, worlds, trees.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rao_engine::Tree;
use rao_envs::{Environment, Secret};
use rao_replay::recorded::{self, RecordedError};
use rao_replay::trainer::TrainError;
use rao_store::event::{Body, Event, HostFacts, Kind, RunStarted};
use rao_store::{
    Durability, EventSource, Filter, FindingClass, IdError, Log, LogError, OpenReport, Options, Reader, RolloutId,
    RunId, RunRole, Seq, Stream, resolve_run,
};

use super::args::DataArgs;
use super::exit::{Code, Failure};
use super::out::note;

/// Microseconds since 1970.
pub(crate) fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |past| u64::try_from(past.as_micros()).unwrap_or(u64::MAX))
}

/// A fresh run id: the time, then randomness.
pub(crate) fn new_run() -> RunId {
    RunId::from_uuid(uuid::Uuid::now_v7())
}

/// Opens a log for writing; makes it if it is not there.
pub(crate) fn writer(dir: &Path) -> Result<Arc<Log>, Failure> {
    writer_with(dir, Durability::Durable)
}

/// The same with another relation between acknowledgements and the disk.
pub(crate) fn writer_with(dir: &Path, durability: Durability) -> Result<Arc<Log>, Failure> {
    let mut options = Options::new(Arc::new(now_us));
    options.durability = durability;
    let (log, report) = Log::open(dir, options)?;
    tell(&report);
    Ok(Arc::new(log))
}

/// Opens a log for writing to go on with the recorded run `name`, as durably as the run says that it is.
pub(crate) fn resumed(dir: &Path, name: &str, wish: Option<Durability>) -> Result<(Arc<Log>, RunId), Failure> {
    let (source, _) = Reader::open(dir)?;
    let run = resolve_run(&source, name, RunRole::Recorded)?;
    let (started, _) = manifest(&source, run)?;
    let durability: Durability = started.durability.parse().map_err(|error: IdError| {
        Failure::new(Code::Integrity, format!("the manifest of run {run} cannot be read: {error}"))
            .help("use the version of rao-log that recorded it, or record anew")
    })?;
    if wish.is_some_and(|wish| wish != durability) {
        note(format_args!(
            "note: run {} was begun with --durability {durability}, and goes on so",
            short(&source, run)
        ));
    }
    drop(source);
    Ok((writer_with(dir, durability)?, run))
}

/// Opens a log that must be there for writing, to compute with what it holds: every digest is checked. The ordered store is
/// left as it is: what is read here is read stream by stream, and it would take more memory than everything else.
pub(crate) fn existing(dir: &Path) -> Result<Arc<Log>, Failure> {
    if !dir.join("journal").is_dir() {
        // The reader says that there is no log, and what to do; a writer would make one.
        Reader::open(dir)?;
    }
    let mut options = Options::new(Arc::new(now_us));
    options.check_digests = true;
    options.ordered_store = false;
    let (log, report) = Log::open(dir, options)?;
    tell(&report);
    Ok(Arc::new(log))
}

/// Opens a log for reading, to compute with what it holds: every digest is checked.
pub(crate) fn checked_reader(dir: &Path) -> Result<Reader, Failure> {
    let (reader, report) = Reader::open_checked(dir)?;
    tell(&report);
    Ok(reader)
}

/// Opens a log for reading.
pub(crate) fn reader(dir: &Path) -> Result<Reader, Failure> {
    let (reader, report) = Reader::open(dir)?;
    tell(&report);
    Ok(reader)
}

fn tell(report: &OpenReport) {
    for line in &report.lines {
        note(format_args!("note: {line}"));
    }
    if report.is_damaged() {
        note("note: this log is damaged; `rao-log verify` says where");
    }
}

/// Refuses to compute with a log that is known to be damaged.
pub(crate) fn refuse_damaged(source: &dyn EventSource) -> Result<(), Failure> {
    match source.findings().into_iter().find(|finding| finding.class != FindingClass::TornTail) {
        Some(finding) => Err(TrainError::Damaged { finding: finding.to_string() }.into()),
        None => Ok(()),
    }
}

/// Closes a log, so that a failure to write its last notes is heard of.
pub(crate) fn close(log: Arc<Log>) -> Result<(), Failure> {
    match Arc::into_inner(log) {
        Some(log) => Ok(log.close()?),
        None => Ok(()),
    }
}

/// A run's id as short as it stays unique in its log, and at least ten digits.
pub(crate) fn short(source: &dyn EventSource, run: RunId) -> String {
    const LEAST: usize = 10;
    let id = run.to_string();
    let common = |other: &RunId| id.chars().zip(other.to_string().chars()).take_while(|(a, b)| a == b).count();
    let others = source.runs().iter().filter(|other| **other != run).map(common).max().unwrap_or_default();
    id.chars().take((others + 1).max(LEAST)).collect()
}

/// A run's manifest and what is known of where it was made.
pub(crate) fn manifest(source: &dyn EventSource, run: RunId) -> Result<(RunStarted, HostFacts), Failure> {
    let filter = Filter::kinds([Kind::RunStarted, Kind::HostFacts]);
    let (mut started, mut host) = (None, HostFacts { program: String::new(), facts: Vec::new() });
    for event in source.events(Stream::Run(run), Seq(0), &filter) {
        match event?.body {
            Body::RunStarted(manifest) => started = Some(manifest),
            Body::HostFacts(facts) => host = facts,
            _ => {}
        }
    }
    match started {
        Some(started) => Ok((started, host)),
        None => Err(LogError::Incomplete { run, reason: "it has no run_started event".into() }.into()),
    }
}

/// One of the facts noted about a run's making.
pub(crate) fn fact<'a>(host: &'a HostFacts, name: &str) -> Option<&'a str> {
    host.facts.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// The run's rollouts that have events, by number.
pub(crate) fn rollouts(source: &dyn EventSource, run: RunId) -> Vec<RolloutId> {
    let number = |stream| if let Stream::Rollout(_, rollout) = stream { Some(rollout) } else { None };
    source.streams(run).into_iter().filter_map(number).collect()
}

/// All events of a rollout.
pub(crate) fn events(source: &dyn EventSource, run: RunId, rollout: RolloutId) -> Result<Vec<Event>, Failure> {
    Ok(source.events(Stream::Rollout(run, rollout), Seq(0), &Filter::all()).collect::<Result<_, _>>()?)
}

/// The execution tree that a rollout's events make.
pub(crate) fn tree(events: &[Event]) -> Result<Tree, Failure> {
    Tree::fold(events)
        .map_err(|error| Failure::new(Code::Integrity, error.to_string()).help("`rao-log verify` checks the whole log"))
}

/// The environment that a run was recorded in.
pub(crate) fn recorded_environment(started: &RunStarted, data: &DataArgs) -> Result<Arc<dyn Environment>, Failure> {
    Ok(recorded::environment_with(started, data.of_env(&started.env), search_key())?)
}

/// The key of a search service. It is handed on and never written down.
pub(crate) fn search_key() -> Option<Secret> {
    std::env::var("RAO_LOG_SEARCH_KEY").ok().filter(|key| !key.is_empty()).map(Secret::new)
}

impl From<RecordedError> for Failure {
    fn from(error: RecordedError) -> Self {
        let code = match error {
            RecordedError::Env(error) => return error.into(),
            RecordedError::Policy(error) => return error.into(),
            RecordedError::Settings { .. } => Code::Integrity,
            RecordedError::NoPolicy { .. } | RecordedError::NoJudge { .. } => Code::Unavailable,
            _ => Code::Usage,
        };
        Failure::new(code, error.to_string())
    }
}
