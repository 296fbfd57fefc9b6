//! Numbered semantics of the learning rule (arXiv 2605.06639), each naming its equation, and the rule against a
//! reference of ten lines on random batches.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use proptest::prelude::*;
use rao_replay::credit::{self, CreditError, Node, Options, Scored};

fn node(parent: Option<usize>, success: f64) -> Node {
    Node { parent, success, tokens: 1 }
}

fn leaf(success: f64) -> Vec<Node> {
    vec![node(None, success)]
}

fn plain(groups: &[Vec<Vec<Node>>], lambda: f64) -> credit::Credit {
    credit::credit(groups, lambda, Options::default()).unwrap()
}

#[test]
fn s1_eq1_adds_lambda_times_the_mean_of_the_childrens_success() {
    let tree = [node(None, 1.0), node(Some(0), 0.0), node(Some(0), 1.0)];
    assert_eq!(credit::rewards(&tree, 0.4).unwrap()[0].reward, 1.2);
}

#[test]
fn s2_eq1_has_no_bonus_without_children() {
    let reward = credit::rewards(&leaf(1.0), 0.4).unwrap()[0];
    assert_eq!((reward.children, reward.child_mean, reward.reward), (0, 0.0, 1.0));
}

#[test]
fn s3_eq1_takes_raw_success_so_the_bonus_does_not_compound() {
    let tree = [node(None, 0.0), node(Some(0), 0.0), node(Some(1), 1.0)];
    let rewards = credit::rewards(&tree, 0.5).unwrap();
    assert_eq!(rewards.iter().map(|r| r.reward).collect::<Vec<_>>(), [0.0, 0.5, 1.0]);
}

#[test]
fn s4_eq1_is_a_mean_so_more_children_earn_no_more() {
    let wide =
        |n: usize| std::iter::once(node(None, 1.0)).chain((0..n).map(|_| node(Some(0), 1.0))).collect::<Vec<_>>();
    let of = |n| credit::rewards(&wide(n), 0.4).unwrap()[0].reward;
    assert_eq!(of(1), of(9));
}

#[test]
fn s5_eq3_leaves_the_own_tree_out_of_the_baseline() {
    let group = [1.0, 0.0, 1.0, 0.0].map(leaf).to_vec();
    let got = plain(&[group], 0.0);
    let (third, two) = (1.0 / 3.0, 2.0 / 3.0);
    assert_eq!(got.rows.iter().map(|r| r.baseline).collect::<Vec<_>>(), [third, two, third, two]);
}

#[test]
fn s6_eq3_gives_a_child_its_own_reward_over_its_trees_baseline() {
    let mut group = [1.0, 0.0, 1.0, 0.0].map(leaf).to_vec();
    group[1].push(node(Some(0), 1.0));
    let child = plain(&[group], 0.0).rows.into_iter().find(|row| row.depth == 1).unwrap();
    assert_eq!(child.baseline, 2.0 / 3.0);
    assert!((child.advantage - 1.0 / 3.0).abs() < 1e-15, "positive although its root failed");
}

#[test]
fn s7_eq3_baseline_holds_the_roots_bonus_too() {
    let bonus = vec![node(None, 1.0), node(Some(0), 1.0)];
    let got = plain(&[vec![bonus, leaf(0.0)]], 0.25);
    assert_eq!(got.rows.last().unwrap().baseline, 1.25);
}

#[test]
fn s8_eq3_does_not_divide_by_a_deviation() {
    let got = plain(&[vec![leaf(0.5), leaf(0.25)]], 0.0);
    assert_eq!(got.rows.iter().map(|r| r.advantage).collect::<Vec<_>>(), [0.25, -0.25]);
}

#[test]
fn s9_eq4_weighs_depths_by_inverse_frequency_over_the_whole_batch() {
    // Two groups of two trees: 4 roots, 8 children, 4 grandchildren in all.
    let tree = || vec![node(None, 1.0), node(Some(0), 1.0), node(Some(0), 0.0), node(Some(1), 1.0)];
    let got = plain(&[vec![tree(), tree()], vec![tree(), tree()]], 0.0);
    let weights: Vec<(u64, f64)> = got.depths.iter().map(|d| (d.count, d.weight)).collect();
    assert_eq!(weights, [(4, 4.0 / 3.0), (8, 2.0 / 3.0), (4, 4.0 / 3.0)]);
    assert_eq!(got.rows.iter().map(|r| r.weight).sum::<f64>(), 16.0, "the weights of a batch add up to its size");
}

#[test]
fn s10_eq4_counts_depths_that_have_a_trajectory_only() {
    // The children generated nothing: depth 1 is empty, depth 2 is not.
    let tree = || vec![node(None, 1.0), Node { parent: Some(0), success: 0.0, tokens: 0 }, node(Some(1), 1.0)];
    let got = plain(&[vec![tree(), tree()]], 0.0);
    assert_eq!(got.depths.iter().map(|d| (d.depth, d.weight)).collect::<Vec<_>>(), [(0, 1.0), (2, 1.0)]);
}

#[test]
fn s11_eq1_counts_a_token_less_child_that_eq3_has_no_row_for() {
    let tree = || vec![node(None, 1.0), Node { parent: Some(0), success: 1.0, tokens: 0 }, node(Some(0), 0.0)];
    let got = plain(&[vec![tree(), tree()]], 0.5);
    assert_eq!(got.rows.len(), 4);
    assert_eq!(got.rows[0].reward, 1.25);
}

#[test]
fn s12_eq3_leaves_out_a_group_of_one_and_eq4_does_not_count_it() {
    let got = plain(&[vec![leaf(1.0)], vec![leaf(1.0), leaf(0.0)]], 0.0);
    assert_eq!((got.single_groups, got.rows.len(), got.rows[0].group), (1, 2, 1));
    assert_eq!(got.depths[0].count, 2);
}

#[test]
fn s13_eq4_can_be_turned_off_and_flat_groups_left_out() {
    let tree = || vec![node(None, 1.0), node(Some(0), 1.0), node(Some(0), 0.0)];
    let groups = [vec![tree(), tree()], vec![leaf(1.0), leaf(1.0)]];
    let off = credit::credit(&groups, 0.0, Options { depth_weighting: false, ..Options::default() }).unwrap();
    assert!(off.rows.iter().all(|row| row.weight == 1.0));
    assert_eq!(off.rows[0].count, 4, "depths are counted all the same");
    let filtered = credit::credit(&groups, 0.0, Options { drop_flat_groups: true, ..Options::default() }).unwrap();
    assert_eq!((filtered.flat_groups, filtered.depths[0].count), (1, 2), "group 2 has no spread; group 1 has");
}

#[test]
fn s14_numbers_outside_the_equations_are_refused_by_name() {
    assert_eq!(credit::depths(&[node(None, 1.0), node(None, 1.0)]), Err(CreditError::Roots { roots: 2 }));
    let cycle = [node(None, 1.0), node(Some(2), 1.0), node(Some(1), 1.0)];
    assert_eq!(credit::depths(&cycle), Err(CreditError::Parent { node: 1, parent: 2 }));
    assert_eq!(credit::rewards(&leaf(1.5), 0.0), Err(CreditError::Success { node: 0, success: 1.5 }));
    assert_eq!(credit::rewards(&leaf(1.0), -0.1), Err(CreditError::Lambda { lambda: -0.1 }));
    let nan = Scored { depth: 0, reward: f64::NAN, tokens: 1 };
    assert!(matches!(
        credit::assign(&[vec![vec![nan], vec![nan]]], Options::default()),
        Err(CreditError::NotFinite { .. })
    ));
}

/// The rule as one would write it on paper: (group, tree, node) with advantage and weight.
fn reference(groups: &[Vec<Vec<Node>>], lambda: f64) -> Vec<((usize, usize, usize), f64, f64)> {
    let mean = |v: Vec<f64>| if v.is_empty() { 0.0 } else { v.iter().sum::<f64>() / v.len() as f64 };
    let kids = |t: &[Node], n: usize| t.iter().filter(|c| c.parent == Some(n)).map(|c| c.success).collect();
    let r = |t: &[Node], n: usize| t[n].success + lambda * mean(kids(t, n));
    let depth = |t: &[Node], n: usize| std::iter::successors(t[n].parent, |&p| t[p].parent).count();
    let root = |t: &[Node]| r(t, t.iter().position(|n| n.parent.is_none()).unwrap());
    let live: Vec<(usize, usize, usize)> = groups
        .iter()
        .enumerate()
        .filter(|(_, g)| g.len() > 1)
        .flat_map(|(g, trees)| {
            trees
                .iter()
                .enumerate()
                .flat_map(move |(t, tree)| (0..tree.len()).filter(|&n| tree[n].tokens > 0).map(move |n| (g, t, n)))
        })
        .collect();
    let ds: Vec<usize> = live.iter().map(|&(g, t, n)| depth(&groups[g][t], n)).collect();
    let levels = ds.iter().collect::<std::collections::BTreeSet<_>>().len();
    live.iter()
        .zip(&ds)
        .map(|(&(g, t, n), d)| {
            let others = groups[g].iter().enumerate().filter(|(o, _)| *o != t).map(|(_, o)| root(o)).collect();
            let same = ds.iter().filter(|e| *e == d).count();
            ((g, t, n), r(&groups[g][t], n) - mean(others), ds.len() as f64 / (levels * same) as f64)
        })
        .collect()
}

fn trees() -> impl Strategy<Value = Vec<Vec<Vec<Node>>>> {
    let node = (any::<prop::sample::Index>(), 0..5u8, 0..4u64);
    let tree = prop::collection::vec(node, 1..14).prop_map(|raw| {
        raw.into_iter()
            .enumerate()
            .map(|(at, (up, success, tokens))| Node {
                parent: (at > 0).then(|| up.index(at)),
                success: f64::from(success) / 4.0,
                tokens,
            })
            .collect::<Vec<Node>>()
    });
    prop::collection::vec(prop::collection::vec(tree, 1..5), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn p1_the_rule_equals_the_reference(groups in trees(), lambda in 0..5u8) {
        let lambda = f64::from(lambda) / 4.0;
        let got = credit::credit(&groups, lambda, Options::default()).unwrap();
        let expected = reference(&groups, lambda);
        prop_assert_eq!(got.rows.len(), expected.len());
        for (row, (place, advantage, weight)) in got.rows.iter().zip(expected) {
            prop_assert_eq!((row.group, row.tree, row.node), place);
            prop_assert!((row.advantage - advantage).abs() < 1e-12);
            prop_assert!((row.weight - weight).abs() < 1e-12);
        }
        let again = credit::credit(&groups, lambda, Options::default()).unwrap();
        prop_assert_eq!(format!("{:?}", got), format!("{:?}", again), "recomputation is bit for bit");
    }
}
