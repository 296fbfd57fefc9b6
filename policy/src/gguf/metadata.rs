//! A GGUF file's settings as a [`Config`].

use super::broken;
use crate::{Architecture, Config, Experts, PolicyError, RopeScaling};
use candle_core::quantized::gguf_file::{Content, Value};
use std::path::Path;

pub(super) struct Metadata<'a> {
    path: &'a Path,
    content: &'a Content,
    /// What its keys begin with.
    kind: &'a str,
    architecture: Architecture,
}

impl<'a> Metadata<'a> {
    pub(super) fn new(path: &'a Path, content: &'a Content) -> Result<Self, PolicyError> {
        let kind = text(path, content, "general.architecture")?;
        let architecture = match kind {
            "llama" => Architecture::Llama,
            "qwen3" => Architecture::Qwen3,
            "qwen3moe" => Architecture::Qwen3Moe,
            other => {
                let reason = format!("models of kind {other} are not supported; llama, qwen3 and qwen3moe are");
                return Err(broken(path, reason));
            }
        };
        Ok(Self { path, content, kind, architecture })
    }

    /// llama.cpp rotates neighbouring numbers in models of kind llama, and the two halves of a head in the others.
    pub(super) fn interleaved(&self) -> bool {
        self.architecture == Architecture::Llama
    }

    fn value(&self, key: &str) -> Option<&'a Value> {
        self.content.metadata.get(&format!("{}.{key}", self.kind))
    }

    fn missing(&self, key: &str) -> PolicyError {
        broken(self.path, format!("it lacks {}.{key}, or has it in another form", self.kind))
    }

    fn count_or(&self, key: &str) -> Result<Option<usize>, PolicyError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        whole(value).and_then(|n| usize::try_from(n).ok()).map(Some).ok_or_else(|| self.missing(key))
    }

    fn count(&self, key: &str) -> Result<usize, PolicyError> {
        self.count_or(key)?.ok_or_else(|| self.missing(key))
    }

    fn number_or(&self, key: &str) -> Result<Option<f64>, PolicyError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let number = match value {
            // The file's f32 as people write it: 1e-5, not the nearest binary fraction's digits.
            Value::F32(x) => x.to_string().parse().ok(),
            Value::F64(x) => Some(*x),
            _ => None,
        };
        number.map(Some).ok_or_else(|| self.missing(key))
    }

    pub(super) fn config(&self, content: &Content) -> Result<Config, PolicyError> {
        let hidden_size = self.count("embedding_length")?;
        let heads = self.count("attention.head_count")?;
        let head_dim = match self.count_or("attention.key_length")? {
            Some(width) => width,
            None => hidden_size / heads.max(1),
        };
        if let Some(rotated) = self.count_or("rope.dimension_count")?.filter(|rotated| *rotated != head_dim) {
            let reason = format!("it rotates {rotated} of {head_dim} numbers of a head, which is not supported");
            return Err(broken(self.path, reason));
        }
        let max_positions = self.count("context_length")?;
        let rope_theta = self.number_or("rope.freq_base")?.unwrap_or(10_000.0);
        let config = Config {
            architecture: self.architecture,
            vocab_size: rows(content, "token_embd.weight")
                .ok_or_else(|| broken(self.path, "it has no tensor token_embd.weight".to_owned()))?,
            hidden_size,
            intermediate_size: self
                .count_or("feed_forward_length")?
                .or(self.count_or("expert_feed_forward_length")?)
                .ok_or_else(|| self.missing("feed_forward_length"))?,
            layers: self.count("block_count")?,
            heads,
            kv_heads: self.count_or("attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            rms_norm_eps: self
                .number_or("attention.layer_norm_rms_epsilon")?
                .ok_or_else(|| self.missing("attention.layer_norm_rms_epsilon"))?,
            rope_theta,
            rope_scaling: self.scaling(max_positions)?,
            tie_word_embeddings: !content.tensor_infos.contains_key("output.weight"),
            max_positions,
            experts: self.experts(content)?,
        };
        config.check().map_err(|e| broken(self.path, e.to_string()))?;
        Ok(config)
    }

    fn experts(&self, content: &Content) -> Result<Option<Experts>, PolicyError> {
        let count = self.count_or("expert_count")?.unwrap_or(0);
        if self.architecture != Architecture::Qwen3Moe {
            return match count {
                0 => Ok(None),
                n => Err(broken(self.path, format!("a {} model with {n} experts is not supported", self.kind))),
            };
        }
        let shape = content.tensor_infos.get("blk.0.ffn_gate_exps.weight").map(|info| info.shape.dims());
        let width = match (self.count_or("expert_feed_forward_length")?, shape) {
            (Some(width), _) => width,
            (None, Some([_, width, _])) => *width,
            _ => return Err(self.missing("expert_feed_forward_length")),
        };
        let per_token = self.count("expert_used_count")?;
        // llama.cpp divides by the sum in every qwen3moe model.
        Ok(Some(Experts { count, per_token, width, normalize: true, step: 1, dense: Vec::new() }))
    }

    fn scaling(&self, max_positions: usize) -> Result<RopeScaling, PolicyError> {
        let kind = match self.value("rope.scaling.type") {
            None => "none",
            Some(Value::String(kind)) => kind,
            Some(_) => return Err(self.missing("rope.scaling.type")),
        };
        let factor = || {
            let factor = self.number_or("rope.scaling.factor")?;
            factor.ok_or_else(|| self.missing("rope.scaling.factor"))
        };
        match kind {
            "none" => Ok(RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: factor()? }),
            "yarn" => {
                let factor = factor()?;
                let extra = self.number_or("rope.scaling.attn_factor")?.unwrap_or(1.0);
                Ok(RopeScaling::Yarn {
                    factor,
                    beta_fast: 32.0,
                    beta_slow: 1.0,
                    attention: extra * (0.1 * factor.max(1.0).ln() + 1.0),
                    original: self.count_or("rope.scaling.original_context_length")?.unwrap_or(max_positions),
                    truncate: true,
                })
            }
            other => Err(broken(self.path, format!("RoPE scaling {other} is not supported; linear and yarn are"))),
        }
    }
}

/// The first dimension of a tensor.
fn rows(content: &Content, name: &str) -> Option<usize> {
    content.tensor_infos.get(name)?.shape.dims().first().copied()
}

/// A whole number of any width, zero or above.
pub(super) fn whole(value: &Value) -> Option<u64> {
    match value {
        Value::U8(n) => Some(u64::from(*n)),
        Value::U16(n) => Some(u64::from(*n)),
        Value::U32(n) => Some(u64::from(*n)),
        Value::U64(n) => Some(*n),
        Value::I8(n) => u64::try_from(*n).ok(),
        Value::I16(n) => u64::try_from(*n).ok(),
        Value::I32(n) => u64::try_from(*n).ok(),
        Value::I64(n) => u64::try_from(*n).ok(),
        _ => None,
    }
}

/// A text that must be there.
pub(super) fn text<'a>(path: &Path, content: &'a Content, key: &str) -> Result<&'a str, PolicyError> {
    match content.metadata.get(key) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(broken(path, format!("it lacks {key}, or has it in another form"))),
    }
}
