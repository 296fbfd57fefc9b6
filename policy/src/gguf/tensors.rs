//! A GGUF file's tensors under Hugging Face's names, dequantized.

use super::{Gguf, broken};
use crate::{Config, PolicyError, RopeScaling, weights};
use candle_core::{Device, Tensor};
use std::collections::BTreeMap;

/// llama.cpp's names of the tensors of a block, and Hugging Face's.
const PARTS: [(&str, &str); 12] = [
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
];

/// Tensors that hold one matrix for each expert.
const STACKS: [(&str, &str); 3] =
    [("ffn_gate_exps", "gate_proj"), ("ffn_up_exps", "up_proj"), ("ffn_down_exps", "down_proj")];

/// Factors by which a Llama 3.1 or 3.2 model's frequencies are divided; the file holds no other trace of that scaling.
const FACTORS: &str = "rope_freqs.weight";

/// Every tensor. Also sets the RoPE scaling that only a tensor tells of.
pub(super) fn dequantized(file: &mut Gguf) -> Result<BTreeMap<String, Tensor>, PolicyError> {
    let mut names: Vec<String> = file.content.tensor_infos.keys().cloned().collect();
    names.sort_unstable();
    let mut all = BTreeMap::new();
    for name in names {
        let fault = |reason: String| broken(&file.path, format!("tensor {name}: {reason}"));
        let tensor = file.content.tensor(&mut file.reader, &name, &Device::Cpu);
        let tensor = tensor.and_then(|tensor| tensor.dequantize(&Device::Cpu)).map_err(|e| fault(e.to_string()))?;
        if name == FACTORS {
            file.config.rope_scaling = llama3(&file.config, &tensor)
                .ok_or_else(|| fault("its factors are not those of a known Llama 3 scaling".to_owned()))?;
            continue;
        }
        let (layer, part) = place(&name).ok_or_else(|| fault("a tensor of this name is not supported".to_owned()))?;
        let Some(layer) = layer else {
            weights::insert(&mut all, part.to_owned(), tensor)?;
            continue;
        };
        if let Some((_, part)) = STACKS.iter().find(|(stack, _)| *stack == part) {
            let (held, count) = (tensor.dim(0)?, file.config.experts.as_ref().map_or(0, |experts| experts.count));
            if held != count {
                return Err(fault(format!("it holds {held} experts, and the file's settings say {count}")));
            }
            for e in 0..held {
                let name = format!("model.layers.{layer}.mlp.experts.{e}.{part}.weight");
                weights::insert(&mut all, name, tensor.get(e)?.contiguous()?)?;
            }
            continue;
        }
        let tensor = match part {
            "self_attn.q_proj" | "self_attn.k_proj" if file.interleaved => {
                split_halves(&tensor, file.config.head_dim).map_err(|e| fault(e.to_string()))?
            }
            _ => tensor,
        };
        weights::insert(&mut all, format!("model.layers.{layer}.{part}.weight"), tensor)?;
    }
    Ok(all)
}

/// The layer of a tensor, and its name within; for tensors outside the layers, the whole name.
fn place(name: &str) -> Option<(Option<usize>, &'static str)> {
    match name {
        "token_embd.weight" => return Some((None, "model.embed_tokens.weight")),
        "output_norm.weight" => return Some((None, "model.norm.weight")),
        "output.weight" => return Some((None, "lm_head.weight")),
        _ => {}
    }
    let (layer, part) = name.strip_prefix("blk.")?.strip_suffix(".weight")?.split_once('.')?;
    let layer = Some(layer.parse().ok()?);
    let stack = STACKS.iter().find(|(theirs, _)| *theirs == part).map(|(theirs, _)| (layer, *theirs));
    stack.or_else(|| PARTS.iter().find(|(theirs, _)| *theirs == part).map(|(_, ours)| (layer, *ours)))
}

/// Puts the rows of each head from the order in which neighbours rotate together (0, h, 1, h + 1, ..) into that in which
/// the two halves do (0, 1, .., h, h + 1, ..).
fn split_halves(tensor: &Tensor, head_dim: usize) -> candle_core::Result<Tensor> {
    let (rows, inputs) = tensor.dims2()?;
    let heads = rows / head_dim;
    tensor.reshape((heads, head_dim / 2, 2, inputs))?.transpose(1, 2)?.contiguous()?.reshape((rows, inputs))
}

/// The Llama 3 scaling whose factors these are.
fn llama3(config: &Config, factors: &Tensor) -> Option<RopeScaling> {
    let factors: Vec<f32> = factors.flatten_all().ok()?.to_vec1().ok()?;
    let plain = RopeScaling::None.frequencies(config.head_dim, config.rope_theta).0;
    let known = [8.0, 32.0].map(|factor| RopeScaling::Llama3 { factor, low: 1.0, high: 4.0, original: 8192 });
    known.into_iter().find(|scaling| {
        let scaled = scaling.frequencies(config.head_dim, config.rope_theta).0;
        let same = |((plain, scaled), factor): ((&f32, &f32), &f32)| (plain / scaled / factor - 1.0).abs() < 1e-4;
        factors.len() == plain.len() && plain.iter().zip(&scaled).zip(&factors).all(same)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_head_come_back_into_halves() {
        // Two heads of width 6: neighbours (0, 3), (1, 4), (2, 5) of the original rows stand together.
        let stored: Vec<f32> = [0, 3, 1, 4, 2, 5].iter().flat_map(|r| [*r as f32; 2]).collect();
        let stored = [stored.clone(), stored.iter().map(|x| x + 6.0).collect()].concat();
        let got = split_halves(&Tensor::from_vec(stored, (12, 2), &Device::Cpu).unwrap(), 6).unwrap();
        let first: Vec<f32> = got.narrow(1, 0, 1).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(first, (0..12).map(|i| i as f32).collect::<Vec<_>>());
    }

    #[test]
    fn names_are_known_or_refused() {
        assert_eq!(place("blk.12.attn_q.weight"), Some((Some(12), "self_attn.q_proj")));
        assert_eq!(place("blk.0.ffn_up_exps.weight"), Some((Some(0), "ffn_up_exps")));
        assert_eq!(place("output.weight"), Some((None, "lm_head.weight")));
        assert_eq!(place("blk.0.attn_q.bias"), None);
        assert_eq!(place("blk.x.attn_q.weight"), None);
    }
}
