//! `rao-log train`: from recorded rollouts to a checkpoint.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use rao_envs::Split;
use rao_policy::Decoder;
use rao_replay::objective::name_of;
use rao_replay::schedule::Decay;
use rao_replay::trainer::{Batch, Rederived, Settings, SftFilter, Trainer, credit_table, fold, rederive};
use rao_store::event::{Body, Kind, LossKind};
use rao_store::{Digest, EventSource, Filter, Log, RunId, RunRole, Seq, Stream, Target, resolve_run, resolve_target};
use serde_json::{Value, json};

use crate::record::{TASKS, rate};
use crate::shared::args::{
    BatchArgs, EngineArgs, JsonArgs, LogArgs, PolicyName, TaskArgs, ThreadArgs, WidthArgs, policy,
};
use crate::shared::credit;
use crate::shared::exit::{Code, Failure};
use crate::shared::metrics::Recorder;
use crate::shared::out::{Out, note, plural};
use crate::shared::recording::{self, Choices};
use crate::shared::training::{self, Telling, Trained};
use crate::shared::tuning::TuningArgs;
use crate::shared::{memory, open, policies};

/// Rows of a credit table on the screen.
const ROWS: usize = 60;

/// The losses by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LossName {
    /// Eq. 5 as printed.
    Pg,
    /// Token-level importance sampling.
    Is,
    /// Clipped importance ratios.
    Ppo,
    /// Clipped, detached importance weights, as the authors trained.
    Cispo,
    /// Supervised fine-tuning on the actions.
    Sft,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DecayName {
    Constant,
    Linear,
    Cosine,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FilterName {
    /// Nodes that called finish and succeeded.
    Verified,
    /// Every node that acted.
    All,
}

/// How the weights change.
#[derive(Args, Clone, Debug)]
struct TrainingArgs {
    /// The loss.
    #[arg(long, value_enum, default_value = "cispo", help_heading = "Training")]
    loss: LossName,
    /// Learning rate after warm-up.
    #[arg(long, value_name = "RATE", default_value_t = 1e-4, help_heading = "Training")]
    lr: f64,
    /// Steps of linear warm-up.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Training")]
    warmup: u64,
    /// What follows the warm-up.
    #[arg(long, value_enum, default_value = "constant", help_heading = "Training")]
    decay: DecayName,
    /// The optimizer step at which a decay has reached its floor.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Training")]
    horizon: u64,
    /// The rate at the horizon, as a share of --lr.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, help_heading = "Training")]
    floor: f64,
    /// Decoupled weight decay [default: 0.017].
    #[arg(long, value_name = "D", help_heading = "Training")]
    weight_decay: Option<f64>,
    /// The greatest gradient norm; 0 clips nothing [default: 1].
    #[arg(long, value_name = "NORM", help_heading = "Training")]
    clip: Option<f64>,
    /// sft: optimizer steps of this call.
    #[arg(long, value_name = "N", default_value_t = 100, help_heading = "Training")]
    steps: u64,
    /// sft: trajectories of an optimizer step.
    #[arg(long, value_name = "N", default_value_t = 8, help_heading = "Training")]
    batch: u64,
    /// sft: which nodes to learn from.
    #[arg(long, value_enum, default_value = "verified", help_heading = "Training")]
    sft_filter: FilterName,
    /// Reinforcement: passes through the batch.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Training")]
    epochs: u64,
    /// Reinforcement: optimizer steps of a pass.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Training")]
    minibatches: u64,
    /// Tokens of a micro-batch. It decides memory and rounding.
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = "Training")]
    micro_tokens: u64,
    /// Give every trajectory weight 1 in place of Eq. 4's.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set, hide_default_value = true, hide_possible_values = true,
        help_heading = "Training")]
    no_depth_weighting: bool,
    /// Leave out groups in which every trajectory has the same advantage.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set, hide_default_value = true, hide_possible_values = true,
        help_heading = "Training")]
    drop_flat_groups: bool,
    /// Train on forked rollouts too; the forks of a run are a group. A fork and its base are no independent samples.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set, hide_default_value = true, hide_possible_values = true,
        help_heading = "Training")]
    forks: bool,
}

/// Train on recorded runs: success, reward (Eq. 1), baseline and advantage (Eq. 3), depth weight (Eq. 4), gradient
/// (Eq. 5), AdamW, checkpoint. Every number is written into the log.
#[derive(Args, Debug)]
pub(crate) struct TrainArgs {
    /// The runs to train on [default: latest]. With --dry-run also training runs.
    #[arg(value_name = "RUN")]
    runs: Vec<String>,
    /// Weights to start from: mini or a model folder [default: those that recorded the run, or mini].
    #[arg(long, value_name = "MODEL", conflicts_with = "resume")]
    model: Option<String>,
    /// The checkpoint folder; `--policy local:DIR` records with it.
    #[arg(long, value_name = "DIR", default_value = "rao-log-checkpoint")]
    out: PathBuf,
    /// Go on from the checkpoint in --out, bit for bit as if the training had not been interrupted.
    #[arg(long)]
    resume: bool,
    /// Also save the checkpoint after every N steps; 0 saves at the end.
    #[arg(long, value_name = "N", default_value_t = 0)]
    save_every: u64,
    /// Print the credit of every node, train nothing, and compute stored training runs again from the log alone.
    #[arg(long, conflicts_with_all = ["resume", "iterations"])]
    dry_run: bool,
    /// Alternate so many times between recording (see Tasks and Agents) and training on what was recorded.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "runs")]
    iterations: Option<u32>,
    #[command(flatten)]
    training: TrainingArgs,
    #[command(flatten)]
    tuning: TuningArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    tasks: TaskArgs,
    #[command(flatten)]
    batch: BatchArgs,
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
pub(crate) fn run(args: &TrainArgs, out: &mut Out) -> Result<(), Failure> {
    args.threads.apply();
    if args.dry_run {
        let settings = Settings { kl_coefficient: 0.0, ..settings(args, None) };
        settings.check()?;
        return dry_run(args, &settings, out);
    }
    let reference = args.tuning.reference.as_ref().map(|name| training::weights(&model_name(name))).transpose()?;
    let digest = reference.as_ref().map(Decoder::digest).transpose()?.map(|digest| Digest(digest).to_string());
    let settings = settings(args, digest);
    settings.check()?;
    training::check_out(&args.out)?;
    recording::stop_on_ctrl_c();
    match args.iterations {
        Some(iterations) => iterate(args, settings, reference, iterations, out),
        None => train(args, settings, reference, out),
    }
}

fn settings(args: &TrainArgs, reference: Option<String>) -> Settings {
    let flags = &args.training;
    let mut settings = Settings::default();
    settings.objective.loss = match flags.loss {
        LossName::Pg => LossKind::Pg,
        LossName::Is => LossKind::Is,
        LossName::Ppo => LossKind::Ppo,
        LossName::Cispo => LossKind::Cispo,
        LossName::Sft => LossKind::Sft,
    };
    settings.schedule.learning_rate = flags.lr;
    settings.schedule.warmup = flags.warmup;
    settings.schedule.horizon = flags.horizon;
    settings.schedule.floor = flags.floor;
    settings.schedule.decay = match flags.decay {
        DecayName::Constant => Decay::Constant,
        DecayName::Linear => Decay::Linear,
        DecayName::Cosine => Decay::Cosine,
    };
    settings.optimizer.weight_decay = flags.weight_decay.unwrap_or(settings.optimizer.weight_decay);
    settings.optimizer.clip_norm = flags.clip.unwrap_or(settings.optimizer.clip_norm);
    settings.lambda = args.engine.lambda;
    settings.depth_weighting = !flags.no_depth_weighting;
    settings.drop_flat_groups = flags.drop_flat_groups;
    settings.forks = flags.forks;
    settings.micro_tokens = flags.micro_tokens;
    settings.epochs = flags.epochs;
    settings.minibatches = flags.minibatches;
    settings.sft_filter = match flags.sft_filter {
        FilterName::Verified => SftFilter::Verified,
        FilterName::All => SftFilter::All,
    };
    settings.steps = flags.steps;
    settings.batch_trajectories = flags.batch;
    settings.seed = args.tasks.seed;
    args.tuning.apply(&mut settings, reference);
    settings
}

fn steps(settings: &Settings) -> u64 {
    if settings.is_sft() { settings.steps } else { settings.epochs * settings.minibatches }
}

fn named_runs(args: &TrainArgs, source: &dyn EventSource) -> Result<Vec<RunId>, Failure> {
    let latest = ["latest".to_owned()];
    let names = if args.runs.is_empty() { &latest[..] } else { &args.runs[..] };
    names.iter().map(|name| Ok(resolve_run(source, name, RunRole::Recorded)?)).collect()
}

fn model_name(text: &str) -> PolicyName {
    match policy(text) {
        Ok(name) => name,
        Err(_) => PolicyName::Local(PathBuf::from(text)),
    }
}

fn trainer(
    args: &TrainArgs,
    settings: Settings,
    reference: Option<Decoder>,
    source: &dyn EventSource,
    first: Option<RunId>,
) -> Result<Trainer, Failure> {
    let mut trainer = trainer_of(args, settings, source, first)?;
    if let Some(reference) = reference {
        trainer.set_reference(reference)?;
    }
    Ok(trainer)
}

fn trainer_of(
    args: &TrainArgs,
    settings: Settings,
    source: &dyn EventSource,
    first: Option<RunId>,
) -> Result<Trainer, Failure> {
    let resources = args.tuning.resources();
    if args.resume {
        return Ok(Trainer::resume(&args.out, settings, resources)?);
    }
    let model = match (&args.model, first) {
        (Some(text), _) => model_name(text),
        (None, Some(run)) => {
            let (started, host) = open::manifest(source, run)?;
            policies::recorded_model(&started, &host)?
        }
        (None, None) => PolicyName::Mini,
    };
    training::fresh(&model, settings, resources)
}

fn recorder(args: &TrainArgs) -> Recorder {
    if args.resume { Recorder::resume(&args.out) } else { Recorder::new() }
}

fn train(args: &TrainArgs, settings: Settings, reference: Option<Decoder>, out: &mut Out) -> Result<(), Failure> {
    let log = open::existing(&args.log.log)?;
    // Before the model is looked for: no model makes up for a damaged log.
    open::refuse_damaged(&*log)?;
    let runs = named_runs(args, &*log)?;
    let mut trainer = trainer(args, settings.clone(), reference, &*log, runs.first().copied())?;
    let mut recorder = recorder(args);
    let mut telling = Telling {
        out: (!args.json.json).then_some(&mut *out),
        steps: steps(&settings),
        save_every: args.save_every,
        folder: &args.out,
        recorder: &mut recorder,
    };
    let trained = training::train(&log, &mut trainer, &runs, &mut telling)?;
    merge(args, &trainer)?;
    if args.json.json {
        out.json(&training::to_json(&trained, &args.out));
    } else {
        report(out, &log, &trained, &args.out);
    }
    open::close(log)
}

fn merge(args: &TrainArgs, trainer: &Trainer) -> Result<(), Failure> {
    args.tuning.merge_into.as_ref().map_or(Ok(()), |folder| training::merge(trainer, folder))
}

fn report(out: &mut Out, log: &Log, trained: &Trained, folder: &Path) {
    let report = &trained.report;
    let (steps, trajectories) = (plural(report.steps, "step"), report.trajectories);
    out.line(format_args!("training   {}: {steps}, {trajectories} trajectories", open::short(log, trained.training)));
    if let Some(first) = &trained.first
        && first.equal > 0
    {
        let (equal, tokens) = (first.equal, first.tokens);
        out.line(format_args!("on policy  {equal} of {tokens} tokens had the very logprob that the sampler stored"));
    }
    if report.last.as_ref().is_some_and(|last| last.gradient_norm == 0.0) {
        out.line("no signal  every advantage is 0, so only weight decay moved the weights; larger groups or other tasks may differ");
    }
    if let Some(last) = &report.last {
        let kl = last.kl.map_or(String::new(), |kl| format!(", KL term {kl:.5}"));
        out.line(format_args!("policy     entropy {:.4} nats{kl}", last.entropy));
    }
    let passes = if report.lanes.checkpoints { "with checkpoints" } else { "without checkpoints" };
    let peak = memory::peak().map_or(String::new(), |bytes| format!(", peak {} MiB", bytes.div_ceil(1 << 20)));
    out.line(format_args!("memory     {} side by side {passes}{peak}", plural(report.lanes.lanes as u64, "pass")));
    out.line(format_args!("left out   {}", report.left_out));
    out.line(format_args!("weights    {}", report.weights.short()));
    out.line(format_args!("saved      {0} (record with `--policy local:{0}`)", folder.display()));
    if recording::stopped() {
        out.line("stopped early; the same command with --resume goes on from here");
    }
}

fn iterate(
    args: &TrainArgs,
    settings: Settings,
    reference: Option<Decoder>,
    iterations: u32,
    out: &mut Out,
) -> Result<(), Failure> {
    let log = open::writer(&args.log.log)?;
    open::refuse_damaged(&*log)?;
    let mut trainer = trainer(args, settings, reference, &*log, None)?;
    let mut recorder = recorder(args);
    let begun_from = match (&args.model, args.resume) {
        (_, true) => PolicyName::Local(args.out.clone()),
        (Some(text), false) => model_name(text),
        (None, false) => PolicyName::Mini,
    };
    let mut rows = Vec::new();
    for iteration in 0..iterations {
        // Until the first step the weights are those of the model that was named, and the log says so.
        let source = if iteration == 0 { begun_from.clone() } else { PolicyName::Local(args.out.clone()) };
        let row = iteration_of(args, &log, &mut trainer, &mut recorder, &source, iteration)?;
        if args.json.json {
            rows.push(row);
        } else {
            out.line(iteration_line(&row));
        }
        if recording::stopped() {
            note("stopped after a whole iteration; the checkpoint is saved");
            break;
        }
    }
    merge(args, &trainer)?;
    if args.json.json {
        let weights = trainer.weights().to_string();
        out.json(&json!({ "iterations": rows, "weights": weights, "checkpoint": args.out.display().to_string() }));
    }
    open::close(log)
}

fn iteration_of(
    args: &TrainArgs,
    log: &Arc<Log>,
    trainer: &mut Trainer,
    recorder: &mut Recorder,
    source: &PolicyName,
    iteration: u32,
) -> Result<Value, Failure> {
    let (name, folder) = match source {
        PolicyName::Local(folder) => {
            let folder = folder.canonicalize().unwrap_or_else(|_| folder.clone());
            let name = folder.file_name().map_or("local".into(), |name| name.to_string_lossy().into_owned());
            (name, Some(folder))
        }
        _ => ("mini".to_owned(), None),
    };
    let policy = training::policy_of(trainer, &name, folder.as_deref())?;
    let mut tasks = args.tasks.clone();
    tasks.seed = tasks.seed.wrapping_add(u64::from(iteration));
    let choices = Choices {
        tasks: TASKS,
        split: Split::Train,
        temperature: 1.0,
        group: args.batch.group,
        only: None,
        width: usize::from(args.width.width),
    };
    let mut setup = recording::setup_with(&tasks, &args.engine, policy, choices)?;
    let recorded = recording::run(log, &mut setup, None)?;
    let steps = steps(trainer.settings());
    let mut telling = Telling { out: None, steps, save_every: 0, folder: &args.out, recorder };
    let trained = training::train(log, trainer, &[recorded.run], &mut telling)?;
    let last = trained.report.last.as_ref();
    Ok(json!({
        "iteration": iteration,
        "run": recorded.run.to_string(),
        "content_digest": recorded.content.to_string(),
        "rollouts": recorded.rollouts,
        "solved": recorded.solved,
        "success": rate(&recorded),
        "training": trained.training.to_string(),
        "trajectories": trained.report.trajectories,
        "on_policy": trained.report.on_policy,
        "loss": last.map(|step| step.loss),
        "gradient_norm": last.map(|step| step.gradient_norm),
        "weights": trained.report.weights.to_string(),
    }))
}

fn iteration_line(row: &Value) -> String {
    let number = |name: &str| row.get(name).and_then(Value::as_f64).unwrap_or_default();
    let count = |name: &str| row.get(name).and_then(Value::as_u64).unwrap_or_default();
    format!(
        "iteration {:>3}  success {:.3} ({} of {})  {} trajectories  loss {:.5}  gradient {:.4}",
        count("iteration") + 1,
        number("success"),
        count("solved"),
        count("rollouts"),
        count("trajectories"),
        number("loss"),
        number("gradient_norm"),
    )
}

fn dry_run(args: &TrainArgs, settings: &Settings, out: &mut Out) -> Result<(), Failure> {
    let source = open::checked_reader(&args.log.log)?;
    let (mut runs, mut trainings) = (Vec::new(), Vec::new());
    for name in &args.runs {
        match resolve_target(&source, name)? {
            Target::Training(run) => trainings.push(run),
            Target::Run(run) => runs.push(run),
            Target::Rollout(..) | Target::Event(_) => {
                let failure = Failure::usage(format!("`{name}` is a part of a run; training takes whole runs"));
                return Err(failure.help("write RUN, or RUN/training for a training run"));
            }
        }
    }
    if runs.is_empty() && trainings.is_empty() {
        runs = named_runs(args, &source)?;
    }
    for training in trainings_on(&source, &runs)? {
        if !trainings.contains(&training) {
            trainings.push(training);
        }
    }
    let batch = if runs.is_empty() { None } else { Some(credit_of(&source, &runs, settings)?) };
    let derived: Vec<(RunId, Rederived)> =
        trainings.iter().map(|run| Ok((*run, rederive(&source, *run)?))).collect::<Result<_, Failure>>()?;
    if args.json.json {
        out.json(&dry_run_json(batch.as_ref(), &derived));
    } else {
        print_dry_run(out, &source, batch.as_ref(), &derived);
    }
    match derived.iter().find_map(|(_, derived)| derived.mismatch.as_ref()) {
        None => Ok(()),
        Some(mismatch) => {
            let failure =
                Failure::new(Code::Integrity, format!("a stored training differs from what its log gives: {mismatch}"));
            Err(failure.help("`rao-log verify` checks the whole log"))
        }
    }
}

/// The credit of reinforcement, or for `sft` the number of nodes to learn from.
enum Credit {
    Batch(Batch),
    Sft { nodes: u64, tokens: u64, incomplete: u64 },
}

fn credit_of(source: &dyn EventSource, runs: &[RunId], settings: &Settings) -> Result<Credit, Failure> {
    if !settings.is_sft() {
        return Ok(Credit::Batch(credit_table(source, runs, settings)?));
    }
    let folded = fold(source, runs, settings.lambda)?;
    let wanted = |node: &&rao_replay::trainer::NodeNumbers| {
        node.tokens > 0 && (settings.sft_filter == SftFilter::All || (node.finished && node.own >= 1.0))
    };
    let nodes = folded.rollouts.iter().flat_map(|rollout| rollout.nodes.iter()).filter(wanted);
    let (nodes, tokens) = nodes.fold((0, 0), |(nodes, tokens), node| (nodes + 1, tokens + node.tokens));
    Ok(Credit::Sft { nodes, tokens, incomplete: folded.incomplete })
}

/// The training runs that used one of the runs.
fn trainings_on(source: &dyn EventSource, runs: &[RunId]) -> Result<Vec<RunId>, Failure> {
    let mut found = Vec::new();
    for training in source.runs() {
        for event in source.events(Stream::Training(training), Seq(0), &Filter::kinds([Kind::TrainStarted])) {
            if let Body::TrainStarted(started) = event?.body
                && started.runs.iter().any(|(run, _)| runs.contains(run))
            {
                found.push(training);
            }
        }
    }
    Ok(found)
}

fn print_dry_run(out: &mut Out, source: &dyn EventSource, credit: Option<&Credit>, derived: &[(RunId, Rederived)]) {
    match credit {
        Some(Credit::Batch(batch)) => {
            let (groups, rows) = (plural(batch.groups, "group"), batch.entries.len());
            out.line(format_args!(
                "batch: {groups}, {rows} trajectories, {} tokens; left out: {}",
                batch.tokens(),
                batch.left_out
            ));
            for depth in &batch.depths {
                let (depth, count, weight) = (depth.depth, depth.count, depth.weight);
                out.line(format_args!("depth {depth}: {count} trajectories, weight {weight}"));
            }
            credit::print(out, &credit::of_batch(batch), Some(ROWS));
        }
        Some(Credit::Sft { nodes, tokens, incomplete }) => {
            let nodes = plural(*nodes, "node");
            out.line(format_args!(
                "sft: {nodes} to learn from, {tokens} tokens; {incomplete} unfinished rollouts left out"
            ));
        }
        None => {}
    }
    for (run, derived) in derived {
        let id = open::short(source, *run);
        let loss = name_of(derived.loss);
        match &derived.mismatch {
            Some(mismatch) => out.line(format_args!("training {id} ({loss}): {mismatch}")),
            None if derived.steps == 0 => out.line(format_args!(
                "training {id} ({loss}): {} in the log; their losses are not computed again, because sft stores no logprobs",
                plural(derived.stored_steps, "step")
            )),
            None => out.line(format_args!(
                "training {id} ({loss}): {} computed again from the log: {} credits, {} losses over {} tokens, equal bit for bit",
                plural(derived.steps, "step"),
                derived.credits,
                derived.losses,
                derived.tokens
            )),
        }
    }
    out.line("nothing was trained (--dry-run)");
}

fn dry_run_json(credit: Option<&Credit>, derived: &[(RunId, Rederived)]) -> Value {
    let trainings: Vec<Value> = derived
        .iter()
        .map(|(run, derived)| {
            json!({
                "training": run.to_string(),
                "loss": name_of(derived.loss),
                "steps": derived.steps,
                "stored_steps": derived.stored_steps,
                "credits": derived.credits,
                "losses": derived.losses,
                "tokens": derived.tokens,
                "mismatch": derived.mismatch.as_ref().map(ToString::to_string),
            })
        })
        .collect();
    match credit {
        Some(Credit::Batch(batch)) => {
            let rows: Vec<Value> = credit::of_batch(batch).iter().map(credit::CreditRow::to_json).collect();
            let depths: Vec<Value> = batch
                .depths
                .iter()
                .map(|depth| json!({ "depth": depth.depth, "count": depth.count, "weight": depth.weight }))
                .collect();
            json!({
                "credit": rows,
                "depths": depths,
                "groups": batch.groups,
                "tokens": batch.tokens(),
                "left_out": batch.left_out.to_string(),
                "trainings": trainings,
            })
        }
        Some(Credit::Sft { nodes, tokens, incomplete }) => {
            json!({ "nodes": nodes, "tokens": tokens, "incomplete": incomplete, "trainings": trainings })
        }
        None => json!({ "trainings": trainings }),
    }
}
