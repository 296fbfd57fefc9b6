//! Stops at every write and sync while streams begin by reference, and while their bases are sealed.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rao_store::archive;
use rao_store::event::{Body, Event};
use rao_store::{
    Durability, EventSource, Expected, Filter, Log, LogError, Options, Reader, Seq, Stream, Ticket, verify_with,
};

use crate::common::{JOURNAL, everything, note, plain_options, rollout, run, run_started, varied};
use crate::faults::{Fault, FaultFiles, Survival};
use crate::shared::{PREFIX_FRAME, finish, record_forks, share};

const SURVIVALS: [Survival; 5] =
    [Survival::Durable, Survival::Written, Survival::Half, Survival::Coin(1), Survival::Coin(2)];

fn small(durability: Durability) -> Options {
    let mut options = plain_options();
    options.rotate_bytes = 1_500;
    options.checkpoint_bytes = 700;
    options.durability = durability;
    options
}

/// What the streams hold in the end.
fn wanted() -> Vec<(Stream, Vec<Body>)> {
    let base: Vec<Body> = (0..9).map(varied).collect();
    let fork = |count: usize, r: u64| base[..count].iter().cloned().chain([varied(20 + r)]).collect::<Vec<_>>();
    let (first, second) = (fork(5, 0), fork(5, 1));
    let again = first.iter().cloned().chain([note("of a fork")]).collect();
    vec![(rollout(1, 0), base.clone()), (rollout(2, 0), first), (rollout(2, 1), second), (rollout(3, 0), again)]
}

/// Records it all, or what is missing of it; says of each stream how much was acknowledged.
fn record(log: &Log) -> (Vec<u64>, Result<(), LogError>) {
    let streams = wanted();
    let mut acknowledged = vec![0; streams.len()];
    let mut make = || {
        let bodies = |at: usize, from: usize, to: usize| streams[at].1[from..to].to_vec();
        let mut append = |at: usize, from: usize, to: usize| {
            log.append(streams[at].0, Expected::Exactly(Seq(from as u64)), bodies(at, from, to))?;
            acknowledged[at] = acknowledged[at].max(to as u64);
            Ok(())
        };
        append(0, 0, 4)?;
        append(0, 4, 6)?;
        // Both in one go with what stands behind them.
        let mut tickets = log.share_prefix(&[streams[1].0, streams[2].0], streams[0].0, 5);
        for at in [1, 2] {
            tickets.push(log.submit(streams[at].0, Expected::Exactly(Seq(5)), bodies(at, 5, 6)));
        }
        tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop))?;
        append(1, 5, 6)?;
        append(2, 5, 6)?;
        append(0, 6, 9)?;
        share(log, &[streams[3].0], streams[1].0, 6)?;
        append(3, 6, 7)
    };
    let made = make();
    (acknowledged, made)
}

fn bodies(source: &dyn EventSource, stream: Stream) -> Vec<Body> {
    source.events(stream, Seq(0), &Filter::all()).map(|event| event.unwrap().body).collect()
}

fn check(files: &FaultFiles, dir: &Path, options: Options, acknowledged: &[u64]) {
    let files: Arc<FaultFiles> = Arc::new(files.clone());
    let (log, report) = Log::open_with(files.clone(), dir, options).unwrap();
    assert!(!report.is_damaged(), "{report:?}");
    for ((stream, wanted), acknowledged) in wanted().into_iter().zip(acknowledged) {
        let read = bodies(&log, stream);
        assert!(wanted.starts_with(&read), "{stream} is no beginning of what was submitted");
        assert!(read.len() as u64 >= *acknowledged, "{stream} holds {} of {acknowledged}", read.len());
    }
    // What is missing is completed by doing it all once more.
    record(&log).1.unwrap();
    log.close().unwrap();
    let (reader, report) = Reader::open_with(files.clone(), dir).unwrap();
    assert_eq!(report.findings, Vec::new());
    for (stream, wanted) in wanted() {
        assert!(bodies(&reader, stream) == wanted, "{stream}");
    }
    let found = verify_with(files, dir).unwrap();
    assert_eq!((found.findings.as_slice(), found.forks), (&[][..], 3));
}

#[test]
fn a_stop_at_any_write_or_sync_leaves_forks_that_can_be_completed() {
    for durability in [Durability::Durable, Durability::Relaxed(Duration::from_secs(3600)), Durability::End] {
        // The other two differ by what is durable alone.
        let faults = [Fault::CrashTorn, Fault::CrashBefore, Fault::CrashAfter];
        let faults = if durability == Durability::Durable { &faults[..] } else { &faults[..1] };
        for fault in faults.iter().copied() {
            for at in 0.. {
                let dir = tempfile::tempdir().unwrap();
                let files = FaultFiles::with_plan(&[(at, fault)]);
                let mut acknowledged = vec![0; 4];
                if let Ok((log, _)) = Log::open_with(Arc::new(files.clone()), dir.path(), small(durability)) {
                    (acknowledged, _) = record(&log);
                    let _ = log.close();
                }
                if durability != Durability::Durable {
                    acknowledged.fill(0);
                }
                for survival in SURVIVALS {
                    check(&files.after_power_cut(survival), dir.path(), small(durability), &acknowledged);
                }
                if !files.crashed() {
                    assert!(at > 15, "the sweep met only {at} operations");
                    break;
                }
            }
        }
    }
}

#[test]
fn a_prefix_frame_cut_at_any_byte_never_was() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(dir.path(), plain_options()).unwrap();
    let old = fs::read(dir.path().join("MANIFEST")).unwrap();
    log.append(rollout(1, 0), Expected::Any, (0..6).map(varied).collect()).unwrap();
    let start = fs::metadata(dir.path().join(JOURNAL)).unwrap().len() as usize;
    share(&log, &[rollout(2, 0)], rollout(1, 0), 4).unwrap();
    log.close().unwrap();
    let journal = fs::read(dir.path().join(JOURNAL)).unwrap();
    let manifest = fs::read(dir.path().join("MANIFEST")).unwrap();
    assert_eq!(journal.len(), start + PREFIX_FRAME);
    for cut in start..=journal.len() {
        let files = Arc::new(FaultFiles::default());
        files.put(&dir.path().join(JOURNAL), &journal[..cut]);
        files.put(&dir.path().join("MANIFEST"), &old);
        assert!(!verify_with(files.clone(), dir.path()).unwrap().is_damaged());
        let (log, report) = Log::open_with(files.clone(), dir.path(), plain_options()).unwrap();
        assert_eq!(report.torn_tail_bytes as usize, if cut == journal.len() { 0 } else { cut - start });
        assert_eq!(log.head(rollout(2, 0)).is_some(), cut == journal.len());
        share(&log, &[rollout(2, 0)], rollout(1, 0), 4).unwrap();
        assert_eq!(bodies(&log, rollout(2, 0)), (0..4).map(varied).collect::<Vec<_>>());
        log.close().unwrap();
        assert_eq!(verify_with(files.clone(), dir.path()).unwrap().findings, Vec::new());
        // Where the manifest counts it, it is a loss and named.
        files.put(&dir.path().join(JOURNAL), &journal[..cut]);
        files.put(&dir.path().join("MANIFEST"), &manifest);
        let found = verify_with(files, dir.path()).unwrap();
        assert_eq!(found.is_damaged(), cut < journal.len());
        let named = found.findings.iter().any(|finding| finding.stream == Some(rollout(2, 0)));
        assert_eq!(named, cut < journal.len(), "{:?}", found.findings);
    }
}

/// What a reader sees after a stop: every event, sealed or not.
fn check_sealing(files: &FaultFiles, dir: &Path, n: u8, wanted: &[Event]) {
    let files: Arc<FaultFiles> = Arc::new(files.clone());
    let (reader, report) = Reader::open_with(files.clone(), dir).unwrap();
    assert!(!report.is_damaged(), "{report:?}");
    assert!(everything(&reader) == wanted);
    let (log, report) = Log::open_with(files.clone(), dir, plain_options()).unwrap();
    assert!(!report.is_damaged(), "{report:?}");
    assert!(everything(&log) == wanted);
    let was_sealed = log.is_sealed(run(n));
    log.close().unwrap();
    match archive::seal_with(files.clone(), dir, run(n), plain_options()) {
        Ok(_) => assert!(!was_sealed),
        Err(LogError::Sealed { .. }) => assert!(was_sealed),
        Err(error) => panic!("{error}"),
    }
    let found = verify_with(files.clone(), dir).unwrap();
    assert_eq!((found.findings.as_slice(), found.archives, found.events), (&[][..], 1, wanted.len() as u64));
    assert!(everything(&Reader::open_with(files, dir).unwrap().0) == wanted);
}

#[test]
fn a_stop_at_any_step_of_sealing_a_base_or_a_fork_loses_nothing() {
    let made = tempfile::tempdir().unwrap();
    let mut options = plain_options();
    options.rotate_bytes = 3_000;
    let (log, _) = Log::open(made.path(), options).unwrap();
    record_forks(&log);
    (1..=3).for_each(|n| finish(&log, n));
    log.append(Stream::Run(run(9)), Expected::Any, vec![run_started()]).unwrap();
    let wanted = everything(&log);
    log.close().unwrap();
    for n in [1, 2, 3] {
        for fault in [Fault::CrashBefore, Fault::CrashTorn, Fault::CrashAfter] {
            for at in 0.. {
                let dir = tempfile::tempdir().unwrap();
                let files = FaultFiles::copy_all(made.path(), dir.path());
                files.set_plan(&[(at, fault)]);
                let outcome = archive::seal_with(Arc::new(files.clone()), dir.path(), run(n), plain_options());
                for survival in [Survival::Durable, Survival::Written, Survival::Coin(1)] {
                    check_sealing(&files.after_power_cut(survival), dir.path(), n, &wanted);
                }
                if !files.crashed() {
                    assert!(outcome.is_ok() && at > 10, "{outcome:?} after {at} operations");
                    break;
                }
            }
        }
    }
}

#[test]
fn a_full_disk_fails_a_beginning_and_what_was_submitted_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let files = FaultFiles::default();
    files.spare("MANIFEST");
    let (log, _) = Log::open_with(Arc::new(files.clone()), dir.path(), plain_options()).unwrap();
    log.append(rollout(1, 0), Expected::Any, (0..6).map(varied).collect()).unwrap();
    log.flush().unwrap();
    files.set_plan(&[(0, Fault::Fail(std::io::ErrorKind::StorageFull))]);
    let gate = files.gate();
    let held = gate.lock().unwrap();
    // More than one commit takes.
    let streams: Vec<Stream> = (0..60).map(|r| rollout(2, r)).collect();
    let mut tickets: Vec<Ticket> =
        streams.iter().flat_map(|stream| log.share_prefix(&[*stream], rollout(1, 0), 4)).collect();
    tickets.push(log.submit(rollout(2, 0), Expected::Exactly(Seq(4)), vec![note("own")]));
    drop(held);
    for ticket in tickets {
        let error = ticket.wait().unwrap_err();
        assert!(matches!(error, LogError::Io { .. } | LogError::AfterFailure { .. }), "{error}");
    }
    assert_eq!((log.head(rollout(2, 0)), log.shared(rollout(2, 0))), (None, None));
    share(&log, &[rollout(2, 0)], rollout(1, 0), 5).unwrap();
    assert_eq!(bodies(&log, rollout(2, 0)).len(), 5);
}
