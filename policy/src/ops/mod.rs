//! The decoder's operations, each with its gradient, on the CPU in f32.
//!
//! candle's own fused operations cut the gradient in silence or reduce in an order that depends on the length of the row;
//! these do neither. Each output row is a function of its own input row (for attention: of the positions up to its own),
//! computed in one order whatever the batch and the number of threads, so results never depend on the neighbours.

mod attention;
mod block;
mod embedding;
mod experts;
mod linear;
mod math;
mod paged;
mod product;
mod rms_norm;
mod rope;
mod swiglu;
mod tiles;
mod token_logprob;

pub(crate) use attention::{Heads, path_attention, path_attention_gradients};
pub(crate) use block::{Block, BlockShape, Ledger, TOKENS};
pub(crate) use embedding::{gather_gradient, gather_rows};
pub(crate) use experts::{Routes, Visit};
pub(crate) use linear::{Matrix, linear, linear_add, linear_input_gradient, linear_weight_gradient, products};
pub(crate) use math::{exp, simd, softmax_parts};
pub(crate) use paged::{PagedTile, Reader, Span, per_tile};
pub(crate) use product::Panels;
pub(crate) use rms_norm::{rms_norm, rms_norm_gradients};
pub(crate) use rope::{Rope, RopeTable};
pub(crate) use swiglu::{swiglu, swiglu_gradients};
pub(crate) use token_logprob::{token_logprob, token_logprob_gradients};

use candle_core::{CpuStorage, Layout, Result, Storage, Tensor, bail};

/// Below this many multiplications a second thread costs more than it brings.
const PARALLEL_WORK: usize = 1 << 18;

/// The numbers of a contiguous f32 tensor inside a custom operation.
fn numbers<'a>(storage: &'a CpuStorage, layout: &Layout, op: &'static str) -> Result<&'a [f32]> {
    let CpuStorage::F32(all) = storage else { bail!("{op}: needs f32") };
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&all[start..end]),
        None => bail!("{op}: needs a contiguous tensor"),
    }
}

/// Calls `f` with the numbers of contiguous f32 tensors on the CPU.
pub(crate) fn with_numbers<R, const N: usize>(
    tensors: [&Tensor; N],
    op: &'static str,
    f: impl FnOnce([&[f32]; N]) -> Result<R>,
) -> Result<R> {
    let held = tensors.map(Tensor::storage_and_layout);
    let mut slices = [[].as_slice(); N];
    for (slice, (storage, layout)) in slices.iter_mut().zip(&held) {
        let Storage::Cpu(cpu) = &**storage else { bail!("{op}: needs the CPU") };
        *slice = numbers(cpu, layout, op)?;
    }
    f(slices)
}

/// The sum of tensors of one shape, from left to right. candle's own sums wait for its threads in a spin, which costs more than
/// the sum where passes run side by side.
pub(crate) fn sum(terms: &[&Tensor]) -> Result<Tensor> {
    let total: Vec<f32> = match terms {
        [] => bail!("sum: of nothing"),
        [one] => return one.contiguous(),
        [a, b] => with_numbers([&a.contiguous()?, &b.contiguous()?], "sum", |[a, b]| {
            Ok(a.iter().zip(b).map(|(a, b)| a + b).collect())
        })?,
        [a, b, rest @ ..] => {
            let pair = sum(&[a, b])?;
            let all: Vec<&Tensor> = std::iter::once(&pair).chain(rest.iter().copied()).collect();
            return sum(&all);
        }
    };
    let Some(first) = terms.first() else { bail!("sum: of nothing") };
    Tensor::from_vec(total, first.shape(), &candle_core::Device::Cpu)
}

/// `total + scale * term`, element by element.
pub(crate) fn add_scaled(total: &Tensor, term: &Tensor, scale: f32) -> Result<Tensor> {
    let both = [&total.contiguous()?, &term.contiguous()?];
    let sum = with_numbers(both, "add-scaled", |[total, term]| {
        Ok(total.iter().zip(term).map(|(total, x)| x.mul_add(scale, *total)).collect::<Vec<f32>>())
    })?;
    Tensor::from_vec(sum, total.shape(), &candle_core::Device::Cpu)
}

/// `scale * x`, element by element.
pub(crate) fn scaled(x: &Tensor, scale: f32) -> Result<Tensor> {
    let product =
        with_numbers([&x.contiguous()?], "scaled", |[x]| Ok(x.iter().map(|x| x * scale).collect::<Vec<f32>>()))?;
    Tensor::from_vec(product, x.shape(), &candle_core::Device::Cpu)
}

/// Runs `f` on blocks of whole rows of `out`, each `width` wide, with the index of the block's first row.
fn for_row_blocks(out: &mut [f32], width: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    use rayon::prelude::*;
    let width = width.max(1);
    let rows_per_block = (PARALLEL_WORK / width).max(1);
    if out.len() <= rows_per_block * width {
        f(0, out);
    } else {
        out.par_chunks_mut(rows_per_block * width).enumerate().for_each(|(block, out)| f(block * rows_per_block, out));
    }
}

#[cfg(test)]
mod tests;
