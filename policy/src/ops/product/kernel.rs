//! The inner loops: a block of rows times a panel, with all sums in registers.

use super::PANEL;
use crate::ops::math::LANES;
#[cfg(target_arch = "x86_64")]
use crate::ops::math::with_avx2;
use pulp::bytemuck::cast_slice;
use pulp::{Simd, WithSimd};

/// Rows of the largest block.
pub(super) const MOST_ROWS: usize = 8;

/// The weights of a panel, `V` vectors of them for each input.
#[derive(Clone, Copy)]
pub(super) enum Panel<'a> {
    /// `[inputs][V * LANES]` numbers.
    Whole(&'a [f32]),
    /// `[h][V * LANES]` pairs, where `h` is half of the inputs, rounded up. A word's lower half is the upper half of the weight of
    /// input `k`, its upper half that of input `h + k`. The lower halves of all these weights are zero.
    Halves(&'a [u32]),
}

impl<'a> Panel<'a> {
    /// As it lies in memory.
    pub(super) fn words(self) -> &'a [u32] {
        match self {
            Self::Whole(numbers) => cast_slice(numbers),
            Self::Halves(pairs) => pairs,
        }
    }

    /// Words for each vector of outputs.
    fn depth(self, inputs: usize) -> usize {
        LANES
            * match self {
                Self::Whole(_) => inputs,
                Self::Halves(_) => inputs.div_ceil(2),
            }
    }
}

/// The rows `x` `[rows, inputs]` times a panel of weights.
pub(super) struct Task<'a> {
    pub(super) x: &'a [f32],
    pub(super) rows: usize,
    pub(super) panel: Panel<'a>,
    pub(super) inputs: usize,
    /// Where the weights begin that will be wanted next: as many lines of the cache as an output has words are fetched from
    /// there meanwhile.
    pub(super) ahead: &'a [u32],
}

impl Task<'_> {
    /// Puts the product into the columns from `column` on of the rows of `out`; columns that these do not have are left away.
    pub(super) fn run(&self, out: &mut [&mut [f32]], column: usize) {
        let depth = self.panel.depth(self.inputs);
        match self.panel.words().len().checked_div(depth).unwrap_or(PANEL / LANES) {
            1 => self.with_rows::<1>(out, column),
            2 => self.with_rows::<2>(out, column),
            _ => self.with_rows::<3>(out, column),
        }
    }

    fn with_rows<const V: usize>(&self, out: &mut [&mut [f32]], column: usize) {
        match self.rows {
            0 => {}
            1 => self.block::<1, V>(out, column),
            2 => self.block::<2, V>(out, column),
            3 => self.block::<3, V>(out, column),
            4 => self.block::<4, V>(out, column),
            5 => self.block::<5, V>(out, column),
            6 => self.block::<6, V>(out, column),
            7 => self.block::<7, V>(out, column),
            _ => self.block::<8, V>(out, column),
        }
    }

    fn block<const R: usize, const V: usize>(&self, out: &mut [&mut [f32]], column: usize) {
        let x: [&[f32]; R] = std::array::from_fn(|row| &self.x[row * self.inputs..][..self.inputs]);
        dispatch(Block::<R, V> { x, panel: self.panel, ahead: self.ahead, out, column });
    }
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
    pub(super) panel: Panel<'a>,
    pub(super) ahead: &'a [u32],
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
        let Block { x, panel, ahead, out, column } = self.0;
        columns::<S, R, V, V>(simd, x, panel, ahead, 0, out, column);
    }
}

impl<const R: usize, const V: usize> WithSimd for Narrow<'_, '_, R, V> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Block { x, panel, ahead, out, column } = self.0;
        for vector in 0..V {
            let column = column + vector * LANES;
            let (x4, rest) = x.as_chunks::<4>();
            let (out4, out_rest) = out.split_at_mut(4 * x4.len());
            for (x, out) in x4.iter().zip(out4.chunks_exact_mut(4)) {
                columns::<S, 4, V, 1>(simd, *x, panel, ahead, vector, out, column);
            }
            for (x, out) in rest.iter().zip(out_rest.chunks_exact_mut(1)) {
                columns::<S, 1, V, 1>(simd, [*x], panel, ahead, vector, out, column);
            }
        }
    }
}

/// `R` rows times the `C` vectors from `first` on of a panel of `V`.
#[inline(always)]
fn columns<S: Simd, const R: usize, const V: usize, const C: usize>(
    simd: S,
    x: [&[f32]; R],
    panel: Panel<'_>,
    ahead: &[u32],
    first: usize,
    out: &mut [&mut [f32]],
    column: usize,
) {
    let sums = [[simd.splat_f32s(0.0); C]; R];
    let sums = match panel {
        Panel::Whole(numbers) => {
            let weights = S::as_simd_f32s(numbers).0.as_chunks::<V>().0;
            chains(
                simd,
                sums,
                (weights, x),
                ahead.as_ptr(),
                #[inline(always)]
                |weights, c| weights[first + c],
            )
        }
        Panel::Halves(pairs) => {
            let weights = S::as_simd_u32s(pairs).0.as_chunks::<V>().0;
            let (half, upper) = (simd.splat_u32s(16), simd.splat_u32s(0xFFFF_0000));
            let sums = chains(
                simd,
                sums,
                (weights, x),
                ahead.as_ptr(),
                #[inline(always)]
                |weights, c| simd.transmute_f32s_u32s(simd.wrapping_dyn_shl_u32s(weights[first + c], half)),
            );
            chains(
                simd,
                sums,
                (weights, x.map(|x| x.get(weights.len()..).unwrap_or_default())),
                ahead.as_ptr().wrapping_add(weights.len() * LANES),
                #[inline(always)]
                |weights, c| simd.transmute_f32s_u32s(simd.and_u32s(weights[first + c], upper)),
            )
        }
    };
    for (sums, out) in sums.iter().zip(out) {
        for (c, sum) in sums.iter().enumerate() {
            let from = column + c * LANES;
            match out.get_mut(from..from + LANES) {
                Some(whole) => S::as_mut_simd_f32s(whole).0[0] = *sum,
                None => {
                    let numbers: &[f32] = cast_slice(std::slice::from_ref(sum));
                    let rest = out.get_mut(from..).unwrap_or_default();
                    rest.iter_mut().zip(numbers).for_each(|(out, x)| *out = *x);
                }
            }
        }
    }
}

/// Continues the chains of `sums`: `x[row][k] * weight(weights[k], c)`, while one line after another is fetched from `ahead` on.
#[inline(always)]
fn chains<S: Simd, W, const R: usize, const C: usize>(
    simd: S,
    mut sums: [[S::f32s; C]; R],
    (weights, x): (&[W], [&[f32]; R]),
    mut ahead: *const u32,
    weight: impl Fn(&W, usize) -> S::f32s,
) -> [[S::f32s; C]; R] {
    side_by_side(
        weights,
        x,
        #[inline(always)]
        |weights, factors| {
            // No look at where they end: a branch in the loop would cost more, and to fetch too much does no harm.
            fetch(ahead);
            ahead = ahead.wrapping_add(LANES);
            let mut numbers = [simd.splat_f32s(0.0); C];
            for (c, number) in numbers.iter_mut().enumerate() {
                *number = weight(weights, c);
            }
            for r in 0..R {
                let factor = simd.splat_f32s(factors[r]);
                for c in 0..C {
                    sums[r][c] = simd.mul_add_f32s(factor, numbers[c], sums[r][c]);
                }
            }
        },
    );
    sums
}

/// Asks for a line of the cache without waiting for it. Nothing is read: any address may be asked for.
#[inline(always)]
fn fetch(line: *const u32) {
    #[cfg(target_arch = "x86_64")]
    if let Some(sse) = pulp::core_arch::x86::Sse::try_new() {
        sse._mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Calls `f` with each item of `weights` and the numbers of all rows at its place. Iterators that go in step are cut to the
/// shortest once, before the loop: indexing every row would be checked at every step, and the sums would leave the registers.
#[inline(always)]
fn side_by_side<W, const R: usize>(weights: &[W], x: [&[f32]; R], mut f: impl FnMut(&W, [f32; R])) {
    macro_rules! run {
        ($iter:expr, $w:ident, $pattern:pat, [$($number:ident),+]) => {
            for $pattern in $iter {
                f($w, array([$(*$number),+]));
            }
        };
    }
    let w = weights.iter();
    match &x[..] {
        [a] => run!(w.zip(*a), w, (w, a), [a]),
        [a, b] => run!(w.zip(*a).zip(*b), w, ((w, a), b), [a, b]),
        [a, b, c] => run!(w.zip(*a).zip(*b).zip(*c), w, (((w, a), b), c), [a, b, c]),
        [a, b, c, d] => run!(w.zip(*a).zip(*b).zip(*c).zip(*d), w, ((((w, a), b), c), d), [a, b, c, d]),
        [a, b, c, d, e] => {
            run!(w.zip(*a).zip(*b).zip(*c).zip(*d).zip(*e), w, (((((w, a), b), c), d), e), [a, b, c, d, e]);
        }
        [a, b, c, d, e, g] => {
            let iter = w.zip(*a).zip(*b).zip(*c).zip(*d).zip(*e).zip(*g);
            run!(iter, w, ((((((w, a), b), c), d), e), g), [a, b, c, d, e, g]);
        }
        [a, b, c, d, e, g, h] => {
            let iter = w.zip(*a).zip(*b).zip(*c).zip(*d).zip(*e).zip(*g).zip(*h);
            run!(iter, w, (((((((w, a), b), c), d), e), g), h), [a, b, c, d, e, g, h]);
        }
        [a, b, c, d, e, g, h, i, ..] => {
            let iter = w.zip(*a).zip(*b).zip(*c).zip(*d).zip(*e).zip(*g).zip(*h).zip(*i);
            run!(iter, w, ((((((((w, a), b), c), d), e), g), h), i), [a, b, c, d, e, g, h, i]);
        }
        [] => {}
    }
}

/// The numbers as an array of the length that the rows' number has in the code around it.
#[inline(always)]
fn array<const N: usize, const R: usize>(numbers: [f32; N]) -> [f32; R] {
    let mut all = [0.0; R];
    for (slot, number) in all.iter_mut().zip(numbers) {
        *slot = number;
    }
    all
}
