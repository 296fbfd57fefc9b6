//! Pruning: whole runs go, nothing else does, and a stop at any moment leaves each run whole or not there at all.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use rao_store::archive;
use rao_store::event::{Event, ForkBase, RolloutStarted};
use rao_store::prune::{self, Kept, Rule};
use rao_store::{
    ErrorClass, EventSource, Expected, Log, LogError, Manifest, Reader, RolloutId, RunId, Seq, Stream, verify,
    verify_with,
};

use crate::common::{copy_dir, everything, note, open, options, plain_options, policy, record_run, rollout, run};
use crate::faults::{Fault, FaultFiles, Survival};

fn none(_: &dyn EventSource, _: RunId) -> Vec<RunId> {
    Vec::new()
}

fn keep(count: u64) -> Rule {
    Rule { keep: Some(count), older_than_us: None }
}

fn of(events: &[Event], runs: &[u8]) -> Vec<Event> {
    events.iter().filter(|event| runs.iter().any(|n| event.stream.run() == run(*n))).cloned().collect()
}

/// Runs 1 to 4, finished and mixed over several journal files, run 2 sealed, and runs 8 and 9, which have not ended.
fn six_runs(dir: &Path) -> Vec<Event> {
    let mut options = options();
    options.rotate_bytes = 1_500;
    let (log, _) = Log::open(dir, options.clone()).unwrap();
    for n in 1..=4 {
        record_run(&log, n).unwrap();
        // A commit that begins with another run's event.
        let tickets = [8, 9].map(|n| log.submit(rollout(n, 0), Expected::Any, vec![note("mixed")]));
        for ticket in tickets {
            ticket.wait().unwrap();
        }
    }
    log.close().unwrap();
    archive::seal(dir, run(2), options).unwrap();
    let events = everything(&Reader::open(dir).unwrap().0);
    assert_eq!(events.len(), 4 * 13 + 8);
    events
}

fn sizes(dir: &Path) -> u64 {
    ["journal", "sealed"]
        .iter()
        .flat_map(|folder| fs::read_dir(dir.join(folder)).into_iter().flatten())
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum()
}

#[test]
fn old_runs_go_live_and_sealed_and_their_space_is_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let wanted = six_runs(dir.path());
    let (reader, _) = Reader::open(dir.path()).unwrap();
    let plan = prune::would_prune(&reader, keep(2), 0, &none).unwrap();
    drop(reader);
    let before = sizes(dir.path());
    let report = prune::prune(dir.path(), keep(2), 77, &none, options()).unwrap();
    assert_eq!(report.plan, plan, "what is done is what was said");
    let dropped: Vec<RunId> = report.plan.dropped.iter().map(|facts| facts.run).collect();
    assert_eq!(dropped, vec![run(1), run(2)], "the oldest first");
    let expected: u64 = report.plan.dropped.iter().map(|facts| facts.bytes).sum();
    assert_eq!(report.freed, expected);
    assert_eq!(before - sizes(dir.path()), report.freed);
    assert!(!dir.path().join(format!("sealed/{}.raolog", run(2))).exists());

    let rest = of(&wanted, &[3, 4, 8, 9]);
    for _ in 0..2 {
        let (reader, opened) = Reader::open(dir.path()).unwrap();
        assert!(opened.findings.is_empty() && opened.lines.is_empty(), "{opened:?}");
        assert_eq!(everything(&reader), rest);
        let (log, opened) = open(dir.path());
        assert!(opened.findings.is_empty() && opened.lines.is_empty(), "{opened:?}");
        assert_eq!(everything(&log), rest);
        for n in [1, 2] {
            let error = log.append(rollout(n, 0), Expected::Any, vec![note("more")]).unwrap_err();
            assert!(matches!(error, LogError::Dropped { .. }), "{error}");
        }
    }
    let found = verify(dir.path()).unwrap();
    assert_eq!((found.findings.as_slice(), found.events), (&[][..], rest.len() as u64));
    let noted: Vec<_> = found.dropped.iter().map(|dropped| (dropped.run, dropped.at_us, dropped.unfinished)).collect();
    assert_eq!(noted, vec![(run(1), 77, false), (run(2), 77, false)]);
    // Nothing is left to do, and nothing is done.
    let again = prune::prune(dir.path(), keep(2), 99, &none, options()).unwrap();
    assert_eq!((again.plan.dropped, again.freed), (Vec::new(), 0));
    // Unfinished runs stay whatever the rule.
    let all = prune::prune(dir.path(), keep(0), 99, &none, options()).unwrap();
    assert_eq!(
        all.plan.kept.iter().map(|(facts, why)| (facts.run, *why)).collect::<Vec<_>>(),
        [(run(8), Kept::Unfinished), (run(9), Kept::Unfinished)]
    );
    assert_eq!(everything(&open(dir.path()).0), of(&wanted, &[8, 9]));
}

#[test]
fn a_dropped_run_comes_back_only_by_importing_it() {
    let dir = tempfile::tempdir().unwrap();
    let log_dir = dir.path().join("log");
    let wanted = six_runs(&log_dir);
    let file = dir.path().join("one.raolog");
    archive::export(&Reader::open(&log_dir).unwrap().0, run(1), &file).unwrap();
    let sled = dir.path().join("sled");
    open(&log_dir).0.close().unwrap();
    copy_dir(&log_dir.join("events"), &sled);
    prune::prune(&log_dir, keep(2), 5, &none, options()).unwrap();
    // An ordered store that still knows the run is not believed.
    fs::remove_dir_all(log_dir.join("events")).unwrap();
    copy_dir(&sled, &log_dir.join("events"));
    let (log, _) = open(&log_dir);
    assert_eq!(everything(&log), of(&wanted, &[3, 4, 8, 9]));
    log.close().unwrap();
    assert!(archive::import(&log_dir, &file, options()).unwrap().added);
    assert_eq!(everything(&open(&log_dir).0), of(&wanted, &[1, 3, 4, 8, 9]));
    let found = verify(&log_dir).unwrap();
    assert!(found.findings.is_empty());
    assert_eq!(found.dropped.iter().map(|dropped| dropped.run).collect::<Vec<_>>(), [run(2)]);
}

/// A run whose one rollout was forked from `base`.
fn fork(log: &Log, n: u8, base: u8) {
    record_run(log, n).unwrap();
    let base = ForkBase { run: run(base), rollout: RolloutId(0), seq: Seq(1) };
    let started = RolloutStarted {
        task_id: "t".to_owned(),
        difficulty: "tiny".to_owned(),
        task: "{}".to_owned(),
        group: 0,
        member: 0,
        seed: 1,
        policy: policy(),
        fork_base: Some(base),
    };
    log.append(rollout(n, 7), Expected::Any, vec![started.into()]).unwrap();
}

#[test]
fn the_bases_of_forks_that_stay_stay() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    record_run(&log, 1).unwrap();
    fork(&log, 2, 1);
    record_run(&log, 3).unwrap();
    fork(&log, 4, 2);
    log.close().unwrap();
    let report = prune::prune(dir.path(), keep(1), 0, &none, options()).unwrap();
    assert_eq!(report.plan.dropped.iter().map(|facts| facts.run).collect::<Vec<_>>(), [run(3)]);
    let kept: Vec<(RunId, Kept)> = report.plan.kept.iter().map(|(facts, why)| (facts.run, *why)).collect();
    let needed = |n, by| (run(n), Kept::NeededBy(run(by)));
    assert_eq!(kept, [needed(1, 2), needed(2, 4), (run(4), Kept::Newest)]);
    // What the caller knows counts as well.
    let more = |_: &dyn EventSource, which: RunId| if which == run(4) { vec![run(1)] } else { Vec::new() };
    let (reader, _) = Reader::open(dir.path()).unwrap();
    let plan = prune::would_prune(&reader, keep(1), 0, &more).unwrap();
    assert_eq!(plan.dropped, Vec::new());
    drop(reader);
    // When the forks go, so do their bases.
    prune::prune(dir.path(), keep(0), 0, &none, options()).unwrap();
    assert_eq!(Reader::open(dir.path()).unwrap().0.runs(), Vec::new());
}

#[test]
fn a_damaged_log_is_not_pruned() {
    let dir = tempfile::tempdir().unwrap();
    six_runs(dir.path());
    let path = dir.path().join("journal/0000000000.log");
    let mut bytes = fs::read(&path).unwrap();
    bytes[120] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let before = sizes(dir.path());
    let error = prune::prune(dir.path(), keep(0), 0, &none, options()).unwrap_err();
    assert!(error.class() == ErrorClass::Integrity && error.to_string().contains("interior damage"), "{error}");
    assert_eq!(sizes(dir.path()), before);
}

/// What is there after a stop: either all six runs or the four that stay, each of them whole.
fn check_survivor(files: &FaultFiles, dir: &Path, wanted: &[Event]) -> bool {
    let files: Arc<FaultFiles> = Arc::new(files.clone());
    let (reader, report) = Reader::open_with(files.clone(), dir).unwrap();
    assert!(!report.is_damaged(), "{report:?}");
    let seen = everything(&reader);
    let rest = of(wanted, &[3, 4, 8, 9]);
    let is_done = seen == rest;
    assert!(is_done || seen == wanted, "half of a run is to be seen");
    let (log, report) = Log::open_with(files.clone(), dir, plain_options()).unwrap();
    assert!(!report.is_damaged(), "{report:?}");
    assert_eq!(everything(&log), seen);
    log.append(rollout(9, 0), Expected::Any, vec![note("goes on")]).unwrap();
    log.close().unwrap();
    // Opened for writing, the removal is finished, or can be done.
    let manifest = Manifest::decode(&files.bytes(&dir.join("MANIFEST"))).unwrap();
    assert!(manifest.dropped.iter().all(|dropped| !dropped.unfinished), "{manifest:?}");
    let report = prune::prune_with(files.clone(), dir, keep(2), 1, &none, plain_options()).unwrap();
    assert_eq!(report.plan.dropped.is_empty(), is_done);
    let (reader, _) = Reader::open_with(files.clone(), dir).unwrap();
    let runs: BTreeSet<RunId> = everything(&reader).iter().map(|event| event.stream.run()).collect();
    assert_eq!(runs, BTreeSet::from([run(3), run(4), run(8), run(9)]));
    assert_eq!(verify_with(files.clone(), dir).unwrap().findings, Vec::new());
    // Not a byte of them is left.
    for name in files.names() {
        let bytes = files.bytes(&name);
        for n in [1, 2] {
            let is_held = bytes.windows(16).any(|sixteen| sixteen == run(n).0);
            assert!(!is_held || name.ends_with("MANIFEST"), "{} still holds run {n}", name.display());
        }
    }
    is_done
}

#[test]
fn a_stop_at_any_step_of_pruning_leaves_no_half_run() {
    let made = tempfile::tempdir().unwrap();
    let wanted = six_runs(made.path());
    let (mut done, mut undone) = (0, 0);
    for fault in [Fault::CrashBefore, Fault::CrashTorn, Fault::CrashAfter] {
        for at in 0.. {
            let dir = tempfile::tempdir().unwrap();
            let files = FaultFiles::copy_all(made.path(), dir.path());
            files.set_plan(&[(at, fault)]);
            let outcome = prune::prune_with(Arc::new(files.clone()), dir.path(), keep(2), 1, &none, plain_options());
            for survival in [Survival::Durable, Survival::Written, Survival::Coin(1), Survival::Coin(2)] {
                let is_done = check_survivor(&files.after_power_cut(survival), dir.path(), &wanted);
                *(if is_done { &mut done } else { &mut undone }) += 1;
            }
            if !files.crashed() {
                assert!(outcome.is_ok());
                assert!(at > 20, "the sweep met only {at} operations");
                break;
            }
        }
    }
    assert!(done > 20 && undone > 20, "{done} done, {undone} undone");
}

#[test]
fn every_flipped_bit_of_a_manifest_with_dropped_runs_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    six_runs(dir.path());
    prune::prune(dir.path(), keep(2), 7, &none, plain_options()).unwrap();
    let intact = fs::read(dir.path().join("MANIFEST")).unwrap();
    let manifest = Manifest::decode(&intact).unwrap();
    assert_eq!((manifest.sealed.len(), manifest.dropped.len(), intact[4]), (0, 2, 3));
    assert_eq!(manifest.encode(), intact);
    for bit in 0..intact.len() * 8 {
        let mut bytes = intact.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Manifest::decode(&bytes).is_err(), "bit {bit}");
    }
    for cut in 0..intact.len() {
        assert!(Manifest::decode(&intact[..cut]).is_err(), "cut at {cut}");
    }
}

#[test]
fn runs_that_are_dropped_beside_open_readers_are_not_half_seen() {
    let dir = tempfile::tempdir().unwrap();
    let wanted = six_runs(dir.path());
    let (mut follower, _) =
        rao_store::Follower::open(dir.path(), rao_store::Wanted::Log, rao_store::Filter::all()).unwrap();
    let poll = |follower: &mut rao_store::Follower| {
        let mut seen = Vec::new();
        let gave = follower.poll(&mut |event| {
            seen.push(event.unwrap());
            std::ops::ControlFlow::Continue(())
        });
        assert!(gave.unwrap().is_continue());
        seen
    };
    assert_eq!(poll(&mut follower), wanted);
    prune::prune(dir.path(), keep(2), 7, &none, options()).unwrap();
    assert_eq!(poll(&mut follower), Vec::new());
    let (log, _) = open(dir.path());
    log.append(rollout(9, 0), Expected::Any, vec![note("new")]).unwrap();
    assert_eq!(poll(&mut follower).len(), 1);
    assert_eq!(log.head(Stream::Run(run(1))), None);
}
