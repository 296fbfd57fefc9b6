//! Training: what `train` and `demo` have in common.

use std::path::Path;
use std::sync::Arc;

use indicatif::ProgressBar;
use rao_policy::{Chat, Decoder, Limits, LocalPolicy};
use rao_replay::trainer::{
    Flow, LogSink, Resources, STATE_FILE, Settings, StepReport, TrainError, TrainReport, Trainer,
};
use rao_store::{Log, RunId};
use serde_json::{Value, json};

use super::args::PolicyName;
use super::exit::Failure;
use super::out::Out;
use super::policies::Loaded;
use super::{open, recording};

/// A trainer whose weights come from a named model, at the optimizer's step 0.
pub(crate) fn fresh(model: &PolicyName, settings: Settings) -> Result<Trainer, Failure> {
    let resources = Resources::default();
    match model {
        PolicyName::Mini => {
            let policy = rao_policy::mini()?;
            let tokenizer = policy.chat().to_json().to_vec();
            Ok(Trainer::new(policy.into_decoder(), tokenizer, settings, resources)?)
        }
        PolicyName::Local(folder) => {
            // The loader's own message names the folder and the file that is missing.
            if !folder.is_dir() {
                Decoder::load(folder)?;
            }
            Ok(Trainer::fresh(folder, settings, resources)?)
        }
        PolicyName::Oracle | PolicyName::Noisy => {
            let failure = Failure::usage("a scripted policy has no weights to train");
            Err(failure.help("choose --model mini or --model DIR"))
        }
        PolicyName::Served(_) => {
            let failure = Failure::usage(
                "the weights of a served policy are where its server is: they cannot be trained from here",
            );
            Err(failure.help("name the folder of the same model, with the same tokenizer.json, with --model DIR"))
        }
    }
}

/// Refuses to replace a folder that is not a checkpoint.
pub(crate) fn check_out(dir: &Path) -> Result<(), Failure> {
    let is_empty = std::fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none());
    if is_empty || dir.join(STATE_FILE).exists() {
        return Ok(());
    }
    let message =
        format!("{}: the folder holds something else than a checkpoint, and would be replaced", dir.display());
    Err(Failure::usage(message).help("name another folder with --out"))
}

/// A copy of a trainer's weights as a policy that can act.
pub(crate) fn policy_of(trainer: &Trainer, name: &str, folder: Option<&Path>) -> Result<Loaded, Failure> {
    let chat = Chat::from_bytes(trainer.tokenizer_json())?;
    let policy = LocalPolicy::new(name, trainer.decoder().snapshot()?, chat, Limits::default())?;
    Ok(Loaded::Local(Box::new(policy), folder.map(Path::to_owned)))
}

/// What one training run did.
pub(crate) struct Trained {
    pub(crate) training: RunId,
    pub(crate) first: Option<StepReport>,
    pub(crate) report: TrainReport,
}

/// How steps are told of, and when the weights are saved on the way.
pub(crate) struct Telling<'a> {
    /// Where lines go; `None` prints none.
    pub(crate) out: Option<&'a mut Out>,
    /// Steps that are to come, as far as that is known.
    pub(crate) steps: u64,
    /// Save after so many steps; 0 saves at the end only.
    pub(crate) save_every: u64,
    pub(crate) folder: &'a Path,
}

/// Lines printed of a long training.
const LINES: u64 = 20;

impl Telling<'_> {
    fn step(&mut self, trainer: &Trainer, step: &StepReport, bar: &ProgressBar) -> Result<Flow, TrainError> {
        bar.inc(1);
        bar.set_message(format!("loss {:.4}", step.loss));
        let every = self.steps.div_ceil(LINES).max(1);
        let is_due = (step.step + 1).is_multiple_of(every) || step.step == 0 || step.step + 1 == self.steps;
        if let (true, Some(out)) = (is_due, &mut self.out) {
            bar.suspend(|| out.line(line(step)));
        }
        if self.save_every > 0 && (step.step + 1).is_multiple_of(self.save_every) {
            trainer.save(self.folder)?;
        }
        Ok(if recording::stopped() { Flow::Stop } else { Flow::Continue })
    }
}

fn line(step: &StepReport) -> String {
    format!(
        "step {:>4}  {} trajectories, {} tokens  loss {:.5}  ratio {:.4}  clipped {:.4}  gradient {:.4}  rate {:.2e}",
        step.step + 1,
        step.trajectories,
        step.tokens,
        step.loss,
        step.mean_ratio,
        step.clip_fraction,
        step.gradient_norm,
        step.learning_rate
    )
}

/// Trains on the runs, writes it into the log as a training run of its own, and saves the weights.
pub(crate) fn train(
    log: &Arc<Log>,
    trainer: &mut Trainer,
    runs: &[RunId],
    telling: &mut Telling<'_>,
) -> Result<Trained, Failure> {
    let training = open::new_run();
    let mut sink = LogSink::new(log, training);
    let bar = recording::bar(telling.steps, "steps");
    let mut first = None;
    let outcome = trainer.train(&**log, runs, &mut sink, &mut |trainer, step| {
        first.get_or_insert_with(|| step.clone());
        telling.step(trainer, step, &bar)
    });
    bar.finish_and_clear();
    let report = outcome?;
    trainer.save(telling.folder)?;
    Ok(Trained { training, first, report })
}

/// A step as JSON.
pub(crate) fn step_json(step: &StepReport) -> Value {
    json!({
        "step": step.step,
        "version": step.version,
        "trajectories": step.trajectories,
        "tokens": step.tokens,
        "loss": step.loss,
        "mean_ratio": step.mean_ratio,
        "clip_fraction": step.clip_fraction,
        "equal": step.equal,
        "gradient_norm": step.gradient_norm,
        "learning_rate": step.learning_rate,
        "weights_before": step.weights_before.to_string(),
        "weights_after": step.weights_after.to_string(),
    })
}

/// A training run as JSON.
pub(crate) fn to_json(trained: &Trained, folder: &Path) -> Value {
    json!({
        "training": trained.training.to_string(),
        "steps": trained.report.steps,
        "trajectories": trained.report.trajectories,
        "on_policy": trained.report.on_policy,
        "first": trained.first.as_ref().map(step_json),
        "last": trained.report.last.as_ref().map(step_json),
        "weights": trained.report.weights.to_string(),
        "checkpoint": folder.display().to_string(),
    })
}
