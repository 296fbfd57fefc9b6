//! The inner loops: a block of rows times a panel, with all sums in registers.

use super::PANEL;
use crate::ops::math::LANES;
#[cfg(target_arch = "x86_64")]
use crate::ops::math::with_avx2;
use pulp::{Simd, WithSimd};

/// Rows of the largest block.
pub(super) const MOST_ROWS: usize = 8;

/// The rows `x` `[rows, inputs]` times a panel of weights `[inputs][width]`, into the columns from `column` on of the rows of
/// `out`; columns that these do not have are left away.
pub(super) fn block(x: &[f32], rows: usize, panel: &[f32], inputs: usize, out: &mut [&mut [f32]], column: usize) {
    let vectors = if inputs == 0 { PANEL / LANES } else { panel.len() / (inputs * LANES) };
    match vectors {
        1 => with_rows::<1>(x, rows, panel, inputs, out, column),
        2 => with_rows::<2>(x, rows, panel, inputs, out, column),
        _ => with_rows::<3>(x, rows, panel, inputs, out, column),
    }
}

fn with_rows<const V: usize>(
    x: &[f32],
    rows: usize,
    panel: &[f32],
    inputs: usize,
    out: &mut [&mut [f32]],
    column: usize,
) {
    match rows {
        0 => {}
        1 => run::<1, V>(x, panel, inputs, out, column),
        2 => run::<2, V>(x, panel, inputs, out, column),
        3 => run::<3, V>(x, panel, inputs, out, column),
        4 => run::<4, V>(x, panel, inputs, out, column),
        5 => run::<5, V>(x, panel, inputs, out, column),
        6 => run::<6, V>(x, panel, inputs, out, column),
        7 => run::<7, V>(x, panel, inputs, out, column),
        _ => run::<8, V>(x, panel, inputs, out, column),
    }
}

fn run<const R: usize, const V: usize>(x: &[f32], panel: &[f32], inputs: usize, out: &mut [&mut [f32]], column: usize) {
    let x: [&[f32]; R] = std::array::from_fn(|row| &x[row * inputs..][..inputs]);
    dispatch(Block::<R, V> { x, panel, out, column });
}

/// As [`crate::ops::math::dispatch`]; what differs is how many sums the registers hold.
fn dispatch<const R: usize, const V: usize>(block: Block<'_, '_, R, V>) {
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(v4) = pulp::x86::V4::try_new() {
            return Simd::vectorize(v4, Wide(block));
        }
        if let Some(v3) = pulp::x86::V3::try_new() {
            return with_avx2(v3, Narrow(block));
        }
    }
    Simd::vectorize(pulp::Scalar512b, Narrow(block));
}

/// `R` rows times a panel of `V` vectors.
pub(super) struct Block<'a, 'o, const R: usize, const V: usize> {
    pub(super) x: [&'a [f32]; R],
    pub(super) panel: &'a [f32],
    pub(super) out: &'a mut [&'o mut [f32]],
    pub(super) column: usize,
}

/// All vectors of the panel at once: at most 24 sums, of 32 registers.
pub(super) struct Wide<'a, 'o, const R: usize, const V: usize>(pub(super) Block<'a, 'o, R, V>);

/// One vector of the panel after another, and four rows at a time, for processors with fewer or shorter registers.
pub(super) struct Narrow<'a, 'o, const R: usize, const V: usize>(pub(super) Block<'a, 'o, R, V>);

impl<const R: usize, const V: usize> WithSimd for Wide<'_, '_, R, V> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Block { x, panel, out, column } = self.0;
        columns::<S, R, V, V>(simd, x, panel, 0, out, column);
    }
}

impl<const R: usize, const V: usize> WithSimd for Narrow<'_, '_, R, V> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Block { x, panel, out, column } = self.0;
        for vector in 0..V {
            let column = column + vector * LANES;
            let (x4, rest) = x.as_chunks::<4>();
            let (out4, out_rest) = out.split_at_mut(4 * x4.len());
            for (x, out) in x4.iter().zip(out4.chunks_exact_mut(4)) {
                columns::<S, 4, V, 1>(simd, *x, panel, vector, out, column);
            }
            for (x, out) in rest.iter().zip(out_rest.chunks_exact_mut(1)) {
                columns::<S, 1, V, 1>(simd, [*x], panel, vector, out, column);
            }
        }
    }
}

/// `R` rows times the `C` vectors from `first` on of a panel of `V`.
#[inline(always)]
fn columns<S: Simd, const R: usize, const V: usize, const C: usize>(
    simd: S,
    x: [&[f32]; R],
    panel: &[f32],
    first: usize,
    out: &mut [&mut [f32]],
    column: usize,
) {
    let (weights, _) = S::as_simd_f32s(panel).0.as_chunks::<V>();
    let inputs = weights.len();
    let x = x.map(
        #[inline(always)]
        |row| &row[..inputs],
    );
    let mut sums = [[simd.splat_f32s(0.0); C]; R];
    for (k, weights) in weights.iter().enumerate() {
        for r in 0..R {
            let factor = simd.splat_f32s(x[r][k]);
            for c in 0..C {
                sums[r][c] = simd.mul_add_f32s(factor, weights[first + c], sums[r][c]);
            }
        }
    }
    for (sums, out) in sums.iter().zip(out) {
        for (c, sum) in sums.iter().enumerate() {
            let from = column + c * LANES;
            match out.get_mut(from..from + LANES) {
                Some(whole) => S::as_mut_simd_f32s(whole).0[0] = *sum,
                None => {
                    let numbers: &[f32] = pulp::bytemuck::cast_slice(std::slice::from_ref(sum));
                    let rest = out.get_mut(from..).unwrap_or_default();
                    rest.iter_mut().zip(numbers).for_each(|(out, x)| *out = *x);
                }
            }
        }
    }
}
