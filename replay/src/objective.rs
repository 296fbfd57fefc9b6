//! The losses: each trajectory's share of the batch's loss and its derivative by every log-probability, in f64.
//!
//! With `c = w_d * A` the trajectory's coefficient (Eqs. 3 and 4), `lp_t` the current log-probability of its generated
//! token `t`, `old_t` the one stored when the token was sampled, `r_t = exp(lp_t - old_t)` and `M` the number of loss
//! tokens of the whole optimizer step, all sums running over the trajectory's generated tokens:
//!
//! | loss    | share of the trajectory                              | derivative by `lp_t`                             |
//! | ------- | ---------------------------------------------------- | ------------------------------------------------ |
//! | `pg`    | `-sum(c * lp_t)`                                     | `-c`                                             |
//! | `is`    | `-sum(c * r_t) / M`                                  | `-c * r_t / M`                                   |
//! | `ppo`   | `-sum(min(c * r_t, c * clip(r_t, 1-l, 1+h))) / M`    | `-c * r_t / M`, 0 where the clipped value is less |
//! | `cispo` | `-sum(c * sg(clip(r_t, 0, x)) * lp_t) / M`           | `-c * clip(r_t, 0, x) / M` (`sg`: held constant) |
//! | `sft`   | `-sum(lp_t) / M`                                     | `-1 / M`                                         |
//!
//! `pg` is Eq. 5 as printed: a sum over tokens and trajectories, no mean. `cispo` is the token mean that the authors
//! trained with. Minimising each ascends the objective.
//!
//! Sums run left to right from 0.0 in token order; shares are added in batch order. The exponential is libm's, which
//! has the same bits on every machine. So a stored share is recomputed bit for bit from the stored log-probabilities
//! and the stored credit, without a model.

use rao_store::event::LossKind;
use serde::{Deserialize, Serialize};

/// A loss with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Objective {
    /// Which loss.
    #[serde(with = "loss_name")]
    pub loss: LossKind,
    /// `ppo`: how far below 1 a ratio counts (`l`).
    pub clip_low: f64,
    /// `ppo`: how far above 1 a ratio counts (`h`).
    pub clip_high: f64,
    /// `cispo`: the greatest weight a ratio gives (`x`).
    pub ratio_max: f64,
}

impl Default for Objective {
    fn default() -> Self {
        Objective { loss: LossKind::Cispo, clip_low: 0.2, clip_high: 0.2, ratio_max: 5.0 }
    }
}

/// Why a loss has no value.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectiveError {
    /// Two lists that should pair up do not.
    #[error("{current} current log-probabilities for {stored} stored ones; there must be one for one")]
    Lengths {
        /// How many the model gave.
        current: usize,
        /// How many are stored.
        stored: usize,
    },
    /// A log-probability or a ratio that is not a finite number.
    #[error("token {index}: current log-probability {current}, stored {stored}: their ratio is not a finite number")]
    NotFinite {
        /// The token's index among the trajectory's generated tokens.
        index: usize,
        /// The model's log-probability.
        current: f32,
        /// The stored one.
        stored: f32,
    },
}

/// A trajectory's part in the loss.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Its share of the loss.
    pub loss: f64,
    /// The derivative of the loss by each of its log-probabilities.
    pub derivatives: Vec<f64>,
    /// Sum of its ratios; for `sft`, where there is none, its number of tokens.
    pub ratios: f64,
    /// Tokens whose ratio was clipped: for `ppo` those that get no gradient, for `cispo` those beyond `ratio_max`.
    pub clipped: u64,
    /// Tokens whose current log-probability has the very bits of the stored one; 0 for `sft`.
    pub equal: u64,
}

struct Term {
    value: f64,
    slope: f64,
    clipped: bool,
}

impl Objective {
    /// The loss with its default settings.
    #[must_use]
    pub fn new(loss: LossKind) -> Self {
        Objective { loss, ..Objective::default() }
    }

    /// Whether the loss compares with the log-probabilities stored when the tokens were sampled.
    #[must_use]
    pub fn needs_stored(&self) -> bool {
        self.loss != LossKind::Sft
    }

    /// The share of one trajectory. `coefficient` is `w_d * A` (unused by `sft`), `current` the model's
    /// log-probabilities of its generated tokens, `stored` the sampler's (empty for `sft`), `loss_tokens` the `M` of the
    /// step.
    ///
    /// # Errors
    /// When the lists differ in length, or a log-probability or ratio is not finite.
    pub fn share(
        &self,
        coefficient: f64,
        current: &[f32],
        stored: &[f32],
        loss_tokens: u64,
    ) -> Result<Share, ObjectiveError> {
        let wanted = if self.needs_stored() { current.len() } else { 0 };
        if stored.len() != wanted {
            return Err(ObjectiveError::Lengths { current: current.len(), stored: stored.len() });
        }
        let divisor = self.divisor(loss_tokens);
        let mut share =
            Share { loss: 0.0, derivatives: Vec::with_capacity(current.len()), ratios: 0.0, clipped: 0, equal: 0 };
        for (index, &now) in current.iter().enumerate() {
            let then = stored.get(index).copied();
            let ratio = then.map_or(1.0, |then| libm::exp(f64::from(now) - f64::from(then)));
            if !(now.is_finite() && ratio.is_finite()) {
                return Err(ObjectiveError::NotFinite { index, current: now, stored: then.unwrap_or(0.0) });
            }
            let term = self.term(coefficient, f64::from(now), ratio);
            share.loss += term.value;
            share.derivatives.push(term.slope / divisor);
            share.ratios += ratio;
            share.clipped += u64::from(term.clipped);
            share.equal += u64::from(then.is_some_and(|then| then.to_bits() == now.to_bits()));
        }
        share.loss /= divisor;
        Ok(share)
    }

    #[expect(clippy::cast_precision_loss, reason = "a step has far fewer than 2^53 tokens")]
    fn divisor(&self, loss_tokens: u64) -> f64 {
        if self.loss == LossKind::Pg { 1.0 } else { loss_tokens.max(1) as f64 }
    }

    fn term(&self, c: f64, lp: f64, ratio: f64) -> Term {
        let plain = |value, slope| Term { value, slope, clipped: false };
        match self.loss {
            LossKind::Pg => plain(-(c * lp), -c),
            LossKind::Is => plain(-(c * ratio), -(c * ratio)),
            LossKind::Ppo => {
                let free = c * ratio;
                let held = c * ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high);
                let clipped = held < free;
                Term { value: -free.min(held), slope: if clipped { 0.0 } else { -free }, clipped }
            }
            LossKind::Cispo => {
                let weight = ratio.clamp(0.0, self.ratio_max);
                Term { value: -(c * weight * lp), slope: -(c * weight), clipped: ratio > self.ratio_max }
            }
            LossKind::Sft => plain(-lp, -1.0),
        }
    }

    /// What is wrong with the settings, in words; `None` if nothing is.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        if !(0.0..1.0).contains(&self.clip_low) {
            return Some(format!("clip_low is {}; it must be at least 0 and below 1", self.clip_low));
        }
        if !(self.clip_high.is_finite() && self.clip_high >= 0.0) {
            return Some(format!("clip_high is {}; it must be a finite number of at least 0", self.clip_high));
        }
        if !(self.ratio_max.is_finite() && self.ratio_max > 0.0) {
            return Some(format!("ratio_max is {}; it must be a finite number above 0", self.ratio_max));
        }
        None
    }
}

/// The KL term of one token and its derivative by the current log-probability, in f64.
///
/// With `d = reference - current`, the log-ratio of a token that was sampled from the policy: `exp(d) - 1 - d`, the estimator
/// known as k3 (Schulman, "Approximating KL divergence"). It is never negative, and its mean over the policy's own samples is
/// KL(policy || reference). The derivative `1 - exp(d)` is the term's own; the distribution that samples come from is held
/// fixed.
#[must_use]
pub fn kl_term(current: f32, reference: f32) -> (f64, f64) {
    let d = f64::from(reference) - f64::from(current);
    let ratio = libm::exp(d);
    (ratio - 1.0 - d, 1.0 - ratio)
}

/// Every loss with the name that commands and settings use.
pub const LOSSES: [(LossKind, &str); 5] = [
    (LossKind::Pg, "pg"),
    (LossKind::Is, "is"),
    (LossKind::Ppo, "ppo"),
    (LossKind::Cispo, "cispo"),
    (LossKind::Sft, "sft"),
];

/// The loss of that name, if there is one.
#[must_use]
pub fn loss_of(name: &str) -> Option<LossKind> {
    LOSSES.iter().find(|(_, known)| *known == name).map(|(loss, _)| *loss)
}

/// The loss's name.
#[must_use]
pub fn name_of(loss: LossKind) -> &'static str {
    LOSSES.iter().find(|(known, _)| *known == loss).map_or("unknown", |(_, name)| *name)
}

/// A [`LossKind`] in settings: by the name that commands use.
mod loss_name {
    use rao_store::event::LossKind;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(loss: &LossKind, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(super::name_of(*loss))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<LossKind, D::Error> {
        let name = String::deserialize(from)?;
        super::loss_of(&name)
            .ok_or_else(|| D::Error::custom(format!("unknown loss `{name}`: use pg, is, ppo, cispo or sft")))
    }
}
