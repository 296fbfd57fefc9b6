use super::{numbers, with_numbers};
use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor, bail};
use std::sync::Arc;

/// Rows `indices` of `table` `[n, width]`, in that order: token embeddings, or chosen positions of hidden states.
pub(crate) fn gather_rows(table: &Tensor, indices: &[usize]) -> Result<Tensor> {
    table.apply_op1(GatherRows { indices: Arc::new(indices.to_vec()) })
}

/// `sum` `[n, width]` and, added to its rows, the gradients of the rows that [`gather_rows`] took from them; those of a row that
/// was taken several times are added in the order of taking.
pub(crate) fn gather_gradient(indices: &[usize], sum: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let (n, width) = sum.dims2()?;
    let all = with_numbers([sum, &grad.contiguous()?], "gather-rows", |[sum, grad]| {
        let mut all = sum.to_vec();
        for (&index, grad) in indices.iter().zip(grad.chunks_exact(width)) {
            all[index * width..][..width].iter_mut().zip(grad).for_each(|(sum, g)| *sum += g);
        }
        Ok(all)
    })?;
    Tensor::from_vec(all, (n, width), &Device::Cpu)
}

struct GatherRows {
    indices: Arc<Vec<usize>>,
}

impl CustomOp1 for GatherRows {
    fn name(&self) -> &'static str {
        "gather-rows"
    }

    fn cpu_fwd(&self, table: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (n, width) = layout.shape().dims2()?;
        let table = numbers(table, layout, self.name())?;
        let mut out = Vec::with_capacity(self.indices.len() * width);
        for &index in self.indices.iter() {
            if index >= n {
                bail!("gather-rows: row {index} of {n}");
            }
            out.extend_from_slice(&table[index * width..][..width]);
        }
        Ok((CpuStorage::F32(out), (self.indices.len(), width).into()))
    }

    fn bwd(&self, table: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        gather_gradient(&self.indices, &table.zeros_like()?, grad).map(Some)
    }
}
