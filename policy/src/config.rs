mod experts;
mod read;
mod rope;

pub use experts::Experts;
pub use rope::RopeScaling;

use crate::PolicyError;
use serde_json::json;

/// A family of decoders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// `LlamaForCausalLM`.
    Llama,
    /// `Qwen3ForCausalLM`: as Llama, with an RMS norm over each head of queries and keys.
    Qwen3,
    /// `Qwen3MoeForCausalLM`: as Qwen3, with a mixture of experts as feed-forward layer.
    Qwen3Moe,
}

impl Architecture {
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Llama => ("LlamaForCausalLM", "llama"),
            Self::Qwen3 => ("Qwen3ForCausalLM", "qwen3"),
            Self::Qwen3Moe => ("Qwen3MoeForCausalLM", "qwen3_moe"),
        }
    }

    /// Whether each head of queries and keys has an RMS norm.
    pub(crate) fn has_head_norms(self) -> bool {
        match self {
            Self::Llama => false,
            Self::Qwen3 | Self::Qwen3Moe => true,
        }
    }
}

/// The most layers, and experts of a layer, that a configuration may name: far beyond any model, and few enough that a forged
/// file cannot make the program list tensors without end.
const MOST: usize = 4096;

/// The shape of a decoder, as Hugging Face's `config.json` gives it.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The family.
    pub architecture: Architecture,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated feed-forward layer, where it is not a mixture of experts.
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
    /// How the rotary frequencies are stretched.
    pub rope_scaling: RopeScaling,
    /// Whether the output matrix is the embedding.
    pub tie_word_embeddings: bool,
    /// The longest sequence the model was made for, in tokens.
    pub max_positions: usize,
    /// The mixture of experts; there is one exactly in [`Architecture::Qwen3Moe`].
    pub experts: Option<Experts>,
}

impl Config {
    /// Reads `config.json`. Of a model that also sees (`Qwen3VLMoeForConditionalGeneration`) it is the text part's.
    ///
    /// # Errors
    /// [`PolicyError::Architecture`] for another family, [`PolicyError::Setting`] for a setting that is not implemented,
    /// [`PolicyError::Config`] for anything else that is wrong.
    pub fn from_json(json: &[u8]) -> Result<Self, PolicyError> {
        read::from_json(json)
    }

    /// Writes `config.json`, with the rotary settings both where transformers 4 and where transformers 5 looks for them.
    pub fn to_json(&self) -> Vec<u8> {
        let (architecture, model_type) = self.architecture.names();
        let rope = self.rope_scaling.to_json(self.rope_theta);
        let mut value = json!({
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
            "rope_parameters": rope,
            "tie_word_embeddings": self.tie_word_embeddings,
            "max_position_embeddings": self.max_positions,
            "hidden_act": "silu",
            "attention_bias": false,
            "dtype": "float32",
        });
        if self.rope_scaling != RopeScaling::None {
            value["rope_scaling"] = rope;
        }
        if let Some(experts) = &self.experts {
            value["num_experts"] = json!(experts.count);
            value["num_experts_per_tok"] = json!(experts.per_token);
            value["moe_intermediate_size"] = json!(experts.width);
            value["norm_topk_prob"] = json!(experts.normalize);
            value["decoder_sparse_step"] = json!(experts.step);
            value["mlp_only_layers"] = json!(experts.dense);
        }
        let mut bytes = format!("{value:#}").into_bytes();
        bytes.push(b'\n');
        bytes
    }

    /// Fails unless the numbers fit together.
    pub(crate) fn check(&self) -> Result<(), PolicyError> {
        let fault = if [self.vocab_size, self.hidden_size, self.intermediate_size, self.layers, self.heads].contains(&0)
        {
            "a size is zero"
        } else if self.layers > MOST || self.experts.as_ref().is_some_and(|experts| experts.count > MOST) {
            "it has more layers or experts than any model"
        } else if self.kv_heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            "num_key_value_heads must divide num_attention_heads"
        } else if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            "head_dim must be even"
        } else if !(self.rms_norm_eps > 0.0 && self.rope_theta > 0.0) {
            "rms_norm_eps and rope_theta must be above zero"
        } else if u32::try_from(self.vocab_size).is_err() {
            "vocab_size does not fit 32 bits"
        } else if self.experts.is_some() != (self.architecture == Architecture::Qwen3Moe) {
            "Qwen3Moe models have experts, and no other does"
        } else if let Some(fault) = self.experts.as_ref().and_then(Experts::fault).or_else(|| self.rope_scaling.fault())
        {
            fault
        } else {
            return Ok(());
        };
        Err(PolicyError::Config { reason: fault.to_owned() })
    }

    /// The mixture of experts that is the layer's feed-forward part, if it is one.
    pub(crate) fn experts_at(&self, layer: usize) -> Option<&Experts> {
        self.experts.as_ref().filter(|experts| experts.at(layer))
    }

    /// Every tensor of the model by name, with its shape, in the order of names.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let d = self.hidden_size;
        let mut all = vec![
            ("model.embed_tokens.weight".to_owned(), vec![self.vocab_size, d]),
            ("model.norm.weight".to_owned(), vec![d]),
        ];
        if !self.tie_word_embeddings {
            all.push(("lm_head.weight".to_owned(), vec![self.vocab_size, d]));
        }
        for layer in 0..self.layers {
            self.layer_tensors(layer, &mut |name: &str, shape: &[usize]| {
                all.push((format!("model.layers.{layer}.{name}.weight"), shape.to_vec()));
            });
        }
        all.sort();
        all
    }

    fn layer_tensors(&self, layer: usize, push: &mut dyn FnMut(&str, &[usize])) {
        let d = self.hidden_size;
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        push("input_layernorm", &[d]);
        push("post_attention_layernorm", &[d]);
        push("self_attn.q_proj", &[q, d]);
        push("self_attn.k_proj", &[kv, d]);
        push("self_attn.v_proj", &[kv, d]);
        push("self_attn.o_proj", &[d, q]);
        if self.architecture.has_head_norms() {
            push("self_attn.q_norm", &[self.head_dim]);
            push("self_attn.k_norm", &[self.head_dim]);
        }
        let mut gated = |prefix: &str, width: usize| {
            push(&format!("{prefix}gate_proj"), &[width, d]);
            push(&format!("{prefix}up_proj"), &[width, d]);
            push(&format!("{prefix}down_proj"), &[d, width]);
        };
        match self.experts_at(layer) {
            None => gated("mlp.", self.intermediate_size),
            Some(experts) => {
                (0..experts.count).for_each(|e| gated(&format!("mlp.experts.{e}."), experts.width));
                push("mlp.gate", &[experts.count, d]);
            }
        }
    }

    /// Number of trainable numbers.
    pub fn parameters(&self) -> usize {
        self.tensors().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

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
            rope_scaling: RopeScaling::None,
            tie_word_embeddings: true,
            max_positions: 64,
            experts: None,
        }
    }

    fn mixture() -> Config {
        let experts = Experts { count: 3, per_token: 2, width: 6, normalize: true, step: 2, dense: vec![3] };
        let rope_scaling = RopeScaling::Linear { factor: 2.0 };
        Config { architecture: Architecture::Qwen3Moe, experts: Some(experts), layers: 4, rope_scaling, ..tiny() }
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
        assert_eq!(Config::from_json(&mixture().to_json()).unwrap(), mixture());
    }

    #[test]
    fn experts_stand_where_the_configuration_says() {
        let sparse: Vec<usize> = (0..4).filter(|layer| mixture().experts_at(*layer).is_some()).collect();
        assert_eq!(sparse, [1]);
        let names: Vec<String> = mixture().tensors().into_iter().map(|(name, _)| name).collect();
        let count = |part: &str| names.iter().filter(|name| name.contains(part)).count();
        assert_eq!((count(".mlp.experts."), count(".mlp.gate.weight"), count(".mlp.gate_proj.")), (9, 1, 3));
        let wrong = Config { experts: None, ..mixture() };
        assert!(wrong.check().is_err());
    }

    /// The text part of a model that also sees, with Qwen3-VL-30B-A3B's own keys.
    #[test]
    fn the_text_part_of_a_seeing_model_is_read() {
        let json = json!({
            "architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe",
            "image_token_id": 151655, "tie_word_embeddings": false, "vision_config": {"depth": 27},
            "text_config": {
                "attention_bias": false, "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
                "intermediate_size": 6144, "max_position_embeddings": 262_144, "mlp_only_layers": [],
                "model_type": "qwen3_vl_moe_text", "moe_intermediate_size": 768, "norm_topk_prob": true,
                "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
                "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 5_000_000, "vocab_size": 151_936,
                "rope_scaling": {"mrope_interleaved": true, "mrope_section": [24, 20, 20], "rope_type": "default"},
            },
        });
        let config = Config::from_json(json.to_string().as_bytes()).unwrap();
        assert_eq!((config.architecture, config.layers, config.rope_theta), (Architecture::Qwen3Moe, 48, 5e6));
        assert_eq!(config.experts.as_ref().map(|e| (e.count, e.per_token, e.width)), Some((128, 8, 768)));
        assert_eq!(config.parameters(), 30_532_122_624);
        let error = Config::from_json(br#"{"architectures": ["Qwen3VLMoeForConditionalGeneration"]}"#).unwrap_err();
        assert!(error.to_string().contains("text_config"));
    }

    #[test]
    fn refuses_by_name() {
        let message = |key, value| edited(key, value).unwrap_err().to_string();
        assert!(message("architectures", json!(["MixtralForCausalLM"])).contains("MixtralForCausalLM"));
        assert!(message("rope_scaling", json!({"rope_type": "dynamic", "factor": 4.0})).contains("dynamic"));
        assert!(message("rope_scaling", json!({"type": "linear"})).contains("factor"));
        assert!(message("attention_bias", json!(true)).contains("attention_bias"));
        assert!(message("use_sliding_window", json!(true)).contains("use_sliding_window"));
        assert!(message("layer_types", json!(["sliding_attention"])).contains("sliding_attention"));
        assert!(message("num_key_value_heads", json!(3)).contains("num_key_value_heads"));
        assert!(message("quantization_config", json!({"quant_method": "fp8"})).contains("fp8"));
        assert!(message("hidden_act", json!("gelu")).contains("gelu"));
        assert!(message("num_hidden_layers", json!(1_000_000_000)).contains("more layers"));
        assert!(message("vocab_size", json!("many")).contains("config.json"));
    }
}
