//! Rotary frequencies, as they are and stretched for longer contexts.

use crate::PolicyError;
use serde::Deserialize;
use serde_json::{Value, json};
use std::f64::consts::TAU;

/// How rotary frequencies are stretched so that a model reaches further than it was first trained for.
///
/// Only kinds whose angles depend on the position alone: a kind that looks at the sequence's length (`dynamic`, `longrope`)
/// would change the keys of earlier tokens as a context grows, so that no cache could hold them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RopeScaling {
    /// Frequencies as the base gives them.
    #[default]
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3: long waves divided by `factor`, short ones kept, those between interpolated.
    Llama3 {
        /// The divisor.
        factor: f64,
        /// Waves longer than `original / low` positions are divided.
        low: f64,
        /// Waves shorter than `original / high` positions are kept.
        high: f64,
        /// Positions that the model was first trained for.
        original: usize,
    },
    /// YaRN (arXiv 2309.00071): by parts, with the attention's temperature in the cosines and sines.
    Yarn {
        /// The divisor.
        factor: f64,
        /// Turns within `original` positions above which a frequency is kept.
        beta_fast: f64,
        /// Turns below which it is divided.
        beta_slow: f64,
        /// Factor of cosines and sines.
        attention: f64,
        /// Positions that the model was first trained for.
        original: usize,
        /// Whether the bounds between the parts are rounded outwards to whole frequencies.
        truncate: bool,
    },
}

/// `rope_parameters` (transformers 5) or `rope_scaling` (transformers 4) of a `config.json`.
#[derive(Deserialize)]
pub(super) struct RawRope {
    pub(super) rope_theta: Option<f64>,
    #[serde(alias = "type")]
    rope_type: Option<String>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    attention_factor: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    truncate: Option<bool>,
    original_max_position_embeddings: Option<usize>,
    partial_rotary_factor: Option<f64>,
}

impl RawRope {
    /// The scaling that it asks for; `positions` is the configuration's `max_position_embeddings`.
    pub(super) fn scaling(&self, positions: usize) -> Result<RopeScaling, PolicyError> {
        let missing = |field: &str| PolicyError::Config { reason: format!("its RoPE scaling lacks {field}") };
        let refuse = |value: String| Err(PolicyError::Setting { setting: "rope_scaling", value });
        if let Some(part) = self.partial_rotary_factor.filter(|part| *part != 1.0) {
            return Err(PolicyError::Setting { setting: "partial_rotary_factor", value: part.to_string() });
        }
        let factor = || self.factor.ok_or_else(|| missing("factor"));
        let original = self.original_max_position_embeddings;
        Ok(match self.rope_type.as_deref().unwrap_or("default") {
            // Qwen3-VL's positions in time, height and width are one and the same for text.
            "default" | "mrope" => RopeScaling::None,
            "linear" => RopeScaling::Linear { factor: factor()? },
            "llama3" => RopeScaling::Llama3 {
                factor: factor()?,
                low: self.low_freq_factor.ok_or_else(|| missing("low_freq_factor"))?,
                high: self.high_freq_factor.ok_or_else(|| missing("high_freq_factor"))?,
                original: original.ok_or_else(|| missing("original_max_position_embeddings"))?,
            },
            "yarn" => RopeScaling::Yarn {
                factor: factor()?,
                beta_fast: self.beta_fast.unwrap_or(32.0),
                beta_slow: self.beta_slow.unwrap_or(1.0),
                attention: self.attention(factor()?),
                original: original.unwrap_or(positions),
                truncate: self.truncate.unwrap_or(true),
            },
            kind @ ("dynamic" | "longrope") => {
                let reason = "the angles of a token would depend on how long its sequence becomes";
                return refuse(format!("{kind} ({reason}, which caches and shared prefixes rule out)"));
            }
            other => return refuse(other.to_owned()),
        })
    }

    fn attention(&self, factor: f64) -> f64 {
        let scale = |by: f64| if factor <= 1.0 { 1.0 } else { 0.1 * by * factor.ln() + 1.0 };
        match (self.attention_factor, self.mscale, self.mscale_all_dim) {
            (Some(attention), ..) => attention,
            (None, Some(by), Some(all)) if by != 0.0 && all != 0.0 => scale(by) / scale(all),
            _ => scale(1.0),
        }
    }
}

impl RopeScaling {
    /// Why the numbers cannot be right, if they cannot.
    pub(super) fn fault(&self) -> Option<&'static str> {
        let positive = |all: &[f64]| all.iter().all(|x| x.is_finite() && *x > 0.0);
        let fine = match *self {
            Self::None => true,
            Self::Linear { factor } => positive(&[factor]),
            Self::Llama3 { factor, low, high, original } => {
                positive(&[factor, low, high, original as f64]) && high > low
            }
            Self::Yarn { factor, beta_fast, beta_slow, attention, original, .. } => {
                positive(&[factor, beta_fast, beta_slow, attention, original as f64])
            }
        };
        (!fine).then_some("the numbers of its RoPE scaling are out of range")
    }

    /// The frequencies of a head's pairs of dimensions in radians per position, rounded to f32 as transformers rounds them,
    /// and the factor of cosines and sines.
    pub(crate) fn frequencies(&self, head_dim: usize, theta: f64) -> (Vec<f32>, f32) {
        let half = head_dim / 2;
        let base = |i: usize| theta.powf(-2.0 * i as f64 / head_dim as f64);
        let all = |f: &dyn Fn(usize) -> f64| (0..half).map(|i| f(i) as f32).collect();
        match *self {
            Self::None => (all(&base), 1.0),
            Self::Linear { factor } => (all(&|i| base(i) / factor), 1.0),
            Self::Llama3 { factor, low, high, original } => {
                let stretched = |i| {
                    let turns = original as f64 * base(i) / TAU;
                    let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    base(i) * (kept + (1.0 - kept) / factor)
                };
                (all(&stretched), 1.0)
            }
            Self::Yarn { factor, beta_fast, beta_slow, attention, original, truncate } => {
                let bound = |turns: f64| head_dim as f64 * (original as f64 / (turns * TAU)).ln() / (2.0 * theta.ln());
                let (mut low, mut high) = (bound(beta_fast), bound(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, high) = (low.max(0.0), high.min(head_dim as f64 - 1.0));
                let width = if low == high { 0.001 } else { high - low };
                let stretched = |i| {
                    let kept = 1.0 - ((i as f64 - low) / width).clamp(0.0, 1.0);
                    base(i) * (kept + (1.0 - kept) / factor)
                };
                (all(&stretched), attention as f32)
            }
        }
    }

    /// As `rope_parameters` of a `config.json`.
    pub(super) fn to_json(self, theta: f64) -> Value {
        match self {
            Self::None => json!({ "rope_theta": theta, "rope_type": "default" }),
            Self::Linear { factor } => json!({ "rope_theta": theta, "rope_type": "linear", "factor": factor }),
            Self::Llama3 { factor, low, high, original } => json!({
                "rope_theta": theta, "rope_type": "llama3", "factor": factor, "low_freq_factor": low,
                "high_freq_factor": high, "original_max_position_embeddings": original,
            }),
            Self::Yarn { factor, beta_fast, beta_slow, attention, original, truncate } => json!({
                "rope_theta": theta, "rope_type": "yarn", "factor": factor, "beta_fast": beta_fast,
                "beta_slow": beta_slow, "attention_factor": attention, "truncate": truncate,
                "original_max_position_embeddings": original,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: Value) -> Result<RopeScaling, PolicyError> {
        serde_json::from_value::<RawRope>(json).unwrap().scaling(4096)
    }

    /// Numbers from transformers 4.57's `modeling_rope_utils` for head width 64, at the frequencies that tell the parts apart.
    #[test]
    fn frequencies_are_those_of_transformers() {
        let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                            "original_max_position_embeddings": 8192});
        let yarn = json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768});
        type Case = (Value, f64, [(usize, f64); 4], f32);
        let cases: [Case; 3] = [
            (
                llama3,
                500_000.0,
                [
                    (0, 1.0),
                    (15, 0.001_371_893_567_761_138),
                    (17, 0.000_178_507_812_767_996),
                    (31, 3.767_322_690_173_963e-7),
                ],
                1.0,
            ),
            (
                yarn,
                1e6,
                [
                    (11, 0.008_659_643_233_600_653),
                    (13, 0.003_043_117_727_123_648),
                    (18, 0.000_175_706_876_428_576),
                    (31, 3.849_816_315_148_73e-7),
                ],
                1.138_629_4,
            ),
            (
                json!({"rope_type": "linear", "factor": 4.0}),
                10_000.0,
                [(0, 0.25), (1, 0.187_473_552_333_114), (16, 0.0025), (31, 3.333_803_580_408_31e-5)],
                1.0,
            ),
        ];
        for (json, theta, wanted, attention) in cases {
            let scaling = read(json).unwrap();
            let (got, factor) = scaling.frequencies(64, theta);
            for (i, want) in wanted {
                assert!((f64::from(got[i]) / want - 1.0).abs() < 1e-6, "{scaling:?} {i}: {} {want}", got[i]);
            }
            assert!((factor - attention).abs() < 1e-6);
            let back: RawRope = serde_json::from_value(scaling.to_json(theta)).unwrap();
            assert_eq!((back.scaling(1).unwrap(), back.rope_theta), (scaling, Some(theta)));
        }
    }

    #[test]
    fn what_depends_on_the_sequence_is_refused() {
        for kind in ["dynamic", "longrope", "su"] {
            let error = read(json!({"rope_type": kind, "factor": 2.0})).unwrap_err().to_string();
            assert!(error.contains("rope_scaling") && error.contains(kind), "{error}");
        }
        let error = read(json!({"rope_type": "linear"})).unwrap_err().to_string();
        assert!(error.contains("lacks factor"), "{error}");
        assert!(RopeScaling::Linear { factor: 0.0 }.fault().is_some());
    }
}
