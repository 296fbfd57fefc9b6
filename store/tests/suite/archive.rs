//! Archives give back what they were made from, byte for byte, and notice every damaged bit.

use std::fs;
use std::path::{Path, PathBuf};

use rao_store::archive::{ArchiveReader, export, verify_archive, write_archive};
use rao_store::event::{Answer, Body, CallAnswered, Kind};
use rao_store::files::RealFiles;
use rao_store::{
    Address, ErrorClass, EventSource, Expected, Filter, Frame, Log, LogError, NodePath, Seq, Stream,
    content_digest_of_run,
};

use crate::common::{
    action, everything, note, one_of_each, open, plain_options, record_run, rollout, run, varied, write_golden_archives,
};

/// Every frame of a run, stream by stream.
fn frames(source: &dyn EventSource, n: u8) -> Vec<Frame> {
    let streams = source.streams(run(n)).into_iter();
    streams.flat_map(|stream| source.frames(stream, Seq(0), &Filter::all()).map(Result::unwrap)).collect()
}

fn archived(dir: &Path, log: &Log, n: u8) -> (PathBuf, ArchiveReader) {
    let path = dir.join("one.raolog");
    write_archive(&RealFiles, &path, log, run(n)).unwrap();
    let archive = ArchiveReader::open(&path).unwrap();
    (path, archive)
}

fn tool_output(megabytes: usize, seed: u64) -> Body {
    let mut state = seed;
    let mut text = String::new();
    while text.len() < megabytes << 20 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        text.push_str(&format!("{:x} line of output\n", state >> 20));
    }
    CallAnswered { node: NodePath::root(), step: 0, answers: vec![(0, Answer::Value(text))] }.into()
}

#[test]
fn an_archive_gives_back_every_byte_head_and_header() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(&dir.path().join("log"));
    record_run(&log, 1).unwrap();
    // Over several segments, in streams of every length, with odd events among them.
    for r in 10..40u32 {
        let bodies: Vec<Body> = (0..1 + u64::from(r) * 9).map(varied).collect();
        log.append(rollout(1, r), Expected::Any, bodies).unwrap();
    }
    log.append(rollout(1, 50), Expected::Any, one_of_each()).unwrap();
    log.append(rollout(1, 51), Expected::Any, (0..60).map(|i| action(9_000 + i, 9_000 + i)).collect()).unwrap();
    log.append(Stream::Training(run(1)), Expected::Any, one_of_each()).unwrap();
    record_run(&log, 2).unwrap();
    let (path, archive) = archived(dir.path(), &log, 1);

    assert_eq!(archive.runs(), vec![run(1)]);
    assert_eq!(archive.streams(run(1)), log.streams(run(1)));
    assert_eq!(archive.streams(run(2)), Vec::new());
    assert!(frames(&archive, 1) == frames(&log, 1));
    for stream in log.streams(run(1)) {
        assert_eq!(archive.head(stream), log.head(stream));
        let headers =
            |source: &dyn EventSource, from| source.headers(stream, Seq(from)).map(Result::unwrap).collect::<Vec<_>>();
        let count = log.head(stream).unwrap().count;
        for from in [0, 1, count / 2, count - 1, count, count + 7] {
            assert_eq!(headers(&archive, from), headers(&log, from));
            for filter in [Filter::all(), Filter::kinds([Kind::Note, Kind::ActionSampled]), Filter::kinds([])] {
                let read = |source: &dyn EventSource| {
                    source.events(stream, Seq(from), &filter).map(Result::unwrap).collect::<Vec<_>>()
                };
                assert_eq!(read(&archive), read(&log));
            }
        }
        let address = Address { stream, seq: Seq(count / 3) };
        assert_eq!(archive.event(address).unwrap(), log.event(address).unwrap());
        let beyond = archive.event(Address { stream, seq: Seq(count) }).unwrap_err();
        assert!(matches!(beyond, LogError::UnknownEvent { .. }));
    }
    assert_eq!(content_digest_of_run(&archive, run(1)).unwrap(), content_digest_of_run(&log, run(1)).unwrap());
    let summary = archive.summary();
    assert_eq!(summary.events, frames(&log, 1).len() as u64);
    assert_eq!(summary.raw_bytes, frames(&log, 1).iter().map(|frame| frame.bytes().len() as u64).sum::<u64>());
    assert_eq!(summary.bytes, fs::metadata(&path).unwrap().len());
    // The run's own content digest no longer fits, since it got more rollouts behind its end: the check says so.
    let report = verify_archive(&path).unwrap();
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    assert!(report.findings[0].to_string().contains("content digest"), "{}", report.findings[0]);
}

#[test]
fn long_payloads_come_back_whole_and_repeats_are_stored_once() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(&dir.path().join("log"), plain_options()).unwrap();
    record_run(&log, 1).unwrap();
    let (once, twice) = (tool_output(8, 1), tool_output(1, 2));
    let size = |bodies: Vec<Body>, r| {
        log.append(rollout(1, r), Expected::Any, bodies).unwrap();
        let (_, archive) = archived(dir.path(), &log, 1);
        assert!(frames(&archive, 1) == frames(&log, 1));
        archive.summary().bytes
    };
    let base = size(vec![note("nothing long")], 3);
    let first = size(vec![once.clone(), note("between"), twice.clone()], 4);
    let again = size(vec![twice, once.clone(), once.clone()], 5);
    assert!(first - base > 1 << 20, "{first} bytes");
    assert!(again - first < 1_000, "repeats cost {} bytes", again - first);
    // The same text in events that differ in all else.
    let Body::CallAnswered(answered) = &once else { panic!("a tool's output") };
    let Some((_, Answer::Value(text))) = answered.answers.first() else { panic!("with a text") };
    let answers = vec![(3, Answer::Value("1".to_owned())), (4, Answer::Value(text.clone()))];
    let elsewhere = CallAnswered { node: NodePath::root().child(7), step: 9, answers };
    let third = size(vec![elsewhere.into(), note(text.clone())], 6);
    assert!(third - again < 1_000, "repeats elsewhere cost {} bytes", third - again);
}

#[test]
fn every_flipped_bit_of_an_archive_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(&dir.path().join("log"), plain_options()).unwrap();
    record_run(&log, 1).unwrap();
    let (path, archive) = archived(dir.path(), &log, 1);
    let (intact, wanted) = (fs::read(&path).unwrap(), everything(&archive));
    assert_eq!(verify_archive(&path).unwrap().findings, Vec::new());
    let other = dir.path().join("flipped.raolog");
    for bit in 0..intact.len() * 8 {
        let mut bytes = intact.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(&other, &bytes).unwrap();
        match verify_archive(&other) {
            Ok(report) => assert!(!report.findings.is_empty(), "bit {bit} goes unnoticed"),
            Err(error) => assert_eq!(error.class(), ErrorClass::Integrity, "bit {bit}: {error}"),
        }
        // A reader that does not check the whole file first still never gives an event that is not the archived one.
        if let Ok(archive) = ArchiveReader::open(&other) {
            let read = everything(&archive);
            assert!(read.iter().all(|event| wanted.contains(event)), "bit {bit} changes an event");
            let failed: usize = archive
                .streams(archive.run())
                .into_iter()
                .map(|stream| archive.events(stream, Seq(0), &Filter::all()).filter(Result::is_err).count())
                .sum();
            assert!(read.len() == wanted.len() || failed > 0, "bit {bit} loses events silently");
        }
    }
}

#[test]
fn a_cut_archive_and_other_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(&dir.path().join("log"), plain_options()).unwrap();
    record_run(&log, 1).unwrap();
    let (path, _) = archived(dir.path(), &log, 1);
    let intact = fs::read(&path).unwrap();
    for cut in (0..intact.len()).chain([intact.len() + 1]) {
        let mut bytes = intact.clone();
        bytes.resize(cut, 0);
        fs::write(&path, &bytes).unwrap();
        let error = ArchiveReader::open(&path).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Integrity, "cut at {cut}: {error}");
    }
    let mut newer = intact.clone();
    newer[4] = 3;
    let crc = crc32fast::hash(&newer[..8]).to_le_bytes();
    newer[8..12].copy_from_slice(&crc);
    fs::write(&path, &newer).unwrap();
    let error = ArchiveReader::open(&path).unwrap_err();
    assert!(error.class() == ErrorClass::Newer && error.to_string().contains("archive version 3"), "{error}");
}

#[test]
fn a_damaged_part_costs_its_own_events_only() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(&dir.path().join("log"), plain_options()).unwrap();
    record_run(&log, 1).unwrap();
    for r in 3..6 {
        log.append(rollout(1, r), Expected::Any, (0..300).map(|i| action(1_000 + i, 1_000 + i)).collect()).unwrap();
    }
    let (path, _) = archived(dir.path(), &log, 1);
    let mut bytes = fs::read(&path).unwrap();
    // The first segment begins behind the head.
    bytes[200] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let archive = ArchiveReader::open(&path).unwrap();
    let error = archive.events(Stream::Run(run(1)), Seq(0), &Filter::all()).next().unwrap().unwrap_err();
    assert!(matches!(error, LogError::Damaged { seq: Seq(0), .. }), "{error}");
    let last: Vec<_> = archive.events(rollout(1, 5), Seq(0), &Filter::all()).filter_map(Result::ok).collect();
    let wanted: Vec<_> = log.events(rollout(1, 5), Seq(0), &Filter::all()).map(Result::unwrap).collect();
    assert!(!last.is_empty() && wanted.ends_with(&last));
    // Behind the error the scan goes on.
    let items: Vec<bool> = archive.frames(rollout(1, 3), Seq(0), &Filter::all()).map(|item| item.is_ok()).collect();
    assert_eq!(items.iter().filter(|ok| !**ok).count(), 1);
    assert!(items.iter().any(|ok| *ok));
}

#[test]
fn only_finished_runs_are_exported() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(&dir.path().join("log"), plain_options()).unwrap();
    log.append(rollout(1, 0), Expected::Any, vec![note("begun")]).unwrap();
    let to = dir.path().join("one.raolog");
    assert_eq!(export(&log, run(1), &to).unwrap_err().class(), ErrorClass::Incomplete);
    assert!(!to.exists());
    record_run(&log, 2).unwrap();
    let summary = export(&log, run(2), &to).unwrap();
    assert_eq!(verify_archive(&to).unwrap().summary, summary);
    // The copy of an archive is that archive.
    let copy = dir.path().join("two.raolog");
    export(&ArchiveReader::open(&to).unwrap(), run(2), &copy).unwrap();
    assert_eq!(fs::read(&to).unwrap(), fs::read(&copy).unwrap());
}

#[test]
fn golden_archives_read_as_on_the_day_they_were_written() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/archive-v1");
    let archive = ArchiveReader::open(&golden.join("intact.raolog")).unwrap();
    assert_eq!(verify_archive(&golden.join("intact.raolog")).unwrap().findings, Vec::new());
    let dir = tempfile::tempdir().unwrap();
    let wanted = write_golden_archives(dir.path());
    assert_eq!(everything(&archive), wanted);
    let report = verify_archive(&golden.join("flipped.raolog")).unwrap();
    assert!(report.findings.len() >= 2, "{:?}", report.findings);
    assert!(report.findings.iter().any(|finding| finding.to_string().contains("checksum")), "{:?}", report.findings);
    let error = ArchiveReader::open(&golden.join("cut.raolog")).unwrap_err();
    assert!(error.to_string().contains("perhaps it was cut"), "{error}");
}

/// Makes the checksums right again after bytes were changed: those of segments, blocks and footer.
fn reseal(bytes: &mut [u8]) -> Option<()> {
    let end = bytes.len().checked_sub(48)?;
    let number = |bytes: &[u8], at: usize, size: usize| {
        let mut value = [0; 8];
        value[..size].copy_from_slice(bytes.get(at..at + size)?);
        usize::try_from(u64::from_le_bytes(value)).ok()
    };
    let footer = end.checked_sub(number(bytes, end, 8)?)?;
    let counts: Vec<usize> = (0..4).map(|i| number(bytes, footer + 16 + i * 4, 4)).collect::<Option<_>>()?;
    let segments = footer + 48 + counts[0].min(1 << 20) * 96;
    let blocks = segments + counts[1].min(1 << 20) * 24 + counts[2].min(1 << 20) * 56;
    let entries = (0..counts[1].min(64)).map(|i| (segments + i * 24, 8, 12));
    for (entry, len_at, crc_at) in entries.chain((0..counts[3].min(64)).map(|i| (blocks + i * 24, 8, 16))) {
        let (Some(at), Some(len)) = (number(bytes, entry, 8), number(bytes, entry + len_at, 4)) else { continue };
        let Some(crc) = at.checked_add(len).and_then(|to| bytes.get(at..to)).map(crc32fast::hash) else { continue };
        bytes.get_mut(entry + crc_at..entry + crc_at + 4)?.copy_from_slice(&crc.to_le_bytes());
    }
    let crc = crc32fast::hash(bytes.get(footer..end)?).to_le_bytes();
    bytes[end + 8..end + 12].copy_from_slice(&crc);
    Some(())
}

#[test]
fn forged_archives_with_right_checksums_do_no_harm() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/archive-v1/intact.raolog");
    let intact = fs::read(golden).unwrap();
    let footer = intact.len() - 48 - u64::from_le_bytes(intact[intact.len() - 48..][..8].try_into().unwrap()) as usize;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("forged.raolog");
    let (mut opened, mut refused, mut failed) = (0, 0, 0);
    let mut state = 7u64;
    for round in 0..3_000 {
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut bytes = intact.clone();
        // In turn: anywhere, in the footer, in the segment's directory and rows.
        let segment = footer.saturating_sub(2_000);
        let (from, to) = [(12, intact.len()), (footer, intact.len() - 48), (segment, footer)][round % 3];
        for _ in 0..1 + random(3) {
            let at = from + random(to - from);
            bytes[at] = [random(256) as u8, 0, 0xff, bytes[at] ^ (1 << random(8))][random(4)];
        }
        reseal(&mut bytes);
        fs::write(&path, &bytes).unwrap();
        match ArchiveReader::open(&path) {
            Err(_) => refused += 1,
            Ok(archive) => {
                opened += 1;
                let mut any = false;
                for stream in archive.streams(archive.run()) {
                    any |= archive.headers(stream, Seq(0)).any(|header| header.is_err());
                    any |= archive.events(stream, Seq(0), &Filter::all()).any(|event| event.is_err());
                }
                failed += usize::from(any);
                verify_archive(&path).map(drop).unwrap_or_default();
            }
        }
    }
    assert!(opened > 500 && refused > 100 && failed > 100, "{opened} opened, {refused} refused, {failed} failed");
}
