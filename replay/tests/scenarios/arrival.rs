//! Recordings of the `arrival` scheduler: their order is a fact, and every check takes it from the log.

use std::sync::Arc;

use rao_engine::{Actor, EngineConfig, Scheduler};
use rao_replay::check::Check;
use rao_store::event::Body;
use rao_store::{RolloutId, Stream};

use crate::stage::{
    Late, Played, RUN, Wired, bodies, checked, config, copied, cut_and_finish, means, open, plan, plan_in, record_in,
    replay_everything, sampled,
};

const STREAM: Stream = Stream::Rollout(RUN, RolloutId(0));

fn arrival() -> EngineConfig {
    EngineConfig { scheduler: Scheduler::Arrival, ..config() }
}

const CALLS: &[(&str, &[&str])] = &[
    (
        "0",
        &["r = await asyncio.gather(launch_subagent(GOAL), launch_subagent(GOAL), search(2))\nprint(r, count_calls())"],
    ),
    ("0.0", &["a = look_up(3)\nprint(a, view_inventory())", "print(count_calls())"]),
    (
        "0.1",
        &["a = await asyncio.gather(search(2), launch_subagent(GOAL), search(1), search(4))\nfinish([a, look_up(1)])"],
    ),
    ("0.1.0", &["b = [look_up(1), await search(1)]\nfinish(b)"]),
];

#[test]
fn slow_calls_are_replayed_in_the_order_in_which_they_came() {
    let world = || plan_in(Arc::new(Wired::new()), 1, 1, arrival());
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..4 {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        let program = Played::cells(CALLS);
        record_in(&log, &world(), &mut Late::scrambled(program.again(), 4, seed));
        let mut means = means(program.again());
        means.env = Some(Arc::new(Wired::new()));
        replay_everything(&*log, &mut means);
        let whole = bodies(&*log, STREAM);
        let kinds: Vec<_> = whole.iter().map(Body::kind).collect();
        orders.insert(format!("{kinds:?}"));
        let again = || -> Box<dyn Actor> { Box::new(Late::scrambled(program.again(), 4, seed + 7)) };
        cut_and_finish(&*log, &world(), &mut means, &again, 9);
    }
    println!("{} orders", orders.len());
}

#[test]
fn two_actions_in_each_others_place_are_found() {
    let pair = Played::cells(&[
        ("0", &["print(await asyncio.gather(launch_subagent(GOAL), launch_subagent(GOAL)))"]),
        ("0.0", &["x = 1"]),
        ("0.1", &["y = 1"]),
    ]);
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(1, 1, arrival()), &mut Late::scrambled(pair.again(), 4, 2));
    let whole = bodies(&*log, STREAM);
    // An action that the log has where another node's cell is still running.
    let is_action = |body: &Body| matches!(body, Body::ActionSampled(a) if a.node.to_string().len() == 3);
    let first = whole.iter().position(is_action).unwrap();
    let second = first + 1 + whole[first + 1..].iter().position(is_action).unwrap();
    let mut changed = whole.clone();
    let moved = changed.remove(second);
    changed.insert(first + 1, moved);
    let other = tempfile::tempdir().unwrap();
    let copy = copied(&*log, other.path(), &changed);
    let mut means = means(pair.again());
    for check in [Check::Cells, Check::Tools, Check::Tokens] {
        let divergence = checked(&*copy, RUN, 0, check, 0, &mut means).divergence.unwrap();
        assert_eq!(divergence.seq.0, first as u64 + 1, "{check:?}: {divergence}");
        assert!(divergence.got.contains("cell_started"), "{divergence}");
    }
    // One that never came.
    let mut changed = whole.clone();
    changed.truncate(first);
    changed.push(whole[second + 1].clone());
    let other = tempfile::tempdir().unwrap();
    let copy = copied(&*log, other.path(), &changed);
    let divergence = checked(&*copy, RUN, 0, Check::Cells, 0, &mut means).divergence.unwrap();
    assert_eq!((divergence.seq.0, divergence.field.as_str()), (first as u64, "kind"));
    assert_eq!(divergence.got, "an action of one of the nodes 0.0, 0.1");
}

#[test]
fn sampled_tokens_are_sampled_again_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(2, 2, arrival()), &mut Late::scrambled(sampled(5), 3, 9));
    let mut means = means(sampled(5));
    for rollout in 0..4 {
        let result = checked(&*log, RUN, rollout, Check::Tokens, 0, &mut means);
        assert!(result.divergence.is_none(), "{}", result.divergence.unwrap());
        assert!(result.policy_calls > 0);
    }
}

#[test]
fn the_scheduler_stands_in_the_manifest_only_where_it_is_not_the_usual_one() {
    let settings = |config: &EngineConfig| serde_json::to_string(config).unwrap();
    assert!(!settings(&config()).contains("scheduler"), "manifests of earlier versions stay what they are");
    assert!(settings(&arrival()).contains(r#""scheduler":"arrival""#));
    let back: EngineConfig = serde_json::from_str(&settings(&arrival())).unwrap();
    assert_eq!(back, arrival());
}
