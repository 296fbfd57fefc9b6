//! The tensors of a network by name, and which of them are trained.

use crate::lora::AdapterConfig;
use crate::ops::{self, Matrix, Panels};
use crate::{PolicyError, lora};
use candle_core::{Result, Tensor, Var};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Where a network's tensors come from.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a> {
    /// The tensors that training changes.
    pub(crate) vars: &'a BTreeMap<String, Var>,
    /// The others.
    pub(crate) frozen: &'a BTreeMap<String, Tensor>,
    /// Matrices that are laid out for sampling, in place of `vars` and `frozen`.
    pub(crate) panels: &'a BTreeMap<String, Arc<Panels>>,
    /// The low-rank adapter whose matrices are among `vars`.
    pub(crate) adapter: Option<&'a AdapterConfig>,
}

/// A tensor, and whether it gets a gradient.
#[derive(Clone)]
pub(crate) struct Weight {
    pub(crate) tensor: Tensor,
    pub(crate) trained: bool,
}

/// A matrix, and whether it gets a gradient.
#[derive(Clone)]
pub(crate) struct MatrixWeight {
    pub(crate) matrix: Matrix,
    pub(crate) trained: bool,
}

/// A linear layer: a matrix, and what an adapter adds to it.
pub(crate) struct Projection {
    weight: MatrixWeight,
    adapter: Option<LowRank>,
}

/// `scale * up * down`: `down` `[rank, inputs]`, `up` `[outputs, rank]`.
struct LowRank {
    down: Matrix,
    up: Matrix,
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

    /// The matrix of that name.
    pub(crate) fn matrix(self, name: &str) -> std::result::Result<MatrixWeight, PolicyError> {
        if let Some(panels) = self.panels.get(name) {
            return Ok(MatrixWeight { matrix: Matrix::Panels(panels.clone()), trained: false });
        }
        let Weight { tensor, trained } = self.weight(name)?;
        Ok(MatrixWeight { matrix: Matrix::Rows(tensor), trained })
    }

    /// The linear layer whose matrix is `MODULE.weight`.
    pub(crate) fn projection(self, module: &str) -> std::result::Result<Projection, PolicyError> {
        let weight = self.matrix(&format!("{module}.weight"))?;
        let adapter = match self.adapter {
            Some(adapter) if adapter.targets(module) => Some(LowRank {
                down: self.matrix(&lora::down_name(module))?.matrix,
                up: self.matrix(&lora::up_name(module))?.matrix,
                scale: adapter.scale(),
            }),
            _ => None,
        };
        Ok(Projection { weight, adapter })
    }
}

/// `x` `[rows, inputs]` through several layers, side by side.
pub(crate) fn apply_all<const N: usize>(layers: [&Projection; N], x: &Tensor) -> Result<[Tensor; N]> {
    let mut all = ops::products(x, layers.map(|layer| &layer.weight.matrix))?;
    for (layer, y) in layers.iter().zip(&mut all) {
        if let Some(added) = layer.add_low_rank(x, y)? {
            *y = added;
        }
    }
    Ok(all)
}

impl Projection {
    /// `x` `[rows, inputs]` through the layer.
    pub(crate) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let [y] = apply_all([self], x)?;
        Ok(y)
    }

    /// `residual` and `x` through the layer.
    pub(crate) fn apply_add(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let y = ops::linear_add(x, &self.weight.matrix, residual)?;
        Ok(self.add_low_rank(x, &y)?.unwrap_or(y))
    }

    /// `y` and the adapter's part, if there is an adapter.
    fn add_low_rank(&self, x: &Tensor, y: &Tensor) -> Result<Option<Tensor>> {
        let Some(LowRank { down, up, scale }) = &self.adapter else { return Ok(None) };
        ops::add_scaled(y, &ops::linear(&ops::linear(x, down)?, up)?, *scale).map(Some)
    }

    /// The gradient of `x`, given that of [`Projection::apply`]'s result. Gradients of what is trained go to `put` by the rest
    /// of their tensor's name; a frozen matrix costs no weight gradient.
    pub(crate) fn back(&self, x: &Tensor, grad: &Tensor, mut put: impl FnMut(&str, Tensor)) -> Result<Tensor> {
        if self.weight.trained {
            put("weight", ops::linear_weight_gradient(x, grad)?);
        }
        let dx = ops::linear_input_gradient(self.weight.matrix.tensor()?, grad)?;
        let Some(LowRank { down, up, scale }) = &self.adapter else { return Ok(dx) };
        let grad = ops::scaled(grad, *scale)?;
        let inner = ops::linear_input_gradient(up.tensor()?, &grad)?;
        put(lora::UP, ops::linear_weight_gradient(&ops::linear(x, down)?, &grad)?);
        put(lora::DOWN, ops::linear_weight_gradient(x, &inner)?);
        ops::add_scaled(&dx, &ops::linear_input_gradient(down.tensor()?, &inner)?, 1.0)
    }

    /// Gradients, all zero, of what is trained in a layer that nothing went through.
    pub(crate) fn unused(&self, mut put: impl FnMut(&str, Tensor)) -> Result<()> {
        if self.weight.trained {
            put("weight", self.weight.matrix.tensor()?.zeros_like()?);
        }
        if let Some(LowRank { down, up, .. }) = &self.adapter {
            put(lora::UP, up.tensor()?.zeros_like()?);
            put(lora::DOWN, down.tensor()?.zeros_like()?);
        }
        Ok(())
    }
}
