//! The loops that attention is made of, with one order for every query's arithmetic whatever runs beside it.

use crate::ops::math::{LANES, exp, max, sum_lanes};
use pulp::Simd;
use std::ops::Range;

/// Numbers in tiles of 16 rows, wherever they lie.
pub(in crate::ops) trait Tiles: Copy {
    /// The tile's numbers.
    fn tile(&self, index: usize) -> &[f32];
}

/// Tiles of so many numbers, one after the other.
#[derive(Clone, Copy)]
pub(in crate::ops) struct InOrder<'a>(pub(super) &'a [f32], pub(super) usize);

impl Tiles for InOrder<'_> {
    #[inline(always)]
    fn tile(&self, index: usize) -> &[f32] {
        &self.0[index * self.1..][..self.1]
    }
}

/// Vectors side by side, `[dim][all]`, of which a product takes those from `first` on.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Interleaved<'a> {
    pub(in crate::ops) numbers: &'a [f32],
    pub(in crate::ops) all: usize,
    pub(in crate::ops) first: usize,
}

/// Products of `R` vectors with the rows of some tiles, each a transposed `[dim][16]`: row `r` of `out` `[R][stride]` gets
/// those of vector `r`, each row's at the place of its position. Each product is one chain, whatever runs beside it.
#[inline(always)]
pub(in crate::ops) fn products<S: Simd, const R: usize>(
    simd: S,
    vectors: Interleaved<'_>,
    matrix: impl Tiles,
    tiles: Range<usize>,
    out: &mut [f32],
    stride: usize,
) {
    let mut tile = tiles.start;
    // Few vectors are too few chains to keep the multipliers busy: several tiles at once make more.
    if R <= 3 {
        while tile + 4 <= tiles.end {
            some_products::<S, R, 4>(simd, vectors, matrix, tile, out, stride);
            tile += 4;
        }
    }
    if R <= 4 {
        while tile + 2 <= tiles.end {
            some_products::<S, R, 2>(simd, vectors, matrix, tile, out, stride);
            tile += 2;
        }
    }
    while tile < tiles.end {
        some_products::<S, R, 1>(simd, vectors, matrix, tile, out, stride);
        tile += 1;
    }
}

/// [`products`] of `R` vectors with `B` tiles.
#[inline(always)]
fn some_products<S: Simd, const R: usize, const B: usize>(
    simd: S,
    vectors: Interleaved<'_>,
    matrix: impl Tiles,
    tile: usize,
    out: &mut [f32],
    stride: usize,
) {
    let dim = vectors.numbers.len() / vectors.all;
    let rows: [&[S::f32s]; B] = std::array::from_fn(
        #[inline(always)]
        |b| &S::as_simd_f32s(matrix.tile(tile + b)).0[..dim],
    );
    let mut sums = [[simd.splat_f32s(0.0); R]; B];
    for (i, x) in vectors.numbers.chunks_exact(vectors.all).enumerate().take(dim) {
        let x = &x[vectors.first..][..R];
        for b in 0..B {
            for r in 0..R {
                sums[b][r] = simd.mul_add_f32s(simd.splat_f32s(x[r]), rows[b][i], sums[b][r]);
            }
        }
    }
    for (b, sums) in sums.iter().enumerate() {
        for (r, sums) in sums.iter().enumerate() {
            S::as_mut_simd_f32s(&mut out[r * stride + (tile + b) * LANES..][..LANES]).0[0] = *sums;
        }
    }
}

/// Sixteen weights of each of `R` rows.
#[inline(always)]
pub(super) fn sixteen<const R: usize>(weights: &[f32], stride: usize, block: usize) -> [&[f32]; R] {
    std::array::from_fn(
        #[inline(always)]
        |r| &weights[r * stride + block * LANES..][..LANES],
    )
}

/// Adds weighted rows of some tiles, each in pieces `[piece][16][16]`, to the sums in rows `0..R` of `out` `[R][width]`, whole
/// pieces wide: to row r those of positions below `lens[r]`, with weights `weights[r]` of `[R][stride]`, in the order of
/// positions.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the parts of one product")]
pub(in crate::ops) fn add_weighted<S: Simd, const R: usize>(
    simd: S,
    weights: &[f32],
    stride: usize,
    lens: &[usize],
    matrix: impl Tiles,
    tiles: Range<usize>,
    out: &mut [f32],
    width: usize,
) {
    let (pieces, mut piece) = (width / LANES, 0);
    // As in `products`: few rows take several pieces at once.
    if R <= 3 {
        while piece + 4 <= pieces {
            add_weighted_pieces::<S, R, 4>(simd, weights, stride, lens, matrix, tiles.clone(), piece, out, width);
            piece += 4;
        }
    }
    if R <= 4 {
        while piece + 2 <= pieces {
            add_weighted_pieces::<S, R, 2>(simd, weights, stride, lens, matrix, tiles.clone(), piece, out, width);
            piece += 2;
        }
    }
    while piece < pieces {
        add_weighted_pieces::<S, R, 1>(simd, weights, stride, lens, matrix, tiles.clone(), piece, out, width);
        piece += 1;
    }
}

/// [`add_weighted`], `P` pieces of it.
#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the parts of one product")]
fn add_weighted_pieces<S: Simd, const R: usize, const P: usize>(
    simd: S,
    weights: &[f32],
    stride: usize,
    lens: &[usize],
    matrix: impl Tiles,
    tiles: Range<usize>,
    piece: usize,
    out: &mut [f32],
    width: usize,
) {
    let (start, end) = (tiles.start * LANES, tiles.end * LANES);
    let common = lens.iter().copied().min().unwrap_or(0).clamp(start, end);
    let mut sums = [[simd.splat_f32s(0.0); P]; R];
    for r in 0..R {
        let held = &S::as_simd_f32s(&out[r * width..][..width]).0[piece..][..P];
        sums[r].copy_from_slice(held);
    }
    for tile in tiles.start..common.div_ceil(LANES) {
        let rows = &S::as_simd_f32s(matrix.tile(tile)).0[piece * LANES..][..P * LANES];
        let of = sixteen::<R>(weights, stride, tile);
        for j in 0..LANES.min(common - tile * LANES) {
            for r in 0..R {
                let weight = simd.splat_f32s(of[r][j]);
                for p in 0..P {
                    sums[r][p] = simd.mul_add_f32s(weight, rows[p * LANES + j], sums[r][p]);
                }
            }
        }
    }
    for r in 0..R {
        for j in common..lens[r].min(end) {
            let rows = &S::as_simd_f32s(matrix.tile(j / LANES)).0[piece * LANES..][..P * LANES];
            for p in 0..P {
                let weight = simd.splat_f32s(weights[r * stride + j]);
                sums[r][p] = simd.mul_add_f32s(weight, rows[p * LANES + j % LANES], sums[r][p]);
            }
        }
        S::as_mut_simd_f32s(&mut out[r * width..][..width]).0[piece..][..P].copy_from_slice(&sums[r]);
    }
}

/// Row r of `sums` `[rows][width]` times `scales[r]`, into row r of `out` `[rows][dim]`.
#[inline(always)]
pub(in crate::ops) fn write_scaled(sums: &[f32], width: usize, scales: &[f32], out: &mut [f32], dim: usize) {
    for ((sums, out), scale) in sums.chunks_exact(width).zip(out.chunks_exact_mut(dim)).zip(scales) {
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = *sum * *scale;
        }
    }
}

/// Turns the first `len` scores of a row into exponentials and the rest into zeros; returns the sum.
#[inline(always)]
pub(in crate::ops) fn exponentials(row: &mut [f32], len: usize) -> f32 {
    let largest = max(&row[..len]);
    let mut lanes = [0.0f32; LANES];
    let (blocks, _) = row.as_chunks_mut::<LANES>();
    for (block, scores) in blocks.iter_mut().enumerate() {
        let live = len.saturating_sub(block * LANES);
        for (i, (score, lane)) in scores.iter_mut().zip(&mut lanes).enumerate() {
            let e = exp(*score - largest);
            *score = if i < live { e } else { 0.0 };
            *lane += *score;
        }
    }
    sum_lanes(lanes)
}

/// Copies `count` vectors of `dim` numbers to `[dim][count]`, times `scale`.
#[inline(always)]
pub(in crate::ops) fn interleave(vectors: &[f32], count: usize, dim: usize, scale: f32, out: &mut Vec<f32>) {
    out.clear();
    out.resize(count * dim, 0.0);
    for (r, vector) in vectors.chunks_exact(dim).enumerate().take(count) {
        for (slot, x) in out[r..].iter_mut().step_by(count).zip(vector) {
            *slot = x * scale;
        }
    }
}
