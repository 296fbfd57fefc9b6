//! Keys and values of one row's tokens.

use crate::forward::Attend;
use crate::ops::{self, Heads, KeyValues};
use candle_core::{Device, Tensor};

/// New rows of one cache from which on its heads run side by side.
const ROWS_WORTH_SPLITTING: usize = 16;

/// What is cached for one row. Keys and values are a function of the tokens alone, so any cache whose tokens begin like a
/// context can serve that context as far as they agree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cache {
    /// The tokens whose keys and values are held.
    pub(crate) tokens: Vec<u32>,
    /// `[layer][kv head]`.
    heads: Vec<KeyValues>,
    /// When it last served, in calls.
    pub(crate) used: u64,
}

impl Cache {
    pub(crate) fn new(layers: usize, kv_heads: usize) -> Self {
        Self { tokens: Vec::new(), heads: vec![KeyValues::default(); layers * kv_heads], used: 0 }
    }

    /// Bytes that a cache of `tokens` tokens takes.
    pub(crate) fn bytes(tokens: usize, layers: usize, heads: Heads) -> usize {
        layers * heads.kv_heads * KeyValues::bytes(tokens, heads.dim) + tokens * size_of::<u32>()
    }

    /// Tokens that it shares with the beginning of `context`.
    pub(crate) fn common(&self, context: &[u32]) -> usize {
        self.tokens.iter().zip(context).take_while(|(a, b)| a == b).count()
    }

    /// Forgets all tokens from `len` on.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.heads.iter_mut().for_each(|head| head.truncate(len));
    }

    /// Makes room for that many tokens in all.
    pub(crate) fn reserve(&mut self, tokens: usize, dim: usize) {
        self.heads.iter_mut().for_each(|head| head.reserve(tokens, dim));
    }

    /// A cache of the first `len` tokens.
    pub(crate) fn prefix(&self, len: usize, dim: usize) -> Self {
        let heads = self.heads.iter().map(|head| head.prefix(len, dim)).collect();
        Self { tokens: self.tokens[..len].to_vec(), heads, used: self.used }
    }
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
    pub(crate) segments: &'a mut [Segment<'b>],
}

impl Attend for CachedAttend<'_, '_> {
    fn attend(
        &mut self,
        layer: usize,
        heads: Heads,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
    ) -> candle_core::Result<Tensor> {
        use rayon::prelude::*;
        let (rows, width) = q.dims2()?;
        let out = ops::with_numbers([q, k, v], "cached-attention", |[q, k, v]| {
            let mut out = vec![0.0; rows * width];
            let (mut rest, mut first) = (out.as_mut_slice(), 0);
            let mut work = Vec::with_capacity(self.segments.len());
            for segment in self.segments.iter_mut() {
                let rows = segment.rows;
                let (part, after) = rest.split_at_mut(rows * width);
                rest = after;
                work.push((first, segment, part));
                first += rows;
            }
            work.into_par_iter().with_min_len(4).for_each(|(first, segment, out)| {
                let (kv, rows) = (heads.kv_width(), segment.rows);
                let keys = k[first * kv..][..rows * kv].chunks_exact(kv).zip(v[first * kv..].chunks_exact(kv));
                segment.extend(layer, heads, keys, &q[first * width..][..rows * width], out);
            });
            Ok(out)
        })?;
        Tensor::from_vec(out, (rows, width), &Device::Cpu)
    }
}

impl Segment<'_> {
    fn extend<'k>(
        &mut self,
        layer: usize,
        heads: Heads,
        keys: impl Iterator<Item = (&'k [f32], &'k [f32])> + Clone + Sync,
        q: &[f32],
        out: &mut [f32],
    ) {
        use rayon::prelude::*;
        let (dim, group) = (heads.dim, heads.group());
        let (part, width, start) = (group * dim, heads.heads * dim, self.cache.tokens.len());
        let lens: Vec<usize> = (0..self.rows).flat_map(|row| std::iter::repeat_n(start + row + 1, group)).collect();
        let columns = |kv_head: usize, row: usize| row * width + kv_head * part;
        let own = &mut self.cache.heads[layer * heads.kv_heads..][..heads.kv_heads];
        // The heads of many new rows are worth a thread each.
        let apart = if self.rows < ROWS_WORTH_SPLITTING { heads.kv_heads } else { 1 };
        let results = own.par_iter_mut().with_min_len(apart).enumerate().map(|(kv_head, kv)| {
            for (k, v) in keys.clone() {
                kv.push(&k[kv_head * dim..][..dim], &v[kv_head * dim..][..dim]);
            }
            let q: Vec<f32> = (0..self.rows).flat_map(|row| &q[columns(kv_head, row)..][..part]).copied().collect();
            let mut result = vec![0.0; self.rows * part];
            ops::attend_rows(kv, dim, heads.scale(), &q, &lens, &mut result);
            result
        });
        for (kv_head, result) in results.collect::<Vec<_>>().iter().enumerate() {
            for (row, result) in result.chunks_exact(part).enumerate() {
                out[columns(kv_head, row)..][..part].copy_from_slice(result);
            }
        }
    }
}
