//! The feed-forward part of a block: one gated layer, or for each row a few of many.

use super::backward::Sink;
use crate::ops::{self, Routes, Visit};
use crate::{Config, PolicyError};
use candle_core::{Device, Result, Tensor, bail};

/// `down(silu(gate(x)) * up(x))`.
pub(super) struct Gated {
    gate: Tensor,
    up: Tensor,
    down: Tensor,
}

pub(super) enum FeedForward {
    Dense(Gated),
    Experts(Mixture),
}

/// Experts with the router that chooses among them.
pub(super) struct Mixture {
    router: Tensor,
    experts: Vec<Gated>,
    per_row: usize,
    normalize: bool,
}

/// What the backward pass needs of a [`Gated`] layer: its input and what lies within.
struct GatedTape {
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    gated: Tensor,
}

pub(super) struct FeedForwardTape(Kind);

enum Kind {
    Dense(GatedTape),
    /// With the visits that have rows: the expert, its rows, what it did and its results.
    Experts { h: Tensor, routes: Routes, visits: Vec<(usize, Visit, GatedTape, Tensor)> },
}

impl Gated {
    fn new(
        prefix: &str,
        part: &dyn Fn(&str) -> std::result::Result<Tensor, PolicyError>,
    ) -> std::result::Result<Self, PolicyError> {
        let part = |name: &str| part(&format!("{prefix}.{name}"));
        Ok(Self { gate: part("gate_proj")?, up: part("up_proj")?, down: part("down_proj")? })
    }

    fn inner(&self, x: Tensor) -> Result<GatedTape> {
        let (gate, up) = (ops::linear(&x, &self.gate)?, ops::linear(&x, &self.up)?);
        let gated = ops::swiglu(&gate, &up)?;
        Ok(GatedTape { x, gate, up, gated })
    }

    /// The gradient of the input, given that of the result.
    fn back(&self, prefix: &str, tape: &GatedTape, grad: &Tensor, sink: &mut Sink<'_>) -> Result<Tensor> {
        let dgated = sink.linear(&format!("{prefix}.down_proj"), &tape.gated, &self.down, grad)?;
        let [dgate, dup] = ops::swiglu_gradients(&tape.gate, &tape.up, &dgated)?;
        let from_gate = sink.linear(&format!("{prefix}.gate_proj"), &tape.x, &self.gate, &dgate)?;
        let from_up = sink.linear(&format!("{prefix}.up_proj"), &tape.x, &self.up, &dup)?;
        ops::sum(&[&from_gate, &from_up])
    }
}

impl FeedForward {
    /// From the layer's tensors by name, such as `mlp.up_proj`.
    pub(super) fn new(
        config: &Config,
        layer: usize,
        part: &dyn Fn(&str) -> std::result::Result<Tensor, PolicyError>,
    ) -> std::result::Result<Self, PolicyError> {
        let Some(experts) = config.experts_at(layer) else { return Ok(Self::Dense(Gated::new("mlp", part)?)) };
        Ok(Self::Experts(Mixture {
            router: part("mlp.gate")?,
            experts: (0..experts.count)
                .map(|e| Gated::new(&format!("mlp.experts.{e}"), part))
                .collect::<std::result::Result<_, _>>()?,
            per_row: experts.per_token,
            normalize: experts.normalize,
        }))
    }

    /// `residual` plus the part's result for the normalized rows `h`.
    pub(super) fn run(&self, h: Tensor, residual: &Tensor) -> Result<(Tensor, FeedForwardTape)> {
        match self {
            Self::Dense(layer) => {
                let tape = layer.inner(h)?;
                Ok((ops::linear_add(&tape.gated, &layer.down, residual)?, FeedForwardTape(Kind::Dense(tape))))
            }
            Self::Experts(mixture) => mixture.run(h, residual),
        }
    }

    /// The gradient of `h`, given that of the result; the residual's is the result's own.
    pub(super) fn back(&self, tape: &FeedForwardTape, grad: &Tensor, sink: &mut Sink<'_>) -> Result<Tensor> {
        match (self, &tape.0) {
            (Self::Dense(layer), Kind::Dense(tape)) => layer.back("mlp", tape, grad, sink),
            (Self::Experts(mixture), Kind::Experts { h, routes, visits }) => {
                mixture.back(h, routes, visits, grad, sink)
            }
            _ => bail!("feed-forward: the tape is another layer's"),
        }
    }
}

impl Mixture {
    fn run(&self, h: Tensor, residual: &Tensor) -> Result<(Tensor, FeedForwardTape)> {
        let routes = Routes::new(&ops::linear(&h, &self.router)?, self.per_row, self.normalize)?;
        let mut sum = vec![0.0; h.elem_count()];
        let mut visits = Vec::new();
        for (e, expert) in self.experts.iter().enumerate() {
            let visit = routes.visit(e);
            if !visit.rows.is_empty() {
                let tape = expert.inner(ops::gather_rows(&h, &visit.rows)?)?;
                let y = ops::linear(&tape.gated, &expert.down)?;
                routes.add(&visit, &y, &mut sum)?;
                visits.push((e, visit, tape, y));
            }
        }
        let sum = Tensor::from_vec(sum, h.shape(), &Device::Cpu)?;
        Ok((ops::sum(&[residual, &sum])?, FeedForwardTape(Kind::Experts { h, routes, visits })))
    }

    fn back(
        &self,
        h: &Tensor,
        routes: &Routes,
        visits: &[(usize, Visit, GatedTape, Tensor)],
        grad: &Tensor,
        sink: &mut Sink<'_>,
    ) -> Result<Tensor> {
        let (grad, mut dweights) = (grad.contiguous()?, vec![0.0; routes.slots()]);
        let mut dh = h.zeros_like()?;
        let mut at = visits.iter().peekable();
        for (e, expert) in self.experts.iter().enumerate() {
            let prefix = format!("mlp.experts.{e}");
            let Some((_, visit, tape, y)) = at.next_if(|(visited, ..)| *visited == e) else {
                // No row went through it: its tensors have gradients all the same, of zeros.
                for (name, weight) in [("gate_proj", &expert.gate), ("up_proj", &expert.up), ("down_proj", &expert.down)] {
                    sink.put(&format!("{prefix}.{name}"), weight.zeros_like()?);
                }
                continue;
            };
            let dy = routes.add_gradient(visit, y, &grad, &mut dweights)?;
            let dx = expert.back(&prefix, tape, &dy, sink)?;
            dh = ops::gather_gradient(&visit.rows, &dh, &dx)?;
        }
        let from_router = sink.linear("mlp.gate", h, &self.router, &routes.gradient(&dweights)?)?;
        ops::sum(&[&dh, &from_router])
    }
}
