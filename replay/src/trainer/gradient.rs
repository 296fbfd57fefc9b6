//! Forward, loss and backward over micro-batches, gradients added in one fixed order.

use std::collections::BTreeMap;

use candle_core::{CpuStorage, Storage, Tensor};
use rao_policy::{Decoder, Packed, PackedSequence, PassOptions};
use rao_store::{NodePath, RolloutId, RunId};
use rayon::prelude::*;

use super::TrainError;
use super::micro::{Batching, plan_shared, windows};
use crate::objective::{Objective, Share, kl_term};

/// A trajectory on its way into the loss.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The run.
    pub run: RunId,
    /// The rollout.
    pub rollout: RolloutId,
    /// The node.
    pub node: NodePath,
    /// `w_d * A`; unused by `sft`.
    pub coefficient: f64,
    /// Its tokens.
    pub sequence: PackedSequence,
    /// The sampler's log-probabilities; empty for `sft`.
    pub stored: Vec<f32>,
}

/// A trajectory's outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The run.
    pub run: RunId,
    /// The rollout.
    pub rollout: RolloutId,
    /// The node.
    pub node: NodePath,
    /// The model's log-probabilities of its generated tokens.
    pub logprobs: Vec<f32>,
    /// Its part in the loss, without the KL term.
    pub share: Share,
    /// Sum of the entropies, in nats, of the distributions that its generated tokens were drawn from.
    pub entropy: f64,
    /// Sum of the KL terms of its generated tokens; 0 without a reference.
    pub kl: f64,
}

/// What a step minimises.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// The loss.
    pub objective: &'a Objective,
    /// Loss tokens of the whole step.
    pub loss_tokens: u64,
    /// The policy that the KL term compares with.
    pub reference: Option<&'a Decoder>,
    /// What multiplies the mean KL term in the loss. At 0 it is only measured.
    pub kl_coefficient: f64,
}

/// Sums over an optimizer step's trajectories, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// Trajectories.
    pub trajectories: u64,
    /// Loss tokens.
    pub tokens: u64,
    /// Tokens of context and loss that the model was run on: where prefixes are shared, the distinct ones.
    pub model_tokens: u64,
    /// Tokens of context and loss of all trajectories.
    pub summed_tokens: u64,
    /// Micro-batches.
    pub micro_batches: u64,
    /// The loss, without the KL term.
    pub loss: f64,
    /// Importance ratios.
    pub ratios: f64,
    /// Tokens whose ratio was clipped.
    pub clipped: u64,
    /// Tokens whose log-probability has the bits of the stored one.
    pub equal: u64,
    /// Entropies in nats.
    pub entropy: f64,
    /// KL terms.
    pub kl: f64,
}

impl Sums {
    /// Adds a trajectory's part in the loss.
    pub fn add(&mut self, share: &Share) {
        self.trajectories += 1;
        self.tokens += share.derivatives.len() as u64;
        self.loss += share.loss;
        self.ratios += share.ratios;
        self.clipped += share.clipped;
        self.equal += share.equal;
    }

    /// The mean importance ratio.
    #[must_use]
    pub fn mean_ratio(&self) -> f64 {
        self.per_token(self.ratios)
    }

    /// The share of tokens whose ratio was clipped.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a step has far fewer than 2^53 tokens")]
    pub fn clip_fraction(&self) -> f64 {
        self.per_token(self.clipped as f64)
    }

    /// The mean entropy of the distributions that the loss tokens were drawn from, in nats.
    #[must_use]
    pub fn mean_entropy(&self) -> f64 {
        self.per_token(self.entropy)
    }

    /// The mean KL term.
    #[must_use]
    pub fn mean_kl(&self) -> f64 {
        self.per_token(self.kl)
    }

    #[expect(clippy::cast_precision_loss, reason = "a step has far fewer than 2^53 tokens")]
    fn per_token(&self, sum: f64) -> f64 {
        sum / self.tokens.max(1) as f64
    }
}

/// The gradient of every parameter, in the order of their names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gradient(pub Vec<Vec<f32>>);

impl Gradient {
    fn zeros(decoder: &Decoder) -> Self {
        Gradient(decoder.vars().values().map(|var| vec![0.0; var.elem_count()]).collect())
    }

    /// Adds a micro-batch's, by name; what it lacks stands for zeros. Each part is dropped once it is added.
    fn add(&mut self, decoder: &Decoder, mut parts: BTreeMap<String, Tensor>) -> Result<(), TrainError> {
        for (sum, name) in self.0.iter_mut().zip(decoder.vars().keys()) {
            if let Some(part) = parts.remove(name) {
                add(sum, &part.contiguous()?)?;
            }
        }
        Ok(())
    }
}

/// Adds a contiguous tensor element by element.
fn add(sum: &mut [f32], part: &Tensor) -> Result<(), TrainError> {
    let (storage, layout) = part.storage_and_layout();
    let numbers = match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(CpuStorage::F32(all)), Some((start, end))) => all.get(start..end),
        _ => None,
    };
    let numbers = numbers.filter(|numbers| numbers.len() == sum.len());
    let numbers = numbers.ok_or_else(|| candle_core::Error::Msg(format!("a gradient of {:?}", part.shape())))?;
    sum.par_chunks_mut(1 << 14).zip(numbers.par_chunks(1 << 14)).for_each(|(sum, part)| {
        for (sum, part) in sum.iter_mut().zip(part) {
            *sum += part;
        }
    });
    Ok(())
}

/// The gradient of the loss over `pieces`, whose sequences have `lengths`, in micro-batches. Each trajectory's outcome goes to
/// `seen`, in order. As many micro-batches are alive as there are lanes.
///
/// # Errors
/// When a piece cannot be had, the model fails, a loss is not finite, or `seen` fails.
pub fn gradient(
    decoder: &Decoder,
    terms: &Terms<'_>,
    lengths: &[u64],
    pieces: &mut dyn Iterator<Item = Result<Piece, TrainError>>,
    batching: &Batching,
    seen: &mut dyn FnMut(Vec<Outcome>) -> Result<(), TrainError>,
) -> Result<(Gradient, Sums), TrainError> {
    let (mut total, mut sums) = (Gradient::zeros(decoder), Sums::default());
    let mut pieces = pieces;
    for sizes in windows(lengths, batching) {
        let held = (&mut pieces).take(sizes.iter().sum()).collect::<Result<Vec<Piece>, TrainError>>()?;
        let micros = if batching.share_prefixes {
            let tokens: Vec<&[u32]> = held.iter().map(|piece| piece.sequence.tokens.as_slice()).collect();
            plan_shared(&tokens, batching.micro_tokens)
        } else {
            consecutive(&sizes)
        };
        let mut outcomes: Vec<Option<Outcome>> = held.iter().map(|_| None).collect();
        for wave in micros.chunks(batching.lanes.max(1)) {
            let run = |micro: &[usize]| {
                let pieces: Vec<&Piece> = micro.iter().filter_map(|at| held.get(*at)).collect();
                micro_gradient(decoder, terms, &pieces, batching)
            };
            let results: Vec<Result<Micro, TrainError>> = match wave {
                // A lone micro-batch has all threads to itself.
                [micro] => vec![run(micro)],
                wave => rao_policy::side_by_side(wave.len(), |i| run(wave.get(i).map_or(&[], Vec::as_slice))),
            };
            for (micro, result) in wave.iter().zip(results) {
                let result = result?;
                total.add(decoder, result.gradient)?;
                sums.micro_batches += 1;
                sums.model_tokens += result.rows;
                for (at, outcome) in micro.iter().zip(result.outcomes) {
                    if let Some(place) = outcomes.get_mut(*at) {
                        *place = Some(outcome);
                    }
                }
            }
        }
        sums.summed_tokens += held.iter().map(|piece| piece.sequence.tokens.len() as u64).sum::<u64>();
        let outcomes: Vec<Outcome> = outcomes.into_iter().flatten().collect();
        for outcome in &outcomes {
            sums.add(&outcome.share);
            sums.entropy += outcome.entropy;
            sums.kl += outcome.kl;
        }
        seen(outcomes)?;
    }
    Ok((total, sums))
}

fn consecutive(sizes: &[usize]) -> Vec<Vec<usize>> {
    let mut first = 0;
    let micro = |size: &usize| {
        first += size;
        (first - size..first).collect()
    };
    sizes.iter().map(micro).collect()
}

struct Micro {
    outcomes: Vec<Outcome>,
    gradient: BTreeMap<String, Tensor>,
    rows: u64,
}

fn micro_gradient(
    decoder: &Decoder,
    terms: &Terms<'_>,
    pieces: &[&Piece],
    batching: &Batching,
) -> Result<Micro, TrainError> {
    let packed = Packed { sequences: pieces.iter().map(|piece| piece.sequence.clone()).collect() };
    let reference = match terms.reference {
        Some(reference) => reference.score(&packed, batching.share_prefixes)?,
        None => Vec::new(),
    };
    let options = PassOptions { share_prefixes: batching.share_prefixes, checkpoints: batching.checkpoints };
    let pass = decoder.pass_with(&packed, options)?;
    let (mut outcomes, mut slopes) = (Vec::with_capacity(pieces.len()), Vec::with_capacity(packed.targets()));
    let mut values = pass.logprobs().iter().zip(pass.entropies()).enumerate();
    for piece in pieces {
        let (run, rollout, node) = (piece.run, piece.rollout, piece.node.clone());
        let (mut logprobs, mut entropy, mut kl, mut kl_slopes) = (Vec::new(), 0.0, 0.0, Vec::new());
        for (at, (logprob, h)) in values.by_ref().take(piece.sequence.targets.len()) {
            logprobs.push(*logprob);
            entropy += f64::from(*h);
            if let Some(other) = reference.get(at) {
                let (term, slope) = kl_term(*logprob, *other);
                kl += term;
                kl_slopes.push(slope);
            }
        }
        let failed = |source| TrainError::Objective { run, rollout, node: node.clone(), source };
        let share =
            terms.objective.share(piece.coefficient, &logprobs, &piece.stored, terms.loss_tokens).map_err(failed)?;
        extend(&mut slopes, &share.derivatives, &kl_slopes, terms);
        outcomes.push(Outcome { run, rollout, node, logprobs, share, entropy, kl });
    }
    // Where no token moves the loss there is nothing to send back: the gradient is exactly zero.
    let gradient = if slopes.iter().all(|slope| *slope == 0.0) {
        BTreeMap::new()
    } else {
        // The gradient of `sum(slopes * logprobs)` is the loss's own, since the slopes are its derivatives.
        pass.gradients(&slopes, None)?
    };
    Ok(Micro { outcomes, gradient, rows: pass.rows() as u64 })
}

/// The derivatives of the whole loss, each rounded to f32 once.
#[expect(clippy::cast_possible_truncation, reason = "gradients are f32; the derivative is rounded to it once")]
#[expect(clippy::cast_precision_loss, reason = "a step has far fewer than 2^53 tokens")]
fn extend(slopes: &mut Vec<f32>, derivatives: &[f64], kl_slopes: &[f64], terms: &Terms<'_>) {
    if terms.kl_coefficient == 0.0 {
        slopes.extend(derivatives.iter().map(|slope| *slope as f32));
        return;
    }
    let factor = terms.kl_coefficient / terms.loss_tokens.max(1) as f64;
    let both = derivatives.iter().zip(kl_slopes);
    slopes.extend(both.map(|(slope, kl)| (slope + factor * kl) as f32));
}
