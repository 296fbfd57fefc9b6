//! Appending, acknowledgements, conflicts, reading through sled and through the journal, and naming things.

use std::sync::Arc;
use std::thread;

use crate::common::{action, everything, note, one_of_each, open, record_run, rollout, run, varied};
use rao_store::archive::{ArchiveReader, write_archive};
use rao_store::event::{Body, Kind, StopReason};
use rao_store::files::RealFiles;
use rao_store::{
    Ack, Address, ErrorClass, EventSource, Expected, Filter, LogError, NodePath, Reader, RolloutId, RunRole, Seq,
    Stream, Target, content_digest_of_run, resolve_run, resolve_target, verify,
};

#[test]
fn what_is_appended_is_read_through_sled_and_through_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let (log, report) = open(dir.path());
    assert_eq!(report.lines, Vec::<String>::new());
    let mut bodies = Vec::new();
    for i in 0..400u64 {
        let stream = rollout(1 + (i % 2) as u8, (i % 3) as u32);
        let body = if i == 200 { note("x".repeat(300_000)) } else { varied(i) };
        bodies.push((stream, body.clone()));
        log.append(stream, Expected::Any, vec![body]).unwrap();
    }
    for stream in [rollout(1, 0), rollout(2, 2)] {
        let expected: Vec<&Body> = bodies.iter().filter(|(s, _)| *s == stream).map(|(_, body)| body).collect();
        let read: Vec<_> = log.events(stream, Seq(0), &Filter::all()).map(Result::unwrap).collect();
        assert_eq!(read.iter().map(|event| &event.body).collect::<Vec<_>>(), expected);
        assert!(read.iter().enumerate().all(|(i, event)| event.seq == Seq(i as u64)));
    }
    let (reader, report) = Reader::open(dir.path()).unwrap();
    assert!(!report.is_damaged(), "{report:?}");
    assert_same(&log, &reader);
    log.close().unwrap();
    let (log, report) = open(dir.path());
    assert_eq!(report.lines, Vec::<String>::new());
    assert_same(&log, &reader);
}

/// Two sources agree event by event, header by header, with and without a filter.
fn assert_same(a: &dyn EventSource, b: &dyn EventSource) {
    assert_eq!(a.runs(), b.runs());
    assert_eq!(everything(a), everything(b));
    let filter = Filter::kinds([Kind::RewardAssigned, Kind::ContextExtended]);
    for stream in a.runs().into_iter().flat_map(|run| a.streams(run)) {
        assert_eq!(a.head(stream), b.head(stream));
        let headers = |source: &dyn EventSource| source.headers(stream, Seq(3)).map(Result::unwrap).collect::<Vec<_>>();
        assert_eq!(headers(a), headers(b));
        assert_eq!(headers(a).first().map(|header| header.seq), Some(Seq(3)));
        let filtered =
            |source: &dyn EventSource| source.events(stream, Seq(5), &filter).map(Result::unwrap).collect::<Vec<_>>();
        assert_eq!(filtered(a), filtered(b));
        let wanted = everything(a)
            .into_iter()
            .filter(|event| event.stream == stream && event.seq >= Seq(5) && filter.admits(event.body.kind()));
        assert_eq!(filtered(a), wanted.collect::<Vec<_>>());
    }
}

#[test]
fn a_stale_writer_gets_a_conflict_and_appends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let stream = rollout(1, 0);
    let ack = log.append(stream, Expected::Exactly(Seq(0)), vec![note("a"), note("b")]).unwrap();
    assert_eq!(ack, Ack { first: Seq(0), last: Seq(1) });
    let error = log.append(stream, Expected::Exactly(Seq(1)), vec![note("c")]).unwrap_err();
    assert!(matches!(error, LogError::Conflict { expected: Seq(1), next: Seq(2), .. }), "{error}");
    assert_eq!(error.class(), ErrorClass::Busy);
    assert_eq!(log.head(stream).unwrap().count, 2);
    // Submitted together, numbered in the order of submission.
    let tickets: Vec<_> = (2..300).map(|i| log.submit(stream, Expected::Exactly(Seq(i)), vec![varied(i)])).collect();
    for (i, ticket) in tickets.into_iter().enumerate() {
        assert_eq!(ticket.wait().unwrap().first, Seq(i as u64 + 2));
    }
}

#[test]
fn bad_events_are_refused_with_typed_errors() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let stream = rollout(1, 0);
    let error = log.append(stream, Expected::Any, vec![note("good"), action(5, 4)]).unwrap_err();
    assert!(matches!(&error, LogError::Tokens { source, .. } if source.tokens == 5 && source.logprobs == 4), "{error}");
    let error = log.append(stream, Expected::Any, Vec::new()).unwrap_err();
    assert!(matches!(error, LogError::EmptyAppend { .. }));
    assert_eq!(log.head(stream), None);
    let error = log.event(Address { stream, seq: Seq(0) }).unwrap_err();
    assert!(matches!(error, LogError::UnknownEvent { count: 0, .. }));
    assert_eq!(log.events(stream, Seq(0), &Filter::all()).count(), 0);
}

#[test]
fn many_threads_share_commits_and_every_stream_stays_dense() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let log = Arc::new(log);
    let threads: Vec<_> = (0..8)
        .map(|r| {
            let log = Arc::clone(&log);
            thread::spawn(move || {
                for i in 0..50 {
                    let ack = log.append(rollout(1, r), Expected::Exactly(Seq(i)), vec![varied(i)]).unwrap();
                    // What is acknowledged can be read at once.
                    assert_eq!(log.event(Address { stream: rollout(1, r), seq: ack.last }).unwrap().body, varied(i));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(everything(log.as_ref()).len(), 400);
    drop(log);
    assert_eq!(verify(dir.path()).unwrap().findings, Vec::new());
}

#[test]
fn a_second_writer_is_refused_and_readers_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let error = rao_store::Log::open(dir.path(), crate::common::options()).unwrap_err();
    assert!(matches!(error, LogError::Busy { .. }), "{error}");
    assert_eq!(error.class(), ErrorClass::Busy);
    assert!(error.to_string().contains(&dir.path().display().to_string()) && error.to_string().contains("wait"));
    log.append(rollout(1, 0), Expected::Any, vec![note("a")]).unwrap();
    let (mut reader, _) = Reader::open(dir.path()).unwrap();
    assert_eq!(everything(&reader).len(), 1);
    log.append(rollout(1, 0), Expected::Any, vec![note("b"), note("c")]).unwrap();
    assert_eq!(everything(&reader).len(), 1, "a reader is a snapshot");
    assert_eq!(reader.refresh().unwrap(), 2);
    assert_eq!(everything(&reader), everything(&log));
    log.close().unwrap();
    open(dir.path()).0.close().unwrap();
}

#[test]
fn a_directory_without_a_log_is_named_and_an_empty_log_is_not_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("nothing");
    let error = Reader::open(&missing).unwrap_err();
    assert!(matches!(error, LogError::NoLog { .. }), "{error}");
    assert!(!missing.exists(), "reading made a directory");
    open(dir.path()).0.close().unwrap();
    let (reader, report) = Reader::open(dir.path()).unwrap();
    assert_eq!((report.lines, reader.runs()), (Vec::new(), Vec::new()));
    let error = resolve_run(&reader, "latest", RunRole::Recorded).unwrap_err();
    assert_eq!(error.to_string(), "no recorded run is called `latest`; there is none in this log");
}

#[test]
fn equal_recordings_have_equal_content_whatever_clock_host_and_id() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    record_run(&log, 1).unwrap();
    record_run(&log, 2).unwrap();
    let digests = [1, 2].map(|n| content_digest_of_run(&log, run(n)).unwrap());
    assert_eq!(digests[0], digests[1]);
    let head = |n, r| log.head(rollout(n, r)).unwrap();
    assert_eq!(head(1, 0).content, head(2, 0).content);
    assert_ne!(head(1, 0).chain, head(2, 0).chain);
    // The run's own stream differs in its host facts only, and they are not content.
    let own = |n| log.head(Stream::Run(run(n))).unwrap();
    assert_eq!(own(1).content, own(2).content);
    log.append(rollout(2, 1), Expected::Any, vec![note("one more")]).unwrap();
    assert_ne!(content_digest_of_run(&log, run(2)).unwrap(), digests[0]);
    let error = content_digest_of_run(&log, run(3)).unwrap_err();
    assert_eq!(error.class(), ErrorClass::Incomplete);
}

#[test]
fn runs_rollouts_and_events_are_named_by_prefix_and_number() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    record_run(&log, 3).unwrap();
    record_run(&log, 1).unwrap();
    let training = Stream::Training(run(9));
    log.append(training, Expected::Any, vec![note("training")]).unwrap();
    assert_eq!(log.runs(), vec![run(1), run(3), run(9)]);
    assert_eq!(log.streams(run(3)), vec![Stream::Run(run(3)), rollout(3, 0), rollout(3, 1)]);
    assert_eq!(resolve_run(&log, "latest", RunRole::Recorded).unwrap(), run(3));
    assert_eq!(resolve_run(&log, "latest", RunRole::Training).unwrap(), run(9));
    assert_eq!(resolve_run(&log, "01000000-0003", RunRole::Recorded).unwrap(), run(3));
    assert_eq!(resolve_run(&log, &run(1).to_string().to_uppercase(), RunRole::Recorded).unwrap(), run(1));
    let ambiguous = resolve_run(&log, "01", RunRole::Recorded).unwrap_err();
    assert!(matches!(&ambiguous, LogError::AmbiguousRun { runs, .. } if *runs == vec![run(1), run(3)]));
    assert_eq!(ambiguous.to_string(), "`01` stands for 2 runs: 010000000003, 010000000001; give more digits");
    assert!(matches!(resolve_run(&log, "7", RunRole::Recorded), Err(LogError::UnknownRun { .. })));

    let target = |text: &str| resolve_target(&log, text);
    assert_eq!(target("latest").unwrap(), Target::Run(run(3)));
    assert_eq!(target("latest/1").unwrap(), Target::Rollout(run(3), RolloutId(1)));
    let event = Address { stream: rollout(3, 1), seq: Seq(2) };
    assert_eq!(target("latest/1#2").unwrap(), Target::Event(event));
    assert_eq!(target(&event.to_string()).unwrap(), Target::Event(event));
    assert_eq!(target("latest#0").unwrap(), Target::Event(Address { stream: Stream::Run(run(3)), seq: Seq(0) }));
    assert_eq!(target("latest/training").unwrap(), Target::Training(run(9)));
    assert_eq!(target(&run(9).to_string()).unwrap(), Target::Training(run(9)));
    assert!(matches!(target("latest/2"), Err(LogError::UnknownStream { .. })));
    assert!(matches!(target("latest/1#5"), Err(LogError::UnknownEvent { count: 5, .. })));
    for bad in ["", "latest/x", "latest/-1", "latest/1#", "latest/1#x", "latest/1/2", "#3"] {
        assert!(matches!(target(bad), Err(LogError::BadAddress { .. })), "{bad}");
    }
}

#[test]
fn a_journal_of_many_files_reads_as_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = crate::common::options();
    options.rotate_bytes = 2_000;
    options.checkpoint_bytes = 3_000;
    let (log, _) = rao_store::Log::open(dir.path(), options.clone()).unwrap();
    for i in 0..60 {
        log.append(rollout(1, (i % 2) as u32), Expected::Any, vec![varied(i)]).unwrap();
    }
    log.flush().unwrap();
    assert!(dir.path().join("journal/0000000003.log").exists());
    let (reader, report) = Reader::open(dir.path()).unwrap();
    assert!(report.lines.is_empty(), "{report:?}");
    assert_same(&log, &reader);
    log.close().unwrap();
    let (log, report) = rao_store::Log::open(dir.path(), options).unwrap();
    assert!(report.lines.is_empty(), "{report:?}");
    log.append(rollout(1, 0), Expected::Exactly(Seq(30)), vec![note("goes on")]).unwrap();
    let report = verify(dir.path()).unwrap();
    assert_eq!((report.findings, report.events), (Vec::new(), 61));
}

#[test]
fn a_scan_of_one_node_gives_the_events_that_name_it() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let mut bodies = one_of_each();
    // An action in the newest layout, and the other kinds' events in the other order of nodes.
    let Body::ActionSampled(mut served) = action(2, 2) else { panic!("an action") };
    (served.stop, served.node) = (StopReason::Server, NodePath::root().child(0));
    assert_eq!(Body::from(served.clone()).version(), 2);
    bodies.push(served.into());
    log.append(rollout(1, 0), Expected::Any, bodies.clone()).unwrap();
    let path = dir.path().join("one.raolog");
    write_archive(&RealFiles, &path, &log, run(1)).unwrap();
    let archive = ArchiveReader::open(&path).unwrap();
    let (reader, _) = Reader::open(dir.path()).unwrap();
    let mut named = 0;
    for node in [NodePath::root(), NodePath::root().child(0), NodePath::root().child(1), NodePath::root().child(5)] {
        let ordinals = serde_json::to_value(node.ordinals()).unwrap();
        let wanted: Vec<Body> =
            bodies.iter().filter(|body| body.to_json().get("node") == Some(&ordinals)).cloned().collect();
        named += wanted.len();
        for source in [&log as &dyn EventSource, &reader, &archive] {
            let read = |filter: &Filter| -> Vec<Body> {
                source.events(rollout(1, 0), Seq(0), filter).map(|event| event.unwrap().body).collect()
            };
            assert_eq!(read(&Filter::all().of_node(node.clone())), wanted, "node {node}");
            let kinds = [Kind::ActionSampled, Kind::CreditAssigned];
            let of_kinds: Vec<Body> = wanted.iter().filter(|body| kinds.contains(&body.kind())).cloned().collect();
            assert_eq!(read(&Filter::kinds(kinds).of_node(node.clone())), of_kinds, "node {node}");
        }
    }
    assert_eq!(named, bodies.iter().filter(|body| body.to_json().get("node").is_some()).count());
    assert!(named > 12);
}
