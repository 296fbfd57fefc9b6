//! A stored training run computed again from the log alone: no weights, no model.

use std::ops::Range;

use rao_store::event::{
    Body, CreditAssigned, Kind, LossKind, TrainFinished, TrainStarted, TrainStep, TrajectoryScored,
};
use rao_store::{Address, Digest, EventSource, Filter, RunId, Seq, Stream};
use serde::{Deserialize, Serialize};

use super::batch::{Batch, assign, batch_digest};
use super::fold::fold;
use super::gradient::Sums;
use super::trajectory::Trajectories;
use super::{Settings, TrainError};

/// What a [`TrainStarted`] event's `config` holds, as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunConfig {
    /// The settings.
    pub settings: Settings,
    /// Optimizer steps that the weights had seen before this training run.
    pub version: u64,
    /// Steps that the optimizer had taken before this training run: where the schedule stood.
    pub optimizer_step: u64,
}

/// A stored number that the log does not give again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The event that holds it.
    pub address: Address,
    /// Which number.
    pub what: String,
    /// As stored.
    pub stored: String,
    /// As computed again.
    pub computed: String,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Mismatch { address, what, stored, computed } = self;
        write!(f, "event {address}: stored {what} is {stored}, the log gives {computed}")
    }
}

/// What [`rederive`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rederived {
    /// The loss.
    pub loss: LossKind,
    /// The runs trained on.
    pub runs: Vec<RunId>,
    /// Steps computed again. 0 for `sft`, whose trajectories' log-probabilities are not written.
    pub steps: u64,
    /// Steps in the log.
    pub stored_steps: u64,
    /// Credits computed again.
    pub credits: u64,
    /// Trajectory losses computed again.
    pub losses: u64,
    /// Loss tokens computed again.
    pub tokens: u64,
    /// The first difference, at which the check stopped.
    pub mismatch: Option<Mismatch>,
}

/// Computes reward, baseline, advantage, count, weight and loss of every step of training run `training` again, from the
/// recorded rollouts and the log-probabilities that the trainer wrote, and compares each with the stored number bit for
/// bit. The weights' digests must lead from the training's start to its end, step by step; of `sft` that is all that is
/// checked. Stops at the first difference.
///
/// # Errors
/// When the training run or a rollout cannot be read, or the log is known to be damaged.
pub fn rederive(source: &dyn EventSource, training: RunId) -> Result<Rederived, TrainError> {
    let stream = Stream::Training(training);
    let mut events = source.events(stream, Seq(0), &Filter::kinds([Kind::TrainStarted]));
    let Some(first) = events.next().transpose()? else {
        return Err(TrainError::Nothing(format!("{training} is no training run of this log")));
    };
    let Body::TrainStarted(started) = &first.body else {
        return Err(TrainError::Event {
            address: first.address(),
            reason: "a training run must start here".to_owned(),
        });
    };
    let config: RunConfig = serde_json::from_str(&started.config)
        .map_err(|error| TrainError::Config { run: training, reason: error.to_string() })?;
    let mut found = Rederived {
        loss: started.loss,
        runs: started.runs.iter().map(|(run, _)| *run).collect(),
        steps: 0,
        stored_steps: 0,
        credits: 0,
        losses: 0,
        tokens: 0,
        mismatch: None,
    };
    if config.settings.is_sft() {
        check_steps(source, stream, started, &mut found)?;
        return Ok(found);
    }
    let batch = assign(&fold(source, &found.runs, config.settings.lambda)?, &config.settings)?;
    if let Err(mismatch) = check_runs(first.address(), started, &batch) {
        found.mismatch = Some(mismatch);
        return Ok(found);
    }
    let mut check = Check::new(source, &config, &batch, started.weights, &mut found);
    for event in source.events(stream, Seq(0), &Filter::all()) {
        let event = event?;
        let address = event.address();
        let outcome = match &event.body {
            Body::CreditAssigned(credit) => check.credit(address, credit),
            Body::TrajectoryScored(scored) => check.scored(address, scored)?,
            Body::TrainStep(step) => check.step(address, step),
            Body::TrainFinished(end) => check.chain.end(address, end),
            _ => Ok(()),
        };
        if let Err(mismatch) = outcome {
            found.mismatch = Some(mismatch);
            return Ok(found);
        }
    }
    Ok(found)
}

/// Follows the steps of supervised training, and counts them.
fn check_steps(
    source: &dyn EventSource,
    stream: Stream,
    started: &TrainStarted,
    found: &mut Rederived,
) -> Result<(), TrainError> {
    let mut chain = Chain { steps: 0, weights: started.weights };
    for event in source.events(stream, Seq(0), &Filter::kinds([Kind::TrainStep, Kind::TrainFinished])) {
        let event = event?;
        let outcome = match &event.body {
            Body::TrainStep(step) => {
                found.stored_steps += 1;
                chain.step(event.address(), step)
            }
            Body::TrainFinished(end) => chain.end(event.address(), end),
            _ => Ok(()),
        };
        if let Err(mismatch) = outcome {
            found.mismatch = Some(mismatch);
            break;
        }
    }
    Ok(())
}

/// The steps of a training run, each beginning with the weights that the one before left.
struct Chain {
    steps: u64,
    weights: Digest,
}

impl Chain {
    fn step(&mut self, address: Address, stored: &TrainStep) -> Outcome {
        same(address, "step", &stored.step, &self.steps)?;
        same(address, "weights before", &stored.weights_before, &self.weights)?;
        (self.steps, self.weights) = (self.steps + 1, stored.weights_after);
        Ok(())
    }

    fn end(&self, address: Address, stored: &TrainFinished) -> Outcome {
        same(address, "number of steps", &stored.steps, &self.steps)?;
        same(address, "final weights", &stored.weights, &self.weights)
    }
}

fn check_runs(address: Address, started: &TrainStarted, batch: &Batch) -> Result<(), Mismatch> {
    for ((run, stored), (_, computed)) in started.runs.iter().zip(&batch.runs) {
        same(address, &format!("content of run {run}"), stored, computed)?;
    }
    Ok(())
}

/// The contiguous parts of a batch of `count` trajectories, one for each optimizer step of a pass; none is empty.
pub(crate) fn parts(count: usize, minibatches: u64) -> Vec<Range<usize>> {
    let wanted = usize::try_from(minibatches).unwrap_or(usize::MAX).clamp(1, count.max(1));
    (0..wanted)
        .map(|part| part * count / wanted..(part + 1) * count / wanted)
        .filter(|range| !range.is_empty())
        .collect()
}

struct Check<'a> {
    source: &'a dyn EventSource,
    config: &'a RunConfig,
    batch: &'a Batch,
    parts: Vec<Range<usize>>,
    found: &'a mut Rederived,
    credits: usize,
    scored: usize,
    sums: Sums,
    trajectories: Trajectories<'a>,
    chain: Chain,
}

type Outcome = Result<(), Mismatch>;

impl<'a> Check<'a> {
    fn new(
        source: &'a dyn EventSource,
        config: &'a RunConfig,
        batch: &'a Batch,
        weights: Digest,
        found: &'a mut Rederived,
    ) -> Self {
        let parts = parts(batch.entries.len(), config.settings.minibatches);
        let trajectories = Trajectories::new(source, &[]);
        let (sums, chain) = (Sums::default(), Chain { steps: 0, weights });
        let mut check = Check { source, config, batch, parts, found, credits: 0, scored: 0, sums, trajectories, chain };
        check.begin();
        check
    }

    /// The entries of the step at hand.
    fn entries(&self) -> &'a [super::batch::Entry] {
        let count = self.parts.len().max(1) as u64;
        let part = usize::try_from(self.found.steps % count).unwrap_or(0);
        let range = self.parts.get(part).cloned().unwrap_or(0..0);
        self.batch.entries.get(range).unwrap_or_default()
    }

    fn begin(&mut self) {
        (self.credits, self.scored, self.sums) = (0, 0, Sums::default());
        self.trajectories = Trajectories::new(self.source, self.entries());
    }

    fn credit(&mut self, address: Address, stored: &CreditAssigned) -> Outcome {
        let computed = self.entries().get(self.credits).map(|entry| entry.event(self.found.steps));
        let Some(computed) = computed else {
            return Err(extra(address, "trajectory", &stored.node));
        };
        same(address, "step", &stored.step, &computed.step)?;
        same(address, "rollout", &(stored.run, stored.rollout), &(computed.run, computed.rollout))?;
        same(address, "node", &stored.node, &computed.node)?;
        same(address, "source", &stored.source, &computed.source)?;
        bits(address, "reward", stored.reward, computed.reward)?;
        bits(address, "baseline", stored.baseline, computed.baseline)?;
        bits(address, "advantage", stored.advantage, computed.advantage)?;
        same(address, "depth", &stored.depth, &computed.depth)?;
        same(address, "depth count", &stored.count, &computed.count)?;
        bits(address, "weight", stored.weight, computed.weight)?;
        same(address, "tokens", &stored.tokens, &computed.tokens)?;
        self.credits += 1;
        self.found.credits += 1;
        Ok(())
    }

    fn scored(&mut self, address: Address, stored: &TrajectoryScored) -> Result<Outcome, TrainError> {
        let entries = self.entries();
        let (Some(entry), Some(trajectory)) = (entries.get(self.scored), self.trajectories.next().transpose()?) else {
            return Ok(Err(extra(address, "trajectory", &stored.node)));
        };
        if let Err(mismatch) = same(address, "step", &stored.step, &self.found.steps) {
            return Ok(Err(mismatch));
        }
        let place = (entry.run, entry.rollout, &entry.node);
        if let Err(mismatch) = same(address, "trajectory", &(stored.run, stored.rollout, &stored.node), &place) {
            return Ok(Err(mismatch));
        }
        let loss_tokens = entries.iter().map(|entry| entry.tokens).sum();
        let objective = &self.config.settings.objective;
        let share = match objective.share(entry.coefficient(), &stored.logprobs, &trajectory.stored, loss_tokens) {
            Ok(share) => share,
            Err(error) => {
                let stored = format!("{:?}", stored.loss);
                return Ok(Err(Mismatch { address, what: "loss".to_owned(), stored, computed: error.to_string() }));
            }
        };
        self.sums.add(&share);
        self.scored += 1;
        self.found.losses += 1;
        self.found.tokens += share.derivatives.len() as u64;
        Ok(bits(address, "loss", stored.loss, share.loss))
    }

    fn step(&mut self, address: Address, stored: &TrainStep) -> Outcome {
        self.found.stored_steps += 1;
        let entries = self.entries();
        self.chain.step(address, stored)?;
        same(address, "number of credits", &entries.len(), &self.credits)?;
        same(address, "batch", &stored.batch, &batch_digest(entries))?;
        same(address, "trajectories", &stored.trajectories, &self.sums.trajectories)?;
        same(address, "tokens", &stored.tokens, &self.sums.tokens)?;
        bits(address, "loss", stored.loss, self.sums.loss)?;
        bits(address, "mean ratio", stored.mean_ratio, self.sums.mean_ratio())?;
        bits(address, "clip fraction", stored.clip_fraction, self.sums.clip_fraction())?;
        let rate = self.config.settings.schedule.rate(self.config.optimizer_step + self.found.steps);
        bits(address, "learning rate", stored.learning_rate, rate)?;
        self.found.steps += 1;
        self.begin();
        Ok(())
    }
}

fn extra(address: Address, what: &str, node: &rao_store::NodePath) -> Mismatch {
    Mismatch { address, what: what.to_owned(), stored: format!("node {node}"), computed: "none".to_owned() }
}

fn same<T: PartialEq + std::fmt::Debug>(address: Address, what: &str, stored: &T, computed: &T) -> Outcome {
    if stored == computed {
        return Ok(());
    }
    let (stored, computed) = (format!("{stored:?}"), format!("{computed:?}"));
    Err(Mismatch { address, what: what.to_owned(), stored, computed })
}

fn bits(address: Address, what: &str, stored: f64, computed: f64) -> Outcome {
    if stored.to_bits() == computed.to_bits() {
        return Ok(());
    }
    let (stored, computed) = (format!("{stored:?}"), format!("{computed:?}"));
    Err(Mismatch { address, what: what.to_owned(), stored, computed })
}
