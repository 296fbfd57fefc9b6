//! Stored logs as regression tests: each log is replayed whole and must give what it holds.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rao_engine::fork::{self, Base};
use rao_engine::record::{self, Plan};
use rao_engine::repl::{Cpython, CpythonOptions, Monty, ReplEngine};
use rao_engine::{EngineError, SERVED, SERVED_TEXT};
use rao_store::archive::ArchiveReader;
use rao_store::event::{Body, Event, ForkBase, HostFacts, Kind, RolloutStarted, RunStarted};
use rao_store::{EventSource, Filter, FindingClass, Log, LogError, Reader, RolloutId, RunId, Seq, Stream};

use crate::check::{Check, Divergence, Means, ReplayError, Request, first_difference, manifest, replay_rollout};
use crate::recorded::{self, FORK_FACT, RecordedError};

/// The ending of what lies beside a log as its data.
const BESIDE: &str = ".data";

/// Why a log could not be tested.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TestError {
    /// Neither a log nor a folder with logs.
    #[error("{path} holds no log: name a log, or a folder with logs in it")]
    NoLog {
        /// What was named.
        path: String,
    },
    /// A folder that cannot be listed.
    #[error("{path} cannot be read: {source}")]
    Io {
        /// The folder.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The log is damaged, so its events are no expectation to hold anything against.
    #[error("the log is damaged: {finding}; restore it from a copy, or record it anew with `rao-log test --bless`")]
    Damaged {
        /// The first finding.
        finding: String,
    },
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The replay cannot be made.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    /// What the log was recorded with is not there.
    #[error(transparent)]
    Recorded(#[from] RecordedError),
    /// The log cannot be recorded anew.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The Python engine that recorded the log is not there.
    #[error("its cells cannot be run: {reason}")]
    Interpreter {
        /// Why.
        reason: String,
    },
    /// A log that only its maker can record anew.
    #[error("it cannot be recorded anew: {reason}")]
    Refused {
        /// Why.
        reason: String,
    },
}

/// A stored log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// Its name: the folder's or file's, with the folders between it and what was named.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
}

impl Case {
    /// The data that lies beside the log: `crafting.data`, a file or a folder, for the logs `crafting` and
    /// `crafting.raolog`.
    #[must_use]
    pub fn data(&self) -> Option<PathBuf> {
        let stem = if is_archive(&self.path) { self.path.file_stem() } else { self.path.file_name() };
        let mut name = stem?.to_owned();
        name.push(BESIDE);
        Some(self.path.with_file_name(name)).filter(|data| data.exists())
    }
}

/// What testing a log gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Rollouts replayed.
    pub rollouts: u64,
    /// Events made again and compared.
    pub compared: u64,
    /// Tool calls executed.
    pub tool_calls: u64,
    /// Actions sampled.
    pub policy_calls: u64,
    /// Nodes judged.
    pub judge_calls: u64,
    /// Runs whose policy was a server, of those that were to be sampled again: no server repeats itself, so they were
    /// checked at [`Check::Tools`].
    pub served: u64,
    /// Rollouts that the run was to hold and that have no end.
    pub incomplete: Vec<String>,
    /// The first event that differs.
    pub divergence: Option<Divergence>,
}

fn is_log(path: &Path) -> bool {
    is_archive(path) || path.join("journal").is_dir()
}

/// Whether `path` is a sealed archive, by its name.
#[must_use]
pub fn is_archive(path: &Path) -> bool {
    path.is_file() && path.extension().is_some_and(|extension| extension == "raolog")
}

/// Opens a stored log for reading.
///
/// # Errors
/// [`LogError::NoLog`] and the others of [`Reader::open`]; for an archive those of [`ArchiveReader::open`].
pub fn open(path: &Path) -> Result<Box<dyn EventSource>, LogError> {
    if is_archive(path) {
        return Ok(Box::new(ArchiveReader::open(path)?));
    }
    let (reader, _) = Reader::open_checked(path)?;
    Ok(Box::new(reader))
}

/// The logs at and below `path`, in the order of their names.
///
/// # Errors
/// When there is none, or a folder cannot be listed.
pub fn find(path: &Path) -> Result<Vec<Case>, TestError> {
    let mut cases = Vec::new();
    let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
    if is_log(path) {
        return Ok(vec![Case { name, path: path.to_owned() }]);
    }
    collect(path, "", &mut cases)?;
    if cases.is_empty() {
        return Err(TestError::NoLog { path: path.display().to_string() });
    }
    cases.sort();
    Ok(cases)
}

fn collect(folder: &Path, above: &str, cases: &mut Vec<Case>) -> Result<(), TestError> {
    if !folder.is_dir() {
        return Err(TestError::NoLog { path: folder.display().to_string() });
    }
    let failed = |source| TestError::Io { path: folder.display().to_string(), source };
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let own = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let name = format!("{above}{own}");
        if is_log(&path) {
            cases.push(Case { name, path });
        } else if path.is_dir() && !own.starts_with('.') && !own.ends_with(BESIDE) {
            collect(&path, &format!("{name}/"), cases)?;
        }
    }
    Ok(())
}

/// Replays every recorded run of a log, up to the first event that differs. `data` is what its world was made from, for
/// logs that used files. Runs of served policies are checked at [`Check::Tools`] at most.
///
/// # Errors
/// When the log is damaged, or what it was recorded with is not there.
pub fn replay(source: &dyn EventSource, check: Check, data: Option<&Path>) -> Result<Report, TestError> {
    if let Some(finding) = source.findings().into_iter().find(|finding| finding.class != FindingClass::TornTail) {
        return Err(TestError::Damaged { finding: finding.to_string() });
    }
    let mut report = Report::default();
    for run in source.runs() {
        if source.head(Stream::Run(run)).is_some() && report.divergence.is_none() {
            replay_run(source, run, check, data, &mut report)?;
        }
    }
    Ok(report)
}

/// The interpreter of the kind that recorded a run.
fn engine(started: &RunStarted) -> Result<Arc<dyn ReplEngine>, TestError> {
    if !started.repl.starts_with("cpython ") {
        return Ok(Arc::new(Monty::new()));
    }
    match Cpython::new(CpythonOptions::default()) {
        Ok(engine) => Ok(Arc::new(engine)),
        Err(error) => Err(TestError::Interpreter { reason: error.to_string() }),
    }
}

fn replay_run(
    source: &dyn EventSource,
    run: RunId,
    asked: Check,
    data: Option<&Path>,
    report: &mut Report,
) -> Result<(), TestError> {
    let (started, config) = manifest(source, run)?;
    let is_served = matches!(started.policy.kind.as_str(), SERVED | SERVED_TEXT);
    let check = if is_served { asked.min(Check::Tools) } else { asked };
    report.served += u64::from(is_served && asked == Check::Tokens);
    let repl = if check == Check::Fold { Arc::new(Monty::new()) } else { engine(&started)? };
    let mut means = Means { env: None, repl, actor: None };
    if check >= Check::Tools {
        means.env = Some(recorded::environment(&started, data.map(Path::to_owned))?);
    }
    if check == Check::Tokens {
        means.actor = Some(recorded::actor(&started, &facts(source, run)?, &config)?);
    }
    for rollout in started.rollouts {
        if source.head(Stream::Rollout(run, rollout)).is_none() {
            report.incomplete.push(place(run, rollout));
            continue;
        }
        let checked = replay_rollout(source, run, rollout, &Request { check, from: Seq(0) }, &mut means)?;
        report.rollouts += 1;
        report.compared += checked.compared;
        report.tool_calls += checked.tool_calls;
        report.policy_calls += checked.policy_calls;
        report.judge_calls += checked.judge_calls;
        if !checked.complete {
            report.incomplete.push(place(run, rollout));
        }
        if checked.divergence.is_some() {
            report.divergence = checked.divergence;
            break;
        }
    }
    Ok(())
}

fn place(run: RunId, rollout: RolloutId) -> String {
    format!("{run}/{rollout}")
}

fn facts(source: &dyn EventSource, run: RunId) -> Result<HostFacts, LogError> {
    let mut host = HostFacts { program: String::new(), facts: Vec::new() };
    for event in source.events(Stream::Run(run), Seq(0), &Filter::kinds([Kind::HostFacts])) {
        if let Body::HostFacts(facts) = event?.body {
            host = facts;
        }
    }
    Ok(host)
}

/// A rollout that was recorded anew and came out otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Changed {
    /// The run.
    pub run: RunId,
    /// The rollout.
    pub rollout: RolloutId,
    /// The first event that differs: `expected` is the old log's, `got` the new one's.
    pub first: Option<Divergence>,
    /// Events before and now.
    pub events: (u64, u64),
    /// The root's own success before and now, where the rollout has an end.
    pub success: (Option<f64>, Option<f64>),
}

/// Records every run of `source` anew into the empty log `into`: the same tasks, settings and seeds with the program, the
/// world and the policy of now. Run ids stay. Returns the rollouts that came out otherwise, in order; a run whose manifest
/// alone differs gives none.
///
/// # Errors
/// For logs with trainings, for forks whose base no longer has the event they left at, and when a recording fails.
pub fn record_anew(
    source: &dyn EventSource,
    into: &Arc<Log>,
    host: &HostFacts,
    data: Option<&Path>,
) -> Result<Vec<Changed>, TestError> {
    let mut changed = Vec::new();
    for run in source.runs() {
        if source.head(Stream::Training(run)).is_some() {
            return Err(TestError::Refused { reason: format!("{run} is a training run") });
        }
        let (started, config) = manifest(source, run)?;
        let repl = engine(&started)?;
        let mut actor = recorded::actor(&started, &facts(source, run)?, &config)?;
        let mut plan = Plan {
            env: recorded::environment(&started, data.map(Path::to_owned))?,
            tasks: Vec::new(),
            group_size: started.group_size,
            config: config.clone(),
            seed: started.seed,
            only: Some(started.rollouts.clone()),
            width: 64,
            panel: recorded::panel(&config)?,
        };
        let watch = &mut |_| ControlFlow::Continue(());
        match fork_base(source, run)? {
            None => {
                plan.tasks = tasks(source, run, started.tasks)?;
                record::record(into, run, &plan, host.clone(), &mut *actor, &repl, watch)?;
            }
            Some(place) => {
                // From the base as it came out now; its run was started before, so it is there.
                let (like, _) = manifest(&**into, place.run)?;
                let address = format!("{}/{}#{}", place.run, place.rollout, place.seq);
                let base = Base::read(&**into, place)?;
                plan.tasks = vec![base.task()?];
                let mut host = host.clone();
                host.facts.push((FORK_FACT.to_owned(), address));
                let own = fork::manifest(&like, plan.group_size, plan.seed, &actor.identity());
                fork::begin(into, run, &base, own, host, &plan)?;
                record::resume(into, run, &plan, &mut *actor, &repl, watch)?;
            }
        }
        for rollout in started.rollouts {
            changed.extend(change(source, &**into, run, rollout)?);
        }
    }
    Ok(changed)
}

fn fork_base(source: &dyn EventSource, run: RunId) -> Result<Option<ForkBase>, LogError> {
    let mut base = None;
    for stream in source.streams(run).into_iter().filter(|stream| matches!(stream, Stream::Rollout(..))).take(1) {
        for event in source.events(stream, Seq(0), &Filter::kinds([Kind::RolloutStarted])) {
            if let Body::RolloutStarted(started) = event?.body {
                base = started.fork_base;
            }
        }
    }
    Ok(base)
}

/// The run's tasks as its rollouts hold them. A group without a rollout needs none, and gets a neighbour's.
fn tasks(source: &dyn EventSource, run: RunId, count: u32) -> Result<Vec<rao_envs::Task>, TestError> {
    let mut by_group = BTreeMap::new();
    for stream in source.streams(run) {
        let first = source.events(stream, Seq(0), &Filter::kinds([Kind::RolloutStarted])).next().transpose()?;
        let Some(Body::RolloutStarted(RolloutStarted { group, task, .. })) = first.map(|event| event.body) else {
            continue;
        };
        by_group.insert(group, record::task_from_json(&task)?);
    }
    let any = by_group.values().next().cloned();
    let any = any.ok_or_else(|| TestError::Refused { reason: format!("run {run} has no rollouts") })?;
    Ok((0..count).map(|group| by_group.get(&group).unwrap_or(&any).clone()).collect())
}

fn change(
    old: &dyn EventSource,
    new: &dyn EventSource,
    run: RunId,
    rollout: RolloutId,
) -> Result<Option<Changed>, LogError> {
    let stream = Stream::Rollout(run, rollout);
    if old.head(stream).map(|head| head.content) == new.head(stream).map(|head| head.content) {
        return Ok(None);
    }
    let read = |source: &dyn EventSource| -> Result<Vec<Event>, LogError> {
        source.events(stream, Seq(0), &Filter::all()).collect()
    };
    let (before, now) = (read(old)?, read(new)?);
    let success = |events: &[Event]| {
        events
            .iter()
            .find_map(|event| if let Body::RolloutFinished(end) = &event.body { Some(end.success) } else { None })
    };
    Ok(Some(Changed {
        run,
        rollout,
        first: first_difference(run, rollout, &before, &now),
        events: (before.len() as u64, now.len() as u64),
        success: (success(&before), success(&now)),
    }))
}
