//! A step's figures as one JSON object: the line of a metrics file, and a remark in the log.
//!
//! Everything here follows from the log, the weights and the settings, so the files of two equal trainings are equal.
//! Wall-clock figures are kept elsewhere, by whoever has a clock.

use std::collections::BTreeMap;

use rao_store::event::Note;
use serde::{Deserialize, Serialize};

use super::StepReport;
use super::summary::BatchSummary;

/// Norms of one group of tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupNorm {
    /// Of the gradient before clipping.
    pub gradient: f64,
    /// Of what the step added to the weights, decay included.
    pub update: f64,
}

/// Norms by group of tensors ([`group_of`](crate::optimizer::group_of)).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GroupNorms(pub BTreeMap<String, GroupNorm>);

impl GroupNorms {
    /// Adds the squares of a tensor's norms.
    pub(crate) fn add(&mut self, group: &str, gradient: f64, update: f64) {
        let sums = self.0.entry(group.to_owned()).or_default();
        sums.gradient += gradient;
        sums.update += update;
    }

    /// From sums of squares to norms.
    pub(crate) fn roots(mut self) -> Self {
        for sums in self.0.values_mut() {
            *sums = GroupNorm { gradient: sums.gradient.sqrt(), update: sums.update.sqrt() };
        }
        self
    }
}

/// A step's figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Optimizer steps that the weights have seen, this one included.
    pub version: u64,
    /// The step in its training run, from 0.
    pub step: u64,
    /// Trajectories.
    pub trajectories: u64,
    /// Loss tokens.
    pub tokens: u64,
    /// Tokens that the model was run on.
    pub model_tokens: u64,
    /// Tokens of all trajectories.
    pub summed_tokens: u64,
    /// Micro-batches.
    pub micro_batches: u64,
    /// The loss, without the KL term.
    pub loss: f64,
    /// Mean importance ratio.
    pub mean_ratio: f64,
    /// Share of loss tokens whose ratio was clipped.
    pub clip_fraction: f64,
    /// Mean entropy in nats.
    pub entropy: f64,
    /// Mean KL term, where there is a reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<f64>,
    /// Gradient norm before clipping.
    pub gradient_norm: f64,
    /// Norms by group of tensors.
    pub groups: GroupNorms,
    /// Learning rate.
    pub learning_rate: f64,
    /// What the rollouts of the batch were like; in the first step of a training run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchSummary>,
}

/// What a remark in the log begins with that holds a step's figures.
const MARK: &str = "metrics ";

impl Metrics {
    /// The figures of a step.
    #[must_use]
    pub fn new(report: &StepReport) -> Self {
        Metrics {
            version: report.version,
            step: report.step,
            trajectories: report.trajectories,
            tokens: report.tokens,
            model_tokens: report.model_tokens,
            summed_tokens: report.summed_tokens,
            micro_batches: report.micro_batches,
            loss: report.loss,
            mean_ratio: report.mean_ratio,
            clip_fraction: report.clip_fraction,
            entropy: report.entropy,
            kl: report.kl,
            gradient_norm: report.gradient_norm,
            groups: report.groups.clone(),
            learning_rate: report.learning_rate,
            batch: report.batch.clone(),
        }
    }

    /// One line of JSON, without its end.
    #[must_use]
    pub fn to_line(&self) -> String {
        // Serialising a struct of numbers and names cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads a line; `None` if it is none.
    #[must_use]
    pub fn from_line(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }

    /// The figures that a remark in the log holds, if it holds some.
    #[must_use]
    pub fn from_note(note: &Note) -> Option<Self> {
        Self::from_line(note.text.strip_prefix(MARK)?)
    }
}

/// A step's figures as a remark for the log.
pub(crate) fn note(report: &StepReport) -> Note {
    Note { text: format!("{MARK}{}", Metrics::new(report).to_line()) }
}
