//! How trajectories become micro-batches: in a fixed order that depends on nothing but the trajectories and the budget.
//!
//! Without prefix sharing a micro-batch is a run of consecutive trajectories. With it, trajectories are taken in windows of
//! consecutive ones; inside a window they are sorted by their tokens, so that what they share stands side by side, and cut
//! where the *distinct* tokens reach the budget. Outcomes go back into the batch's order.

use rao_policy::distinct_tokens;

/// Summed tokens of a window, in budgets of a micro-batch. Ids only: a window of the default budget takes a quarter of a
/// megabyte.
const WINDOW: u64 = 64;

/// How a step is computed. Of these only the budget and the sharing decide rounding; none decides a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    /// Tokens of a micro-batch; a longer trajectory is one of its own.
    pub micro_tokens: u64,
    /// Compute each prefix that trajectories share once.
    pub share_prefixes: bool,
    /// Keep only each block's input for the backward pass.
    pub checkpoints: bool,
    /// Micro-batches computed side by side.
    pub lanes: usize,
}

/// How many consecutive trajectories each micro-batch takes without sharing: as few micro-batches as the budget allows, about
/// equally long. Depends on nothing but the lengths and the budget.
#[must_use]
pub fn plan(lengths: &[u64], budget: u64) -> Vec<usize> {
    let total: u64 = lengths.iter().sum();
    let parts = total.div_ceil(budget.max(1)).max(1);
    let even = total.div_ceil(parts);
    let (mut sizes, mut size, mut held) = (Vec::new(), 0, 0);
    for &length in lengths {
        if size > 0 && (held >= even || held + length > budget) {
            sizes.push(size);
            (size, held) = (0, 0);
        }
        size += 1;
        held += length;
    }
    if size > 0 {
        sizes.push(size);
    }
    sizes
}

/// How many consecutive trajectories each window takes.
pub(crate) fn windows(lengths: &[u64], batching: &Batching) -> Vec<Vec<usize>> {
    if !batching.share_prefixes {
        // One window a wave: the micro-batches are the plan's, whatever the number of lanes.
        return plan(lengths, batching.micro_tokens).chunks(batching.lanes.max(1)).map(<[usize]>::to_vec).collect();
    }
    let limit = batching.micro_tokens.saturating_mul(WINDOW);
    let (mut all, mut size, mut held) = (Vec::new(), 0, 0u64);
    for &length in lengths {
        if size > 0 && held.saturating_add(length) > limit {
            all.push(vec![size]);
            (size, held) = (0, 0);
        }
        size += 1;
        held = held.saturating_add(length);
    }
    if size > 0 {
        all.push(vec![size]);
    }
    all
}

/// The micro-batches of a window of token sequences, as places in it: sorted by their tokens and cut at the budget of
/// distinct tokens, into as few as the budget allows and about equally long.
#[must_use]
pub fn plan_shared(sequences: &[&[u32]], budget: u64) -> Vec<Vec<usize>> {
    let mut order: Vec<(&[u32], usize)> = sequences.iter().enumerate().map(|(at, tokens)| (*tokens, at)).collect();
    order.sort_unstable();
    let total = distinct_tokens(sequences.iter().copied()) as u64;
    let even = total.div_ceil(total.div_ceil(budget.max(1)).max(1));
    let (mut all, mut micro, mut held) = (Vec::new(), Vec::new(), 0u64);
    let mut previous: &[u32] = &[];
    for (tokens, at) in order {
        let common = previous.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let more = (tokens.len() - common) as u64;
        if !micro.is_empty() && (held >= even || held + more > budget) {
            all.push(std::mem::take(&mut micro));
            held = 0;
        }
        held += if micro.is_empty() { tokens.len() as u64 } else { more };
        micro.push(at);
        previous = tokens;
    }
    if !micro.is_empty() {
        all.push(micro);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_keeps_the_order_and_the_budget() {
        assert_eq!(plan(&[], 10), Vec::<usize>::new());
        assert_eq!(plan(&[3, 3, 3, 3], 100), [4]);
        assert_eq!(plan(&[5, 5, 5, 5], 10), [2, 2]);
        assert_eq!(plan(&[50, 1, 1], 10), [1, 2], "a trajectory over the budget stands alone");
        assert_eq!(plan(&[6, 6, 6, 6], 14), [2, 2]);
        assert_eq!(plan(&[4, 4, 4, 4, 4], 12), [3, 2], "two micro-batches about as long as each other");
        let lengths: Vec<u64> = (1..200).map(|i| i * 7 % 93 + 1).collect();
        let sizes = plan(&lengths, 128);
        assert_eq!(sizes.iter().sum::<usize>(), lengths.len());
        let mut left = lengths.as_slice();
        for size in sizes {
            let (micro, rest) = left.split_at(size);
            assert!(micro.len() == 1 || micro.iter().sum::<u64>() <= 128);
            left = rest;
        }
    }

    /// Four tasks whose members share 60 of 80 tokens, interleaved.
    fn groups() -> Vec<Vec<u32>> {
        let sequence = |at: u32| {
            let (task, member) = (at % 4, at / 4);
            (0..60).map(|i| task * 100 + i).chain((0..20).map(|i| 1000 + member * 50 + i)).collect()
        };
        (0..32).map(sequence).collect()
    }

    #[test]
    fn sharing_survives_the_budget() {
        let sequences = groups();
        let slices: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
        let micros = plan_shared(&slices, 220);
        let mut seen: Vec<usize> = micros.iter().flatten().copied().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..32).collect::<Vec<_>>(), "each trajectory once");
        let cost = |micro: &[usize]| distinct_tokens(micro.iter().filter_map(|at| slices.get(*at).copied()));
        for micro in &micros {
            assert!(cost(micro) <= 220, "{}", cost(micro));
        }
        // 4 x 60 + 32 x 20 = 880 tokens are distinct; every cut costs one shared beginning again.
        let all: usize = micros.iter().map(|micro| cost(micro)).sum();
        assert!(all <= 880 + 60 * (micros.len() - 1) && micros.len() <= 6, "{all} in {} micro-batches", micros.len());
        assert_eq!(plan_shared(&[&[1; 50], &[2]], 10).len(), 2, "a trajectory over the budget stands alone");
        assert!(plan_shared(&[], 10).is_empty());
        // An even share would be 90: two of them fit that no better than the budget.
        assert_eq!(
            plan_shared(&[&[1; 60], &[2; 60], &[3; 60]], 100).len(),
            3,
            "the budget counts for more than evenness"
        );
    }

    #[test]
    fn windows_take_every_trajectory_in_order() {
        let batching = Batching { micro_tokens: 10, share_prefixes: true, checkpoints: false, lanes: 2 };
        assert_eq!(windows(&[300, 300, 300, 2000, 1], &batching), [vec![2], vec![1], vec![1], vec![1]]);
        assert_eq!(windows(&[320, 320, 1], &batching), [vec![2], vec![1]], "a window is 64 budgets and no token more");
        assert_eq!(windows(&[320, 319, 1], &batching), [vec![3]]);
        let plain = Batching { share_prefixes: false, ..batching };
        assert_eq!(windows(&[5, 5, 5, 5, 5], &plain), [vec![2, 2], vec![1]]);
    }
}
