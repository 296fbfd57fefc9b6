//! A text of 20 MB through three levels, in several ways. What is measured is the greatest size of a process, so every way is
//! tried in a process of its own: this program, started again for the one test.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;

use rao_engine::repl::Monty;
use rao_engine::{Actor, EngineError, Live, Parts, Rollout, Sink, Tree, rounds};
use rao_policy::Chat;
use rao_store::event::{Body, Context, RolloutStarted};
use rao_store::{EventSource, Filter, RolloutId, RunId, Seq, Stream};
use rao_testkit::long_text::{LongText, SPLIT, SPLIT_NODES, agents, alone, growth};
use rao_testkit::{RUN, open, record_in, resume_in};

const TEXT: usize = 20_000_000;

/// As [`SPLIT`], one piece after the other.
const ONE_BY_ONE: &str = "size = len(context) // 7 + 1\ntotal = 0\nfor at in range(0, len(context), size):\n    total \
                          += await launch_subagent('Measure.', context[at:at + size])\nfinish(total)";

/// As [`SPLIT`], but the cell keeps its pieces while it waits.
const KEPT: &str = "size = len(context) // 7 + 1\npieces = [context[at:at + size] for at in range(0, len(context), \
                    size)]\nparts = await asyncio.gather(*[launch_subagent('Measure.', piece) for piece in \
                    pieces])\nfinish(sum(parts))";

/// Hands on all of it.
const WHOLE: &str = "finish(await launch_subagent('Measure.', context))";

/// Hands on all of it to three at once.
const THRICE: &str = "parts = await asyncio.gather(*[launch_subagent('Measure.', context) for _ in range(3)])\n\
                      finish(parts[0] if parts[0] == parts[1] == parts[2] else -1)";

/// Looks at what would be written, as a log does with its events, and keeps nothing.
struct Looking;

impl Sink for Looking {
    fn emit(&mut self, _seq: Seq, body: &Body) -> Result<(), EngineError> {
        if !matches!(body, Body::NodeSpawned(root) if root.call.is_none()) {
            let written = body.encode().unwrap().len();
            assert!(written < 4_000, "pieces are written as places: {written} bytes of {}", body.kind().name());
        }
        Ok(())
    }

    fn hand_on(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn settle(&mut self) -> Result<(), EngineError> {
        Ok(())
    }
}

fn run(world: &LongText, cell: &'static str) -> Tree {
    let (config, task, mut actor) = (world.plan.config.clone(), &world.plan.tasks[0], agents(cell));
    let episode = world.plan.env.open(task).unwrap();
    let parts = Parts {
        stream: Stream::Rollout(RunId([0; 16]), RolloutId(0)),
        config: config.clone(),
        outside: Box::new(Live::new(episode, Arc::new(Chat::bytes().unwrap()), config)),
        repl: Arc::new(Monty::new()),
        sink: Box::new(Looking),
        ordinal: 0,
    };
    let started = RolloutStarted {
        task_id: task.id.clone(),
        difficulty: "1ep".into(),
        task: "{}".into(),
        group: 0,
        member: 0,
        seed: 1,
        policy: actor.identity(),
        fork_base: None,
    };
    let mut queue = vec![Rollout::start(parts, started)].into_iter();
    let mut trees: Vec<Tree> = Vec::new();
    let watch = &mut |_| std::ops::ControlFlow::Continue(());
    rounds::run(&mut queue, 1, &mut actor, watch, &mut |rollout| trees.push(rollout.tree().clone())).unwrap();
    trees.remove(0)
}

/// Everything that is there once, whatever the text: the interpreter's thread, its first session.
fn warm_up() {
    let folder = tempfile::tempdir().unwrap();
    run(&LongText::new(folder.path(), 20_000), SPLIT);
}

/// Runs agents that do as `cell` says; how many times the text's size the memory grew at most, beside the text itself.
fn grown(cell: &'static str, nodes: usize) -> f64 {
    warm_up();
    let folder = tempfile::tempdir().unwrap();
    let world = LongText::new(folder.path(), TEXT);
    // What reading the row takes is not what is measured.
    let held = world.plan.env.open(&world.plan.tasks[0]).unwrap();
    let chars = held.root_goal().context.chars().count();
    let (grown, tree) = growth(|| run(&world, cell));
    drop(held);
    let (root, bytes) = (tree.root().unwrap(), world.bytes);
    assert_eq!(root.finish.as_deref(), Some(chars.to_string().as_str()), "nothing is lost on the way");
    assert!(tree.len() == nodes && tree.nodes().all(|node| node.context_text.shares(&root.context_text)));
    let factor = grown as f64 / bytes as f64;
    println!("{bytes} bytes of text, {nodes} nodes: memory grew by at most {factor:.2} times the text");
    factor
}

#[test]
fn memory_grows_by_no_copy_per_level() {
    for test in ["split", "one_by_one", "kept", "whole", "thrice"] {
        alone(test, &[]);
    }
}

#[test]
fn a_log_holds_the_text_once() {
    alone("recorded", &[]);
}

// A cell needs its text, which the interpreter holds as a string of its own, and the piece that it is handing on, once in the
// interpreter and once on the way out. Nobody else holds a copy: who waits rests.

#[test]
#[ignore = "measures a process: run by `memory_grows_by_no_copy_per_level`"]
fn split() {
    let factor = grown(SPLIT, SPLIT_NODES);
    assert!(factor < 1.6, "{factor}");
}

#[test]
#[ignore = "measures a process: run by `memory_grows_by_no_copy_per_level`"]
fn one_by_one() {
    let factor = grown(ONE_BY_ONE, SPLIT_NODES);
    assert!(factor < 1.6, "{factor}");
}

/// The cell itself makes a second copy, piece by piece, and a piece is on its way out beside that.
#[test]
#[ignore = "measures a process: run by `memory_grows_by_no_copy_per_level`"]
fn kept() {
    let factor = grown(KEPT, SPLIT_NODES);
    assert!(factor < 2.4, "{factor}");
}

#[test]
#[ignore = "measures a process: run by `memory_grows_by_no_copy_per_level`"]
fn whole() {
    let factor = grown(WHOLE, 3);
    assert!(factor < 2.2, "{factor}");
}

#[test]
#[ignore = "measures a process: run by `memory_grows_by_no_copy_per_level`"]
fn thrice() {
    let factor = grown(THRICE, 13);
    assert!(factor < 2.2, "{factor}");
}

fn bytes_under(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let size = |path: &Path| if path.is_dir() { bytes_under(path) } else { path.metadata().unwrap().len() };
    entries.map(|entry| size(&entry.path())).sum()
}

#[test]
#[ignore = "measures a process: run by `a_log_holds_the_text_once`"]
fn recorded() {
    warm_up();
    let folder = tempfile::tempdir().unwrap();
    let world = LongText::new(folder.path(), TEXT);
    let held = world.plan.env.open(&world.plan.tasks[0]).unwrap();
    let chars = held.root_goal().context.chars().count();
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let times = |bytes: usize| bytes as f64 / world.bytes as f64;
    let (grown, recorded) = growth(|| record_in(&log, &world.plan, &mut agents(SPLIT)));
    let (grown, written) = (times(grown), times(bytes_under(dir.path()) as usize));
    println!("recorded: memory grew by at most {grown:.2} times the text; the log has {written:.3} times the text");
    assert!(grown < 2.6, "{grown}");
    assert!(written < 1.05, "{written}");

    let stream = Stream::Rollout(RUN, RolloutId(0));
    let events: Vec<_> = log.events(stream, Seq(0), &Filter::all()).map(Result::unwrap).collect();
    let is_place =
        |body: &Body| matches!(body, Body::NodeSpawned(node) if matches!(node.context, Context::Piece { .. }));
    assert_eq!(events.iter().filter(|event| is_place(&event.body)).count(), SPLIT_NODES - 1);
    let tree = Tree::fold(&events).unwrap();
    let root = tree.root().unwrap();
    assert_eq!(root.finish.as_deref(), Some(chars.to_string().as_str()));
    assert!(tree.nodes().all(|node| node.context_text.shares(&root.context_text)));

    // Taken up in the middle, it goes on as it went on.
    let half = events.len() / 2;
    let copy = tempfile::tempdir().unwrap();
    let bodies: Vec<Body> = events.iter().take(half).map(|event| event.body.clone()).collect();
    let copied = rao_testkit::copied(&*log, copy.path(), &bodies);
    drop((events, bodies, tree));
    let (grown, resumed) = growth(|| resume_in(&copied, RUN, &world.plan, &mut agents(SPLIT)));
    let grown = times(grown);
    println!("resumed at event {half}: memory grew by at most {grown:.2} times the text");
    assert_eq!(resumed.content, recorded.content);
    assert!(grown < 3.6, "{grown}");
    drop(held);
}
