//! Key-value caches that outlive the call that made them: of nodes that go on, and of nodes that have ended, whose beginning
//! (the system prompt, the task, what a parent saw) the next nodes share.

use crate::kv::Cache;
use crate::ops::{BlockShape, Ledger};
use std::collections::BTreeMap;
use std::sync::Arc;

/// At most so many caches of ended nodes are looked through.
const RETIRED: usize = 64;

/// Caches with a bound on their bytes, in which a block counts once however many caches hold it. Which of them are held changes
/// speed, never results.
pub(crate) struct Pool {
    bound: usize,
    shape: BlockShape,
    /// Counts the blocks of the pool's caches and of those that were taken from it.
    ledger: Arc<Ledger>,
    rows: BTreeMap<u64, Cache>,
    retired: Vec<Cache>,
}

impl Pool {
    /// A pool of at most `bound` bytes.
    pub(crate) fn new(bound: usize, shape: BlockShape) -> Self {
        Self { bound, shape, ledger: Arc::default(), rows: BTreeMap::new(), retired: Vec::new() }
    }

    /// What counts its blocks.
    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Blocks that the bound allows.
    pub(crate) fn blocks(&self) -> usize {
        self.bound / self.shape.bytes()
    }

    /// The row's cache, which is the caller's until it is put back.
    pub(crate) fn take(&mut self, row: u64) -> Option<Cache> {
        self.rows.remove(&row)
    }

    /// Keeps the row's cache, which has served in call `now`.
    pub(crate) fn put(&mut self, row: u64, cache: Cache, now: u64) {
        cache.touch(now);
        self.rows.insert(row, cache);
    }

    /// The row goes on no more; what it holds can serve others.
    pub(crate) fn retire(&mut self, row: u64) {
        let Some(cache) = self.rows.remove(&row) else { return };
        let covered = |held: &Cache| held.common(cache.tokens()) == cache.tokens().len();
        if self.retired.iter().any(covered) {
            return;
        }
        self.retired.retain(|held| held.common(cache.tokens()) < held.tokens().len());
        self.retired.push(cache);
        if self.retired.len() > RETIRED {
            let oldest = self.retired.iter().enumerate().min_by_key(|(at, cache)| (cache.used(), *at));
            if let Some(at) = oldest.map(|(at, _)| at) {
                self.retired.remove(at);
            }
        }
        self.shrink(0);
    }

    /// The tokens of `context` that some cache begins with, in that cache's blocks, if they are more than `held`.
    pub(crate) fn beginning(&self, context: &[u32], held: usize) -> Option<Cache> {
        let all = self.rows.values().chain(&self.retired);
        let (common, best) = all.map(|cache| (cache.common(context), cache)).max_by_key(|(common, _)| *common)?;
        (common > held).then(|| best.fork(common))
    }

    /// Drops the blocks that have gone unused the longest, from the ends of the caches, until the rest and `more` blocks fit.
    pub(crate) fn shrink(&mut self, more: usize) {
        while self.ledger.held() + more > self.blocks() {
            let row = self.rows.iter().map(|(row, cache)| (cache.used(), *row)).min();
            let retired = self.retired.iter().enumerate().map(|(at, cache)| (cache.used(), at)).min();
            match (row, retired) {
                (row, Some((used, at))) if row.is_none_or(|(other, _)| used <= other) => {
                    self.retired[at].forget_block();
                    if self.retired[at].tokens().is_empty() {
                        self.retired.remove(at);
                    }
                }
                (Some((_, row)), _) => {
                    let Some(cache) = self.rows.get_mut(&row) else { return };
                    cache.forget_block();
                    if cache.tokens().is_empty() {
                        self.rows.remove(&row);
                    }
                }
                _ => return,
            }
        }
    }
}

#[cfg(test)]
mod tests;
