//! Causal attention over sequences laid end to end, with its gradient.

use super::tiles::{Backward, KeyValues, attend_rows};
use super::{PARALLEL_WORK, numbers, with_numbers};
use candle_core::{CpuStorage, CustomOp3, Device, Layout, Result, Shape, Tensor, bail};
use std::sync::Arc;

/// The shape of attention: `heads` query heads, `kv_heads` key and value heads (a divisor), each `dim` wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heads {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) dim: usize,
}

impl Heads {
    /// Query heads per key head.
    pub(crate) fn group(self) -> usize {
        self.heads / self.kv_heads
    }

    /// Factor of the scores.
    pub(crate) fn scale(self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }

    /// Width of a row of queries.
    fn q_width(self) -> usize {
        self.heads * self.dim
    }

    /// Width of a row of keys or values.
    pub(crate) fn kv_width(self) -> usize {
        self.kv_heads * self.dim
    }
}

/// Attention within each of the sequences that lie end to end: `q` `[tokens, heads * dim]`, `k` and `v`
/// `[tokens, kv_heads * dim]`, `lengths` adding up to `tokens`. The result has `q`'s shape.
pub(crate) fn packed_attention(q: &Tensor, k: &Tensor, v: &Tensor, heads: Heads, lengths: &[usize]) -> Result<Tensor> {
    q.apply_op3(k, v, PackedAttention { heads, lengths: Arc::new(lengths.to_vec()) })
}

/// Gradients of `q`, `k` and `v`, given that of [`packed_attention`]'s result.
pub(crate) fn packed_attention_gradients(
    [q, k, v]: [&Tensor; 3],
    heads: Heads,
    lengths: &[usize],
    grad: &Tensor,
) -> Result<[Tensor; 3]> {
    PackedAttention { heads, lengths: Arc::new(lengths.to_vec()) }.gradients(q, k, v, grad)
}

struct PackedAttention {
    heads: Heads,
    lengths: Arc<Vec<usize>>,
}

/// One sequence and one key head: the unit of parallel work, and the unit whose key gradients are summed in order.
#[derive(Clone, Copy)]
struct Unit {
    first: usize,
    len: usize,
    kv_head: usize,
}

impl PackedAttention {
    fn units(&self) -> Vec<Unit> {
        let mut first = 0;
        let mut units = Vec::new();
        for &len in self.lengths.iter() {
            units.extend((0..self.heads.kv_heads).map(|kv_head| Unit { first, len, kv_head }));
            first += len;
        }
        units
    }

    fn check(&self, q: &Layout, k: &Layout, v: &Layout) -> Result<()> {
        let rows: usize = self.lengths.iter().sum();
        let want = |layout: &Layout, width| layout.shape().dims() == [rows, width];
        let (wide, narrow) = (self.heads.q_width(), self.heads.kv_width());
        if want(q, wide) && want(k, narrow) && want(v, narrow) {
            return Ok(());
        }
        bail!("attention: {:?} {:?} {:?} for {rows} rows of {:?}", q.shape(), k.shape(), v.shape(), self.heads)
    }

    /// Runs every unit, in parallel when it pays.
    fn run<R: Send>(&self, f: impl Fn(Unit) -> R + Sync) -> Vec<(Unit, R)> {
        use rayon::prelude::*;
        let units = self.units();
        let work: usize = self.lengths.iter().map(|len| len * len * self.heads.q_width()).sum();
        if work < PARALLEL_WORK {
            units.into_iter().map(|unit| (unit, f(unit))).collect()
        } else {
            units.into_par_iter().map(|unit| (unit, f(unit))).collect()
        }
    }

    fn key_values(&self, unit: Unit, k: &[f32], v: &[f32]) -> KeyValues {
        let mut kv = KeyValues::default();
        for (k, v) in self.head_rows(unit, k).zip(self.head_rows(unit, v)) {
            kv.push(k, v);
        }
        kv
    }

    fn head_rows<'a>(&self, unit: Unit, rows: &'a [f32]) -> impl Iterator<Item = &'a [f32]> {
        let (width, dim) = (self.heads.kv_width(), self.heads.dim);
        rows[unit.first * width..][..unit.len * width]
            .chunks_exact(width)
            .map(move |row| &row[unit.kv_head * dim..][..dim])
    }

    /// The unit's queries, or their gradients: `[len * group, dim]`, position by position.
    fn query_rows(&self, unit: Unit, rows: &[f32]) -> Vec<f32> {
        let (width, part) = (self.heads.q_width(), self.heads.group() * self.heads.dim);
        rows[unit.first * width..][..unit.len * width]
            .chunks_exact(width)
            .flat_map(|row| &row[unit.kv_head * part..][..part])
            .copied()
            .collect()
    }

    /// Keys that each of those rows sees.
    fn lens(&self, unit: Unit) -> Vec<usize> {
        (1..=unit.len).flat_map(|len| std::iter::repeat_n(len, self.heads.group())).collect()
    }
}

/// Writes a unit's rows `[len, part]` into its columns of `[tokens, width]`.
fn scatter(unit: Unit, part: usize, rows: &[f32], out: &mut [f32], width: usize) {
    for (row, out) in rows.chunks_exact(part).zip(out[unit.first * width..].chunks_exact_mut(width)) {
        out[unit.kv_head * part..][..part].copy_from_slice(row);
    }
}

impl PackedAttention {
    /// Gradients of the unit's queries `[len * group, dim]`, keys and values `[len, dim]`.
    fn unit_gradients(&self, unit: Unit, q: &[f32], k: &[f32], v: &[f32], grad: &[f32]) -> [Vec<f32>; 3] {
        let dim = self.heads.dim;
        let rows = self.head_rows(unit, k).zip(self.head_rows(unit, v));
        let mut sums = Backward::new(rows, unit.len, dim);
        let (q, grad, lens) = (self.query_rows(unit, q), self.query_rows(unit, grad), self.lens(unit));
        let dq = sums.add(dim, self.heads.scale(), &q, &grad, &lens);
        let [dk, dv] = sums.finish(unit.len, dim);
        [dq, dk, dv]
    }
}

impl PackedAttention {
    fn gradients(&self, q: &Tensor, k: &Tensor, v: &Tensor, grad: &Tensor) -> Result<[Tensor; 3]> {
        let (heads, grad) = (self.heads, grad.contiguous()?);
        let [dq, dk, dv] = with_numbers([q, k, v, &grad], self.name(), |[q, k, v, grad]| {
            let parts = self.run(|unit| self.unit_gradients(unit, q, k, v, grad));
            let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
            for (unit, [uq, uk, uv]) in parts {
                scatter(unit, heads.group() * heads.dim, &uq, &mut dq, heads.q_width());
                scatter(unit, heads.dim, &uk, &mut dk, heads.kv_width());
                scatter(unit, heads.dim, &uv, &mut dv, heads.kv_width());
            }
            Ok([dq, dk, dv])
        })?;
        let tensor = |numbers, like: &Tensor| Tensor::from_vec(numbers, like.shape(), &Device::Cpu);
        Ok([tensor(dq, q)?, tensor(dk, k)?, tensor(dv, v)?])
    }
}

impl CustomOp3 for PackedAttention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        lq: &Layout,
        k: &CpuStorage,
        lk: &Layout,
        v: &CpuStorage,
        lv: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.check(lq, lk, lv)?;
        let name = self.name();
        let (q, k, v) = (numbers(q, lq, name)?, numbers(k, lk, name)?, numbers(v, lv, name)?);
        let parts = self.run(|unit| {
            let (kv, q) = (self.key_values(unit, k, v), self.query_rows(unit, q));
            let mut out = vec![0.0; q.len()];
            attend_rows(&kv, self.heads.dim, self.heads.scale(), &q, &self.lens(unit), &mut out);
            out
        });
        let mut out = vec![0.0; q.len()];
        for (unit, rows) in parts {
            scatter(unit, self.heads.group() * self.heads.dim, &rows, &mut out, self.heads.q_width());
        }
        Ok((CpuStorage::F32(out), lq.shape().clone()))
    }

    fn bwd(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [dq, dk, dv] = self.gradients(q, k, v, grad)?;
        Ok((Some(dq), Some(dk), Some(dv)))
    }
}
