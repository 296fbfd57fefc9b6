//! Stops and failures at every write and sync of a recording: nothing acknowledged is ever lost.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rao_store::event::Body;
use rao_store::{ErrorClass, EventSource, Expected, Filter, Log, LogError, Options, Reader, Seq, Stream, verify_with};

use crate::common::{everything, note, options, plain_options, rollout, varied};
use crate::faults::{Fault, FaultFiles, Survival};

type Events = BTreeMap<Stream, Vec<Body>>;

/// A recording of a few commits, with files and manifests changing in between. Returns what was submitted and, of each
/// stream, how much was acknowledged.
fn record(files: &FaultFiles, dir: &Path, options: Options) -> (Events, BTreeMap<Stream, usize>) {
    let (mut sent, mut acknowledged) = (Events::new(), BTreeMap::new());
    let Ok((log, _)) = Log::open_with(Arc::new(files.clone()), dir, options) else { return (sent, acknowledged) };
    for i in 0..12u64 {
        let stream = rollout(1, (i % 3) as u32);
        let bodies: Vec<Body> = (0..1 + i % 4).map(|j| varied(i * 10 + j)).collect();
        sent.entry(stream).or_default().extend(bodies.iter().cloned());
        if log.append(stream, Expected::Any, bodies).is_err() {
            break;
        }
        acknowledged.insert(stream, sent[&stream].len());
    }
    let _ = log.close();
    (sent, acknowledged)
}

/// What is there now is a beginning of what was submitted, holds everything acknowledged, and can be continued.
fn check(files: &FaultFiles, dir: &Path, options: Options, sent: &Events, acknowledged: &BTreeMap<Stream, usize>) {
    let files: Arc<FaultFiles> = Arc::new(files.clone());
    let (log, report) = Log::open_with(files.clone(), dir, options).unwrap();
    assert!(!report.is_damaged(), "{report:?}");
    for (stream, bodies) in sent {
        let read: Vec<Body> = log.events(*stream, Seq(0), &Filter::all()).map(|event| event.unwrap().body).collect();
        assert!(bodies.starts_with(&read), "{stream} is no beginning of what was submitted");
        let wanted = acknowledged.get(stream).copied().unwrap_or(0);
        assert!(read.len() >= wanted, "{stream} holds {} of {wanted} acknowledged events", read.len());
    }
    let before = everything(&log).len();
    log.append(rollout(1, 0), Expected::Any, vec![note("goes on")]).unwrap();
    log.close().unwrap();
    let (reader, report) = Reader::open_with(files, dir).unwrap();
    assert_eq!(report.findings, Vec::new());
    assert_eq!(everything(&reader).len(), before + 1);
}

fn small_files(mut options: Options) -> Options {
    options.rotate_bytes = 2_500;
    options.checkpoint_bytes = 900;
    options
}

#[test]
fn a_stop_at_any_write_or_sync_loses_nothing_acknowledged() {
    let survivals = [Survival::Durable, Survival::Written, Survival::Coin(1), Survival::Coin(2), Survival::Coin(3)];
    for fault in [Fault::CrashBefore, Fault::CrashTorn, Fault::CrashAfter] {
        let mut at = 0;
        loop {
            let dir = tempfile::tempdir().unwrap();
            let files = FaultFiles::with_plan(&[(at, fault)]);
            let (sent, acknowledged) = record(&files, dir.path(), small_files(plain_options()));
            for survival in survivals {
                let rest = files.after_power_cut(survival);
                check(&rest, dir.path(), small_files(plain_options()), &sent, &acknowledged);
            }
            if !files.crashed() {
                assert_eq!(acknowledged.values().sum::<usize>(), 30, "the recording is whole without a stop");
                assert!(at > 50, "the sweep met only {at} operations");
                break;
            }
            at += 1;
        }
    }
}

#[test]
fn a_stop_leaves_sled_to_be_repaired() {
    for at in (3..60).step_by(6) {
        let dir = tempfile::tempdir().unwrap();
        let files = FaultFiles::with_plan(&[(at, Fault::CrashTorn)]);
        let (sent, acknowledged) = record(&files, dir.path(), small_files(options()));
        assert!(files.crashed());
        check(&files.after_power_cut(Survival::Durable), dir.path(), small_files(options()), &sent, &acknowledged);
    }
}

#[test]
fn a_full_disk_fails_the_append_and_nothing_else() {
    // A commit is one write and one sync.
    for (operation, kind) in
        [(0, io::ErrorKind::StorageFull), (1, io::ErrorKind::StorageFull), (1, io::ErrorKind::Other)]
    {
        let dir = tempfile::tempdir().unwrap();
        let files = FaultFiles::default();
        files.spare("MANIFEST");
        let (log, _) = Log::open_with(Arc::new(files.clone()), dir.path(), options()).unwrap();
        let stream = rollout(1, 0);
        log.append(stream, Expected::Any, vec![varied(0), varied(1)]).unwrap();
        log.flush().unwrap();
        files.set_plan(&[(operation, Fault::Fail(kind))]);
        let error = log.append(stream, Expected::Any, vec![varied(2), varied(3)]).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Io, "{error}");
        assert!(error.to_string().contains("0000000000.log"), "{error}");
        if kind == io::ErrorKind::StorageFull {
            assert!(error.to_string().contains("free some space and try again"), "{error}");
        }
        // Earlier events are there, the failed ones are not, and the next append takes their place.
        assert_eq!(log.head(stream).unwrap().count, 2);
        let ack = log.append(stream, Expected::Exactly(Seq(2)), vec![varied(4)]).unwrap();
        assert_eq!(ack.last, Seq(2));
        let bodies: Vec<Body> = everything(&log).into_iter().map(|event| event.body).collect();
        assert_eq!(bodies, vec![varied(0), varied(1), varied(4)]);
        log.close().unwrap();
        let (reader, report) = Reader::open_with(Arc::new(files), dir.path()).unwrap();
        assert_eq!(report.findings, Vec::new());
        assert_eq!(everything(&reader).len(), 3);
    }
}

#[test]
fn what_was_submitted_behind_a_failed_append_fails_too() {
    let dir = tempfile::tempdir().unwrap();
    let files = FaultFiles::default();
    files.spare("MANIFEST");
    let (log, _) = Log::open_with(Arc::new(files.clone()), dir.path(), plain_options()).unwrap();
    files.set_plan(&[(0, Fault::Fail(io::ErrorKind::StorageFull))]);
    let gate = files.gate();
    let held = gate.lock().unwrap();
    let tickets: Vec<_> = (0..50).map(|i| log.submit(rollout(1, 0), Expected::Any, vec![varied(i)])).collect();
    drop(held);
    // Only the first commit fails, but all were submitted before that was known: none may land without the ones before.
    for ticket in tickets {
        let error = ticket.wait().unwrap_err();
        assert!(matches!(error, LogError::Io { .. } | LogError::AfterFailure { .. }), "{error}");
        assert!(error.to_string().contains("append to the journal"), "{error}");
    }
    let ack = log.append(rollout(1, 0), Expected::Exactly(Seq(0)), vec![varied(1)]).unwrap();
    assert_eq!(ack.last, Seq(0));
}

#[test]
fn a_journal_that_cannot_be_brought_back_takes_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let files = FaultFiles::default();
    files.spare("MANIFEST");
    let (log, _) = Log::open_with(Arc::new(files.clone()), dir.path(), plain_options()).unwrap();
    log.append(rollout(1, 0), Expected::Any, vec![varied(0)]).unwrap();
    log.flush().unwrap();
    // The write fails, and so does cutting off what it left.
    files.set_plan(&[(0, Fault::Fail(io::ErrorKind::Other)), (1, Fault::Fail(io::ErrorKind::Other))]);
    let bodies: Vec<Body> = (0..40).map(varied).collect();
    log.append(rollout(1, 0), Expected::Any, bodies).unwrap_err();
    let error = log.append(rollout(1, 0), Expected::Any, vec![varied(2)]).unwrap_err();
    assert!(matches!(error, LogError::Poisoned { .. }), "{error}");
    drop(log);
    let (sent, acknowledged) = (
        BTreeMap::from([(rollout(1, 0), std::iter::once(varied(0)).chain((0..40).map(varied)).collect())]),
        BTreeMap::from([(rollout(1, 0), 1)]),
    );
    check(&files, dir.path(), plain_options(), &sent, &acknowledged);
}

#[test]
fn a_tail_cut_at_any_byte_is_a_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(dir.path(), plain_options()).unwrap();
    let old_manifest = fs::read(dir.path().join("MANIFEST")).unwrap();
    let stream = rollout(1, 0);
    let mut ends = vec![0];
    for i in 0..4 {
        log.append(stream, Expected::Any, vec![varied(i * 2), varied(i * 2 + 1)]).unwrap();
        ends.push(fs::metadata(dir.path().join("journal/0000000000.log")).unwrap().len());
    }
    log.close().unwrap();
    let journal = fs::read(dir.path().join("journal/0000000000.log")).unwrap();
    let manifest = fs::read(dir.path().join("MANIFEST")).unwrap();
    let (journal_path, manifest_path) = (dir.path().join("journal/0000000000.log"), dir.path().join("MANIFEST"));
    for cut in ends[2]..=journal.len() as u64 {
        let files = Arc::new(FaultFiles::default());
        files.put(&journal_path, &journal[..cut as usize]);
        // As a killed process leaves it: the manifest counts nothing yet.
        files.put(&manifest_path, &old_manifest);
        let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
        let torn = !ends.contains(&cut);
        let found = verify_with(files.clone(), dir.path()).unwrap();
        assert!(!found.is_damaged(), "{found:?}");
        let (log, report) = Log::open_with(files.clone(), dir.path(), plain_options()).unwrap();
        let events = everything(&log).len();
        assert!(events == whole * 2 || events == whole * 2 + 1, "{events} events after a cut at {cut}");
        assert_eq!(report.torn_tail_bytes > 0, torn && cut != frame_end(&journal, ends[whole]), "{report:?}");
        log.append(stream, Expected::Exactly(Seq(events as u64)), vec![note("on")]).unwrap();
        log.close().unwrap();
        assert_eq!(verify_with(files.clone(), dir.path()).unwrap().findings, Vec::new());
        // With the manifest of the whole log, the same cut is a loss and is named.
        files.put(&journal_path, &journal[..cut as usize]);
        files.put(&manifest_path, &manifest);
        assert_eq!(verify_with(files, dir.path()).unwrap().is_damaged(), cut < journal.len() as u64);
    }
}

/// Where the frame that begins at `start` ends.
fn frame_end(journal: &[u8], start: u64) -> u64 {
    let length = journal
        .get(start as usize + 36..start as usize + 40)
        .map_or(0, |bytes| u32::from_le_bytes(bytes.try_into().unwrap()));
    start + 92 + u64::from(length)
}

#[test]
fn a_manifest_that_cannot_be_written_is_told_on_closing_and_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let files = FaultFiles::default();
    let (log, _) = Log::open_with(Arc::new(files.clone()), dir.path(), options()).unwrap();
    log.append(rollout(1, 0), Expected::Any, vec![varied(0)]).unwrap();
    log.flush().unwrap();
    let full: Vec<(u64, Fault)> = (0..9).map(|at| (at, Fault::Fail(io::ErrorKind::StorageFull))).collect();
    files.set_plan(&full);
    let error = log.close().unwrap_err();
    assert!(error.class() == ErrorClass::Io && error.to_string().contains("MANIFEST"), "{error}");
    files.set_plan(&[]);
    let (log, report) = Log::open_with(Arc::new(files), dir.path(), options()).unwrap();
    assert_eq!(report.findings, Vec::new());
    assert_eq!(everything(&log).len(), 1);
}

#[test]
fn names_are_durable_once_their_directories_are_synced() {
    let above = tempfile::tempdir().unwrap();
    let dir = above.path().join("some/where");
    let files = FaultFiles::default();
    let (log, _) = Log::open_with(Arc::new(files.clone()), &dir, plain_options()).unwrap();
    // The log's own directory and those made above it.
    for folder in [&dir, &above.path().join("some"), above.path()] {
        assert!(files.synced().iter().any(|synced| synced == folder), "{} is not synced", folder.display());
    }
    assert!(files.synced().iter().all(|synced| synced.starts_with(above.path())));
    log.append(rollout(1, 0), Expected::Any, vec![varied(0)]).unwrap();
    // The journal's file is found after a power cut, though nothing else has been synced since.
    let counted = |files: &FaultFiles| {
        let rest = files.after_power_cut(Survival::Durable);
        let manifest = rao_store::Manifest::decode(&rest.bytes(&dir.join("MANIFEST"))).unwrap();
        let events = everything(&Reader::open_with(Arc::new(rest), &dir).unwrap().0).len();
        (events, manifest.heads.len())
    };
    assert_eq!(counted(&files), (1, 0));
    log.close().unwrap();
    // So is the manifest that closing wrote: without a sync of its directory the old one would be back.
    assert_eq!(counted(&files), (1, 1));
}
