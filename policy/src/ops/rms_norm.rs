use super::math::{dot, dot3, simd};
use super::{for_row_blocks, numbers, with_numbers};
use candle_core::{CpuStorage, CustomOp2, Device, Layout, Result, Shape, Tensor, bail};

/// Rows whose weight gradients are summed together before the blocks' sums are added in order.
const BLOCK: usize = 128;

/// `x * weight / sqrt(mean(x^2) + eps)` over each run of `weight.len()` numbers of `x`, whose last dimension holds one run
/// or several (one per head). The result has `x`'s shape.
pub(crate) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    x.apply_op2(weight, RmsNorm { eps: eps as f32 })
}

/// Gradients of `x` and of `weight`, given that of [`rms_norm`]'s result.
pub(crate) fn rms_norm_gradients(x: &Tensor, weight: &Tensor, eps: f64, grad: &Tensor) -> Result<[Tensor; 2]> {
    RmsNorm { eps: eps as f32 }.gradients(x, weight, grad)
}

struct RmsNorm {
    eps: f32,
}

impl RmsNorm {
    #[inline(always)]
    fn inverse(&self, x: &[f32]) -> f32 {
        1.0 / (dot(x, x) / x.len() as f32 + self.eps).sqrt()
    }

    /// With g = grad * weight and s = 1 / rms: dx = s (g - x s^2 mean(g x)), dweight = sum(grad x s).
    #[inline(always)]
    fn row_gradient(&self, x: &[f32], weight: &[f32], grad: &[f32], dx: &mut [f32], dweight: &mut [f32]) {
        let s = self.inverse(x);
        let mean = dot3(x, weight, grad) / x.len() as f32;
        let factor = s * s * mean;
        for ((dx, x), (w, g)) in dx.iter_mut().zip(x).zip(weight.iter().zip(grad)) {
            *dx = s * x.mul_add(-factor, w * g);
        }
        for ((dw, x), g) in dweight.iter_mut().zip(x).zip(grad) {
            *dw = (x * s).mul_add(*g, *dw);
        }
    }
}

impl RmsNorm {
    fn gradients(&self, x: &Tensor, weight: &Tensor, grad: &Tensor) -> Result<[Tensor; 2]> {
        use rayon::prelude::*;
        let grad = grad.contiguous()?;
        let (dx, dweight) = with_numbers([x, weight, &grad], self.name(), |[x, weight, grad]| {
            let width = weight.len();
            let mut dx = vec![0.0; x.len()];
            let block = |(dx, (x, grad)): (&mut [f32], (&[f32], &[f32]))| {
                let mut dweight = vec![0.0; width];
                simd(
                    #[inline(always)]
                    || {
                        for ((dx, x), grad) in
                            dx.chunks_exact_mut(width).zip(x.chunks_exact(width)).zip(grad.chunks_exact(width))
                        {
                            self.row_gradient(x, weight, grad, dx, &mut dweight);
                        }
                    },
                );
                dweight
            };
            let size = BLOCK * width;
            let blocks: Vec<Vec<f32>> = if x.len() < super::PARALLEL_WORK {
                dx.chunks_mut(size).zip(x.chunks(size).zip(grad.chunks(size))).map(block).collect()
            } else {
                dx.par_chunks_mut(size).zip(x.par_chunks(size).zip(grad.par_chunks(size))).map(block).collect()
            };
            let mut dweight = vec![0.0; width];
            for block in blocks {
                dweight.iter_mut().zip(block).for_each(|(sum, part)| *sum += part);
            }
            Ok((dx, dweight))
        })?;
        let dx = Tensor::from_vec(dx, x.shape(), &Device::Cpu)?;
        let dweight = Tensor::from_vec(dweight, weight.shape(), &Device::Cpu)?;
        Ok([dx, dweight])
    }
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, w: &CpuStorage, lw: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, weight) = (numbers(x, lx, self.name())?, numbers(w, lw, self.name())?);
        let width = weight.len();
        if width == 0 || !x.len().is_multiple_of(width) {
            bail!("rms-norm: {:?} does not split into rows of {width}", lx.shape());
        }
        let mut out = vec![0.0; x.len()];
        for_row_blocks(&mut out, width, |first, out| {
            let x = &x[first * width..][..out.len()];
            simd(
                #[inline(always)]
                || {
                    for (out, x) in out.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
                        let s = self.inverse(x);
                        for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
                            *out = x * s * w;
                        }
                    }
                },
            );
        });
        Ok((CpuStorage::F32(out), lx.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, weight: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [dx, dweight] = self.gradients(x, weight, grad)?;
        Ok((Some(dx), Some(dweight)))
    }
}
