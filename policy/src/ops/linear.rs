use super::product::{Panels, Weights, products as multiply};
use super::{gather_rows, numbers, with_numbers};
use candle_core::{CpuStorage, Device, Layout, Result, Storage, Tensor, bail};
use std::ops::Deref;
use std::sync::Arc;

/// The matrix of a linear layer, `[outputs, inputs]`: as a tensor, which can be trained, or laid out for products of few rows.
/// Products have the same bits with either.
#[derive(Clone)]
pub(crate) enum Matrix {
    /// The tensor; it shares its storage.
    Rows(Tensor),
    /// Laid out once.
    Panels(Arc<Panels>),
}

impl Matrix {
    /// Rows of the matrix.
    pub(crate) fn outputs(&self) -> Result<usize> {
        match self {
            Self::Rows(tensor) => tensor.dim(0),
            Self::Panels(panels) => Ok(panels.outputs()),
        }
    }

    fn hold(&self) -> Held<'_, impl Deref<Target = Storage> + '_> {
        match self {
            Self::Rows(tensor) => {
                let (storage, layout) = tensor.storage_and_layout();
                Held::Rows(storage, layout)
            }
            Self::Panels(panels) => Held::Panels(panels),
        }
    }

    /// The tensor, where the matrix is one.
    pub(crate) fn tensor(&self) -> Result<&Tensor> {
        match self {
            Self::Rows(tensor) => Ok(tensor),
            Self::Panels(_) => bail!("linear: weights that are laid out for sampling have no gradient"),
        }
    }

    /// Rows `indices` of the matrix, in that order.
    pub(crate) fn gather(&self, indices: &[usize]) -> Result<Tensor> {
        let panels = match self {
            Self::Rows(tensor) => return gather_rows(tensor, indices),
            Self::Panels(panels) => panels,
        };
        let mut rows = Vec::with_capacity(indices.len() * panels.inputs());
        for index in indices {
            if *index >= panels.outputs() {
                bail!("gather-rows: row {index} of {}", panels.outputs());
            }
            panels.row(*index, &mut rows);
        }
        Tensor::from_vec(rows, (indices.len(), panels.inputs()), &Device::Cpu)
    }
}

/// `x` `[rows, inputs]` times the transpose of each matrix; they run side by side. Without gradients.
pub(crate) fn products<const N: usize>(x: &Tensor, matrices: [&Matrix; N]) -> Result<[Tensor; N]> {
    let (rows, tensors) = (x.dims2()?.0, numbers_of_products(x, &matrices)?.into_iter());
    let tensors = tensors
        .zip(matrices)
        .map(|(numbers, matrix)| Tensor::from_vec(numbers, (rows, matrix.outputs()?), &Device::Cpu));
    match tensors.collect::<Result<Vec<_>>>()?.try_into() {
        Ok(all) => Ok(all),
        Err(_) => bail!("linear: a product is missing"),
    }
}

/// `x` `[rows, inputs]` times the transpose of a matrix. Without gradients.
pub(crate) fn linear(x: &Tensor, matrix: &Matrix) -> Result<Tensor> {
    let [product] = products(x, [matrix])?;
    Ok(product)
}

/// `residual + linear(x, matrix)`. Without gradients.
pub(crate) fn linear_add(x: &Tensor, matrix: &Matrix, residual: &Tensor) -> Result<Tensor> {
    let mut numbers = numbers_of_products(x, &[matrix])?.pop().unwrap_or_default();
    with_numbers([residual], "linear-add", |[residual]| {
        if numbers.len() != residual.len() {
            bail!("linear-add: {} numbers added to {}", residual.len(), numbers.len());
        }
        numbers.iter_mut().zip(residual).for_each(|(out, r)| *out += r);
        Ok(())
    })?;
    Tensor::from_vec(numbers, residual.shape(), &Device::Cpu)
}

fn numbers_of_products(x: &Tensor, matrices: &[&Matrix]) -> Result<Vec<Vec<f32>>> {
    let (rows, inputs) = x.dims2()?;
    let held: Vec<_> = matrices.iter().map(|matrix| matrix.hold()).collect();
    let weights = held.iter().map(|held| held.weights(inputs)).collect::<Result<Vec<_>>>()?;
    let mut results: Vec<Vec<f32>> = weights.iter().map(|weight| vec![0.0; rows * weight.outputs()]).collect();
    with_numbers([x], "linear", |[x]| {
        multiply(x, inputs, weights.into_iter().zip(results.iter_mut().map(Vec::as_mut_slice)).collect());
        Ok(())
    })?;
    Ok(results)
}

/// A matrix whose numbers can be read.
enum Held<'a, G> {
    Rows(G, &'a Layout),
    Panels(&'a Panels),
}

impl<G: Deref<Target = Storage>> Held<'_, G> {
    fn weights(&self, inputs: usize) -> Result<Weights<'_>> {
        let (weights, width) = match self {
            Self::Panels(panels) => (Weights::Panels(panels), panels.inputs()),
            Self::Rows(storage, layout) => {
                let Storage::Cpu(storage) = &**storage else { bail!("linear: needs the CPU") };
                let view = View::new(storage, layout, "linear")?;
                (Weights::Rows(view.numbers, view.rows), view.columns)
            }
        };
        if width != inputs {
            bail!("linear: rows of {inputs} for a weight of {width} inputs");
        }
        Ok(weights)
    }
}

/// A row-major matrix somewhere in a storage.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) numbers: &'a [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl<'a> View<'a> {
    pub(super) fn new(storage: &'a CpuStorage, layout: &Layout, op: &'static str) -> Result<Self> {
        let numbers = numbers(storage, layout, op)?;
        let (rows, columns) = layout.shape().dims2()?;
        Ok(Self { numbers, rows, columns })
    }

    pub(super) fn rows(self, first: usize, rows: usize) -> Self {
        Self { numbers: &self.numbers[first * self.columns..][..rows * self.columns], rows, ..self }
    }
}

/// `x` times the transpose of `weight`: every row of the result depends on its own row of `x` alone, bit for bit.
pub(super) fn product(x: View<'_>, weight: View<'_>) -> Result<Vec<f32>> {
    if x.columns != weight.columns {
        bail!("linear: rows of {} for a weight of {} inputs", x.columns, weight.columns);
    }
    let mut out = vec![0.0; x.rows * weight.rows];
    multiply(x.numbers, x.columns, vec![(Weights::Rows(weight.numbers, weight.rows), &mut out)]);
    Ok(out)
}

/// The gradient of `x` alone: half the work, for weights that are not trained.
pub(crate) fn linear_input_gradient(weight: &Tensor, grad: &Tensor) -> Result<Tensor> {
    grad.matmul(&weight.detach())
}

/// The gradient of `weight` alone.
pub(crate) fn linear_weight_gradient(x: &Tensor, grad: &Tensor) -> Result<Tensor> {
    grad.t()?.matmul(&x.detach())
}
