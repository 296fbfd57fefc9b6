//! Forward, loss and backward over micro-batches, gradients added in one fixed order.

use rao_policy::{Decoder, Packed, PackedSequence};
use rao_store::{NodePath, RolloutId, RunId};
use rayon::prelude::*;

use super::TrainError;
use crate::objective::{Objective, Share};

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
    /// Its part in the loss.
    pub share: Share,
}

/// Sums over an optimizer step's trajectories, in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// Trajectories.
    pub trajectories: u64,
    /// Loss tokens.
    pub tokens: u64,
    /// Tokens of context and loss that the model was run on.
    pub model_tokens: u64,
    /// Micro-batches.
    pub micro_batches: u64,
    /// The loss.
    pub loss: f64,
    /// Importance ratios.
    pub ratios: f64,
    /// Tokens whose ratio was clipped.
    pub clipped: u64,
    /// Tokens whose log-probability has the bits of the stored one.
    pub equal: u64,
}

impl Sums {
    /// Adds a trajectory.
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
    #[expect(clippy::cast_precision_loss, reason = "a step has far fewer than 2^53 tokens")]
    pub fn mean_ratio(&self) -> f64 {
        self.ratios / self.tokens.max(1) as f64
    }

    /// The share of tokens whose ratio was clipped.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a step has far fewer than 2^53 tokens")]
    pub fn clip_fraction(&self) -> f64 {
        self.clipped as f64 / self.tokens.max(1) as f64
    }
}

/// The gradient of every parameter, in the order of their names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gradient(pub Vec<Vec<f32>>);

impl Gradient {
    fn zeros(decoder: &Decoder) -> Self {
        Gradient(decoder.vars().values().map(|var| vec![0.0; var.elem_count()]).collect())
    }

    /// Adds element by element; an empty list stands for zeros.
    fn add(&mut self, other: &Gradient) {
        for (sum, part) in self.0.iter_mut().zip(&other.0) {
            sum.par_chunks_mut(1 << 14).zip(part.par_chunks(1 << 14)).for_each(|(sum, part)| {
                for (sum, part) in sum.iter_mut().zip(part) {
                    *sum += part;
                }
            });
        }
    }
}

/// How many consecutive trajectories each micro-batch takes: as few micro-batches as the budget allows, about equally
/// long. Depends on nothing but the lengths and the budget.
#[must_use]
pub fn plan(lengths: &[u64], budget: u64) -> Vec<usize> {
    let total: u64 = lengths.iter().sum();
    let parts = total.div_ceil(budget.max(1)).max(1);
    let even = total.div_ceil(parts);
    let (mut sizes, mut size, mut held) = (Vec::new(), 0, 0);
    for &length in lengths {
        if size > 0 && (held >= even || held + length > budget) {
            sizes.push(size);
            (size, held) = (0, 0);
        }
        size += 1;
        held += length;
    }
    if size > 0 {
        sizes.push(size);
    }
    sizes
}

/// The gradient of the loss over `pieces`, taken in micro-batches of `sizes` trajectories. Each trajectory's outcome
/// goes to `seen`, in order. As many micro-batches are alive as there are lanes.
///
/// # Errors
/// When a piece cannot be had, the model fails, a loss is not finite, or `seen` fails.
pub fn gradient(
    decoder: &Decoder,
    objective: &Objective,
    loss_tokens: u64,
    pieces: &mut dyn Iterator<Item = Result<Piece, TrainError>>,
    sizes: &[usize],
    lanes: usize,
    seen: &mut dyn FnMut(Vec<Outcome>) -> Result<(), TrainError>,
) -> Result<(Gradient, Sums), TrainError> {
    let (mut total, mut sums) = (Gradient::zeros(decoder), Sums::default());
    let mut pieces = pieces;
    for wave in sizes.chunks(lanes.max(1)) {
        let mut micros = Vec::with_capacity(wave.len());
        for &size in wave {
            micros.push((&mut pieces).take(size).collect::<Result<Vec<Piece>, TrainError>>()?);
        }
        let run = |micro: &[Piece]| micro_gradient(decoder, objective, loss_tokens, micro);
        let results: Vec<Result<Micro, TrainError>> = match micros.as_slice() {
            // A lone micro-batch has all threads to itself.
            [micro] => vec![run(micro)],
            micros => rao_policy::side_by_side(micros.len(), |i| run(micros.get(i).map_or(&[], Vec::as_slice))),
        };
        for result in results {
            let micro = result?;
            total.add(&micro.gradient);
            sums.micro_batches += 1;
            sums.model_tokens += micro.tokens;
            for outcome in &micro.outcomes {
                sums.add(&outcome.share);
            }
            seen(micro.outcomes)?;
        }
    }
    Ok((total, sums))
}

struct Micro {
    outcomes: Vec<Outcome>,
    gradient: Gradient,
    tokens: u64,
}

fn micro_gradient(
    decoder: &Decoder,
    objective: &Objective,
    loss_tokens: u64,
    pieces: &[Piece],
) -> Result<Micro, TrainError> {
    let packed = Packed { sequences: pieces.iter().map(|piece| piece.sequence.clone()).collect() };
    let tokens = packed.tokens() as u64;
    let pass = decoder.pass(&packed)?;
    let mut values = pass.logprobs().iter().copied();
    let (mut outcomes, mut slopes) = (Vec::with_capacity(pieces.len()), Vec::with_capacity(packed.targets()));
    for piece in pieces {
        let (run, rollout, node) = (piece.run, piece.rollout, piece.node.clone());
        let logprobs: Vec<f32> = values.by_ref().take(piece.sequence.targets.len()).collect();
        let failed = |source| TrainError::Objective { run, rollout, node: node.clone(), source };
        let share = objective.share(piece.coefficient, &logprobs, &piece.stored, loss_tokens).map_err(failed)?;
        #[expect(clippy::cast_possible_truncation, reason = "gradients are f32; the derivative is rounded to it once")]
        slopes.extend(share.derivatives.iter().map(|slope| *slope as f32));
        outcomes.push(Outcome { run, rollout, node, logprobs, share });
    }
    // Where no token moves the loss there is nothing to send back: the gradient is exactly zero.
    let gradient = if slopes.iter().all(|slope| *slope == 0.0) {
        Gradient(decoder.vars().values().map(|_| Vec::new()).collect())
    } else {
        // The gradient of `sum(slopes * logprobs)` is the loss's own, since the slopes are its derivatives.
        let parts = pass.gradients(&slopes, None)?;
        let of = |name| match parts.get(name) {
            Some(part) => part.flatten_all()?.to_vec1::<f32>(),
            None => Ok(Vec::new()),
        };
        Gradient(decoder.vars().keys().map(of).collect::<Result<_, _>>()?)
    };
    Ok(Micro { outcomes, gradient, tokens })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_keeps_the_order_and_the_budget() {
        assert_eq!(plan(&[], 10), Vec::<usize>::new());
        assert_eq!(plan(&[3, 3, 3, 3], 100), [4]);
        assert_eq!(plan(&[5, 5, 5, 5], 10), [2, 2]);
        assert_eq!(plan(&[50, 1, 1], 10), [1, 2], "a trajectory over the budget stands alone");
        assert_eq!(plan(&[6, 6, 6, 6], 14), [2, 2]);
        assert_eq!(plan(&[4, 4, 4, 4, 4], 12), [3, 2], "two micro-batches about as long as each other");
        let lengths: Vec<u64> = (1..200).map(|i| i * 7 % 93 + 1).collect();
        let sizes = plan(&lengths, 128);
        assert_eq!(sizes.iter().sum::<usize>(), lengths.len());
        let mut left = lengths.as_slice();
        for size in sizes {
            let (micro, rest) = left.split_at(size);
            assert!(micro.len() == 1 || micro.iter().sum::<u64>() <= 128);
            left = rest;
        }
    }
}
