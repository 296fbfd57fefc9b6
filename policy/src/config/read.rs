//! From `config.json` to a [`Config`], or to the reason why not.

use super::rope::RawRope;
use super::{Architecture, Config, Experts, RopeScaling};
use crate::PolicyError;
use serde::Deserialize;
use serde_json::Value;

/// What `config.json` may call a model, with what it then is. The last two are models that also see: their text part is
/// an ordinary decoder, whose settings stand in `text_config`.
const NAMES: [(&str, &str, Architecture); 5] = [
    ("LlamaForCausalLM", "llama", Architecture::Llama),
    ("Qwen3ForCausalLM", "qwen3", Architecture::Qwen3),
    ("Qwen3MoeForCausalLM", "qwen3_moe", Architecture::Qwen3Moe),
    ("Qwen3VLForConditionalGeneration", "qwen3_vl", Architecture::Qwen3),
    ("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", Architecture::Qwen3Moe),
];

#[derive(Deserialize)]
struct Raw {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: Option<usize>,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    rope_parameters: Option<RawRope>,
    rope_scaling: Option<RawRope>,
    partial_rotary_factor: Option<f64>,
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
    #[serde(alias = "num_local_experts")]
    num_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    norm_topk_prob: Option<bool>,
    decoder_sparse_step: Option<usize>,
    #[serde(default)]
    mlp_only_layers: Vec<usize>,
}

/// What says which architecture a `config.json` is for; read first, because another one may lack the other fields.
#[derive(Deserialize)]
struct Kind {
    #[serde(default)]
    architectures: Vec<String>,
    model_type: Option<String>,
}

pub(super) fn from_json(json: &[u8]) -> Result<Config, PolicyError> {
    let unreadable = |e: serde_json::Error| PolicyError::Config { reason: e.to_string() };
    let kind: Kind = serde_json::from_slice(json).map_err(unreadable)?;
    let (architecture, sees) = architecture(&kind)?;
    let mut value: Value = serde_json::from_slice(json).map_err(unreadable)?;
    if sees {
        value = text_part(value)?;
    }
    let raw: Raw = serde_json::from_value(value).map_err(unreadable)?;
    refuse_unsupported(&raw)?;
    let max_positions = raw.max_position_embeddings.unwrap_or(2048);
    let ropes = || [&raw.rope_parameters, &raw.rope_scaling].into_iter().flatten();
    let mut rope_scaling = RopeScaling::None;
    for rope in ropes() {
        let scaling = rope.scaling(max_positions)?;
        if rope_scaling == RopeScaling::None {
            rope_scaling = scaling;
        }
    }
    let config = Config {
        architecture,
        vocab_size: raw.vocab_size,
        hidden_size: raw.hidden_size,
        intermediate_size: raw.intermediate_size.or(raw.moe_intermediate_size).unwrap_or_default(),
        layers: raw.num_hidden_layers,
        heads: raw.num_attention_heads,
        kv_heads: raw.num_key_value_heads.unwrap_or(raw.num_attention_heads),
        head_dim: raw.head_dim.unwrap_or(raw.hidden_size / raw.num_attention_heads.max(1)),
        rms_norm_eps: raw.rms_norm_eps.unwrap_or(1e-6),
        rope_theta: ropes().find_map(|rope| rope.rope_theta).or(raw.rope_theta).unwrap_or(10_000.0),
        rope_scaling,
        tie_word_embeddings: raw.tie_word_embeddings,
        max_positions,
        experts: if architecture == Architecture::Qwen3Moe { Some(experts(&raw, sees)?) } else { None },
    };
    config.check()?;
    Ok(config)
}

fn architecture(kind: &Kind) -> Result<(Architecture, bool), PolicyError> {
    let named = kind.architectures.first().or(kind.model_type.as_ref());
    let name = named.ok_or_else(|| PolicyError::Config { reason: "it names no architecture".to_owned() })?;
    NAMES
        .iter()
        .find(|(class, model_type, _)| name == class || name == model_type)
        .map(|(class, _, architecture)| (*architecture, class.contains("VL")))
        .ok_or_else(|| PolicyError::Architecture { name: name.clone() })
}

/// The `text_config`, with what only stands above it.
fn text_part(mut value: Value) -> Result<Value, PolicyError> {
    let tied = value["tie_word_embeddings"].take();
    let mut text = value["text_config"].take();
    if !text.is_object() {
        return Err(PolicyError::Config { reason: "it has no text_config".to_owned() });
    }
    if text["tie_word_embeddings"].is_null() && !tied.is_null() {
        text["tie_word_embeddings"] = tied;
    } else if text["tie_word_embeddings"].is_null() {
        text["tie_word_embeddings"] = Value::Bool(false);
    }
    Ok(text)
}

fn experts(raw: &Raw, sees: bool) -> Result<Experts, PolicyError> {
    let lacking = |field: &str| PolicyError::Config { reason: format!("it lacks {field}") };
    Ok(Experts {
        count: raw.num_experts.ok_or_else(|| lacking("num_experts"))?,
        per_token: raw.num_experts_per_tok.ok_or_else(|| lacking("num_experts_per_tok"))?,
        width: raw.moe_intermediate_size.ok_or_else(|| lacking("moe_intermediate_size"))?,
        // transformers' Qwen3-VL always divides; its Qwen3-MoE does where the file says so.
        normalize: sees || raw.norm_topk_prob.unwrap_or(false),
        step: raw.decoder_sparse_step.unwrap_or(1),
        dense: raw.mlp_only_layers.clone(),
    })
}

fn refuse_unsupported(raw: &Raw) -> Result<(), PolicyError> {
    let refuse = |setting, value: String| Err(PolicyError::Setting { setting, value });
    if let Some(part) = raw.partial_rotary_factor.filter(|part| *part != 1.0) {
        return refuse("partial_rotary_factor", part.to_string());
    }
    if let Some(act) = raw.hidden_act.as_deref().filter(|act| *act != "silu") {
        return refuse("hidden_act", act.to_owned());
    }
    if let Some(kind) = raw.layer_types.iter().flatten().find(|kind| *kind != "full_attention") {
        return refuse("layer_types", kind.clone());
    }
    if let Some(config) = raw.quantization_config.as_ref().filter(|config| !config.is_null()) {
        let method = config["quant_method"].as_str().unwrap_or("present");
        return refuse(
            "quantization_config",
            format!("{method} (only unquantized weights or a GGUF file can be read)"),
        );
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
