//! Key-value caches that outlive the call that made them: of nodes that go on, and of nodes that have ended, whose beginning
//! (the system prompt, the task, what a parent saw) the next nodes share.

use crate::kv::Cache;
use std::collections::BTreeMap;

/// At most so many caches of ended nodes are looked through.
const RETIRED: usize = 64;

/// Caches with a bound on their bytes. Which of them are held changes speed, never results.
pub(crate) struct Pool {
    bound: usize,
    shape: Shape,
    rows: BTreeMap<u64, Cache>,
    retired: Vec<Cache>,
}

/// What decides how large a cache is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) layers: usize,
    pub(crate) heads: crate::ops::Heads,
}

impl Shape {
    /// Bytes that the cache of so many tokens takes.
    pub(crate) fn bytes(&self, tokens: usize) -> usize {
        Cache::bytes(tokens, self.layers, self.heads)
    }
}

impl Pool {
    pub(crate) fn new(bound: usize, shape: Shape) -> Self {
        Self { bound, shape, rows: BTreeMap::new(), retired: Vec::new() }
    }

    /// The row's cache, which is the caller's until it is put back.
    pub(crate) fn take(&mut self, row: u64) -> Option<Cache> {
        self.rows.remove(&row)
    }

    pub(crate) fn put(&mut self, row: u64, cache: Cache) {
        self.rows.insert(row, cache);
    }

    /// The row goes on no more; what it holds can serve others.
    pub(crate) fn retire(&mut self, row: u64) {
        let Some(cache) = self.rows.remove(&row) else { return };
        let covered = |held: &Cache| held.common(&cache.tokens) == cache.tokens.len();
        if self.retired.iter().any(covered) {
            return;
        }
        self.retired.retain(|held| held.common(&cache.tokens) < held.tokens.len());
        self.retired.push(cache);
        if self.retired.len() > RETIRED {
            self.drop_oldest_retired();
        }
        self.shrink(0);
    }

    fn drop_oldest_retired(&mut self) {
        let oldest = self.retired.iter().enumerate().min_by_key(|(at, cache)| (cache.used, *at)).map(|(at, _)| at);
        if let Some(at) = oldest {
            self.retired.remove(at);
        }
    }

    /// The first tokens of the cache that shares the longest beginning with `context`, if that is at least `least` tokens.
    pub(crate) fn prefix(&mut self, context: &[u32], least: usize, dim: usize, now: u64) -> Option<Cache> {
        let all = self.rows.values_mut().chain(&mut self.retired);
        let (common, best) = all.map(|cache| (cache.common(context), cache)).max_by_key(|(common, _)| *common)?;
        if common < least {
            return None;
        }
        best.used = now;
        let mut copy = best.prefix(common, dim);
        copy.used = now;
        Some(copy)
    }

    fn bytes(&self) -> usize {
        let all = self.rows.values().chain(&self.retired);
        all.map(|cache| self.shape.bytes(cache.tokens.len())).sum()
    }

    /// Drops the caches that have gone unused the longest until the rest and `needed` more bytes fit.
    pub(crate) fn shrink(&mut self, needed: usize) {
        let mut held = self.bytes();
        while held + needed > self.bound {
            let row = self.rows.iter().map(|(row, cache)| (cache.used, 1, *row)).min();
            let retired = self.retired.iter().enumerate().map(|(at, cache)| (cache.used, 0, at as u64)).min();
            let dropped = match (row, retired) {
                (row, Some((used, ..))) if row.is_none_or(|row| used <= row.0) => {
                    let at = self.retired.iter().position(|cache| cache.used == used);
                    at.map(|at| self.retired.remove(at))
                }
                (Some((.., row)), _) => self.rows.remove(&row),
                _ => None,
            };
            let Some(cache) = dropped else { return };
            held -= self.shape.bytes(cache.tokens.len());
        }
    }
}
