//! Named tensors to and from bytes.

mod folder;
mod names;

pub(crate) use folder::read;
pub(crate) use names::canonical;

use crate::{Config, PolicyError};
use candle_core::{Device, Tensor};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

/// Metadata key of `model.safetensors`: optimizer steps that the weights have seen.
const VERSION: &str = "rao_version";

/// Reads a safetensors file: tensors widened to f32, and the version it names (0 if none).
pub(crate) fn parse(bytes: &[u8]) -> Result<(BTreeMap<String, Tensor>, u64), PolicyError> {
    let unreadable = |e: safetensors::SafeTensorError| PolicyError::Weights { reason: e.to_string() };
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(unreadable)?;
    let version = match header.metadata().as_ref().and_then(|metadata| metadata.get(VERSION)) {
        None => 0,
        Some(text) => text
            .parse()
            .map_err(|_| PolicyError::Weights { reason: format!("its {VERSION} is {text:?}, not a number") })?,
    };
    let file = SafeTensors::deserialize(bytes).map_err(unreadable)?;
    let mut tensors = BTreeMap::new();
    for (name, view) in file.iter() {
        let tensor = Tensor::from_vec(widen(name, &view)?, view.shape(), &Device::Cpu)?;
        insert(&mut tensors, name.to_owned(), tensor)?;
    }
    Ok((tensors, version))
}

/// Adds a tensor whose name must be new.
pub(crate) fn insert(all: &mut BTreeMap<String, Tensor>, name: String, tensor: Tensor) -> Result<(), PolicyError> {
    match all.entry(name) {
        Entry::Vacant(place) => {
            place.insert(tensor);
            Ok(())
        }
        Entry::Occupied(held) => {
            Err(PolicyError::Tensor { name: held.key().clone(), reason: "it is there twice".to_owned() })
        }
    }
}

fn widen(name: &str, view: &TensorView<'_>) -> Result<Vec<f32>, PolicyError> {
    let data = view.data();
    match view.dtype() {
        Dtype::F32 => Ok(data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()),
        // bfloat16 is the upper half of an f32.
        Dtype::BF16 => Ok(data.chunks_exact(2).map(|b| f32::from_le_bytes([0, 0, b[0], b[1]])).collect()),
        Dtype::F16 => Ok(data.chunks_exact(2).map(|b| half(u16::from_le_bytes([b[0], b[1]]))).collect()),
        other => {
            let reason = format!("it is stored as {other:?}; F32, BF16 and F16 can be read");
            Err(PolicyError::Tensor { name: name.to_owned(), reason })
        }
    }
}

/// The number that 16 bits (1 sign, 5 exponent, 10 fraction) stand for.
fn half(bits: u16) -> f32 {
    let (sign, exponent, fraction) = (u32::from(bits >> 15) << 31, u32::from(bits >> 10 & 31), u32::from(bits & 1023));
    match exponent {
        // Below the smallest normal number: fraction times 2^-24.
        0 => f32::from_bits(sign | (fraction as f32 * 2f32.powi(-24)).to_bits()),
        31 => f32::from_bits(sign | 0x7F80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

/// The numbers of a tensor as little-endian bytes.
fn bytes(tensor: &Tensor) -> Result<Vec<u8>, PolicyError> {
    let numbers: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
    Ok(numbers.iter().flat_map(|x| x.to_le_bytes()).collect())
}

/// A metadata entry of a safetensors file.
pub(crate) fn metadata(bytes: &[u8], key: &str) -> Result<Option<String>, PolicyError> {
    let unreadable = |e: safetensors::SafeTensorError| PolicyError::Weights { reason: e.to_string() };
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(unreadable)?;
    Ok(header.metadata().as_ref().and_then(|metadata| metadata.get(key)).cloned())
}

/// Writes a safetensors file: the same tensors and version give the same bytes.
pub(crate) fn serialize<'a>(
    tensors: impl Iterator<Item = (&'a str, &'a Tensor)>,
    version: u64,
) -> Result<Vec<u8>, PolicyError> {
    serialize_with(tensors, (VERSION, version.to_string()))
}

/// As [`serialize`], with another metadata entry in place of the version. One entry only: the map has no order of its own.
pub(crate) fn serialize_with<'a>(
    tensors: impl Iterator<Item = (&'a str, &'a Tensor)>,
    (key, value): (&str, String),
) -> Result<Vec<u8>, PolicyError> {
    let metadata = Some(HashMap::from([(key.to_owned(), value)]));
    let unwritable = |e: safetensors::SafeTensorError| PolicyError::Weights { reason: e.to_string() };
    safetensors::serialize(lazy(tensors)?, metadata).map_err(unwritable)
}

/// Writes the bytes of [`serialize`] to a file, one tensor at a time.
pub(crate) fn write_file<'a>(
    tensors: impl Iterator<Item = (&'a str, &'a Tensor)>,
    version: u64,
    path: &std::path::Path,
) -> Result<(), PolicyError> {
    let metadata = Some(HashMap::from([(VERSION.to_owned(), version.to_string())]));
    safetensors::serialize_to_file(lazy(tensors)?, metadata, path).map_err(|error| match error {
        safetensors::SafeTensorError::IoError(source) => {
            PolicyError::File { action: "write", path: path.to_owned(), source }
        }
        other => PolicyError::Weights { reason: other.to_string() },
    })
}

/// A tensor that is turned into bytes when it is written.
struct Lazy<'a> {
    tensor: &'a Tensor,
}

fn lazy<'a>(tensors: impl Iterator<Item = (&'a str, &'a Tensor)>) -> Result<Vec<(&'a str, Lazy<'a>)>, PolicyError> {
    let check = |(name, tensor): (&'a str, &'a Tensor)| {
        if tensor.dtype() == candle_core::DType::F32 {
            return Ok((name, Lazy { tensor }));
        }
        let reason = format!("it is {:?}; only F32 is written", tensor.dtype());
        Err(PolicyError::Tensor { name: name.to_owned(), reason })
    };
    tensors.map(check).collect()
}

impl safetensors::View for Lazy<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        self.tensor.dims()
    }

    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        // Only a tensor that is not f32 has no such bytes, and those were refused.
        bytes(self.tensor).unwrap_or_default().into()
    }

    fn data_len(&self) -> usize {
        self.tensor.elem_count() * size_of::<f32>()
    }
}

/// blake3 over every tensor in the order of names: name, shape and numbers, each behind its length.
pub(crate) fn digest<'a>(tensors: impl Iterator<Item = (&'a str, &'a Tensor)>) -> Result<[u8; 32], PolicyError> {
    let mut hasher = blake3::Hasher::new();
    let number = |hasher: &mut blake3::Hasher, n: usize| {
        hasher.update(&(n as u64).to_le_bytes());
    };
    for (name, tensor) in tensors {
        number(&mut hasher, name.len());
        hasher.update(name.as_bytes());
        number(&mut hasher, tensor.rank());
        tensor.dims().iter().for_each(|size| number(&mut hasher, *size));
        hasher.update(&bytes(tensor)?);
    }
    Ok(*hasher.finalize().as_bytes())
}

/// Fresh weights: norms one, matrices normal with standard deviation 0.02 x sqrt(512 / width of the stream) (so that a
/// narrow model starts as lively as a wide one), those that write to the stream divided by sqrt(2 x layers) as GPT-2 does.
/// Each tensor has its own random stream, named by the tensor.
pub(crate) fn init(config: &Config, seed: u64) -> Result<BTreeMap<String, Tensor>, PolicyError> {
    let base = 0.02 * (512.0 / config.hidden_size as f64).sqrt().max(1.0);
    let mut tensors = BTreeMap::new();
    for (name, shape) in config.tensors() {
        let count = shape.iter().product();
        let writes = name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight");
        let deviation = if writes { base / (2.0 * config.layers as f64).sqrt() } else { base };
        let numbers = if shape.len() == 1 {
            vec![1.0; count]
        } else {
            normals(blake3::keyed_hash(&key(seed), name.as_bytes()).into(), count, deviation)
        };
        tensors.insert(name, Tensor::from_vec(numbers, shape, &Device::Cpu)?);
    }
    Ok(tensors)
}

fn key(seed: u64) -> [u8; 32] {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key
}

/// Numbers uniform within `1 / sqrt(inputs)`, from the tensor's own random stream.
pub(crate) fn uniforms(name: &str, seed: u64, count: usize, inputs: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::from_seed(blake3::keyed_hash(&key(seed), name.as_bytes()).into());
    let bound = 1.0 / (inputs.max(1) as f64).sqrt();
    let mut uniform = || ((rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    (0..count).map(|_| (bound * (2.0 * uniform() - 1.0)) as f32).collect()
}

/// Box-Muller: two normals from two uniforms.
fn normals(seed: [u8; 32], count: usize, deviation: f64) -> Vec<f32> {
    let mut rng = ChaCha8Rng::from_seed(seed);
    let mut uniform = || ((rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    let mut out = Vec::with_capacity(count + 1);
    while out.len() < count {
        let (radius, angle) = ((-2.0 * uniform().ln()).sqrt(), std::f64::consts::TAU * uniform());
        out.extend([radius * angle.cos(), radius * angle.sin()].map(|z| (z * deviation) as f32));
    }
    out.truncate(count);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_precision_is_widened_exactly() {
        let cases = [
            (0x3C00u16, 1.0f32),
            (0xC000, -2.0),
            (0x7BFF, 65504.0),
            (0x0001, 5.960_464_5e-8),
            (0x83FF, -6.097_555e-5),
            (0x0400, 6.103_515_6e-5),
            (0x3555, 0.333_251_95),
            (0x7C00, f32::INFINITY),
            (0xFC00, f32::NEG_INFINITY),
        ];
        for (bits, want) in cases {
            assert_eq!(half(bits), want, "{bits:04x}");
        }
        assert_eq!(half(0x8000).to_bits(), (-0.0f32).to_bits());
        assert!(half(0x7E00).is_nan());
    }
}
