use super::math::{exp, simd};
use super::{PARALLEL_WORK, for_row_blocks, numbers, with_numbers};
use candle_core::{CpuStorage, CustomOp2, Device, Layout, Result, Shape, Tensor, bail};

/// `silu(gate) * up`, element by element; silu(x) = x / (1 + e^-x).
pub(crate) fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gate.apply_op2(up, SwiGlu)
}

/// Gradients of `gate` and `up`, given that of [`swiglu`]'s result. With s = sigmoid(gate):
/// dgate = grad up s (1 + gate (1 - s)), dup = grad gate s.
pub(crate) fn swiglu_gradients(gate: &Tensor, up: &Tensor, grad: &Tensor) -> Result<[Tensor; 2]> {
    use rayon::prelude::*;
    let grad = grad.contiguous()?;
    let (dgate, dup) = with_numbers([gate, up, &grad], "swiglu", |[gate, up, grad]| {
        let (mut dgate, mut dup) = (vec![0.0; gate.len()], vec![0.0; gate.len()]);
        let blocks = dgate.par_chunks_mut(PARALLEL_WORK).zip(dup.par_chunks_mut(PARALLEL_WORK));
        blocks.enumerate().for_each(|(block, (dgate, dup))| {
            let first = block * PARALLEL_WORK;
            let inputs = gate[first..].iter().zip(&up[first..]).zip(&grad[first..]);
            simd(
                #[inline(always)]
                || {
                    for ((dgate, dup), ((g, u), grad)) in dgate.iter_mut().zip(dup).zip(inputs) {
                        let s = sigmoid(*g);
                        *dgate = grad * u * s * (g * (1.0 - s) + 1.0);
                        *dup = grad * g * s;
                    }
                },
            );
        });
        Ok((dgate, dup))
    })?;
    let tensor = |numbers| Tensor::from_vec(numbers, gate.shape(), &Device::Cpu);
    Ok([tensor(dgate)?, tensor(dup)?])
}

struct SwiGlu;

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

impl CustomOp2 for SwiGlu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn cpu_fwd(&self, g: &CpuStorage, lg: &Layout, u: &CpuStorage, lu: &Layout) -> Result<(CpuStorage, Shape)> {
        let (gate, up) = (numbers(g, lg, self.name())?, numbers(u, lu, self.name())?);
        if lg.shape() != lu.shape() {
            bail!("swiglu: {:?} and {:?}", lg.shape(), lu.shape());
        }
        let mut out = vec![0.0; gate.len()];
        for_row_blocks(&mut out, 1, |first, out| {
            let inputs = gate[first..].iter().zip(&up[first..]);
            simd(
                #[inline(always)]
                || {
                    for (out, (g, u)) in out.iter_mut().zip(inputs) {
                        *out = g * sigmoid(*g) * u;
                    }
                },
            );
        });
        Ok((CpuStorage::F32(out), lg.shape().clone()))
    }

    fn bwd(&self, gate: &Tensor, up: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [dgate, dup] = swiglu_gradients(gate, up, grad)?;
        Ok((Some(dgate), Some(dup)))
    }
}
