use crate::PolicyError;

/// Names the random stream of one completion: derived from rollout seed, node path and step, so that a token never
/// depends on what else is in the batch. The token's index in the completion is the counter inside the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SampleKey(pub [u8; 32]);

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    /// 0 takes the most probable token (the lowest id among equals); 1 samples the model's own distribution.
    pub temperature: f32,
    /// The most tokens a completion may have.
    pub max_tokens: u32,
    /// Only so many of the most probable tokens can be drawn; 0 leaves none out.
    pub top_k: u32,
    /// Only the fewest most probable tokens that together have this probability can be drawn; 1 leaves none out.
    pub top_p: f32,
}

impl Sampler {
    /// A sampler that draws from the whole vocabulary.
    pub fn whole(temperature: f32, max_tokens: u32) -> Self {
        Self { temperature, max_tokens, top_k: 0, top_p: 1.0 }
    }

    /// Whether tokens that the model could give cannot be drawn. Log-probabilities then are those of the tokens that can be,
    /// at the sampler's temperature; else they are the model's own at temperature 1.
    pub fn leaves_out(&self) -> bool {
        self.temperature > 0.0 && (self.top_k > 0 || self.top_p < 1.0)
    }
}

/// One completion to make.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// A node's identity inside this process: it keys the KV cache, and decides nothing else.
    pub row: u64,
    /// The exact context, from its first token.
    pub context: &'a [u32],
    /// How tokens are chosen.
    pub sampler: Sampler,
    /// The context window in tokens: context and completion together never exceed it.
    pub window: u32,
    /// The random stream.
    pub key: SampleKey,
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Its text ended with `</python>`.
    CellEnd,
    /// The model gave its end-of-turn token (which is part of `tokens`).
    EndOfTurn,
    /// A stop text or stop id that was asked for ([`crate::Stops`]).
    Asked,
    /// It has `max_tokens` tokens.
    MaxTokens,
    /// The window is full.
    Window,
}

/// What was sampled: as many log-probabilities as tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The sampled ids.
    pub tokens: Vec<u32>,
    /// The natural logarithm of each id's probability under the model at temperature 1, over the whole vocabulary; if the sampler
    /// leaves tokens out ([`Sampler::leaves_out`]), under the distribution that it was drawn from.
    pub logprobs: Vec<f32>,
    /// Why it ended.
    pub stop: Stop,
}

/// Who samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// A name without a path.
    pub name: String,
    /// blake3 digest over the weights' tensors in the order of their names.
    pub weights: [u8; 32],
    /// Optimizer steps that the weights have seen.
    pub version: u64,
}

/// A source of completions.
pub trait Policy: Send {
    /// Who samples.
    fn identity(&self) -> Identity;

    /// Completes every context of the batch. Results are in the batch's order, and each is the same whatever else the
    /// batch holds, whatever was cached, and however many threads run.
    ///
    /// # Errors
    /// When the model cannot be run; no completion is then valid.
    fn sample(&mut self, batch: &[Request<'_>]) -> Result<Vec<Completion>, PolicyError>;

    /// The row's node has ended: what is cached for it can go.
    fn release(&mut self, row: u64);
}
