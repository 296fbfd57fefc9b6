//! An append can be repeated: the same events are acknowledged again, others at their place are a conflict.

use proptest::prelude::*;
use rao_store::event::Body;
use rao_store::{Ack, EventSource, Expected, Filter, Log, LogError, Seq};

use crate::common::{note, open, options, plain_options, rollout, varied};

#[derive(Clone, Debug)]
enum Step {
    /// Appends so many new events behind the end.
    Append {
        count: u64,
    },
    /// Submits events `from..to` of those that stand once more, and so many new ones behind them.
    Repeat {
        from: u64,
        to: u64,
        more: u64,
    },
    /// The same with one of them changed.
    Change {
        from: u64,
        to: u64,
        which: u64,
    },
    /// The same two appends in one go, before either is acknowledged.
    Twice {
        count: u64,
    },
    Reopen {
        sled: bool,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (1..6u64).prop_map(|count| Step::Append { count }),
        4 => (0..40u64, 0..40u64, 0..4u64).prop_map(|(from, to, more)| Step::Repeat { from, to, more }),
        3 => (0..40u64, 0..40u64, 0..40u64).prop_map(|(from, to, which)| Step::Change { from, to, which }),
        2 => (1..6u64).prop_map(|count| Step::Twice { count }),
        1 => any::<bool>().prop_map(|sled| Step::Reopen { sled }),
    ];
    prop::collection::vec(step, 1..24)
}

/// Event `i` of the model: now and then one whose text is stored on its own.
fn body(i: u64) -> Body {
    if i % 11 == 10 { note("long ".repeat(14_000 + i as usize)) } else { varied(i) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn repeated_appends_are_acknowledged_and_changed_ones_refused(steps in steps()) {
        let dir = tempfile::tempdir().unwrap();
        let stream = rollout(1, 0);
        let mut log = open(dir.path()).0;
        let mut count = 0;
        let ack = |from: u64, to: u64| Ack { first: Seq(from), last: Seq(to - 1) };
        for step in steps {
            match step {
                Step::Append { count: new } => {
                    let bodies = (count..count + new).map(body).collect();
                    prop_assert_eq!(log.append(stream, Expected::Exactly(Seq(count)), bodies).unwrap(), ack(count, count + new));
                    count += new;
                }
                Step::Repeat { from, to, more } => {
                    let (from, to) = (from.min(count), to.min(count));
                    let end = if more > 0 { count + more } else { to };
                    if from >= end {
                        continue;
                    }
                    let bodies = (from..end).map(body).collect();
                    prop_assert_eq!(log.append(stream, Expected::Exactly(Seq(from)), bodies).unwrap(), ack(from, end));
                    count = count.max(end);
                }
                Step::Change { from, to, which } => {
                    let (from, to) = (from.min(count), to.min(count));
                    if from >= to {
                        continue;
                    }
                    let which = from + which % (to - from);
                    let changed = |i| if i == which { note(format!("not {i}")) } else { body(i) };
                    let error = log.append(stream, Expected::Exactly(Seq(from)), (from..to).map(changed).collect());
                    let is_conflict = matches!(&error, Err(LogError::Conflict { expected, next, .. })
                        if (expected.0, next.0) == (from, count));
                    prop_assert!(is_conflict, "{:?}", error);
                }
                Step::Twice { count: new } => {
                    let tickets = [0, 1].map(|_| {
                        log.submit(stream, Expected::Exactly(Seq(count)), (count..count + new).map(body).collect())
                    });
                    for ticket in tickets {
                        prop_assert_eq!(ticket.wait().unwrap(), ack(count, count + new));
                    }
                    count += new;
                }
                Step::Reopen { sled } => {
                    log.close().unwrap();
                    let options = if sled { options() } else { plain_options() };
                    log = Log::open(dir.path(), options).unwrap().0;
                }
            }
            prop_assert_eq!(log.head(stream).map_or(0, |head| head.count), count);
        }
        let stands: Vec<Body> = log.events(stream, Seq(0), &Filter::all()).map(|event| event.unwrap().body).collect();
        prop_assert!(stands == (0..count).map(body).collect::<Vec<_>>());
    }
}

#[test]
fn what_a_crash_cut_short_is_completed_by_submitting_it_again() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(dir.path(), plain_options()).unwrap();
    let old_manifest = std::fs::read(dir.path().join("MANIFEST")).unwrap();
    let stream = rollout(1, 0);
    let bodies: Vec<Body> = (0..6).map(varied).collect();
    let whole = log.append(stream, Expected::Exactly(Seq(0)), bodies.clone()).unwrap();
    log.close().unwrap();
    let journal = dir.path().join("journal/0000000000.log");
    let bytes = std::fs::read(&journal).unwrap();
    std::fs::write(dir.path().join("MANIFEST"), old_manifest).unwrap();
    std::fs::write(&journal, &bytes[..bytes.len() - 300]).unwrap();
    let (log, _) = Log::open(dir.path(), plain_options()).unwrap();
    let left = log.head(stream).unwrap().count;
    assert!(left > 0 && left < 6, "{left} events are left");
    assert_eq!(log.append(stream, Expected::Exactly(Seq(0)), bodies.clone()).unwrap(), whole);
    assert_eq!(log.append(stream, Expected::Exactly(Seq(0)), bodies.clone()).unwrap(), whole);
    let stands: Vec<Body> = log.events(stream, Seq(0), &Filter::all()).map(|event| event.unwrap().body).collect();
    assert_eq!(stands, bodies);
}
