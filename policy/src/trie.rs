//! How the tokens of a batch become the rows of a pass: one row for each token, or one for each *distinct* token.
//!
//! Trajectories share beginnings: the same system prompt, the same task in a group, forks of one rollout. Laid out as a trie,
//! each shared beginning is a run of rows that stands once; a row attends to the rows on the path from its sequence's first
//! token. Since a row of any operation is a function of its own path alone (see the crate's root), sharing changes no bit of
//! any score. Gradients are sums over the rows, and equal those without sharing up to rounding.

use crate::Packed;

/// A run of consecutive rows whose positions follow one another.
///
/// Branches stand in depth-first order: one that starts at position `start` continues the first `start` positions of the path
/// that ended with the branch before it; one that starts at 0 begins anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Branch {
    /// The first row.
    pub(crate) row: usize,
    /// The position of the first row in its sequences.
    pub(crate) start: usize,
    /// Rows; at least 1.
    pub(crate) len: usize,
}

/// A token to score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pick {
    /// The place of the row that predicts it among [`Layout::wanted`].
    pub(crate) place: usize,
    /// Its id.
    pub(crate) id: u32,
}

/// The rows of a pass, and where the batch's targets are found in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The id of each row.
    pub(crate) ids: Vec<usize>,
    /// The position of each row in its sequences.
    pub(crate) positions: Vec<usize>,
    /// The rows in depth-first order.
    pub(crate) branches: Vec<Branch>,
    /// Rows that predict a target, each once, ascending.
    pub(crate) wanted: Vec<usize>,
    /// What is scored, each once, ascending.
    pub(crate) picks: Vec<Pick>,
    /// For each of the batch's targets, in its order, the pick that is it.
    pub(crate) targets: Vec<usize>,
}

impl Layout {
    /// Sequences end to end, every token a row.
    pub(crate) fn plain(packed: &Packed) -> Self {
        let mut layout = Self::default();
        for sequence in &packed.sequences {
            let row = layout.ids.len();
            layout.grow(&sequence.tokens, 0);
            for &target in &sequence.targets {
                layout.targets.push(layout.picks.len());
                layout.picks.push(Pick { place: layout.wanted.len(), id: sequence.tokens[target] });
                layout.wanted.push(row + target - 1);
            }
        }
        layout
    }

    /// Every distinct token a row. Sequences are laid out in the order of their ids, so that each finds what it shares with
    /// any other in the one before it.
    pub(crate) fn shared(packed: &Packed) -> Self {
        let sequences = &packed.sequences;
        let mut order: Vec<usize> = (0..sequences.len()).collect();
        order.sort_by_key(|at| (&sequences[*at].tokens, *at));
        let (mut layout, mut path, mut previous) = (Self::default(), Vec::<usize>::new(), &[][..]);
        let mut scored: Vec<Vec<(usize, u32)>> = vec![Vec::new(); sequences.len()];
        for at in order {
            let sequence = &sequences[at];
            let common = common(previous, &sequence.tokens);
            path.truncate(common);
            path.extend(layout.ids.len()..layout.ids.len() + sequence.tokens.len() - common);
            layout.grow(&sequence.tokens, common);
            scored[at] = sequence.targets.iter().map(|target| (path[target - 1], sequence.tokens[*target])).collect();
            previous = &sequence.tokens;
        }
        let mut distinct: Vec<(usize, u32)> = scored.iter().flatten().copied().collect();
        distinct.sort_unstable();
        distinct.dedup();
        for (row, id) in &distinct {
            if layout.wanted.last() != Some(row) {
                layout.wanted.push(*row);
            }
            layout.picks.push(Pick { place: layout.wanted.len() - 1, id: *id });
        }
        // Every scored token is among the distinct ones.
        layout.targets = scored.iter().flatten().map(|pick| distinct.partition_point(|other| other < pick)).collect();
        layout
    }

    fn grow(&mut self, tokens: &[u32], start: usize) {
        if start < tokens.len() {
            self.branches.push(Branch { row: self.ids.len(), start, len: tokens.len() - start });
        }
        self.ids.extend(tokens[start..].iter().map(|id| *id as usize));
        self.positions.extend(start..tokens.len());
    }

    /// Numbers of picks spread over the targets that they are.
    pub(crate) fn spread(&self, picks: &[f32]) -> Vec<f32> {
        self.targets.iter().map(|pick| picks[*pick]).collect()
    }

    /// Numbers of targets added up by pick, in f64 and in the batch's order.
    pub(crate) fn gather(&self, targets: &[f32]) -> Vec<f32> {
        let mut sums = vec![0f64; self.picks.len()];
        for (pick, number) in self.targets.iter().zip(targets) {
            sums[*pick] += f64::from(*number);
        }
        sums.into_iter().map(|sum| sum as f32).collect()
    }
}

/// Tokens that two sequences share from their start.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The rows that one pass with prefix sharing would have for these sequences.
#[must_use]
pub fn distinct_tokens<'a>(sequences: impl IntoIterator<Item = &'a [u32]>) -> usize {
    let mut all: Vec<&[u32]> = sequences.into_iter().collect();
    all.sort_unstable();
    let mut previous: &[u32] = &[];
    let mut count = 0;
    for tokens in all {
        count += tokens.len() - common(previous, tokens);
        previous = tokens;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PackedSequence;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn batch(sequences: &[(Vec<u32>, Vec<usize>)]) -> Packed {
        let sequence = |(tokens, targets): &(Vec<u32>, Vec<usize>)| PackedSequence {
            tokens: tokens.clone(),
            targets: targets.clone(),
        };
        Packed { sequences: sequences.iter().map(sequence).collect() }
    }

    #[test]
    fn shared_beginnings_stand_once() {
        let packed = batch(&[
            (vec![1, 2, 3, 4], vec![2, 3]),
            (vec![1, 2, 3, 5, 6], vec![3, 4]),
            (vec![9, 2], vec![1]),
            (vec![1, 2, 3], vec![2]),
            (vec![1, 2, 3, 4], vec![3]),
        ]);
        let layout = Layout::shared(&packed);
        // In the order of ids: [1 2 3], [1 2 3 4] twice, [1 2 3 5 6], [9 2].
        assert_eq!(layout.ids, [1, 2, 3, 4, 5, 6, 9, 2]);
        assert_eq!(layout.positions, [0, 1, 2, 3, 3, 4, 0, 1]);
        let branches: Vec<_> = layout.branches.iter().map(|b| (b.row, b.start, b.len)).collect();
        assert_eq!(branches, [(0, 0, 3), (3, 3, 1), (4, 3, 2), (6, 0, 2)]);
        assert_eq!(layout.wanted, [1, 2, 4, 6]);
        let picks: Vec<_> = layout.picks.iter().map(|pick| (pick.place, pick.id)).collect();
        assert_eq!(picks, [(0, 3), (1, 4), (1, 5), (2, 6), (3, 2)]);
        assert_eq!(layout.targets, [0, 1, 2, 3, 4, 0, 1]);
        assert_eq!(layout.gather(&[1.0; 7]), [2.0, 2.0, 1.0, 1.0, 1.0]);
        assert_eq!(layout.spread(&[1.0, 2.0, 3.0, 4.0, 5.0]), [1.0, 2.0, 3.0, 4.0, 5.0, 1.0, 2.0]);
        assert_eq!(distinct_tokens(packed.sequences.iter().map(|s| s.tokens.as_slice())), 8);
    }

    /// The tokens on the path to a row, read off the branches.
    fn paths(layout: &Layout) -> Vec<Vec<usize>> {
        let (mut path, mut all) = (Vec::new(), Vec::new());
        for branch in &layout.branches {
            path.truncate(branch.start);
            for row in branch.row..branch.row + branch.len {
                assert_eq!((row, layout.positions[row]), (all.len(), path.len()));
                path.push(layout.ids[row]);
                all.push(path.clone());
            }
        }
        all
    }

    proptest! {
        #[test]
        fn both_layouts_say_the_same(sequences in prop::collection::vec(prop::collection::vec(0u32..3, 2..9), 1..12)) {
            let with_targets: Vec<_> = sequences.iter().map(|s| (s.clone(), (1..s.len()).collect())).collect();
            let packed = batch(&with_targets);
            let prefixes: BTreeSet<&[u32]> = sequences.iter().flat_map(|s| (1..=s.len()).map(|n| &s[..n])).collect();
            let (plain, shared) = (Layout::plain(&packed), Layout::shared(&packed));
            prop_assert_eq!(plain.ids.len(), packed.tokens());
            prop_assert_eq!(shared.ids.len(), prefixes.len());
            prop_assert_eq!(distinct_tokens(sequences.iter().map(Vec::as_slice)), prefixes.len());
            for layout in [plain, shared] {
                let paths = paths(&layout);
                let mut targets = layout.targets.iter();
                for sequence in &sequences {
                    for at in 1..sequence.len() {
                        let pick = layout.picks[*targets.next().unwrap()];
                        let context: Vec<usize> = sequence[..at].iter().map(|id| *id as usize).collect();
                        prop_assert_eq!(&paths[layout.wanted[pick.place]], &context);
                        prop_assert_eq!(pick.id, sequence[at]);
                    }
                }
                prop_assert!(targets.next().is_none());
            }
        }
    }
}
