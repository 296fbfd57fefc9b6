use super::math::simd;
use super::{for_row_blocks, numbers, with_numbers};
use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result, Shape, Tensor, bail};
use std::sync::Arc;

/// Cosines and sines of the rotary angles: entry `[position][i]`, `i` below half a head.
#[derive(Debug)]
pub(crate) struct RopeTable {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// Angles for positions `0..positions`: position times frequency (see [`crate::RopeScaling::frequencies`]), rounded to
    /// f32 as transformers does, since at position 8,000 that rounding is larger than f32's own error in the cosine. Cosines
    /// and sines are multiplied by the factor that comes with the frequencies.
    pub(crate) fn new((frequencies, factor): &(Vec<f32>, f32), positions: usize) -> Self {
        let angles = || (0..positions).flat_map(|p| frequencies.iter().map(move |f| f64::from(p as f32 * f)));
        let table = |f: fn(f64) -> f64| angles().map(|a| (f(a) * f64::from(*factor)) as f32).collect();
        Self { half: frequencies.len(), cos: table(f64::cos), sin: table(f64::sin) }
    }

    /// Positions it covers.
    pub(crate) fn positions(&self) -> usize {
        self.cos.len() / self.half.max(1)
    }

    /// Rotates one head; `sign` -1 rotates back.
    #[inline(always)]
    fn rotate(&self, position: usize, sign: f32, x: &[f32], out: &mut [f32]) {
        let at = position * self.half;
        let (cos, sin) = (&self.cos[at..at + self.half], &self.sin[at..at + self.half]);
        let (x1, x2) = x.split_at(self.half);
        let (out1, out2) = out.split_at_mut(self.half);
        for i in 0..self.half {
            let s = sign * sin[i];
            out1[i] = x1[i].mul_add(cos[i], -(x2[i] * s));
            out2[i] = x2[i].mul_add(cos[i], x1[i] * s);
        }
    }
}

/// Rotary positions in the half-split layout: the rows of `x` `[rows, heads * head_dim]` are at `positions`.
#[derive(Clone)]
pub(crate) struct Rope {
    pub(crate) table: Arc<RopeTable>,
    pub(crate) positions: Arc<Vec<usize>>,
}

impl Rope {
    pub(crate) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        x.apply_op1(self.clone())
    }

    /// The gradient of `x`, given that of [`Rope::apply`]'s result: the transpose of a rotation is the rotation back.
    pub(crate) fn gradient(&self, grad: &Tensor) -> Result<Tensor> {
        let width = grad.dims2()?.1;
        let dx = with_numbers([&grad.contiguous()?], self.name(), |[grad]| Ok(self.run(grad, width, -1.0)))?;
        Tensor::from_vec(dx, grad.shape(), &Device::Cpu)
    }

    fn run(&self, x: &[f32], width: usize, sign: f32) -> Vec<f32> {
        let head_dim = 2 * self.table.half;
        let mut out = vec![0.0; x.len()];
        for_row_blocks(&mut out, width, |first, out| {
            let x = &x[first * width..][..out.len()];
            simd(
                #[inline(always)]
                || {
                    let rows = out.chunks_exact_mut(width).zip(x.chunks_exact(width));
                    for ((out, x), position) in rows.zip(&self.positions[first..]) {
                        for (out, x) in out.chunks_exact_mut(head_dim).zip(x.chunks_exact(head_dim)) {
                            self.table.rotate(*position, sign, x, out);
                        }
                    }
                },
            );
        });
        out
    }
}

impl CustomOp1 for Rope {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (rows, width) = layout.shape().dims2()?;
        if rows != self.positions.len() || self.table.half == 0 || !width.is_multiple_of(2 * self.table.half) {
            bail!("rope: {rows} rows of {width} for {} positions", self.positions.len());
        }
        if self.positions.iter().any(|p| *p >= self.table.positions()) {
            bail!("rope: a position is beyond the table's {}", self.table.positions());
        }
        let out = self.run(numbers(x, layout, self.name())?, width, 1.0);
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        self.gradient(grad).map(Some)
    }
}
