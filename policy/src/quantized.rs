//! Frozen policies that keep a GGUF file's quantized numbers.
//!
//! candle-transformers runs them. Its models take one sequence at a time, hold no positions apart and cannot give back a part
//! of what they cached; what they compute for several tokens at once differs in the last bits from one token after another.
//! So here every row has a model of its own (the weights are shared, the cache is not), and every token, also of a prompt, is
//! fed alone: what a row gets depends on its tokens only, not on what was cached or on what else runs.

use crate::completion::{self, Growing, Stops};
use crate::gguf::Gguf;
use crate::sample::{Completion, Identity, Policy, Request};
use crate::{Architecture, Chat, Limits, PolicyError, RopeScaling, sampling};
use candle_core::{Device, Tensor};
use candle_transformers::models::{quantized_llama, quantized_qwen3};
use std::collections::BTreeMap;
use std::io::{BufReader, Seek};
use std::path::Path;

#[derive(Clone)]
enum Model {
    Llama(quantized_llama::ModelWeights),
    Qwen3(quantized_qwen3::ModelWeights),
}

/// A row's model with what it has read.
struct Row {
    model: Model,
    tokens: Vec<u32>,
    used: u64,
}

/// A quantized GGUF model as a frozen [`Policy`]: it can act, and never be trained, because its matrix products have no
/// gradient. Its log-probabilities are those of the quantized model, not of [`crate::Decoder::from_gguf`]'s.
pub struct QuantizedPolicy {
    fresh: Model,
    chat: Chat,
    identity: Identity,
    stops: Stops,
    vocab_size: usize,
    positions: usize,
    /// Bytes of one token's keys and values.
    token_bytes: usize,
    bound: usize,
    rows: BTreeMap<u64, Row>,
    calls: u64,
}

impl Model {
    /// The logits behind `token` at `position`; all positions before have been fed.
    fn feed(&mut self, token: u32, position: usize) -> candle_core::Result<Vec<f32>> {
        let input = Tensor::new(&[[token]], &Device::Cpu)?;
        let logits = match self {
            Self::Llama(model) => model.forward(&input, position),
            Self::Qwen3(model) => model.forward(&input, position),
        };
        logits?.flatten_all()?.to_vec1()
    }
}

impl QuantizedPolicy {
    /// Reads a GGUF file of the Llama or Qwen3 family; the policy is named after it.
    ///
    /// # Errors
    /// When the file cannot be read, or holds a model or setting that candle-transformers would run wrongly.
    pub fn load(path: &Path, limits: Limits) -> Result<Self, PolicyError> {
        let fault = |reason: String| PolicyError::Gguf { path: path.to_owned(), reason };
        let file = Gguf::open(path)?;
        let (chat, config) = (file.chat()?, file.config.clone());
        let scaled = file.content.tensor_infos.contains_key("rope_freqs.weight");
        if config.rope_scaling != RopeScaling::None || scaled {
            let reason =
                "its RoPE scaling is not supported for a quantized policy; use it as `local:FILE`, dequantized";
            return Err(fault(reason.to_owned()));
        }
        let Gguf { content, mut reader, .. } = file;
        let unreadable = |e: candle_core::Error| fault(e.to_string());
        let weights = digest(path, &mut reader)?;
        let (fresh, positions) = match config.architecture {
            Architecture::Llama => {
                let model = quantized_llama::ModelWeights::from_gguf(content, &mut reader, &Device::Cpu);
                (Model::Llama(model.map_err(unreadable)?), config.max_positions.min(quantized_llama::MAX_SEQ_LEN))
            }
            Architecture::Qwen3 => {
                let model = quantized_qwen3::ModelWeights::from_gguf(content, &mut reader, &Device::Cpu);
                (Model::Qwen3(model.map_err(unreadable)?), config.max_positions)
            }
            Architecture::Qwen3Moe => {
                return Err(fault("a mixture of experts is not supported for a quantized policy".to_owned()));
            }
        };
        if chat.vocab_size() > config.vocab_size {
            return Err(PolicyError::Vocabulary { tokenizer: chat.vocab_size(), model: config.vocab_size });
        }
        let name = path.file_name().map_or_else(|| "gguf".to_owned(), |name| name.to_string_lossy().into_owned());
        let heads = crate::ops::Heads { heads: config.heads, kv_heads: config.kv_heads, dim: config.head_dim };
        Ok(Self {
            fresh,
            chat,
            identity: Identity { name, weights, version: 0 },
            stops: Stops::default(),
            vocab_size: config.vocab_size,
            positions,
            token_bytes: 2 * config.layers * heads.kv_width() * size_of::<f32>(),
            bound: limits.cache_bytes,
            rows: BTreeMap::new(),
            calls: 0,
        })
    }

    /// The same policy, whose completions also end where `stops` says.
    #[must_use]
    pub fn with_stops(mut self, stops: Stops) -> Self {
        self.stops = stops;
        self
    }

    /// The tokenizer and chat format.
    pub fn chat(&self) -> &Chat {
        &self.chat
    }

    /// Positions that the model can be run at.
    pub fn positions(&self) -> usize {
        self.positions
    }

    fn complete(&mut self, request: &Request<'_>) -> Result<Completion, PolicyError> {
        if request.context.len() > self.positions {
            let reason =
                format!("its context has {} tokens; the model has {} positions", request.context.len(), self.positions);
            return Err(PolicyError::Input { what: format!("request for row {}", request.row), reason });
        }
        let window = request.window.min(u32::try_from(self.positions).unwrap_or(u32::MAX));
        let mut growing = Growing::new(&Request { window, ..*request });
        let mut row = match self.rows.remove(&request.row) {
            // The model gives nothing back: it can only go on from all that it has read.
            Some(row) if row.tokens.len() < request.context.len() && request.context.starts_with(&row.tokens) => row,
            _ => Row { model: self.fresh.clone(), tokens: Vec::new(), used: 0 },
        };
        row.used = self.calls;
        let mut logits = Vec::new();
        while growing.stop.is_none() {
            let next = request.context.iter().chain(&growing.tokens).skip(row.tokens.len());
            for token in next.copied().collect::<Vec<_>>() {
                logits = row.model.feed(token, row.tokens.len())?;
                row.tokens.push(token);
            }
            let index = growing.tokens.len();
            let (id, logprob) = sampling::draw(&logits, request.sampler, request.key, index)
                .ok_or_else(|| PolicyError::NonFinite { what: format!("row {}, token {index}", request.row) })?;
            growing.take(id, logprob, &self.chat, &self.stops);
        }
        self.rows.insert(request.row, row);
        self.shrink();
        growing.finish().ok_or_else(|| PolicyError::Input {
            what: format!("request for row {}", request.row),
            reason: "its completion did not end".to_owned(),
        })
    }

    /// Drops the rows that have gone unused the longest until the others' caches fit.
    fn shrink(&mut self) {
        let mut held: usize = self.rows.values().map(|row| self.token_bytes * row.tokens.len()).sum();
        while held > self.bound {
            let Some(oldest) = self.rows.iter().min_by_key(|(at, row)| (row.used, **at)).map(|(at, _)| *at) else {
                return;
            };
            held -= self.rows.remove(&oldest).map_or(0, |row| self.token_bytes * row.tokens.len());
        }
    }
}

/// blake3 digest of the file.
fn digest(path: &Path, reader: &mut BufReader<std::fs::File>) -> Result<[u8; 32], PolicyError> {
    let fault = |source| PolicyError::File { action: "read", path: path.to_owned(), source };
    let mut hasher = blake3::Hasher::new();
    reader.rewind().map_err(fault)?;
    std::io::copy(reader, &mut hasher).map_err(fault)?;
    Ok(*hasher.finalize().as_bytes())
}

impl Policy for QuantizedPolicy {
    fn identity(&self) -> Identity {
        self.identity.clone()
    }

    fn sample(&mut self, batch: &[Request<'_>]) -> Result<Vec<Completion>, PolicyError> {
        batch.iter().try_for_each(|request| completion::check(request, self.vocab_size))?;
        batch
            .iter()
            .map(|request| {
                self.calls += 1;
                self.complete(request)
            })
            .collect()
    }

    fn release(&mut self, row: u64) {
        self.rows.remove(&row);
    }
}
