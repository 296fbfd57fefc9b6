//! Attention over keys and values in blocks. Queries of several sequences that share blocks read them together.

use super::block::{BlockShape, InBlocks};
use super::math::{LANES, dispatch};
use super::tiles::{Interleaved, add_weighted, exponentials, interleave, products, write_scaled};
use super::{Block, TOKENS};
use pulp::{Simd, WithSimd};
use std::ops::Range;
use std::sync::Arc;

/// Queries that are worked on together: several runs of them use keys that one has brought into the core's first cache.
const QUERIES: usize = 36;

/// Tiles of keys that are brought there at a time.
const AT_A_TIME: usize = 4;

/// Positions, each with a group of queries, that are worked on together.
pub(crate) fn per_tile(group: usize) -> usize {
    (QUERIES / group.max(1)).max(1)
}

/// Tiles of keys that some neighbouring queries all see, in the same blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Whose blocks to read: any of the sequences that share them.
    pub(crate) source: usize,
    /// Blocks, by their index in the sequence.
    pub(crate) blocks: Range<usize>,
    /// Positions of the tile.
    pub(crate) positions: Range<usize>,
}

/// Some positions whose queries are worked on together.
#[derive(Clone, Debug)]
pub(crate) struct PagedTile {
    /// Tokens that each position sees.
    pub(crate) lens: Vec<usize>,
    /// What they read; of each position in the order of its tokens, all of them.
    pub(crate) spans: Vec<Span>,
}

/// Memory that tiles reuse.
#[derive(Default)]
struct Scratch {
    lens: Vec<usize>,
    vectors: Vec<f32>,
    weights: Vec<f32>,
    inverses: Vec<f32>,
    sums: Vec<f32>,
}

/// Attention of one key head's queries in one layer.
pub(crate) struct Reader<'a> {
    shape: BlockShape,
    layer: usize,
    kv_head: usize,
    /// The blocks of each sequence.
    blocks: &'a [&'a [Arc<Block>]],
    scratch: Scratch,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(shape: BlockShape, layer: usize, blocks: &'a [&'a [Arc<Block>]]) -> Self {
        Self { shape, layer, kv_head: 0, blocks, scratch: Scratch::default() }
    }

    /// Attention of `q` `[positions * group, dim]`, into `out` of the same shape.
    pub(crate) fn attend(&mut self, kv_head: usize, tile: &PagedTile, q: &[f32], out: &mut [f32]) {
        self.kv_head = kv_head;
        dispatch(Attend { reader: self, tile, q, out });
    }
}

struct Attend<'r, 'a> {
    reader: &'r mut Reader<'a>,
    tile: &'r PagedTile,
    q: &'r [f32],
    out: &'r mut [f32],
}

/// Cuts queries into runs of at most nine, which keep the multipliers busy and whose sums fit the registers, and does the same
/// for each run, with `R` its size.
macro_rules! for_runs {
    ($queries:expr, |$first:ident, $size:ident| $run:expr) => {{
        let mut range: Range<usize> = $queries;
        while !range.is_empty() {
            let ($first, left) = (range.start, range.len());
            range.start += if left % 9 == 0 {
                for_runs!(@one $size, $run, 9)
            } else {
                for_runs!(@sizes left, $size, $run, 8, 6, 4, 3, 2, 1)
            };
        }
    }};
    (@one $size:ident, $run:expr, $one:literal) => {{
        const $size: usize = $one;
        $run;
        $one
    }};
    (@sizes $left:expr, $size:ident, $run:expr, $one:literal) => {
        for_runs!(@one $size, $run, $one)
    };
    (@sizes $left:expr, $size:ident, $run:expr, $one:literal, $($less:literal),+) => {
        if $left >= $one {
            for_runs!(@one $size, $run, $one)
        } else {
            for_runs!(@sizes $left, $size, $run, $($less),+)
        }
    };
}

impl WithSimd for Attend<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { reader, tile, q, out } = self;
        let Reader { shape, layer, kv_head, blocks, scratch } = reader;
        let Scratch { lens, vectors, weights, inverses, sums } = scratch;
        let (group, dim) = (shape.heads.group(), shape.heads.dim);
        let (all, width) = (tile.lens.len() * group, dim.next_multiple_of(LANES));
        lens.clear();
        lens.extend(tile.lens.iter().flat_map(|len| std::iter::repeat_n(*len, group)));
        let stride = lens.iter().copied().max().unwrap_or(0).next_multiple_of(LANES);
        interleave(q, all, dim, shape.heads.scale(), vectors);
        weights.resize(all * stride, 0.0);
        for span in &tile.spans {
            let [keys, _] = InBlocks::both(*shape, *layer, *kv_head, blocks[span.source]);
            for tiles in span.tiles(&tile.lens) {
                for_runs!(span.queries(group), |first, R| {
                    let vectors = Interleaved { numbers: vectors, all, first };
                    let (tiles, out) =
                        (seen(&tiles, &lens[first..][..R]), &mut weights[first * stride..][..R * stride]);
                    products::<S, R>(simd, vectors, keys, tiles, out, stride);
                });
            }
        }
        inverses.clear();
        for (weights, len) in weights.chunks_exact_mut(stride).zip(lens.iter()) {
            inverses.push(1.0 / exponentials(&mut weights[..len.next_multiple_of(LANES)], *len));
        }
        sums.clear();
        sums.resize(all * width, 0.0);
        for span in &tile.spans {
            let [_, values] = InBlocks::both(*shape, *layer, *kv_head, blocks[span.source]);
            for tiles in span.tiles(&tile.lens) {
                for_runs!(span.queries(group), |first, R| {
                    let weights = &weights[first * stride..][..R * stride];
                    let (lens, out) = (&lens[first..][..R], &mut sums[first * width..][..R * width]);
                    add_weighted::<S, R>(simd, weights, stride, lens, values, seen(&tiles, lens), out, width);
                });
            }
        }
        write_scaled(sums, width, inverses, out, dim);
    }
}

impl Span {
    /// Its queries.
    #[inline(always)]
    fn queries(&self, group: usize) -> Range<usize> {
        self.positions.start * group..self.positions.end * group
    }

    /// Its tiles of keys, a few at a time.
    #[inline(always)]
    fn tiles(&self, lens: &[usize]) -> impl Iterator<Item = Range<usize>> + use<> {
        let longest = lens[self.positions.clone()].iter().copied().max().unwrap_or(0).div_ceil(LANES);
        let (start, end) = (self.blocks.start * TOKENS / LANES, (self.blocks.end * TOKENS / LANES).min(longest));
        (start..end).step_by(AT_A_TIME).map(move |at| at..(at + AT_A_TIME).min(end))
    }
}

/// Those of the tiles that any of the queries sees.
#[inline(always)]
fn seen(tiles: &Range<usize>, lens: &[usize]) -> Range<usize> {
    let end = lens.iter().copied().max().unwrap_or(0).div_ceil(LANES);
    tiles.start..tiles.end.min(end).max(tiles.start)
}
