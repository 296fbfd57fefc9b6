//! The decoder's forward pass, once, for training and for decoding: they differ only in where attention finds its keys.

mod backward;
mod feed_forward;
mod mixture;
mod parts;

use crate::ops::{self, Heads, Matrix, Rope, RopeTable};
use crate::{Config, PolicyError};
use candle_core::Tensor;
use feed_forward::{FeedForward, FeedForwardTape};
pub(crate) use parts::Parts;
use parts::{MatrixWeight, Projection, Weight, apply_all};
use std::sync::{Arc, Mutex, PoisonError};

/// The tensors of one block.
struct Block {
    input_norm: Weight,
    q: Projection,
    k: Projection,
    v: Projection,
    o: Projection,
    /// Norms over each head of queries and keys (Qwen3).
    head_norms: Option<[Weight; 2]>,
    post_norm: Weight,
    feed_forward: FeedForward,
}

/// The decoder's tensors in the order of use.
pub(crate) struct Network {
    heads: Heads,
    eps: f64,
    /// Rotary frequencies, and the factor of their cosines and sines.
    frequencies: (Vec<f32>, f32),
    embedding: MatrixWeight,
    blocks: Vec<Block>,
    norm: Weight,
    head: MatrixWeight,
    /// Whether the output matrix is the embedding.
    tied: bool,
    angles: Mutex<Arc<RopeTable>>,
}

/// What a pass leaves for the backward pass: the inputs of every operation, or with checkpoints the input of every block,
/// from which the rest is computed again, to the same bits.
#[derive(Default)]
pub(crate) struct Tape {
    /// Keep each block's input only.
    checkpoints: bool,
    blocks: Vec<Kept>,
    rope: Option<Rope>,
    /// Input of the last norm, and its result.
    last: Option<Tensor>,
    hidden: Option<Tensor>,
}

impl Tape {
    /// An empty tape, which keeps everything or checkpoints.
    pub(crate) fn new(checkpoints: bool) -> Self {
        Self { checkpoints, ..Self::default() }
    }
}

/// What is kept of a block.
struct Kept {
    x: Tensor,
    inner: Option<BlockTape>,
}

/// What a block's backward pass needs besides the block's input.
struct BlockTape {
    attention: AttentionTape,
    /// Of the wanted rows in the last block, of all rows before.
    mixed: Tensor,
    x1: Tensor,
    h: Tensor,
    feed_forward: FeedForwardTape,
}

struct AttentionTape {
    h: Tensor,
    /// Queries and keys before norm and rotation, where there is a norm.
    raw: Option<[Tensor; 2]>,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mixed: Tensor,
}

/// Attention with keys from somewhere: `q` `[rows, heads * dim]`, `k` and `v` `[rows, kv_heads * dim]`.
pub(crate) trait Attend {
    /// The result has `q`'s shape.
    fn attend(&mut self, layer: usize, heads: Heads, q: &Tensor, k: &Tensor, v: &Tensor)
    -> candle_core::Result<Tensor>;
}

/// The tokens of a pass, one row each.
pub(crate) struct Rows {
    /// Ids, each below the vocabulary.
    pub(crate) ids: Vec<usize>,
    /// Positions in their sequences.
    pub(crate) positions: Vec<usize>,
    /// Rows whose hidden states are wanted.
    pub(crate) wanted: Vec<usize>,
}

impl Network {
    /// Shares the tensors' storage; later changes of the variables show.
    pub(crate) fn new(config: &Config, parts: Parts<'_>) -> Result<Self, PolicyError> {
        let block = |number: usize| {
            let layer = format!("model.layers.{number}");
            let norm = |name: &str| parts.weight(&format!("{layer}.{name}.weight"));
            let projection = |name: &str| parts.projection(&format!("{layer}.self_attn.{name}"));
            let head_norms = if config.architecture.has_head_norms() {
                Some([norm("self_attn.q_norm")?, norm("self_attn.k_norm")?])
            } else {
                None
            };
            Ok::<_, PolicyError>(Block {
                input_norm: norm("input_layernorm")?,
                q: projection("q_proj")?,
                k: projection("k_proj")?,
                v: projection("v_proj")?,
                o: projection("o_proj")?,
                head_norms,
                post_norm: norm("post_attention_layernorm")?,
                feed_forward: FeedForward::new(parts, config, number, &layer)?,
            })
        };
        let embedding = parts.matrix("model.embed_tokens.weight")?;
        let frequencies = config.rope_scaling.frequencies(config.head_dim, config.rope_theta);
        let head = if config.tie_word_embeddings { embedding.clone() } else { parts.matrix("lm_head.weight")? };
        Ok(Self {
            heads: Heads { heads: config.heads, kv_heads: config.kv_heads, dim: config.head_dim },
            eps: config.rms_norm_eps,
            blocks: (0..config.layers).map(block).collect::<Result<_, _>>()?,
            norm: parts.weight("model.norm.weight")?,
            head,
            tied: config.tie_word_embeddings,
            embedding,
            angles: Mutex::new(Arc::new(RopeTable::new(&frequencies, 0))),
            frequencies,
        })
    }

    /// The output matrix `[vocabulary, width]`.
    pub(crate) fn head(&self) -> &Matrix {
        &self.head.matrix
    }

    /// The shape of attention.
    pub(crate) fn heads(&self) -> Heads {
        self.heads
    }

    /// Normalized hidden states of the wanted rows, `[wanted, width]`. What the backward pass needs goes to `tape`.
    pub(crate) fn hidden(
        &self,
        rows: &Rows,
        attend: &mut dyn Attend,
        mut tape: Option<&mut Tape>,
    ) -> candle_core::Result<Tensor> {
        crate::memory::keep();
        let rope = self.rope(&rows.positions);
        let mut x = self.embedding.matrix.gather(&rows.ids)?;
        for layer in 0..self.blocks.len() {
            let (next, inner) = self.block(layer, &x, rows, &rope, attend)?;
            if let Some(tape) = tape.as_deref_mut() {
                tape.blocks.push(Kept { x, inner: (!tape.checkpoints).then_some(inner) });
            }
            x = next;
        }
        let hidden = ops::rms_norm(&x, &self.norm.tensor, self.eps)?;
        if let Some(tape) = tape {
            (tape.last, tape.hidden, tape.rope) = (Some(x), Some(hidden.clone()), Some(rope));
        }
        Ok(hidden)
    }

    /// One block: its result, of the wanted rows only in the last, and what its backward pass needs.
    fn block(
        &self,
        layer: usize,
        x: &Tensor,
        rows: &Rows,
        rope: &Rope,
        attend: &mut dyn Attend,
    ) -> candle_core::Result<(Tensor, BlockTape)> {
        let block = &self.blocks[layer];
        let attention = self.attention(layer, block, x, rope, attend)?;
        // Past the last attention nothing looks at another row: only the wanted ones go on.
        let (mixed, residual) = if layer + 1 == self.blocks.len() {
            (ops::gather_rows(&attention.mixed, &rows.wanted)?, ops::gather_rows(x, &rows.wanted)?)
        } else {
            (attention.mixed.clone(), x.clone())
        };
        let x1 = block.o.apply_add(&mixed, &residual)?;
        let h = ops::rms_norm(&x1, &block.post_norm.tensor, self.eps)?;
        let (out, feed_forward) = block.feed_forward.apply_add(&h, &x1)?;
        Ok((out, BlockTape { attention, mixed, x1, h, feed_forward }))
    }

    fn attention(
        &self,
        layer: usize,
        block: &Block,
        x: &Tensor,
        rope: &Rope,
        attend: &mut dyn Attend,
    ) -> candle_core::Result<AttentionTape> {
        let h = ops::rms_norm(x, &block.input_norm.tensor, self.eps)?;
        let [mut q, mut k, v] = apply_all([&block.q, &block.k, &block.v], &h)?;
        let mut raw = None;
        if let Some([q_norm, k_norm]) = &block.head_norms {
            let normed = [ops::rms_norm(&q, &q_norm.tensor, self.eps)?, ops::rms_norm(&k, &k_norm.tensor, self.eps)?];
            raw = Some([q, k]);
            [q, k] = normed;
        }
        let (q, k) = (rope.apply(&q)?, rope.apply(&k)?);
        let mixed = attend.attend(layer, self.heads, &q, &k, &v)?;
        Ok(AttentionTape { h, raw, q, k, v, mixed })
    }

    fn rope(&self, positions: &[usize]) -> Rope {
        let needed = positions.iter().max().map_or(0, |last| last + 1);
        let mut held = self.angles.lock().unwrap_or_else(PoisonError::into_inner);
        if held.positions() < needed {
            *held = Arc::new(RopeTable::new(&self.frequencies, needed.next_power_of_two()));
        }
        Rope { table: held.clone(), positions: Arc::new(positions.to_vec()) }
    }
}
