//! Long texts: stored once in a live log, whole when read, named when damaged, gone when nobody needs them.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rao_store::archive::{self, ArchiveReader};
use rao_store::event::{Answer, Body, CallAnswered, CellFinished, Event, RunFinished};
use rao_store::files::Files;
use rao_store::prune::{self, Rule};
use rao_store::{
    Address, EventSource, Expected, Filter, FindingClass, Log, LogError, NodePath, Reader, Seq, Stream,
    content_digest_of_run, verify, verify_with,
};

use crate::common::{JOURNAL, everything, note, open, options, plain_options, rollout, run, run_started, varied};
use crate::faults::{Fault, FaultFiles, Survival};

const LONG: usize = 1 << 16;

fn text(bytes: usize, seed: u64) -> String {
    let mut state = seed;
    let mut text = String::with_capacity(bytes + 16);
    while text.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        text.push_str(&format!("{:x} line\n", state >> 20));
    }
    text
}

fn answer(step: u32, text: &str) -> Body {
    let answers = vec![(0, Answer::Value("1".to_owned())), (1, Answer::Value(text.to_owned()))];
    CallAnswered { node: NodePath::root().child(step), step, answers }.into()
}

fn printed(step: u32, text: &str) -> Body {
    let (node, stdout) = (NodePath::root(), text.to_owned());
    CellFinished { node, step, stdout, error: Some(text.to_owned()), limit: None, rejected: false }.into()
}

fn finish(log: &Log, n: u8) {
    let own = Stream::Run(run(n));
    let content = content_digest_of_run(log, run(n)).unwrap();
    log.append(own, Expected::Any, vec![RunFinished { rollouts: 1, content }.into()]).unwrap();
}

fn journal_bytes(dir: &Path) -> u64 {
    fs::read_dir(dir.join("journal")).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn a_tool_output_of_20_mb_that_occurs_often_takes_its_space_once() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let output = text(20 << 20, 1);
    // In two runs, in events of different kinds, steps and nodes, twice in one of them.
    for n in [1, 2] {
        log.append(Stream::Run(run(n)), Expected::Any, vec![run_started()]).unwrap();
        log.append(rollout(n, 0), Expected::Any, vec![answer(1, &output), note("between"), printed(2, &output)])
            .unwrap();
        log.append(rollout(n, 1), Expected::Any, vec![answer(3, &output)]).unwrap();
        finish(&log, n);
    }
    let wanted = everything(&log);
    assert!(wanted[2].body == answer(1, &output) && wanted[4].body == printed(2, &output));
    let once = (output.len() + 10_000) as u64;
    assert!(journal_bytes(dir.path()) < once, "{} bytes", journal_bytes(dir.path()));
    let headers: Vec<_> = log.headers(rollout(1, 0), Seq(0)).map(Result::unwrap).collect();
    assert_eq!(headers[2].body_len as usize, wanted[4].body.encode().unwrap().len(), "a header tells the whole length");
    log.close().unwrap();
    let found = verify(dir.path()).unwrap();
    assert_eq!((found.findings.as_slice(), found.payloads, found.payload_bytes), (&[][..], 1, output.len() as u64));
    assert!(everything(&Reader::open(dir.path()).unwrap().0) == wanted);
    let (log, report) = open(dir.path());
    assert!(report.lines.is_empty(), "{report:?}");
    assert!(everything(&log) == wanted);
    // What is known from before the opening is not stored again.
    log.append(rollout(3, 0), Expected::Any, vec![answer(9, &output)]).unwrap();
    log.close().unwrap();
    assert!(journal_bytes(dir.path()) < once);
}

#[test]
fn long_texts_go_along_into_archives_and_leave_when_nobody_needs_them() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let (shared, own) = (text(3 * LONG, 1), text(LONG, 2));
    let (log, _) = open(&one);
    for n in 1..=3 {
        log.append(Stream::Run(run(n)), Expected::Any, vec![run_started()]).unwrap();
        log.append(rollout(n, 0), Expected::Any, vec![answer(1, &shared), printed(2, &shared), varied(3)]).unwrap();
        if n == 1 {
            log.append(rollout(n, 0), Expected::Any, vec![answer(4, &own)]).unwrap();
        }
        finish(&log, n);
    }
    let wanted = everything(&log);
    log.close().unwrap();
    let of = |n: u8| wanted.iter().filter(|event| event.stream.run() == run(n)).cloned().collect::<Vec<Event>>();
    let held = |text: &str| {
        let part = &text.as_bytes()[..200];
        fs::read_dir(one.join("journal"))
            .unwrap()
            .map(|entry| fs::read(entry.unwrap().path()).unwrap())
            .any(|bytes| bytes.windows(200).any(|window| window == part))
    };
    let file = dir.path().join("run.raolog");
    archive::export(&Reader::open(&one).unwrap().0, run(1), &file).unwrap();
    assert!(everything(&ArchiveReader::open(&file).unwrap()) == of(1));
    let sealed = archive::seal(&one, run(1), options()).unwrap();
    // The run's own long text left the journal with it, the shared one did not.
    assert!(!held(&own) && held(&shared));
    assert!(sealed.freed as usize > own.len() && (sealed.freed as usize) < own.len() + 10_000, "{sealed:?}");
    assert!(everything(&Reader::open(&one).unwrap().0) == wanted);
    archive::import(&two, &file, options()).unwrap();
    assert!(everything(&Reader::open(&two).unwrap().0) == of(1));
    assert_eq!(verify(&two).unwrap().findings, Vec::new());

    let none = |_: &dyn EventSource, _| Vec::new();
    let keep = |count| Rule { keep: Some(count), older_than_us: None };
    prune::prune(&one, keep(1), 0, &none, options()).unwrap();
    assert!(held(&shared));
    assert!(everything(&open(&one).0) == of(3));
    let report = prune::prune(&one, keep(0), 0, &none, options()).unwrap();
    assert!(!held(&shared) && report.freed as usize > shared.len(), "{report:?}");
    assert_eq!((journal_bytes(&one), verify(&one).unwrap().findings), (0, Vec::new()));
}

/// A log with a long text in three events of two streams, and its events.
fn recorded(dir: &Path) -> Vec<Event> {
    let (log, _) = Log::open(dir, plain_options()).unwrap();
    let long = text(LONG, 7);
    log.append(rollout(1, 0), Expected::Any, vec![note("first"), answer(1, &long), note("last")]).unwrap();
    log.append(rollout(1, 1), Expected::Any, vec![printed(1, &long), answer(2, &long)]).unwrap();
    log.append(rollout(1, 2), Expected::Any, vec![note("elsewhere")]).unwrap();
    let events = everything(&log);
    log.close().unwrap();
    events
}

#[test]
fn every_flipped_bit_of_a_long_text_and_of_what_names_it_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let events = recorded(dir.path());
    let path = dir.path().join(JOURNAL);
    let intact = fs::read(&path).unwrap();
    let files = Arc::new(FaultFiles::copy_of(dir.path()));
    // The first frame is a note's, the second the long text's.
    let header = u32::from_le_bytes(intact[36..40].try_into().unwrap()) as usize + 92;
    let body = header + 92;
    let behind = body + u32::from_le_bytes(intact[header + 36..header + 40].try_into().unwrap()) as usize;
    assert_eq!(&intact[header + 10..header + 12], &[4, 0]);
    let long = |event: &&Event| matches!(event.body, Body::CallAnswered(_) | Body::CellFinished(_));
    let sampled = (body..behind).step_by(4_001);
    let bytes = (header..body).chain(sampled).chain(behind..intact.len());
    for (place, bit) in bytes.flat_map(|place| (0..8).map(move |bit| (place, bit))) {
        let mut flipped = intact.clone();
        flipped[place] ^= 1 << bit;
        files.put(&path, &flipped);
        let case = format!("bit {bit} of byte {place}");
        let (reader, report) = Reader::open_with(files.clone(), dir.path()).unwrap();
        assert!(report.is_damaged(), "{case} was not noticed");
        let read = everything(&reader);
        assert!(read.iter().all(|event| events.contains(event)), "{case}: a wrong event");
        let lost: Vec<&Event> = events.iter().filter(|event| !read.contains(event)).collect();
        if place < behind {
            // The three events with the long text are lost, and each is named; no other is.
            assert_eq!(lost.len(), 3, "{case}");
            assert!(lost.iter().all(long), "{case}");
            for event in &lost {
                let named = |finding: &&rao_store::Finding| {
                    (finding.stream, finding.seq) == (Some(event.stream), Some(event.seq))
                };
                assert_eq!(report.findings.iter().filter(named).count(), 1, "{case}: {:?}", report.findings);
                let error = reader.event(event.address()).unwrap_err();
                assert!(error.to_string().contains("long text"), "{case}: {error}");
            }
        } else {
            assert_eq!(lost.len(), 1, "{case}");
        }
    }
}

#[test]
fn a_damaged_long_text_closes_its_streams_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    recorded(dir.path());
    let path = dir.path().join(JOURNAL);
    let mut bytes = fs::read(&path).unwrap();
    bytes[5_000] ^= 1;
    fs::write(&path, &bytes).unwrap();
    for _ in 0..2 {
        let (log, report) = open(dir.path());
        assert!(report.is_damaged());
        for r in [0, 1] {
            let error = log.append(rollout(1, r), Expected::Any, vec![note("more")]).unwrap_err();
            assert!(matches!(error, LogError::DamagedStream { .. }), "{error}");
        }
        log.append(rollout(1, 2), Expected::Any, vec![note("more")]).unwrap();
        // The same text again is stored anew, since the old one cannot be read.
        log.append(rollout(1, 3), Expected::Any, vec![answer(1, &text(LONG, 7))]).unwrap();
        let event = log.event(Address { stream: rollout(1, 3), seq: Seq(0) }).unwrap();
        assert!(event.body == answer(1, &text(LONG, 7)));
        log.close().unwrap();
        assert!(verify(dir.path()).unwrap().is_damaged());
    }
}

#[test]
fn a_long_text_exchanged_with_its_checksum_is_noticed_when_it_is_read_and_by_verify() {
    let dir = tempfile::tempdir().unwrap();
    recorded(dir.path());
    let path = dir.path().join(JOURNAL);
    let mut bytes = fs::read(&path).unwrap();
    let header = u32::from_le_bytes(bytes[36..40].try_into().unwrap()) as usize + 92;
    let length = u32::from_le_bytes(bytes[header + 36..header + 40].try_into().unwrap()) as usize;
    bytes[header + 5_000] ^= 1;
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[header..header + 88]);
    hasher.update(&bytes[header + 92..header + 92 + length]);
    let crc = hasher.finalize().to_le_bytes();
    bytes[header + 88..header + 92].copy_from_slice(&crc);
    fs::write(&path, &bytes).unwrap();
    let (reader, _) = Reader::open(dir.path()).unwrap();
    let error = reader.event(Address { stream: rollout(1, 0), seq: Seq(1) }).unwrap_err();
    assert!(error.to_string().contains("is another one than was stored"), "{error}");
    let found = verify(dir.path()).unwrap();
    let named =
        found.findings.iter().filter(|finding| finding.class == FindingClass::InteriorDamage && finding.seq.is_some());
    assert_eq!(named.count(), 3, "{:?}", found.findings);
}

#[test]
fn a_stop_between_a_long_text_and_its_event_loses_nothing_acknowledged() {
    let bodies: Vec<Body> = (0..4).map(|i| answer(i, &text(LONG, u64::from(i) / 2))).collect();
    for fault in [Fault::CrashBefore, Fault::CrashTorn, Fault::CrashAfter] {
        for at in 0.. {
            let dir = tempfile::tempdir().unwrap();
            let files = FaultFiles::with_plan(&[(at, fault)]);
            let mut acknowledged = 0;
            if let Ok((log, _)) = Log::open_with(Arc::new(files.clone()), dir.path(), plain_options()) {
                for body in &bodies {
                    acknowledged += usize::from(log.append(rollout(1, 0), Expected::Any, vec![body.clone()]).is_ok());
                }
            }
            for survival in [Survival::Durable, Survival::Written, Survival::Half] {
                let rest: Arc<dyn Files> = Arc::new(files.after_power_cut(survival));
                let (log, report) = Log::open_with(rest.clone(), dir.path(), plain_options()).unwrap();
                assert!(!report.is_damaged(), "{fault:?} at {at}, {survival:?}: {report:?}");
                let stream = log.events(rollout(1, 0), Seq(0), &Filter::all());
                let read: Vec<Body> = stream.map(|event| event.unwrap().body).collect();
                assert!(bodies.starts_with(&read) && read.len() >= acknowledged);
                // Going on repeats nothing that is there and stores what is not.
                for body in &bodies {
                    log.append(rollout(2, 0), Expected::Any, vec![body.clone()]).unwrap();
                }
                let again: Vec<Body> =
                    log.events(rollout(2, 0), Seq(0), &Filter::all()).map(|event| event.unwrap().body).collect();
                assert!(again == bodies);
                log.close().unwrap();
                let found = verify_with(rest, dir.path()).unwrap();
                assert_eq!(
                    (found.findings.as_slice(), found.payloads),
                    (&[][..], 2),
                    "{fault:?} at {at}, {survival:?}"
                );
            }
            if !files.crashed() {
                assert_eq!(acknowledged, 4);
                break;
            }
        }
    }
}
