//! A text of 20 MB through three levels. In a process of its own, whose greatest size is what is measured.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use rao_engine::repl::{CellLimits, Monty};
use rao_engine::{Actor, EngineConfig, EngineError, Live, Parts, Rollout, Sink, Tree, rounds};
use rao_envs::oolong::{Oolong, OolongConfig};
use rao_envs::{Environment, Selection, Split};
use rao_policy::Chat;
use rao_store::event::{Body, RolloutStarted};
use rao_store::{RolloutId, RunId, Seq, Stream};
use rao_testkit::{Played, config};
use serde_json::json;

const TEXT: usize = 20_000_000;

/// Bytes of this process's memory: now, and at most so far.
fn memory() -> (usize, usize) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| -> usize {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
    };
    (field("VmRSS:"), field("VmHWM:"))
}

/// Counts what would be written, as a log does with its events, and keeps nothing.
struct Counting(u64);

impl Sink for Counting {
    fn emit(&mut self, _seq: Seq, body: &Body) -> Result<(), EngineError> {
        if let Body::CallIssued(call) = body {
            self.0 += call.args.len() as u64;
            assert!(call.args.len() < 2_000, "pieces are written as places");
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

/// Agents of the first two levels hand on their text in pieces; those of the third measure theirs.
fn splitting() -> Played {
    Played::new(|ask| {
        let split = "size = len(context) // 7 + 1\nparts = await asyncio.gather(*[launch_subagent('Measure.', \
                     context[at:at + size]) for at in range(0, len(context), size)])\nfinish(sum(parts))";
        if ask.node.ordinals().len() == 3 { "finish(len(context))" } else { split }.to_owned()
    })
}

#[test]
fn a_text_of_20_mb_goes_through_three_levels_without_many_copies() {
    let folder = tempfile::tempdir().unwrap();
    let text: String =
        (0..).map(|n| format!("Speaker: this is line {n} of a very long text, n\u{e9}.\n")).take(TEXT / 58).collect();
    let row = json!({"id": "a", "context_window_id": "w", "context_window_text": text, "question": "How long?",
        "answer": "1", "question_type": "x", "episodes": [1], "campaign": "campaign2"});
    let length = text.chars().count();
    let bytes = text.len();
    std::fs::write(folder.path().join("rows.jsonl"), format!("{row}\n")).unwrap();
    drop((text, row));

    let data = Some(folder.path().to_owned());
    let env = Oolong::new(OolongConfig { data, max_context: u64::MAX, ..OolongConfig::default() }).unwrap();
    let selection = Selection { presets: vec!["1ep".into()], split: Split::Train, count: Some(1), seed: 1 };
    let task = env.tasks(&selection).unwrap().remove(0);
    let chat = Arc::new(Chat::bytes().unwrap());
    let cell = CellLimits { time_ms: 60_000, ..CellLimits::default() };
    let config = EngineConfig { max_depth: 2, cell, ..config() };
    let stream = Stream::Rollout(RunId([0; 16]), RolloutId(0));
    let episode = env.open(&task).unwrap();

    // What reading the row took at most is not what is measured.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let (before, _) = memory();
    let parts = Parts {
        stream,
        config: config.clone(),
        outside: Box::new(Live::new(episode, chat, config)),
        repl: Arc::new(Monty::new()),
        sink: Box::new(Counting(0)),
        ordinal: 0,
    };
    let mut actor = splitting();
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
    let (_, most) = memory();

    let tree = trees.remove(0);
    let root = tree.root().unwrap();
    assert_eq!(root.finish.as_deref(), Some(length.to_string().as_str()), "nothing is lost on the way");
    assert!(tree.len() > 50 && tree.nodes().all(|node| node.context_text.shares(&root.context_text)));
    let factor = most.saturating_sub(before) as f64 / bytes as f64;
    println!("{bytes} bytes of text, {} nodes: memory grew by at most {factor:.2} times the text", tree.len());
    // Each level holds its pieces in its interpreters, and a cell holds those that it hands on.
    assert!(factor < 4.0, "{factor}");
}
