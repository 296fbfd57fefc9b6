//! Writers that go on without the ordered store: it stays as it is, and the next one with it carries in what it misses.

use std::fs;
use std::path::Path;

use rao_store::archive;
use rao_store::event::Event;
use rao_store::prune::{self, Rule};
use rao_store::{EventSource, Expected, Filter, Log, OpenReport, Seq, verify};

use crate::common::{copy_dir, everything, note, open, options, plain_options, rollout, varied};
use crate::shared::{finish, start};

/// The manifest that the ordered store lives up to.
const BEHIND: &str = "events.manifest";

/// Appends events `from..to` to three streams in turn.
fn append(log: &Log, from: u64, to: u64) {
    for i in from..to {
        log.append(rollout(1, (i % 3) as u32), Expected::Any, vec![varied(i)]).unwrap();
    }
}

/// A log with 300 events in the ordered store and 90 more behind it.
fn recorded(dir: &Path) -> Vec<Event> {
    let (log, _) = open(dir);
    append(&log, 0, 300);
    log.close().unwrap();
    let (log, report) = Log::open(dir, plain_options()).unwrap();
    assert_eq!(report, OpenReport::default());
    append(&log, 300, 390);
    let events = everything(&log);
    log.close().unwrap();
    assert_eq!(events.len(), 390);
    events
}

#[test]
fn the_ordered_store_stays_behind_and_catches_up_with_what_it_misses_alone() {
    let dir = tempfile::tempdir().unwrap();
    recorded(dir.path());
    assert!(dir.path().join("events/db").exists() && dir.path().join(BEHIND).exists());
    // Another writer without it keeps the promise as it is.
    let promise = fs::read(dir.path().join(BEHIND)).unwrap();
    let (log, _) = Log::open(dir.path(), plain_options()).unwrap();
    append(&log, 390, 399);
    let wanted = everything(&log);
    log.close().unwrap();
    assert_eq!(fs::read(dir.path().join(BEHIND)).unwrap(), promise);
    let (log, report) = open(dir.path());
    assert_eq!((report.reapplied, report.set_aside, report.lines.len()), (99, None, 0));
    assert!(everything(&log) == wanted && !dir.path().join(BEHIND).exists());
    append(&log, 399, 402);
    log.close().unwrap();
    let (log, report) = open(dir.path());
    assert_eq!(report, OpenReport::default());
    assert_eq!(everything(&log).len(), 402);
    assert_eq!(verify(dir.path()).unwrap().findings, Vec::new());
}

#[test]
fn a_writer_without_the_ordered_store_that_is_killed_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    recorded(dir.path());
    let (log, _) = Log::open(dir.path(), plain_options()).unwrap();
    for step in 0..5 {
        append(&log, 390 + 10 * step, 400 + 10 * step);
        // What is on the disk while it runs is what a kill leaves.
        let copy = tempfile::tempdir().unwrap();
        copy_dir(dir.path(), copy.path());
        for with in [plain_options(), options()] {
            let (after, report) = Log::open(copy.path(), with).unwrap();
            assert!(report.findings.is_empty() && report.set_aside.is_none(), "{report:?}");
            assert_eq!(everything(&after).len() as u64, 400 + 10 * step);
            assert!(everything(&after) == everything(&log));
            after.close().unwrap();
        }
        assert!(!copy.path().join(BEHIND).exists());
    }
}

#[test]
fn a_store_that_lost_what_it_had_is_still_noticed_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    append(&log, 0, 200);
    log.close().unwrap();
    let older = tempfile::tempdir().unwrap();
    copy_dir(&dir.path().join("events"), older.path());
    let (log, _) = open(dir.path());
    append(&log, 200, 300);
    log.close().unwrap();
    let (log, _) = Log::open(dir.path(), plain_options()).unwrap();
    append(&log, 300, 390);
    let wanted = everything(&log);
    log.close().unwrap();
    // Of the 300 that it promised it has 200.
    fs::remove_dir_all(dir.path().join("events")).unwrap();
    copy_dir(older.path(), &dir.path().join("events"));
    for promise in [true, false] {
        let copy = tempfile::tempdir().unwrap();
        copy_dir(dir.path(), copy.path());
        if !promise {
            // Without a promise that can be read, nothing that is missing is a loss.
            fs::write(copy.path().join(BEHIND), b"nothing").unwrap();
        }
        let (log, report) = open(copy.path());
        assert_eq!(report.set_aside.is_some(), promise, "{report:?}");
        assert_eq!(report.reapplied, if promise { 390 } else { 190 });
        assert!(everything(&log) == wanted && !copy.path().join(BEHIND).exists());
        log.close().unwrap();
        assert_eq!(open(copy.path()).1, OpenReport::default());
    }
}

#[test]
fn a_store_that_holds_another_event_than_the_journal_is_noticed_behind() {
    let dir = tempfile::tempdir().unwrap();
    recorded(dir.path());
    let other = tempfile::tempdir().unwrap();
    let (log, _) = open(other.path());
    append(&log, 0, 100);
    // The same length, another text.
    log.append(rollout(1, 1), Expected::Any, vec![note("a")]).unwrap();
    append(&log, 101, 300);
    log.close().unwrap();
    let (log, _) = Log::open(other.path(), plain_options()).unwrap();
    log.close().unwrap();
    fs::remove_dir_all(dir.path().join("events")).unwrap();
    copy_dir(&other.path().join("events"), &dir.path().join("events"));
    let (log, report) = open(dir.path());
    assert!(report.set_aside.is_some(), "{report:?}");
    assert_eq!((report.reapplied, everything(&log).len()), (390, 390));
}

#[test]
fn runs_are_sealed_and_dropped_while_the_store_is_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    for n in 1..=3 {
        start(&log, n);
        log.append(rollout(n, 0), Expected::Any, (0..40).map(varied).collect()).unwrap();
    }
    log.close().unwrap();
    let (log, _) = Log::open(dir.path(), plain_options()).unwrap();
    for n in 1..=3 {
        log.append(rollout(n, 0), Expected::Any, (40..60).map(varied).collect()).unwrap();
        finish(&log, n);
    }
    let all = everything(&log);
    log.close().unwrap();
    archive::seal(dir.path(), crate::common::run(2), plain_options()).unwrap();
    let (log, report) = open(dir.path());
    assert!(report.findings.is_empty() && report.set_aside.is_none(), "{report:?}");
    assert!(everything(&log) == all);
    log.close().unwrap();
    let (log, _) = Log::open(dir.path(), plain_options()).unwrap();
    log.append(rollout(4, 0), Expected::Any, (0..10).map(varied).collect()).unwrap();
    log.close().unwrap();
    let rule = Rule { keep: Some(1), older_than_us: None };
    prune::prune(dir.path(), rule, u64::MAX, &|_, _| Vec::new(), plain_options()).unwrap();
    let (log, report) = open(dir.path());
    assert!(report.findings.is_empty() && report.set_aside.is_none(), "{report:?}");
    let read = |n| log.events(rollout(n, 0), Seq(0), &Filter::all()).filter_map(Result::ok).count();
    assert_eq!([1, 2, 3, 4].map(read), [0, 0, 60, 10]);
    assert_eq!(verify(dir.path()).unwrap().findings, Vec::new());
}
