//! The learning rate as a function of the optimizer step.

use serde::{Deserialize, Serialize};

/// What follows the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decay {
    /// The base rate, for ever.
    #[default]
    Constant,
    /// A straight line to the floor, reached at the horizon.
    Linear,
    /// Half a cosine to the floor, reached at the horizon.
    Cosine,
}

/// A learning-rate schedule: linear warm-up, then constant or decaying. A pure function of the step, so a resumed
/// training run takes the rate it would have had.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Schedule {
    /// The rate after warm-up.
    pub learning_rate: f64,
    /// Steps of warm-up: step `s`, counted from 0, has `(s + 1) / warmup` of the rate while `s < warmup`.
    pub warmup: u64,
    /// What follows.
    pub decay: Decay,
    /// The step at which a decay reaches the floor, counted from 0 of the optimizer; unused by `constant`.
    pub horizon: u64,
    /// The rate at and after the horizon, as a share of `learning_rate`.
    pub floor: f64,
}

impl Default for Schedule {
    fn default() -> Self {
        Schedule { learning_rate: 1e-4, warmup: 0, decay: Decay::Constant, horizon: 0, floor: 0.0 }
    }
}

impl Schedule {
    /// The rate of optimizer step `step`, counted from 0.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "no training run has 2^53 steps")]
    pub fn rate(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.learning_rate * (step + 1) as f64 / self.warmup as f64;
        }
        let span = self.horizon.saturating_sub(self.warmup).max(1) as f64;
        let passed = ((step - self.warmup) as f64 / span).min(1.0);
        let left = match self.decay {
            Decay::Constant => return self.learning_rate,
            Decay::Linear => 1.0 - passed,
            // libm's cosine has the same bits on every machine.
            Decay::Cosine => 0.5 * (1.0 + libm::cos(std::f64::consts::PI * passed)),
        };
        self.learning_rate * (self.floor + (1.0 - self.floor) * left)
    }

    /// What is wrong with the settings, in words; `None` if nothing is.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        if !(self.learning_rate.is_finite() && self.learning_rate > 0.0) {
            return Some(format!("learning_rate is {}; it must be a finite number above 0", self.learning_rate));
        }
        if !(0.0..=1.0).contains(&self.floor) {
            return Some(format!("floor is {}; it must be between 0 and 1", self.floor));
        }
        if self.decay != Decay::Constant && self.horizon <= self.warmup {
            return Some(format!(
                "horizon is {} and warmup {}: a decay needs a horizon beyond its warm-up",
                self.horizon, self.warmup
            ));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warm_up_is_linear_and_ends_at_the_base_rate() {
        let schedule = Schedule { learning_rate: 0.4, warmup: 4, ..Schedule::default() };
        let rates: Vec<f64> = (0..6).map(|step| schedule.rate(step)).collect();
        assert_eq!(rates, [0.1, 0.2, 0.4 * 3.0 / 4.0, 0.4, 0.4, 0.4]);
    }

    #[test]
    fn decays_run_from_base_to_floor() {
        for decay in [Decay::Linear, Decay::Cosine] {
            let schedule = Schedule { learning_rate: 2.0, warmup: 2, decay, horizon: 12, floor: 0.25 };
            assert_eq!(schedule.rate(2), 2.0);
            assert!((schedule.rate(7) - 2.0 * 0.625).abs() < 1e-12, "half way is the middle of base and floor");
            assert!((schedule.rate(12) - 0.5).abs() < 1e-12);
            assert_eq!(schedule.rate(1000).to_bits(), schedule.rate(12).to_bits());
            assert!(schedule.rate(3) > schedule.rate(4));
        }
    }

    #[test]
    fn settings_that_cannot_be_meant_are_named() {
        let bad = |change: fn(&mut Schedule)| {
            let mut schedule = Schedule::default();
            change(&mut schedule);
            schedule.problem()
        };
        assert!(Schedule::default().problem().is_none());
        assert!(bad(|s| s.learning_rate = f64::NAN).unwrap().contains("learning_rate"));
        assert!(bad(|s| s.decay = Decay::Cosine).unwrap().contains("horizon"));
        assert!(bad(|s| s.floor = 2.0).unwrap().contains("floor"));
    }
}
