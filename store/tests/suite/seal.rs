//! Sealing, exporting and importing: nothing is lost at any moment, and readers see no difference.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rao_store::archive::{self, ArchiveReader, verify_archive};
use rao_store::event::Event;
use rao_store::files::Files;
use rao_store::{
    ErrorClass, EventSource, Expected, Log, LogError, Manifest, Reader, Seq, Stream, content_digest_of_run, verify,
    verify_with,
};

use crate::common::{copy_dir, everything, note, open, options, plain_options, record_run, rollout, run};
use crate::faults::{Fault, FaultFiles, Survival};

fn journal_bytes(dir: &Path) -> u64 {
    fs::read_dir(dir.join("journal")).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

/// A log with runs 1 to 3, whose commits are mixed, over several journal files.
fn three_runs(dir: &Path) -> Vec<Event> {
    let mut options = options();
    options.rotate_bytes = 1_500;
    let (log, _) = Log::open(dir, options).unwrap();
    for n in 1..=3 {
        record_run(&log, n).unwrap();
        // A commit that begins with one run's event and goes on with another's.
        let tickets = [4, 5].map(|other| log.submit(rollout(other, 0), Expected::Any, vec![note(format!("{n}"))]));
        for ticket in tickets {
            ticket.wait().unwrap();
        }
    }
    let events = everything(&log);
    log.close().unwrap();
    events
}

#[test]
fn a_sealed_run_reads_as_before_and_its_space_is_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let wanted = three_runs(dir.path());
    let before = journal_bytes(dir.path());
    for (sealed, n) in [(1, 2u8), (2, 1)] {
        let report = archive::seal(dir.path(), run(n), options()).unwrap();
        assert!(report.freed > 0 && report.archive.run == run(n));
        assert_eq!(report.freed, report.archive.raw_bytes);
        let found = verify(dir.path()).unwrap();
        assert_eq!((found.findings.as_slice(), found.archives), (&[][..], sealed));
        assert_eq!(found.events, wanted.len() as u64);
        let (reader, opened) = Reader::open(dir.path()).unwrap();
        assert_eq!(opened.findings, Vec::new());
        assert_eq!(everything(&reader), wanted);
        let (log, opened) = open(dir.path());
        assert!(opened.findings.is_empty() && opened.lines.is_empty(), "{opened:?}");
        assert_eq!(everything(&log), wanted);
        assert_eq!(log.runs(), reader.runs());
        assert_eq!(
            content_digest_of_run(&log, run(n)).unwrap(),
            content_digest_of_run(
                &ArchiveReader::open(&dir.path().join(format!("sealed/{}.raolog", run(n)))).unwrap(),
                run(n)
            )
            .unwrap()
        );
        let error = log.append(rollout(n, 0), Expected::Any, vec![note("more")]).unwrap_err();
        assert!(matches!(error, LogError::Sealed { .. }), "{error}");
    }
    assert!(journal_bytes(dir.path()) * 2 < before, "{} of {before} bytes are left", journal_bytes(dir.path()));
    let error = archive::seal(dir.path(), run(1), options()).unwrap_err();
    assert!(matches!(error, LogError::Sealed { .. }));
    assert_eq!(archive::seal(dir.path(), run(4), options()).unwrap_err().class(), ErrorClass::Incomplete);
    // Life goes on.
    let (log, _) = open(dir.path());
    record_run(&log, 6).unwrap();
    log.append(rollout(4, 0), Expected::Exactly(Seq(3)), vec![note("on")]).unwrap();
    log.close().unwrap();
    assert_eq!(verify(dir.path()).unwrap().events, wanted.len() as u64 + 14);
}

#[test]
fn a_lost_or_exchanged_archive_is_named() {
    let dir = tempfile::tempdir().unwrap();
    three_runs(dir.path());
    archive::seal(dir.path(), run(1), options()).unwrap();
    archive::seal(dir.path(), run(2), options()).unwrap();
    let path = |n| dir.path().join(format!("sealed/{}.raolog", run(n)));
    fs::remove_file(path(1)).unwrap();
    let mut bytes = fs::read(path(2)).unwrap();
    let middle = bytes.len() - 60;
    bytes[middle] ^= 1;
    fs::write(path(2), bytes).unwrap();
    let report = verify(dir.path()).unwrap();
    let texts: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    assert!(report.is_damaged());
    assert!(texts.iter().any(|text| text.contains(&run(1).to_string()) && text.contains("not there")), "{texts:?}");
    assert!(texts.iter().any(|text| text.contains(&run(2).to_string()) && text.contains("footer")), "{texts:?}");
    // What is not concerned can be read and written, and the loss stays visible.
    for _ in 0..2 {
        let (log, opened) = open(dir.path());
        assert!(opened.is_damaged());
        log.append(rollout(5, 0), Expected::Any, vec![note("on")]).unwrap();
        assert_eq!(log.head(Stream::Run(run(3))).unwrap().count, 3);
        assert_eq!(log.head(Stream::Run(run(1))), None);
    }
    assert!(verify(dir.path()).unwrap().is_damaged());
}

/// What a reader sees after a stop: every event, whether sealed or not.
fn check_survivor(files: &FaultFiles, dir: &Path, wanted: &[Event]) {
    let files: Arc<FaultFiles> = Arc::new(files.clone());
    let (reader, report) = Reader::open_with(files.clone(), dir).unwrap();
    assert!(!report.is_damaged(), "{report:?}");
    assert_eq!(everything(&reader), wanted);
    let (log, report) = Log::open_with(files.clone(), dir, plain_options()).unwrap();
    assert!(!report.is_damaged(), "{report:?}");
    assert_eq!(everything(&log), wanted);
    let was_sealed = log.is_sealed(run(2));
    log.append(rollout(9, 0), Expected::Any, vec![note("goes on")]).unwrap();
    log.close().unwrap();
    assert_eq!(verify_with(files.clone(), dir).unwrap().findings, Vec::new());
    // Sealing can be done again, or is done.
    match archive::seal_with(files.clone(), dir, run(2), plain_options()) {
        Ok(_) => assert!(!was_sealed),
        Err(LogError::Sealed { .. }) => assert!(was_sealed),
        Err(error) => panic!("{error}"),
    }
    let found = verify_with(files.clone(), dir).unwrap();
    assert_eq!((found.findings.as_slice(), found.archives, found.events), (&[][..], 1, wanted.len() as u64 + 1));
    assert_eq!(everything(&Reader::open_with(files, dir).unwrap().0).len(), wanted.len() + 1);
}

#[test]
fn a_stop_at_any_step_of_sealing_loses_nothing() {
    let made = tempfile::tempdir().unwrap();
    let wanted = three_runs(made.path());
    for fault in [Fault::CrashBefore, Fault::CrashTorn, Fault::CrashAfter] {
        for at in 0.. {
            let dir = tempfile::tempdir().unwrap();
            let files = FaultFiles::default();
            for name in RealNames::of(made.path()) {
                files.put(&dir.path().join(&name), &fs::read(made.path().join(&name)).unwrap());
            }
            files.set_plan(&[(at, fault)]);
            let outcome = archive::seal_with(Arc::new(files.clone()), dir.path(), run(2), plain_options());
            for survival in [Survival::Durable, Survival::Written, Survival::Coin(1), Survival::Coin(2)] {
                check_survivor(&files.after_power_cut(survival), dir.path(), &wanted);
            }
            if !files.crashed() {
                assert!(outcome.is_ok());
                assert!(at > 20, "the sweep met only {at} operations");
                break;
            }
        }
    }
}

/// Journal files and manifest of a log.
struct RealNames;

impl RealNames {
    fn of(dir: &Path) -> Vec<String> {
        let journal = rao_store::files::RealFiles.list(&dir.join("journal")).unwrap();
        journal.into_iter().map(|name| format!("journal/{name}")).chain(["MANIFEST".to_owned()]).collect()
    }
}

#[test]
fn every_flipped_bit_of_a_manifest_with_archives_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(dir.path(), plain_options()).unwrap();
    record_run(&log, 1).unwrap();
    record_run(&log, 2).unwrap();
    log.close().unwrap();
    archive::seal(dir.path(), run(1), plain_options()).unwrap();
    let intact = fs::read(dir.path().join("MANIFEST")).unwrap();
    let manifest = Manifest::decode(&intact).unwrap();
    assert_eq!((manifest.sealed.len(), manifest.sealed[0].run), (1, run(1)));
    assert_eq!(manifest.encode(), intact);
    for bit in 0..intact.len() * 8 {
        let mut bytes = intact.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Manifest::decode(&bytes).is_err(), "bit {bit}");
        // A spot check of what the log says then: all bits are the same to it.
        if bit % 97 == 0 {
            fs::write(dir.path().join("MANIFEST"), &bytes).unwrap();
            let report = verify(dir.path()).unwrap();
            assert!(report.is_damaged() && report.events == 26, "bit {bit}: {} events", report.events);
        }
    }
    for cut in 0..intact.len() {
        assert!(Manifest::decode(&intact[..cut]).is_err(), "cut at {cut}");
    }
    // A lost manifest is rebuilt, archives and all.
    fs::remove_file(dir.path().join("MANIFEST")).unwrap();
    drop(Log::open(dir.path(), plain_options()).unwrap());
    assert_eq!(Manifest::decode(&fs::read(dir.path().join("MANIFEST")).unwrap()).unwrap().sealed, manifest.sealed);
    assert_eq!(verify(dir.path()).unwrap().findings, Vec::new());
}

#[test]
fn archives_move_between_logs() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    three_runs(&one);
    archive::seal(&one, run(1), options()).unwrap();
    let (reader, _) = Reader::open(&one).unwrap();
    let file = |n: u8| dir.path().join(format!("{n}.raolog"));
    for n in [1, 2] {
        archive::export(&reader, run(n), &file(n)).unwrap();
        let report = archive::import(&two, &file(n), options()).unwrap();
        assert!(report.added && report.archive.run == run(n));
        // Once more changes nothing.
        assert!(!archive::import(&two, &file(n), options()).unwrap().added);
        assert!(!archive::import(&one, &file(n), options()).unwrap().added, "live or sealed, it is the same run");
    }
    let (other, opened) = Reader::open(&two).unwrap();
    assert_eq!(opened.findings, Vec::new());
    let only = |n| everything(&reader).into_iter().filter(move |event| event.stream.run() == run(n));
    assert_eq!(everything(&other), only(1).chain(only(2)).collect::<Vec<_>>());
    assert_eq!(verify(&two).unwrap().findings, Vec::new());

    // The same id with other content.
    let third = dir.path().join("three");
    let (log, _) = open(&third);
    log.append(rollout(1, 0), Expected::Any, vec![note("another")]).unwrap();
    log.close().unwrap();
    assert!(matches!(archive::import(&third, &file(1), options()).unwrap_err(), LogError::Present { .. }));
    // A damaged file is refused and leaves no trace.
    let mut bytes = fs::read(file(2)).unwrap();
    bytes[100] ^= 4;
    fs::write(file(2), bytes).unwrap();
    let error = archive::import(&third, &file(2), options()).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Integrity, "{error}");
    assert!(!third.join("sealed").exists());
    assert_eq!(verify(&third).unwrap().findings, Vec::new());
}

#[test]
fn an_archive_that_is_put_into_the_folder_is_taken_in() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    three_runs(&one);
    archive::seal(&one, run(1), options()).unwrap();
    let (log, _) = open(&two);
    record_run(&log, 7).unwrap();
    log.close().unwrap();
    copy_dir(&one.join("sealed"), &two.join("sealed"));
    assert_eq!(Reader::open(&two).unwrap().0.runs(), vec![run(1), run(7)]);
    drop(open(&two));
    let manifest = Manifest::decode(&fs::read(two.join("MANIFEST")).unwrap()).unwrap();
    assert_eq!(manifest.sealed.iter().map(|entry| entry.run).collect::<Vec<_>>(), vec![run(1)]);
    let path = two.join(format!("sealed/{}.raolog", run(1)));
    assert_eq!(verify_archive(&path).unwrap().summary.digest, manifest.sealed[0].digest);
}
