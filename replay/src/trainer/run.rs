//! The trainer: weights, optimizer and data position, stepped over the log.

use std::ops::Range;
use std::path::Path;

use rao_policy::{Chat, ChatFiles, Decoder};
use rao_store::event::{Body, TrainFinished, TrainStarted, TrainStep, TrajectoryScored};
use rao_store::{Digest, EventSource, RolloutId, RunId};

use super::batch::{BatchHasher, Entry, LeftOut};
use super::census::Census;
use super::checkpoint;
use super::corpus::{Corpus, Item, Read, order};
use super::fold::RolloutNumbers;
use super::gradient::{Gradient, Outcome, Piece, Sums, Terms, gradient};
use super::memory::{self, Lanes};
use super::metrics::{self, GroupNorms};
use super::micro::Batching;
use super::pending::Pending;
use super::rederive::{RunConfig, parts};
use super::summary::BatchSummary;
use super::trajectory::Trajectory;
use super::{Resources, Settings, Sink, TrainError};
use crate::objective::name_of;
use crate::optimizer::{AdamW, Parameter, group_of};

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
    /// Tokens that the model was run on: the distinct ones, and those that micro-batches share with one another.
    pub model_tokens: u64,
    /// Tokens of context and loss of all trajectories: what the model would have been run on without prefix sharing.
    pub summed_tokens: u64,
    /// Micro-batches.
    pub micro_batches: u64,
    /// The loss, without the KL term.
    pub loss: f64,
    /// Mean entropy of the distributions that the loss tokens were drawn from, in nats.
    pub entropy: f64,
    /// Mean KL term over the loss tokens ([`kl_term`](crate::objective::kl_term)), where there is a reference.
    pub kl: Option<f64>,
    /// Mean importance ratio (1 for `sft`).
    pub mean_ratio: f64,
    /// Share of loss tokens whose ratio was clipped.
    pub clip_fraction: f64,
    /// Loss tokens whose log-probability has the very bits of the stored one: all of them on policy. 0 for `sft`.
    pub equal: u64,
    /// Gradient norm before clipping.
    pub gradient_norm: f64,
    /// Gradient norm before clipping and norm of the update, by group of tensors.
    pub groups: GroupNorms,
    /// Learning rate.
    pub learning_rate: f64,
    /// What the rollouts of the call were like; in its first step.
    pub batch: Option<BatchSummary>,
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
    /// What the rollouts were like.
    pub summary: BatchSummary,
    /// How passes were run.
    pub lanes: Lanes,
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
    pub(super) decoder: Decoder,
    pub(super) chat: ChatFiles,
    tokenizer: Digest,
    pub(super) optimizer: AdamW,
    pub(super) settings: Settings,
    resources: Resources,
    /// The policy that the KL term compares with.
    reference: Option<Decoder>,
    /// What an adapter's settings name as its base model.
    pub(super) base: Option<String>,
    pub(super) data: Option<Digest>,
    pub(super) taken: u64,
    pub(super) weights: Digest,
}

/// What one call of [`Trainer::train`] fixes for all its steps.
struct Call {
    lanes: Lanes,
    summary: BatchSummary,
}

/// What an observer is given after each step.
type Observer<'a> = &'a mut dyn FnMut(&Trainer, &StepReport) -> Result<Flow, TrainError>;

impl Trainer {
    /// A new training from weights in memory: optimizer at step 0. With `lora` in the settings, of a fresh adapter on these
    /// weights, or of the adapter that they have.
    ///
    /// # Errors
    /// When the settings are out of range or do not fit the weights, or these cannot be read.
    pub fn new(
        decoder: Decoder,
        tokenizer_json: Vec<u8>,
        mut settings: Settings,
        resources: Resources,
    ) -> Result<Self, TrainError> {
        settings.check()?;
        let decoder = match (decoder.adapter(), &settings.lora) {
            (None, None) => decoder,
            (None, Some(lora)) => decoder.with_adapter(lora.config(), settings.seed)?,
            (Some(adapter), None) => {
                settings.lora = Some(adapter.into());
                decoder
            }
            (Some(adapter), Some(lora)) if *adapter == lora.config() => decoder,
            (Some(_), Some(_)) => {
                let reason =
                    "the model has an adapter with other settings; leave --lora out to train it, or merge it first";
                return Err(TrainError::Settings(reason.to_owned()));
            }
        };
        let optimizer = AdamW::new(settings.optimizer, shapes(&decoder));
        let (tokenizer, weights) = (Digest::of(&tokenizer_json), Digest(decoder.digest()?));
        Ok(Trainer {
            decoder,
            chat: ChatFiles { tokenizer: tokenizer_json, ..ChatFiles::default() },
            tokenizer,
            optimizer,
            settings,
            resources,
            reference: None,
            base: None,
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
        let base = match decoder.adapter() {
            Some(_) => rao_policy::adapter_base(dir)?,
            None => Some(dir.canonicalize().unwrap_or_else(|_| dir.to_owned()).display().to_string()),
        };
        let chat = if dir.is_file() { Chat::load(dir)?.files().clone() } else { ChatFiles::read(dir)? };
        let mut trainer = Trainer::new(decoder, chat.tokenizer.clone(), settings, resources)?;
        trainer.chat = chat;
        trainer.base = base;
        Ok(trainer)
    }

    /// Gives the training the policy that its KL term compares with: the one whose digest the settings name.
    ///
    /// # Errors
    /// When it is another one, or has another vocabulary than the model.
    pub fn set_reference(&mut self, reference: Decoder) -> Result<(), TrainError> {
        let digest = Digest(reference.digest()?).to_string();
        if self.settings.reference.as_deref() != Some(digest.as_str()) {
            return Err(TrainError::Settings("the reference policy is not the one that the settings name".to_owned()));
        }
        let (own, other) = (self.decoder.config().vocab_size, reference.config().vocab_size);
        if own != other {
            let reason =
                format!("the reference policy has {other} tokens and the model {own}; they must share a tokenizer");
            return Err(TrainError::Settings(reason));
        }
        self.reference = Some(reference);
        Ok(())
    }

    /// Says what an adapter's settings name as its base model, where that is not a folder.
    pub fn set_base(&mut self, base: &str) {
        self.base = Some(base.to_owned());
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
        &self.chat.tokenizer
    }

    /// The files that say how the model writes: the tokenizer, and the chat template if there is one.
    #[must_use]
    pub fn chat_files(&self) -> &ChatFiles {
        &self.chat
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
        if self.settings.reference.is_some() && self.reference.is_none() {
            return Err(TrainError::Settings("the settings name a reference policy, and none was given".to_owned()));
        }
        let report = if self.settings.is_sft() {
            let check = |rollout: &RolloutNumbers| self.check_rollout(rollout);
            let corpus = Corpus::build(source, runs, &self.settings, &self.resources, &check)?;
            let call = self.call(corpus.longest, corpus.summary.clone())?;
            self.supervise(&corpus, &call, sink, observer)
        } else {
            let census = Census::take(source, runs, &self.settings, &|rollout| self.check_rollout(rollout))?;
            let call = self.call(census.longest, census.summary.clone())?;
            self.reinforce(&census, &call, sink, observer)
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

    /// What a call fixes, from the length of the longest trajectory.
    fn call(&self, longest: u64, summary: BatchSummary) -> Result<Call, TrainError> {
        let (reference, settings, resources) = (self.reference.as_ref(), &self.settings, &self.resources);
        Ok(Call { lanes: memory::lanes(&self.decoder, reference, settings, resources, longest)?, summary })
    }

    fn start(&self, runs: &[(RunId, Digest)], sink: &mut dyn Sink) -> Result<(), TrainError> {
        let (version, optimizer_step) = (self.decoder.version(), self.optimizer.step_count());
        let config = RunConfig { settings: self.settings.clone(), version, optimizer_step };
        sink.append(vec![Body::from(TrainStarted {
            config: serde_json::to_string(&config).unwrap_or_default(),
            loss: self.settings.objective.loss,
            weights: self.weights,
            tokenizer: self.tokenizer,
            runs: runs.to_vec(),
        })])
    }

    fn reinforce(
        &mut self,
        census: &Census<'_>,
        call: &Call,
        sink: &mut dyn Sink,
        observer: Observer<'_>,
    ) -> Result<TrainReport, TrainError> {
        let (count, left_out) = (census.count(), census.left_out);
        if count == 0 {
            return Err(TrainError::Nothing(format!("no group has two finished rollouts that acted ({left_out})")));
        }
        let on_policy = census.acted.iter().all(|weights| *weights == Some(self.weights));
        self.start(&census.runs, sink)?;
        let (mut step, mut last) = (0, None);
        'epochs: for _ in 0..self.settings.epochs {
            for part in parts(count, self.settings.minibatches) {
                let report = self.reinforce_step(census, part, step, call, sink)?;
                step += 1;
                let flow = observer(self, &report)?;
                last = Some(report);
                if flow == Flow::Stop {
                    break 'epochs;
                }
            }
        }
        Ok(self.report(step, count as u64, left_out, on_policy, last, call))
    }

    fn report(
        &self,
        steps: u64,
        trajectories: u64,
        left_out: LeftOut,
        on_policy: bool,
        last: Option<StepReport>,
        call: &Call,
    ) -> TrainReport {
        let (summary, lanes, weights) = (call.summary.clone(), call.lanes, self.weights);
        TrainReport { steps, trajectories, left_out, on_policy, last, summary, lanes, weights }
    }

    fn batching(&self, call: &Call) -> Batching {
        let Lanes { lanes, checkpoints, .. } = call.lanes;
        let Settings { micro_tokens, prefix_sharing: share_prefixes, .. } = self.settings;
        Batching { micro_tokens, share_prefixes, checkpoints, lanes }
    }

    fn terms(&self, loss_tokens: u64) -> Terms<'_> {
        let (objective, kl_coefficient) = (&self.settings.objective, self.settings.kl_coefficient);
        Terms { objective, loss_tokens, reference: self.reference.as_ref(), kl_coefficient }
    }

    fn reinforce_step(
        &mut self,
        census: &Census<'_>,
        part: Range<usize>,
        step: u64,
        call: &Call,
        sink: &mut dyn Sink,
    ) -> Result<StepReport, TrainError> {
        // Nothing of the step is written before its gradient is known to be finite, as far as it fits in memory.
        let (mut pending, mut hasher) = (Pending::default(), BatchHasher::default());
        for entry in census.entries(part.clone()) {
            let entry = entry?;
            hasher.add(&entry);
            pending.push(Body::from(entry.event(step)), 0, sink)?;
        }
        let mut pieces = census.trajectories(part.clone()).map(|both| both.map(|(entry, read)| piece(&entry, read)));
        let mut write = |outcomes: Vec<Outcome>| {
            outcomes.into_iter().try_for_each(|outcome| {
                let tokens = outcome.logprobs.len();
                pending.push(scored(step, outcome), tokens, sink)
            })
        };
        let (gradient, sums) = gradient(
            &self.decoder,
            &self.terms(census.tokens(part.clone())),
            &census.lengths(part),
            &mut pieces,
            &self.batching(call),
            &mut write,
        )?;
        self.finish_step(step, hasher.finish(), gradient, &sums, call, pending, sink)
    }

    fn supervise(
        &mut self,
        corpus: &Corpus<'_>,
        call: &Call,
        sink: &mut dyn Sink,
        observer: Observer<'_>,
    ) -> Result<TrainReport, TrainError> {
        let left_out = LeftOut { incomplete: corpus.incomplete, ..LeftOut::default() };
        if corpus.len() == 0 {
            let reason = format!("no node passes the filter `{:?}` ({left_out})", self.settings.sft_filter);
            return Err(TrainError::Nothing(reason));
        }
        if self.data != Some(corpus.digest) {
            (self.data, self.taken) = (Some(corpus.digest), 0);
        }
        self.start(&corpus.runs, sink)?;
        let (mut step, mut last, mut visit) = (0, None, Visit::default());
        while step < self.settings.steps {
            let report = self.supervise_step(corpus, step, &mut visit, call, sink)?;
            step += 1;
            let flow = observer(self, &report)?;
            last = Some(report);
            if flow == Flow::Stop {
                break;
            }
        }
        Ok(self.report(step, corpus.len() as u64, left_out, false, last, call))
    }

    fn supervise_step(
        &mut self,
        corpus: &Corpus<'_>,
        step: u64,
        visit: &mut Visit,
        call: &Call,
        sink: &mut dyn Sink,
    ) -> Result<StepReport, TrainError> {
        let items = visit.next(corpus, self.settings.seed, self.taken, self.settings.batch_trajectories);
        let lengths: Vec<u64> = items.iter().map(|item| item.length()).collect();
        let mut hasher = blake3::Hasher::new();
        let mut pieces = items.iter().map(|item| {
            let Read { run, rollout, node, trajectory } = corpus.trajectory(item)?;
            let (sequence, stored) = trajectory.packed();
            let RolloutId(number) = rollout;
            hasher.update(format!("{run}/{number} {node} {}\n", sequence.targets.len()).as_bytes());
            Ok(Piece { run, rollout, node, coefficient: 1.0, sequence, stored })
        });
        let (gradient, sums) = gradient(
            &self.decoder,
            &self.terms(items.iter().map(|item| item.tokens()).sum()),
            &lengths,
            &mut pieces,
            &self.batching(call),
            &mut |_| Ok(()),
        )?;
        let digest = Digest(*hasher.finalize().as_bytes());
        let report = self.finish_step(step, digest, gradient, &sums, call, Pending::default(), sink)?;
        self.taken += items.len() as u64;
        Ok(report)
    }

    #[expect(clippy::too_many_arguments, reason = "what a step is made of")]
    fn finish_step(
        &mut self,
        step: u64,
        batch: Digest,
        gradient: Gradient,
        sums: &Sums,
        call: &Call,
        pending: Pending,
        sink: &mut dyn Sink,
    ) -> Result<StepReport, TrainError> {
        let learning_rate = self.settings.schedule.rate(self.optimizer.step_count());
        let weights_before = self.weights;
        let (gradient_norm, groups) = self.update(learning_rate, gradient)?;
        self.decoder.set_version(self.decoder.version() + 1);
        self.weights = Digest(self.decoder.digest()?);
        let report = StepReport {
            step,
            version: self.decoder.version(),
            trajectories: sums.trajectories,
            tokens: sums.tokens,
            model_tokens: sums.model_tokens,
            summed_tokens: sums.summed_tokens,
            micro_batches: sums.micro_batches,
            loss: sums.loss,
            entropy: sums.mean_entropy(),
            kl: self.reference.is_some().then(|| sums.mean_kl()),
            mean_ratio: sums.mean_ratio(),
            clip_fraction: sums.clip_fraction(),
            equal: sums.equal,
            gradient_norm,
            groups,
            learning_rate,
            batch: (step == 0).then(|| call.summary.clone()),
            weights_before,
            weights_after: self.weights,
        };
        pending.write(sink)?;
        let note = metrics::note(&report);
        sink.append(vec![Body::from(note), Body::from(step_event(batch, &report))])?;
        Ok(report)
    }

    /// One optimizer step, one tensor at a time.
    fn update(&mut self, rate: f64, gradient: Gradient) -> Result<(f64, GroupNorms), TrainError> {
        let vars = self.decoder.vars();
        let named = vars.keys().map(String::as_str).zip(gradient.0.iter().map(Vec::as_slice));
        let step = self.optimizer.begin(rate, named)?;
        let mut groups = GroupNorms::default();
        for (((name, var), gradient), (_, square)) in vars.iter().zip(gradient.0).zip(&step.squares) {
            let mut values = var.flatten_all()?.to_vec1::<f32>()?;
            let mut parameter = Parameter { name, values: &mut values, gradient: &gradient };
            let changed = self.optimizer.apply(&step, &mut parameter)?;
            groups.add(group_of(name), *square, changed);
            var.set(&candle_core::Tensor::from_vec(values, var.dims(), var.device())?)?;
        }
        Ok((step.norm, groups.roots()))
    }
}

/// The order of the epoch at hand, kept between steps.
#[derive(Default)]
struct Visit {
    epoch: Option<u64>,
    order: Vec<u32>,
}

impl Visit {
    /// The trajectories of the next step: the rest of an epoch at most, so every epoch visits each trajectory once.
    fn next(&mut self, corpus: &Corpus<'_>, seed: u64, taken: u64, batch: u64) -> Vec<Item> {
        // The corpus counts its trajectories in 32 bits.
        let count = u32::try_from(corpus.len()).unwrap_or(u32::MAX);
        let (epoch, offset) = (taken / u64::from(count), usize::try_from(taken % u64::from(count)).unwrap_or(0));
        if self.epoch != Some(epoch) {
            (self.epoch, self.order) = (Some(epoch), order(seed, epoch, count));
        }
        let wanted = usize::try_from(batch).unwrap_or(usize::MAX);
        self.order.iter().skip(offset).take(wanted).filter_map(|place| corpus.item(*place)).collect()
    }
}

pub(super) fn shapes(decoder: &Decoder) -> Vec<(String, Vec<usize>)> {
    decoder.vars().iter().map(|(name, var)| (name.clone(), var.dims().to_vec())).collect()
}

fn piece(entry: &Entry, trajectory: Trajectory) -> Piece {
    let (sequence, stored) = trajectory.packed();
    let coefficient = entry.coefficient();
    Piece { run: entry.run, rollout: entry.rollout, node: entry.node.clone(), coefficient, sequence, stored }
}

fn scored(step: u64, outcome: Outcome) -> Body {
    let Outcome { run, rollout, node, logprobs, share, .. } = outcome;
    Body::from(TrajectoryScored { step, run, rollout, node, logprobs, loss: share.loss })
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
