//! The `arrival` scheduler: nodes go on as soon as their own answers are there.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rao_engine::record::{Plan, record};
use rao_engine::{Actor, Ask, EngineConfig, EngineError, Scheduler, Tree};
use rao_envs::Script;
use rao_store::event::{Body, Outcome};
use rao_store::{EventSource, Filter, NodePath, RolloutId, Seq, Stream};
use rao_testkit::{
    Late, Played, RUN, Wired, bodies, config, host, mini, open, plan, plan_in, record_in, repl, resume_in, sampled,
    scripted,
};

const STREAM: Stream = Stream::Rollout(RUN, RolloutId(0));

fn arrival() -> EngineConfig {
    EngineConfig { scheduler: Scheduler::Arrival, ..config() }
}

fn millis(delay: impl Fn(&str, u32) -> u64 + Send + Sync + 'static) -> impl Fn(&Ask<'_>) -> Duration + Send + Sync {
    move |ask| Duration::from_millis(delay(&ask.node.to_string(), ask.step))
}

/// Records in a fresh log; gives the events of the first rollout and its tree.
fn recorded(plan: &Plan, actor: &mut dyn Actor) -> (Vec<Body>, Tree) {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, plan, actor);
    let events: Vec<_> = log.events(STREAM, Seq(0), &Filter::all()).map(Result::unwrap).collect();
    let tree = Tree::fold(&events).unwrap();
    (events.into_iter().map(|event| event.body).collect(), tree)
}

/// Nodes in the order in which they acted.
fn acted(events: &[Body]) -> Vec<String> {
    let node = |body: &Body| if let Body::ActionSampled(a) = body { Some(a.node.to_string()) } else { None };
    events.iter().filter_map(node).collect()
}

const PAIR: &[(&str, &[&str])] = &[
    ("0", &["print(await asyncio.gather(launch_subagent(GOAL), launch_subagent(GOAL)))", "finish('root')"]),
    ("0.0", &["finish('slow')"]),
    ("0.1", &["x = 1", "x = 2", "finish('fast')"]),
];

#[test]
fn a_fast_node_does_not_wait_for_a_slow_one() {
    let delays = millis(|node, _| if node == "0.0" { 400 } else { 1 });
    let mut actor = Late::new(Box::new(Played::cells(PAIR)), 8, delays);
    let (events, tree) = recorded(&plan(1, 1, arrival()), &mut actor);
    assert_eq!(acted(&events), ["0", "0.1", "0.1", "0.1", "0.0", "0"]);
    let root = tree.root().unwrap();
    assert_eq!(root.steps[0].resumes, [vec![1], vec![0]], "the fast child is answered first, alone");
    assert_eq!(root.steps[0].output.as_ref().unwrap().stdout, "['slow', 'fast']\n");
    // In rounds the same program waits for both.
    let (events, _) = recorded(&plan(1, 1, config()), &mut Played::cells(PAIR));
    assert_eq!(acted(&events), ["0", "0.0", "0.1", "0.1", "0.1", "0"]);
}

#[test]
fn requests_overlap_up_to_the_policys_capacity() {
    let wide = "print(await asyncio.gather(*[launch_subagent(GOAL) for _ in range(6)]))";
    for (capacity, most) in [(1, 1), (3, 3), (64, 12)] {
        let program = Played::new(move |ask| match (ask.node.to_string().as_str(), ask.step) {
            ("0", 0) => wide.replace("GOAL", &ask.goal.targets.to_string()),
            _ => "finish('done')".to_owned(),
        });
        let mut actor = Late::new(Box::new(program), capacity, millis(|_, _| 150));
        let seen = Arc::clone(&actor.seen);
        let (_, tree) = recorded(&plan(1, 2, arrival()), &mut actor);
        assert_eq!(tree.len(), 7);
        assert_eq!(seen.most.load(Ordering::SeqCst), most, "capacity {capacity}");
        assert_eq!(seen.in_flight.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn a_request_of_a_cancelled_node_is_cancelled() {
    let cells: &[(&str, &[&str])] = &[
        (
            "0",
            &[
                "async def fails():\n    await launch_subagent(GOAL)\n    raise ValueError('now')\nawait asyncio.gather(\
                 launch_subagent(GOAL), fails())",
                "finish('root')",
            ],
        ),
        ("0.0", &["finish('late')"]),
        ("0.1", &["finish('early')"]),
    ];
    let delays = millis(|node, _| if node == "0.0" { 2_000 } else { 1 });
    let mut actor = Late::new(Box::new(Played::cells(cells)), 8, delays);
    let seen = Arc::clone(&actor.seen);
    let (_, tree) = recorded(&plan(1, 1, arrival()), &mut actor);
    let child = tree.node(&NodePath::root().child(0)).unwrap();
    assert_eq!((child.outcome, child.steps.len()), (Some(Outcome::Cancelled), 0));
    assert_eq!(seen.cancelled.lock().unwrap().len(), 1);
    assert_eq!(tree.root().unwrap().outcome, Some(Outcome::Finished));
}

#[test]
fn a_stopped_run_cancels_what_is_in_flight_and_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let plan = plan(1, 2, arrival());
    let slow = millis(|node, _| if node == "0" { 1 } else { 10_000 });
    let mut actor = Late::new(Box::new(Played::cells(PAIR)), 8, slow);
    let seen = Arc::clone(&actor.seen);
    let began = Instant::now();
    let mut looks = 0;
    let watch = &mut |standing: rao_engine::rounds::Standing| {
        looks += u32::from(standing.actions == 2);
        if looks == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let stopped = record(&log, RUN, &plan, host(), &mut actor, &repl(), watch);
    assert!(matches!(stopped, Err(EngineError::Stopped)));
    assert!(began.elapsed() < Duration::from_secs(5), "nothing waits for the requests");
    assert_eq!(seen.cancelled.lock().unwrap().len(), 4, "two children of two rollouts");
    let before = bodies(&*log, STREAM);
    assert_eq!(acted(&before), ["0"]);
    let resumed = resume_in(&log, RUN, &plan, &mut Late::new(Box::new(Played::cells(PAIR)), 8, millis(|_, _| 1)));
    assert_eq!((resumed.rollouts, resumed.nodes), (2, 6));
    assert_eq!(bodies(&*log, STREAM)[..before.len()], before);
}

#[test]
fn a_request_that_fails_ends_the_run_and_what_came_before_stays() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let plan = plan(1, 1, arrival());
    let mut actor = Late::new(Box::new(Played::cells(PAIR)), 8, millis(|_, _| 1));
    let seen = Arc::clone(&actor.seen);
    let watch = &mut |standing: rao_engine::rounds::Standing| {
        seen.broken.store(standing.actions >= 1, Ordering::SeqCst);
        ControlFlow::Continue(())
    };
    let failed = record(&log, RUN, &plan, host(), &mut actor, &repl(), watch).unwrap_err();
    assert_eq!(failed.to_string(), "the policy is broken");
    assert!(!acted(&bodies(&*log, STREAM)).is_empty());
    let resumed = resume_in(&log, RUN, &plan, &mut Late::new(Box::new(Played::cells(PAIR)), 8, millis(|_, _| 1)));
    assert_eq!((resumed.rollouts, resumed.nodes), (1, 3));
}

/// Every action of every rollout by node and step.
fn actions(plan: &Plan, actor: &mut dyn Actor) -> std::collections::BTreeMap<(u32, String, u32), Vec<Body>> {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, plan, actor);
    let mut all = std::collections::BTreeMap::<_, Vec<Body>>::new();
    for rollout in plan.rollouts() {
        for body in bodies(&*log, Stream::Rollout(RUN, rollout)) {
            if let Body::ActionSampled(action) = &body {
                all.entry((rollout.0, action.node.to_string(), action.step)).or_default().push(body);
            }
        }
    }
    all
}

#[test]
fn what_a_node_samples_does_not_depend_on_the_scheduler() {
    let in_rounds = actions(&plan(2, 2, config()), &mut *sampled(5));
    let as_batches = actions(&plan(2, 2, arrival()), &mut *sampled(5));
    let singly = actions(&plan(2, 2, arrival()), &mut Late::scrambled(sampled(5), 3, 1));
    assert!(in_rounds.len() > 8);
    assert_eq!(in_rounds, as_batches);
    assert_eq!(in_rounds, singly);
    // `mini` delegates, so that the schedulers' batches really differ.
    let small = |scheduler| EngineConfig { scheduler, max_tokens: 64, ..config() };
    let in_rounds = actions(&plan(2, 2, small(Scheduler::Rounds)), &mut *mini(&config()));
    let singly = actions(&plan(2, 2, small(Scheduler::Arrival)), &mut Late::scrambled(mini(&config()), 3, 1));
    assert!(in_rounds.keys().any(|(_, node, _)| node != "0"), "a node that was launched acts");
    assert_eq!(in_rounds, singly);
}

#[test]
fn with_a_local_policy_the_order_is_always_the_same() {
    let content = |width| {
        let dir = tempfile::tempdir().unwrap();
        let plan = Plan { width, ..plan(3, 2, arrival()) };
        record_in(&open(dir.path()), &plan, &mut *scripted(Script::Noisy)).content
    };
    assert_eq!(content(8), content(8));
    assert_eq!(content(8), content(1), "a rollout does not depend on its neighbours");
}

const CALLS: &[(&str, &[&str])] = &[
    (
        "0",
        &["r = await asyncio.gather(launch_subagent(GOAL), launch_subagent(GOAL), search(5))\nprint(r, count_calls())"],
    ),
    ("0.0", &["a = look_up(500)\nfinish(a)"]),
    ("0.1", &["a = await asyncio.gather(search(150), search(1), search(300))\nfinish([a, look_up(2), count_calls()])"]),
];

#[test]
fn slow_calls_run_beside_everything_else() {
    let world = Wired::new();
    let most = Arc::clone(&world.most);
    let (events, tree) = recorded(&plan_in(Arc::new(world), 1, 1, arrival()), &mut Played::cells(CALLS));
    assert!(most.load(Ordering::SeqCst) >= 2, "{most:?}");
    let root = tree.root().unwrap();
    let shown = root.steps[0].output.as_ref().unwrap();
    assert_eq!(shown.error, None);
    let child = tree.node(&NodePath::root().child(1)).unwrap();
    assert_eq!(child.steps[0].resumes[..3], [vec![1], vec![0], vec![2]], "in the order in which they came");
    assert!(shown.stdout.ends_with("6\n"), "every answered call reached the world once: {}", shown.stdout);
    let first = events.iter().position(|b| matches!(b, Body::CallAnswered(a) if a.node == child.path)).unwrap();
    let last =
        events.iter().position(|b| matches!(b, Body::CallAnswered(a) if a.node == NodePath::root().child(0))).unwrap();
    assert!(first < last, "the other child's call is answered while this one's runs");
    // In rounds the events are those of calls made one after the other, though those of a group overlap.
    let world = Wired::new();
    let most = Arc::clone(&world.most);
    let (_, tree) = recorded(&plan_in(Arc::new(world), 1, 1, config()), &mut Played::cells(CALLS));
    assert!(most.load(Ordering::SeqCst) >= 2, "{most:?}");
    let child = tree.node(&NodePath::root().child(1)).unwrap();
    assert_eq!(child.steps[0].resumes[0], [0, 1, 2], "all at once, however long each takes");
    assert_eq!(tree.finished.unwrap().nodes, 3);
}
