//! Which rows of a pass read which blocks together.

use super::{Cache, Segment};
use crate::ops::{Block, BlockShape, PagedTile, Span, per_tile};
use std::ops::Range;
use std::sync::Arc;

/// The order in which a pass's rows are worked on, the same in every layer. It decides how often a block is read, nothing else.
pub(super) struct Plan {
    /// Rows of the pass.
    pub(super) rows: Vec<usize>,
    /// Rows of a tile, but for the last.
    pub(super) per_tile: usize,
    pub(super) tiles: Vec<PagedTile>,
    /// Pairs of a row and a token that it sees.
    pub(super) pairs: usize,
}

/// Neighbouring rows of a tile that belong to one segment.
struct Run<'a> {
    segment: usize,
    positions: Range<usize>,
    blocks: &'a [Arc<Block>],
}

impl Plan {
    /// For segments that have room for their rows, with `group` queries a row and key head.
    pub(super) fn new(segments: &[Segment<'_>], group: usize) -> Self {
        let caches: Vec<&Cache> = segments.iter().map(|segment| &*segment.cache).collect();
        let address = |segment: usize| caches[segment].blocks().iter().map(|block| Arc::as_ptr(block).addr());
        let mut order: Vec<usize> = (0..segments.len()).collect();
        order.sort_by(|a, b| address(*a).cmp(address(*b)));
        let mut first = Vec::with_capacity(segments.len());
        let mut rows = 0;
        for segment in segments {
            first.push(rows);
            rows += segment.rows;
        }
        // Each row's number, segment and the tokens it sees.
        let rows: Vec<[usize; 3]> = order
            .into_iter()
            .flat_map(|at| {
                let (first, held) = (first[at], caches[at].tokens().len());
                (0..segments[at].rows).map(move |row| [first + row, at, held + row + 1])
            })
            .collect();
        let per_tile = per_tile(group);
        let tiles = rows.chunks(per_tile).map(|rows| tile(rows, &caches)).collect();
        let pairs = rows.iter().map(|[.., len]| len).sum();
        Self { rows: rows.into_iter().map(|[row, ..]| row).collect(), per_tile, tiles, pairs }
    }
}

fn tile(rows: &[[usize; 3]], caches: &[&Cache]) -> PagedTile {
    let (mut runs, mut position) = (Vec::new(), 0);
    for run in rows.chunk_by(|a, b| a[1] == b[1]) {
        let (segment, positions) = (run[0][1], position..position + run.len());
        let longest = run.iter().map(|[.., len]| *len).max().unwrap_or(0);
        position = positions.end;
        runs.push(Run { segment, positions, blocks: &caches[segment].blocks()[..BlockShape::blocks(longest)] });
    }
    let mut spans = Vec::new();
    split(&runs, 0, &mut spans);
    PagedTile { lens: rows.iter().map(|[.., len]| *len).collect(), spans }
}

/// Adds the spans of the runs' blocks from the `from`-th on: where neighbours part, each group of them goes on for itself.
fn split(runs: &[Run<'_>], from: usize, spans: &mut Vec<Span>) {
    let same = |a: &Run<'_>, b: &Run<'_>, at: usize| match (a.blocks.get(at), b.blocks.get(at)) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (None, None) => true,
        _ => false,
    };
    for group in runs.chunk_by(|a, b| same(a, b, from)) {
        let (Some(one), Some(last)) = (group.first(), group.last()) else { continue };
        let together = |at: &usize| *at < one.blocks.len() && group.iter().all(|run| same(one, run, *at));
        let end = (from..).take_while(together).last().map_or(from, |at| at + 1);
        if end > from {
            let positions = one.positions.start..last.positions.end;
            spans.push(Span { source: one.segment, blocks: from..end, positions });
            split(group, end, spans);
        }
    }
}
