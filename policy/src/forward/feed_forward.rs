//! The gated feed-forward layer of a block.

use super::backward::Sink;
use super::parts::{Parts, Projection};
use crate::PolicyError;
use crate::ops;
use candle_core::{Result, Tensor};

/// `down(silu(gate(h)) * up(h))`.
pub(super) struct FeedForward {
    gate: Projection,
    up: Projection,
    down: Projection,
}

/// What the layer's backward pass needs.
pub(super) struct FeedForwardTape {
    gate: Tensor,
    up: Tensor,
    gated: Tensor,
}

impl FeedForward {
    /// The layer of `model.layers.N`.
    pub(super) fn new(parts: Parts<'_>, layer: &str) -> std::result::Result<Self, PolicyError> {
        let part = |name: &str| parts.projection(&format!("{layer}.mlp.{name}"));
        Ok(Self { gate: part("gate_proj")?, up: part("up_proj")?, down: part("down_proj")? })
    }

    /// `residual` and the layer's result for the normalized rows `h`.
    pub(super) fn apply_add(&self, h: &Tensor, residual: &Tensor) -> Result<(Tensor, FeedForwardTape)> {
        let (gate, up) = (self.gate.apply(h)?, self.up.apply(h)?);
        let gated = ops::swiglu(&gate, &up)?;
        Ok((self.down.apply_add(&gated, residual)?, FeedForwardTape { gate, up, gated }))
    }

    /// The gradient of `h`, given that of the layer's result.
    pub(super) fn back(
        &self,
        h: &Tensor,
        tape: &FeedForwardTape,
        grad: &Tensor,
        sink: &mut Sink<'_>,
    ) -> Result<Tensor> {
        let dgated = sink.linear("mlp.down_proj", &self.down, &tape.gated, grad)?;
        let [dgate, dup] = ops::swiglu_gradients(&tape.gate, &tape.up, &dgated)?;
        let from_gate = sink.linear("mlp.gate_proj", &self.gate, h, &dgate)?;
        let from_up = sink.linear("mlp.up_proj", &self.up, h, &dup)?;
        ops::sum(&[&from_gate, &from_up])
    }
}
