//! From the names and shapes that files use to those of [`Config::tensors`].

use super::insert;
use crate::{Config, PolicyError};
use candle_core::Tensor;
use std::collections::BTreeMap;

/// What stands before the names of the text part of a model that also sees.
const TEXT: &str = "model.language_model.";
/// What stands before the names of the part that sees, which is left out: it takes no text.
const SIGHT: &str = "model.visual.";

/// Gives tensors the names and shapes that the decoder uses. Left out are a tied output matrix that was stored a second
/// time, the vision part of a model that also sees, and the rotary frequencies that old files hold beside the weights.
pub(crate) fn canonical(
    config: &Config,
    tensors: BTreeMap<String, Tensor>,
) -> Result<BTreeMap<String, Tensor>, PolicyError> {
    let mut all = BTreeMap::new();
    for (name, tensor) in tensors {
        let is_tied = config.tie_word_embeddings && name == "lm_head.weight";
        if is_tied || name.starts_with(SIGHT) || name.ends_with(".rotary_emb.inv_freq") {
            continue;
        }
        let name = name.strip_prefix(TEXT).map_or_else(|| name.clone(), |rest| format!("model.{rest}"));
        match stacked(&name) {
            Some((layer, part)) if config.experts.is_some() => split(config, layer, part, &name, &tensor, &mut all)?,
            _ => insert(&mut all, name, tensor)?,
        }
    }
    Ok(all)
}

/// The beginning of the names of a layer's experts, and the part, if all of them lie in one tensor.
fn stacked(name: &str) -> Option<(&str, &str)> {
    let (before, part) = name.rsplit_once('.')?;
    (before.ends_with(".mlp.experts") && ["gate_up_proj", "down_proj"].contains(&part)).then_some((before, part))
}

/// Cuts `[experts, inputs, outputs]` into one matrix `[outputs, inputs]` for each expert; `gate_up_proj` has the gate's
/// outputs first. That is how Qwen3-VL's files hold them; the transposed form is taken where the shape leaves no doubt.
fn split(
    config: &Config,
    layer: &str,
    part: &str,
    name: &str,
    tensor: &Tensor,
    all: &mut BTreeMap<String, Tensor>,
) -> Result<(), PolicyError> {
    let Some(experts) = &config.experts else { return Ok(()) };
    let (d, width) = (config.hidden_size, experts.width);
    let (inputs, outputs) = if part == "down_proj" { (width, d) } else { (d, 2 * width) };
    let across = match tensor.dims() {
        [count, rows, columns] if (*count, *rows, *columns) == (experts.count, inputs, outputs) => true,
        [count, rows, columns] if (*count, *rows, *columns) == (experts.count, outputs, inputs) => false,
        other => {
            let reason = format!("it is {other:?}, expected [{}, {inputs}, {outputs}]", experts.count);
            return Err(PolicyError::Tensor { name: name.to_owned(), reason });
        }
    };
    for e in 0..experts.count {
        let matrix = tensor.get(e)?;
        let matrix = if across { matrix.t()? } else { matrix };
        let mut put = |name: &str, first: usize, rows: usize| {
            insert(all, format!("{layer}.{e}.{name}.weight"), matrix.narrow(0, first, rows)?.contiguous()?)
        };
        if part == "down_proj" {
            put("down_proj", 0, d)?;
        } else {
            put("gate_proj", 0, width)?;
            put("up_proj", width, width)?;
        }
    }
    Ok(())
}
