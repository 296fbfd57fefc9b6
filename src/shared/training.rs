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
use super::metrics::Recorder;
use super::out::Out;
use super::policies::Loaded;
use super::{open, recording};

/// A trainer whose weights come from a named model, at the optimizer's step 0.
pub(crate) fn fresh(model: &PolicyName, settings: Settings, resources: Resources) -> Result<Trainer, Failure> {
    match model {
        PolicyName::Mini => {
            let policy = rao_policy::mini()?;
            let tokenizer = policy.chat().to_json().to_vec();
            let mut trainer = Trainer::new(policy.into_decoder()?, tokenizer, settings, resources)?;
            trainer.set_base(rao_policy::MINI);
            Ok(trainer)
        }
        PolicyName::Local(folder) => {
            // The loader's own message names the folder and the file that is missing.
            if !folder.exists() {
                Decoder::load(folder)?;
            }
            Ok(Trainer::fresh(folder, settings, resources)?)
        }
        PolicyName::Gguf(file) => {
            let failure = Failure::usage("a quantized policy is frozen: its matrix products have no gradient");
            Err(failure.help(format!("train it dequantized: --model local:{}", file.display())))
        }
        PolicyName::Oracle | PolicyName::Noisy => {
            let failure = Failure::usage("a scripted policy has no weights to train");
            Err(failure.help("choose --model mini or --model DIR"))
        }
        PolicyName::Served(_) => {
            let failure = Failure::usage(
                "the weights of a served policy are where its server is: they cannot be trained from here",
            );
            Err(failure.help("name the folder of the same model, with the same tokenizer, with --model DIR"))
        }
    }
}

/// The weights of a named model.
pub(crate) fn weights(model: &PolicyName) -> Result<Decoder, Failure> {
    match model {
        PolicyName::Mini => Ok(rao_policy::mini()?.into_decoder()?),
        PolicyName::Local(folder) => Ok(Decoder::load(folder)?),
        _ => Err(Failure::usage("only mini and model folders have weights").help("choose mini or a model folder")),
    }
}

/// Saves the trained model, an adapter merged into its weights, as a model folder.
pub(crate) fn merge(trainer: &Trainer, folder: &Path) -> Result<(), Failure> {
    trainer.decoder().merged()?.save(folder)?;
    Ok(trainer.chat_files().write(folder)?)
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
    let chat = Chat::from_files(trainer.chat_files())?;
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
    /// Takes the steps' figures.
    pub(crate) recorder: &'a mut Recorder,
}

/// Lines printed of a long training.
const LINES: u64 = 20;

impl Telling<'_> {
    fn step(&mut self, trainer: &Trainer, step: &StepReport, bar: &ProgressBar) -> Result<Flow, TrainError> {
        self.recorder.add(step);
        bar.inc(1);
        bar.set_message(format!("loss {:.4}", step.loss));
        let every = self.steps.div_ceil(LINES).max(1);
        let is_due = (step.step + 1).is_multiple_of(every) || step.step == 0 || step.step + 1 == self.steps;
        if let (true, Some(out)) = (is_due, &mut self.out) {
            bar.suspend(|| out.line(line(step)));
        }
        if self.save_every > 0 && (step.step + 1).is_multiple_of(self.save_every) {
            let figures = self.recorder.files().map_err(|failure| TrainError::Settings(failure.to_string()))?;
            trainer.save_with(self.folder, &figures)?;
        }
        Ok(if recording::stopped() { Flow::Stop } else { Flow::Continue })
    }
}

fn line(step: &StepReport) -> String {
    format!(
        "step {:>4}  {} trajectories, {} tokens ({} distinct of {})  loss {:.5}  ratio {:.4}  clipped {:.4}  gradient {:.4}  rate {:.2e}",
        step.step + 1,
        step.trajectories,
        step.tokens,
        step.model_tokens,
        step.summed_tokens,
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
    telling.recorder.start();
    let outcome = trainer.train(&**log, runs, &mut sink, &mut |trainer, step| {
        first.get_or_insert_with(|| step.clone());
        telling.step(trainer, step, &bar)
    });
    bar.finish_and_clear();
    let report = outcome?;
    trainer.save_with(telling.folder, &telling.recorder.files()?)?;
    Ok(Trained { training, first, report })
}

/// A step as JSON.
pub(crate) fn step_json(step: &StepReport) -> Value {
    json!({
        "step": step.step,
        "version": step.version,
        "trajectories": step.trajectories,
        "tokens": step.tokens,
        "model_tokens": step.model_tokens,
        "summed_tokens": step.summed_tokens,
        "micro_batches": step.micro_batches,
        "loss": step.loss,
        "entropy": step.entropy,
        "kl": step.kl,
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
        "lanes": trained.report.lanes.lanes,
        "checkpoints": trained.report.lanes.checkpoints,
        "peak_bytes": super::memory::peak(),
        "checkpoint": folder.display().to_string(),
    })
}
