//! What streams share by reference: read as if it stood in each of them, and named where it is damaged, missing or
//! exchanged.

use std::fs;

use rao_store::archive::{self, ArchiveReader};
use rao_store::event::{Body, Event, Kind, RunFinished};
use rao_store::prune::{self, Kept, Rule};
use rao_store::{
    Ack, Address, Digest, EventSource, Expected, Filter, Follower, Frame, HEADER_LEN, Head, Log, LogError, NodePath,
    OpenReport, Reader, Seq, SharedPrefix, Stream, Ticket, Wanted, chain_content, content_digest_of_run, stream_size,
    verify,
};

use crate::common::{JOURNAL, everything, note, open, options, plain_options, rollout, run, run_started, varied};

/// The length of a prefix frame.
pub(crate) const PREFIX_FRAME: usize = HEADER_LEN + 128;

pub(crate) fn share(log: &Log, streams: &[Stream], base: Stream, count: u64) -> Result<Vec<Ack>, LogError> {
    log.share_prefix(streams, base, count).into_iter().map(Ticket::wait).collect()
}

fn whole(count: u64) -> Ack {
    Ack { first: Seq(0), last: Seq(count - 1) }
}

/// Event `i` of the base: the sixth has a long text.
pub(crate) fn said(i: u64) -> Body {
    if i == 5 { note("long ".repeat(14_000)) } else { varied(i) }
}

pub(crate) fn finish(log: &Log, n: u8) {
    let own = Stream::Run(run(n));
    let content = content_digest_of_run(log, run(n)).unwrap();
    log.append(own, Expected::Any, vec![RunFinished { rollouts: 1, content }.into()]).unwrap();
}

/// Begins run `n`.
pub(crate) fn start(log: &Log, n: u8) {
    log.append(Stream::Run(run(n)), Expected::Exactly(Seq(0)), vec![run_started()]).unwrap();
}

/// Run 1 with a rollout of 12 events; run 2 with three that share 8 of them and go on, the last of them not; run 3 with
/// a rollout that shares 10 of the first one of run 2, and one that shares 4 of it.
pub(crate) fn record_forks(log: &Log) {
    (1..=3).for_each(|n| start(log, n));
    let base = rollout(1, 0);
    log.append(base, Expected::Any, (0..12).map(said).collect()).unwrap();
    let forks = [rollout(2, 0), rollout(2, 1), rollout(2, 2)];
    assert_eq!(share(log, &forks, base, 8).unwrap(), [whole(8); 3]);
    for (n, fork) in (0..).zip(&forks[..2]) {
        log.append(*fork, Expected::Exactly(Seq(8)), (0..3).map(|i| varied(100 * (n + 1) + i)).collect()).unwrap();
    }
    assert_eq!(share(log, &[rollout(3, 0)], forks[0], 10).unwrap(), [whole(10)]);
    assert_eq!(share(log, &[rollout(3, 1)], forks[0], 4).unwrap(), [whole(4)]);
    for r in [0, 1] {
        log.append(rollout(3, r), Expected::Any, vec![note("of a fork"), varied(300)]).unwrap();
    }
    // The base goes on.
    log.append(base, Expected::Any, vec![note("later")]).unwrap();
}

/// The bodies of what [`record_forks`] records.
fn recorded() -> Vec<(Stream, Vec<Body>)> {
    let base: Vec<Body> = (0..12).map(said).collect();
    let fork = |shared: &[Body], own: Vec<Body>| shared.iter().cloned().chain(own).collect::<Vec<Body>>();
    let of = |n: u64| (0..3).map(|i| varied(100 * (n + 1) + i)).collect();
    let first = fork(&base[..8], of(0));
    let again = || vec![note("of a fork"), varied(300)];
    vec![
        (rollout(1, 0), fork(&base, vec![note("later")])),
        (rollout(2, 0), first.clone()),
        (rollout(2, 1), fork(&base[..8], of(1))),
        (rollout(2, 2), fork(&base[..8], Vec::new())),
        (rollout(3, 0), fork(&first[..10], again())),
        (rollout(3, 1), fork(&first[..4], again())),
    ]
}

/// The frame of an event as the format page describes it, made without the program's own code.
fn frame(stream: &[u8], seq: u64, at_us: u64, like: &Frame, previous: Digest) -> Vec<u8> {
    let mut bytes = like.bytes().to_vec();
    bytes[10..12].copy_from_slice(&[0, 0]);
    bytes[12..36].copy_from_slice(stream);
    bytes[40..48].copy_from_slice(&seq.to_le_bytes());
    bytes[48..56].copy_from_slice(&at_us.to_le_bytes());
    bytes[56..88].copy_from_slice(&previous.0);
    reseal(&mut bytes);
    bytes
}

/// Makes a frame's checksum right.
pub(crate) fn reseal(frame: &mut [u8]) {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&frame[..88]);
    hasher.update(&frame[92..]);
    frame[88..92].copy_from_slice(&hasher.finalize().to_le_bytes());
}

/// Streams read as they were recorded, through frames, events, headers, single events, filters and from every position.
fn check(source: &dyn EventSource) {
    for (stream, bodies) in recorded() {
        let events: Vec<Event> = source.events(stream, Seq(0), &Filter::all()).map(Result::unwrap).collect();
        let read: Vec<&Body> = events.iter().map(|event| &event.body).collect();
        assert!(read == bodies.iter().collect::<Vec<_>>(), "{stream}");
        let head = source.head(stream).unwrap();
        assert_eq!(head.count, bodies.len() as u64);
        let (mut chain, mut content) = (Head::EMPTY.chain, Head::EMPTY.content);
        let frames: Vec<Frame> = source.frames(stream, Seq(0), &Filter::all()).map(Result::unwrap).collect();
        let headers: Vec<_> = source.headers(stream, Seq(0)).map(Result::unwrap).collect();
        assert_eq!((frames.len(), headers.len()), (bodies.len(), bodies.len()));
        for ((seq, event), (frame, header)) in (0..).zip(&events).zip(frames.iter().zip(&headers)) {
            let address = Address { stream, seq: Seq(seq) };
            assert_eq!((event.address(), frame.address()), (address, address));
            assert_eq!(frame.previous(), chain, "{address}");
            assert_eq!(Frame::parse(frame.bytes().to_vec()).unwrap(), *frame);
            assert_eq!(frame.body(), event.body.encode().unwrap());
            assert_eq!((header.stream, header.seq, header.at_us), (stream, Seq(seq), event.at_us));
            assert_eq!((header.kind, header.body_len as usize), (event.body.kind(), frame.body().len()));
            assert_eq!(frame.at_us(), event.at_us);
            assert_eq!(source.event(address).unwrap(), *event);
            chain = frame.chain();
            if event.body.kind().is_content() {
                content = chain_content(content, event.body.kind(), frame.layout(), frame.body());
            }
        }
        assert_eq!((head.chain, head.content), (chain, content), "{stream}");
        for from in 0..=bodies.len() {
            let at = Seq(from as u64);
            let rest: Vec<Event> = source.events(stream, at, &Filter::all()).map(Result::unwrap).collect();
            assert!(rest == events[from..], "{stream} from {from}");
            assert!(source.frames(stream, at, &Filter::all()).map(Result::unwrap).eq(frames[from..].iter().cloned()));
            assert!(source.headers(stream, at).map(Result::unwrap).eq(headers[from..].iter().copied()));
            for filter in [
                Filter::kinds([Kind::Note, Kind::CallAnswered]),
                Filter::all().of_node(NodePath::root()),
                Filter::kinds([Kind::ActionSampled]).of_node(NodePath::root().child(1)),
            ] {
                let wanted: Vec<Event> = source
                    .events(stream, Seq(0), &filter)
                    .map(Result::unwrap)
                    .filter(|event| event.seq.0 >= from as u64)
                    .collect();
                let read: Vec<Event> = source.events(stream, at, &filter).map(Result::unwrap).collect();
                assert_eq!(read, wanted);
                let frames = source.frames(stream, at, &filter).map(|frame| frame.unwrap().address().seq);
                assert!(frames.eq(wanted.iter().map(|event| event.seq)));
            }
        }
        let notes: Vec<&Event> = events.iter().filter(|event| event.body.kind() == Kind::Note).collect();
        let read: Vec<Event> =
            source.events(stream, Seq(0), &Filter::kinds([Kind::Note])).map(Result::unwrap).collect();
        assert!(read.iter().eq(notes));
    }
}

#[test]
fn a_stream_reads_as_if_it_held_what_it_shares() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    record_forks(&log);
    check(&log);
    assert_eq!(log.shared(rollout(3, 0)), Some(SharedPrefix { base: rollout(2, 0), count: 10 }));
    assert_eq!((log.shared(rollout(1, 0)), log.shared(rollout(9, 9))), (None, None));
    let wanted = everything(&log);
    log.close().unwrap();
    for sled in [true, false, true] {
        for check_digests in [false, true] {
            let mut options = options();
            options.ordered_store = sled;
            options.check_digests = check_digests;
            let (log, report) = Log::open(dir.path(), options).unwrap();
            assert!(report.findings.is_empty() && report.set_aside.is_none(), "{report:?}");
            check(&log);
            assert!(everything(&log) == wanted);
        }
    }
    for pass in [Reader::open, Reader::open_checked] {
        let (reader, report) = pass(dir.path()).unwrap();
        assert_eq!(report, OpenReport::default());
        check(&reader);
        assert!(everything(&reader) == wanted);
    }
    let found = verify(dir.path()).unwrap();
    assert_eq!((found.findings.as_slice(), found.events), (&[][..], wanted.len() as u64));
    assert_eq!((found.forks, found.shared), (5, 3 * 8 + 10 + 4));
    assert_eq!(found.payloads, 1, "a shared long text is stored once");
}

#[test]
fn shared_frames_are_the_bases_with_another_address_time_and_chain() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    record_forks(&log);
    let of_base: Vec<Frame> = log.frames(rollout(1, 0), Seq(0), &Filter::all()).map(Result::unwrap).collect();
    for (stream, count) in [(rollout(2, 1), 8), (rollout(3, 0), 8), (rollout(3, 1), 4)] {
        let mut previous = Head::EMPTY.chain;
        let at_us = log.headers(stream, Seq(0)).next().unwrap().unwrap().at_us;
        for (seq, read) in (0..count).zip(log.frames(stream, Seq(0), &Filter::all())) {
            let Stream::Rollout(run, r) = stream else { panic!("no rollout") };
            let mut address = vec![1, 0, 0, 0];
            address.extend_from_slice(&run.0);
            address.extend_from_slice(&r.0.to_le_bytes());
            let wanted = frame(&address, seq, at_us, &of_base[seq as usize], previous);
            assert!(read.unwrap().bytes() == wanted, "{stream}#{seq}");
            previous = Digest::of(&wanted);
        }
    }
}

#[test]
fn sharing_takes_the_same_few_bytes_whatever_is_shared() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    log.append(rollout(1, 0), Expected::Any, (0..200).map(varied).collect()).unwrap();
    let len = || fs::metadata(dir.path().join(JOURNAL)).unwrap().len();
    let before = len();
    for (r, count) in [(0, 1), (1, 100), (2, 200)] {
        share(&log, &[rollout(2, r)], rollout(1, 0), count).unwrap();
        assert_eq!(len() - before, (u64::from(r) + 1) * PREFIX_FRAME as u64);
        assert_eq!(stream_size(&log, rollout(2, r)).unwrap().bytes, PREFIX_FRAME as u64);
        assert_eq!(stream_size(&log, rollout(2, r)).unwrap().events, count);
    }
    let forks: Vec<Stream> = (10..300).map(|r| rollout(2, r)).collect();
    assert_eq!(share(&log, &forks, rollout(1, 0), 150).unwrap(), vec![whole(150); 290]);
    assert_eq!(len() - before, 293 * PREFIX_FRAME as u64);
}

#[test]
fn what_is_shared_can_be_shared_once_more_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    record_forks(&log);
    let before = everything(&log).len();
    let base = rollout(1, 0);
    // As whoever did not hear of the acknowledgement does, with events behind it or not.
    assert_eq!(share(&log, &[rollout(2, 0), rollout(2, 2)], base, 8).unwrap(), [whole(8); 2]);
    // In one go with the first time.
    let both = [log.share_prefix(&[rollout(4, 0)], base, 3), log.share_prefix(&[rollout(4, 0)], base, 3)];
    assert!(both.into_iter().flatten().map(Ticket::wait).all(|ack| ack.unwrap() == whole(3)));
    // The shared bodies once more are a repeated append, others are none.
    let again = log.append(rollout(4, 0), Expected::Exactly(Seq(1)), vec![said(1), said(2), note("own")]);
    assert_eq!(again.unwrap(), Ack { first: Seq(1), last: Seq(3) });
    let other = log.append(rollout(4, 0), Expected::Exactly(Seq(1)), vec![said(2)]);
    assert!(matches!(other, Err(LogError::Conflict { .. })));
    for (stream, from, count) in [(2, base, 7), (2, rollout(2, 0), 8), (1, base, 8), (3, base, 8)] {
        let error = share(&log, &[rollout(stream, 0)], from, count).unwrap_err();
        assert!(matches!(error, LogError::Conflict { .. }), "{stream} {from} {count}: {error}");
    }
    for (from, count) in [(base, 14), (base, 0), (rollout(8, 8), 1)] {
        let error = share(&log, &[rollout(5, 0)], from, count).unwrap_err();
        assert!(matches!(error, LogError::UnknownEvent { .. }), "{from} {count}: {error}");
    }
    // A refused stream keeps no other from it.
    let mixed: Vec<_> =
        log.share_prefix(&[rollout(3, 0), rollout(5, 1)], base, 2).into_iter().map(Ticket::wait).collect();
    assert!(matches!(mixed.as_slice(), [Err(LogError::Conflict { .. }), Ok(ack)] if *ack == whole(2)), "{mixed:?}");
    assert!(log.share_prefix(&[], base, 2).is_empty());
    assert_eq!(everything(&log).len(), before + 4 + 2);
    log.close().unwrap();
    assert_eq!(verify(dir.path()).unwrap().findings, Vec::new());
}

#[test]
fn bases_stand_behind_one_another_up_to_a_limit_and_sealing_makes_room() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(dir.path(), plain_options()).unwrap();
    start(&log, 2);
    log.append(rollout(1, 0), Expected::Any, vec![note("first")]).unwrap();
    let mut base = rollout(1, 0);
    for r in 0..256 {
        share(&log, &[rollout(2, r)], base, u64::from(r) + 1).unwrap();
        log.append(rollout(2, r), Expected::Any, vec![note(format!("{r}"))]).unwrap();
        base = rollout(2, r);
    }
    let error = share(&log, &[rollout(3, 0)], base, 5).unwrap_err();
    assert!(matches!(error, LogError::TooManyBases { .. }) && error.to_string().contains("rao-log seal"), "{error}");
    assert_eq!(log.events(base, Seq(0), &Filter::all()).map(Result::unwrap).count(), 257);
    finish(&log, 2);
    log.close().unwrap();
    assert_eq!(verify(dir.path()).unwrap().findings, Vec::new());
    archive::seal(dir.path(), run(2), plain_options()).unwrap();
    let (log, _) = Log::open(dir.path(), plain_options()).unwrap();
    share(&log, &[rollout(3, 0)], base, 257).unwrap();
    assert_eq!(log.events(rollout(3, 0), Seq(0), &Filter::all()).map(Result::unwrap).count(), 257);
}

#[test]
fn bases_and_forks_are_sealed_in_any_order_and_carried_to_other_logs() {
    for order in [[1, 2, 3], [3, 2, 1], [2, 1, 3], [2, 3, 1]] {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        let (log, _) = open(&one);
        record_forks(&log);
        (1..=3).for_each(|n| finish(&log, n));
        let wanted = everything(&log);
        log.close().unwrap();
        for n in order {
            let file = dir.path().join(format!("{n}.raolog"));
            archive::export(&Reader::open(&one).unwrap().0, run(n), &file).unwrap();
            archive::seal(&one, run(n), options()).unwrap();
            let (reader, report) = Reader::open_checked(&one).unwrap();
            assert_eq!(report.findings, Vec::new(), "{n} of {order:?}");
            check(&reader);
            assert!(everything(&reader) == wanted, "{n} of {order:?}");
            let found = verify(&one).unwrap();
            assert_eq!((found.findings.as_slice(), found.events), (&[][..], wanted.len() as u64));
            let (log, report) = open(&one);
            assert!(report.lines.is_empty(), "{report:?}");
            assert!(everything(&log) == wanted);
            // The archive is whole by itself: another log needs nothing else.
            let alone = archive::import(&two, &file, options()).unwrap();
            assert!(alone.added);
            let own: Vec<Event> = wanted.iter().filter(|event| event.stream.run() == run(n)).cloned().collect();
            assert!(everything(&ArchiveReader::open(&file).unwrap()) == own);
        }
        assert_eq!(fs::metadata(one.join("journal/0000000000.log")).unwrap().len(), 0, "no prefix frame is left");
        assert_eq!(verify(&two).unwrap().findings, Vec::new());
        check(&Reader::open(&two).unwrap().0);
        // Life goes on behind a sealed base.
        let (log, _) = open(&one);
        share(&log, &[rollout(7, 0)], rollout(3, 0), 12).unwrap();
        log.append(rollout(7, 0), Expected::Exactly(Seq(12)), vec![note("on")]).unwrap();
        let bodies = |stream| -> Vec<Body> {
            log.events(stream, Seq(0), &Filter::all()).map(|event| event.unwrap().body).collect()
        };
        assert!(bodies(rollout(7, 0))[..12] == bodies(rollout(3, 0)));
    }
}

#[test]
fn a_base_stays_while_something_shares_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    record_forks(&log);
    (1..=3).for_each(|n| finish(&log, n));
    log.close().unwrap();
    let none = |_: &dyn EventSource, _| Vec::new();
    let keep = |count| Rule { keep: Some(count), older_than_us: None };
    let plan = prune::would_prune(&Reader::open(dir.path()).unwrap().0, keep(1), 0, &none).unwrap();
    let kept: Vec<_> = plan.kept.iter().map(|(facts, why)| (facts.run, *why)).collect();
    assert_eq!(kept, [(run(1), Kept::NeededBy(run(2))), (run(2), Kept::NeededBy(run(3))), (run(3), Kept::Newest)]);
    let before = fs::metadata(dir.path().join(JOURNAL)).unwrap().len();
    assert!(prune::prune(dir.path(), keep(1), 0, &none, options()).unwrap().plan.dropped.is_empty());
    check(&Reader::open(dir.path()).unwrap().0);
    // Sealed, a fork stands by itself. Here nothing but its events say that it is one.
    archive::seal(dir.path(), run(3), options()).unwrap();
    let report = prune::prune(dir.path(), keep(1), 0, &none, options()).unwrap();
    assert_eq!(report.plan.dropped.iter().map(|facts| facts.run).collect::<Vec<_>>(), [run(1), run(2)]);
    assert!(report.freed < before);
    let found = verify(dir.path()).unwrap();
    assert_eq!((found.findings.as_slice(), found.forks), (&[][..], 0));
    assert_eq!(Reader::open(dir.path()).unwrap().0.runs(), [run(3)]);
}

#[test]
fn a_follower_gives_what_is_shared_once() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = open(dir.path());
    let (mut follower, _) = Follower::open(dir.path(), Wanted::Log, Filter::all()).unwrap();
    let mut given: Vec<Event> = Vec::new();
    let mut poll = |given: &mut Vec<Event>| {
        let gave = follower.poll(&mut |event| {
            given.push(event.unwrap());
            std::ops::ControlFlow::Continue(())
        });
        assert!(gave.unwrap().is_continue());
        follower.positions()
    };
    log.append(rollout(1, 0), Expected::Any, (0..5).map(varied).collect()).unwrap();
    poll(&mut given);
    share(&log, &[rollout(2, 0)], rollout(1, 0), 3).unwrap();
    let positions = poll(&mut given);
    assert_eq!(given.len(), 8);
    log.append(rollout(2, 0), Expected::Any, vec![note("own")]).unwrap();
    poll(&mut given);
    let mut wanted = everything(&log);
    wanted.sort_by_key(|event| event.address());
    given.sort_by_key(|event| event.address());
    assert_eq!(given, wanted);
    // A later follower goes on where this one stood, also in the middle of what is shared.
    for (behind, count) in [(positions, 1), (vec![Address { stream: rollout(2, 0), seq: Seq(0) }], 5 + 3)] {
        let (mut later, _) = Follower::open(dir.path(), Wanted::Log, Filter::all()).unwrap();
        behind.into_iter().for_each(|address| later.resume_behind(address));
        let mut seen = 0;
        let gave = later.poll_headers(&mut |header| {
            header.unwrap();
            seen += 1;
            std::ops::ControlFlow::Continue(())
        });
        assert!(gave.unwrap().is_continue());
        assert_eq!(seen, count);
    }
}
