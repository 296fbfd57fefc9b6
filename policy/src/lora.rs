//! Low-rank adapters (LoRA, arXiv 2106.09685): `y = W x + (alpha / rank) B A x` with `W` frozen.
//!
//! Files are in the layout of Hugging Face's `peft`: `adapter_config.json`, and `adapter_model.safetensors` with the matrices
//! `base_model.model.MODULE.lora_A.weight` `[rank, inputs]` and `..lora_B.weight` `[outputs, rank]`.

use crate::{Config, Decoder, PolicyError, files, weights};
use candle_core::{DType, Device, Tensor, Var};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The adapter's settings.
pub const ADAPTER_CONFIG_FILE: &str = "adapter_config.json";
/// The adapter's matrices.
pub const ADAPTER_FILE: &str = "adapter_model.safetensors";

/// What follows a module's name in the names of its two matrices.
pub(crate) const DOWN: &str = "lora_A.weight";
pub(crate) const UP: &str = "lora_B.weight";
/// What peft puts before a module's name.
const PREFIX: &str = "base_model.model.";
/// Metadata key of an adapter's file: the version, and the digest of the weights that it was trained on.
const ORIGIN: &str = "rao_adapter";

/// The linear layers that an adapter can target.
pub const TARGETS: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

pub(crate) fn down_name(module: &str) -> String {
    format!("{module}.{DOWN}")
}

pub(crate) fn up_name(module: &str) -> String {
    format!("{module}.{UP}")
}

/// The settings of a low-rank adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterConfig {
    /// Rows of the inner matrices.
    pub rank: usize,
    /// The addition is scaled by `alpha / rank`.
    pub alpha: f64,
    /// Which linear layers have one, by the last part of their names: some of [`TARGETS`].
    pub targets: Vec<String>,
}

/// Whose weights an adapter is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Adapted {
    /// The digest of the frozen weights.
    pub(crate) base: [u8; 32],
}

/// The parts of `adapter_config.json` that matter; those that would change the meaning are refused.
#[derive(Deserialize)]
struct Raw {
    peft_type: String,
    r: usize,
    lora_alpha: f64,
    target_modules: Value,
    base_model_name_or_path: Option<String>,
    #[serde(flatten)]
    rest: BTreeMap<String, Value>,
}

impl AdapterConfig {
    /// Whether the linear layer of that name has an addition.
    pub(crate) fn targets(&self, module: &str) -> bool {
        let last = module.rsplit('.').next().unwrap_or(module);
        module.starts_with("model.layers.") && self.targets.iter().any(|target| target == last)
    }

    /// The factor of the addition.
    pub(crate) fn scale(&self) -> f32 {
        (self.alpha / self.rank as f64) as f32
    }

    /// What is wrong with the settings, in words; `None` if nothing is.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        if self.rank == 0 {
            return Some("the rank is 0; it must be at least 1".to_owned());
        }
        if !(self.alpha.is_finite() && self.alpha > 0.0) {
            return Some(format!("alpha is {}; it must be a finite number above 0", self.alpha));
        }
        if self.targets.is_empty() {
            return Some(format!("no layer is targeted; name some of {}", TARGETS.join(", ")));
        }
        let unknown = self.targets.iter().find(|target| !TARGETS.contains(&target.as_str()));
        unknown.map(|target| format!("`{target}` is no layer that can be adapted; those are {}", TARGETS.join(", ")))
    }

    /// The adapter's matrices by name, with their shapes.
    fn tensors(&self, config: &Config) -> Vec<(String, Vec<usize>)> {
        let mut all = Vec::new();
        for (name, shape) in config.tensors() {
            let Some(module) = name.strip_suffix(".weight").filter(|module| self.targets(module)) else { continue };
            if let [outputs, inputs] = shape[..] {
                all.push((down_name(module), vec![self.rank, inputs]));
                all.push((up_name(module), vec![outputs, self.rank]));
            }
        }
        all
    }

    /// Reads `adapter_config.json`; also gives the base model that it names.
    ///
    /// # Errors
    /// When it is no LoRA adapter, or has settings that this program does not implement.
    pub fn from_json(bytes: &[u8]) -> Result<(Self, Option<String>), PolicyError> {
        let fault = |reason: String| PolicyError::Adapter { reason };
        let raw: Raw = serde_json::from_slice(bytes).map_err(|e| fault(e.to_string()))?;
        if raw.peft_type != "LORA" {
            return Err(fault(format!("peft_type {} is not supported; LORA is", raw.peft_type)));
        }
        let neutral = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        let foreign = [
            "use_rslora",
            "use_dora",
            "use_qalora",
            "fan_in_fan_out",
            "lora_bias",
            "modules_to_save",
            "rank_pattern",
            "alpha_pattern",
            "layers_to_transform",
            "layer_replication",
            "exclude_modules",
            "target_parameters",
            "trainable_token_indices",
        ];
        for setting in foreign {
            if let Some(value) = raw.rest.get(setting).filter(|value| !neutral(value)) {
                return Err(fault(format!("{setting} = {value} is not supported")));
            }
        }
        if let Some(bias) = raw.rest.get("bias").filter(|bias| bias.as_str() != Some("none")) {
            return Err(fault(format!("bias = {bias} is not supported; \"none\" is")));
        }
        let config = Self { rank: raw.r, alpha: raw.lora_alpha, targets: targets(&raw.target_modules)? };
        config.problem().map_or(Ok((config, raw.base_model_name_or_path)), |problem| Err(fault(problem)))
    }

    /// Writes `adapter_config.json` as peft reads it.
    #[must_use]
    pub fn to_json(&self, base: Option<&str>) -> Vec<u8> {
        let value = json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "target_modules": self.targets,
            "bias": "none",
            "fan_in_fan_out": false,
            "init_lora_weights": true,
            "inference_mode": true,
            "modules_to_save": null,
            "use_rslora": false,
            "use_dora": false,
        });
        let mut bytes = format!("{value:#}").into_bytes();
        bytes.push(b'\n');
        bytes
    }
}

/// `target_modules`: names, or peft's word for all of them.
fn targets(value: &Value) -> Result<Vec<String>, PolicyError> {
    let fault = || PolicyError::Adapter {
        reason: format!("target_modules = {value} is not supported; a list of layer names is, or \"all-linear\""),
    };
    match value {
        Value::String(all) if all == "all-linear" => Ok(TARGETS.map(str::to_owned).to_vec()),
        Value::Array(names) => names.iter().map(|name| name.as_str().map(str::to_owned).ok_or_else(fault)).collect(),
        _ => Err(fault()),
    }
}

/// The base model that the adapter in `dir` names: `mini`, or a folder.
///
/// # Errors
/// When the folder holds no adapter that this program can read.
pub fn adapter_base(dir: &Path) -> Result<Option<String>, PolicyError> {
    Ok(AdapterConfig::from_json(&files::read(dir, ADAPTER_CONFIG_FILE)?)?.1)
}

/// Whether `dir` holds an adapter and no weights of its own.
pub(crate) fn is_adapter(dir: &Path) -> bool {
    dir.join(ADAPTER_CONFIG_FILE).exists() && !dir.join("config.json").exists()
}

/// The adapter in `dir` on the base model that it names.
pub(crate) fn load(dir: &Path) -> Result<Decoder, PolicyError> {
    let base = match adapter_base(dir)? {
        Some(name) if name == crate::MINI => crate::mini()?.into_decoder()?,
        Some(name) => {
            let beside = dir.join(&name);
            let folder = if Path::new(&name).exists() { Path::new(&name) } else { &beside };
            if !folder.exists() {
                let reason = format!(
                    "{} names the base model `{name}`, which is no folder here; name the folder that has it, and this one as its adapter",
                    dir.join(ADAPTER_CONFIG_FILE).display()
                );
                return Err(PolicyError::Adapter { reason });
            }
            Decoder::load(folder)?
        }
        None => {
            let reason = format!("{} names no base model", dir.join(ADAPTER_CONFIG_FILE).display());
            return Err(PolicyError::Adapter { reason });
        }
    };
    base.load_adapter(dir)
}

impl Decoder {
    /// Freezes the weights and adds a fresh adapter, which is what is trained from now on. `A` is uniform within
    /// `1 / sqrt(inputs)` (as peft draws it), the same for the same seed; `B` is zero, so at first nothing changes.
    ///
    /// # Errors
    /// When the settings are out of range, or the model already has an adapter.
    pub fn with_adapter(self, adapter: AdapterConfig, seed: u64) -> Result<Self, PolicyError> {
        let mut vars = BTreeMap::new();
        for (name, shape) in adapter.tensors(self.config()) {
            let count = shape.iter().product();
            let numbers = match shape[..] {
                [_, inputs] if name.ends_with(DOWN) => weights::uniforms(&name, seed, count, inputs),
                _ => vec![0.0; count],
            };
            vars.insert(name, Var::from_tensor(&Tensor::from_vec(numbers, shape, &Device::Cpu)?)?);
        }
        let version = self.version();
        self.adapted(adapter, vars, version)
    }

    /// Freezes the weights and adds the adapter in `dir`.
    ///
    /// # Errors
    /// When the folder holds no adapter that this program can read, or one for another model.
    pub fn load_adapter(self, dir: &Path) -> Result<Self, PolicyError> {
        let (adapter, _) = AdapterConfig::from_json(&files::read(dir, ADAPTER_CONFIG_FILE)?)?;
        self.adapter_from_bytes(adapter, &files::read(dir, ADAPTER_FILE)?)
    }

    fn adapter_from_bytes(self, adapter: AdapterConfig, bytes: &[u8]) -> Result<Self, PolicyError> {
        let (mut tensors, _) = weights::parse(bytes)?;
        let origin = weights::metadata(bytes, ORIGIN)?.unwrap_or_default();
        let (version, base) = origin.split_once(' ').unwrap_or(("0", ""));
        let version = version.parse().map_err(|_| PolicyError::Adapter {
            reason: format!("its version is {version:?}, not a number; the file may be damaged"),
        })?;
        if !base.is_empty() && base != blake3::Hash::from(self.digest()?).to_hex().as_str() {
            let reason = "it was trained on other weights than these; name the folder of its own base model".to_owned();
            return Err(PolicyError::Adapter { reason });
        }
        let mut vars = BTreeMap::new();
        for (name, shape) in adapter.tensors(self.config()) {
            let stored = format!("{PREFIX}{name}");
            let fault = |reason| PolicyError::AdapterTensor { name: stored.clone(), reason };
            let tensor = tensors.remove(&stored).ok_or_else(|| fault("it is missing".to_owned()))?;
            if tensor.dims() != shape || tensor.dtype() != DType::F32 {
                return Err(fault(format!("it is {:?}, expected {shape:?}", tensor.dims())));
            }
            vars.insert(name, Var::from_tensor(&tensor)?);
        }
        if let Some(name) = tensors.into_keys().next() {
            return Err(PolicyError::AdapterTensor { name, reason: "the model has no place for it".to_owned() });
        }
        self.adapted(adapter, vars, version)
    }

    fn adapted(self, adapter: AdapterConfig, vars: BTreeMap<String, Var>, version: u64) -> Result<Self, PolicyError> {
        if self.adapter().is_some() {
            let reason = "the model already has one; merge it first".to_owned();
            return Err(PolicyError::Adapter { reason });
        }
        if let Some(problem) = adapter.problem() {
            return Err(PolicyError::Adapter { reason: problem });
        }
        let base = Adapted { base: self.digest()? };
        let frozen = self.vars().iter().map(|(name, var)| (name.clone(), var.as_detached_tensor())).collect();
        Self::assemble(self.config().clone(), vars, frozen, Some((adapter, base)), version)
    }

    /// The two files of the adapter, in peft's layout; none without an adapter. `base` is what the settings name as the base
    /// model.
    ///
    /// # Errors
    /// When a tensor cannot be read.
    pub fn adapter_files(&self, base: Option<&str>) -> Result<Vec<(&'static str, Vec<u8>)>, PolicyError> {
        let Some((adapter, adapted)) = self.adapter_parts() else { return Ok(Vec::new()) };
        let renamed: BTreeMap<String, &Tensor> =
            self.vars().iter().map(|(name, var)| (format!("{PREFIX}{name}"), var.as_tensor())).collect();
        let tensors = renamed.iter().map(|(name, tensor)| (name.as_str(), *tensor));
        let origin = format!("{} {}", self.version(), blake3::Hash::from(adapted.base).to_hex());
        let bytes = weights::serialize_with(tensors, (ORIGIN, origin))?;
        Ok(vec![(ADAPTER_CONFIG_FILE, adapter.to_json(base)), (ADAPTER_FILE, bytes)])
    }

    /// The model with the adapter's additions in its matrices: `W + (alpha / rank) B A`, all of it trainable. A copy without
    /// an adapter is a copy. Its log-probabilities are those of the adapted model up to rounding.
    ///
    /// # Errors
    /// When memory for the tensors cannot be had.
    pub fn merged(&self) -> Result<Self, PolicyError> {
        let Some((adapter, _)) = self.adapter_parts() else { return self.snapshot() };
        let mut tensors = BTreeMap::new();
        for (name, tensor) in self.frozen() {
            let module = name.strip_suffix(".weight").unwrap_or(name);
            let merged = match (self.vars().get(&down_name(module)), self.vars().get(&up_name(module))) {
                (Some(down), Some(up)) => {
                    let product = up.as_detached_tensor().matmul(&down.as_detached_tensor())?;
                    crate::ops::add_scaled(tensor, &product, adapter.scale())?
                }
                _ => tensor.clone(),
            };
            tensors.insert(name.clone(), merged);
        }
        let mut merged = Self::new(self.config().clone(), tensors)?;
        merged.set_version(self.version());
        Ok(merged)
    }
}
