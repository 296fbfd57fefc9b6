use crate::forward::{Network, Parts};
use crate::lora::{Adapted, AdapterConfig};
use crate::pass::PassOptions;
use crate::{Config, Packed, Pass, PolicyError, files, lora, pass, weights};
use candle_core::{Tensor, Var};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// A decoder with trainable weights.
///
/// The weights are candle variables under Hugging Face's names. A loss built from [`Decoder::token_logprobs`] with candle's
/// operations gives every one of them a gradient. Passes may run on several threads at once; update weights only when none does.
pub struct Decoder {
    config: Config,
    vars: BTreeMap<String, Var>,
    /// Tensors that are not trained: the model's own, where there is an adapter.
    frozen: BTreeMap<String, Tensor>,
    adapter: Option<(AdapterConfig, Adapted)>,
    version: u64,
    network: Arc<Network>,
}

/// Scores of the targets of a [`Packed`] batch, in its order; both `[targets]`, f32, differentiable.
pub struct TokenScores {
    /// Natural logarithm of each target's probability given the tokens before it.
    pub logprobs: Tensor,
    /// Entropy, in nats, of the distribution that each target is drawn from.
    pub entropies: Tensor,
}

impl Decoder {
    /// Reads `config.json` and the weights (f32, bf16 or f16, widened to f32) of a model folder: `model.safetensors`, or the
    /// shards that `model.safetensors.index.json` names. Of a model that also sees, the text part is read. A file is read as
    /// [`Decoder::from_gguf`] does. A folder that holds an adapter instead gives the base model that the adapter names, with
    /// the adapter.
    ///
    /// # Errors
    /// When a file is missing or unreadable, the architecture is not supported, or a tensor does not fit `config.json`.
    pub fn load(dir: &Path) -> Result<Self, PolicyError> {
        if dir.is_file() {
            return Self::from_gguf(dir);
        }
        if lora::is_adapter(dir) {
            return lora::load(dir);
        }
        let config = Config::from_json(&files::read(dir, "config.json")?)?;
        Self::from_files(config, weights::read(dir)?)
    }

    fn from_files(config: Config, (tensors, version): (BTreeMap<String, Tensor>, u64)) -> Result<Self, PolicyError> {
        let tensors = weights::canonical(&config, tensors)?;
        let mut decoder = Self::new(config, tensors)?;
        decoder.version = version;
        Ok(decoder)
    }

    /// As [`Decoder::load`], from the contents of the two files.
    ///
    /// # Errors
    /// As [`Decoder::load`].
    pub fn from_bytes(config_json: &[u8], safetensors: &[u8]) -> Result<Self, PolicyError> {
        Self::from_files(Config::from_json(config_json)?, weights::parse(safetensors)?)
    }

    /// A decoder with the given weights, which are copied; version 0.
    ///
    /// # Errors
    /// When a tensor is missing, surplus, not f32, or of another shape than [`Config::tensors`] says.
    pub fn new(config: Config, mut tensors: BTreeMap<String, Tensor>) -> Result<Self, PolicyError> {
        config.check()?;
        let mut vars = BTreeMap::new();
        for (name, shape) in config.tensors() {
            let fault = |reason| PolicyError::Tensor { name: name.clone(), reason };
            let tensor = tensors.remove(&name).ok_or_else(|| fault("it is missing".to_owned()))?;
            if tensor.dims() != shape || tensor.dtype() != candle_core::DType::F32 {
                let found = (tensor.dims().to_vec(), tensor.dtype());
                return Err(fault(format!("it is {:?} {:?}, expected {shape:?} F32", found.0, found.1)));
            }
            let copy = Var::from_tensor(&tensor.contiguous()?)?;
            vars.insert(name, copy);
        }
        if let Some(name) = tensors.into_keys().next() {
            return Err(PolicyError::Tensor { name, reason: "config.json has no place for it".to_owned() });
        }
        Self::assemble(config, vars, BTreeMap::new(), None, 0)
    }

    /// From tensors of the right shapes.
    pub(crate) fn assemble(
        config: Config,
        vars: BTreeMap<String, Var>,
        frozen: BTreeMap<String, Tensor>,
        adapter: Option<(AdapterConfig, Adapted)>,
        version: u64,
    ) -> Result<Self, PolicyError> {
        let adapter_config = adapter.as_ref().map(|(adapter, _)| adapter);
        let parts = Parts { vars: &vars, frozen: &frozen, panels: &BTreeMap::new(), adapter: adapter_config };
        let network = Arc::new(Network::new(&config, parts)?);
        Ok(Self { config, vars, frozen, adapter, version, network })
    }

    /// What it is made of; the passes' own hold on the tensors ends.
    #[expect(clippy::type_complexity, reason = "the parts of one value")]
    pub(crate) fn take_apart(
        self,
    ) -> (Config, BTreeMap<String, Var>, BTreeMap<String, Tensor>, Option<(AdapterConfig, Adapted)>, u64) {
        let Self { config, vars, frozen, adapter, version, network } = self;
        drop(network);
        (config, vars, frozen, adapter, version)
    }

    /// A decoder with random weights: the same for the same configuration and seed, everywhere.
    ///
    /// # Errors
    /// When the configuration's numbers do not fit together.
    pub fn init(config: Config, seed: u64) -> Result<Self, PolicyError> {
        config.check()?;
        let tensors = weights::init(&config, seed)?;
        Self::new(config, tensors)
    }

    /// A copy that later changes of these weights do not reach.
    ///
    /// # Errors
    /// When memory for the tensors cannot be had.
    pub fn snapshot(&self) -> Result<Self, PolicyError> {
        let copy = |(name, var): (&String, &Var)| Ok((name.clone(), Var::from_tensor(&var.as_detached_tensor())?));
        let vars = self.vars.iter().map(copy).collect::<candle_core::Result<_>>()?;
        Self::assemble(self.config.clone(), vars, self.frozen.clone(), self.adapter.clone(), self.version)
    }

    /// Writes `config.json` and `model.safetensors` into `dir`, creating it if needed. Each file has its old or its new content
    /// at any moment, the weights last.
    ///
    /// # Errors
    /// When the folder or a file cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), PolicyError> {
        files::write(dir, "config.json", &self.config.to_json())?;
        files::write(dir, "model.safetensors", &self.to_bytes()?)
    }

    /// The content of `model.safetensors`: the same bytes for the same weights and version. Of a model with an adapter, the
    /// model without it.
    ///
    /// # Errors
    /// When the file cannot be laid out.
    pub fn to_bytes(&self) -> Result<Vec<u8>, PolicyError> {
        weights::serialize(self.tensors(), self.version)
    }

    /// Writes the bytes of [`Decoder::to_bytes`] to a file, one tensor at a time.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_weights(&self, path: &Path) -> Result<(), PolicyError> {
        weights::write_file(self.tensors(), self.version, path)
    }

    /// blake3 digest over the names, shapes and numbers of all tensors in the order of names. With an adapter: over the digest
    /// of the model without it, the adapter's scale and the adapter's tensors.
    ///
    /// # Errors
    /// When a tensor cannot be read.
    pub fn digest(&self) -> Result<[u8; 32], PolicyError> {
        let Some((adapter, adapted)) = &self.adapter else { return weights::digest(self.tensors()) };
        let vars = weights::digest(self.vars.iter().map(|(name, var)| (name.as_str(), var.as_tensor())))?;
        let parts = [adapted.base.as_slice(), &adapter.scale().to_le_bytes(), &vars].concat();
        Ok(*blake3::hash(&parts).as_bytes())
    }

    /// The model's own tensors.
    fn tensors(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let vars = self.vars.iter().map(|(name, var)| (name.as_str(), var.as_tensor()));
        let frozen = self.frozen.iter().map(|(name, tensor)| (name.as_str(), tensor));
        vars.filter(|_| self.adapter.is_none()).chain(frozen)
    }

    /// The adapter's settings, if there is one.
    pub fn adapter(&self) -> Option<&AdapterConfig> {
        self.adapter.as_ref().map(|(adapter, _)| adapter)
    }

    pub(crate) fn adapter_parts(&self) -> Option<(&AdapterConfig, &Adapted)> {
        self.adapter.as_ref().map(|(adapter, adapted)| (adapter, adapted))
    }

    /// The tensors that training leaves alone.
    pub(crate) fn frozen(&self) -> &BTreeMap<String, Tensor> {
        &self.frozen
    }

    /// The model's shape.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Optimizer steps that the weights have seen.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Says how many optimizer steps the weights have seen.
    pub fn set_version(&mut self, version: u64) {
        self.version = version;
    }

    /// The trainable tensors by name: the model's, or those of its adapter.
    pub fn vars(&self) -> &BTreeMap<String, Var> {
        &self.vars
    }

    /// Log-probability of every target, `[targets]` f32: bit for bit what the sampler reports for the same token after the
    /// same tokens. Differentiable.
    ///
    /// # Errors
    /// When the batch has no tokens, an id outside the vocabulary or a target out of place.
    pub fn token_logprobs(&self, packed: &Packed) -> Result<Tensor, PolicyError> {
        Ok(self.token_scores(packed)?.logprobs)
    }

    /// Log-probability and entropy of every target.
    ///
    /// # Errors
    /// As [`Decoder::token_logprobs`].
    pub fn token_scores(&self, packed: &Packed) -> Result<TokenScores, PolicyError> {
        let scores = pass::differentiable(self.pass(packed)?, &self.vars)?;
        Ok(TokenScores { logprobs: scores.get(0)?, entropies: scores.get(1)? })
    }

    /// Scores of every target, ready for gradients without a graph: quicker than [`Decoder::token_scores`], to the same bits.
    ///
    /// # Errors
    /// As [`Decoder::token_logprobs`].
    pub fn pass(&self, packed: &Packed) -> Result<Pass, PolicyError> {
        self.pass_with(packed, PassOptions::default())
    }

    /// As [`Decoder::pass`], with each shared prefix computed once or with less memory if so chosen. Scores have the same bits
    /// whatever the options; gradients differ between them only by rounding, and with checkpoints not at all.
    ///
    /// # Errors
    /// As [`Decoder::token_logprobs`].
    pub fn pass_with(&self, packed: &Packed, options: PassOptions) -> Result<Pass, PolicyError> {
        packed.check(self.config.vocab_size)?;
        Ok(Pass::new(self.network.clone(), packed, options)?)
    }

    /// The log-probabilities of [`Decoder::pass`] alone, without what gradients need.
    ///
    /// # Errors
    /// As [`Decoder::token_logprobs`].
    pub fn score(&self, packed: &Packed, share_prefixes: bool) -> Result<Vec<f32>, PolicyError> {
        packed.check(self.config.vocab_size)?;
        Ok(Pass::score(&self.network, packed, share_prefixes)?)
    }

    /// Logits of every position, `[tokens, vocab_size]`. Holds them all at once: for inspection, without gradients.
    ///
    /// # Errors
    /// As [`Decoder::token_logprobs`].
    pub fn logits(&self, packed: &Packed) -> Result<Tensor, PolicyError> {
        packed.check(self.config.vocab_size)?;
        Ok(Pass::logits(&self.network, packed)?)
    }

    /// The weights as the passes use them.
    pub(crate) fn network(&self) -> &Network {
        &self.network
    }
}
