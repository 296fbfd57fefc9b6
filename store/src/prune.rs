//! Pruning: old runs leave a log, whole.
//!
//! [`plan`] decides which, from facts alone; [`prune`] reads the facts, decides, and removes.
//!
//! # Removing, step by step
//!
//! 1. A new, empty journal file is begun, and `MANIFEST` replaced by one whose mark lies there, which counts none of the
//!    runs' streams, lists none of their archives, and lists the runs as dropped. From this moment they do not exist:
//!    whatever is left of them, in the journal, in an archive or in the ordered store, is passed over.
//! 2. The ordered store is removed, each journal file with events of the runs replaced by one without them, and the runs'
//!    archives are removed.
//! 3. The ordered store is built anew, and `MANIFEST` replaced by one that says that the removal is finished.
//!
//! A crash before step 1 leaves everything. A crash after it leaves work that the next opening for writing does: steps 2
//! and 3 are part of every opening, and can be done any number of times.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use crate::archive;
use crate::dropped::DroppedRun;
use crate::error::LogError;
use crate::event::{Body, Kind};
use crate::files::{Files, RealFiles};
use crate::id::{RunId, Seq};
use crate::log::{Log, Options};
use crate::reader::Reader;
use crate::report::Finding;
use crate::sealed::SealedEntry;
use crate::size::stream_size;
use crate::source::{EventSource, Filter};

/// Which runs go: finished ones that neither limit keeps. A limit that is not set keeps nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The newest so many finished runs stay.
    pub keep: Option<u64>,
    /// Runs that began at most so many microseconds ago stay.
    pub older_than_us: Option<u64>,
}

/// What is known of a run when it is decided on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFacts {
    /// The run, recorded or training.
    pub run: RunId,
    /// When it began: the time of its first event, in microseconds since the Unix epoch.
    pub started_us: u64,
    /// Whether it has ended.
    pub finished: bool,
    /// Its events.
    pub events: u64,
    /// The bytes that its events have in the journal, or its archive's if it is sealed.
    pub bytes: u64,
    /// Whether it lies in an archive.
    pub sealed: bool,
    /// Runs that it needs: those that its rollouts were forked from and, while it is an unfinished training, those that
    /// it learns from.
    pub needs: BTreeSet<RunId>,
}

/// Why a run stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It has not ended.
    Unfinished,
    /// It is one of the newest.
    Newest,
    /// It is not old enough.
    Young,
    /// This run, which stays, needs it: as the base of its forks, or, while it is an unfinished training, to learn from.
    NeededBy(RunId),
}

/// Which runs go and which stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrunePlan {
    /// Runs that go, the oldest first.
    pub dropped: Vec<RunFacts>,
    /// Runs that stay, the oldest first, each with the reason.
    pub kept: Vec<(RunFacts, Kept)>,
}

/// What [`prune`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PruneReport {
    /// What was decided, and done.
    pub plan: PrunePlan,
    /// Bytes that were given back: of journal files and archives.
    pub freed: u64,
}

/// Runs that a run needs beyond those that its events name, for callers who know of more.
pub type MoreNeeds<'a> = &'a dyn Fn(&dyn EventSource, RunId) -> Vec<RunId>;

/// Decides which runs go at the moment `now_us` (microseconds since the Unix epoch).
///
/// Runs are ordered by when they began, then by id. One that began after `now_us` is new. A run stays as well if a run
/// that stays needs it, and so on to the first base.
#[must_use]
pub fn plan(mut facts: Vec<RunFacts>, rule: Rule, now_us: u64) -> PrunePlan {
    facts.sort_by_key(|facts| (facts.started_us, facts.run));
    let finished = facts.iter().filter(|facts| facts.finished).count() as u64;
    let mut kept = BTreeMap::new();
    let mut older = 0;
    for run in &facts {
        let newer = finished - older;
        older += u64::from(run.finished);
        let age = now_us.saturating_sub(run.started_us);
        let reason = if !run.finished {
            Kept::Unfinished
        } else if rule.keep.is_some_and(|keep| newer <= keep) {
            Kept::Newest
        } else if rule.older_than_us.is_some_and(|limit| age <= limit) {
            Kept::Young
        } else {
            continue;
        };
        kept.insert(run.run, reason);
    }
    keep_needed(&facts, &mut kept);
    let mut plan = PrunePlan::default();
    for facts in facts {
        match kept.get(&facts.run) {
            Some(reason) => plan.kept.push((facts, *reason)),
            None => plan.dropped.push(facts),
        }
    }
    plan
}

fn keep_needed(facts: &[RunFacts], kept: &mut BTreeMap<RunId, Kept>) {
    let needs: BTreeMap<RunId, &BTreeSet<RunId>> = facts.iter().map(|facts| (facts.run, &facts.needs)).collect();
    let mut waiting: Vec<RunId> = kept.keys().copied().collect();
    while let Some(run) = waiting.pop() {
        for needed in needs.get(&run).into_iter().copied().flatten() {
            if needs.contains_key(needed) && !kept.contains_key(needed) {
                kept.insert(*needed, Kept::NeededBy(run));
                waiting.push(*needed);
            }
        }
    }
}

/// Decides what [`prune`] would do to a log, and changes nothing.
///
/// # Errors
/// As [`prune`], as far as reading goes.
pub fn would_prune(reader: &Reader, rule: Rule, now_us: u64, more: MoreNeeds<'_>) -> Result<PrunePlan, LogError> {
    refuse_damage(reader.dir(), &reader.findings())?;
    Ok(plan(facts(reader, &reader.sealed().entries, more)?, rule, now_us))
}

/// Drops the runs of the log in `dir` that `rule` does not keep at the moment `now_us`, and gives their space back. A
/// crash at any moment leaves each of these runs whole or not there at all.
///
/// # Errors
/// [`LogError::DamagedLog`] if any damage is known, what [`Log::open`] says, and [`LogError::Io`].
pub fn prune(
    dir: &Path,
    rule: Rule,
    now_us: u64,
    more: MoreNeeds<'_>,
    options: Options,
) -> Result<PruneReport, LogError> {
    prune_with(Arc::new(RealFiles), dir, rule, now_us, more, options)
}

/// As [`prune`], with another file layer.
///
/// # Errors
/// As [`prune`].
pub fn prune_with(
    files: Arc<dyn Files>,
    dir: &Path,
    rule: Rule,
    now_us: u64,
    more: MoreNeeds<'_>,
    options: Options,
) -> Result<PruneReport, LogError> {
    let (log, opened) = Log::open_with(Arc::clone(&files), dir, options.clone())?;
    refuse_damage(dir, &opened.findings)?;
    let plan = plan(facts(&log, log.sealed_entries(), more)?, rule, now_us);
    if plan.dropped.is_empty() {
        log.close()?;
        return Ok(PruneReport { plan, freed: opened.freed_bytes });
    }
    let runs: BTreeSet<RunId> = plan.dropped.iter().map(|facts| facts.run).collect();
    log.hand_over(|sealed, dropped| {
        sealed.retain(|entry| !runs.contains(&entry.run));
        dropped.extend(plan.dropped.iter().map(|facts| DroppedRun::new(facts.run, facts.events, now_us)));
    })?;
    let (log, report) = Log::open_with(files, dir, options)?;
    log.close()?;
    Ok(PruneReport { plan, freed: report.freed_bytes })
}

fn refuse_damage(dir: &Path, findings: &[Finding]) -> Result<(), LogError> {
    match findings.iter().find(|finding| finding.is_damage()) {
        Some(finding) => Err(LogError::DamagedLog { dir: dir.to_owned(), finding: finding.to_string() }),
        None => Ok(()),
    }
}

fn facts(source: &dyn EventSource, sealed: &[SealedEntry], more: MoreNeeds<'_>) -> Result<Vec<RunFacts>, LogError> {
    source.runs().into_iter().map(|run| run_facts(source, run, sealed, more)).collect()
}

fn run_facts(
    source: &dyn EventSource,
    run: RunId,
    sealed: &[SealedEntry],
    more: MoreNeeds<'_>,
) -> Result<RunFacts, LogError> {
    let archive = sealed.iter().find(|entry| entry.run == run);
    let finished = archive::unfinished(source, run)?.is_none();
    let mut facts = RunFacts {
        run,
        started_us: u64::MAX,
        finished,
        events: 0,
        bytes: 0,
        sealed: archive.is_some(),
        needs: more(source, run).into_iter().collect(),
    };
    for stream in source.streams(run) {
        let first = source.headers(stream, Seq(0)).next().transpose()?;
        facts.started_us = first.map_or(facts.started_us, |header| facts.started_us.min(header.at_us));
        let size = stream_size(source, stream)?;
        facts.events += size.events;
        facts.bytes += size.bytes;
        facts.needs.extend(source.shared(stream).map(|shared| shared.base.run()));
        for event in source.events(stream, Seq(0), &Filter::kinds([Kind::RolloutStarted, Kind::TrainStarted])) {
            match event?.body {
                Body::RolloutStarted(started) => facts.needs.extend(started.fork_base.map(|base| base.run)),
                Body::TrainStarted(started) if !finished => {
                    facts.needs.extend(started.runs.into_iter().map(|(run, _)| run));
                }
                _ => {}
            }
        }
    }
    facts.needs.remove(&run);
    facts.bytes = archive.map_or(facts.bytes, |entry| entry.bytes);
    Ok(facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(n: u8, started_us: u64, finished: bool, needs: &[u8]) -> RunFacts {
        let needs = needs.iter().map(|n| RunId([*n; 16])).collect();
        RunFacts { run: RunId([n; 16]), started_us, finished, events: 1, bytes: 1, sealed: false, needs }
    }

    fn dropped(plan: &PrunePlan) -> Vec<u8> {
        plan.dropped.iter().map(|facts| facts.run.0[0]).collect()
    }

    const NOTHING: Rule = Rule { keep: None, older_than_us: None };

    #[test]
    fn the_oldest_go_first_and_limits_keep_what_they_name() {
        // Not in the order of ids: the clock decides.
        let runs = || {
            vec![facts(1, 50, true, &[]), facts(2, 10, true, &[]), facts(3, 30, true, &[]), facts(4, 20, false, &[])]
        };
        let goes = |keep, older_than_us| dropped(&plan(runs(), Rule { keep, older_than_us }, 60));
        assert_eq!(goes(Some(1), None), [2, 3]);
        assert_eq!(goes(Some(2), None), [2]);
        assert_eq!(goes(Some(3), None), [0u8; 0]);
        assert_eq!(goes(Some(0), None), [2, 3, 1]);
        assert_eq!(goes(None, Some(29)), [2, 3]);
        assert_eq!(goes(None, Some(30)), [2], "not older, but exactly as old");
        assert_eq!(goes(Some(2), Some(10)), [2], "both must let it go");
        assert_eq!(goes(Some(0), Some(40)), [2]);
        let kept = plan(runs(), Rule { keep: Some(1), ..NOTHING }, 60).kept;
        let kept: Vec<(u8, Kept)> = kept.iter().map(|(facts, reason)| (facts.run.0[0], *reason)).collect();
        assert_eq!(kept, [(4, Kept::Unfinished), (1, Kept::Newest)]);
        // A clock that was ahead makes a run new, not ancient.
        let ahead = plan(vec![facts(1, 500, true, &[])], Rule { older_than_us: Some(1), ..NOTHING }, 60);
        assert_eq!(ahead.dropped, Vec::new());
    }

    #[test]
    fn bases_of_what_stays_stay_down_to_the_first() {
        let runs = vec![
            facts(1, 1, true, &[]),
            facts(2, 2, true, &[1]),
            facts(3, 3, true, &[]),
            facts(4, 4, true, &[3]),
            facts(5, 5, true, &[2, 99]),
        ];
        let plan = plan(runs, Rule { keep: Some(1), ..NOTHING }, 9);
        assert_eq!(dropped(&plan), [3, 4], "a base whose forks go goes with them");
        let because: Vec<Kept> = plan.kept.iter().map(|(_, reason)| *reason).collect();
        let needed_by = |n: u8| Kept::NeededBy(RunId([n; 16]));
        assert_eq!(because, [needed_by(2), needed_by(5), Kept::Newest]);
    }
}
