use super::*;
use crate::trie::Branch;
use proptest::prelude::*;

/// A number that looks random, of what came before.
fn mix(seed: u64, x: u64) -> u64 {
    let mut z = (seed ^ x).wrapping_add(0x9E37_79B9_7F4A_7C15).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z ^= z >> 29;
    z.wrapping_mul(0x94D0_49BB_1331_11EB) ^ (z >> 32)
}

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    (0..count as u64).map(|i| (mix(seed, i) >> 40) as f32 / (1 << 22) as f32 - 2.0).collect()
}

/// Queries, keys and values of the positions of `tokens`: a function of the tokens up to each.
pub(crate) fn rows_of(tokens: &[u32], layer: usize, heads: Heads) -> [Vec<f32>; 3] {
    let (mut seed, mut rows) = (layer as u64, [Vec::new(), Vec::new(), Vec::new()]);
    for token in tokens {
        seed = mix(seed, u64::from(*token));
        for (which, width) in [heads.q_width(), heads.kv_width(), heads.kv_width()].into_iter().enumerate() {
            rows[which].extend(numbers(seed + which as u64, width));
        }
    }
    rows
}

/// Tokens of a tree: two that agree in their first numbers begin alike.
fn tokens(branches: [u32; 2], lens: [usize; 3]) -> Vec<u32> {
    let part = |which: u32, len: usize| (0..len as u32).map(move |i| which * 1000 + i);
    let [root, twig, leaf] = lens;
    part(1, root).chain(part(2 + branches[0], twig)).chain(part(90 + branches[1], leaf)).collect()
}

fn tensor(numbers: &[f32], width: usize) -> Tensor {
    Tensor::from_slice(numbers, (numbers.len() / width, width), &Device::Cpu).unwrap()
}

/// What each position's attention gives to a sequence alone, without a cache.
fn alone(tokens: &[u32], layer: usize, heads: Heads) -> Vec<f32> {
    let [q, k, v] = rows_of(tokens, layer, heads);
    let (q, k, v) = (tensor(&q, heads.q_width()), tensor(&k, heads.kv_width()), tensor(&v, heads.kv_width()));
    let branch = Branch { row: 0, start: 0, len: tokens.len() };
    ops::path_attention(&q, &k, &v, heads, &[branch]).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// A row of a test: its cache, all of its tokens, and how many of them it has when the next pass is over.
struct Row {
    cache: Cache,
    text: Vec<u32>,
    upto: usize,
}

/// One pass of all rows; every position's result has the bits that it has alone, in every layer.
fn pass(rows: &mut [Row], shape: BlockShape, ledger: &Arc<Ledger>) {
    let heads = shape.heads;
    let (width, kv_width) = (heads.q_width(), heads.kv_width());
    let texts: Vec<_> = rows.iter().map(|row| (row.text[..row.upto].to_vec(), row.cache.tokens().len())).collect();
    let mut segments: Vec<Segment<'_>> = rows.iter_mut().map(segment).collect();
    let mut attend = CachedAttend::new(&mut segments, shape, ledger);
    for layer in 0..shape.layers {
        let mut all = [Vec::new(), Vec::new(), Vec::new()];
        let mut want = Vec::new();
        for (text, from) in &texts {
            let own = rows_of(text, layer, heads);
            for ((all, own), width) in all.iter_mut().zip(own).zip([width, kv_width, kv_width]) {
                all.extend_from_slice(&own[from * width..]);
            }
            want.extend_from_slice(&alone(text, layer, heads)[from * width..]);
        }
        let [q, k, v] = all;
        let (q, k, v) = (tensor(&q, width), tensor(&k, kv_width), tensor(&v, kv_width));
        let got: Vec<f32> = attend.attend(layer, heads, &q, &k, &v).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&got), bits(&want), "layer {layer}");
    }
    for row in rows {
        row.cache.extend(&row.text[row.cache.tokens().len()..row.upto]);
    }
}

fn segment(row: &mut Row) -> Segment<'_> {
    Segment { rows: row.upto - row.cache.tokens().len(), cache: &mut row.cache }
}

fn distinct<'a>(caches: impl Iterator<Item = &'a Cache>) -> usize {
    let all = caches.flat_map(|cache| cache.blocks().iter().map(|block| Arc::as_ptr(block).addr()));
    all.collect::<std::collections::BTreeSet<_>>().len()
}

fn heads() -> impl Strategy<Value = Heads> {
    let group = prop_oneof![1usize..=5, Just(8), Just(11)];
    let dim = prop_oneof![Just(4usize), Just(16), Just(20), Just(64)];
    (group, 1usize..3, dim).prop_map(|(group, kv_heads, dim)| Heads { heads: group * kv_heads, kv_heads, dim })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Rows that begin alike, some with what others hold, some without, some cut back, in passes of any sizes.
    #[test]
    fn results_do_not_depend_on_who_holds_the_blocks(
        heads in heads(),
        root in 0usize..70,
        rows in prop::collection::vec((0u32..2, 0usize..40, 0u32..9, 1usize..40), 1..9),
        passes in prop::collection::vec((prop::collection::vec((0usize..50, 0usize..6), 9), 1usize..3), 1..4),
    ) {
        let (shape, ledger) = (BlockShape { layers: 2, heads }, Arc::<Ledger>::default());
        let texts = rows.iter().map(|(twig, twigs, leaf, leaves)| tokens([*twig, *leaf], [root, *twigs, *leaves]));
        let mut all: Vec<Row> = texts.map(|text| Row { cache: Cache::default(), text, upto: 0 }).collect();
        for (steps, threads) in &passes {
            for (row, (new, _)) in all.iter_mut().zip(steps) {
                row.upto = (row.cache.tokens().len() + new).min(row.text.len());
            }
            // Each row is a segment with rows of its own: one that has nothing new sits this pass out.
            let (mut going, waiting): (Vec<Row>, Vec<Row>) =
                all.into_iter().partition(|row| row.upto > row.cache.tokens().len());
            let pool = rayon::ThreadPoolBuilder::new().num_threads(*threads).build().unwrap();
            pool.install(|| pass(&mut going, shape, &ledger));
            all = going.into_iter().chain(waiting).collect();
            for (at, (_, act)) in (0..all.len()).zip(steps) {
                let other = (at + 1) % all.len();
                match act {
                    0 => {
                        let len = all[at].cache.tokens().len() / 2;
                        all[at].cache.truncate(len);
                    }
                    1 => all[at].cache.forget_block(),
                    2 | 3 => {
                        let (other, text) = (all[other].cache.clone(), all[at].text.clone());
                        all[at].cache.share(&other, &text);
                        let (own, common) = (&all[at].cache, other.common(&text));
                        prop_assert!(own.tokens().len() >= common && text.starts_with(own.tokens()));
                        let shared = own.blocks().iter().zip(other.blocks()).take_while(|(a, b)| Arc::ptr_eq(a, b));
                        prop_assert!(shared.count() >= common / TOKENS);
                    }
                    _ => {}
                }
            }
            prop_assert_eq!(ledger.held(), distinct(all.iter().map(|row| &row.cache)));
        }
    }
}

/// A beginning that many rows share is read once a tile, whatever its length; what a row has alone, by the row alone.
#[test]
fn shared_blocks_are_read_together() {
    let heads = Heads { heads: 9, kv_heads: 3, dim: 4 };
    let (shape, ledger) = (BlockShape { layers: 1, heads }, Arc::<Ledger>::default());
    let text = |row: u32| tokens([row / 16, row], [3 * TOKENS, TOKENS, 5]);
    let mut first = [Row { cache: Cache::default(), text: text(0), upto: 3 * TOKENS + 5 }];
    pass(&mut first, shape, &ledger);
    let mut rows: Vec<Row> =
        (0..32).map(|row| Row { cache: first[0].cache.fork(3 * TOKENS), text: text(row), upto: 4 * TOKENS }).collect();
    pass(&mut rows, shape, &ledger);
    let twigs = [rows[0].cache.clone(), rows[16].cache.clone()];
    for (at, row) in rows.iter_mut().enumerate() {
        row.cache.share(&twigs[at / 16], &row.text);
        row.upto = row.text.len();
    }
    pass(&mut rows, shape, &ledger);
    assert_eq!(ledger.held(), 3 + 2 + 32 + 1);
    let mut segments: Vec<Segment<'_>> =
        rows.iter_mut().map(|row| Segment { cache: &mut row.cache, rows: 1 }).collect();
    let plan = CachedAttend::new(&mut segments, shape, &ledger).plan;
    let reads = |tile: &ops::PagedTile| tile.spans.iter().map(|span| span.blocks.len()).sum::<usize>();
    // Three tiles of twelve rows read the root once; one of them has rows of both twigs.
    assert_eq!(plan.tiles.len(), 3);
    assert_eq!(plan.tiles.iter().map(reads).sum::<usize>(), 3 * 3 + 4 + 32);
}
