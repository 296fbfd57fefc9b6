//! Recordings whose judges were asked beside everything else: replayed, cut off, resumed, forked.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rao_engine::fork::{self, Base};
use rao_engine::record::Plan;
use rao_engine::{Actor, EngineConfig, Judges, Scheduler};
use rao_envs::judge::Panel;
use rao_replay::check::{Check, Means, manifest};
use rao_store::event::{Body, ForkBase, Kind};
use rao_store::{Log, RolloutId, RunId, Seq, Stream};
use rao_testkit::{Asking, Deliberate};

use crate::stage::{
    ALL, Late, Played, RUN, bodies, checked, config, copied, cut_and_finish, cut_and_resume_in, host, means, open,
    plan_in, record_in, replay_everything, resume_in,
};

const STREAM: Stream = Stream::Rollout(RUN, RolloutId(0));

const TREE: &[(&str, &[&str])] = &[
    (
        "0",
        &[
            "r = await asyncio.gather(launch_subagent(GOAL), launch_subagent(GOAL), launch_subagent(GOAL))\nprint(r)",
            "print(await launch_subagent(GOAL))",
            "finish('root')",
        ],
    ),
    ("0.0", &["x = 1", "finish('a')"]),
    ("0.1", &["finish(await launch_subagent(GOAL))"]),
    ("0.1.0", &["print(await launch_subagent(GOAL))", "finish('wrong')"]),
    ("0.1.0.0", &["finish('deep')"]),
    ("0.2", &["finish('b')"]),
    ("0.3", &["x = 1", "x = 2", "finish('c')"]),
];

fn settings(scheduler: Scheduler, panel: &Panel) -> EngineConfig {
    EngineConfig { scheduler, judges: Some(Judges::of(panel)), ..config() }
}

fn judged(scheduler: Scheduler, judge: &Deliberate) -> Plan {
    let panel = judge.panel();
    Plan { panel: panel.clone(), ..plan_in(Arc::new(Asking::new()), 1, 2, settings(scheduler, &panel)) }
}

fn asking(actor: Box<dyn Actor>) -> Means {
    let mut means = means(actor);
    means.env = Some(Arc::new(Asking::new()));
    means
}

/// The verdicts in their order, and where the run's rewards begin.
fn verdicts(events: &[Body]) -> Vec<String> {
    let node = |body: &Body| if let Body::Verdict(verdict) = body { Some(verdict.node.to_string()) } else { None };
    events.iter().filter_map(node).collect()
}

#[test]
fn in_rounds_a_log_does_not_depend_on_how_long_judges_take() {
    let mut contents = BTreeSet::new();
    for seed in 0..6 {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        let judge = Deliberate::scrambled(seed);
        let plan = Plan { width: 1 + seed as usize % 2, ..judged(Scheduler::Rounds, &judge) };
        contents.insert(record_in(&log, &plan, &mut Played::cells(TREE)).content);
        let events = bodies(&*log, STREAM);
        let order = verdicts(&events);
        assert_eq!(order, ["0.2", "0.0", "0.1.0.0", "0.1", "0.1.0", "0.3", "0"], "by round, in node order");
        let last = events.iter().rposition(|body| body.kind() == Kind::Verdict).unwrap();
        assert_eq!(events.iter().position(|body| body.kind() == Kind::RewardAssigned), first_reward(&events));
        assert!(last < events.len() - 1);
    }
    assert_eq!(contents.len(), 1);
}

/// The first reward that can be assigned: of a node without children, once no verdict is outstanding.
fn first_reward(events: &[Body]) -> Option<usize> {
    let mut ended = BTreeSet::new();
    for (at, body) in events.iter().enumerate() {
        match body {
            Body::NodeFinished(end) => {
                ended.insert(end.node.clone());
            }
            Body::Verdict(verdict) => {
                ended.remove(&verdict.node);
                if ended.is_empty() {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

#[test]
fn in_rounds_every_check_passes_from_every_event_and_cut_logs_resume_to_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let judge = Deliberate::scrambled(3);
    let program = Played::cells(TREE);
    record_in(&log, &judged(Scheduler::Rounds, &judge), &mut *program.again());
    let mut means = asking(program.again());
    let before = judge.seen.asked.lock().unwrap().len();
    replay_everything(&*log, &mut means);
    assert_eq!(judge.seen.asked.lock().unwrap().len(), before, "a replay asks nobody");
    let plan = || judged(Scheduler::Rounds, &Deliberate::scrambled(8));
    cut_and_resume_in(&*log, &plan, &program, &mut means, 3);
}

#[test]
fn under_arrival_the_order_of_verdicts_is_a_fact() {
    let mut orders = BTreeSet::new();
    for seed in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        let judge = Deliberate::scrambled(seed);
        let program = Played::cells(TREE);
        record_in(&log, &judged(Scheduler::Arrival, &judge), &mut Late::scrambled(program.again(), 4, seed));
        orders.insert(verdicts(&bodies(&*log, STREAM)));
        let mut means = asking(program.again());
        if seed == 0 {
            replay_everything(&*log, &mut means);
        }
        let again = || -> Box<dyn Actor> { Box::new(Late::scrambled(program.again(), 4, seed + 7)) };
        cut_and_finish(&*log, &judged(Scheduler::Arrival, &Deliberate::scrambled(seed + 5)), &mut means, &again, 17);
    }
    println!("{} orders of verdicts", orders.len());
}

#[test]
fn forks_leave_from_events_where_a_verdict_is_outstanding() {
    for scheduler in [Scheduler::Rounds, Scheduler::Arrival] {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        let program = Played::cells(TREE);
        record_in(&log, &judged(scheduler, &Deliberate::scrambled(1)), &mut *program.again());
        let whole = bodies(&*log, STREAM);
        let mut means = asking(program.again());
        let mut outstanding = 0;
        for seq in (0..whole.len() - 1).step_by(if scheduler == Scheduler::Rounds { 2 } else { 5 }) {
            let count = |kind| whole[..=seq].iter().filter(|body| body.kind() == kind).count();
            outstanding += usize::from(count(Kind::NodeFinished) > count(Kind::Verdict));
            let run = forked(&log, 100 + seq as u8, seq as u64, &Deliberate::scrambled(2), &mut *program.again());
            let fork = bodies(&*log, Stream::Rollout(run, RolloutId(0)));
            assert_eq!(fork[..=seq], whole[..=seq], "forked from {seq}");
            if scheduler == Scheduler::Rounds {
                assert_eq!(fork[seq + 2..], whole[seq + 1..], "forked from {seq}");
            }
            for check in ALL {
                let result = checked(&*log, run, 0, check, 0, &mut means);
                assert!(result.divergence.is_none(), "{check:?} of {seq}: {}", result.divergence.unwrap());
                assert!(result.complete);
            }
        }
        assert!(outstanding > 3, "{outstanding} forks while a judge was asked");
    }
}

fn forked(log: &Arc<Log>, id: u8, seq: u64, judge: &Deliberate, actor: &mut dyn Actor) -> RunId {
    let run = RunId([id; 16]);
    let (like, config) = manifest(&**log, RUN).unwrap();
    let base = Base::read(&**log, ForkBase { run: RUN, rollout: RolloutId(0), seq: Seq(seq) }).unwrap();
    let seed = base.started.seed;
    let own = plan_in(Arc::new(Asking::new()), 1, 1, config);
    let plan = Plan { tasks: vec![base.task().unwrap()], group_size: 1, seed, panel: judge.panel(), ..own };
    let manifest = fork::manifest(&like, 1, seed, &actor.identity());
    fork::begin(log, run, &base, manifest, host(), &plan).unwrap();
    resume_in(log, run, &plan, actor);
    run
}

#[test]
fn logs_of_versions_that_waited_for_their_judges_replay_and_resume() {
    for scheduler in [Scheduler::Rounds, Scheduler::Arrival] {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        let program = Played::cells(TREE);
        let old = judged(scheduler, &Deliberate::scrambled(4).in_place());
        record_in(&log, &old, &mut *program.again());
        let whole = bodies(&*log, STREAM);
        let ends = whole.windows(2).filter(|pair| pair[0].kind() == Kind::NodeFinished);
        assert!(ends.clone().all(|pair| pair[1].kind() == Kind::Verdict) && ends.count() == 7);
        let mut means = asking(program.again());
        replay_everything(&*log, &mut means);
        let again = || program.again();
        cut_and_finish(&*log, &judged(scheduler, &Deliberate::scrambled(5)), &mut means, &again, 13);
    }
}

#[test]
fn verdicts_out_of_place_are_found_at_the_first_event() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let program = Played::cells(TREE);
    record_in(&log, &judged(Scheduler::Rounds, &Deliberate::scrambled(3)), &mut *program.again());
    let whole = bodies(&*log, STREAM);
    let place = |node: &str| {
        let is_on = |body: &Body| matches!(body, Body::Verdict(verdict) if verdict.node.to_string() == node);
        whole.iter().position(is_on).unwrap()
    };
    let (first, second) = (place("0.0"), place("0.1"));
    let mut means = asking(program.again());
    let mut found = |changed: Vec<Body>, check: Check| {
        let dir = tempfile::tempdir().unwrap();
        let copy = copied(&*log, dir.path(), &changed);
        checked(&*copy, RUN, 0, check, 0, &mut means).divergence.map(|found| (found.seq.0 as usize, found.got))
    };
    for check in [Check::Cells, Check::Tools, Check::Tokens] {
        // Two in each other's place.
        let mut changed = whole.clone();
        changed.swap(first, second);
        let (at, got) = found(changed, check).unwrap();
        assert_eq!((at, got.as_str()), (first, "a verdict on node 0.0"), "{check:?}");
        // One missing.
        let mut changed = whole.clone();
        changed.remove(first);
        assert_eq!(found(changed, check).unwrap().0, first, "{check:?}");
        // One that came a round too late.
        let mut changed = whole.clone();
        let late = changed.remove(place("0.2"));
        changed.insert(place("0.2") + 1, late);
        assert_eq!(found(changed, check).unwrap().0, place("0.2"), "{check:?}");
    }
}

#[test]
fn another_answer_or_another_world_is_another_question() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let program = Played::cells(TREE);
    record_in(&log, &judged(Scheduler::Arrival, &Deliberate::scrambled(3)), &mut *program.again());
    let whole = bodies(&*log, STREAM);
    let at = whole.iter().position(|body| body.kind() == Kind::Verdict).unwrap();
    let mut means = asking(program.again());
    let mut changed = whole.clone();
    let Body::Verdict(verdict) = &mut changed[at] else { panic!() };
    let mut evidence: serde_json::Value = serde_json::from_str(&verdict.evidence).unwrap();
    evidence["environment"]["children"] = 9.into();
    verdict.evidence = evidence.to_string();
    verdict.evidence_digest = rao_store::Digest::of(verdict.evidence.as_bytes());
    let other = tempfile::tempdir().unwrap();
    let copy = copied(&*log, other.path(), &changed);
    // What the environment saw is made again; a log alone cannot know better.
    assert!(checked(&*copy, RUN, 0, Check::Cells, 0, &mut means).divergence.is_none());
    let divergence = checked(&*copy, RUN, 0, Check::Tools, 0, &mut means).divergence.unwrap();
    assert_eq!(divergence.seq.0 as usize, at, "{divergence}");
    // Verdicts of earlier versions say nothing of it.
    evidence.as_object_mut().unwrap().shift_remove("environment");
    let Body::Verdict(verdict) = &mut changed[at] else { panic!() };
    verdict.evidence = evidence.to_string();
    verdict.evidence_digest = rao_store::Digest::of(verdict.evidence.as_bytes());
    let other = tempfile::tempdir().unwrap();
    let copy = copied(&*log, other.path(), &changed);
    assert!(checked(&*copy, RUN, 0, Check::Tools, 0, &mut means).divergence.is_none());
}

#[test]
fn the_same_question_is_asked_once_at_a_time_and_once_at_all() {
    for scheduler in [Scheduler::Rounds, Scheduler::Arrival] {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        let judge = Deliberate::new(|_| Duration::from_millis(50));
        // Both rollouts of the group do the same.
        record_in(&log, &judged(scheduler, &judge), &mut Played::cells(TREE));
        let asked = judge.seen.asked.lock().unwrap().clone();
        let different: BTreeSet<&String> = asked.iter().collect();
        assert_eq!((asked.len(), different.len()), (7, 7), "{scheduler:?}");
        for rollout in 0..2 {
            let events = bodies(&*log, Stream::Rollout(RUN, RolloutId(rollout)));
            assert_eq!(verdicts(&events).len(), 7);
        }
        assert!(judge.seen.most.load(Ordering::SeqCst) > 1, "{scheduler:?}: side by side");
    }
}
