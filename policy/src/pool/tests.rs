use super::*;
use crate::kv::tests::rows_of;
use crate::ops::{Heads, TOKENS};
use proptest::prelude::*;
use std::collections::BTreeSet;

const HEADS: Heads = Heads { heads: 2, kv_heads: 2, dim: 18 };
const SHAPE: BlockShape = BlockShape { layers: 2, heads: HEADS };
const ROWS: u64 = 5;

/// The pool, and the plainest thing that does the same: what each row was last given, and what has ended.
struct Both {
    pool: Pool,
    live: BTreeMap<u64, Cache>,
    rows: BTreeMap<u64, Vec<u32>>,
    ended: Vec<Vec<u32>>,
    now: u64,
}

#[derive(Clone, Debug)]
enum Act {
    /// Serve the row with a context of the tree.
    Serve {
        row: u64,
        twig: u32,
        len: usize,
    },
    /// The row goes on from what it holds.
    Extend {
        row: u64,
        new: usize,
    },
    /// The row's serving is over.
    Put(u64),
    Retire(u64),
    Shrink(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => (0..ROWS, 0u32..3, 1usize..150).prop_map(|(row, twig, len)| Act::Serve { row, twig, len }),
        2 => (0..ROWS, 1usize..40).prop_map(|(row, new)| Act::Extend { row, new }),
        3 => (0..ROWS).prop_map(Act::Put),
        1 => (0..ROWS).prop_map(Act::Retire),
        1 => (0usize..8).prop_map(Act::Shrink),
    ];
    prop::collection::vec(act, 1..60)
}

/// Contexts begin alike for 40 tokens, those of a twig for 90.
fn context(twig: u32, row: u64, len: usize) -> Vec<u32> {
    let token = |at: usize| {
        at as u32 + if at < 40 { 0 } else { 1000 * (twig + 1) } + if at < 90 { 0 } else { 9000 * row as u32 }
    };
    (0..len).map(token).collect()
}

/// As a pass does: makes room, writes all layers, then counts the tokens.
fn extend(cache: &mut Cache, new: &[u32], ledger: &Arc<Ledger>) {
    let held = cache.tokens().len();
    cache.make_room(new.len(), SHAPE, ledger);
    let all = [cache.tokens(), new].concat();
    for layer in 0..SHAPE.layers {
        let [_, k, v] = rows_of(&all, layer, HEADS);
        let width = HEADS.kv_width();
        cache.write(SHAPE, layer, k.chunks_exact(width).zip(v.chunks_exact(width)).skip(held));
    }
    cache.extend(new);
}

impl Both {
    fn act(&mut self, act: &Act) {
        let Self { pool, live, rows, ended, now } = self;
        *now += 1;
        match *act {
            Act::Serve { row, twig, len } => {
                let (context, held) = (context(twig, row, len), live.remove(&row).or_else(|| pool.take(row)));
                let mut cache = held.unwrap_or_default();
                cache.truncate(cache.common(&context));
                if let Some(longer) = pool.beginning(&context, cache.tokens().len()) {
                    assert!(longer.tokens().len() > cache.tokens().len() && context.starts_with(longer.tokens()));
                    cache = longer;
                }
                let held = cache.tokens().len();
                extend(&mut cache, &context[held..], pool.ledger());
                rows.remove(&row);
                live.insert(row, cache);
            }
            Act::Extend { row, new } => {
                if let Some(cache) = live.get_mut(&row) {
                    let new: Vec<u32> = (0..new as u32).map(|i| 77_000 + i).collect();
                    extend(cache, &new, pool.ledger());
                }
            }
            Act::Put(row) => {
                if let Some(cache) = live.remove(&row) {
                    rows.insert(row, cache.tokens().to_vec());
                    pool.put(row, cache, *now);
                }
            }
            Act::Retire(row) => {
                ended.extend(rows.remove(&row));
                pool.retire(row);
            }
            Act::Shrink(more) => pool.shrink(more),
        }
    }

    /// Every cache holds what its tokens say; the pool's are beginnings of what was put there; every block counts once.
    fn check(&self, act: &Act) -> Result<(), TestCaseError> {
        let Self { pool, live, rows, ended, .. } = self;
        for (row, cache) in &pool.rows {
            prop_assert!(rows.get(row).is_some_and(|put| put.starts_with(cache.tokens())), "row {row}");
        }
        for cache in &pool.retired {
            prop_assert!(ended.iter().any(|put| put.starts_with(cache.tokens())));
        }
        let all: Vec<&Cache> = pool.rows.values().chain(&pool.retired).chain(live.values()).collect();
        let blocks = all.iter().flat_map(|cache| cache.blocks()).map(|block| Arc::as_ptr(block).addr());
        prop_assert_eq!(pool.ledger().held(), blocks.collect::<BTreeSet<_>>().len());
        for cache in all {
            prop_assert_eq!(cache.blocks().len(), BlockShape::blocks(cache.tokens().len()));
            for layer in 0..SHAPE.layers {
                let [_, k, v] = rows_of(cache.tokens(), layer, HEADS);
                let read = |at: usize| cache.blocks()[at / TOKENS].read(SHAPE, layer, at % TOKENS);
                let (keys, values): (Vec<_>, Vec<_>) = (0..cache.tokens().len()).map(read).unzip();
                prop_assert!(keys.concat() == k && values.concat() == v, "layer {}", layer);
            }
        }
        if let Act::Shrink(more) = act {
            let empty = pool.rows.is_empty() && pool.retired.is_empty();
            prop_assert!(empty || pool.ledger().held() + more <= pool.blocks());
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn caches_hold_what_was_written_and_blocks_count_once(acts in acts(), bound in 0usize..20) {
        let bytes = bound * SHAPE.bytes() + 5;
        let (pool, live) = (Pool::new(bytes, SHAPE), BTreeMap::new());
        let mut both = Both { pool, live, rows: BTreeMap::new(), ended: Vec::new(), now: 0 };
        for act in &acts {
            both.act(act);
            both.check(act)?;
        }
        // With nothing live, the pool keeps its bound.
        for row in 0..ROWS {
            both.act(&Act::Put(row));
        }
        both.act(&Act::Shrink(0));
        prop_assert!(both.pool.ledger().held() <= bound);
        prop_assert_eq!(both.pool.blocks(), bound);
    }
}

/// A pool with room for `bound` blocks that holds rows of the same 40 tokens, row by row in calls 1, 2, ..
fn filled(bound: usize, lens: &[usize]) -> Pool {
    let mut pool = Pool::new(bound * SHAPE.bytes(), SHAPE);
    for (row, len) in lens.iter().enumerate() {
        let context = context(row as u32, 0, *len);
        let mut cache = pool.beginning(&context, 0).unwrap_or_default();
        let held = cache.tokens().len();
        extend(&mut cache, &context[held..], &pool.ledger().clone());
        pool.put(row as u64, cache, row as u64 + 1);
    }
    pool
}

fn lens(pool: &Pool) -> Vec<(u64, usize)> {
    pool.rows.iter().map(|(row, cache)| (*row, cache.tokens().len())).collect()
}

#[test]
fn what_has_gone_unused_the_longest_goes_first_and_from_its_end() {
    // One block of the beginning for all; then two, one and one of their own.
    let mut pool = filled(9, &[90, 64, 50]);
    assert_eq!(pool.ledger().held(), 1 + 2 + 1 + 1);
    pool.shrink(5);
    assert_eq!(lens(&pool), [(0, 64), (1, 64), (2, 50)]);
    // The beginning, which the others use, is forgotten with the row but stays.
    pool.shrink(6);
    assert_eq!(lens(&pool), [(0, 32), (1, 64), (2, 50)]);
    pool.shrink(7);
    assert_eq!(lens(&pool), [(0, 32), (1, 32), (2, 50)]);
    assert_eq!(pool.ledger().held(), 2);
    // What is live is not the pool's to drop.
    let live = pool.take(2);
    pool.shrink(9);
    assert_eq!((lens(&pool), pool.ledger().held()), (vec![], 2));
    drop(live);
    assert_eq!(pool.ledger().held(), 0);
}

#[test]
fn of_ended_rows_those_that_others_cover_are_dropped() {
    let mut pool = filled(99, &[120, 120]);
    pool.retire(0);
    pool.retire(1);
    assert_eq!((pool.retired.len(), pool.ledger().held()), (2, 1 + 3 + 3));
    let shorter = pool.beginning(&context(0, 0, 100), 0).unwrap();
    assert_eq!(shorter.tokens().len(), 100);
    pool.put(7, shorter, 9);
    pool.retire(7);
    assert_eq!(pool.retired.len(), 2);
    let mut longer = pool.beginning(&context(1, 0, 130), 0).unwrap();
    extend(&mut longer, &context(1, 0, 130)[120..], &pool.ledger().clone());
    pool.put(8, longer, 9);
    pool.retire(8);
    assert_eq!((pool.retired.len(), pool.ledger().held()), (2, 1 + 3 + 4));
    assert!(pool.beginning(&context(1, 0, 130), 130).is_none());
}
