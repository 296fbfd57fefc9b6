//! Logs of every released format version, kept in the repository. They must always read as they do today.

use std::fs;
use std::path::Path;

use rao_store::event::{Body, Event, Kind};
use rao_store::{
    ErrorClass, EventSource, Filter, FindingClass, Log, Manifest, Reader, RunRole, Seq, Stream, content_digest_of_run,
    resolve_run, verify,
};

use crate::common::{
    JOURNAL, copy_dir, everything, golden_dir, golden_flip, golden_shared_dir, golden_texts_dir, one_of_each, options,
    rollout, run, write_golden, write_golden_shared, write_golden_texts,
};

/// Golden logs are opened as copies: opening one for writing changes it.
fn copy(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy_dir(&golden_dir().join(name), dir.path());
    dir
}

#[test]
fn the_intact_log_reads_as_on_the_day_it_was_written() {
    let (reader, report) = Reader::open(&golden_dir().join("intact")).unwrap();
    assert_eq!(report.findings, Vec::new());
    assert_eq!(reader.runs(), vec![run(1), run(2), run(3)]);
    let bodies: Vec<Body> =
        reader.events(rollout(2, 0), Seq(0), &Filter::all()).map(|event| event.unwrap().body).collect();
    assert_eq!(bodies, one_of_each());
    assert_eq!(bodies.iter().map(Body::kind).collect::<Vec<_>>(), Kind::ALL);
    let head = reader.head(rollout(2, 0)).unwrap();
    assert_eq!(resolve_run(&reader, "latest", RunRole::Recorded).unwrap(), run(1));
    let content = content_digest_of_run(&reader, run(1)).unwrap();
    let digests = format!("chain {}\ncontent {}\nrun {content}\n", head.chain, head.content);
    assert_eq!(digests, fs::read_to_string(golden_dir().join("digests.txt")).unwrap());
    assert_eq!(verify(&golden_dir().join("intact")).unwrap().findings, Vec::new());
    let dir = copy("intact");
    let (log, report) = Log::open(dir.path(), options()).unwrap();
    assert!(report.findings.is_empty() && report.set_aside.is_none());
    assert_eq!(everything(&log), everything(&reader));
}

#[test]
fn the_program_still_writes_these_bytes() {
    let dir = tempfile::tempdir().unwrap();
    write_golden(dir.path());
    for name in ["intact", "flipped", "cut", "torn"] {
        for file in [JOURNAL, "MANIFEST"] {
            let path = Path::new(name).join(file);
            let (now, then) = (fs::read(dir.path().join(&path)).unwrap(), fs::read(golden_dir().join(&path)).unwrap());
            assert!(now == then, "{} differs: the format changed without a new version", path.display());
        }
    }
}

#[test]
fn the_flipped_log_names_the_event_and_gives_the_others() {
    let dir = copy("flipped");
    let report = verify(dir.path()).unwrap();
    let [finding] = report.findings.as_slice() else { panic!("{:?}", report.findings) };
    assert_eq!(finding.class, FindingClass::InteriorDamage);
    assert_eq!(
        (finding.stream, finding.seq, finding.kind),
        (Some(Stream::Run(run(1))), Some(Seq(1)), Some(Kind::HostFacts))
    );
    let journal = fs::read(dir.path().join(JOURNAL)).unwrap();
    assert_eq!(finding.offset.unwrap() + 92 + 9, golden_flip(&journal) as u64);
    let (intact, _) = Reader::open(&golden_dir().join("intact")).unwrap();
    let lost = |event: &Event| event.stream == Stream::Run(run(1)) && event.seq == Seq(1);
    let rest: Vec<Event> = everything(&intact).into_iter().filter(|event| !lost(event)).collect();
    for _ in 0..2 {
        let (log, opened) = Log::open(dir.path(), options()).unwrap();
        assert!(opened.is_damaged());
        assert_eq!(everything(&log), rest);
    }
}

#[test]
fn the_cut_log_names_what_is_missing() {
    let report = verify(&golden_dir().join("cut")).unwrap();
    let [finding] = report.findings.as_slice() else { panic!("{:?}", report.findings) };
    assert_eq!(finding.class, FindingClass::MissingEvents);
    assert_eq!((finding.stream, finding.seq), (Some(Stream::Training(run(3))), Some(Seq(0))));
    let dir = copy("cut");
    let (log, _) = Log::open(dir.path(), options()).unwrap();
    let error = log.events(Stream::Training(run(3)), Seq(0), &Filter::all()).next().unwrap().unwrap_err();
    assert_eq!(error.class(), ErrorClass::Integrity);
}

#[test]
fn the_torn_log_lost_nothing_and_is_mended_by_opening_it() {
    let report = verify(&golden_dir().join("torn")).unwrap();
    assert_eq!(report.findings.iter().map(|finding| finding.class).collect::<Vec<_>>(), [FindingClass::TornTail]);
    assert!(!report.is_damaged());
    let dir = copy("torn");
    let (log, opened) = Log::open(dir.path(), options()).unwrap();
    assert_eq!(opened.torn_tail_bytes, 150);
    drop(log);
    assert_eq!(verify(dir.path()).unwrap().findings, Vec::new());
    assert_eq!(
        fs::read(dir.path().join(JOURNAL)).unwrap(),
        fs::read(golden_dir().join("intact").join(JOURNAL)).unwrap()
    );
}

#[test]
fn the_log_without_a_manifest_gets_a_new_one() {
    assert!(verify(&golden_dir().join("no-manifest")).unwrap().is_damaged());
    let dir = copy("no-manifest");
    drop(Log::open(dir.path(), options()).unwrap());
    let manifest = fs::read(dir.path().join("MANIFEST")).unwrap();
    let intact = fs::read(golden_dir().join("intact/MANIFEST")).unwrap();
    assert_eq!(Manifest::decode(&manifest), Manifest::decode(&intact));
}

#[test]
fn logs_with_long_texts_and_dropped_runs_read_as_on_the_day_they_were_written() {
    let golden = golden_texts_dir();
    let dir = tempfile::tempdir().unwrap();
    let wanted = write_golden_texts(dir.path());
    for name in ["intact", "flipped", "unfinished"] {
        for file in [JOURNAL, "MANIFEST"] {
            let path = Path::new(name).join(file);
            let (now, then) = (fs::read(dir.path().join(&path)).unwrap(), fs::read(golden.join(&path)).unwrap());
            assert!(now == then, "{} differs: the format changed without a new version", path.display());
        }
    }
    for name in ["intact", "unfinished"] {
        let found = verify(&golden.join(name)).unwrap();
        assert_eq!((found.findings.as_slice(), found.payloads, found.events), (&[][..], 2, 6));
        let dropped: Vec<_> = found.dropped.iter().map(|dropped| (dropped.run, dropped.unfinished)).collect();
        assert_eq!(dropped, [(run(2), name == "unfinished")]);
        assert!(everything(&Reader::open(&golden.join(name)).unwrap().0) == wanted);
        let copy = tempfile::tempdir().unwrap();
        copy_dir(&golden.join(name), copy.path());
        assert!(everything(&Log::open(copy.path(), options()).unwrap().0) == wanted);
        // Opened for writing, the one is the other.
        for file in [JOURNAL, "MANIFEST"] {
            assert!(fs::read(copy.path().join(file)).unwrap() == fs::read(golden.join("intact").join(file)).unwrap());
        }
    }
    let found = verify(&golden.join("flipped")).unwrap();
    let lost: Vec<_> = found.findings.iter().filter_map(|finding| Some((finding.stream?, finding.seq?))).collect();
    assert_eq!(lost, [(rollout(1, 0), Seq(1)), (rollout(1, 1), Seq(0)), (rollout(1, 1), Seq(2))]);
    let read = everything(&Reader::open(&golden.join("flipped")).unwrap().0);
    assert!(read.len() == 3 && read.iter().all(|event| wanted.contains(event)));
}

#[test]
fn logs_with_shared_beginnings_read_as_on_the_day_they_were_written() {
    let golden = golden_shared_dir();
    let dir = tempfile::tempdir().unwrap();
    let (wanted, ends) = write_golden_shared(dir.path());
    assert_eq!(ends, fs::read_to_string(golden.join("digests.txt")).unwrap());
    for name in ["intact", "flipped", "prefix"] {
        for file in [JOURNAL, "MANIFEST"] {
            let path = Path::new(name).join(file);
            let (now, then) = (fs::read(dir.path().join(&path)).unwrap(), fs::read(golden.join(&path)).unwrap());
            assert!(now == then, "{} differs: the format changed without a new version", path.display());
        }
    }
    let found = verify(&golden.join("intact")).unwrap();
    assert_eq!((found.findings.as_slice(), found.events, found.forks, found.shared), (&[][..], 20, 3, 12));
    assert!(everything(&Reader::open_checked(&golden.join("intact")).unwrap().0) == wanted);
    let copy = tempfile::tempdir().unwrap();
    copy_dir(&golden.join("intact"), copy.path());
    assert!(everything(&Log::open(copy.path(), options()).unwrap().0) == wanted);
    let base = [(rollout(1, 0), Seq(1)), (rollout(2, 0), Seq(1)), (rollout(2, 1), Seq(1)), (rollout(3, 0), Seq(1))];
    let prefix = [(rollout(2, 0), Seq(0)), (rollout(3, 0), Seq(0))];
    for (name, named, lost) in [("flipped", &base[..], 4), ("prefix", &prefix, 6)] {
        let found = verify(&golden.join(name)).unwrap();
        let seen: Vec<_> = found.findings.iter().filter_map(|finding| Some((finding.stream?, finding.seq?))).collect();
        assert_eq!(seen, named, "{name}");
        let read = everything(&Reader::open(&golden.join(name)).unwrap().0);
        assert_eq!((read.len(), found.events), (20 - lost, 20 - lost as u64), "{name}");
        assert!(read.iter().all(|event| wanted.contains(event)));
    }
}
