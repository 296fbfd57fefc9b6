//! Whole rollouts on the real parts: TextCraft, the embedded interpreter, real tokenizer ids.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use rao_engine::repl::{CellLimits, Monty, ReplEngine};
use rao_engine::{
    Action, Actor, Ask, BudgetModel, EngineConfig, EngineError, Live, Parts, Rollout, Scripted, Tree, absorb, rounds,
    seed,
};
use rao_envs::textcraft::{TextCraft, TextCraftConfig};
use rao_envs::{Environment, Script, Task};
use rao_policy::Chat;
use rao_store::event::{Answer, Body, Event, Outcome, PolicyIdentity, RefusalReason, RolloutStarted};
use rao_store::{NodePath, RolloutId, RunId, Stream};
use rao_testkit::{Memory, Played, Written, tiny};

fn config() -> EngineConfig {
    EngineConfig { max_tokens: 256, lambda: 0.25, ..rao_testkit::config() }
}

struct Bench {
    env: TextCraft,
    chat: Arc<Chat>,
    config: EngineConfig,
    repl: Arc<dyn ReplEngine>,
}

impl Bench {
    fn new(config: EngineConfig) -> Self {
        let env = TextCraft::new(TextCraftConfig::default()).unwrap();
        Bench { env, chat: Arc::new(Chat::bytes().unwrap()), config, repl: Arc::new(Monty::new()) }
    }

    fn tasks(&self, count: usize) -> Vec<Task> {
        tiny(&self.env, count, 7)
    }

    fn started(&self, task: &Task, policy: PolicyIdentity) -> RolloutStarted {
        RolloutStarted {
            task_id: task.id.clone(),
            difficulty: task.difficulty.clone(),
            task: rao_engine::record::task_json(task),
            group: 0,
            member: 0,
            seed: seed::rollout(1, &task.id, 0),
            policy,
            fork_base: None,
        }
    }

    fn parts(&self, task: &Task, ordinal: u32, before: &[Event]) -> (Parts, Written) {
        let written: Written = Arc::new(Mutex::new(before.to_vec()));
        let mut episode = self.env.open(task).unwrap();
        absorb(&mut *episode, before).unwrap();
        let stream = Stream::Rollout(RunId([0; 16]), RolloutId(ordinal));
        let parts = Parts {
            stream,
            config: self.config.clone(),
            outside: Box::new(Live::new(episode, Arc::clone(&self.chat), self.config.clone())),
            repl: Arc::clone(&self.repl),
            sink: Box::new(Memory { stream, written: Arc::clone(&written) }),
            ordinal,
        };
        (parts, written)
    }

    fn run(&self, rollouts: Vec<Rollout>, actor: &mut dyn Actor) -> Vec<Tree> {
        let mut trees = Vec::new();
        let mut queue = rollouts.into_iter().map(Ok);
        rounds::run(&mut queue, 16, actor, &mut |_| ControlFlow::Continue(()), &mut |r| trees.push(r.tree().clone()))
            .unwrap();
        trees
    }

    /// Runs one task from its start, or from a prefix of its events.
    fn record(&self, task: &Task, actor: &mut dyn Actor, before: &[Event]) -> (Vec<Event>, Tree) {
        let (parts, written) = self.parts(task, 0, before);
        let rollout = if before.is_empty() {
            Rollout::start(parts, self.started(task, actor.identity())).unwrap()
        } else {
            Rollout::restore(parts, Tree::fold(before).unwrap()).unwrap()
        };
        let tree = self.run(vec![rollout], actor).remove(0);
        let events = written.lock().unwrap().clone();
        (events, tree)
    }

    fn scripted(&self, script: Script) -> Scripted {
        Scripted::new(script, Arc::clone(&self.chat))
    }
}

/// An actor that plays given cells, by node path; nodes without cells finish.
fn played(cells: &[(&'static str, &[&'static str])]) -> Played {
    let cells: BTreeMap<_, Vec<&'static str>> = cells.iter().map(|(node, cells)| (*node, cells.to_vec())).collect();
    Played::new(move |ask| {
        let own = cells.get(ask.node.to_string().as_str());
        own.and_then(|own| own.get(ask.step as usize)).copied().unwrap_or("finish('default')").to_owned()
    })
}

/// Compares event by event, so that a failure shows the first difference only.
fn same(got: &[Event], expected: &[Event], what: &str) {
    for (got, expected) in got.iter().zip(expected) {
        assert_eq!(got.body, expected.body, "{what}: event {}", expected.seq);
    }
    assert_eq!(got.len(), expected.len(), "{what}");
}

#[test]
fn the_oracle_delegates_and_solves_tiny_tasks() {
    let bench = Bench::new(config());
    let mut deep = 0;
    for task in bench.tasks(12) {
        let (events, tree) = bench.record(&task, &mut bench.scripted(Script::Oracle), &[]);
        let finished = tree.finished.clone().unwrap();
        assert_eq!(finished.success, 1.0, "{}", task.id);
        assert!(tree.nodes().all(|node| node.success() == Some(1.0)));
        assert_eq!(Tree::fold(&events).unwrap(), tree, "the log gives the same tree as the recording");
        deep += u32::from(finished.max_depth.0 > 0);
    }
    assert!(deep >= 4, "only {deep} of 12 trees delegate");
}

#[test]
fn a_rollout_restored_after_any_event_goes_on_as_it_did() {
    let bench = Bench::new(config());
    for (script, count) in [(Script::Oracle, 2), (Script::Noisy, 6)] {
        for task in bench.tasks(count) {
            let (events, tree) = bench.record(&task, &mut bench.scripted(script), &[]);
            for cut in 1..events.len() {
                let (again, tree_again) = bench.record(&task, &mut bench.scripted(script), &events[..cut]);
                same(&again, &events, &format!("restored after event {cut} of {}", task.id));
                assert_eq!(tree_again, tree);
            }
        }
    }
}

#[test]
fn a_rollout_is_the_same_alone_and_among_others() {
    let bench = Bench::new(config());
    let tasks = bench.tasks(6);
    let alone: Vec<_> =
        tasks.iter().map(|task| bench.record(task, &mut bench.scripted(Script::Noisy), &[]).0).collect();
    let mut actor = bench.scripted(Script::Noisy);
    let mut written = Vec::new();
    let mut rollouts = Vec::new();
    for (ordinal, task) in (0..).zip(&tasks) {
        let (parts, events) = bench.parts(task, ordinal, &[]);
        written.push(events);
        rollouts.push(Rollout::start(parts, bench.started(task, actor.identity())).unwrap());
    }
    bench.run(rollouts, &mut actor);
    for (together, alone) in written.iter().zip(&alone) {
        same(&together.lock().unwrap(), alone, "among others");
    }
}

/// Notes every row that it is asked with.
struct Rows {
    played: Played,
    seen: Vec<Vec<u64>>,
}

impl Actor for Rows {
    fn identity(&self) -> PolicyIdentity {
        self.played.identity()
    }

    fn chat(&self) -> &Arc<Chat> {
        self.played.chat()
    }

    fn act(&mut self, batch: &[Ask<'_>]) -> Result<Vec<Action>, EngineError> {
        self.seen.push(batch.iter().map(|ask| ask.row).collect());
        self.played.act(batch)
    }

    fn release(&mut self, _row: u64) {}
}

#[test]
fn nodes_never_share_a_row_even_after_others_ended() {
    let bench = Bench::new(config());
    let task = bench.tasks(1).remove(0);
    let item = craftable(&task);
    let three = leak(format!("await asyncio.gather(*[launch_subagent({{'{item}': 1}}) for _ in range(3)])"));
    let cells: [(&str, &[&str]); 2] = [("0", &[three, three]), ("0.1", &["x = 1", "x = 2", "x = 3"])];
    let mut actor = Rows { played: played(&cells), seen: Vec::new() };
    bench.record(&task, &mut actor, &[]);
    for batch in &actor.seen {
        let mut rows = batch.clone();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), batch.len(), "two nodes of a batch have the same row: {batch:?}");
    }
    let mut all: Vec<u64> = actor.seen.concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 7, "the root and six children have a row each");
}

fn craftable(task: &Task) -> String {
    let targets = task.body.get("targets").unwrap();
    let text = targets.to_string();
    let name = text.split('"').nth(1).unwrap();
    name.to_owned()
}

fn leak(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

#[test]
fn answers_reach_the_calls_that_asked_for_them() {
    let bench = Bench::new(config());
    let task = bench.tasks(1).remove(0);
    let item = craftable(&task);
    let twice = leak(format!(
        "a = await launch_subagent({{'{item}': 1}})\nb, c = await asyncio.gather(launch_subagent({{'{item}': 1}}), \
         launch_subagent({{'{item}': 1}}))\nprint(a, b, c)"
    ));
    let mut actor = played(&[
        ("0", &[twice, "finish('root')"]),
        ("0.0", &["finish('first')"]),
        // The second child needs longer than the third, so its answer comes in a later group.
        ("0.1", &["x = 1", "finish('second')"]),
        ("0.2", &["finish('third')"]),
    ]);
    let (events, tree) = bench.record(&task, &mut actor, &[]);
    let output = tree.root().unwrap().steps[0].output.clone().unwrap();
    assert_eq!((output.stdout.as_str(), output.error), ("first second third\n", None));
    assert_eq!(tree.root().unwrap().steps[0].resumes, [vec![0], vec![2], vec![1]]);
    assert_eq!(tree.len(), 4);
    let answered = events.iter().filter(|e| matches!(&e.body, Body::CallAnswered(a) if a.answers.len() == 1)).count();
    assert!(answered >= 3);
}

#[test]
fn a_cell_that_ends_cancels_what_it_left_running() {
    let bench = Bench::new(config());
    let task = bench.tasks(1).remove(0);
    let item = craftable(&task);
    let raise = leak(format!(
        "async def boom():\n    raise ValueError('now')\ntry:\n    await asyncio.gather(launch_subagent({{'{item}': 1}}), boom())\nexcept ValueError as e:\n    print('caught', e)"
    ));
    let mut actor = played(&[("0", &[raise, "finish('done')"]), ("0.0", &["x = 1", "y = 2", "finish('late')"])]);
    let (_, tree) = bench.record(&task, &mut actor, &[]);
    let child = tree.node(&NodePath::root().child(0)).unwrap();
    assert_eq!(child.outcome, Some(Outcome::Cancelled));
    assert_eq!(child.success(), Some(0.0));
    assert_eq!(tree.root().unwrap().outcome, Some(Outcome::Finished));
}

#[test]
fn refusals_make_no_node_and_come_back_as_text() {
    let bench = Bench::new(EngineConfig { max_depth: 1, max_nodes: 2, ..config() });
    let task = bench.tasks(1).remove(0);
    let item = craftable(&task);
    let launch = leak(format!("print(await launch_subagent({{'{item}': 1}}))"));
    let bad = "print(await launch_subagent({'no_such_item': 1}))\nprint(await launch_subagent({}))";
    let mut actor = played(&[("0", &[launch, bad, launch]), ("0.0", &[launch])]);
    let (events, tree) = bench.record(&task, &mut actor, &[]);
    assert_eq!(tree.len(), 2);
    let reasons: Vec<RefusalReason> = events
        .iter()
        .filter_map(|e| if let Body::SpawnRefused(refused) = &e.body { Some(refused.reason) } else { None })
        .collect();
    let expected = [RefusalReason::Depth, RefusalReason::Goal, RefusalReason::Goal, RefusalReason::Nodes];
    assert_eq!(reasons, expected);
    let shown = &tree.root().unwrap().steps[1].output.as_ref().unwrap().stdout;
    assert!(shown.starts_with("Error: unknown item no_such_item"), "{shown}");
}

#[test]
fn a_shared_budget_is_split_and_what_is_unused_returns() {
    let bench = Bench::new(EngineConfig { budget: BudgetModel::Shared, max_steps: 10, ..config() });
    let task = bench.tasks(1).remove(0);
    let item = craftable(&task);
    let big = leak(format!("print(await launch_subagent({{'{item}': 1}}, num_steps=9))"));
    let fair = leak(format!("print(await launch_subagent({{'{item}': 1}}, num_steps=4))"));
    // Step 1 of 10: nine remain, and a child of nine would need ten.
    let mut actor = played(&[("0", &[big, fair, fair, fair])]);
    let (events, tree) = bench.record(&task, &mut actor, &[]);
    let refused = events.iter().filter(|e| matches!(e.body, Body::SpawnRefused(_))).count();
    // 1 step and 4 + 1 for a child leave 3 of 8 if nothing returns; children that use one step make room for a second.
    assert_eq!((refused, tree.len()), (2, 3), "children that use one step of four give the rest back");
    assert!(tree.nodes().skip(1).all(|child| child.budget == 4));
}

#[test]
fn nodes_end_by_steps_by_loops_and_by_their_window() {
    let bench = Bench::new(config());
    let task = bench.tasks(1).remove(0);
    let mut actor = played(&[("0", &["x=1", "x=2", "x=3", "x=4", "x=5", "x=6", "x=7", "x=8", "x=9"])]);
    let (_, tree) = bench.record(&task, &mut actor, &[]);
    assert_eq!(tree.root().unwrap().outcome, Some(Outcome::OutOfSteps));
    assert_eq!(tree.root().unwrap().steps.len(), 8);

    let mut actor = played(&[("0", &["x=1", "print(1)", "print(1)", "print(1)", "print(1)"])]);
    let (_, tree) = bench.record(&task, &mut actor, &[]);
    assert_eq!(tree.root().unwrap().outcome, Some(Outcome::Stuck));

    let narrow = Bench::new(EngineConfig { context: 700, ..config() });
    let mut actor = played(&[("0", &["print('a' * 900)"])]);
    let (_, tree) = narrow.record(&task, &mut actor, &[]);
    assert_eq!(tree.root().unwrap().outcome, Some(Outcome::ContextOverflow));
    assert_eq!(tree.finished.unwrap().success, 0.0);
}

#[test]
fn a_cell_that_hits_a_limit_leaves_the_node_and_its_variables_as_before() {
    let cell = CellLimits { time_ms: 150, ..CellLimits::default() };
    let bench = Bench::new(EngineConfig { cell, ..config() });
    let task = bench.tasks(1).remove(0);
    let mut actor = played(&[("0", &["x = 1", "x = 2\nwhile True:\n    pass", "print(x)", "finish(x)"])]);
    let (events, tree) = bench.record(&task, &mut actor, &[]);
    let root = tree.root().unwrap();
    assert!(root.steps[1].output.as_ref().unwrap().limit.is_some());
    assert_eq!(root.steps[2].output.as_ref().unwrap().stdout, "1\n");
    let value = events.iter().rev().find_map(|e| match &e.body {
        Body::CallAnswered(answered) => answered.answers.first().map(|(_, answer)| answer.clone()),
        _ => None,
    });
    assert_eq!(value, Some(Answer::Value("1".into())));
}
