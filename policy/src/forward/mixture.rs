//! A mixture of experts: a router sends each row through a few gated layers and weighs their results.

use super::backward::Sink;
use super::feed_forward::{Gated, GatedTape};
use super::parts::{Parts, Projection};
use crate::ops::{self, Routes, Visit};
use crate::{Experts, PolicyError};
use candle_core::{Device, Result, Tensor};

pub(super) struct Mixture {
    router: Projection,
    experts: Vec<Gated>,
    per_row: usize,
    normalize: bool,
}

/// What the backward pass needs besides the input.
pub(super) struct MixtureTape {
    routes: Routes,
    /// Of the experts that have rows, in increasing order.
    visits: Vec<Visited>,
}

/// What one expert did.
struct Visited {
    expert: usize,
    visit: Visit,
    x: Tensor,
    inner: GatedTape,
    y: Tensor,
}

impl Mixture {
    pub(super) fn new(parts: Parts<'_>, shape: &Experts, module: &str) -> std::result::Result<Self, PolicyError> {
        let expert = |e| Gated::new(parts, &format!("{module}.experts.{e}"));
        Ok(Self {
            router: parts.projection(&format!("{module}.gate"))?,
            experts: (0..shape.count).map(expert).collect::<std::result::Result<_, _>>()?,
            per_row: shape.per_token,
            normalize: shape.normalize,
        })
    }

    /// The weighted sums for the rows of `h`. A row's sum goes over its experts in increasing order, and each expert's
    /// product is padded like any other, so a row's result does not depend on the other rows.
    pub(super) fn apply(&self, h: &Tensor) -> Result<(Tensor, MixtureTape)> {
        let routes = Routes::new(&self.router.apply(h)?, self.per_row, self.normalize)?;
        let (mut sum, mut visits) = (vec![0.0; h.elem_count()], Vec::new());
        for (expert, layer) in self.experts.iter().enumerate() {
            let visit = routes.visit(expert);
            if !visit.rows.is_empty() {
                let x = ops::gather_rows(h, &visit.rows)?;
                let inner = layer.inner(&x)?;
                let y = layer.down.apply(&inner.gated)?;
                routes.add(&visit, &y, &mut sum)?;
                visits.push(Visited { expert, visit, x, inner, y });
            }
        }
        Ok((Tensor::from_vec(sum, h.shape(), &Device::Cpu)?, MixtureTape { routes, visits }))
    }

    /// The gradient of `h`, given that of the sums.
    pub(super) fn back(&self, h: &Tensor, tape: &MixtureTape, grad: &Tensor, sink: &mut Sink<'_>) -> Result<Tensor> {
        let (grad, mut dweights) = (grad.contiguous()?, vec![0.0; tape.routes.slots()]);
        let mut dh = h.zeros_like()?;
        let mut visits = tape.visits.iter().peekable();
        for (expert, layer) in self.experts.iter().enumerate() {
            let module = format!("mlp.experts.{expert}");
            let Some(done) = visits.next_if(|visited| visited.expert == expert) else {
                layer.unused(&module, sink)?;
                continue;
            };
            let dy = tape.routes.add_gradient(&done.visit, &done.y, &grad, &mut dweights)?;
            let dx = layer.back(&module, &done.x, &done.inner, &dy, sink)?;
            dh = ops::gather_gradient(&done.visit.rows, &dh, &dx)?;
        }
        let from_router = sink.linear("mlp.gate", &self.router, h, &tape.routes.gradient(&dweights)?)?;
        ops::sum(&[&dh, &from_router])
    }
}
