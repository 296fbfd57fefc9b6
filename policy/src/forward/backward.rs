//! The backward pass over a tape: the operations' own gradients, in the reverse of the forward pass's order.

use super::parts::{Projection, Weight};
use super::{Attend, AttentionTape, Block, BlockTape, Network, Rows, Tape};
use crate::ops::{self, Rope};
use crate::trie::{Branch, Pick};
use candle_core::{Result, Tensor, bail};
use std::collections::BTreeMap;

/// Gradients by tensor name.
type Gradients = BTreeMap<String, Tensor>;

/// Gradients of one block's tensors.
pub(super) struct Sink<'a> {
    layer: usize,
    all: &'a mut Gradients,
}

impl Sink<'_> {
    /// Keeps the gradient of the block's tensor `name`.
    pub(super) fn put(&mut self, name: &str, gradient: Tensor) {
        self.all.insert(format!("model.layers.{}.{name}", self.layer), gradient);
    }

    /// Gradient of a linear layer's input; those of what is trained in it are kept.
    pub(super) fn linear(&mut self, name: &str, layer: &Projection, x: &Tensor, grad: &Tensor) -> Result<Tensor> {
        layer.back(x, grad, |part, gradient| self.put(&format!("{name}.{part}"), gradient))
    }

    /// Gradient of a norm's input; its weight's is kept if it is trained.
    pub(super) fn norm(&mut self, name: &str, x: &Tensor, weight: &Weight, eps: f64, grad: &Tensor) -> Result<Tensor> {
        let [dx, dweight] = ops::rms_norm_gradients(x, &weight.tensor, eps, grad)?;
        if weight.trained {
            self.put(&format!("{name}.weight"), dweight);
        }
        Ok(dx)
    }
}

impl Network {
    /// Gradients of every trained tensor, given those of the scores `[2, n]` of `picks` (see [`ops::token_logprob`]) after a
    /// pass over `rows`, which `branches` cover. `attend` is as in the pass, for blocks that are computed again.
    pub(crate) fn backward(
        &self,
        rows: &Rows,
        branches: &[Branch],
        attend: &mut dyn Attend,
        tape: &Tape,
        picks: &[Pick],
        grad: &[f32],
    ) -> Result<Gradients> {
        let (Some(last), Some(hidden), Some(rope)) = (&tape.last, &tape.hidden, &tape.rope) else {
            bail!("backward: the tape is empty");
        };
        let mut all = Gradients::new();
        let head = &self.head;
        let (dhidden, dhead) = ops::token_logprob_gradients(hidden, head.matrix.tensor()?, picks, grad, head.trained)?;
        let [mut dx, dnorm] = ops::rms_norm_gradients(last, &self.norm.tensor, self.eps, &dhidden)?;
        if self.norm.trained {
            all.insert("model.norm.weight".to_owned(), dnorm);
        }
        for (layer, (block, kept)) in self.blocks.iter().zip(&tape.blocks).enumerate().rev() {
            let mut sink = Sink { layer, all: &mut all };
            let again;
            let inner = match &kept.inner {
                Some(inner) => inner,
                None => {
                    again = self.block(layer, &kept.x, rows, rope, attend)?.1;
                    &again
                }
            };
            let dx1 = self.feed_forward_back(block, inner, &dx, &mut sink)?;
            let mut dmixed = sink.linear("self_attn.o_proj", &block.o, &inner.mixed, &dx1)?;
            let mut dresidual = dx1;
            if layer + 1 == self.blocks.len() {
                dmixed = ops::gather_gradient(&rows.wanted, &inner.attention.mixed.zeros_like()?, &dmixed)?;
                dresidual = ops::gather_gradient(&rows.wanted, &kept.x.zeros_like()?, &dresidual)?;
            }
            let dh = self.attention_back(block, &inner.attention, rope, branches, &dmixed, &mut sink)?;
            let through = sink.norm("input_layernorm", &kept.x, &block.input_norm, self.eps, &dh)?;
            dx = ops::sum(&[&dresidual, &through])?;
        }
        self.ends(rows, &dx, dhead, &mut all)?;
        Ok(all)
    }

    /// Gradients of the embedding and of the output matrix, which may be one.
    fn ends(&self, rows: &Rows, dx: &Tensor, dhead: Option<Tensor>, all: &mut Gradients) -> Result<()> {
        let mut dhead = dhead;
        if self.embedding.trained {
            let start = match dhead.take_if(|_| self.tied) {
                Some(dhead) => dhead,
                None => self.embedding.matrix.tensor()?.zeros_like()?,
            };
            all.insert("model.embed_tokens.weight".to_owned(), ops::gather_gradient(&rows.ids, &start, dx)?);
        }
        if let Some(dhead) = dhead {
            all.insert("lm_head.weight".to_owned(), dhead);
        }
        Ok(())
    }

    /// From the gradient of the block's result to that of the stream between attention and feed-forward.
    fn feed_forward_back(&self, block: &Block, tape: &BlockTape, dx: &Tensor, sink: &mut Sink<'_>) -> Result<Tensor> {
        let dh = block.feed_forward.back(&tape.h, &tape.feed_forward, dx, sink)?;
        let through = sink.norm("post_attention_layernorm", &tape.x1, &block.post_norm, self.eps, &dh)?;
        ops::sum(&[dx, &through])
    }

    /// From the gradient of attention's result to that of its normalized input.
    fn attention_back(
        &self,
        block: &Block,
        tape: &AttentionTape,
        rope: &Rope,
        branches: &[Branch],
        dmixed: &Tensor,
        sink: &mut Sink<'_>,
    ) -> Result<Tensor> {
        let qkv = [&tape.q, &tape.k, &tape.v];
        let [dq, dk, dv] = ops::path_attention_gradients(qkv, self.heads, branches, dmixed)?;
        let (mut dq, mut dk) = (rope.gradient(&dq)?, rope.gradient(&dk)?);
        if let (Some([q_norm, k_norm]), Some([raw_q, raw_k])) = (&block.head_norms, &tape.raw) {
            dq = sink.norm("self_attn.q_norm", raw_q, q_norm, self.eps, &dq)?;
            dk = sink.norm("self_attn.k_norm", raw_k, k_norm, self.eps, &dk)?;
        }
        let from_q = sink.linear("self_attn.q_proj", &block.q, &tape.h, &dq)?;
        let from_k = sink.linear("self_attn.k_proj", &block.k, &tape.h, &dk)?;
        let from_v = sink.linear("self_attn.v_proj", &block.v, &tape.h, &dv)?;
        ops::sum(&[&from_q, &from_k, &from_v])
    }
}
