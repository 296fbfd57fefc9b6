//! `rao-log eval`: success by difficulty, greedy.

use std::collections::BTreeMap;
use std::time::Instant;

use clap::Args;
use rao_envs::Split;
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
/// The 97.5 % point of the normal distribution.
const Z: f64 = 1.959_963_984_540_054;

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
    depth: u64,
    nodes: u64,
    steps: u64,
    tokens: u64,
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
        self.depth += u64::from(end.max_depth.0);
        self.nodes += u64::from(end.nodes);
        self.steps += u64::from(end.steps);
        self.tokens += end.tokens;
    }

    pub(crate) fn difficulty(&self) -> &str {
        &self.difficulty
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    fn mean(&self, total: u64) -> f64 {
        total as f64 / self.tasks.max(1) as f64
    }

    pub(crate) fn cells(&self) -> [String; 9] {
        let (low, high) = wilson(self.successes, self.tasks);
        let mean = |total| format!("{:.1}", self.mean(total));
        [
            self.difficulty.clone(),
            self.tasks.to_string(),
            self.successes.to_string(),
            format!("{:.3}", self.mean(self.successes)),
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
            "rate": self.mean(self.successes),
            "low": low,
            "high": high,
            "mean_depth": self.mean(self.depth),
            "mean_nodes": self.mean(self.nodes),
            "mean_steps": self.mean(self.steps),
            "mean_tokens": self.mean(self.tokens),
        })
    }
}

/// The Wilson score interval of a proportion at 95 %.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
pub(crate) fn wilson(successes: u64, trials: u64) -> (f64, f64) {
    if trials == 0 {
        return (0.0, 1.0);
    }
    let n = trials as f64;
    let p = successes as f64 / n;
    let scale = 1.0 + Z * Z / n;
    let middle = (p + Z * Z / (2.0 * n)) / scale;
    let half = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt() / scale;
    ((middle - half).max(0.0), (middle + half).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wilson_intervals_are_those_of_the_tables() {
        // Newcombe (1998), Table I, method 3.
        for (successes, trials, low, high) in
            [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)]
        {
            let (l, h) = wilson(successes, trials);
            assert!((l - low).abs() < 5e-5 && (h - high).abs() < 5e-5, "{successes}/{trials}: {l} {h}");
        }
        assert_eq!(wilson(0, 0), (0.0, 1.0));
    }
}
