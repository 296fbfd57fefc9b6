//! Causal attention over sequences, laid end to end or as a trie, with its gradient.

use super::tiles::{Backward, KeyValues, attend_rows};
use super::{PARALLEL_WORK, numbers, with_numbers};
use crate::trie::Branch;
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
    pub(crate) fn q_width(self) -> usize {
        self.heads * self.dim
    }

    /// Width of a row of keys or values.
    pub(crate) fn kv_width(self) -> usize {
        self.kv_heads * self.dim
    }
}

/// Attention of each row to the rows on the path to it: `q` `[rows, heads * dim]`, `k` and `v` `[rows, kv_heads * dim]`, with
/// `branches` covering the rows in order. The result has `q`'s shape.
pub(crate) fn path_attention(q: &Tensor, k: &Tensor, v: &Tensor, heads: Heads, branches: &[Branch]) -> Result<Tensor> {
    q.apply_op3(k, v, PathAttention { heads, branches: Arc::new(branches.to_vec()) })
}

/// Gradients of `q`, `k` and `v`, given that of [`path_attention`]'s result.
pub(crate) fn path_attention_gradients(
    [q, k, v]: [&Tensor; 3],
    heads: Heads,
    branches: &[Branch],
    grad: &Tensor,
) -> Result<[Tensor; 3]> {
    PathAttention { heads, branches: Arc::new(branches.to_vec()) }.gradients(q, k, v, grad)
}

struct PathAttention {
    heads: Heads,
    branches: Arc<Vec<Branch>>,
}

/// One tree of branches and one key head: the unit of parallel work, and the unit whose key gradients are summed in order.
#[derive(Clone, Copy)]
struct Unit<'a> {
    branches: &'a [Branch],
    row: usize,
    rows: usize,
    kv_head: usize,
}

impl PathAttention {
    fn units(&self) -> Vec<Unit<'_>> {
        let mut units = Vec::new();
        for branches in self.branches.chunk_by(|_, next| next.start > 0) {
            let row = branches.first().map_or(0, |branch| branch.row);
            let rows = branches.iter().map(|branch| branch.len).sum();
            units.extend((0..self.heads.kv_heads).map(|kv_head| Unit { branches, row, rows, kv_head }));
        }
        units
    }

    fn check(&self, q: &Layout, k: &Layout, v: &Layout) -> Result<()> {
        let rows: usize = self.branches.iter().map(|branch| branch.len).sum();
        let want = |layout: &Layout, width| layout.shape().dims() == [rows, width];
        let (wide, narrow) = (self.heads.q_width(), self.heads.kv_width());
        if want(q, wide) && want(k, narrow) && want(v, narrow) {
            return Ok(());
        }
        bail!("attention: {:?} {:?} {:?} for {rows} rows of {:?}", q.shape(), k.shape(), v.shape(), self.heads)
    }

    /// Runs every unit, in parallel when it pays.
    fn run<'a, R: Send>(&'a self, f: impl Fn(Unit<'a>) -> R + Sync) -> Vec<(Unit<'a>, R)> {
        use rayon::prelude::*;
        let units = self.units();
        let pairs = |branch: &Branch| branch.len * (branch.start + branch.len);
        let work = self.branches.iter().map(pairs).sum::<usize>() * self.heads.q_width();
        if work < PARALLEL_WORK {
            units.into_iter().map(|unit| (unit, f(unit))).collect()
        } else {
            units.into_par_iter().map(|unit| (unit, f(unit))).collect()
        }
    }

    fn head_rows<'a>(&self, unit: Unit<'_>, branch: Branch, rows: &'a [f32]) -> impl Iterator<Item = &'a [f32]> {
        let (width, dim) = (self.heads.kv_width(), self.heads.dim);
        rows[branch.row * width..][..branch.len * width]
            .chunks_exact(width)
            .map(move |row| &row[unit.kv_head * dim..][..dim])
    }

    /// The branch's queries, or their gradients: `[len * group, dim]`, position by position.
    fn query_rows(&self, unit: Unit<'_>, branch: Branch, rows: &[f32]) -> Vec<f32> {
        let (width, part) = (self.heads.q_width(), self.heads.group() * self.heads.dim);
        let mut own = Vec::with_capacity(branch.len * part);
        for row in rows[branch.row * width..][..branch.len * width].chunks_exact(width) {
            own.extend_from_slice(&row[unit.kv_head * part..][..part]);
        }
        own
    }

    /// Keys that each of those rows sees.
    fn lens(&self, branch: Branch) -> Vec<usize> {
        let lens = branch.start + 1..=branch.start + branch.len;
        lens.flat_map(|len| std::iter::repeat_n(len, self.heads.group())).collect()
    }

    /// The unit's results `[rows * group, dim]`. Going depth first, the keys of the path are those of the branch before, cut
    /// to where this one leaves it.
    fn unit_results(&self, unit: Unit<'_>, q: &[f32], k: &[f32], v: &[f32]) -> Vec<f32> {
        let (dim, part) = (self.heads.dim, self.heads.group() * self.heads.dim);
        let (mut kv, mut out) = (KeyValues::default(), vec![0.0; unit.rows * part]);
        for &branch in unit.branches {
            kv.truncate(branch.start);
            for (k, v) in self.head_rows(unit, branch, k).zip(self.head_rows(unit, branch, v)) {
                kv.push(k, v);
            }
            let out = &mut out[(branch.row - unit.row) * part..][..branch.len * part];
            attend_rows(&kv, dim, self.heads.scale(), &self.query_rows(unit, branch, q), &self.lens(branch), out);
        }
        out
    }

    /// Gradients of the unit's queries `[rows * group, dim]`, keys and values `[rows, dim]`. A key's gradient is complete when
    /// the last branch below it is done.
    fn unit_gradients(&self, unit: Unit<'_>, q: &[f32], k: &[f32], v: &[f32], grad: &[f32]) -> [Vec<f32>; 3] {
        let dim = self.heads.dim;
        let mut dq = Vec::with_capacity(unit.rows * self.heads.group() * dim);
        let mut keys =
            KeyGradients { dk: vec![0.0; unit.rows * dim], dv: vec![0.0; unit.rows * dim], ..Default::default() };
        for &branch in unit.branches {
            keys.leave(branch.start, dim);
            for (k, v) in self.head_rows(unit, branch, k).zip(self.head_rows(unit, branch, v)) {
                keys.sums.push(k, v);
            }
            keys.path.extend(branch.row - unit.row..branch.row - unit.row + branch.len);
            let (q, grad) = (self.query_rows(unit, branch, q), self.query_rows(unit, branch, grad));
            dq.extend(keys.sums.add(dim, self.heads.scale(), &q, &grad, &self.lens(branch)));
        }
        keys.leave(0, dim);
        [dq, keys.dk, keys.dv]
    }
}

/// Gradients of keys and values while the branches are walked.
#[derive(Default)]
struct KeyGradients {
    /// Of the path at hand.
    sums: Backward,
    /// The row of each position of the path.
    path: Vec<usize>,
    /// Of the rows whose branches have been left, `[rows, dim]`.
    dk: Vec<f32>,
    dv: Vec<f32>,
}

impl KeyGradients {
    /// Takes the sums of the positions from `start` on, which no later row sees, and forgets the positions.
    fn leave(&mut self, start: usize, dim: usize) {
        for (at, row) in self.path.drain(start..).enumerate() {
            let columns = row * dim..(row + 1) * dim;
            self.sums.sums_of(start + at, &mut self.dk[columns.clone()], &mut self.dv[columns]);
        }
        self.sums.truncate(start);
    }
}

/// Writes a unit's rows `[rows, part]` into its columns of `[all rows, width]`.
fn scatter(unit: Unit<'_>, part: usize, rows: &[f32], out: &mut [f32], width: usize) {
    for (row, out) in rows.chunks_exact(part).zip(out[unit.row * width..].chunks_exact_mut(width)) {
        out[unit.kv_head * part..][..part].copy_from_slice(row);
    }
}

impl PathAttention {
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

impl CustomOp3 for PathAttention {
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
        let parts = self.run(|unit| self.unit_results(unit, q, k, v));
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
