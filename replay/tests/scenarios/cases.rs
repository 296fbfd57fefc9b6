//! Trees of particular shapes.

use std::time::Duration;

use rao_engine::repl::CellLimits;
use rao_engine::{Actor, Ask, EngineConfig, Scheduler, Tree};
use rao_replay::check::Check;
use rao_store::event::{Body, LimitKind, Outcome, RefusalReason};
use rao_store::{EventSource, Filter, NodePath, RolloutId, Seq, Stream};

use crate::stage::{
    Late, Played, RUN, checked, config, cut_and_finish, cut_and_resume, means, open, plan, record_in, replay_everything,
};

const STREAM: Stream = Stream::Rollout(RUN, RolloutId(0));

fn tree(log: &dyn EventSource) -> Tree {
    let events: Vec<_> = log.events(STREAM, Seq(0), &Filter::all()).map(Result::unwrap).collect();
    Tree::fold(&events).unwrap()
}

#[test]
fn a_replay_from_a_grandchilds_second_step_runs_nothing_before_it() {
    let actor = Played::cells(&[
        ("0", &["print(view_inventory())", "print(await launch_subagent(GOAL))", "finish('root')"]),
        ("0.0", &["print(view_inventory())", "print(await launch_subagent(GOAL))", "finish('child')"]),
        ("0.0.0", &["a = view_inventory()", "b = view_inventory()", "print(a == b)\nfinish('grandchild')"]),
    ]);
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(1, 1, config()), &mut *actor.again());
    let grandchild = NodePath::root().child(0).child(0);
    let second = log
        .events(STREAM, Seq(0), &Filter::all())
        .map(Result::unwrap)
        .find(|event| matches!(&event.body, Body::ActionSampled(a) if a.node == grandchild && a.step == 1))
        .unwrap();
    let asked = actor.asked.clone();
    let mut means = means(Box::new(actor));
    let result = checked(&*log, RUN, 0, Check::Tokens, second.seq.0, &mut means);
    assert!(result.divergence.is_none(), "{}", result.divergence.unwrap());
    let expected = [("0.0.0", 1), ("0.0.0", 2), ("0.0", 2), ("0", 2)].map(|(node, step)| (node.to_owned(), step));
    assert_eq!(*asked.lock().unwrap(), expected);
    // One call of the grandchild's second step; `finish` is no tool, and the first step's call is not made again.
    assert_eq!((result.tool_calls, result.policy_calls, result.judge_calls), (1, 4, 3));
    assert_eq!(result.skipped, second.seq.0);
}

#[test]
fn the_same_goal_in_a_row_and_side_by_side_is_told_apart() {
    let twice = "a = await launch_subagent(GOAL)\nb = await launch_subagent(GOAL)\nc, d = await asyncio.gather(\
                 launch_subagent(GOAL), launch_subagent(GOAL))\nprint(a, b, c, d)";
    let actor = Played::new(move |ask| match (ask.node.to_string().as_str(), ask.step) {
        ("0", 0) => twice.replace("GOAL", &ask.goal.targets.to_string()),
        // The third child takes longer than the fourth.
        ("0.2", 0) => "x = 1".to_owned(),
        (node, _) => format!("finish('{node}')"),
    });
    // In rounds the third child, which takes longer, answers last; as answers arrive, whichever child is asked for less
    // long answers first. Ids follow the order of the calls, and every answer reaches its own call.
    let slow = |node: &'static str| {
        move |ask: &Ask<'_>| Duration::from_millis(if ask.node.to_string() == node { 300 } else { 1 })
    };
    let late = |node| -> Box<dyn Actor> { Box::new(Late::new(actor.again(), 8, slow(node))) };
    let ways: [(Scheduler, Box<dyn Actor>, [u32; 2]); 4] = [
        (Scheduler::Rounds, actor.again(), [3, 2]),
        (Scheduler::Arrival, actor.again(), [3, 2]),
        (Scheduler::Arrival, late("0.2"), [3, 2]),
        (Scheduler::Arrival, late("0.3"), [2, 3]),
    ];
    for (scheduler, mut policy, last) in ways {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        record_in(&log, &plan(1, 1, EngineConfig { scheduler, ..config() }), &mut *policy);
        let tree = tree(&*log);
        let root = tree.root().unwrap();
        assert_eq!(root.steps[0].output.as_ref().unwrap().stdout, "0.0 0.1 0.2 0.3\n");
        assert_eq!(root.steps[0].resumes, [vec![0], vec![1], vec![last[0]], vec![last[1]]], "{scheduler:?}");
        assert_eq!(tree.len(), 5);
        replay_everything(&*log, &mut means(actor.again()));
    }
}

/// Children that raise, run out of steps, hit a limit, are refused, are cancelled because their parent raised, or are
/// never awaited.
fn trouble() -> (Played, EngineConfig) {
    let cancelling = "async def boom():\n    raise ValueError('now')\ntry:\n    await asyncio.gather(\
                      launch_subagent(GOAL), boom())\nexcept ValueError as e:\n    print('caught', e)";
    let actor = Played::new(move |ask| {
        let cell = match (ask.node.to_string().as_str(), ask.step) {
            ("0", 0) => {
                "r = await asyncio.gather(launch_subagent(GOAL), launch_subagent(GOAL), \
                 launch_subagent({'nothing': 1}))\nprint(r)"
            }
            ("0", 1) => cancelling,
            ("0", 2) => "launch_subagent(GOAL)\nprint('left alone')",
            ("0", 3) => "x = await launch_subagent(GOAL)\nraise KeyError(x)",
            ("0.0", 0) => "raise ValueError('mine')",
            ("0.0", 1) => "print(await launch_subagent(GOAL))",
            ("0.1", 0) => "for i in range(9):\n    view_inventory()",
            ("0.3", 0) => "print(input())",
            ("0.0" | "0.1" | "0.2" | "0.3", _) => "y = 1",
            _ => "finish({'at': [1, None]})",
        };
        cell.replace("GOAL", &ask.goal.targets.to_string())
    });
    let cell = CellLimits { calls: 6, ..CellLimits::default() };
    (actor, EngineConfig { max_depth: 1, max_steps: 5, loop_guard: false, cell, ..config() })
}

#[test]
fn trouble_is_recorded_replayed_and_resumed_the_same() {
    let (actor, config) = trouble();
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let plan = plan(1, 1, config);
    record_in(&log, &plan, &mut *actor.again());
    let tree = tree(&*log);
    let outcomes: Vec<Outcome> = tree.nodes().map(|node| node.outcome.unwrap()).collect();
    use Outcome::{Cancelled, Finished, OutOfSteps};
    assert_eq!(outcomes, [Finished, OutOfSteps, OutOfSteps, Cancelled, OutOfSteps]);
    let events = log.events(STREAM, Seq(0), &Filter::all()).map(|event| event.unwrap().body);
    let refused: Vec<RefusalReason> = events
        .filter_map(|body| if let Body::SpawnRefused(refused) = body { Some(refused.reason) } else { None })
        .collect();
    assert_eq!(refused, [RefusalReason::Goal, RefusalReason::Depth]);
    let limited = tree.node(&NodePath::root().child(1)).unwrap().steps[0].output.clone().unwrap();
    assert_eq!(limited.limit, Some(LimitKind::Calls), "{limited:?}");
    replay_everything(&*log, &mut means(actor.again()));
    cut_and_resume(&*log, &plan, &actor, 1);
}

#[test]
fn a_sub_agent_whose_cell_runs_out_of_time_is_recorded_replayed_and_resumed_the_same() {
    let actor = Played::cells(&[
        ("0", &["print(await asyncio.gather(launch_subagent(GOAL), launch_subagent(GOAL)))", "finish('root')"]),
        ("0.0", &["x = 1", "x = view_inventory()\nwhile True:\n    pass", "print(x)\nfinish(x)"]),
        ("0.1", &["y = 1", "finish(y)"]),
    ]);
    let cell = CellLimits { time_ms: 250, ..CellLimits::default() };
    for scheduler in [Scheduler::Rounds, Scheduler::Arrival] {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        let plan = plan(1, 1, EngineConfig { scheduler, cell: cell.clone(), ..config() });
        record_in(&log, &plan, &mut *actor.again());
        let tree = tree(&*log);
        let child = tree.node(&NodePath::root().child(0)).unwrap();
        let limited = child.steps[1].output.clone().unwrap();
        assert_eq!((limited.limit, child.steps[1].calls.len()), (Some(LimitKind::Time), 1));
        assert_eq!(child.steps[2].output.clone().unwrap().stdout, "1\n", "the variables are as before the cell");
        let mut means = means(actor.again());
        replay_everything(&*log, &mut means);
        match scheduler {
            Scheduler::Rounds => cut_and_resume(&*log, &plan, &actor, 7),
            Scheduler::Arrival => cut_and_finish(&*log, &plan, &mut means, &|| actor.again(), 7),
        }
    }
}

#[test]
fn a_log_that_ends_anywhere_replays_to_its_end_and_resumes() {
    let actor = Played::cells(&[
        ("0", &["print(await asyncio.gather(launch_subagent(GOAL), launch_subagent(GOAL)))", "finish('root')"]),
        ("0.0", &["print(await launch_subagent(GOAL))", "finish('child')"]),
        ("0.1", &["import random\nx = random.random()\nprint(x)", "print(random.random() < x)"]),
    ]);
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let plan = plan(1, 1, config());
    record_in(&log, &plan, &mut *actor.again());
    assert!(actor.identity().weights.is_none());
    cut_and_resume(&*log, &plan, &actor, 1);
}
