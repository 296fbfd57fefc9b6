//! The tensors of a network by name, and which of them are trained.

use crate::lora::AdapterConfig;
use crate::ops;
use crate::{PolicyError, lora};
use candle_core::{Result, Tensor, Var};
use std::collections::BTreeMap;

/// Where a network's tensors come from.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a> {
    /// The tensors that training changes.
    pub(crate) vars: &'a BTreeMap<String, Var>,
    /// The others.
    pub(crate) frozen: &'a BTreeMap<String, Tensor>,
    /// The low-rank adapter whose matrices are among `vars`.
    pub(crate) adapter: Option<&'a AdapterConfig>,
}

/// A tensor, and whether it gets a gradient.
#[derive(Clone)]
pub(crate) struct Weight {
    pub(crate) tensor: Tensor,
    pub(crate) trained: bool,
}

/// A linear layer: a matrix, and what an adapter adds to it.
pub(crate) struct Projection {
    pub(crate) weight: Weight,
    adapter: Option<LowRank>,
}

/// `scale * up * down`: `down` `[rank, inputs]`, `up` `[outputs, rank]`.
struct LowRank {
    down: Tensor,
    up: Tensor,
    scale: f32,
}

impl Parts<'_> {
    /// The tensor of that name; it shares its storage, so later changes show.
    pub(crate) fn weight(self, name: &str) -> std::result::Result<Weight, PolicyError> {
        let trained = self.vars.get(name).map(|var| Weight { tensor: var.as_detached_tensor(), trained: true });
        let frozen = || self.frozen.get(name).map(|tensor| Weight { tensor: tensor.clone(), trained: false });
        let missing = || PolicyError::Tensor { name: name.to_owned(), reason: "it is missing".to_owned() };
        trained.or_else(frozen).ok_or_else(missing)
    }

    /// The linear layer whose matrix is `MODULE.weight`.
    pub(crate) fn projection(self, module: &str) -> std::result::Result<Projection, PolicyError> {
        let weight = self.weight(&format!("{module}.weight"))?;
        let adapter = match self.adapter {
            Some(adapter) if adapter.targets(module) => Some(LowRank {
                down: self.weight(&lora::down_name(module))?.tensor,
                up: self.weight(&lora::up_name(module))?.tensor,
                scale: adapter.scale(),
            }),
            _ => None,
        };
        Ok(Projection { weight, adapter })
    }
}

impl Projection {
    /// `x` `[rows, inputs]` through the layer.
    pub(crate) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        self.add_low_rank(x, ops::linear(x, &self.weight.tensor)?)
    }

    /// `residual` and `x` through the layer.
    pub(crate) fn apply_add(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        self.add_low_rank(x, ops::linear_add(x, &self.weight.tensor, residual)?)
    }

    fn add_low_rank(&self, x: &Tensor, y: Tensor) -> Result<Tensor> {
        match &self.adapter {
            None => Ok(y),
            Some(LowRank { down, up, scale }) => ops::add_scaled(&y, &ops::linear(&ops::linear(x, down)?, up)?, *scale),
        }
    }

    /// The gradient of `x`, given that of [`Projection::apply`]'s result. Gradients of what is trained go to `put` by the rest
    /// of their tensor's name; a frozen matrix costs no weight gradient.
    pub(crate) fn back(&self, x: &Tensor, grad: &Tensor, mut put: impl FnMut(&str, Tensor)) -> Result<Tensor> {
        if self.weight.trained {
            put("weight", ops::linear_weight_gradient(x, grad)?);
        }
        let dx = ops::linear_input_gradient(&self.weight.tensor, grad)?;
        let Some(LowRank { down, up, scale }) = &self.adapter else { return Ok(dx) };
        let grad = ops::scaled(grad, *scale)?;
        let inner = ops::linear_input_gradient(up, &grad)?;
        put(lora::UP, ops::linear_weight_gradient(&ops::linear(x, down)?, &grad)?);
        put(lora::DOWN, ops::linear_weight_gradient(x, &inner)?);
        ops::add_scaled(&dx, &ops::linear_input_gradient(down, &inner)?, 1.0)
    }

    /// Gradients, all zero, of what is trained in a layer that nothing went through.
    pub(crate) fn unused(&self, mut put: impl FnMut(&str, Tensor)) -> Result<()> {
        if self.weight.trained {
            put("weight", self.weight.tensor.zeros_like()?);
        }
        if let Some(LowRank { down, up, .. }) = &self.adapter {
            put(lora::UP, up.zeros_like()?);
            put(lora::DOWN, down.zeros_like()?);
        }
        Ok(())
    }
}
