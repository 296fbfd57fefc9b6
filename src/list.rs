//! `rao-log list`: the runs of a log.

use clap::Args;
use rao_store::event::{Body, ForkBase, Kind};
use rao_store::{EventSource, Filter, RunId, Seq, Stream};
use serde_json::{Value, json};

use crate::shared::args::{JsonArgs, LogArgs};
use crate::shared::exit::Failure;
use crate::shared::forks;
use crate::shared::open;
use crate::shared::out::{Out, utc};
use crate::shared::recording::stored_presets;
use crate::shared::table::Table;

/// List the runs of a log, recorded and training.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    json: JsonArgs,
}

struct RecordedRun {
    run: RunId,
    at_us: u64,
    policy: String,
    env: String,
    presets: String,
    finished: u64,
    planned: u64,
    success: f64,
    content: Option<String>,
    base: Option<ForkBase>,
}

struct TrainingRun {
    run: RunId,
    at_us: u64,
    loss: &'static str,
    of: Vec<RunId>,
    steps: u64,
    last_loss: Option<f64>,
    done: bool,
}

/// Runs the command.
pub(crate) fn run(args: &ListArgs, out: &mut Out) -> Result<(), Failure> {
    let source = open::reader(&args.log.log)?;
    let (mut recorded, mut training) = (Vec::new(), Vec::new());
    for run in source.runs() {
        if source.head(Stream::Run(run)).is_some() {
            recorded.push(read_run(&source, run)?);
        }
        if source.head(Stream::Training(run)).is_some() {
            training.push(read_training(&source, run)?);
        }
    }
    if args.json.json {
        let runs: Vec<Value> = recorded.iter().map(RecordedRun::to_json).collect();
        let trainings: Vec<Value> = training.iter().map(TrainingRun::to_json).collect();
        out.json(&json!({ "runs": runs, "trainings": trainings }));
        return Ok(());
    }
    if recorded.is_empty() && training.is_empty() {
        out.line(format_args!("{}: no runs yet; record one with `rao-log record`", args.log.log.display()));
        return Ok(());
    }
    print_recorded(out, &source, &recorded);
    if !training.is_empty() {
        out.line("");
        print_training(out, &source, &training);
    }
    Ok(())
}

fn print_recorded(out: &mut Out, source: &dyn EventSource, runs: &[RecordedRun]) {
    let mut table = Table::new(&["run", "started (UTC)", "policy", "tasks", ">rollouts", ">success", "content"]);
    for (lead, run) in as_tree(runs) {
        let from = run.base.as_ref().map_or(String::new(), |base| format!(" of {}#{}", base.rollout, base.seq));
        table.row([
            format!("{lead}{}{from}", open::short(source, run.run)),
            utc(run.at_us),
            run.policy.clone(),
            format!("{}/{}", run.env, run.presets),
            format!("{}/{}", run.finished, run.planned),
            format!("{:.3}", run.success),
            run.content.as_ref().map_or("unfinished".into(), |content| content.chars().take(12).collect()),
        ]);
    }
    table.print(out);
}

/// The runs in order, each followed by the runs of forks that left it, with what is drawn before its id.
fn as_tree(runs: &[RecordedRun]) -> Vec<(String, &RecordedRun)> {
    let is_root = |run: &&RecordedRun| run.base.as_ref().is_none_or(|base| runs.iter().all(|r| r.run != base.run));
    let mut rows = Vec::new();
    for run in runs.iter().filter(is_root) {
        rows.push((String::new(), run));
        add_forks(&mut rows, runs, run.run, "");
    }
    rows
}

fn add_forks<'a>(rows: &mut Vec<(String, &'a RecordedRun)>, runs: &'a [RecordedRun], base: RunId, below: &str) {
    let forks: Vec<&RecordedRun> =
        runs.iter().filter(|run| run.base.as_ref().is_some_and(|own| own.run == base)).collect();
    for (place, run) in forks.iter().enumerate() {
        let is_last = place + 1 == forks.len();
        let (branch, rest) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        rows.push((format!("{below}{branch}"), run));
        add_forks(rows, runs, run.run, &format!("{below}{rest}"));
    }
}

fn print_training(out: &mut Out, source: &dyn EventSource, runs: &[TrainingRun]) {
    let mut table = Table::new(&["training", "started (UTC)", "loss", "on", ">steps", ">last loss", "state"]);
    for run in runs {
        let of: Vec<String> = run.of.iter().map(|run| open::short(source, *run)).collect();
        let shown = if of.len() > 3 { format!("{} runs", of.len()) } else { of.join(", ") };
        table.row([
            open::short(source, run.run),
            utc(run.at_us),
            run.loss.to_owned(),
            shown,
            run.steps.to_string(),
            run.last_loss.map_or("-".into(), |loss| format!("{loss:.4}")),
            if run.done { "finished".into() } else { "unfinished".into() },
        ]);
    }
    table.print(out);
}

#[expect(clippy::cast_precision_loss, reason = "counts of rollouts are far below 2^53")]
fn read_run(source: &dyn EventSource, run: RunId) -> Result<RecordedRun, Failure> {
    let (started, host) = open::manifest(source, run)?;
    let at_us = source.headers(Stream::Run(run), Seq(0)).next().transpose()?.map_or(0, |header| header.at_us);
    let mut content = None;
    for event in source.events(Stream::Run(run), Seq(0), &Filter::kinds([Kind::RunFinished])) {
        if let Body::RunFinished(end) = event?.body {
            content = Some(end.content.to_string());
        }
    }
    let (mut finished, mut success) = (0u64, 0.0);
    for rollout in open::rollouts(source, run) {
        let filter = Filter::kinds([Kind::RolloutFinished]);
        for event in source.events(Stream::Rollout(run, rollout), Seq(0), &filter) {
            if let Body::RolloutFinished(end) = event?.body {
                finished += 1;
                success += end.success;
            }
        }
    }
    Ok(RecordedRun {
        run,
        at_us,
        policy: started.policy.name,
        env: started.env,
        presets: stored_presets(&host).unwrap_or_else(|| "?".into()),
        finished,
        planned: started.rollouts.len() as u64,
        success: if finished == 0 { 0.0 } else { success / finished as f64 },
        content,
        base: forks::base_of(source, run),
    })
}

fn read_training(source: &dyn EventSource, run: RunId) -> Result<TrainingRun, Failure> {
    let mut read = TrainingRun { run, at_us: 0, loss: "?", of: Vec::new(), steps: 0, last_loss: None, done: false };
    let filter = Filter::kinds([Kind::TrainStarted, Kind::TrainStep, Kind::TrainFinished]);
    for event in source.events(Stream::Training(run), Seq(0), &filter) {
        let event = event?;
        match event.body {
            Body::TrainStarted(started) => {
                read.at_us = event.at_us;
                read.loss = rao_replay::objective::name_of(started.loss);
                read.of = started.runs.iter().map(|(run, _)| *run).collect();
            }
            Body::TrainStep(step) => {
                read.steps += 1;
                read.last_loss = Some(step.loss);
            }
            Body::TrainFinished(_) => read.done = true,
            _ => {}
        }
    }
    Ok(read)
}

impl RecordedRun {
    fn to_json(&self) -> Value {
        json!({
            "run": self.run.to_string(),
            "started_us": self.at_us,
            "policy": self.policy,
            "env": self.env,
            "presets": self.presets,
            "rollouts": self.finished,
            "planned": self.planned,
            "success": self.success,
            "content_digest": self.content,
            "fork_base": self.base.as_ref().map(forks::address),
        })
    }
}

impl TrainingRun {
    fn to_json(&self) -> Value {
        let of: Vec<String> = self.of.iter().map(RunId::to_string).collect();
        json!({
            "training": self.run.to_string(),
            "started_us": self.at_us,
            "loss": self.loss,
            "runs": of,
            "steps": self.steps,
            "last_loss": self.last_loss,
            "finished": self.done,
        })
    }
}
