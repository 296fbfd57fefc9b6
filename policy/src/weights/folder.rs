//! The weights of a model folder: one safetensors file, or shards with an index.

use super::{insert, parse};
use crate::{PolicyError, files};
use candle_core::Tensor;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The file that holds all weights.
const WHOLE: &str = "model.safetensors";
/// The file that says which shard holds which tensor.
const INDEX: &str = "model.safetensors.index.json";

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Reads every tensor of a folder, widened to f32, and the version that the weights name. Shards are read one after another,
/// so that beside the model no more than one of them is held.
pub(crate) fn read(dir: &Path) -> Result<(BTreeMap<String, Tensor>, u64), PolicyError> {
    if dir.join(WHOLE).exists() || !dir.join(INDEX).exists() {
        return parse(&files::read(dir, WHOLE)?);
    }
    let index: Index = serde_json::from_slice(&files::read(dir, INDEX)?)
        .map_err(|e| PolicyError::Weights { reason: format!("{INDEX}: {e}") })?;
    let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, shard) in &index.weight_map {
        shards.entry(shard).or_default().push(tensor);
    }
    let (mut all, mut version) = (BTreeMap::new(), 0);
    for (shard, named) in shards {
        if Path::new(shard).file_name().is_none_or(|name| name != shard) {
            return Err(PolicyError::Weights {
                reason: format!("{INDEX} names {shard:?}, which is not a file beside it"),
            });
        }
        let (tensors, stated) = parse(&files::read_named(dir, shard)?)?;
        version = version.max(stated);
        let fault = |name: &str, reason| Err(PolicyError::Tensor { name: name.to_owned(), reason });
        for name in named {
            if !tensors.contains_key(name) {
                return fault(name, format!("{INDEX} says that {shard} holds it, but it does not"));
            }
        }
        for (name, tensor) in tensors {
            match index.weight_map.get(&name) {
                Some(home) if home == shard => insert(&mut all, name, tensor)?,
                Some(home) => return fault(&name, format!("both {home} and {shard} hold it")),
                None => return fault(&name, format!("{shard} holds it, but {INDEX} does not name it")),
            }
        }
    }
    Ok((all, version))
}
