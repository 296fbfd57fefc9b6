//! `rao-log eval`: success by difficulty, greedy.

use std::collections::BTreeMap;
use std::time::Instant;

use clap::Args;
use rao_envs::Split;
use rao_replay::spread::{Spread, wilson};
use rao_store::event::{Body, Kind, RolloutFinished};
use rao_store::{EventSource, Filter, RunId, Seq, Stream};
use serde_json::{Value, json};

use crate::shared::args::{EngineArgs, JsonArgs, LogArgs, PolicyArgs, TaskArgs, ThreadArgs, WidthArgs};
use crate::shared::exit::Failure;
use crate::shared::open;
use crate::shared::out::Out;
use crate::shared::recording::{self, Choices};
use crate::shared::table::Table;

/// Tasks where no number is given.
const TASKS: usize = 100;

/// Evaluate a policy: greedy, one rollout for each task, success by difficulty with 95 % Wilson intervals. The rollouts
/// are recorded as a run of their own.
#[derive(Args, Debug)]
pub(crate) struct EvalArgs {
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    tasks: TaskArgs,
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    width: WidthArgs,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    json: JsonArgs,
}

/// Runs the command.
pub(crate) fn run(args: &EvalArgs, out: &mut Out) -> Result<(), Failure> {
    args.threads.apply();
    let begin = Instant::now();
    let choices = Choices {
        tasks: TASKS,
        split: Split::Val,
        temperature: 0.0,
        group: 1,
        only: None,
        width: usize::from(args.width.width),
    };
    let mut setup = recording::setup(&args.tasks, &args.engine, &args.policy, choices)?;
    let log = open::writer(&args.log.log)?;
    let recorded = recording::run(&log, &mut setup, None)?;
    let rows = by_difficulty(&*log, recorded.run)?;
    let seconds = begin.elapsed().as_secs_f64();
    if args.json.json {
        out.json(&json!({
            "run": recorded.run.to_string(),
            "policy": setup.actor.identity().name,
            "content_digest": recorded.content.to_string(),
            "seconds": seconds,
            "difficulties": rows.iter().map(Row::to_json).collect::<Vec<Value>>(),
        }));
    } else {
        let headings =
            ["difficulty", ">tasks", ">solved", ">rate", "95 % interval", ">depth", ">nodes", ">steps", ">tokens"];
        let mut table = Table::new(&headings);
        for row in &rows {
            table.row(row.cells());
        }
        table.print(out);
        // Where answers can be right in part, solved says less than the score.
        let graded: Vec<String> = rows
            .iter()
            .filter(|row| (row.mean_score() - row.rate()).abs() > 1e-9)
            .map(|row| format!("{} {:.3}", row.difficulty, row.mean_score()))
            .collect();
        if !graded.is_empty() {
            out.line(format_args!("mean score, answers right in part counted so: {}", graded.join(", ")));
        }
        let name = setup.actor.identity().name;
        out.line(format_args!(
            "run {} of {name}, {seconds:.1} s; depth to tokens are means",
            open::short(&*log, recorded.run)
        ));
    }
    open::close(log)
}

/// Success and effort of one difficulty's rollouts.
#[derive(Default)]
pub(crate) struct Row {
    difficulty: String,
    tasks: u64,
    successes: u64,
    /// The sum of the roots' own success, which may lie between 0 and 1.
    score: f64,
    depth: Spread,
    nodes: Spread,
    steps: Spread,
    tokens: Spread,
}

pub(crate) fn by_difficulty(source: &dyn EventSource, run: RunId) -> Result<Vec<Row>, Failure> {
    // In the order in which difficulties first occur.
    let (mut order, mut rows) = (Vec::new(), BTreeMap::<String, Row>::new());
    for rollout in open::rollouts(source, run) {
        let filter = Filter::kinds([Kind::RolloutStarted, Kind::RolloutFinished]);
        let mut difficulty = String::new();
        for event in source.events(Stream::Rollout(run, rollout), Seq(0), &filter) {
            match event?.body {
                Body::RolloutStarted(started) => difficulty = started.difficulty,
                Body::RolloutFinished(end) => {
                    if !rows.contains_key(&difficulty) {
                        order.push(difficulty.clone());
                    }
                    rows.entry(difficulty.clone()).or_default().add(&difficulty, &end);
                }
                _ => {}
            }
        }
    }
    Ok(order.iter().filter_map(|difficulty| rows.remove(difficulty)).collect())
}

impl Row {
    fn add(&mut self, difficulty: &str, end: &RolloutFinished) {
        difficulty.clone_into(&mut self.difficulty);
        self.tasks += 1;
        self.successes += u64::from(end.success >= 1.0);
        self.score += end.success;
        self.depth.add(u64::from(end.max_depth.0));
        self.nodes.add(u64::from(end.nodes));
        self.steps.add(u64::from(end.steps));
        self.tokens.add(end.tokens);
    }

    pub(crate) fn difficulty(&self) -> &str {
        &self.difficulty
    }

    /// Solved rollouts, and all of them.
    pub(crate) fn solved(&self) -> (u64, u64) {
        (self.successes, self.tasks)
    }

    /// Depth, nodes, steps and tokens.
    pub(crate) fn efforts(&self) -> [(&'static str, Spread); 4] {
        [("depth", self.depth), ("nodes", self.nodes), ("steps", self.steps), ("tokens", self.tokens)]
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    fn rate(&self) -> f64 {
        self.successes as f64 / self.tasks.max(1) as f64
    }

    /// Mean own success of the roots.
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    fn mean_score(&self) -> f64 {
        self.score / self.tasks.max(1) as f64
    }

    pub(crate) fn cells(&self) -> [String; 9] {
        let (low, high) = wilson(self.successes, self.tasks);
        let mean = |spread: Spread| format!("{:.1}", spread.mean());
        [
            self.difficulty.clone(),
            self.tasks.to_string(),
            self.successes.to_string(),
            format!("{:.3}", self.rate()),
            format!("{low:.3} to {high:.3}"),
            mean(self.depth),
            mean(self.nodes),
            mean(self.steps),
            mean(self.tokens),
        ]
    }

    pub(crate) fn to_json(&self) -> Value {
        let (low, high) = wilson(self.successes, self.tasks);
        json!({
            "difficulty": self.difficulty,
            "tasks": self.tasks,
            "successes": self.successes,
            "rate": self.rate(),
            "mean_score": self.mean_score(),
            "low": low,
            "high": high,
            "mean_depth": self.depth.mean(),
            "mean_nodes": self.nodes.mean(),
            "mean_steps": self.steps.mean(),
            "mean_tokens": self.tokens.mean(),
        })
    }
}
