//! Damage to what streams share by reference: named in each stream that it concerns.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rao_store::archive;
use rao_store::event::{Body, Event};
use rao_store::{
    Address, ErrorClass, EventSource, Expected, Filter, Finding, FindingClass, Frame, HEADER_LEN, Log, LogError,
    Reader, Seq, Stream, verify, verify_with,
};

use crate::common::{JOURNAL, copy_dir, everything, note, plain_options, rollout, run};
use crate::faults::FaultFiles;
use crate::shared::{PREFIX_FRAME, finish, record_forks, reseal, share, start};

/// Where each frame of a journal begins, with its flags.
fn frames_of(journal: &[u8]) -> Vec<(usize, u8)> {
    let (mut at, mut frames) = (0, Vec::new());
    while at < journal.len() {
        frames.push((at, journal[at + 10]));
        at += HEADER_LEN + u32::from_le_bytes(journal[at + 36..at + 40].try_into().unwrap()) as usize;
    }
    frames
}

fn named(report: &[Finding], stream: Stream, seq: u64) -> usize {
    report.iter().filter(|finding| (finding.stream, finding.seq) == (Some(stream), Some(Seq(seq)))).count()
}

#[test]
fn a_damaged_event_of_a_base_is_named_in_each_stream_that_shares_it() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(dir.path(), plain_options()).unwrap();
    record_forks(&log);
    let wanted = everything(&log);
    log.close().unwrap();
    let path = dir.path().join(JOURNAL);
    let intact = fs::read(&path).unwrap();
    // How many events each shares, and how many of these are the first base's.
    let sharers = [
        (rollout(2, 0), 8, 8),
        (rollout(2, 1), 8, 8),
        (rollout(2, 2), 8, 8),
        (rollout(3, 0), 10, 8),
        (rollout(3, 1), 4, 4),
    ];
    let places = frames_of(&intact);
    // Three manifests, then the base's events; the long text stands before the sixth.
    let events: Vec<usize> = places[3..].iter().filter(|(_, flags)| flags & 4 == 0).map(|(at, _)| *at).collect();
    for (seq, at) in (0..12u64).zip(events) {
        let files = Arc::new(FaultFiles::copy_of(dir.path()));
        let mut flipped = intact.clone();
        flipped[at + 60] ^= 4;
        files.put(&path, &flipped);
        let (reader, report) = Reader::open_with(files.clone(), dir.path()).unwrap();
        assert_eq!(named(&report.findings, rollout(1, 0), seq), 1, "{seq}: {report:?}");
        let lost: Vec<Event> = {
            let read = everything(&reader);
            assert!(read.iter().all(|event| wanted.contains(event)));
            wanted.iter().filter(|event| !read.contains(event)).cloned().collect()
        };
        let concerned = || sharers.iter().filter(|(_, _, of_base)| seq < *of_base);
        assert_eq!(lost.len(), 1 + concerned().count(), "event {seq} and what shares it, and nothing else");
        for (stream, count, _) in concerned() {
            assert_eq!(named(&report.findings, *stream, seq), 1, "{stream}#{seq}: {report:?}");
            let error = reader.event(Address { stream: *stream, seq: Seq(seq) }).unwrap_err();
            assert_eq!(error.class(), ErrorClass::Integrity);
            assert!(error.to_string().contains(&rollout(1, 0).to_string()), "{error}");
            // Its frames behind the damage have no chain digest, up to what is its own.
            let frames: Vec<Result<Frame, LogError>> = reader.frames(*stream, Seq(0), &Filter::all()).collect();
            let intact = frames.iter().filter(|frame| frame.is_ok()).count() as u64;
            assert_eq!(intact, seq + reader.head(*stream).unwrap().count - count);
            for from in 0..*count {
                let mut frames = reader.frames(*stream, Seq(from), &Filter::all());
                assert!(frames.any(|frame| frame.is_err()), "{stream} from {from}");
            }
        }
        let found = verify_with(files.clone(), dir.path()).unwrap();
        assert_eq!(found.events, (wanted.len() - lost.len()) as u64, "event {seq}");
        assert_eq!(found.findings.len(), lost.len(), "{:?}", found.findings);
        // Nothing is appended to them, nor shared with them; others go on.
        let (log, _) = Log::open_with(files.clone(), dir.path(), plain_options()).unwrap();
        for (stream, ..) in concerned() {
            let error = log.append(*stream, Expected::Any, vec![note("more")]).unwrap_err();
            assert!(matches!(error, LogError::DamagedStream { .. }), "{error}");
        }
        let error = share(&log, &[rollout(5, 0)], rollout(1, 0), 12).unwrap_err();
        assert!(matches!(error, LogError::Damaged { .. }), "{error}");
        if seq > 0 {
            share(&log, &[rollout(5, 0)], rollout(1, 0), seq).unwrap();
        }
    }
}

#[test]
fn every_flipped_bit_of_a_prefix_frame_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(dir.path(), plain_options()).unwrap();
    record_forks(&log);
    let wanted = everything(&log);
    log.close().unwrap();
    let path = dir.path().join(JOURNAL);
    let intact = fs::read(&path).unwrap();
    let files = Arc::new(FaultFiles::copy_of(dir.path()));
    let at = frames_of(&intact).iter().find(|(_, flags)| flags & 8 != 0).unwrap().0;
    assert_eq!(u32::from_le_bytes(intact[at + 36..at + 40].try_into().unwrap()), 128);
    for (place, bit) in (at..at + PREFIX_FRAME).flat_map(|place| (0..8).map(move |bit| (place, bit))) {
        let mut flipped = intact.clone();
        flipped[place] ^= 1 << bit;
        files.put(&path, &flipped);
        let case = format!("bit {bit} of byte {}", place - at);
        let (reader, report) = Reader::open_with(files.clone(), dir.path()).unwrap();
        assert!(report.findings.iter().any(|finding| finding.is_of(rollout(2, 0))), "{case}: {report:?}");
        assert!(report.is_damaged());
        // What is its own can be read, and whatever can be read is right.
        let read = everything(&reader);
        assert!(read.iter().all(|event| wanted.contains(event)), "{case}: a wrong event");
        let lost = wanted.iter().filter(|event| !read.contains(event));
        let concerned = lost.filter(|event| event.stream == rollout(2, 0) || event.stream.run() == run(3)).count();
        assert_eq!((read.len(), concerned), (wanted.len() - 8 - 8 - 4, 20), "{case}");
    }
}

trait IsOf {
    fn is_of(&self, stream: Stream) -> bool;
}

impl IsOf for Finding {
    fn is_of(&self, stream: Stream) -> bool {
        self.stream == Some(stream)
    }
}

/// A prefix frame whose checksum is right says something else: noticed by whoever computes digests, or at once.
#[test]
fn an_exchanged_prefix_frame_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(dir.path(), plain_options()).unwrap();
    record_forks(&log);
    log.close().unwrap();
    let path = dir.path().join(JOURNAL);
    let intact = fs::read(&path).unwrap();
    let files = Arc::new(FaultFiles::copy_of(dir.path()));
    let at = frames_of(&intact).iter().find(|(_, flags)| flags & 8 != 0).unwrap().0;
    // The time; the base's kind, run and rollout, the bytes that are zero, the count; the digests; kind, layout, number.
    for byte in [48, 92, 108, 112, 113, 115, 116, 117, 123, 124, 156, 188, 6, 8, 40, 56] {
        let mut changed = intact.clone();
        changed[at + byte] ^= 1;
        reseal(&mut changed[at..at + PREFIX_FRAME]);
        files.put(&path, &changed);
        let found = verify_with(files.clone(), dir.path()).unwrap();
        assert!(found.is_damaged(), "byte {byte}");
        assert!(found.findings.iter().any(|finding| finding.is_of(rollout(2, 0))), "byte {byte}: {:?}", found.findings);
        let (reader, _) = Reader::open_with(files.clone(), dir.path()).unwrap();
        let _ = everything(&reader);
    }
}

/// Prefix frames that no program writes: their bases lead in a circle, to themselves, or behind one another for ever.
#[test]
fn bases_in_a_circle_are_damage_and_no_hang() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(dir.path(), plain_options()).unwrap();
    log.append(rollout(1, 0), Expected::Any, vec![note("base")]).unwrap();
    share(&log, &[rollout(2, 0), rollout(2, 1)], rollout(1, 0), 1).unwrap();
    log.close().unwrap();
    let path = dir.path().join(JOURNAL);
    let mut journal = fs::read(&path).unwrap();
    let frames = frames_of(&journal);
    let (first, second) = (frames[1].0, frames[2].0);
    // Each names the other: run 2 and its rollout, big-endian at the end of the key.
    for (at, other) in [(first, 1), (second, 0)] {
        journal[at + 92..at + 108].copy_from_slice(&run(2).0);
        journal[at + 112] = other;
        reseal(&mut journal[at..at + PREFIX_FRAME]);
    }
    fs::write(&path, &journal).unwrap();
    for pass in [Reader::open, Reader::open_checked] {
        let (reader, report) = pass(dir.path()).unwrap();
        for r in [0, 1] {
            let circle = report.findings.iter().filter(|finding| finding.is_of(rollout(2, r)));
            assert!(circle.clone().any(|finding| finding.detail.contains("circle")), "{report:?}");
            assert!(circle.into_iter().all(|finding| finding.class == FindingClass::BaseDisagreement));
            let error = reader.event(Address { stream: rollout(2, r), seq: Seq(0) }).unwrap_err();
            assert!(error.class() == ErrorClass::Integrity && error.to_string().contains("circle"), "{error}");
            assert_eq!(reader.frames(rollout(2, r), Seq(0), &Filter::all()).filter(Result::is_err).count(), 1);
            assert_eq!(reader.headers(rollout(2, r), Seq(0)).filter(Result::is_err).count(), 1);
        }
    }
    assert!(verify(dir.path()).unwrap().is_damaged());
}

/// A log whose journal holds forks alone, and its base's archive beside it.
fn sealed_base(dir: &Path, text: &str) {
    let (log, _) = Log::open(dir, plain_options()).unwrap();
    start(&log, 1);
    start(&log, 2);
    log.append(rollout(1, 0), Expected::Any, vec![note("a"), note(text), note("c")]).unwrap();
    share(&log, &[rollout(2, 0)], rollout(1, 0), 2).unwrap();
    log.append(rollout(2, 0), Expected::Any, vec![note("own")]).unwrap();
    finish(&log, 1);
    log.close().unwrap();
    archive::seal(dir, run(1), plain_options()).unwrap();
}

#[test]
fn a_base_that_is_missing_or_exchanged_is_named_and_a_right_one_heals() {
    let dir = tempfile::tempdir().unwrap();
    let (right, other, log_dir) = (dir.path().join("right"), dir.path().join("other"), dir.path().join("log"));
    sealed_base(&right, "b");
    sealed_base(&other, "B");
    let name = format!("sealed/{}.raolog", run(1));
    let names_both = |finding: &Finding| {
        let text = finding.to_string();
        text.contains(&rollout(2, 0).to_string()) && text.contains(&rollout(1, 0).to_string())
    };
    // Without the base.
    copy_dir(&right, &log_dir);
    fs::remove_file(log_dir.join(&name)).unwrap();
    let found = verify(&log_dir).unwrap();
    let [gone, fork] = found.findings.as_slice() else { panic!("{:?}", found.findings) };
    assert!(gone.detail.contains("is not there"), "{gone}");
    assert!(fork.class == FindingClass::MissingEvents && names_both(fork), "{fork}");
    assert_eq!((fork.stream, fork.seq), (Some(rollout(2, 0)), Some(Seq(0))));
    for check in [false, true] {
        let mut options = plain_options();
        options.check_digests = check;
        let (log, report) = Log::open(&log_dir, options).unwrap();
        assert!(report.findings.iter().any(names_both), "{report:?}");
        let own: Vec<Body> =
            log.events(rollout(2, 0), Seq(2), &Filter::all()).map(|event| event.unwrap().body).collect();
        assert_eq!(own, [note("own")]);
        let error = log.event(Address { stream: rollout(2, 0), seq: Seq(1) }).unwrap_err();
        assert!(error.class() == ErrorClass::Integrity && error.to_string().contains("is shared with"), "{error}");
        assert_eq!(log.events(rollout(2, 0), Seq(0), &Filter::all()).filter(Result::is_err).count(), 1);
        let error = log.append(rollout(2, 0), Expected::Any, vec![note("more")]).unwrap_err();
        assert!(matches!(error, LogError::DamagedStream { .. }), "{error}");
    }
    // With another one of the same name, which the manifest does not know of.
    fs::copy(other.join(&name), log_dir.join(&name)).unwrap();
    fs::remove_file(log_dir.join("MANIFEST")).unwrap();
    let found = verify(&log_dir).unwrap();
    let exchanged: Vec<&Finding> =
        found.findings.iter().filter(|finding| finding.class == FindingClass::BaseDisagreement).collect();
    let [exchanged] = exchanged.as_slice() else { panic!("{:?}", found.findings) };
    assert!(names_both(exchanged) && exchanged.seq == Some(Seq(1)), "{exchanged}");
    // Whoever reads frames without computing all digests notices at the last shared one.
    let (reader, _) = Reader::open(&log_dir).unwrap();
    let frames: Vec<Result<Frame, LogError>> = reader.frames(rollout(2, 0), Seq(0), &Filter::all()).collect();
    assert_eq!(frames.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    // The right one.
    fs::copy(right.join(&name), log_dir.join(&name)).unwrap();
    let (log, _) = Log::open(&log_dir, plain_options()).unwrap();
    log.append(rollout(2, 0), Expected::Exactly(Seq(3)), vec![note("more")]).unwrap();
    log.close().unwrap();
    assert_eq!(verify(&log_dir).unwrap().findings, Vec::new());
}

#[test]
fn a_damaged_archive_is_named_in_each_stream_that_shares_with_it() {
    let dir = tempfile::tempdir().unwrap();
    sealed_base(dir.path(), "b");
    let path = dir.path().join(format!("sealed/{}.raolog", run(1)));
    let mut bytes = fs::read(&path).unwrap();
    // In the first segment, behind the file's head.
    bytes[80] ^= 1;
    fs::write(&path, bytes).unwrap();
    let found = verify(dir.path()).unwrap();
    let lost: Vec<&Finding> = found.findings.iter().filter(|finding| finding.is_of(rollout(2, 0))).collect();
    assert_eq!(lost.len(), 1, "{:?}", found.findings);
    assert!(lost[0].to_string().contains(&rollout(1, 0).to_string()));
    let (reader, report) = Reader::open_checked(dir.path()).unwrap();
    assert!(report.findings.iter().any(|finding| finding.is_of(rollout(2, 0))), "{report:?}");
    let read: Vec<bool> = reader.events(rollout(2, 0), Seq(0), &Filter::all()).map(|event| event.is_ok()).collect();
    assert_eq!(read, [false, true]);
}
