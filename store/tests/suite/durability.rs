//! The durability modes: what a stopped machine may cost in each, and what not in any.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rao_store::event::{Body, RunFinished};
use rao_store::{
    Digest, Durability, EventSource, Expected, Filter, Log, LogError, Manifest, Options, Reader, Seq, Stream,
    verify_with,
};

use crate::common::{everything, note, plain_options, rollout, run, run_started, varied};
use crate::faults::{Fault, FaultFiles, Survival};

type Events = BTreeMap<Stream, Vec<Body>>;

const HOUR: Durability = Durability::Relaxed(Duration::from_secs(3600));
const MODES: [Durability; 4] =
    [Durability::Durable, Durability::Relaxed(Duration::from_millis(1)), HOUR, Durability::End];

fn small(durability: Durability) -> Options {
    let mut options = plain_options();
    options.rotate_bytes = 2_500;
    options.checkpoint_bytes = 900;
    options.durability = durability;
    options
}

/// What a recording submitted, and how much of each stream must survive whatever happens.
#[derive(Default)]
struct Recording {
    sent: Events,
    acknowledged: BTreeMap<Stream, usize>,
    durable: BTreeMap<Stream, usize>,
}

impl Recording {
    fn append(&mut self, log: &Log, stream: Stream, bodies: Vec<Body>) -> Option<()> {
        self.sent.entry(stream).or_default().extend(bodies.iter().cloned());
        log.append(stream, Expected::Any, bodies).ok()?;
        self.acknowledged.insert(stream, self.sent[&stream].len());
        if log.durability() == Durability::Durable {
            self.durable = self.acknowledged.clone();
        }
        Some(())
    }

    /// Appends to three streams, flushes in between, ends a run, and goes on.
    fn make(&mut self, log: &Log) -> Option<()> {
        for i in 0..12u64 {
            let bodies = (0..1 + i % 4).map(|j| varied(i * 10 + j)).collect();
            self.append(log, rollout(1, (i % 3) as u32), bodies)?;
            if i == 4 {
                log.flush().ok()?;
                self.durable = self.acknowledged.clone();
            }
            if i == 8 {
                let end = RunFinished { rollouts: 0, content: Digest::of(b"end") };
                self.append(log, Stream::Run(run(2)), vec![run_started(), end.into()])?;
                // The end of a run is acknowledged when it is durable, and everything before it.
                self.durable = self.acknowledged.clone();
            }
        }
        Some(())
    }
}

fn record(files: &FaultFiles, dir: &Path, durability: Durability) -> Recording {
    let mut recording = Recording::default();
    let Ok((log, _)) = Log::open_with(Arc::new(files.clone()), dir, small(durability)) else { return recording };
    let _ = recording.make(&log);
    if log.close().is_ok() {
        recording.durable = recording.acknowledged.clone();
    }
    recording
}

/// After a stop: a beginning of each stream, with everything that was durable, whole, and ready to go on.
fn check(files: &FaultFiles, dir: &Path, recording: &Recording, case: &str) -> usize {
    let files: Arc<FaultFiles> = Arc::new(files.clone());
    let (log, report) = Log::open_with(files.clone(), dir, plain_options()).unwrap();
    assert!(!report.is_damaged(), "{case}: {report:?}");
    let mut lost = 0;
    for (stream, bodies) in &recording.sent {
        let read: Vec<Body> = log.events(*stream, Seq(0), &Filter::all()).map(|event| event.unwrap().body).collect();
        assert!(bodies.starts_with(&read), "{case}: {stream} is no beginning of what was submitted");
        let wanted = recording.durable.get(stream).copied().unwrap_or(0);
        assert!(read.len() >= wanted, "{case}: {stream} holds {} of {wanted} durable events", read.len());
        lost += recording.acknowledged.get(stream).copied().unwrap_or(0).saturating_sub(read.len());
    }
    log.append(rollout(1, 0), Expected::Any, vec![note("goes on")]).unwrap();
    log.close().unwrap();
    let found = verify_with(files, dir).unwrap();
    // The run's end in this recording states no true digest; that is the only thing to be said.
    assert!(
        found.findings.iter().all(|finding| finding.class == rao_store::FindingClass::ContentDisagreement),
        "{case}: {found:?}"
    );
    lost
}

#[test]
fn a_stopped_machine_costs_no_more_than_the_mode_says() {
    let survivals = [Survival::Durable, Survival::Written, Survival::Coin(1), Survival::Coin(2), Survival::Coin(3)];
    for mode in MODES {
        let mut lost = 0;
        for fault in [Fault::CrashBefore, Fault::CrashTorn, Fault::CrashAfter] {
            for at in 0.. {
                let dir = tempfile::tempdir().unwrap();
                let files = FaultFiles::with_plan(&[(at, fault)]);
                let recording = record(&files, dir.path(), mode);
                for survival in survivals {
                    let case = format!("{mode}, {fault:?} at {at}, {survival:?}");
                    lost += check(&files.after_power_cut(survival), dir.path(), &recording, &case);
                }
                if !files.crashed() {
                    break;
                }
            }
        }
        match mode {
            Durability::Durable => assert_eq!(lost, 0, "an acknowledged event was lost"),
            // The test can tell the modes apart.
            _ => assert!(lost > 0, "{mode} lost nothing in any crash"),
        }
    }
}

#[test]
fn relaxed_appends_are_durable_after_their_time() {
    let dir = tempfile::tempdir().unwrap();
    let files = FaultFiles::default();
    let mode = Durability::Relaxed(Duration::from_millis(20));
    let (log, _) = Log::open_with(Arc::new(files.clone()), dir.path(), small(mode)).unwrap();
    let durable = |files: &FaultFiles| {
        let rest = files.after_power_cut(Survival::Durable);
        everything(&Reader::open_with(Arc::new(rest), dir.path()).unwrap().0).len()
    };
    for round in 1..=3 {
        log.append(rollout(1, 0), Expected::Any, vec![note("a")]).unwrap();
        let begun = Instant::now();
        while durable(&files) < round {
            assert!(begun.elapsed() < Duration::from_secs(10), "never durable");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // Under constant load as well.
    let begun = Instant::now();
    let mut sent = 3;
    while durable(&files) < 10 {
        assert!(begun.elapsed() < Duration::from_secs(10), "not durable while more comes in");
        log.append(rollout(1, 0), Expected::Any, vec![note("b")]).unwrap();
        sent += 1;
    }
    assert!(sent >= 10);
}

#[test]
fn the_manifest_never_counts_what_is_not_durable() {
    for mode in [HOUR, Durability::End] {
        let dir = tempfile::tempdir().unwrap();
        let files = FaultFiles::default();
        let mut options = small(mode);
        options.rotate_bytes = 1 << 30;
        let (log, _) = Log::open_with(Arc::new(files.clone()), dir.path(), options).unwrap();
        for i in 0..40 {
            log.append(rollout(1, 0), Expected::Any, vec![varied(i)]).unwrap();
        }
        assert_eq!(everything(&log).len(), 40, "it can be read at once");
        let counted = |files: &FaultFiles| -> u64 {
            let manifest = Manifest::decode(&files.bytes(&dir.path().join("MANIFEST"))).unwrap();
            manifest.heads.iter().map(|(_, head)| head.count).sum()
        };
        assert_eq!(counted(&files), 0);
        log.flush().unwrap();
        let rest = files.after_power_cut(Survival::Durable);
        assert_eq!(everything(&Reader::open_with(Arc::new(rest), dir.path()).unwrap().0).len(), 40);
        log.close().unwrap();
        assert_eq!(counted(&files), 40);
    }
}

#[test]
fn a_failed_sync_is_told_and_nothing_more_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let files = FaultFiles::default();
    files.spare("MANIFEST");
    let (log, _) = Log::open_with(Arc::new(files.clone()), dir.path(), small(Durability::End)).unwrap();
    log.append(rollout(1, 0), Expected::Any, vec![note("kept")]).unwrap();
    log.flush().unwrap();
    log.append(rollout(1, 0), Expected::Any, vec![note("in doubt")]).unwrap();
    files.set_plan(&[(0, Fault::Fail(std::io::ErrorKind::Other))]);
    let error = log.flush().unwrap_err();
    assert!(error.to_string().contains("sync the journal"), "{error}");
    let error = log.append(rollout(1, 0), Expected::Any, vec![note("more")]).unwrap_err();
    assert!(matches!(&error, LogError::Poisoned { reason, .. } if reason.contains("may be lost")), "{error}");
    assert!(log.close().is_err(), "closing says so as well");
    let rest = files.after_power_cut(Survival::Durable);
    assert_eq!(everything(&Reader::open_with(Arc::new(rest), dir.path()).unwrap().0).len(), 1);
}

#[test]
fn a_killed_process_loses_nothing_in_any_mode() {
    // What was written is with the operating system.
    for mode in MODES {
        let dir = tempfile::tempdir().unwrap();
        let files = FaultFiles::default();
        let (log, _) = Log::open_with(Arc::new(files.clone()), dir.path(), small(mode)).unwrap();
        let mut recording = Recording::default();
        recording.make(&log).unwrap();
        let written = files.after_power_cut(Survival::Written);
        // What the log does to its files from now on is another world's.
        drop(log);
        assert_eq!(check(&written, dir.path(), &recording, &mode.to_string()), 0);
    }
}
