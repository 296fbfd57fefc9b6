//! A stored training computed again from the log: whatever field is changed, it is found and named.

use rao_replay::trainer::{Settings, rederive};
use rao_store::event::{Body, Kind, LossKind};
use rao_store::{Address, Depth, Digest, Expected, Log, RolloutId, Seq, Stream};

use crate::common::{ordinary, settings, train_logged, trainer, training_events};
use crate::support::run_id;

fn nudge(value: &mut f64) {
    *value = f64::from_bits(value.to_bits() ^ 1);
}

/// A change of one field, and what the check must call it.
type Change = (&'static str, fn(&mut Body));

macro_rules! change {
    ($kind:ident, $body:ident => $change:expr) => {
        |body| {
            if let Body::$kind($body) = body {
                $change
            }
        }
    };
}

const CREDIT: [Change; 12] = [
    ("step", change!(CreditAssigned, c => c.step += 1)),
    ("source", change!(CreditAssigned, c => c.source.seq.0 += 1)),
    ("rollout", change!(CreditAssigned, c => c.run.0[0] ^= 1)),
    ("rollout", change!(CreditAssigned, c => c.rollout = RolloutId(c.rollout.0 + 1))),
    ("node", change!(CreditAssigned, c => c.node = c.node.child(7))),
    ("reward", change!(CreditAssigned, c => nudge(&mut c.reward))),
    ("baseline", change!(CreditAssigned, c => nudge(&mut c.baseline))),
    ("advantage", change!(CreditAssigned, c => nudge(&mut c.advantage))),
    ("depth", change!(CreditAssigned, c => c.depth = Depth(c.depth.0 + 1))),
    ("depth count", change!(CreditAssigned, c => c.count += 1)),
    ("weight", change!(CreditAssigned, c => nudge(&mut c.weight))),
    ("tokens", change!(CreditAssigned, c => c.tokens += 1)),
];

const SCORED: [Change; 5] = [
    ("step", change!(TrajectoryScored, s => s.step += 1)),
    ("trajectory", change!(TrajectoryScored, s => s.rollout = RolloutId(s.rollout.0 + 1))),
    ("trajectory", change!(TrajectoryScored, s => s.node = s.node.child(7))),
    ("loss", change!(TrajectoryScored, s => s.logprobs[0] -= 0.125)),
    ("loss", change!(TrajectoryScored, s => nudge(&mut s.loss))),
];

const STEP: [Change; 9] = [
    ("step", change!(TrainStep, s => s.step += 1)),
    ("batch", change!(TrainStep, s => s.batch.0[0] ^= 1)),
    ("trajectories", change!(TrainStep, s => s.trajectories += 1)),
    ("tokens", change!(TrainStep, s => s.tokens += 1)),
    ("loss", change!(TrainStep, s => nudge(&mut s.loss))),
    ("mean ratio", change!(TrainStep, s => nudge(&mut s.mean_ratio))),
    ("clip fraction", change!(TrainStep, s => nudge(&mut s.clip_fraction))),
    ("learning rate", change!(TrainStep, s => nudge(&mut s.learning_rate))),
    ("weights before", change!(TrainStep, s => s.weights_before.0[0] ^= 1)),
];

const END: [Change; 2] = [
    ("number of steps", change!(TrainFinished, f => f.steps += 1)),
    ("final weights", change!(TrainFinished, f => f.weights.0[0] ^= 1)),
];

/// Stores changed events as another training run and gives what the check says of it.
fn verdict(log: &Log, number: &mut u8, bodies: Vec<Body>) -> Option<(Address, String)> {
    *number += 1;
    let training = run_id(*number);
    log.append(Stream::Training(training), Expected::Any, bodies).unwrap();
    log.flush().unwrap();
    rederive(log, training).unwrap().mismatch.map(|mismatch| (mismatch.address, mismatch.what))
}

fn last(bodies: &[Body], kind: Kind) -> usize {
    bodies.iter().rposition(|body| body.kind() == kind).unwrap()
}

#[test]
fn a_stored_number_that_the_log_does_not_give_is_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    train_logged(&mut trainer(1, &settings(LossKind::Cispo)), &log, run, run_id(100));
    let bodies = training_events(&log, run_id(100));
    let mut number = 100;
    assert_eq!(verdict(&log, &mut number, bodies.clone()), None, "a copy is as good");
    let kinds = [
        (Kind::CreditAssigned, &CREDIT[..]),
        (Kind::TrajectoryScored, &SCORED),
        (Kind::TrainStep, &STEP),
        (Kind::TrainFinished, &END),
    ];
    for (kind, changes) in kinds {
        let at = last(&bodies, kind);
        for (what, change) in changes {
            let mut forged = bodies.clone();
            change(&mut forged[at]);
            assert_ne!(forged, bodies);
            let found = verdict(&log, &mut number, forged);
            let address = Address { stream: Stream::Training(run_id(number)), seq: Seq(at as u64) };
            assert_eq!(found, Some((address, (*what).to_owned())), "{kind:?}");
        }
    }
}

/// Weights digests make a chain from the training's start to its end.
#[test]
fn a_break_in_the_chain_of_weights_is_found_where_it_shows() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    for (first, loss) in [(100, LossKind::Cispo), (150, LossKind::Sft)] {
        let settings = Settings { steps: 2, minibatches: 2, ..settings(loss) };
        train_logged(&mut trainer(1, &settings), &log, run, run_id(first));
        let bodies = training_events(&log, run_id(first));
        let mut number = first;
        assert_eq!(verdict(&log, &mut number, bodies.clone()), None);
        let mut found_after = |change: &dyn Fn(&mut Vec<Body>), what: &str| {
            let mut forged = bodies.clone();
            change(&mut forged);
            assert_eq!(verdict(&log, &mut number, forged).unwrap().1, what, "{loss:?}");
        };
        let flip = |digest: &mut Digest| digest.0[31] ^= 1;
        let step = last(&bodies, Kind::TrainStep);
        let earlier = last(&bodies[..step], Kind::TrainStep);
        let after = |at: usize| {
            move |all: &mut Vec<Body>| {
                if let Body::TrainStep(step) = &mut all[at] {
                    flip(&mut step.weights_after);
                }
            }
        };
        found_after(&after(earlier), "weights before");
        found_after(&after(step), "final weights");
        let start = |all: &mut Vec<Body>| {
            if let Body::TrainStarted(started) = &mut all[0] {
                flip(&mut started.weights);
            }
        };
        found_after(&start, "weights before");
        let shorter = |all: &mut Vec<Body>| {
            if let Body::TrainFinished(end) = all.last_mut().unwrap() {
                end.steps -= 1;
            }
        };
        found_after(&shorter, "number of steps");
    }
}

#[test]
fn a_missing_event_and_another_run_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    train_logged(&mut trainer(1, &settings(LossKind::Cispo)), &log, run, run_id(100));
    let bodies = training_events(&log, run_id(100));
    let mut number = 100;
    for (kind, what) in [
        (Kind::CreditAssigned, "number of credits"),
        (Kind::TrajectoryScored, "trajectories"),
        (Kind::TrainStep, "number of steps"),
    ] {
        let mut fewer = bodies.clone();
        fewer.remove(last(&bodies, kind));
        assert_eq!(verdict(&log, &mut number, fewer).unwrap().1, what);
    }
    for kind in [Kind::CreditAssigned, Kind::TrajectoryScored] {
        let mut more = bodies.clone();
        more.insert(last(&bodies, kind), bodies[last(&bodies, kind)].clone());
        assert!(verdict(&log, &mut number, more).is_some(), "{kind:?} twice");
    }
    let mut other = bodies;
    if let Body::TrainStarted(started) = &mut other[0] {
        started.runs[0].1.0[0] ^= 1;
    }
    assert!(verdict(&log, &mut number, other).unwrap().1.contains("content of run"));
}
