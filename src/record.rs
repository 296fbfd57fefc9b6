//! `rao-log record`: rollouts of a policy into the log.

use std::time::Instant;

use clap::Args;
use rao_engine::record::Recorded;
use rao_envs::Split;
use rao_store::{Durability, EventSource, RolloutId};
use serde_json::{Value, json};

use crate::shared::args::{
    BatchArgs, EngineArgs, JsonArgs, LogArgs, PolicyArgs, TaskArgs, ThreadArgs, WidthArgs, rollout_number,
};
use crate::shared::exit::Failure;
use crate::shared::forks;
use crate::shared::open;
use crate::shared::out::{Out, plural};
use crate::shared::recording::{self, Choices};

/// Tasks where no number is given.
pub(crate) const TASKS: usize = 8;

/// Record rollouts of a policy: every event goes into the log as it happens.
#[derive(Args, Debug)]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    tasks: TaskArgs,
    #[command(flatten)]
    batch: BatchArgs,
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// Record only these rollouts of the plan, by number (TASK * GROUP + MEMBER).
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = rollout_number)]
    only: Option<Vec<RolloutId>>,
    /// Go on with an interrupted run; the log knows its tasks, policy and settings.
    #[arg(long, value_name = "RUN", conflicts_with = "only")]
    resume: Option<String>,
    /// When events are safe from a machine that stops: durable (before anything rests on them), relaxed:MS (at most MS
    /// milliseconds later) or end (with the run's end) [default: durable]. A resumed run keeps its own.
    #[arg(long, value_name = "MODE")]
    durability: Option<Durability>,
    #[command(flatten)]
    width: WidthArgs,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    json: JsonArgs,
}

/// Runs the command.
pub(crate) fn run(args: &RecordArgs, out: &mut Out) -> Result<(), Failure> {
    args.threads.apply();
    let begin = Instant::now();
    let width = usize::from(args.width.width);
    let (log, mut setup, resume) = match &args.resume {
        Some(name) => {
            let (log, run) = open::resumed(&args.log.log, name, args.durability)?;
            let setup = match forks::noted_base(&*log, run)? {
                Some(base) => {
                    let (data, policy, python) = (&args.tasks.data, &args.policy, &args.engine.python);
                    forks::resume(&log, run, base, forks::Means { data, policy, python, width })?
                }
                None => {
                    recording::resume_setup(&*log, run, &args.tasks.data, &args.policy, &args.engine.python, width)?
                }
            };
            (log, setup, Some(run))
        }
        None => {
            let choices = Choices {
                tasks: TASKS,
                split: Split::Train,
                temperature: 1.0,
                group: args.batch.group,
                only: args.only.clone(),
                width,
            };
            // Everything is checked before the log is touched.
            let setup = recording::setup(&args.tasks, &args.engine, &args.policy, choices)?;
            let log = open::writer_with(&args.log.log, args.durability.unwrap_or_default())?;
            (log, setup, None)
        }
    };
    let recorded = recording::run(&log, &mut setup, resume)?;
    let seconds = begin.elapsed().as_secs_f64();
    if args.json.json {
        out.json(&to_json(&recorded, seconds));
    } else {
        report(out, &*log, &recorded, seconds);
        let id = open::short(&*log, recorded.run);
        let log_flag = log_flag(&args.log);
        out.line("");
        out.line(format_args!("next: rao-log show {id}/0{log_flag}    one rollout's tree ({id} alone lists them all)"));
        out.line(format_args!("      rao-log replay {id}{log_flag}    run it again and compare every event"));
    }
    open::close(log)
}

/// `--log DIR` where it is not the default, to be put behind a command that is suggested.
pub(crate) fn log_flag(log: &LogArgs) -> String {
    let path = log.log.display().to_string();
    if path == "rao-log-data" { String::new() } else { format!(" --log {path}") }
}

/// Mean own success of the roots.
pub(crate) fn rate(recorded: &Recorded) -> f64 {
    if recorded.rollouts == 0 { 0.0 } else { recorded.success / f64::from(recorded.rollouts) }
}

/// The JSON object that others rely on.
pub(crate) fn to_json(recorded: &Recorded, seconds: f64) -> Value {
    json!({
        "run": recorded.run.to_string(),
        "rollouts": recorded.rollouts,
        "events": recorded.events,
        "content_digest": recorded.content.to_string(),
        "solved": recorded.solved,
        "success": rate(recorded),
        "nodes": recorded.nodes,
        "steps": recorded.steps,
        "tokens": recorded.tokens,
        "seconds": seconds,
    })
}

/// The report for people.
pub(crate) fn report(out: &mut Out, source: &dyn EventSource, recorded: &Recorded, seconds: f64) {
    out.line(format_args!("run       {}", open::short(source, recorded.run)));
    let (rollouts, solved) = (recorded.rollouts, recorded.solved);
    out.line(format_args!("rollouts  {rollouts}, {solved} of them solved (success {:.3})", rate(recorded)));
    let (nodes, steps) = (plural(recorded.nodes, "node"), plural(recorded.steps, "step"));
    out.line(format_args!("work      {nodes}, {steps}, {} generated", plural(recorded.tokens, "token")));
    out.line(format_args!("events    {} in {seconds:.1} s", recorded.events));
    out.line(format_args!("content   {}", recorded.content));
}
