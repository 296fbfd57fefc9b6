//! The feed-forward part of a block: one gated layer, or for each row a few of many.

use super::backward::Sink;
use super::mixture::{Mixture, MixtureTape};
use super::parts::{Parts, Projection, apply_all};
use crate::ops;
use crate::{Config, PolicyError};
use candle_core::{Result, Tensor, bail};

/// `down(silu(gate(h)) * up(h))`.
pub(super) struct Gated {
    gate: Projection,
    up: Projection,
    pub(super) down: Projection,
}

/// What a gated layer's backward pass needs besides its input.
pub(super) struct GatedTape {
    gate: Tensor,
    up: Tensor,
    pub(super) gated: Tensor,
}

pub(super) enum FeedForward {
    Dense(Gated),
    Experts(Mixture),
}

pub(super) enum FeedForwardTape {
    Dense(GatedTape),
    Experts(MixtureTape),
}

impl Gated {
    /// The layer whose matrices are `MODULE.gate_proj.weight` and so on.
    pub(super) fn new(parts: Parts<'_>, module: &str) -> std::result::Result<Self, PolicyError> {
        let part = |name: &str| parts.projection(&format!("{module}.{name}"));
        Ok(Self { gate: part("gate_proj")?, up: part("up_proj")?, down: part("down_proj")? })
    }

    /// All but the last product.
    pub(super) fn inner(&self, h: &Tensor) -> Result<GatedTape> {
        let [gate, up] = apply_all([&self.gate, &self.up], h)?;
        let gated = ops::swiglu(&gate, &up)?;
        Ok(GatedTape { gate, up, gated })
    }

    /// The gradient of `h`, given that of the layer's result; `module` is its name within the block.
    pub(super) fn back(
        &self,
        module: &str,
        h: &Tensor,
        tape: &GatedTape,
        grad: &Tensor,
        sink: &mut Sink<'_>,
    ) -> Result<Tensor> {
        let dgated = sink.linear(&format!("{module}.down_proj"), &self.down, &tape.gated, grad)?;
        let [dgate, dup] = ops::swiglu_gradients(&tape.gate, &tape.up, &dgated)?;
        let from_gate = sink.linear(&format!("{module}.gate_proj"), &self.gate, h, &dgate)?;
        let from_up = sink.linear(&format!("{module}.up_proj"), &self.up, h, &dup)?;
        ops::sum(&[&from_gate, &from_up])
    }

    /// Gradients of a layer that no row went through.
    pub(super) fn unused(&self, module: &str, sink: &mut Sink<'_>) -> Result<()> {
        for (name, layer) in [("down_proj", &self.down), ("gate_proj", &self.gate), ("up_proj", &self.up)] {
            layer.unused(|part, gradient| sink.put(&format!("{module}.{name}.{part}"), gradient))?;
        }
        Ok(())
    }
}

impl FeedForward {
    /// The part of `model.layers.N`, which `layer` names.
    pub(super) fn new(
        parts: Parts<'_>,
        config: &Config,
        number: usize,
        layer: &str,
    ) -> std::result::Result<Self, PolicyError> {
        let module = format!("{layer}.mlp");
        match config.experts_at(number) {
            None => Ok(Self::Dense(Gated::new(parts, &module)?)),
            Some(experts) => Ok(Self::Experts(Mixture::new(parts, experts, &module)?)),
        }
    }

    /// `residual` and the part's result for the normalized rows `h`.
    pub(super) fn apply_add(&self, h: &Tensor, residual: &Tensor) -> Result<(Tensor, FeedForwardTape)> {
        match self {
            Self::Dense(layer) => {
                let tape = layer.inner(h)?;
                Ok((layer.down.apply_add(&tape.gated, residual)?, FeedForwardTape::Dense(tape)))
            }
            Self::Experts(mixture) => {
                let (sum, tape) = mixture.apply(h)?;
                Ok((ops::sum(&[residual, &sum])?, FeedForwardTape::Experts(tape)))
            }
        }
    }

    /// The gradient of `h`, given that of the part's result.
    pub(super) fn back(
        &self,
        h: &Tensor,
        tape: &FeedForwardTape,
        grad: &Tensor,
        sink: &mut Sink<'_>,
    ) -> Result<Tensor> {
        match (self, tape) {
            (Self::Dense(layer), FeedForwardTape::Dense(tape)) => layer.back("mlp", h, tape, grad, sink),
            (Self::Experts(mixture), FeedForwardTape::Experts(tape)) => mixture.back(h, tape, grad, sink),
            _ => bail!("feed-forward: the tape is another layer's"),
        }
    }
}
