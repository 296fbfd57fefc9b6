//! `rao-log demo`: the whole loop in small.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use rao_engine::Tree;
use rao_envs::Split;
use rao_replay::check::{Check, Request};
use rao_replay::trainer::{Resources, Settings};
use rao_store::{EventSource, RolloutId, RunId, Seq};

use crate::record::{log_flag, report};
use crate::replay::{self, Replayed};
use crate::shared::args::{Count, DataArgs, LogArgs, PolicyArgs, PolicyName, ThreadArgs, demo_tasks, engine_defaults};
use crate::shared::credit;
use crate::shared::exit::Failure;
use crate::shared::metrics::Recorder;
use crate::shared::out::Out;
use crate::shared::recording::{self, Choices};
use crate::shared::repls::PythonArgs;
use crate::shared::training::{self, Telling};
use crate::shared::{open, policies};
use crate::show::print_tree;

/// Record a small batch with the built-in policy, replay it, train one step on it, and show a tree and its credit.
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// How many tasks.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
    tasks: u16,
    /// Rollouts of each task.
    #[arg(long, value_name = "G", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=1000))]
    group: u32,
    // With the default, rollouts of one group end differently, so that there is an advantage to look at.
    /// Seed of the tasks and of everything random.
    #[arg(long, value_name = "S", default_value_t = 18)]
    seed: u64,
    /// The checkpoint folder.
    #[arg(long, value_name = "DIR", default_value = "rao-log-checkpoint")]
    out: PathBuf,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    threads: ThreadArgs,
}

/// Runs the command.
pub(crate) fn run(args: &DemoArgs, out: &mut Out) -> Result<(), Failure> {
    args.threads.apply();
    training::check_out(&args.out)?;
    let begin = Instant::now();
    let policy = PolicyArgs { policy: Some(PolicyName::Mini), ..PolicyArgs::default() };
    let choices = Choices {
        tasks: usize::from(args.tasks),
        split: Split::Train,
        temperature: 1.0,
        group: args.group,
        only: None,
        width: 64,
    };
    let tasks = demo_tasks(Count::Some(usize::from(args.tasks)), args.seed);
    let mut setup = recording::setup_with(&tasks, &engine_defaults(), policies::load(&policy)?, choices)?;
    let log = open::writer(&args.log.log)?;
    out.line("1. record: the built-in policy `mini` crafts items, and may hand parts of the work to copies of itself");
    let recorded = recording::run(&log, &mut setup, None)?;
    report(out, &*log, &recorded, begin.elapsed().as_secs_f64());

    out.line("");
    out.line("2. replay: sample, run cells, craft and judge again, and compare every event with the log");
    let mut all = Replayed::default();
    let data = DataArgs { data: None };
    let nobody = PolicyArgs::default();
    let mut means = replay::means(&*log, recorded.run, Check::Tokens, &data, &nobody, &PythonArgs::default())?;
    let rollouts = open::rollouts(&*log, recorded.run);
    let request = Request { check: Check::Tokens, from: Seq(0) };
    replay::check_run(&*log, recorded.run, &rollouts, &request, &mut means, false, &mut all)?;
    replay::report(out, &*log, Check::Tokens, &all);
    replay::verdict(&all)?;

    out.line("");
    out.line("3. train: one step on what was recorded");
    let mut trainer = training::fresh(&PolicyName::Mini, Settings::default(), Resources::default())?;
    let recorder = &mut Recorder::new();
    let mut telling = Telling { out: Some(&mut *out), steps: 1, save_every: 0, folder: &args.out, recorder };
    let trained = training::train(&log, &mut trainer, &[recorded.run], &mut telling)?;
    if let Some(first) = &trained.first {
        let (equal, tokens) = (first.equal, first.tokens);
        out.line(format_args!("{equal} of {tokens} tokens had the very logprob that the sampler stored"));
    }
    out.line(format_args!("saved {}, weights {}", args.out.display(), trained.report.weights.short()));

    out.line("");
    let (chosen, tree) = most_telling(&*log, recorded.run)?;
    out.line("4. look: one execution tree, and why each of its nodes got its advantage");
    print_tree(out, &*log, recorded.run, chosen, &tree);
    out.line("");
    let (origin, rows) = credit::of_rollout(&*log, recorded.run, chosen, &tree)?;
    out.line(origin);
    credit::print(out, &rows, Some(20));

    next_steps(out, args, &open::short(&*log, recorded.run), chosen);
    out.line(format_args!("({:.0} s in all)", begin.elapsed().as_secs_f64()));
    open::close(log)
}

/// The rollout with the most nodes; the first of equals.
fn most_telling(source: &dyn EventSource, run: RunId) -> Result<(RolloutId, Tree), Failure> {
    let mut best: Option<(RolloutId, Tree)> = None;
    for rollout in open::rollouts(source, run) {
        let tree = open::tree(&open::events(source, run, rollout)?)?;
        if best.as_ref().is_none_or(|(_, known)| tree.len() > known.len()) {
            best = Some((rollout, tree));
        }
    }
    best.ok_or_else(|| Failure::new(crate::shared::exit::Code::Incomplete, "the run has no rollouts"))
}

fn next_steps(out: &mut Out, args: &DemoArgs, id: &str, chosen: RolloutId) {
    let log = log_flag(&args.log);
    let checkpoint = args.out.display();
    let commands = [
        (format!("show {id}/{chosen} --node 0{log}"), "what its root saw and did"),
        (format!("show {id}/{chosen}#10{log}"), "one event among its neighbours"),
        (format!("replay {id} --check cells{log}"), "run the Python again with the logged answers"),
        (format!("train {id} --dry-run{log}"), "every reward, baseline, advantage and weight"),
        (format!("eval --policy local:{checkpoint}{log}"), "how well the trained weights do"),
    ];
    let width = commands.iter().map(|(command, _)| command.chars().count()).max().unwrap_or_default();
    out.line("");
    out.line("try next:");
    for (command, what) in commands {
        out.line(format_args!("  rao-log {command:<width$}  {what}"));
    }
}
