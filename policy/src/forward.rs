//! The decoder's forward pass, once, for training and for decoding: they differ only in where attention finds its keys.

mod backward;
mod feed_forward;

use feed_forward::{FeedForward, FeedForwardTape};

use crate::ops::{self, Heads, Rope, RopeTable};
use crate::{Config, PolicyError};
use candle_core::{Tensor, Var};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The tensors of one block.
struct Block {
    input_norm: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    /// Norms over each head of queries and keys (Qwen3).
    head_norms: Option<[Tensor; 2]>,
    post_norm: Tensor,
    feed_forward: FeedForward,
}

/// The decoder's tensors in the order of use.
pub(crate) struct Network {
    heads: Heads,
    eps: f64,
    /// Rotary frequencies, and the factor of their cosines and sines.
    frequencies: (Vec<f32>, f32),
    embedding: Tensor,
    blocks: Vec<Block>,
    norm: Tensor,
    head: Tensor,
    /// Whether the output matrix is the embedding.
    tied: bool,
    angles: Mutex<Arc<RopeTable>>,
}

/// What a pass leaves for the backward pass: the inputs of every operation.
#[derive(Default)]
pub(crate) struct Tape {
    blocks: Vec<BlockTape>,
    rope: Option<Rope>,
    /// Input of the last norm, and its result.
    last: Option<Tensor>,
    pub(crate) hidden: Option<Tensor>,
}

struct BlockTape {
    x: Tensor,
    attention: AttentionTape,
    /// Of the wanted rows in the last block, of all rows before.
    mixed: Tensor,
    x1: Tensor,
    feed_forward: FeedForwardTape,
}

struct AttentionTape {
    h: Tensor,
    /// Queries and keys before norm and rotation.
    raw_q: Tensor,
    raw_k: Tensor,
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
    /// Shares the variables' storage; later changes of the variables show.
    pub(crate) fn new(config: &Config, vars: &BTreeMap<String, Var>) -> Result<Self, PolicyError> {
        let tensor = |name: &str| {
            let missing = || PolicyError::Tensor { name: name.to_owned(), reason: "it is missing".to_owned() };
            vars.get(name).map(Var::as_detached_tensor).ok_or_else(missing)
        };
        let block = |layer: usize| {
            let part = |name: &str| tensor(&format!("model.layers.{layer}.{name}.weight"));
            let head_norms = if config.architecture.has_head_norms() {
                Some([part("self_attn.q_norm")?, part("self_attn.k_norm")?])
            } else {
                None
            };
            Ok::<_, PolicyError>(Block {
                input_norm: part("input_layernorm")?,
                q: part("self_attn.q_proj")?,
                k: part("self_attn.k_proj")?,
                v: part("self_attn.v_proj")?,
                o: part("self_attn.o_proj")?,
                head_norms,
                post_norm: part("post_attention_layernorm")?,
                feed_forward: FeedForward::new(config, layer, &part)?,
            })
        };
        let embedding = tensor("model.embed_tokens.weight")?;
        let frequencies = config.rope_scaling.frequencies(config.head_dim, config.rope_theta);
        let head = if config.tie_word_embeddings { embedding.clone() } else { tensor("lm_head.weight")? };
        Ok(Self {
            heads: Heads { heads: config.heads, kv_heads: config.kv_heads, dim: config.head_dim },
            eps: config.rms_norm_eps,
            blocks: (0..config.layers).map(block).collect::<Result<_, _>>()?,
            norm: tensor("model.norm.weight")?,
            head,
            tied: config.tie_word_embeddings,
            embedding,
            angles: Mutex::new(Arc::new(RopeTable::new(&frequencies, 0))),
            frequencies,
        })
    }

    /// The output matrix `[vocabulary, width]`.
    pub(crate) fn head(&self) -> &Tensor {
        &self.head
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
        let rope = self.rope(&rows.positions);
        let mut x = ops::gather_rows(&self.embedding, &rows.ids)?;
        for (layer, block) in self.blocks.iter().enumerate() {
            let attention = self.attention(layer, block, &x, &rope, attend)?;
            // Past the last attention nothing looks at another row: only the wanted ones go on.
            let (mixed, residual) = if layer + 1 == self.blocks.len() {
                (ops::gather_rows(&attention.mixed, &rows.wanted)?, ops::gather_rows(&x, &rows.wanted)?)
            } else {
                (attention.mixed.clone(), x.clone())
            };
            let x1 = ops::linear_add(&mixed, &block.o, &residual)?;
            let h = ops::rms_norm(&x1, &block.post_norm, self.eps)?;
            let (x2, feed_forward) = block.feed_forward.run(h, &x1)?;
            if let Some(tape) = tape.as_deref_mut() {
                tape.blocks.push(BlockTape { x, attention, mixed, x1, feed_forward });
            }
            x = x2;
        }
        let hidden = ops::rms_norm(&x, &self.norm, self.eps)?;
        if let Some(tape) = tape {
            (tape.last, tape.hidden, tape.rope) = (Some(x), Some(hidden.clone()), Some(rope));
        }
        Ok(hidden)
    }

    fn attention(
        &self,
        layer: usize,
        block: &Block,
        x: &Tensor,
        rope: &Rope,
        attend: &mut dyn Attend,
    ) -> candle_core::Result<AttentionTape> {
        let h = ops::rms_norm(x, &block.input_norm, self.eps)?;
        let (raw_q, raw_k, v) = (ops::linear(&h, &block.q)?, ops::linear(&h, &block.k)?, ops::linear(&h, &block.v)?);
        let (mut q, mut k) = (raw_q.clone(), raw_k.clone());
        if let Some([q_norm, k_norm]) = &block.head_norms {
            q = ops::rms_norm(&q, q_norm, self.eps)?;
            k = ops::rms_norm(&k, k_norm, self.eps)?;
        }
        let (q, k) = (rope.apply(&q)?, rope.apply(&k)?);
        let mixed = attend.attend(layer, self.heads, &q, &k, &v)?;
        Ok(AttentionTape { h, raw_q, raw_k, q, k, v, mixed })
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
