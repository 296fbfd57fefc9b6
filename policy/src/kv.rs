//! Keys and values of one row's tokens.

mod plan;

use crate::forward::Attend;
use crate::ops::{self, Block, BlockShape, Heads, Ledger, Reader, TOKENS};
use candle_core::{Device, Tensor};
use plan::Plan;
use std::sync::Arc;

/// New rows of one cache from which on its keys and values are written by a thread of their own.
const ROWS_WORTH_SPLITTING: usize = 64;

/// Multiplications of one layer's attention below which a second thread costs more than it brings.
const WORK_WORTH_SPLITTING: usize = 1 << 18;

/// What is cached for one row: its tokens, and their keys and values in blocks that other rows may hold too. Keys and values
/// are a function of the tokens alone, so any cache whose tokens begin like a context can serve that context as far as they
/// agree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cache {
    tokens: Vec<u32>,
    /// As many as the tokens take, and what room has been made for more.
    blocks: Vec<Arc<Block>>,
}

impl Cache {
    /// The tokens whose keys and values are held.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Its blocks, in the order of tokens.
    pub(crate) fn blocks(&self) -> &[Arc<Block>] {
        &self.blocks
    }

    /// Tokens that it shares with the beginning of `context`.
    pub(crate) fn common(&self, context: &[u32]) -> usize {
        common(&self.tokens, context)
    }

    /// Forgets all tokens from `len` on.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.blocks.truncate(BlockShape::blocks(self.tokens.len()));
    }

    /// Forgets the tokens of the last block.
    pub(crate) fn forget_block(&mut self) {
        self.truncate(self.blocks.len().saturating_sub(1) * TOKENS);
    }

    /// A cache of the first `len` tokens, in the same blocks.
    pub(crate) fn fork(&self, len: usize) -> Self {
        let tokens = self.tokens[..len.min(self.tokens.len())].to_vec();
        Self { blocks: self.blocks[..BlockShape::blocks(tokens.len())].to_vec(), tokens }
    }

    /// Takes from `other` what it holds of the beginning of `prompt`, which this cache's own tokens are a beginning of. Then both
    /// hold what they have in common in the same blocks; only the last may differ where this cache goes on alone.
    pub(crate) fn share(&mut self, other: &Self, prompt: &[u32]) {
        let common = other.common(prompt);
        if common >= self.tokens.len() {
            *self = other.fork(common);
            return;
        }
        let whole = common / TOKENS;
        for (own, other) in self.blocks.iter_mut().zip(&other.blocks).take(whole) {
            own.clone_from(other);
        }
    }

    /// Its blocks serve in call `now`.
    pub(crate) fn touch(&self, now: u64) {
        self.blocks.iter().for_each(|block| block.touch(now));
    }

    /// When its last block last served.
    pub(crate) fn used(&self) -> u64 {
        self.blocks.last().map_or(0, |block| block.used())
    }

    /// Makes room for `new` more tokens, in blocks that no other cache holds: a block that is held by others and has room left is
    /// copied.
    pub(crate) fn make_room(&mut self, new: usize, shape: BlockShape, ledger: &Arc<Ledger>) {
        let (len, whole) = (self.tokens.len(), self.tokens.len() / TOKENS);
        for block in self.blocks.iter_mut().skip(whole) {
            Arc::make_mut(block);
        }
        let needed = BlockShape::blocks(len + new);
        self.blocks.resize_with(needed.max(self.blocks.len()), || Arc::new(Block::new(shape, ledger)));
    }

    /// Writes the keys and values of the tokens to come in one layer. Room has been made.
    pub(crate) fn write<'a>(
        &mut self,
        shape: BlockShape,
        layer: usize,
        new: impl Iterator<Item = (&'a [f32], &'a [f32])>,
    ) {
        for (at, (keys, values)) in (self.tokens.len()..).zip(new) {
            Arc::make_mut(&mut self.blocks[at / TOKENS]).write(shape, layer, at % TOKENS, keys, values);
        }
    }

    /// The keys and values of `new` tokens have been written in all layers.
    pub(crate) fn extend(&mut self, new: &[u32]) {
        self.tokens.extend_from_slice(new);
    }
}

/// Tokens that two sequences begin with alike.
pub(crate) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// New rows of a pass that continue one cache.
pub(crate) struct Segment<'a> {
    pub(crate) cache: &'a mut Cache,
    /// How many rows; they follow those of the segment before.
    pub(crate) rows: usize,
}

/// Attention over caches: each segment's keys and values are added to its cache, and its queries look at all of it up to
/// their own position.
pub(crate) struct CachedAttend<'a, 'b> {
    segments: &'a mut [Segment<'b>],
    shape: BlockShape,
    plan: Plan,
}

impl<'a, 'b> CachedAttend<'a, 'b> {
    /// Makes room for the segments' rows and plans which of them read together.
    pub(crate) fn new(segments: &'a mut [Segment<'b>], shape: BlockShape, ledger: &Arc<Ledger>) -> Self {
        for segment in segments.iter_mut() {
            segment.cache.make_room(segment.rows, shape, ledger);
        }
        let plan = Plan::new(segments, shape.heads.group());
        Self { segments, shape, plan }
    }

    /// Adds the rows' keys and values to the caches.
    fn write(&mut self, layer: usize, k: &[f32], v: &[f32]) {
        use rayon::prelude::*;
        let (shape, width) = (self.shape, self.shape.heads.kv_width());
        let (mut work, mut first) = (Vec::with_capacity(self.segments.len()), 0);
        for segment in self.segments.iter_mut() {
            let rows = first * width..(first + segment.rows) * width;
            first += segment.rows;
            work.push((segment, rows));
        }
        let apart = if first < ROWS_WORTH_SPLITTING { work.len() } else { 1 };
        work.into_par_iter().with_min_len(apart.max(1)).for_each(|(segment, rows)| {
            let new = k[rows.clone()].chunks_exact(width).zip(v[rows].chunks_exact(width));
            segment.cache.write(shape, layer, new);
        });
    }

    /// Results `[rows, heads * dim]` of all queries.
    fn read(&self, layer: usize, q: &[f32]) -> Vec<f32> {
        use rayon::prelude::*;
        let (heads, plan) = (self.shape.heads, &self.plan);
        let (part, blocks) = (heads.group() * heads.dim, self.segments.iter().map(|s| s.cache.blocks()));
        let blocks: Vec<&[Arc<Block>]> = blocks.collect();
        // By key head, then in the plan's order: each tile's results lie together.
        let mut results = vec![0.0; q.len()];
        let by_head = results.chunks_exact_mut((plan.rows.len() * part).max(1)).enumerate();
        let work: Vec<_> = by_head
            .flat_map(|(kv_head, out)| {
                let tiles = plan.tiles.iter().zip(plan.rows.chunks(plan.per_tile));
                let outs = out.chunks_mut(plan.per_tile * part);
                tiles.zip(outs).map(move |((tile, rows), out)| (kv_head, tile, rows, out))
            })
            .collect();
        // A head's blocks are read by one tile after the other: they stay in the core's cache in between.
        let apart = if plan.pairs * heads.q_width() < WORK_WORTH_SPLITTING { work.len() } else { 1 };
        let start = || (Reader::new(self.shape, layer, &blocks), Vec::new());
        work.into_par_iter().with_min_len(apart.max(1)).for_each_init(start, |(reader, own), work| {
            let (kv_head, tile, rows, out) = work;
            own.clear();
            for row in rows {
                own.extend_from_slice(&q[(row * heads.kv_heads + kv_head) * part..][..part]);
            }
            reader.attend(kv_head, tile, own, out);
        });
        let mut out = vec![0.0; q.len()];
        for (kv_head, results) in results.chunks_exact((plan.rows.len() * part).max(1)).enumerate() {
            for (row, result) in plan.rows.iter().zip(results.chunks_exact(part)) {
                out[(row * heads.kv_heads + kv_head) * part..][..part].copy_from_slice(result);
            }
        }
        out
    }
}

impl Attend for CachedAttend<'_, '_> {
    fn attend(&mut self, layer: usize, _: Heads, q: &Tensor, k: &Tensor, v: &Tensor) -> candle_core::Result<Tensor> {
        let shape = q.dims2()?;
        let out = ops::with_numbers([q, k, v], "cached-attention", |[q, k, v]| {
            self.write(layer, k, v);
            Ok(self.read(layer, q))
        })?;
        Tensor::from_vec(out, shape, &Device::Cpu)
    }
}

#[cfg(test)]
pub(crate) mod tests;
