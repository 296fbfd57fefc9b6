//! The trainer: weights, optimizer and data position, stepped over the log.

use std::path::Path;

use rao_policy::Decoder;
use rao_store::event::{Body, TrainFinished, TrainStarted, TrainStep, TrajectoryScored};
use rao_store::{Digest, EventSource, RolloutId, RunId};

use super::batch::{Batch, Entry, LeftOut, assign, batch_digest};
use super::checkpoint::{self, State};
use super::corpus::{Corpus, Item, order};
use super::fold::{Folded, RolloutNumbers, fold};
use super::gradient::{Gradient, Outcome, Piece, Sums, gradient, plan};
use super::rederive::{RunConfig, parts};
use super::trajectory::{Trajectories, Trajectory};
use super::{Resources, Settings, Sink, TrainError};
use crate::objective::name_of;
use crate::optimizer::{AdamW, Parameter};

/// Bodies of one append of credits.
const CREDITS_PER_APPEND: usize = 1024;

/// One optimizer step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// The step, from 0 in this training run.
    pub step: u64,
    /// Optimizer steps that the weights have seen, this one included.
    pub version: u64,
    /// Trajectories.
    pub trajectories: u64,
    /// Loss tokens.
    pub tokens: u64,
    /// Tokens that the model was run on.
    pub model_tokens: u64,
    /// Micro-batches.
    pub micro_batches: u64,
    /// The loss.
    pub loss: f64,
    /// Mean importance ratio (1 for `sft`).
    pub mean_ratio: f64,
    /// Share of loss tokens whose ratio was clipped.
    pub clip_fraction: f64,
    /// Loss tokens whose log-probability has the very bits of the stored one: all of them on policy. 0 for `sft`.
    pub equal: u64,
    /// Gradient norm before clipping.
    pub gradient_norm: f64,
    /// Learning rate.
    pub learning_rate: f64,
    /// Digest of the weights before.
    pub weights_before: Digest,
    /// Digest of the weights after.
    pub weights_after: Digest,
}

/// What a call of [`Trainer::train`] did.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainReport {
    /// Steps taken.
    pub steps: u64,
    /// Trajectories in the batch (for `sft`: to choose from).
    pub trajectories: u64,
    /// What was left out.
    pub left_out: LeftOut,
    /// True if every trajectory was sampled by the weights that the call began with.
    pub on_policy: bool,
    /// The last step.
    pub last: Option<StepReport>,
    /// Digest of the final weights.
    pub weights: Digest,
}

/// Whether to take another step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Take it.
    Continue,
    /// Stop here; the training run ends as if it had been asked for no more.
    Stop,
}

/// Weights being trained, with optimizer and data position.
pub struct Trainer {
    decoder: Decoder,
    tokenizer_json: Vec<u8>,
    tokenizer: Digest,
    optimizer: AdamW,
    settings: Settings,
    resources: Resources,
    data: Option<Digest>,
    taken: u64,
    weights: Digest,
}

/// What an observer is given after each step.
type Observer<'a> = &'a mut dyn FnMut(&Trainer, &StepReport) -> Result<Flow, TrainError>;

impl Trainer {
    /// A new training from weights in memory: optimizer at step 0.
    ///
    /// # Errors
    /// When the settings are out of range or the weights cannot be read.
    pub fn new(
        decoder: Decoder,
        tokenizer_json: Vec<u8>,
        settings: Settings,
        resources: Resources,
    ) -> Result<Self, TrainError> {
        settings.check()?;
        let optimizer = AdamW::new(settings.optimizer, shapes(&decoder));
        let (tokenizer, weights) = (Digest::of(&tokenizer_json), Digest(decoder.digest()?));
        Ok(Trainer {
            decoder,
            tokenizer_json,
            tokenizer,
            optimizer,
            settings,
            resources,
            data: None,
            taken: 0,
            weights,
        })
    }

    /// A new training from a model folder (a checkpoint is one): its weights and their version, optimizer at step 0.
    ///
    /// # Errors
    /// When the folder or the settings cannot be used.
    pub fn fresh(dir: &Path, settings: Settings, resources: Resources) -> Result<Self, TrainError> {
        checkpoint::settle(dir)?;
        let decoder = Decoder::load(dir)?;
        Trainer::new(decoder, checkpoint::read(dir, checkpoint::TOKENIZER_FILE)?, settings, resources)
    }

    /// A training as [`Trainer::save`] left it: continues bit for bit.
    ///
    /// # Errors
    /// When the folder is no checkpoint, its files contradict one another, or the settings differ from the checkpoint's
    /// in more than `steps`.
    pub fn resume(dir: &Path, settings: Settings, resources: Resources) -> Result<Self, TrainError> {
        checkpoint::settle(dir)?;
        let state = checkpoint::read_state(dir)?;
        let broken = |reason: &str, broken| {
            let reason = format!("{reason}; use another checkpoint, or start fresh from its weights");
            TrainError::Checkpoint { path: dir.to_owned(), reason, broken }
        };
        if state.settings_digest != settings.digest().to_string() {
            return Err(broken("it was trained with other settings", false));
        }
        let mut trainer = Trainer::fresh(dir, settings, resources)?;
        if trainer.weights.to_string() != state.weights {
            return Err(broken("its weights are not those that trainer.json names", true));
        }
        let moments = checkpoint::read(dir, checkpoint::OPTIMIZER_FILE)?;
        trainer.optimizer = AdamW::from_bytes(trainer.settings.optimizer, shapes(&trainer.decoder), &moments)?;
        if trainer.optimizer.step_count() != state.step {
            return Err(broken("optimizer and trainer.json disagree about the step", true));
        }
        trainer.decoder.set_version(state.version);
        trainer.data = state.data.parse().ok();
        trainer.taken = state.taken;
        Ok(trainer)
    }

    /// Saves everything that [`Trainer::resume`] needs into a folder that `record` can use as a model. The folder is
    /// replaced as a whole, or not at all.
    ///
    /// # Errors
    /// When a file cannot be written; a folder that was there before stays.
    pub fn save(&self, dir: &Path) -> Result<(), TrainError> {
        let files = [
            (checkpoint::MODEL_FILE, self.decoder.to_bytes()?),
            (checkpoint::CONFIG_FILE, self.decoder.config().to_json()),
            (checkpoint::TOKENIZER_FILE, self.tokenizer_json.clone()),
            (checkpoint::OPTIMIZER_FILE, self.optimizer.to_bytes()?),
        ];
        let state = State {
            format: checkpoint::FORMAT,
            version: self.decoder.version(),
            step: self.optimizer.step_count(),
            settings_digest: self.settings.digest().to_string(),
            settings: self.settings.clone(),
            data: self.data.map(|digest| digest.to_string()).unwrap_or_default(),
            taken: self.taken,
            weights: self.weights.to_string(),
            files: std::collections::BTreeMap::new(),
        };
        checkpoint::write(dir, &files, state)
    }

    /// The model. [`Decoder::snapshot`] gives a sampler its own copy.
    #[must_use]
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes how many steps the next `sft` call takes.
    pub fn set_steps(&mut self, steps: u64) {
        self.settings.steps = steps.max(1);
    }

    /// Digest of the weights as they stand.
    #[must_use]
    pub fn weights(&self) -> Digest {
        self.weights
    }

    /// Digest of the tokenizer file.
    #[must_use]
    pub fn tokenizer(&self) -> Digest {
        self.tokenizer
    }

    /// The tokenizer file's bytes.
    #[must_use]
    pub fn tokenizer_json(&self) -> &[u8] {
        &self.tokenizer_json
    }

    /// Steps that this training's optimizer has taken.
    #[must_use]
    pub fn optimizer_step(&self) -> u64 {
        self.optimizer.step_count()
    }

    /// Trains on the runs, in the order given, and writes what it does to `sink`. Reinforcement takes
    /// `epochs * minibatches` steps over the whole batch, `sft` takes `steps` steps. `observer` sees every step and can
    /// save a checkpoint or stop.
    ///
    /// # Errors
    /// Before the first step: when the log is damaged, contradicts itself or lacks what the loss needs, or belongs to
    /// another tokenizer. Later: when the model, the optimizer, the sink or the observer fails; the weights then are
    /// those after the last whole step.
    pub fn train(
        &mut self,
        source: &dyn EventSource,
        runs: &[RunId],
        sink: &mut dyn Sink,
        observer: Observer<'_>,
    ) -> Result<TrainReport, TrainError> {
        let folded = fold(source, runs, self.settings.lambda)?;
        for rollout in &folded.rollouts {
            self.check_rollout(rollout)?;
        }
        let report = if self.settings.is_sft() {
            self.supervise(source, &folded, sink, observer)
        } else {
            self.reinforce(source, &folded, sink, observer)
        }?;
        sink.append(vec![Body::from(TrainFinished { steps: report.steps, weights: report.weights })])?;
        sink.flush()?;
        Ok(report)
    }

    fn check_rollout(&self, rollout: &RolloutNumbers) -> Result<(), TrainError> {
        let RolloutNumbers { run, rollout: id, .. } = *rollout;
        if rollout.tokenizer != self.tokenizer {
            let (recorded, model) = (rollout.tokenizer, self.tokenizer);
            return Err(TrainError::Tokenizer { run, rollout: id, recorded, model });
        }
        let limit = self.decoder.config().max_positions as u64;
        if let Some(node) = rollout.nodes.iter().find(|node| node.length > limit) {
            return Err(TrainError::TooLong { run, rollout: id, node: node.node.clone(), tokens: node.length, limit });
        }
        if rollout.fork && !self.settings.forks || self.settings.is_sft() {
            return Ok(());
        }
        let loss = name_of(self.settings.objective.loss);
        if let Some(address) = rollout.unscored {
            return Err(TrainError::NoLogprobs { address, loss });
        }
        if let Some((address, temperature)) = rollout.tempered {
            return Err(TrainError::Temperature { address, temperature, loss });
        }
        if let Some(address) = rollout.truncated {
            return Err(TrainError::Truncated { address, loss });
        }
        Ok(())
    }

    fn start(&self, folded: &Folded, sink: &mut dyn Sink) -> Result<(), TrainError> {
        let (version, optimizer_step) = (self.decoder.version(), self.optimizer.step_count());
        let config = RunConfig { settings: self.settings.clone(), version, optimizer_step };
        sink.append(vec![Body::from(TrainStarted {
            config: serde_json::to_string(&config).unwrap_or_default(),
            loss: self.settings.objective.loss,
            weights: self.weights,
            tokenizer: self.tokenizer,
            runs: folded.runs.clone(),
        })])
    }

    fn reinforce(
        &mut self,
        source: &dyn EventSource,
        folded: &Folded,
        sink: &mut dyn Sink,
        observer: Observer<'_>,
    ) -> Result<TrainReport, TrainError> {
        let batch: Batch = assign(folded, &self.settings)?;
        if batch.entries.is_empty() {
            return Err(TrainError::Nothing(format!(
                "no group has two finished rollouts that acted ({})",
                batch.left_out
            )));
        }
        let on_policy = batch.acted.iter().all(|weights| *weights == Some(self.weights));
        self.start(folded, sink)?;
        let (mut step, mut last) = (0, None);
        'epochs: for _ in 0..self.settings.epochs {
            for part in parts(batch.entries.len(), self.settings.minibatches) {
                let entries = batch.entries.get(part).unwrap_or_default();
                let report = self.reinforce_step(source, entries, step, sink)?;
                step += 1;
                let flow = observer(self, &report)?;
                last = Some(report);
                if flow == Flow::Stop {
                    break 'epochs;
                }
            }
        }
        let (trajectories, left_out) = (batch.entries.len() as u64, batch.left_out);
        Ok(TrainReport { steps: step, trajectories, left_out, on_policy, last, weights: self.weights })
    }

    fn reinforce_step(
        &mut self,
        source: &dyn EventSource,
        entries: &[Entry],
        step: u64,
        sink: &mut dyn Sink,
    ) -> Result<StepReport, TrainError> {
        for chunk in entries.chunks(CREDITS_PER_APPEND) {
            sink.append(chunk.iter().map(|entry| Body::from(entry.event(step))).collect())?;
        }
        let lengths: Vec<u64> = entries.iter().map(|entry| entry.length).collect();
        let mut pieces = Trajectories::new(source, entries).zip(entries).map(|(read, entry)| Ok(piece(entry, read?)));
        let mut write = |outcomes: Vec<Outcome>| sink.append(outcomes.into_iter().map(|o| scored(step, o)).collect());
        let (gradient, sums) = gradient(
            &self.decoder,
            &self.settings.objective,
            entries.iter().map(|entry| entry.tokens).sum(),
            &mut pieces,
            &plan(&lengths, self.settings.micro_tokens),
            self.resources.lanes(),
            &mut write,
        )?;
        self.finish_step(step, batch_digest(entries), &gradient, &sums, sink)
    }

    fn supervise(
        &mut self,
        source: &dyn EventSource,
        folded: &Folded,
        sink: &mut dyn Sink,
        observer: Observer<'_>,
    ) -> Result<TrainReport, TrainError> {
        let corpus = Corpus::build(source, folded, self.settings.sft_filter, &self.resources)?;
        let left_out = LeftOut { incomplete: folded.incomplete, ..LeftOut::default() };
        if corpus.items.is_empty() {
            let reason = format!("no node passes the filter `{:?}` ({left_out})", self.settings.sft_filter);
            return Err(TrainError::Nothing(reason));
        }
        if self.data != Some(corpus.digest) {
            (self.data, self.taken) = (Some(corpus.digest), 0);
        }
        self.start(folded, sink)?;
        let (mut step, mut last, mut visit) = (0, None, Visit::default());
        while step < self.settings.steps {
            let report = self.supervise_step(&corpus, step, &mut visit, sink)?;
            step += 1;
            let flow = observer(self, &report)?;
            last = Some(report);
            if flow == Flow::Stop {
                break;
            }
        }
        let trajectories = corpus.items.len() as u64;
        Ok(TrainReport { steps: step, trajectories, left_out, on_policy: false, last, weights: self.weights })
    }

    fn supervise_step(
        &mut self,
        corpus: &Corpus<'_>,
        step: u64,
        visit: &mut Visit,
        sink: &mut dyn Sink,
    ) -> Result<StepReport, TrainError> {
        let items = visit.next(corpus, self.settings.seed, self.taken, self.settings.batch_trajectories);
        let lengths: Vec<u64> = items.iter().map(|item| item.length).collect();
        let mut pieces = items.iter().map(|item| {
            let (sequence, stored) = corpus.trajectory(item)?.packed();
            let Item { run, rollout, .. } = **item;
            Ok(Piece { run, rollout, node: item.node.clone(), coefficient: 1.0, sequence, stored })
        });
        let (gradient, sums) = gradient(
            &self.decoder,
            &self.settings.objective,
            items.iter().map(|item| item.tokens).sum(),
            &mut pieces,
            &plan(&lengths, self.settings.micro_tokens),
            self.resources.lanes(),
            &mut |_| Ok(()),
        )?;
        let report = self.finish_step(step, items_digest(&items), &gradient, &sums, sink)?;
        self.taken += items.len() as u64;
        Ok(report)
    }

    fn finish_step(
        &mut self,
        step: u64,
        batch: Digest,
        gradient: &Gradient,
        sums: &Sums,
        sink: &mut dyn Sink,
    ) -> Result<StepReport, TrainError> {
        let learning_rate = self.settings.schedule.rate(self.optimizer.step_count());
        let weights_before = self.weights;
        let gradient_norm = self.update(learning_rate, gradient)?;
        self.decoder.set_version(self.decoder.version() + 1);
        self.weights = Digest(self.decoder.digest()?);
        let report = StepReport {
            step,
            version: self.decoder.version(),
            trajectories: sums.trajectories,
            tokens: sums.tokens,
            model_tokens: sums.model_tokens,
            micro_batches: sums.micro_batches,
            loss: sums.loss,
            mean_ratio: sums.mean_ratio(),
            clip_fraction: sums.clip_fraction(),
            equal: sums.equal,
            gradient_norm,
            learning_rate,
            weights_before,
            weights_after: self.weights,
        };
        sink.append(vec![Body::from(step_event(batch, &report))])?;
        Ok(report)
    }

    fn update(&mut self, rate: f64, gradient: &Gradient) -> Result<f64, TrainError> {
        let vars = self.decoder.vars();
        let mut values = Vec::with_capacity(vars.len());
        for var in vars.values() {
            values.push(var.flatten_all()?.to_vec1::<f32>()?);
        }
        let mut parameters: Vec<Parameter<'_>> = vars
            .keys()
            .zip(&mut values)
            .zip(&gradient.0)
            .map(|((name, values), gradient)| Parameter { name, values, gradient })
            .collect();
        let norm = self.optimizer.step(rate, &mut parameters)?;
        for (var, values) in vars.values().zip(values) {
            var.set(&candle_core::Tensor::from_vec(values, var.dims(), var.device())?)?;
        }
        Ok(norm)
    }
}

/// The order of the epoch at hand, kept between steps.
#[derive(Default)]
struct Visit {
    epoch: Option<u64>,
    order: Vec<usize>,
}

impl Visit {
    /// The trajectories of the next step: the rest of an epoch at most, so every epoch visits each trajectory once.
    fn next<'c>(&mut self, corpus: &'c Corpus<'_>, seed: u64, taken: u64, batch: u64) -> Vec<&'c Item> {
        let count = corpus.items.len();
        let (epoch, offset) = (taken / count as u64, usize::try_from(taken % count as u64).unwrap_or(0));
        if self.epoch != Some(epoch) {
            (self.epoch, self.order) = (Some(epoch), order(seed, epoch, count));
        }
        let wanted = usize::try_from(batch).unwrap_or(usize::MAX);
        self.order.iter().skip(offset).take(wanted).filter_map(|place| corpus.items.get(*place)).collect()
    }
}

fn shapes(decoder: &Decoder) -> Vec<(String, Vec<usize>)> {
    decoder.vars().iter().map(|(name, var)| (name.clone(), var.dims().to_vec())).collect()
}

fn piece(entry: &Entry, trajectory: Trajectory) -> Piece {
    let (sequence, stored) = trajectory.packed();
    let coefficient = entry.coefficient();
    Piece { run: entry.run, rollout: entry.rollout, node: entry.node.clone(), coefficient, sequence, stored }
}

fn scored(step: u64, outcome: Outcome) -> Body {
    let Outcome { run, rollout, node, logprobs, share } = outcome;
    Body::from(TrajectoryScored { step, run, rollout, node, logprobs, loss: share.loss })
}

fn items_digest(items: &[&Item]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for item in items {
        let RolloutId(rollout) = item.rollout;
        hasher.update(format!("{}/{rollout} {} {}\n", item.run, item.node, item.tokens).as_bytes());
    }
    Digest(*hasher.finalize().as_bytes())
}

fn step_event(batch: Digest, report: &StepReport) -> TrainStep {
    TrainStep {
        step: report.step,
        batch,
        trajectories: report.trajectories,
        tokens: report.tokens,
        loss: report.loss,
        learning_rate: report.learning_rate,
        gradient_norm: report.gradient_norm,
        mean_ratio: report.mean_ratio,
        clip_fraction: report.clip_fraction,
        weights_before: report.weights_before,
        weights_after: report.weights_after,
    }
}
