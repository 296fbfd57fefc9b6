//! How trajectories become micro-batches: each once, whole, and none beyond the budget unless it is one trajectory.

use proptest::prelude::*;
use rao_policy::distinct_tokens;
use rao_replay::trainer::{plan, plan_shared};

/// Sequences that share beginnings: few ids, so that many are alike.
fn sequences() -> impl Strategy<Value = Vec<Vec<u32>>> {
    prop::collection::vec(prop::collection::vec(0..2u32, 1..12), 1..16)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_plan_cuts_between_trajectories_and_within_the_budget(
        lengths in prop::collection::vec(1..12u64, 1..16),
        budget in 1..40u64,
    ) {
        let sizes = plan(&lengths, budget);
        prop_assert_eq!(sizes.iter().sum::<usize>(), lengths.len());
        let mut left = lengths.as_slice();
        for size in sizes {
            let (micro, rest) = left.split_at(size);
            prop_assert!(!micro.is_empty() && (micro.len() == 1 || micro.iter().sum::<u64>() <= budget), "{micro:?}");
            left = rest;
        }
    }

    #[test]
    fn a_shared_plan_takes_each_once_and_counts_what_is_distinct_in_each(
        sequences in sequences(),
        budget in 1..40u64,
    ) {
        let slices: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
        let micros = plan_shared(&slices, budget);
        let mut seen: Vec<usize> = micros.iter().flatten().copied().collect();
        seen.sort_unstable();
        prop_assert!(seen.iter().copied().eq(0..sequences.len()));
        for micro in &micros {
            let cost = distinct_tokens(micro.iter().map(|at| slices[*at])) as u64;
            prop_assert!(micro.len() == 1 || cost <= budget, "{cost} distinct tokens for a budget of {budget}");
        }
        prop_assert_eq!(plan_shared(&slices, budget), micros);
    }
}
