//! Judges, verdicts that wait for the root's, context variables and ancestors' goals, on a world made for it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use rao_engine::repl::{CellLimits, Cpython, CpythonOptions, Monty, ReplEngine};
use rao_engine::{Actor, EngineConfig, Live, Parts, Rollout, Tree, absorb, rounds};
use rao_envs::judge::{Exact, Panel, Role, Seat};
use rao_envs::{
    Args, Assessment, Ending, Episode, Goal, Judgement, NodeKey, PromptStyle, Question, Script, Text, Tool, ToolResult,
    Turn, Value,
};
use rao_policy::Chat;
use rao_store::event::{Body, Event, RolloutStarted, Verdict};
use rao_store::{RolloutId, RunId, Stream};
use rao_testkit::{Memory, Played, Written};
use serde_json::json;

const TEXT: &str = "one\ntwo é\nthree\n";

/// Count the lines of a text. The world knows the right count of a text that a goal names `exact`.
struct Lines;

impl Episode for Lines {
    fn root_goal(&self) -> Goal {
        Goal { text: "Count the lines.".into(), targets: json!("exact"), context: Text::from(TEXT) }
    }

    fn tools(&self) -> &'static [Tool] {
        &[]
    }

    fn system_prompt(&self, _style: PromptStyle, _recursive: bool) -> String {
        "Count.".into()
    }

    fn action_space(&self, _style: PromptStyle, _recursive: bool) -> String {
        String::new()
    }

    fn context_variable(&self) -> Option<&'static str> {
        Some("context")
    }

    fn enter(&mut self, _node: &NodeKey, _goal: &Goal) {}

    fn call(&mut self, _node: &NodeKey, tool: &str, _args: &Args) -> ToolResult {
        ToolResult::Raised { kind: "NameError".into(), message: tool.into() }
    }

    fn absorb(&mut self, _node: &NodeKey, _tool: &str, _args: &Args, _result: &ToolResult) {}

    fn delegate(&mut self, _node: &NodeKey, args: &Args) -> Result<Goal, String> {
        match args.args.as_slice() {
            [Value::Str(text), Value::Str(context), how] => {
                Ok(Goal { text: text.clone(), targets: how.to_json(), context: context.as_str().into() })
            }
            _ => Err("Error: a goal, a context and how it is judged".into()),
        }
    }

    fn verify(&mut self, node: &NodeKey, ending: &Ending<'_>) -> Assessment {
        if node.len() == 1 {
            let score = if ending.value == Some(&Value::Int(3)) { 0.75 } else { 0.0 };
            return Assessment::Judged(Judgement { score, source: "lines".into(), evidence: json!({}) });
        }
        let Some(value) = ending.value else {
            return Assessment::Judged(Judgement { score: 0.0, source: "lines".into(), evidence: json!({}) });
        };
        // Goals of two kinds: with a truth, and without.
        let truth = (node.last() == Some(&0)).then(|| "1".to_owned());
        Assessment::Ask(Box::new(Question {
            role: Role::Child,
            rubric: "oolong/child",
            goal: "count".into(),
            context: None,
            truth,
            aliases: Vec::new(),
            answer: Some(value.clone()),
            history: ending.history.to_vec(),
            error: None,
            notes: None,
        }))
    }

    fn scripted(&self, _script: Script, _turn: &Turn<'_>) -> String {
        String::new()
    }
}

fn config() -> EngineConfig {
    EngineConfig {
        max_tokens: 256,
        prompt: PromptStyle::Full,
        loop_guard: false,
        cell: CellLimits { time_ms: 20_000, ..CellLimits::default() },
        ancestors: true,
        ..rao_testkit::config()
    }
}

fn run(
    repl: &Arc<dyn ReplEngine>,
    panel: &Panel,
    cells: &[(&'static str, &[&'static str])],
    before: &[Event],
) -> (Vec<Event>, Tree) {
    let chat = Arc::new(Chat::bytes().unwrap());
    let cells: BTreeMap<&str, Vec<&str>> = cells.iter().map(|(node, cells)| (*node, cells.to_vec())).collect();
    let mut actor = Played::new(move |ask| cells[ask.node.to_string().as_str()][ask.step as usize].to_owned());
    let written: Written = Arc::new(Mutex::new(before.to_vec()));
    let stream = Stream::Rollout(RunId([0; 16]), RolloutId(0));
    let mut episode: Box<dyn Episode> = Box::new(Lines);
    absorb(&mut *episode, before).unwrap();
    let parts = Parts {
        stream,
        config: config(),
        outside: Box::new(Live::new(episode, chat, config()).with_panel(panel.clone())),
        repl: Arc::clone(repl),
        sink: Box::new(Memory { stream, written: Arc::clone(&written) }),
        ordinal: 0,
    };
    let started = RolloutStarted {
        task_id: "lines".into(),
        difficulty: "lines".into(),
        task: "{}".into(),
        group: 0,
        member: 0,
        seed: 1,
        policy: actor.identity(),
        fork_base: None,
    };
    let rollout = if before.is_empty() {
        Rollout::start(parts, started).unwrap()
    } else {
        Rollout::restore(parts, Tree::fold(before).unwrap()).unwrap()
    };
    let mut trees = Vec::new();
    let mut queue = vec![Ok(rollout)].into_iter();
    rounds::run(&mut queue, 1, &mut actor, &mut |_| ControlFlow::Continue(()), &mut |r| trees.push(r.tree().clone()))
        .unwrap();
    (written.lock().unwrap().clone(), trees.remove(0))
}

const CELLS: &[(&str, &[&str])] = &[
    (
        "0",
        &[
            "a, b, c = await asyncio.gather(*[launch_subagent(f'Count line {n}.', line, n) for n, line in enumerate(context.splitlines())])\nprint(a, b, c)",
            "context = context[:3]\nfinish(len(context))",
        ],
    ),
    // Judged by its truth, but its child is not: its reward waits.
    ("0.0", &["x = await launch_subagent('a', 'k', 0)\ny = await launch_subagent('b', 'm', 1)\nfinish(1)"]),
    ("0.0.0", &["finish('two')"]),
    ("0.0.1", &["finish(len(context))"]),
    ("0.1", &["print(context[-1])", "finish(context)"]),
    ("0.2", &["raise ValueError(context)"; 8]),
];

fn verdicts(events: &[Event]) -> Vec<&Verdict> {
    events
        .iter()
        .filter_map(|event| if let Body::Verdict(verdict) = &event.body { Some(verdict) } else { None })
        .collect()
}

#[test]
fn verdicts_wait_for_the_root_and_answers_do_not() {
    let repl: Arc<dyn ReplEngine> = Arc::new(Monty::new());
    let panel = Panel::new(Arc::new(Exact), Seat::Judge(Arc::new(Exact)));
    let (events, tree) = run(&repl, &panel, CELLS, &[]);
    let given: Vec<(String, &str, f64)> =
        verdicts(&events).iter().map(|v| (v.node.to_string(), v.source.as_str(), v.score)).collect();
    let expected = [
        // In a rollout of its own cells: as soon as each ends.
        ("0.0.0", "exact/oolong/child", 0.0),
        ("0.0", "exact/oolong/child", 1.0),
        ("0.2", "lines", 0.0),
        ("0", "lines", 0.75),
        // What has no truth gets the root's.
        ("0.0.1", "root", 0.75),
        ("0.1", "root", 0.75),
    ];
    assert_eq!(given, expected.map(|(node, source, score)| (node.to_owned(), source, score)));
    let rewards: Vec<(String, f64)> = events
        .iter()
        .filter_map(
            |event| if let Body::RewardAssigned(r) = &event.body { Some((r.node.to_string(), r.reward)) } else { None },
        )
        .collect();
    let root = 0.75 + 0.5 * ((1.0 + 0.75 + 0.0) / 3.0);
    let expected =
        [("0.0.0", 0.0), ("0.2", 0.0), ("0.0.1", 0.75), ("0.0", 1.0 + 0.5 * 0.375), ("0.1", 0.75), ("0", root)];
    assert_eq!(rewards, expected.map(|(node, reward)| (node.to_owned(), reward)));
    // The parent went on with its children's values long before.
    let shown = tree.root().unwrap().steps[0].output.clone().unwrap();
    assert_eq!(shown.stdout, "1 two é The subagent ran out of steps before it called finish.\n");
    assert_eq!(tree.finished.as_ref().unwrap().success, 0.75);
    let judge = verdicts(&events)[0].judge.clone().unwrap();
    assert_eq!(judge, r#"{"kind":"exact","template":"1"}"#);

    for cut in 1..events.len() {
        let (again, _) = run(&repl, &panel, CELLS, &events[..cut]);
        for (again, event) in again.iter().zip(&events) {
            assert_eq!(again.body, event.body, "restored after event {cut}: event {}", event.seq);
        }
        assert_eq!(again.len(), events.len());
    }
}

#[test]
fn both_interpreters_hold_the_context() {
    let panel = Panel::default();
    let monty: Arc<dyn ReplEngine> = Arc::new(Monty::new());
    let (embedded, tree) = run(&monty, &panel, CELLS, &[]);
    assert_eq!(tree.root().unwrap().finish.as_deref(), Some("3"));
    let Ok(cpython) = Cpython::new(CpythonOptions::default()) else {
        println!("skipped: this machine has no interpreter that can be locked in");
        return;
    };
    let cpython: Arc<dyn ReplEngine> = Arc::new(cpython);
    let (processes, _) = run(&cpython, &panel, CELLS, &[]);
    for (one, other) in embedded.iter().zip(&processes) {
        assert_eq!(one.body, other.body, "event {}", one.seq);
    }
    assert_eq!(embedded.len(), processes.len());
}

#[test]
fn prompts_show_the_goals_above() {
    let repl: Arc<dyn ReplEngine> = Arc::new(Monty::new());
    let (events, _) = run(&repl, &Panel::default(), CELLS, &[]);
    let prompt = events.iter().find_map(|event| match &event.body {
        Body::ContextExtended(more) if more.node.to_string() == "0.0.1" => Some(more.text.clone()),
        _ => None,
    });
    let prompt = prompt.unwrap();
    let expected = "# Task\nb\n\nThis is a part of larger tasks, the closest first:\nLevel 1: Count line 0.\nLevel 0: Count the lines.\n\nBudget";
    assert!(prompt.contains(expected), "{prompt}");
}
