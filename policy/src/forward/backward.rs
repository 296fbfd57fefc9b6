//! The backward pass over a tape: the operations' own gradients, in the reverse of the forward pass's order.

use super::{AttentionTape, Block, BlockTape, Network, Rows, Tape};
use crate::ops::{self, Rope};
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
    pub(super) fn put(&mut self, name: &str, gradient: Tensor) {
        self.all.insert(format!("model.layers.{}.{name}.weight", self.layer), gradient);
    }

    /// Gradient of a linear operation's input; its weight's is kept.
    pub(super) fn linear(&mut self, name: &str, x: &Tensor, weight: &Tensor, grad: &Tensor) -> Result<Tensor> {
        let [dx, dweight] = ops::linear_gradients(x, weight, grad)?;
        self.put(name, dweight);
        Ok(dx)
    }

    /// Gradient of a norm's input; its weight's is kept.
    fn norm(&mut self, name: &str, x: &Tensor, weight: &Tensor, eps: f64, grad: &Tensor) -> Result<Tensor> {
        let [dx, dweight] = ops::rms_norm_gradients(x, weight, eps, grad)?;
        self.put(name, dweight);
        Ok(dx)
    }
}

impl Network {
    /// Gradients of every tensor, given those of the scores `[2, n]` of `ids` (see [`ops::token_logprob`]) after a pass over
    /// `rows`, whose sequences have `lengths`.
    pub(crate) fn backward(
        &self,
        rows: &Rows,
        lengths: &[usize],
        tape: &Tape,
        ids: &[u32],
        grad: &[f32],
    ) -> Result<Gradients> {
        let (Some(last), Some(hidden), Some(rope)) = (&tape.last, &tape.hidden, &tape.rope) else {
            bail!("backward: the tape is empty");
        };
        let mut all = Gradients::new();
        let [dhidden, dhead] = ops::token_logprob_gradients(hidden, &self.head, ids, grad)?;
        let [mut dx, dnorm] = ops::rms_norm_gradients(last, &self.norm, self.eps, &dhidden)?;
        all.insert("model.norm.weight".to_owned(), dnorm);
        for (layer, (block, tape)) in self.blocks.iter().zip(&tape.blocks).enumerate().rev() {
            let mut sink = Sink { layer, all: &mut all };
            let dx1 = self.feed_forward_back(block, tape, &dx, &mut sink)?;
            let mut dmixed = sink.linear("self_attn.o_proj", &tape.mixed, &block.o, &dx1)?;
            let mut dresidual = dx1;
            if layer + 1 == self.blocks.len() {
                dmixed = ops::gather_gradient(&rows.wanted, &tape.attention.mixed.zeros_like()?, &dmixed)?;
                dresidual = ops::gather_gradient(&rows.wanted, &tape.x.zeros_like()?, &dresidual)?;
            }
            let dh = self.attention_back(block, &tape.attention, rope, lengths, &dmixed, &mut sink)?;
            let through = sink.norm("input_layernorm", &tape.x, &block.input_norm, self.eps, &dh)?;
            dx = ops::sum(&[&dresidual, &through])?;
        }
        let embedding = "model.embed_tokens.weight".to_owned();
        if self.tied {
            all.insert(embedding, ops::gather_gradient(&rows.ids, &dhead, &dx)?);
        } else {
            all.insert(embedding, ops::gather_gradient(&rows.ids, &self.embedding.zeros_like()?, &dx)?);
            all.insert("lm_head.weight".to_owned(), dhead);
        }
        Ok(all)
    }

    /// From the gradient of the block's result to that of the stream between attention and feed-forward.
    fn feed_forward_back(&self, block: &Block, tape: &BlockTape, dx: &Tensor, sink: &mut Sink<'_>) -> Result<Tensor> {
        let dh = block.feed_forward.back(&tape.feed_forward, dx, sink)?;
        let through = sink.norm("post_attention_layernorm", &tape.x1, &block.post_norm, self.eps, &dh)?;
        ops::sum(&[dx, &through])
    }

    /// From the gradient of attention's result to that of its normalized input.
    fn attention_back(
        &self,
        block: &Block,
        tape: &AttentionTape,
        rope: &Rope,
        lengths: &[usize],
        dmixed: &Tensor,
        sink: &mut Sink<'_>,
    ) -> Result<Tensor> {
        let qkv = [&tape.q, &tape.k, &tape.v];
        let [dq, dk, dv] = ops::packed_attention_gradients(qkv, self.heads, lengths, dmixed)?;
        let (mut dq, mut dk) = (rope.gradient(&dq)?, rope.gradient(&dk)?);
        if let Some([q_norm, k_norm]) = &block.head_norms {
            dq = sink.norm("self_attn.q_norm", &tape.raw_q, q_norm, self.eps, &dq)?;
            dk = sink.norm("self_attn.k_norm", &tape.raw_k, k_norm, self.eps, &dk)?;
        }
        let from_q = sink.linear("self_attn.q_proj", &tape.h, &block.q, &dq)?;
        let from_k = sink.linear("self_attn.k_proj", &tape.h, &block.k, &dk)?;
        let from_v = sink.linear("self_attn.v_proj", &tape.h, &block.v, &dv)?;
        ops::sum(&[&from_q, &from_k, &from_v])
    }
}
