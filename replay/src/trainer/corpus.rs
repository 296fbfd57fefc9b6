//! The trajectories of supervised training: an index over the log, with as many token sequences in memory as fit.

use std::collections::{BTreeMap, BTreeSet};

use rao_store::event::Event;
use rao_store::{Address, Digest, EventSource, Filter, NodePath, RolloutId, RunId, Seq, Stream};

use super::fold::{Folded, NodeNumbers};
use super::trajectory::{KINDS, Trajectory, node_of};
use super::{Resources, SftFilter, TrainError};

/// Token ids in as few bytes as they need.
#[derive(Clone, Debug)]
enum Ids {
    Short(Box<[u16]>),
    Long(Box<[u32]>),
}

impl Ids {
    fn new(tokens: &[u32]) -> Self {
        let short: Result<Box<[u16]>, _> = tokens.iter().map(|id| u16::try_from(*id)).collect();
        short.map_or_else(|_| Ids::Long(tokens.into()), Ids::Short)
    }

    fn bytes(&self) -> usize {
        match self {
            Ids::Short(ids) => 2 * ids.len(),
            Ids::Long(ids) => 4 * ids.len(),
        }
    }

    fn to_vec(&self) -> Vec<u32> {
        match self {
            Ids::Short(ids) => ids.iter().map(|id| u32::from(*id)).collect(),
            Ids::Long(ids) => ids.to_vec(),
        }
    }
}

#[derive(Clone, Debug)]
enum Held {
    /// Ids, and the ranges that the node generated.
    Memory(Ids, Box<[(u32, u32)]>),
    /// Positions of the events to read again.
    Log(Box<[u64]>),
}

/// A trajectory to learn from.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// The run.
    pub(crate) run: RunId,
    /// The rollout.
    pub(crate) rollout: RolloutId,
    /// The node.
    pub(crate) node: NodePath,
    /// Tokens that the node generated.
    pub(crate) tokens: u64,
    /// Length of its sequence.
    pub(crate) length: u64,
    held: Held,
}

/// The index.
pub(crate) struct Corpus<'a> {
    source: &'a dyn EventSource,
    /// The trajectories: runs in the order given, rollouts by number, nodes by path.
    pub(crate) items: Vec<Item>,
    /// Digest over what the trajectories are: equal corpora give equal digests.
    pub(crate) digest: Digest,
    /// Trajectories whose tokens are read from the log each time.
    pub(crate) uncached: u64,
}

impl<'a> Corpus<'a> {
    /// Indexes the folded runs' nodes that pass the filter.
    ///
    /// # Errors
    /// When an event cannot be read or breaks a node's sequence.
    pub(crate) fn build(
        source: &'a dyn EventSource,
        folded: &Folded,
        filter: SftFilter,
        resources: &Resources,
    ) -> Result<Self, TrainError> {
        let mut corpus = Corpus { source, items: Vec::new(), digest: Digest([0; 32]), uncached: 0 };
        let mut left = resources.cache_bytes();
        for rollout in &folded.rollouts {
            let wanted: BTreeSet<&NodePath> =
                rollout.nodes.iter().filter(|node| admits(filter, node)).map(|node| &node.node).collect();
            if !wanted.is_empty() {
                corpus.index(rollout.run, rollout.rollout, &wanted, &mut left)?;
            }
        }
        corpus.digest = corpus.content(folded);
        Ok(corpus)
    }

    fn index(
        &mut self,
        run: RunId,
        rollout: RolloutId,
        wanted: &BTreeSet<&NodePath>,
        left: &mut usize,
    ) -> Result<(), TrainError> {
        let mut nodes = BTreeMap::<NodePath, (Trajectory, Vec<u64>)>::new();
        for event in self.source.events(Stream::Rollout(run, rollout), Seq(0), &Filter::kinds(KINDS)) {
            let event = event?;
            let Some(path) = node_of(&event.body).filter(|path| wanted.contains(path)) else { continue };
            let (trajectory, seqs) = nodes.entry(path.clone()).or_default();
            trajectory.apply(&event)?;
            seqs.push(event.seq.0);
        }
        for (node, (mut trajectory, seqs)) in nodes {
            trajectory.cut();
            let (tokens, length) = (trajectory.targets.len() as u64, trajectory.tokens.len() as u64);
            let ids = Ids::new(&trajectory.tokens);
            let held = if ids.bytes() <= *left {
                *left -= ids.bytes();
                Held::Memory(ids, ranges(&trajectory.targets))
            } else {
                self.uncached += 1;
                Held::Log(seqs.into())
            };
            self.items.push(Item { run, rollout, node, tokens, length, held });
        }
        Ok(())
    }

    fn content(&self, folded: &Folded) -> Digest {
        let mut hasher = blake3::Hasher::new();
        for (_, content) in &folded.runs {
            hasher.update(&content.0);
        }
        for item in &self.items {
            hasher.update(format!("{} {} {}\n", item.rollout, item.node, item.tokens).as_bytes());
        }
        Digest(*hasher.finalize().as_bytes())
    }

    /// One trajectory's tokens; its stored log-probabilities are left out.
    ///
    /// # Errors
    /// When it is not in memory and cannot be read from the log.
    pub(crate) fn trajectory(&self, item: &Item) -> Result<Trajectory, TrainError> {
        match &item.held {
            Held::Memory(ids, ranges) => {
                let targets = ranges.iter().flat_map(|(start, end)| *start as usize..*end as usize).collect();
                Ok(Trajectory { tokens: ids.to_vec(), targets, stored: Vec::new() })
            }
            Held::Log(seqs) => {
                let mut trajectory = Trajectory::default();
                for &seq in seqs {
                    let address = Address { stream: Stream::Rollout(item.run, item.rollout), seq: Seq(seq) };
                    let event: Event = self.source.event(address)?;
                    trajectory.apply(&event)?;
                }
                trajectory.cut();
                trajectory.stored.clear();
                Ok(trajectory)
            }
        }
    }
}

fn admits(filter: SftFilter, node: &NodeNumbers) -> bool {
    let good = match filter {
        SftFilter::Verified => node.finished && node.own >= 1.0,
        SftFilter::All => true,
    };
    good && node.tokens > 0
}

/// Runs of consecutive positions as half-open ranges.
fn ranges(targets: &[usize]) -> Box<[(u32, u32)]> {
    let mut ranges = Vec::<(u32, u32)>::new();
    for &target in targets {
        // A context is far shorter than 2^32 tokens: its events count positions in 32 bits.
        let at = u32::try_from(target).unwrap_or(u32::MAX);
        match ranges.last_mut() {
            Some((_, end)) if *end == at => *end = at + 1,
            _ => ranges.push((at, at + 1)),
        }
    }
    ranges.into()
}

/// The order in which an epoch visits `count` trajectories: a permutation that depends on seed, epoch and count alone.
#[must_use]
pub fn order(seed: u64, epoch: u64, count: usize) -> Vec<usize> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"rao-log sft order").update(&seed.to_le_bytes()).update(&epoch.to_le_bytes());
    let mut stream = hasher.finalize_xof();
    let mut next = |bound: u64| loop {
        let mut bytes = [0; 8];
        stream.fill(&mut bytes);
        // Values beyond the last whole multiple of the bound would make small results likelier.
        let value = u64::from_le_bytes(bytes);
        if value < u64::MAX - u64::MAX % bound {
            break value % bound;
        }
    };
    let mut places: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        let other = usize::try_from(next(last as u64 + 1)).unwrap_or(last);
        places.swap(last, other);
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_a_permutation_of_its_own() {
        let first = order(7, 0, 100);
        assert_eq!(first, order(7, 0, 100));
        assert_ne!(first, order(7, 1, 100));
        assert_ne!(first, order(8, 0, 100));
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
        assert_ne!(first, sorted);
    }

    #[test]
    fn ranges_cover_exactly_the_targets() {
        assert_eq!(ranges(&[3, 4, 5, 9, 12, 13]).as_ref(), [(3, 6), (9, 10), (12, 14)]);
        assert!(ranges(&[]).is_empty());
    }
}
