//! The inner loops of attention: a few queries at a time against the keys and values of one head.
//!
//! For a query that sees keys `0..n`: each score is one chain of multiply-adds over the head's width; the largest score is
//! exact in any order; exponentials are added in 16 lanes by key position modulo 16; values are added in the order of
//! positions. Several queries run side by side for speed, each with its own chains, so a query's result has the same bits in
//! any company.

mod loops;

use super::math::{LANES, dispatch, dot};
use loops::{InOrder, sixteen};
pub(super) use loops::{Interleaved, Tiles, add_weighted, exponentials, interleave, products, write_scaled};
use pulp::{Simd, WithSimd};

/// Rows in blocks of 16, each block transposed: `[block][dim][16 rows]`. Products with a vector run along the rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Transposed(Vec<f32>);

impl Transposed {
    pub(super) fn push(&mut self, at: usize, row: &[f32]) {
        let block = at / LANES * row.len() * LANES;
        self.0.resize(block + row.len() * LANES, 0.0);
        for (slot, x) in self.0[block + at % LANES..].iter_mut().step_by(LANES).zip(row) {
            *slot = *x;
        }
    }
}

/// Rows in blocks of 16, each cut into pieces of 16 numbers: `[block][piece][16 rows][16]`. Weighted sums run along the row.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces(Vec<f32>);

impl Pieces {
    pub(super) fn push(&mut self, at: usize, row: &[f32]) {
        let pieces = row.len().div_ceil(LANES);
        let block = at / LANES * pieces * LANES * LANES;
        self.0.resize(block + pieces * LANES * LANES, 0.0);
        for (piece, x) in row.chunks(LANES).enumerate() {
            self.0[block + (piece * LANES + at % LANES) * LANES..][..x.len()].copy_from_slice(x);
        }
    }

    /// A row of `dim` zeros.
    fn clear(&mut self, at: usize, dim: usize) {
        let pieces = dim.div_ceil(LANES);
        let block = at / LANES * pieces * LANES * LANES;
        self.0.resize(block + pieces * LANES * LANES, 0.0);
        for piece in 0..pieces {
            self.0[block + (piece * LANES + at % LANES) * LANES..][..LANES].fill(0.0);
        }
    }

    pub(super) fn row(&self, at: usize, out: &mut [f32]) {
        let pieces = out.len().div_ceil(LANES);
        let block = at / LANES * pieces * LANES * LANES;
        for (piece, out) in out.chunks_mut(LANES).enumerate() {
            out.copy_from_slice(&self.0[block + (piece * LANES + at % LANES) * LANES..][..out.len()]);
        }
    }
}

/// The keys and values of one head, in the order of positions, as training packs them. (A cache holds them in
/// [`super::Block`]s, laid out alike.)
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyValues {
    keys: Transposed,
    values: Pieces,
    len: usize,
}

impl KeyValues {
    /// Adds the next position.
    pub(crate) fn push(&mut self, key: &[f32], value: &[f32]) {
        self.keys.push(self.len, key);
        self.values.push(self.len, value);
        self.len += 1;
    }

    /// Forgets all positions from `len` on.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Transposed {
    #[inline(always)]
    fn tiles(&self, dim: usize) -> InOrder<'_> {
        InOrder(&self.0, dim * LANES)
    }
}

impl Pieces {
    #[inline(always)]
    fn tiles(&self, dim: usize) -> InOrder<'_> {
        InOrder(&self.0, dim.next_multiple_of(LANES) * LANES)
    }
}

/// Weighted sums of the rows of `matrix`: `R` of them, the r-th over rows `0..lens[r]` with weights `weights[r]`, each in the
/// order of rows, times `scales[r]`, into row r of `out` `[R][dim]`.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the parts of one product")]
fn weighted_sums<S: Simd, const R: usize>(
    simd: S,
    weights: &[f32],
    stride: usize,
    lens: &[usize],
    matrix: &Pieces,
    scales: &[f32; R],
    dim: usize,
    sums: &mut Vec<f32>,
    out: &mut [f32],
) {
    let width = dim.next_multiple_of(LANES);
    sums.clear();
    sums.resize(R * width, 0.0);
    add_weighted::<S, R>(simd, weights, stride, lens, matrix.tiles(dim), 0..stride / LANES, sums, width);
    write_scaled(sums, width, scales, out, dim);
}

/// Adds `weights[r][j] * vectors[r]` to row `j` of `matrix` for every r, in the order of r; `vectors` is `[R][pieces * 16]`.
#[inline(always)]
fn add_outer<S: Simd, const R: usize>(simd: S, weights: &[f32], stride: usize, vectors: &[f32], matrix: &mut Pieces) {
    let pieces = vectors.len() / (R * LANES);
    let vectors = S::as_simd_f32s(vectors).0;
    for piece in 0..pieces {
        let x: [S::f32s; R] = std::array::from_fn(
            #[inline(always)]
            |r| vectors[r * pieces + piece],
        );
        for block in 0..stride / LANES {
            let rows = &mut matrix.0[(block * pieces + piece) * LANES * LANES..][..LANES * LANES];
            let of = sixteen::<R>(weights, stride, block);
            for (j, row) in S::as_mut_simd_f32s(rows).0.iter_mut().enumerate() {
                let mut sums = *row;
                for r in 0..R {
                    sums = simd.mul_add_f32s(simd.splat_f32s(of[r][j]), x[r], sums);
                }
                *row = sums;
            }
        }
    }
}

/// Copies `R` vectors, times `scale`, each padded with zeros to whole pieces.
#[inline(always)]
fn pad<const R: usize>(vectors: &[f32], dim: usize, scale: f32, out: &mut Vec<f32>) {
    let width = dim.next_multiple_of(LANES);
    out.clear();
    out.resize(R * width, 0.0);
    for (out, vector) in out.chunks_exact_mut(width).zip(vectors.chunks_exact(dim)) {
        out.iter_mut().zip(vector).for_each(|(out, x)| *out = x * scale);
    }
}

/// Memory that tiles reuse.
#[derive(Default)]
struct Scratch {
    vectors: Vec<f32>,
    weights: Vec<f32>,
    gradients: Vec<f32>,
    padded: Vec<f32>,
    sums: Vec<f32>,
}

/// `R` queries of width `dim`, the r-th over the first `lens[r]` keys.
#[derive(Clone, Copy)]
struct Tile<'a, const R: usize> {
    dim: usize,
    scale: f32,
    q: &'a [f32],
    lens: &'a [usize],
}

impl<const R: usize> Tile<'_, R> {
    /// Width of a row of weights: the longest row in whole blocks.
    fn stride(&self) -> usize {
        self.lens.iter().copied().max().unwrap_or(0).next_multiple_of(LANES)
    }

    /// Attention weights `[R][stride]`, not yet divided by the returned sums.
    #[inline(always)]
    fn weights<S: Simd>(&self, simd: S, kv: &KeyValues, scratch: &mut Scratch) -> [f32; R] {
        let stride = self.stride();
        interleave(self.q, R, self.dim, self.scale, &mut scratch.vectors);
        scratch.weights.resize(R * stride, 0.0);
        let vectors = Interleaved { numbers: &scratch.vectors, all: R, first: 0 };
        let keys = kv.keys.tiles(self.dim);
        products::<S, R>(simd, vectors, keys, 0..stride / LANES, &mut scratch.weights, stride);
        let mut sums = [0.0; R];
        for (r, sum) in sums.iter_mut().enumerate() {
            *sum = exponentials(&mut scratch.weights[r * stride..][..stride], self.lens[r]);
        }
        sums
    }
}

struct Forward<'a, const R: usize> {
    tile: Tile<'a, R>,
    kv: &'a KeyValues,
    out: &'a mut [f32],
    scratch: &'a mut Scratch,
}

impl<const R: usize> WithSimd for Forward<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { tile, kv, out, scratch } = self;
        let inverses = tile.weights(simd, kv, scratch).map(
            #[inline(always)]
            |sum| 1.0 / sum,
        );
        let (stride, Scratch { weights, sums, .. }) = (tile.stride(), scratch);
        weighted_sums::<S, R>(simd, weights, stride, tile.lens, &kv.values, &inverses, tile.dim, sums, out);
    }
}

/// Cuts `0..rows` into tiles of 8, 4, 3, 2 and 1 rows and runs the same block for each with `R` the tile's size.
macro_rules! for_tiles {
    ($rows:expr, |$first:ident, $size:ident| $run:expr) => {{
        let ($first, rows) = (&mut 0usize, $rows);
        while *$first < rows {
            let left = rows - *$first;
            *$first += if left >= 8 {
                const $size: usize = 8;
                $run;
                8
            } else if left >= 4 {
                const $size: usize = 4;
                $run;
                4
            } else if left >= 3 {
                const $size: usize = 3;
                $run;
                3
            } else if left >= 2 {
                const $size: usize = 2;
                $run;
                2
            } else {
                const $size: usize = 1;
                $run;
                1
            };
        }
    }};
}

/// Attention of queries `q` `[lens.len(), dim]`, the r-th over the first `lens[r]` positions of `kv`, into `out` of the same
/// shape. `lens` are at least 1 and at most the positions held.
pub(crate) fn attend_rows(kv: &KeyValues, dim: usize, scale: f32, q: &[f32], lens: &[usize], out: &mut [f32]) {
    let mut scratch = Scratch::default();
    for_tiles!(lens.len(), |first, R| {
        let rows = *first * dim..(*first + R) * dim;
        let tile = Tile::<R> { dim, scale, q: &q[rows.clone()], lens: &lens[*first..*first + R] };
        dispatch(Forward { tile, kv, out: &mut out[rows], scratch: &mut scratch });
    });
}

/// What the backward pass over one head's keys holds: both layouts of keys and values, and the sums of their gradients.
#[derive(Default)]
pub(super) struct Backward {
    kv: KeyValues,
    keys: Pieces,
    values: Transposed,
    dkeys: Pieces,
    dvalues: Pieces,
}

struct BackwardTile<'a, const R: usize> {
    tile: Tile<'a, R>,
    grad: &'a [f32],
    dq: &'a mut [f32],
    sums: &'a mut Backward,
    scratch: &'a mut Scratch,
}

/// With P the weights: dV = P' dO; dP = dO V'; dS = P (dP - sum(P dP)); dQ = scale dS K; dK = scale dS' Q.
impl<const R: usize> WithSimd for BackwardTile<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { tile, grad, dq, sums: b, scratch } = self;
        let (dim, scale, stride) = (tile.dim, tile.scale, tile.stride());
        let totals = tile.weights(simd, &b.kv, scratch);
        interleave(grad, R, dim, 1.0, &mut scratch.vectors);
        scratch.gradients.resize(R * stride, 0.0);
        let vectors = Interleaved { numbers: &scratch.vectors, all: R, first: 0 };
        let values = b.values.tiles(dim);
        products::<S, R>(simd, vectors, values, 0..stride / LANES, &mut scratch.gradients, stride);
        for (r, total) in totals.iter().enumerate() {
            let p = &mut scratch.weights[r * stride..][..stride];
            let ds = &mut scratch.gradients[r * stride..][..stride];
            let inverse = 1.0 / total;
            for p in p.iter_mut() {
                *p *= inverse;
            }
            let mean = dot(p, ds);
            for (ds, p) in ds.iter_mut().zip(p) {
                *ds = *p * (*ds - mean);
            }
        }
        let Scratch { gradients, sums, .. } = scratch;
        weighted_sums::<S, R>(simd, gradients, stride, tile.lens, &b.keys, &[scale; R], dim, sums, dq);
        pad::<R>(tile.q, dim, scale, &mut scratch.padded);
        add_outer::<S, R>(simd, &scratch.gradients, stride, &scratch.padded, &mut b.dkeys);
        pad::<R>(grad, dim, 1.0, &mut scratch.padded);
        add_outer::<S, R>(simd, &scratch.weights, stride, &scratch.padded, &mut b.dvalues);
    }
}

impl Backward {
    /// Adds the next position, with sums of zero.
    pub(super) fn push(&mut self, key: &[f32], value: &[f32]) {
        let at = self.kv.len;
        self.kv.push(key, value);
        self.keys.push(at, key);
        self.values.push(at, value);
        self.dkeys.clear(at, key.len());
        self.dvalues.clear(at, value.len());
    }

    /// Forgets all positions from `len` on.
    pub(super) fn truncate(&mut self, len: usize) {
        self.kv.truncate(len);
    }

    /// The gradients of the key and the value at position `at`, each of the head's width.
    pub(super) fn sums_of(&self, at: usize, dkey: &mut [f32], dvalue: &mut [f32]) {
        self.dkeys.row(at, dkey);
        self.dvalues.row(at, dvalue);
    }

    /// Adds what queries `q`, whose results have gradients `grad`, give to the keys and values; returns the queries' own
    /// gradients. Shapes as in [`attend_rows`].
    pub(super) fn add(&mut self, dim: usize, scale: f32, q: &[f32], grad: &[f32], lens: &[usize]) -> Vec<f32> {
        let (mut dq, mut scratch) = (vec![0.0; q.len()], Scratch::default());
        for_tiles!(lens.len(), |first, R| {
            let rows = *first * dim..(*first + R) * dim;
            let tile = Tile::<R> { dim, scale, q: &q[rows.clone()], lens: &lens[*first..*first + R] };
            let (grad, dq) = (&grad[rows.clone()], &mut dq[rows]);
            dispatch(BackwardTile { tile, grad, dq, sums: self, scratch: &mut scratch });
        });
        dq
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attention of three queries, by the code of each kind of processor.
    #[test]
    fn every_kind_of_processor_gives_the_same_bits() {
        const DIM: usize = 40;
        let number = |i: usize| ((i * 7919) % 1013) as f32 / 500.0 - 1.0;
        let mut kv = KeyValues::default();
        for at in 0..53 {
            let row = |first: usize| (0..DIM).map(|i| number(first + at * DIM + i)).collect::<Vec<f32>>();
            kv.push(&row(3), &row(77_777));
        }
        let q: Vec<f32> = (0..3 * DIM).map(|i| number(i * 3 + 1)).collect();
        let run = |dispatch: &dyn Fn(Forward<'_, 3>)| {
            let (mut out, mut scratch) = (vec![f32::NAN; 3 * DIM], Scratch::default());
            let tile = Tile::<3> { dim: DIM, scale: 0.3, q: &q, lens: &[20, 50, 53] };
            dispatch(Forward { tile, kv: &kv, out: &mut out, scratch: &mut scratch });
            out.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        let plain = run(&|op| pulp::Scalar512b.vectorize(op));
        assert!(plain.iter().all(|bits| f32::from_bits(*bits).is_finite()));
        assert_eq!(run(&|op| dispatch(op)), plain);
        #[cfg(target_arch = "x86_64")]
        if let Some(v3) = pulp::x86::V3::try_new() {
            assert_eq!(run(&|op| super::super::math::with_avx2(v3, op)), plain);
        }
    }
}
