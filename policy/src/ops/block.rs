//! Keys and values in blocks of a few tokens, which several sequences can share.

use super::attention::Heads;
use super::math::LANES;
use super::tiles::Tiles;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Tokens of a block: whole tiles of attention's loops. Fewer leave less of a sequence's last block empty and let more of a
/// beginning be shared; more keep each head's numbers together.
pub(crate) const TOKENS: usize = 32;

/// Tiles of a block.
const TILES: usize = TOKENS / LANES;

/// What decides how large a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockShape {
    pub(crate) layers: usize,
    pub(crate) heads: Heads,
}

impl BlockShape {
    /// Bytes of a block.
    pub(crate) fn bytes(self) -> usize {
        self.numbers() * size_of::<f32>()
    }

    /// Blocks that so many tokens take.
    pub(crate) fn blocks(tokens: usize) -> usize {
        tokens.div_ceil(TOKENS)
    }

    fn numbers(self) -> usize {
        self.layers * self.heads.kv_heads * self.head()
    }

    /// Numbers of one head: its keys, then its values.
    fn head(self) -> usize {
        TILES * (self.key_tile() + self.value_tile())
    }

    fn key_tile(self) -> usize {
        self.heads.dim * LANES
    }

    fn value_tile(self) -> usize {
        self.heads.dim.next_multiple_of(LANES) * LANES
    }

    fn at(self, layer: usize, kv_head: usize) -> usize {
        (layer * self.heads.kv_heads + kv_head) * self.head()
    }
}

/// Counts the blocks that exist, each once however many sequences hold it.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    held: AtomicUsize,
    most: AtomicUsize,
}

impl Ledger {
    /// Blocks that exist.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// The most that have existed at a time.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    fn enter(self: &Arc<Self>) -> Entry {
        self.most.fetch_max(self.held.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        Entry(self.clone())
    }
}

/// One block's place in the ledger.
#[derive(Debug)]
struct Entry(Arc<Ledger>);

impl Clone for Entry {
    fn clone(&self) -> Self {
        self.0.enter()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Keys and values of [`TOKENS`] tokens, of all layers: `[layer][kv head]`, for each the keys in tiles `[dim][16 tokens]`, then
/// the values in tiles `[piece][16 tokens][16]`. A clone is a block of its own.
#[derive(Debug)]
pub(crate) struct Block {
    numbers: Vec<f32>,
    /// When it last served, in calls.
    used: AtomicU64,
    entry: Entry,
}

impl Clone for Block {
    fn clone(&self) -> Self {
        let used = AtomicU64::new(self.used());
        Self { numbers: self.numbers.clone(), used, entry: self.entry.clone() }
    }
}

impl Block {
    /// A block of zeros.
    pub(crate) fn new(shape: BlockShape, ledger: &Arc<Ledger>) -> Self {
        Self { numbers: vec![0.0; shape.numbers()], used: AtomicU64::new(0), entry: ledger.enter() }
    }

    /// When it last served, in calls.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// It serves in call `now`.
    pub(crate) fn touch(&self, now: u64) {
        self.used.fetch_max(now, Ordering::Relaxed);
    }

    /// Writes the keys and values `[kv heads * dim]` of the `slot`-th token in one layer.
    pub(crate) fn write(&mut self, shape: BlockShape, layer: usize, slot: usize, keys: &[f32], values: &[f32]) {
        let dim = shape.heads.dim;
        let (tile, lane) = (slot / LANES, slot % LANES);
        let heads = keys.chunks_exact(dim).zip(values.chunks_exact(dim));
        for (kv_head, (key, value)) in heads.enumerate() {
            let head = &mut self.numbers[shape.at(layer, kv_head)..][..shape.head()];
            let (all_keys, all_values) = head.split_at_mut(TILES * shape.key_tile());
            let own = &mut all_keys[tile * shape.key_tile()..][..shape.key_tile()];
            for (slot, x) in own[lane..].iter_mut().step_by(LANES).zip(key) {
                *slot = *x;
            }
            let own = &mut all_values[tile * shape.value_tile()..][..shape.value_tile()];
            for (piece, x) in own.chunks_exact_mut(LANES * LANES).zip(value.chunks(LANES)) {
                piece[lane * LANES..][..x.len()].copy_from_slice(x);
            }
        }
    }
}

#[cfg(test)]
impl Block {
    /// The keys and values that were written.
    pub(crate) fn read(&self, shape: BlockShape, layer: usize, slot: usize) -> (Vec<f32>, Vec<f32>) {
        let (dim, pieces) = (shape.heads.dim, shape.heads.dim.div_ceil(LANES));
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for kv_head in 0..shape.heads.kv_heads {
            let head = &self.numbers[shape.at(layer, kv_head)..][..shape.head()];
            let (all_keys, all_values) = head.split_at(TOKENS * dim);
            let (tile, lane) = (slot / LANES, slot % LANES);
            keys.extend((0..dim).map(|i| all_keys[(tile * dim + i) * LANES + lane]));
            let at = |i: usize| ((tile * pieces + i / LANES) * LANES + lane) * LANES + i % LANES;
            values.extend((0..dim).map(|i| all_values[at(i)]));
        }
        (keys, values)
    }
}

/// The keys or the values of one head, in the blocks of one sequence.
#[derive(Clone, Copy)]
pub(super) struct InBlocks<'a> {
    blocks: &'a [Arc<Block>],
    start: usize,
    tile: usize,
}

impl Tiles for InBlocks<'_> {
    #[inline(always)]
    fn tile(&self, index: usize) -> &[f32] {
        &self.blocks[index / TILES].numbers[self.start + index % TILES * self.tile..][..self.tile]
    }
}

impl<'a> InBlocks<'a> {
    /// Keys and values.
    pub(super) fn both(shape: BlockShape, layer: usize, kv_head: usize, blocks: &'a [Arc<Block>]) -> [Self; 2] {
        let start = shape.at(layer, kv_head);
        let values = start + TILES * shape.key_tile();
        [Self { blocks, start, tile: shape.key_tile() }, Self { blocks, start: values, tile: shape.value_tile() }]
    }
}
