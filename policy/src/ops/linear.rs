use super::numbers;
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, bail};

/// `x` `[rows, inputs]` times the transpose of `weight` `[outputs, inputs]`.
pub(crate) fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    x.apply_op2(weight, Linear)
}

/// `residual + linear(x, weight)`.
pub(crate) fn linear_add(x: &Tensor, weight: &Tensor, residual: &Tensor) -> Result<Tensor> {
    x.apply_op3(weight, residual, LinearAdd)
}

/// The fewest rows with which the gemm crate (0.19) takes the code path that it also takes for many rows, so that a row of
/// the product has the same bits alone and in any batch. Below it are: one row (a matrix-vector product), at most 256
/// numbers of output (a product that sums across lanes), and up to 64 x 64 outputs (another split of long sums).
fn fewest_rows(outputs: usize, inputs: usize) -> usize {
    let enough = 4.max(256 / outputs.max(1) + 1);
    if outputs <= 64 && inputs > 512 { enough.max(65) } else { enough }
}

/// A row-major matrix somewhere in a storage.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub(super) storage: &'a CpuStorage,
    pub(super) offset: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl<'a> Matrix<'a> {
    pub(super) fn new(storage: &'a CpuStorage, layout: &Layout, op: &'static str) -> Result<Self> {
        numbers(storage, layout, op)?;
        let (rows, columns) = layout.shape().dims2()?;
        Ok(Self { storage, offset: layout.start_offset(), rows, columns })
    }

    pub(super) fn rows(self, first: usize, rows: usize) -> Self {
        Self { offset: self.offset + first * self.columns, rows, ..self }
    }

    fn layout(&self) -> Layout {
        Layout::contiguous_with_offset((self.rows, self.columns), self.offset)
    }

    fn transposed(&self) -> Layout {
        Layout::new((self.columns, self.rows).into(), vec![1, self.columns], self.offset)
    }
}

/// `x` times the transpose of `weight`: every row of the result depends on its own row of `x` alone, bit for bit.
pub(super) fn product(x: Matrix<'_>, weight: Matrix<'_>) -> Result<Vec<f32>> {
    if x.columns != weight.columns {
        bail!("linear: rows of {} for a weight of {} inputs", x.columns, weight.columns);
    }
    let (rows, inputs, outputs) = (x.rows, x.columns, weight.rows);
    let padded_rows = rows.max(fewest_rows(outputs, inputs));
    let padded;
    let x = if padded_rows == rows {
        x
    } else {
        let mut copy = vec![0.0; padded_rows * inputs];
        copy[..rows * inputs].copy_from_slice(numbers(x.storage, &x.layout(), "linear")?);
        padded = CpuStorage::F32(copy);
        Matrix { storage: &padded, offset: 0, rows: padded_rows, columns: inputs }
    };
    let size = (1, padded_rows, outputs, inputs);
    match x.storage.matmul(weight.storage, size, &x.layout(), &weight.transposed())? {
        CpuStorage::F32(mut out) => {
            out.truncate(rows * outputs);
            Ok(out)
        }
        _ => bail!("linear: needs f32"),
    }
}

/// Gradients of `x` and of `weight`, given that of [`linear`]'s result.
pub(crate) fn linear_gradients(x: &Tensor, weight: &Tensor, grad: &Tensor) -> Result<[Tensor; 2]> {
    Ok([linear_input_gradient(weight, grad)?, linear_weight_gradient(x, grad)?])
}

/// The gradient of `x` alone: half the work, for weights that are not trained.
pub(crate) fn linear_input_gradient(weight: &Tensor, grad: &Tensor) -> Result<Tensor> {
    grad.matmul(&weight.detach())
}

/// The gradient of `weight` alone.
pub(crate) fn linear_weight_gradient(x: &Tensor, grad: &Tensor) -> Result<Tensor> {
    grad.t()?.matmul(&x.detach())
}

struct Linear;

impl CustomOp2 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, w: &CpuStorage, lw: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, w) = (Matrix::new(x, lx, self.name())?, Matrix::new(w, lw, self.name())?);
        Ok((CpuStorage::F32(product(x, w)?), (x.rows, w.rows).into()))
    }

    fn bwd(&self, x: &Tensor, weight: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [dx, dweight] = linear_gradients(x, weight, grad)?;
        Ok((Some(dx), Some(dweight)))
    }
}

struct LinearAdd;

impl CustomOp3 for LinearAdd {
    fn name(&self) -> &'static str {
        "linear-add"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        lx: &Layout,
        w: &CpuStorage,
        lw: &Layout,
        r: &CpuStorage,
        lr: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, w) = (Matrix::new(x, lx, self.name())?, Matrix::new(w, lw, self.name())?);
        let residual = numbers(r, lr, self.name())?;
        let mut out = product(x, w)?;
        if out.len() != residual.len() {
            bail!("linear-add: {:?} added to {} rows of {}", lr.shape(), x.rows, w.rows);
        }
        out.iter_mut().zip(residual).for_each(|(out, r)| *out += r);
        Ok((CpuStorage::F32(out), (x.rows, w.rows).into()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [dx, dweight] = linear_gradients(x, weight, grad)?;
        Ok((Some(dx), Some(dweight), Some(grad.clone())))
    }
}
