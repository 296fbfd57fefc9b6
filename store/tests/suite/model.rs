//! Random appends, reads and reopenings against a map of vectors.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rao_store::event::{Body, Kind, RunFinished, TrainFinished};
use rao_store::{
    Address, Digest, EventSource, Expected, Filter, Log, LogError, Options, Reader, RunId, Seq, SharedPrefix, Stream,
    archive, content_digest_of_run, verify,
};

use crate::common::{options, rollout, run, run_started, varied};

#[derive(Clone, Debug)]
enum Step {
    Append {
        stream: usize,
        first: u64,
        count: u64,
    },
    AppendAt {
        stream: usize,
        seq: u64,
    },
    SubmitMany {
        stream: usize,
        count: u64,
    },
    Reopen {
        sled: bool,
        inline_bytes: usize,
    },
    Read {
        stream: usize,
        from: u64,
    },
    /// Begins a stream with events of another one.
    Share {
        stream: usize,
        base: usize,
        count: u64,
    },
    /// Ends a run and moves it into an archive.
    Seal {
        stream: usize,
    },
    /// Goes on in an empty log with the archives, and what was in the journal appended anew.
    Move,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let stream = 0..STREAMS.len();
    let step = prop_oneof![
        4 => (stream.clone(), 0..500u64, 1..9u64)
            .prop_map(|(stream, first, count)| Step::Append { stream, first, count }),
        2 => (stream.clone(), 0..12u64).prop_map(|(stream, seq)| Step::AppendAt { stream, seq }),
        2 => (stream.clone(), 1..40u64).prop_map(|(stream, count)| Step::SubmitMany { stream, count }),
        1 => (any::<bool>(), prop_oneof![Just(0usize), Just(400), Just(100_000)])
            .prop_map(|(sled, inline_bytes)| Step::Reopen { sled, inline_bytes }),
        4 => (stream.clone(), stream.clone(), 1..30u64)
            .prop_map(|(stream, base, count)| Step::Share { stream, base, count }),
        1 => stream.clone().prop_map(|stream| Step::Seal { stream }),
        1 => Just(Step::Move),
        3 => (stream, 0..30u64).prop_map(|(stream, from)| Step::Read { stream, from }),
    ];
    prop::collection::vec(step, 1..30)
}

/// Streams that sort next to one another in every way.
const STREAMS: [fn() -> Stream; 8] = [
    || Stream::Run(run(1)),
    || rollout(1, 0),
    || rollout(1, 256),
    || Stream::Training(run(1)),
    || rollout(2, 0),
    || rollout(2, 1),
    || rollout(3, 0),
    || rollout(4, 0),
];

fn small_options(sled: bool, inline_bytes: usize) -> Options {
    let mut options = options();
    options.ordered_store = sled;
    options.inline_bytes = inline_bytes;
    options.rotate_bytes = 3_000;
    options.checkpoint_bytes = 5_000;
    options
}

fn reopen(dir: &std::path::Path, sled: bool, inline_bytes: usize) -> Log {
    let (log, report) = Log::open(dir, small_options(sled, inline_bytes)).unwrap();
    assert!(report.findings.is_empty() && report.set_aside.is_none(), "{report:?}");
    log
}

fn read(source: &dyn EventSource, stream: Stream, from: u64, filter: &Filter) -> Vec<(u64, Body)> {
    source.events(stream, Seq(from), filter).map(Result::unwrap).map(|event| (event.seq.0, event.body)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_log_is_a_map_of_vectors(steps in steps()) {
        let mut dir = tempfile::tempdir().unwrap();
        let mut sealed = BTreeSet::<RunId>::new();
        let mut model: BTreeMap<Stream, Vec<Body>> = BTreeMap::new();
        let mut log = reopen(dir.path(), true, 400);
        for step in steps {
            if let Step::Append { stream, .. } | Step::AppendAt { stream, .. } | Step::SubmitMany { stream, .. } = step
                && sealed.contains(&STREAMS[stream]().run())
            {
                let refused = log.append(STREAMS[stream](), Expected::Any, vec![varied(0)]);
                prop_assert!(matches!(refused, Err(LogError::Sealed { .. })), "{:?}", refused);
                continue;
            }
            match step {
                Step::Share { stream, base, count } => {
                    let (stream, base) = (STREAMS[stream](), STREAMS[base]());
                    let held = model.get(&base).cloned().unwrap_or_default();
                    let (there, own) = (held.len() as u64, model.get(&stream).map_or(0, Vec::len));
                    let count = count.min(there.max(1));
                    let repeated = log.shared(stream) == Some(SharedPrefix { base, count });
                    let mut tickets = log.share_prefix(&[stream], base, count);
                    prop_assert_eq!(tickets.len(), 1);
                    match tickets.pop().unwrap().wait() {
                        Ok(ack) => {
                            prop_assert_eq!((ack.first.0, ack.last.0), (0, count - 1));
                            prop_assert!(own == 0 || repeated);
                            if own == 0 {
                                model.insert(stream, held[..count as usize].to_vec());
                            }
                        }
                        Err(LogError::Sealed { .. }) => prop_assert!(sealed.contains(&stream.run())),
                        Err(LogError::UnknownEvent { .. }) => prop_assert_eq!(there, 0),
                        Err(LogError::Conflict { next, .. }) => {
                            prop_assert!(!repeated && own > 0);
                            prop_assert_eq!(next.0, own as u64);
                        }
                        Err(error) => prop_assert!(false, "{}", error),
                    }
                }
                Step::Seal { stream } => {
                    let run = STREAMS[stream]().run();
                    if sealed.insert(run) {
                        let mut put = |stream, body: Body| {
                            log.append(stream, Expected::Any, vec![body.clone()]).unwrap();
                            model.entry(stream).or_default().push(body);
                        };
                        put(Stream::Run(run), run_started());
                        put(Stream::Training(run), TrainFinished { steps: 1, weights: Digest::of(b"w") }.into());
                        let content = content_digest_of_run(&log, run).unwrap();
                        put(Stream::Run(run), RunFinished { rollouts: 1, content }.into());
                    }
                    log.close().unwrap();
                    let outcome = archive::seal(dir.path(), run, small_options(true, 400));
                    prop_assert!(matches!(outcome, Ok(_) | Err(LogError::Sealed { .. })), "{:?}", outcome);
                    log = reopen(dir.path(), true, 400);
                }
                Step::Move => {
                    let other = tempfile::tempdir().unwrap();
                    for run in &sealed {
                        let file = other.path().join("file");
                        archive::export(&log, *run, &file).unwrap();
                        prop_assert!(archive::import(other.path(), &file, small_options(false, 0)).unwrap().added);
                        std::fs::remove_file(file).unwrap();
                    }
                    drop(log);
                    log = reopen(other.path(), true, 400);
                    for (stream, bodies) in model.iter().filter(|(_, bodies)| !bodies.is_empty()) {
                        if !sealed.contains(&stream.run()) {
                            log.append(*stream, Expected::Exactly(Seq(0)), bodies.clone()).unwrap();
                        }
                    }
                    dir = other;
                }
                Step::Append { stream, first, count } => {
                    let bodies: Vec<Body> = (first..first + count).map(varied).collect();
                    let held = model.entry(STREAMS[stream]()).or_default();
                    let ack = log.append(STREAMS[stream](), Expected::Any, bodies.clone()).unwrap();
                    prop_assert_eq!(ack.first.0, held.len() as u64);
                    held.extend(bodies);
                    prop_assert_eq!(ack.last.0, held.len() as u64 - 1);
                }
                Step::AppendAt { stream, seq } => {
                    let stream = STREAMS[stream]();
                    let next = model.get(&stream).map_or(0, |held| held.len() as u64);
                    match log.append(stream, Expected::Exactly(Seq(seq)), vec![varied(seq)]) {
                        Ok(ack) => {
                            prop_assert_eq!((ack.first, ack.last), (Seq(seq), Seq(seq)));
                            let held = model.entry(stream).or_default();
                            if seq == next {
                                held.push(varied(seq));
                            } else {
                                prop_assert_eq!(held.get(seq as usize), Some(&varied(seq)), "a repeated append");
                            }
                        }
                        Err(LogError::Conflict { next: told, .. }) => {
                            prop_assert!(seq != next && told.0 == next);
                            let held = model.get(&stream).and_then(|held| held.get(seq as usize));
                            prop_assert!(held != Some(&varied(seq)), "a repeated append is no conflict");
                        }
                        Err(error) => prop_assert!(false, "{}", error),
                    }
                }
                Step::SubmitMany { stream, count } => {
                    let tickets: Vec<_> = (0..count)
                        .map(|i| log.submit(STREAMS[stream](), Expected::Any, vec![varied(i)]))
                        .collect();
                    model.entry(STREAMS[stream]()).or_default().extend((0..count).map(varied));
                    // The last one's acknowledgement covers them all.
                    tickets.into_iter().last().unwrap().wait().unwrap();
                }
                Step::Reopen { sled, inline_bytes } => {
                    log.close().unwrap();
                    log = reopen(dir.path(), sled, inline_bytes);
                }
                Step::Read { stream, from } => {
                    let stream = STREAMS[stream]();
                    let held = model.get(&stream).cloned().unwrap_or_default();
                    let wanted: Vec<(u64, Body)> = (0..).zip(held).skip(from as usize).collect();
                    prop_assert_eq!(&read(&log, stream, from, &Filter::all()), &wanted);
                    let filter = Filter::kinds([Kind::Note, Kind::ActionSampled]);
                    let filtered = wanted.iter().filter(|(_, body)| filter.admits(body.kind())).cloned();
                    prop_assert_eq!(read(&log, stream, from, &filter), filtered.collect::<Vec<_>>());
                    let one = log.event(Address { stream, seq: Seq(from) }).ok().map(|event| event.body);
                    prop_assert_eq!(one.as_ref(), wanted.first().map(|(_, body)| body));
                }
            }
        }
        let (reader, report) = Reader::open(dir.path()).unwrap();
        prop_assert!(report.findings.is_empty());
        let mut streams: Vec<Stream> = reader.runs().into_iter().flat_map(|run| reader.streams(run)).collect();
        streams.sort();
        model.retain(|_, held| !held.is_empty());
        prop_assert_eq!(streams, model.keys().copied().collect::<Vec<_>>());
        for (stream, held) in &model {
            let wanted: Vec<(u64, Body)> = (0..).zip(held.iter().cloned()).collect();
            prop_assert_eq!(&read(&reader, *stream, 0, &Filter::all()), &wanted);
            prop_assert_eq!(&read(&log, *stream, 0, &Filter::all()), &wanted);
            prop_assert_eq!(log.head(*stream), reader.head(*stream));
        }
        prop_assert_eq!(verify(dir.path()).unwrap().findings, Vec::new());
    }
}
