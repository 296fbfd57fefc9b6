//! Damaged, exchanged, missing and too-new data: always named, never returned as if it were right.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rao_store::event::{Body, Event, Kind, RunFinished};
use rao_store::{
    Address, Digest, ErrorClass, EventSource, Expected, Filter, Finding, FindingClass, Log, LogError, Manifest, Reader,
    Seq, Stream, VerifyReport, verify,
};

use crate::common::{
    copy_dir, everything, note, open, plain_options, record_run, reward, rollout, run, run_started, varied,
};
use crate::faults::FaultFiles;

const AT_CRC: usize = 88;
const HEADER: usize = 92;

fn journal(dir: &Path) -> PathBuf {
    dir.join("journal/0000000000.log")
}

/// A closed log with one recorded run, and its events.
fn recorded(dir: &Path) -> Vec<Event> {
    let (log, _) = Log::open(dir, plain_options()).unwrap();
    record_run(&log, 1).unwrap();
    let events = everything(&log);
    log.close().unwrap();
    events
}

/// Offset and length of every frame in a journal file, in order.
fn frames(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut frames = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let body = u32::from_le_bytes(bytes[at + 36..at + 40].try_into().unwrap()) as usize;
        frames.push((at, HEADER + body));
        at += HEADER + body;
    }
    frames
}

/// Where an event's frame lies.
fn frame_of(bytes: &[u8], kind: Kind, nth: usize) -> (usize, usize) {
    let of_kind = |(at, _): &(usize, usize)| bytes[at + 6..at + 8] == kind.code().to_le_bytes();
    frames(bytes).into_iter().filter(of_kind).nth(nth).unwrap()
}

fn reseal(frame: &mut [u8]) {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&frame[..AT_CRC]);
    hasher.update(&frame[HEADER..]);
    let crc = hasher.finalize().to_le_bytes();
    frame[AT_CRC..HEADER].copy_from_slice(&crc);
}

type Named = (FindingClass, Option<Stream>, Option<Seq>, Option<Kind>);

fn findings(report: &VerifyReport) -> Vec<Named> {
    report.findings.iter().map(|finding| (finding.class, finding.stream, finding.seq, finding.kind)).collect()
}

#[test]
fn a_flipped_byte_in_a_reward_is_named_and_the_rest_stays_readable() {
    let dir = tempfile::tempdir().unwrap();
    let events = recorded(dir.path());
    let intact = fs::read(journal(dir.path())).unwrap();
    let (at, length) = frame_of(&intact, Kind::RewardAssigned, 1);
    let lost = Address { stream: rollout(1, 0), seq: Seq(3) };
    assert_eq!(events.iter().find(|event| event.address() == lost).unwrap().body, reward(1.0));
    // In the body, the checksum, the kind, the stream, the number, the length and the chain.
    for byte in [HEADER, length - 1, AT_CRC, 7, 17, 32, 36, 38, 41, 60] {
        let mut bytes = intact.clone();
        bytes[at + byte] ^= 0x10;
        fs::write(journal(dir.path()), &bytes).unwrap();
        let report = verify(dir.path()).unwrap();
        let [finding] = report.findings.as_slice() else { panic!("byte {byte}: {:?}", report.findings) };
        assert_eq!(finding.class, FindingClass::InteriorDamage);
        assert_eq!((finding.stream, finding.seq), (Some(lost.stream), Some(lost.seq)), "byte {byte}");
        assert_eq!((finding.file.as_deref(), finding.offset), (Some("journal/0000000000.log"), Some(at as u64)));
        if byte != 7 {
            assert_eq!(finding.kind, Some(Kind::RewardAssigned));
            assert!(finding.to_string().starts_with(&format!(
                "interior damage: event {lost} (reward_assigned), journal/0000000000.log at byte {at}: "
            )));
        }
        assert!(report.is_damaged());

        let (reader, opened) = Reader::open(dir.path()).unwrap();
        assert!(opened.is_damaged());
        let rest: Vec<Event> = events.iter().filter(|event| event.address() != lost).cloned().collect();
        assert_eq!(everything(&reader), rest);
        let error = reader.event(lost).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Integrity);
        let place = format!("event {lost} cannot be read (journal/0000000000.log at byte {at}): ");
        assert!(error.to_string().starts_with(&place), "{error}");
        let read: Vec<bool> = reader.events(lost.stream, Seq(0), &Filter::all()).map(|event| event.is_ok()).collect();
        assert_eq!(read, [true, true, true, false, true]);
    }
}

#[test]
fn a_damaged_log_takes_new_streams_and_refuses_the_damaged_one() {
    let dir = tempfile::tempdir().unwrap();
    let events = recorded(dir.path());
    let mut bytes = fs::read(journal(dir.path())).unwrap();
    // The last event of rollout 1: nothing after it in its stream tells that it was there, but the manifest does.
    let (at, _) = frame_of(&bytes, Kind::RolloutFinished, 1);
    bytes[at + HEADER] ^= 1;
    fs::write(journal(dir.path()), &bytes).unwrap();
    for _ in 0..2 {
        let (log, report) = Log::open(dir.path(), crate::common::options()).unwrap();
        assert!(report.is_damaged(), "{report:?}");
        assert_eq!(log.head(rollout(1, 1)).unwrap().count, 5, "the number stays taken");
        let error = log.append(rollout(1, 1), Expected::Any, vec![note("more")]).unwrap_err();
        assert!(matches!(error, LogError::DamagedStream { .. }), "{error}");
        log.append(rollout(2, 0), Expected::Any, vec![note("another run")]).unwrap();
        assert!(log.event(Address { stream: rollout(1, 1), seq: Seq(4) }).is_err());
        assert_eq!(log.events(rollout(1, 0), Seq(0), &Filter::all()).map(Result::unwrap).count(), 5);
        log.close().unwrap();
        let report = verify(dir.path()).unwrap();
        let [finding] = report.findings.as_slice() else { panic!("{:?}", report.findings) };
        assert_eq!((finding.stream, finding.seq), (Some(rollout(1, 1)), Some(Seq(4))), "damage stays visible");
    }
    assert_eq!(verify(dir.path()).unwrap().events, events.len() as u64 - 1 + 2);
}

#[test]
fn every_flipped_bit_of_a_journal_is_found_and_no_wrong_event_is_returned() {
    let dir = tempfile::tempdir().unwrap();
    let events: BTreeMap<Address, Event> =
        recorded(dir.path()).into_iter().map(|event| (event.address(), event)).collect();
    let intact = fs::read(journal(dir.path())).unwrap();
    let frames = frames(&intact);
    let files = Arc::new(FaultFiles::copy_of(dir.path()));
    for bit in 0..intact.len() * 8 {
        let mut bytes = intact.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        files.put(&journal(dir.path()), &bytes);
        let (reader, report) = Reader::open_with(files.clone(), dir.path()).unwrap();
        assert!(report.is_damaged(), "bit {bit} was not noticed");
        let read = everything(&reader);
        assert!(read.iter().all(|event| events.get(&event.address()) == Some(event)), "bit {bit}: a wrong event");
        assert_eq!(read.len(), events.len() - 1, "bit {bit}: an intact event is not readable");
        let damaged = frames.iter().rev().find(|(at, _)| *at <= bit / 8).unwrap();
        let named = |finding: &&Finding| finding.offset == Some(damaged.0 as u64) && finding.seq.is_some();
        assert_eq!(report.findings.iter().filter(named).count(), 1, "bit {bit}: {:?}", report.findings);
    }
}

#[test]
fn every_flipped_bit_of_a_manifest_is_found_and_costs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let events = recorded(dir.path());
    let path = dir.path().join("MANIFEST");
    let intact = fs::read(&path).unwrap();
    let files = Arc::new(FaultFiles::copy_of(dir.path()));
    for bit in 0..intact.len() * 8 {
        let mut bytes = intact.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        files.put(&path, &bytes);
        let (reader, report) = Reader::open_with(files.clone(), dir.path()).unwrap();
        let [finding] = report.findings.as_slice() else { panic!("bit {bit}: {:?}", report.findings) };
        assert_eq!((finding.class, finding.file.as_deref()), (FindingClass::ManifestDisagreement, Some("MANIFEST")));
        assert_eq!(everything(&reader), events);
    }
    fs::remove_file(&path).unwrap();
    assert!(verify(dir.path()).unwrap().is_damaged());
    let (log, report) = Log::open(dir.path(), plain_options()).unwrap();
    assert!(report.lines.iter().any(|line| line.starts_with("MANIFEST was rebuilt")), "{report:?}");
    log.close().unwrap();
    assert_eq!(fs::read(&path).unwrap(), intact);
    assert_eq!(verify(dir.path()).unwrap().findings, Vec::new());
}

#[test]
fn an_exchanged_event_breaks_the_chain() {
    let dir = tempfile::tempdir().unwrap();
    recorded(dir.path());
    let intact = fs::read(journal(dir.path())).unwrap();
    // A better reward with a fitting checksum: the next event does not continue it.
    let (at, length) = frame_of(&intact, Kind::RewardAssigned, 0);
    let mut bytes = intact.clone();
    bytes[at + length - 1] ^= 0x01;
    reseal(&mut bytes[at..at + length]);
    fs::write(journal(dir.path()), &bytes).unwrap();
    let report = verify(dir.path()).unwrap();
    let broken = (FindingClass::ChainBreak, Some(rollout(1, 0)), Some(Seq(3)), Some(Kind::RewardAssigned));
    assert_eq!(findings(&report), vec![broken]);
    assert!(report.is_damaged());
    // The last event of a stream: only the manifest tells.
    let (at, length) = frame_of(&intact, Kind::RolloutFinished, 0);
    let mut bytes = intact.clone();
    bytes[at + length - 1] ^= 0x01;
    reseal(&mut bytes[at..at + length]);
    fs::write(journal(dir.path()), &bytes).unwrap();
    let report = verify(dir.path()).unwrap();
    assert_eq!(findings(&report), vec![(FindingClass::ManifestDisagreement, Some(rollout(1, 0)), Some(Seq(4)), None)]);
}

#[test]
fn a_run_that_recorded_another_content_digest_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let own = Stream::Run(run(1));
    let end = RunFinished { rollouts: 0, content: Digest::of(b"something else") };
    log.append(own, Expected::Any, vec![run_started(), end.into()]).unwrap();
    log.close().unwrap();
    let report = verify(dir.path()).unwrap();
    let wanted = (FindingClass::ContentDisagreement, Some(own), Some(Seq(1)), Some(Kind::RunFinished));
    assert_eq!(findings(&report), vec![wanted]);
}

#[test]
fn a_lost_file_is_a_loss_with_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = plain_options();
    options.rotate_bytes = 400;
    let (log, _) = Log::open(dir.path(), options).unwrap();
    for i in 0..30 {
        log.append(rollout(1, 0), Expected::Any, vec![varied(i)]).unwrap();
    }
    log.close().unwrap();
    let files = fs::read_dir(dir.path().join("journal")).unwrap().count();
    for lost in [0, 2, files - 1] {
        let other = tempfile::tempdir().unwrap();
        copy_dir(dir.path(), other.path());
        fs::remove_file(other.path().join(format!("journal/{lost:010}.log"))).unwrap();
        let report = verify(other.path()).unwrap();
        let missing = report.findings.iter().filter(|finding| finding.class == FindingClass::MissingEvents);
        assert!(missing.clone().any(|finding| finding.stream == Some(rollout(1, 0))), "{:?}", report.findings);
        let (log, opened) = Log::open(other.path(), plain_options()).unwrap();
        assert!(opened.is_damaged());
        assert_eq!(everything(&log).len() as u64, report.events);
        log.append(rollout(2, 0), Expected::Any, vec![note("a new run")]).unwrap();
        log.close().unwrap();
        let after = verify(other.path()).unwrap();
        assert!(after.is_damaged() && after.events == report.events + 1, "{after:?}");
    }
}

/// Does something to the log in a directory.
type Damage = Box<dyn Fn(&Path)>;

#[test]
fn a_damaged_sled_is_set_aside_and_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    for i in 0..300 {
        log.append(rollout(1, (i % 3) as u32), Expected::Any, vec![varied(i)]).unwrap();
    }
    let events = everything(&log);
    log.close().unwrap();
    let sled_file = |dir: &Path| dir.join("events/db");
    let length = fs::metadata(sled_file(dir.path())).unwrap().len() as usize;
    let mut set_aside = 0;
    let mut damages: Vec<(String, Damage)> = Vec::new();
    for i in 0..24 {
        let at = i * length / 24 / 4 + 17;
        damages.push((
            format!("flip at {at}"),
            Box::new(move |dir| {
                let mut bytes = fs::read(sled_file(dir)).unwrap();
                bytes[at] ^= 0x08;
                fs::write(sled_file(dir), bytes).unwrap();
            }),
        ));
    }
    for part in [4, 10, 1000] {
        damages.push((
            format!("cut by 1/{part}"),
            Box::new(move |dir| {
                let bytes = fs::read(sled_file(dir)).unwrap();
                fs::write(sled_file(dir), &bytes[..bytes.len() - bytes.len() / part]).unwrap();
            }),
        ));
    }
    damages.push(("gone".to_owned(), Box::new(|dir| fs::remove_dir_all(dir.join("events")).unwrap())));
    damages.push((
        "another log's".to_owned(),
        Box::new(|dir| {
            let other = tempfile::tempdir().unwrap();
            let (log, _) = open(other.path());
            for i in 0..300 {
                log.append(rollout(1, (i % 3) as u32), Expected::Any, vec![varied(i + 1)]).unwrap();
            }
            log.close().unwrap();
            fs::remove_dir_all(dir.join("events")).unwrap();
            copy_dir(&other.path().join("events"), &dir.join("events"));
        }),
    ));
    for (name, damage) in damages {
        let copy = tempfile::tempdir().unwrap();
        copy_dir(dir.path(), copy.path());
        damage(copy.path());
        let (log, report) = open(copy.path());
        assert!(!report.is_damaged(), "{name}: {report:?}");
        assert_eq!(everything(&log), events, "{name}");
        if let Some(aside) = &report.set_aside {
            assert!(aside.exists() && report.lines.iter().any(|line| line.contains("damaged")), "{report:?}");
            assert_eq!(report.reapplied, 300);
            set_aside += 1;
        }
        log.append(rollout(1, 0), Expected::Exactly(Seq(100)), vec![note("on")]).unwrap();
        log.close().unwrap();
        let (_, report) = open(copy.path());
        assert_eq!(report.lines, Vec::<String>::new(), "{name}: repaired once and for all");
    }
    assert!(set_aside >= 3, "only {set_aside} damages were noticed in sled");
}

#[test]
fn a_newer_log_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    recorded(dir.path());
    let intact = fs::read(journal(dir.path())).unwrap();
    let (at, length) = frame_of(&intact, Kind::RewardAssigned, 0);
    // Format version, kind, layout version and flags, with a right checksum as a newer program would write it.
    for (field, what) in [(4, "format version 2"), (6, "event kind 9"), (8, "layout version 2"), (10, "flags")] {
        let mut bytes = intact.clone();
        bytes[at + field] = [2, 0, 2, 16][field / 2 - 2];
        if field == 6 {
            bytes[at + 7] = 3;
        }
        reseal(&mut bytes[at..at + length]);
        fs::write(journal(dir.path()), &bytes).unwrap();
        assert_newer(dir.path(), if field == 6 { "event kind 768" } else { what });
        assert_eq!(fs::read(journal(dir.path())).unwrap(), bytes, "a newer log was changed");
    }
    fs::write(journal(dir.path()), &intact).unwrap();
    let path = dir.path().join("MANIFEST");
    let mut bytes = fs::read(&path).unwrap();
    bytes[4] = 4;
    let content = bytes.len() - 4;
    let crc = crc32fast::hash(&bytes[..content]).to_le_bytes();
    bytes[content..].copy_from_slice(&crc);
    fs::write(&path, &bytes).unwrap();
    assert_newer(dir.path(), "format version 4");
    assert_eq!((fs::read(&path).unwrap(), fs::read(journal(dir.path())).unwrap()), (bytes, intact));
}

fn assert_newer(dir: &Path, what: &str) {
    let errors = [
        Reader::open(dir).map(drop).unwrap_err(),
        Log::open(dir, plain_options()).map(drop).unwrap_err(),
        verify(dir).map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.class(), ErrorClass::Newer, "{error}");
        assert!(error.to_string().contains(what) && error.to_string().contains("use a newer rao-log"), "{error}");
    }
}

#[test]
fn bytes_that_look_like_a_frame_inside_a_body_do_not_mislead() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(dir.path(), plain_options()).unwrap();
    let stream = rollout(1, 0);
    let bodies: Vec<Body> = (0..6).map(|i| note("RAOE\u{1}\u{0}".repeat(20 + i))).collect();
    for body in &bodies {
        log.append(stream, Expected::Any, vec![body.clone()]).unwrap();
    }
    log.close().unwrap();
    let intact = fs::read(journal(dir.path())).unwrap();
    let (at, _) = frames(&intact)[2];
    for byte in [0, 4, 36, 39, HEADER + 9] {
        let mut bytes = intact.clone();
        bytes[at + byte] ^= 0x40;
        fs::write(journal(dir.path()), &bytes).unwrap();
        let (reader, report) = Reader::open(dir.path()).unwrap();
        assert_eq!(report.findings.len(), 1, "byte {byte}: {:?}", report.findings);
        assert_eq!(report.findings[0].seq, Some(Seq(2)));
        assert_eq!(everything(&reader).len(), 5);
    }
}

#[test]
fn damage_before_a_later_commit_is_no_torn_tail_even_without_a_manifest_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(dir.path(), plain_options()).unwrap();
    let old_manifest = fs::read(dir.path().join("MANIFEST")).unwrap();
    for i in 0..4 {
        log.append(rollout(1, 0), Expected::Any, vec![varied(i), varied(i + 1)]).unwrap();
    }
    log.close().unwrap();
    // As after a kill: the manifest counts nothing yet.
    fs::write(dir.path().join("MANIFEST"), old_manifest).unwrap();
    let intact = fs::read(journal(dir.path())).unwrap();
    // The last event of the third commit; behind it there is only the fourth.
    let (at, _) = frames(&intact)[5];
    let mut bytes = intact.clone();
    bytes[at + HEADER] ^= 1;
    fs::write(journal(dir.path()), &bytes).unwrap();
    let wanted = vec![(FindingClass::InteriorDamage, Some(rollout(1, 0)), Some(Seq(5)))];
    let named = |report: &VerifyReport| {
        report.findings.iter().map(|finding| (finding.class, finding.stream, finding.seq)).collect::<Vec<_>>()
    };
    assert_eq!(named(&verify(dir.path()).unwrap()), wanted);
    let (log, _) = Log::open(dir.path(), plain_options()).unwrap();
    assert_eq!(everything(&log).len(), 7);
    log.close().unwrap();
    assert_eq!(fs::read(journal(dir.path())).unwrap(), bytes, "nothing was cut off");
    // In the last commit it is a torn tail: nobody can tell that it was ever acknowledged. What is intact is kept.
    let (at, _) = frames(&intact)[6];
    let mut bytes = intact.clone();
    bytes[at + HEADER] ^= 1;
    let other = tempfile::tempdir().unwrap();
    Log::open(other.path(), plain_options()).unwrap().0.close().unwrap();
    fs::write(journal(other.path()), &bytes).unwrap();
    let (log, report) = Log::open(other.path(), plain_options()).unwrap();
    assert!(!report.is_damaged() && everything(&log).len() == 6, "{report:?}");
    let kept = fs::read(other.path().join(format!("journal/0000000000.cut-{at}"))).unwrap();
    assert_eq!(kept, bytes[at..]);
}

#[test]
fn an_event_exchanged_behind_an_open_readers_back_is_not_returned() {
    let dir = tempfile::tempdir().unwrap();
    recorded(dir.path());
    let mut bytes = fs::read(journal(dir.path())).unwrap();
    let (reader, _) = Reader::open(dir.path()).unwrap();
    let (at, length) = frame_of(&bytes, Kind::RewardAssigned, 0);
    bytes[at + length - 1] ^= 0x01;
    reseal(&mut bytes[at..at + length]);
    fs::write(journal(dir.path()), &bytes).unwrap();
    let error = reader.event(Address { stream: rollout(1, 0), seq: Seq(2) }).unwrap_err();
    assert!(error.to_string().contains("another event stands in its place"), "{error}");
}

#[test]
fn an_event_exchanged_with_its_checksum_is_noticed_by_whoever_computes_with_it() {
    let dir = tempfile::tempdir().unwrap();
    recorded(dir.path());
    let mut bytes = fs::read(journal(dir.path())).unwrap();
    let (at, length) = frame_of(&bytes, Kind::RewardAssigned, 0);
    bytes[at + length - 1] ^= 0x01;
    reseal(&mut bytes[at..at + length]);
    fs::write(journal(dir.path()), &bytes).unwrap();
    let broken = |findings: &[Finding]| findings.iter().any(|finding| finding.class == FindingClass::ChainBreak);
    assert!(broken(&Reader::open_checked(dir.path()).unwrap().1.findings));
    assert!(broken(&verify(dir.path()).unwrap().findings));
    let mut checked = plain_options();
    checked.check_digests = true;
    assert!(broken(&Log::open(dir.path(), checked).unwrap().1.findings));
    let error = rao_store::archive::seal(dir.path(), rao_store::RunId(run(1).0), plain_options()).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Integrity, "{error}");
    // A quick opening does not hash what the manifest vouches for. It notices as soon as anything else is wrong.
    assert!(!Reader::open(dir.path()).unwrap().1.is_damaged());
    let (other, length) = frame_of(&bytes, Kind::RolloutFinished, 1);
    bytes[other + length - 1] ^= 0x01;
    fs::write(journal(dir.path()), &bytes).unwrap();
    assert!(broken(&Reader::open(dir.path()).unwrap().1.findings));
}

#[test]
fn a_quick_opening_does_not_believe_counts_that_are_not_the_journals() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(dir.path(), plain_options()).unwrap();
    for r in [0, 1] {
        log.append(rollout(1, r), Expected::Any, (0..5).map(varied).collect()).unwrap();
    }
    log.close().unwrap();
    let path = dir.path().join("MANIFEST");
    let right = Manifest::decode(&fs::read(&path).unwrap()).unwrap();
    let counting = |count: u64| {
        let mut manifest = right.clone();
        manifest.heads[1].1.count = count;
        manifest
    };
    let (mut more, mut fewer) = (right.clone(), right.clone());
    more.heads.push((rollout(1, 2), right.heads[0].1));
    fewer.heads.pop();
    for (wrong, stream, class) in [
        (counting(4), 1, FindingClass::ManifestDisagreement),
        (counting(6), 1, FindingClass::MissingEvents),
        (more, 2, FindingClass::MissingEvents),
        (fewer, 1, FindingClass::ManifestDisagreement),
    ] {
        fs::write(&path, wrong.encode()).unwrap();
        let (reader, report) = Reader::open(dir.path()).unwrap();
        let [finding] = report.findings.as_slice() else { panic!("{stream} {class:?}: {:?}", report.findings) };
        assert_eq!((finding.stream, finding.class), (Some(rollout(1, stream)), class));
        assert_eq!(everything(&reader).len(), 10, "what is there can be read");
        let (log, report) = Log::open(dir.path(), plain_options()).unwrap();
        assert!(report.is_damaged());
        let error = log.append(rollout(1, stream), Expected::Any, vec![varied(1)]).unwrap_err();
        assert!(matches!(error, LogError::DamagedStream { .. }), "{error}");
    }
}

#[test]
fn a_log_whose_making_was_cut_off_is_empty_and_not_damaged() {
    for has_file in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("journal")).unwrap();
        fs::write(dir.path().join("LOCK"), "").unwrap();
        if has_file {
            fs::write(journal(dir.path()), "").unwrap();
        }
        let (reader, report) = Reader::open(dir.path()).unwrap();
        assert_eq!((reader.runs(), report.findings), (Vec::new(), Vec::new()));
        assert_eq!(verify(dir.path()).unwrap().findings, Vec::new());
        // A manifest that is there and cannot be read is damage all the same, and so is one that misses from a log with events.
        fs::write(dir.path().join("MANIFEST"), "torn").unwrap();
        assert_eq!(verify(dir.path()).unwrap().findings.len(), 1);
        fs::remove_file(dir.path().join("MANIFEST")).unwrap();
        recorded(dir.path());
        fs::remove_file(dir.path().join("MANIFEST")).unwrap();
        assert_eq!(verify(dir.path()).unwrap().findings.len(), 1);
    }
}
