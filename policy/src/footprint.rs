//! How much memory a pass takes: an upper estimate from the shapes alone.

use crate::{Architecture, Decoder, PassOptions};

/// Rows whose logits are held at once.
const LOGIT_ROWS: u64 = 256;

/// Numbers of a decoder's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Those that are trained.
    pub trained: u64,
    /// Those that are not.
    pub frozen: u64,
    /// Those of the largest tensor.
    pub largest: u64,
}

impl Decoder {
    /// How many numbers the decoder has.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        let vars = || self.vars().values().map(|var| var.elem_count() as u64);
        let frozen = || self.frozen().values().map(|tensor| tensor.elem_count() as u64);
        let largest = vars().chain(frozen()).max().unwrap_or(0);
        Parameters { trained: vars().sum(), frozen: frozen().sum(), largest }
    }

    /// Bytes that a pass over `rows` rows and its backward pass take at most, beyond the weights: what is kept of every
    /// block, the temporaries of one block, a chunk of logits, and the gradients.
    #[must_use]
    pub fn pass_bytes(&self, rows: u64, options: PassOptions) -> u64 {
        let config = self.config();
        let number = |n: usize| n as u64;
        let (d, layers) = (number(config.hidden_size), number(config.layers));
        // With a mixture each row has a few experts' widths, and their inputs and results besides.
        let (f, routed) = config.experts.as_ref().map_or((number(config.intermediate_size), 0), |experts| {
            let per_row = number(experts.per_token);
            (number(config.intermediate_size).max(per_row * number(experts.width)), 2 * per_row * d)
        });
        let (q, kv) = (number(config.heads * config.head_dim), number(config.kv_heads * config.head_dim));
        let raw = if config.architecture == Architecture::Llama { 0 } else { q + kv };
        // Input and norm twice, queries, keys, values, their mixture, gate, up and their product.
        let block = 4 * d + 2 * q + 2 * kv + 3 * f + routed + raw;
        // Gradients of all of these, of one block at a time; attention keeps keys and values in two layouts, with sums.
        let temporary = 7 * d + 6 * q + 12 * kv + 4 * f;
        let kept = if options.checkpoints { layers * d + block } else { layers * block };
        let vocabulary = number(config.vocab_size);
        let head = if self.adapter().is_some() { 0 } else { 2 * vocabulary * d };
        let logits = 2 * LOGIT_ROWS.min(rows) * vocabulary + head;
        4 * (rows * (kept + temporary + 3 * d) + logits + self.parameters().trained)
    }
}
