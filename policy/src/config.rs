use crate::PolicyError;
use serde::Deserialize;
use serde_json::{Value, json};

/// A family of decoders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// `LlamaForCausalLM`.
    Llama,
    /// `Qwen3ForCausalLM`: as Llama, with an RMS norm over each head of queries and keys.
    Qwen3,
}

impl Architecture {
    const ALL: [(Self, &'static str, &'static str); 2] =
        [(Self::Llama, "LlamaForCausalLM", "llama"), (Self::Qwen3, "Qwen3ForCausalLM", "qwen3")];

    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Llama => ("LlamaForCausalLM", "llama"),
            Self::Qwen3 => ("Qwen3ForCausalLM", "qwen3"),
        }
    }
}

/// The shape of a decoder, as Hugging Face's `config.json` gives it.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The family.
    pub architecture: Architecture,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated feed-forward layer.
    pub intermediate_size: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head_dim: usize,
    /// Added to the mean square in every RMS norm.
    pub rms_norm_eps: f64,
    /// Base of the rotary position angles.
    pub rope_theta: f64,
    /// Whether the output matrix is the embedding.
    pub tie_word_embeddings: bool,
    /// The longest sequence the model was made for, in tokens.
    pub max_positions: usize,
}

#[derive(Deserialize)]
struct Raw {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    rope_parameters: Option<Rope>,
    rope_scaling: Option<Rope>,
    #[serde(default)]
    tie_word_embeddings: bool,
    max_position_embeddings: Option<usize>,
    hidden_act: Option<String>,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default)]
    use_sliding_window: bool,
    layer_types: Option<Vec<String>>,
    quantization_config: Option<Value>,
}

#[derive(Deserialize)]
struct Rope {
    rope_theta: Option<f64>,
    #[serde(alias = "type")]
    rope_type: Option<String>,
}

/// What says which architecture a `config.json` is for; read first, because another one may lack the other fields.
#[derive(Deserialize)]
struct Kind {
    #[serde(default)]
    architectures: Vec<String>,
    model_type: Option<String>,
}

impl Config {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// [`PolicyError::Architecture`] for another family, [`PolicyError::Setting`] for a setting that is not implemented,
    /// [`PolicyError::Config`] for anything else that is wrong.
    pub fn from_json(json: &[u8]) -> Result<Self, PolicyError> {
        let unreadable = |e: serde_json::Error| PolicyError::Config { reason: e.to_string() };
        let kind: Kind = serde_json::from_slice(json).map_err(unreadable)?;
        let architecture = architecture(&kind)?;
        let raw: Raw = serde_json::from_slice(json).map_err(unreadable)?;
        refuse_unsupported(&raw)?;
        let rope_theta = [&raw.rope_parameters, &raw.rope_scaling]
            .into_iter()
            .find_map(|rope| rope.as_ref()?.rope_theta)
            .or(raw.rope_theta)
            .unwrap_or(10_000.0);
        let config = Self {
            architecture,
            vocab_size: raw.vocab_size,
            hidden_size: raw.hidden_size,
            intermediate_size: raw.intermediate_size,
            layers: raw.num_hidden_layers,
            heads: raw.num_attention_heads,
            kv_heads: raw.num_key_value_heads.unwrap_or(raw.num_attention_heads),
            head_dim: raw.head_dim.unwrap_or(raw.hidden_size / raw.num_attention_heads.max(1)),
            rms_norm_eps: raw.rms_norm_eps.unwrap_or(1e-6),
            rope_theta,
            tie_word_embeddings: raw.tie_word_embeddings,
            max_positions: raw.max_position_embeddings.unwrap_or(2048),
        };
        config.check()?;
        Ok(config)
    }

    /// Writes `config.json`, with the rotary base both where transformers 4 and where transformers 5 looks for it.
    pub fn to_json(&self) -> Vec<u8> {
        let (architecture, model_type) = self.architecture.names();
        let value = json!({
            "architectures": [architecture],
            "model_type": model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_parameters": { "rope_theta": self.rope_theta, "rope_type": "default" },
            "tie_word_embeddings": self.tie_word_embeddings,
            "max_position_embeddings": self.max_positions,
            "hidden_act": "silu",
            "attention_bias": false,
            "dtype": "float32",
        });
        let mut bytes = format!("{value:#}").into_bytes();
        bytes.push(b'\n');
        bytes
    }

    /// Fails unless the numbers fit together.
    pub(crate) fn check(&self) -> Result<(), PolicyError> {
        let fault = if [self.vocab_size, self.hidden_size, self.intermediate_size, self.layers, self.heads].contains(&0)
        {
            "a size is zero"
        } else if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            "num_key_value_heads must divide num_attention_heads"
        } else if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            "head_dim must be even"
        } else if !(self.rms_norm_eps > 0.0 && self.rope_theta > 0.0) {
            "rms_norm_eps and rope_theta must be above zero"
        } else if u32::try_from(self.vocab_size).is_err() {
            "vocab_size does not fit 32 bits"
        } else {
            return Ok(());
        };
        Err(PolicyError::Config { reason: fault.to_owned() })
    }

    /// Every tensor of the model by name, with its shape, in the order of names.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (d, f) = (self.hidden_size, self.intermediate_size);
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut all = vec![
            ("model.embed_tokens.weight".to_owned(), vec![self.vocab_size, d]),
            ("model.norm.weight".to_owned(), vec![d]),
        ];
        if !self.tie_word_embeddings {
            all.push(("lm_head.weight".to_owned(), vec![self.vocab_size, d]));
        }
        for layer in 0..self.layers {
            let mut push = |name: &str, shape: &[usize]| {
                all.push((format!("model.layers.{layer}.{name}.weight"), shape.to_vec()));
            };
            push("input_layernorm", &[d]);
            push("post_attention_layernorm", &[d]);
            push("self_attn.q_proj", &[q, d]);
            push("self_attn.k_proj", &[kv, d]);
            push("self_attn.v_proj", &[kv, d]);
            push("self_attn.o_proj", &[d, q]);
            push("mlp.gate_proj", &[f, d]);
            push("mlp.up_proj", &[f, d]);
            push("mlp.down_proj", &[d, f]);
            if self.architecture == Architecture::Qwen3 {
                push("self_attn.q_norm", &[self.head_dim]);
                push("self_attn.k_norm", &[self.head_dim]);
            }
        }
        all.sort();
        all
    }

    /// Number of trainable numbers.
    pub fn parameters(&self) -> usize {
        self.tensors().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }
}

fn architecture(kind: &Kind) -> Result<Architecture, PolicyError> {
    let named = kind.architectures.first().or(kind.model_type.as_ref());
    let name = named.ok_or_else(|| PolicyError::Config { reason: "it names no architecture".to_owned() })?;
    Architecture::ALL
        .iter()
        .find(|(_, class, model_type)| name == class || name == model_type)
        .map(|(architecture, ..)| *architecture)
        .ok_or_else(|| PolicyError::Architecture { name: name.clone() })
}

fn refuse_unsupported(raw: &Raw) -> Result<(), PolicyError> {
    let refuse = |setting, value: String| Err(PolicyError::Setting { setting, value });
    for rope in [&raw.rope_parameters, &raw.rope_scaling].into_iter().flatten() {
        if let Some(kind) = rope.rope_type.as_deref().filter(|kind| *kind != "default") {
            return refuse("rope_scaling", kind.to_owned());
        }
    }
    if let Some(act) = raw.hidden_act.as_deref().filter(|act| *act != "silu") {
        return refuse("hidden_act", act.to_owned());
    }
    if let Some(kind) = raw.layer_types.iter().flatten().find(|kind| *kind != "full_attention") {
        return refuse("layer_types", kind.clone());
    }
    if raw.quantization_config.as_ref().is_some_and(|config| !config.is_null()) {
        return refuse("quantization_config", "present".to_owned());
    }
    for (setting, on) in [
        ("attention_bias", raw.attention_bias),
        ("mlp_bias", raw.mlp_bias),
        ("use_sliding_window", raw.use_sliding_window),
    ] {
        if on {
            return refuse(setting, "true".to_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny() -> Config {
        Config {
            architecture: Architecture::Qwen3,
            vocab_size: 10,
            hidden_size: 8,
            intermediate_size: 12,
            layers: 1,
            heads: 2,
            kv_heads: 1,
            head_dim: 4,
            rms_norm_eps: 1e-6,
            rope_theta: 1e6,
            tie_word_embeddings: true,
            max_positions: 64,
        }
    }

    fn edited(key: &str, value: Value) -> Result<Config, PolicyError> {
        let mut json: Value = serde_json::from_slice(&tiny().to_json()).unwrap();
        json[key] = value;
        Config::from_json(json.to_string().as_bytes())
    }

    #[test]
    fn survives_its_own_file() {
        assert_eq!(Config::from_json(&tiny().to_json()).unwrap(), tiny());
        assert_eq!(tiny().parameters(), 80 + 8 + 16 + 64 + 32 + 32 + 64 + 3 * 96 + 8);
    }

    #[test]
    fn refuses_by_name() {
        let message = |key, value| edited(key, value).unwrap_err().to_string();
        assert!(message("architectures", json!(["MixtralForCausalLM"])).contains("MixtralForCausalLM"));
        assert!(message("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0})).contains("yarn"));
        assert!(message("rope_scaling", json!({"type": "linear", "factor": 4.0})).contains("linear"));
        assert!(message("attention_bias", json!(true)).contains("attention_bias"));
        assert!(message("use_sliding_window", json!(true)).contains("use_sliding_window"));
        assert!(message("layer_types", json!(["sliding_attention"])).contains("sliding_attention"));
        assert!(message("num_key_value_heads", json!(3)).contains("num_key_value_heads"));
        assert!(message("hidden_act", json!("gelu")).contains("gelu"));
        assert!(message("vocab_size", json!("many")).contains("config.json"));
    }
}
