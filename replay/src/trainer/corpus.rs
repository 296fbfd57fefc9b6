//! The trajectories of supervised training: an index over the log, with as many token sequences in memory as fit.

use std::collections::{BTreeMap, BTreeSet};

use rao_store::{Digest, EventSource, Filter, NodePath, RolloutId, RunId, Seq, Stream};

use super::fold::{NodeNumbers, RolloutNumbers, fold_each, fold_one};
use super::summary::{BatchSummary, Sums};
use super::trajectory::{KINDS, Trajectory, node_of};
use super::{Resources, Settings, SftFilter, TrainError};

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

/// A trajectory in memory: its node, its ids, and the ranges that the node generated.
#[derive(Clone, Debug)]
struct Held {
    node: NodePath,
    ids: Ids,
    ranges: Box<[(u32, u32)]>,
}

impl Held {
    /// What it takes, with what an allocation costs.
    fn bytes(&self) -> usize {
        const ALLOCATION: usize = 24;
        let numbers = self.ids.bytes() + size_of_val(&*self.ranges) + 4 * self.node.depth().0 as usize;
        size_of::<Self>() + numbers + 4 * ALLOCATION
    }
}

/// A trajectory to learn from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// Its place among the trajectories.
    place: u32,
    size: Size,
}

/// What a step must know of a trajectory before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    /// Tokens that the node generated.
    tokens: u32,
    /// Length of its sequence.
    length: u32,
}

impl Item {
    /// Tokens that the node generated.
    pub(crate) fn tokens(&self) -> u64 {
        u64::from(self.size.tokens)
    }

    /// Length of its sequence.
    pub(crate) fn length(&self) -> u64 {
        u64::from(self.size.length)
    }
}

/// A rollout that has a trajectory to learn from.
#[derive(Clone, Copy, Debug)]
struct Place {
    run: RunId,
    rollout: RolloutId,
    /// Its first trajectory's place among all; they stand in the order of their nodes.
    first: u32,
}

/// A trajectory with its address.
pub(crate) struct Read {
    /// The run.
    pub(crate) run: RunId,
    /// The rollout.
    pub(crate) rollout: RolloutId,
    /// The node.
    pub(crate) node: NodePath,
    /// Its tokens; stored log-probabilities are left out.
    pub(crate) trajectory: Trajectory,
}

/// The index.
pub(crate) struct Corpus<'a> {
    source: &'a dyn EventSource,
    filter: SftFilter,
    /// The runs with the content digest of each.
    pub(crate) runs: Vec<(RunId, Digest)>,
    /// Rollouts that have a trajectory to learn from.
    rollouts: Vec<Place>,
    /// The trajectories: runs in the order given, rollouts by number, nodes by path.
    sizes: Vec<Size>,
    /// Those that are kept in memory, by their places.
    held: BTreeMap<u32, Held>,
    /// Digest over what the trajectories are: equal corpora give equal digests.
    pub(crate) digest: Digest,
    /// Rollouts without an end.
    pub(crate) incomplete: u64,
    /// What the rollouts were like.
    pub(crate) summary: BatchSummary,
    /// Length of the longest trajectory of the runs.
    pub(crate) longest: u64,
    /// Bytes that are left to keep tokens in.
    left: usize,
}

impl<'a> Corpus<'a> {
    /// Indexes the runs' nodes that pass the filter; `check` may refuse a rollout. What does not fit in memory is a place
    /// in the log: 8 bytes a trajectory.
    ///
    /// # Errors
    /// When an event cannot be read or breaks a node's sequence, and when `check` refuses.
    pub(crate) fn build(
        source: &'a dyn EventSource,
        runs: &[RunId],
        settings: &Settings,
        resources: &Resources,
        check: &dyn Fn(&RolloutNumbers) -> Result<(), TrainError>,
    ) -> Result<Self, TrainError> {
        let mut corpus = Corpus {
            source,
            filter: settings.sft_filter,
            runs: Vec::new(),
            rollouts: Vec::new(),
            sizes: Vec::new(),
            held: BTreeMap::new(),
            digest: Digest([0; 32]),
            incomplete: 0,
            summary: BatchSummary::default(),
            longest: 0,
            left: resources.cache_bytes(),
        };
        let (mut sums, mut hasher) = (Sums::default(), blake3::Hasher::new());
        let (folded, incomplete) = fold_each(source, runs, settings.lambda, &mut |numbers| {
            check(&numbers)?;
            sums.add(&numbers);
            corpus.longest = numbers.nodes.iter().map(|node| node.length).fold(corpus.longest, u64::max);
            corpus.add(&numbers, &mut hasher)
        })?;
        for (_, content) in &folded {
            hasher.update(&content.0);
        }
        corpus.digest = Digest(*hasher.finalize().as_bytes());
        (corpus.runs, corpus.incomplete, corpus.summary) = (folded, incomplete, sums.summary());
        Ok(corpus)
    }

    fn add(&mut self, numbers: &RolloutNumbers, hasher: &mut blake3::Hasher) -> Result<(), TrainError> {
        let wanted = self.wanted(numbers);
        if wanted.is_empty() {
            return Ok(());
        }
        let many = |_| TrainError::Nothing("more trajectories than 32 bits count".to_owned());
        let first = u32::try_from(self.sizes.len()).map_err(many)?;
        grow(&mut self.rollouts).push(Place { run: numbers.run, rollout: numbers.rollout, first });
        for (node, trajectory) in self.sequences(numbers.run, numbers.rollout, &wanted)? {
            let (tokens, length) = (trajectory.targets.len(), trajectory.tokens.len());
            hasher.update(format!("{} {node} {tokens}\n", numbers.rollout).as_bytes());
            let held = Held { node, ids: Ids::new(&trajectory.tokens), ranges: ranges(&trajectory.targets) };
            let bytes = held.bytes();
            let place = u32::try_from(self.sizes.len()).map_err(many)?;
            if bytes <= self.left {
                self.left -= bytes;
                self.held.insert(place, held);
            }
            // A context is far shorter than 2^32 tokens: its events count positions in 32 bits.
            let short = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
            grow(&mut self.sizes).push(Size { tokens: short(tokens), length: short(length) });
        }
        Ok(())
    }

    /// The number of trajectories.
    pub(crate) fn len(&self) -> usize {
        self.sizes.len()
    }

    /// A trajectory by its place.
    pub(crate) fn item(&self, place: u32) -> Option<Item> {
        let size = *self.sizes.get(usize::try_from(place).ok()?)?;
        Some(Item { place, size })
    }

    fn wanted(&self, numbers: &RolloutNumbers) -> BTreeSet<NodePath> {
        numbers.nodes.iter().filter(|node| admits(self.filter, node)).map(|node| node.node.clone()).collect()
    }

    /// The sequences of some nodes of a rollout, in the order of the nodes.
    fn sequences(
        &self,
        run: RunId,
        rollout: RolloutId,
        wanted: &BTreeSet<NodePath>,
    ) -> Result<BTreeMap<NodePath, Trajectory>, TrainError> {
        let mut nodes = BTreeMap::<NodePath, Trajectory>::new();
        for event in self.source.events(Stream::Rollout(run, rollout), Seq(0), &Filter::kinds(KINDS)) {
            let event = event?;
            if let Some(path) = node_of(&event.body).filter(|path| wanted.contains(path)) {
                nodes.entry(path.clone()).or_default().apply(&event)?;
            }
        }
        nodes.values_mut().for_each(Trajectory::cut);
        Ok(nodes)
    }

    /// One trajectory.
    ///
    /// # Errors
    /// When it is not in memory and cannot be read from the log.
    pub(crate) fn trajectory(&self, item: &Item) -> Result<Read, TrainError> {
        let at = self.rollouts.partition_point(|place| place.first <= item.place);
        let place = at.checked_sub(1).and_then(|at| self.rollouts.get(at));
        let place = *place.ok_or_else(|| TrainError::Nothing("a trajectory has no rollout".to_owned()))?;
        let (run, rollout) = (place.run, place.rollout);
        if let Some(held) = self.held.get(&item.place) {
            let targets = held.ranges.iter().flat_map(|(start, end)| *start as usize..*end as usize).collect();
            let trajectory = Trajectory { tokens: held.ids.to_vec(), targets, stored: Vec::new() };
            return Ok(Read { run, rollout, node: held.node.clone(), trajectory });
        }
        let gone = || TrainError::Nothing(format!("rollout {run}/{rollout} is not what it was"));
        let numbers = fold_one(self.source, run, rollout, None)?.ok_or_else(gone)?;
        let wanted = self.wanted(&numbers);
        let found = self.sequences(run, rollout, &wanted)?.into_iter().nth((item.place - place.first) as usize);
        let (node, mut trajectory) = found.ok_or_else(gone)?;
        trajectory.stored.clear();
        Ok(Read { run, rollout, node, trajectory })
    }
}

/// Makes room for one more, by less than doubling: these lists are what follows the log.
fn grow<T>(list: &mut Vec<T>) -> &mut Vec<T> {
    if list.len() == list.capacity() {
        list.reserve_exact(64 + list.len() / 8);
    }
    list
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
pub fn order(seed: u64, epoch: u64, count: u32) -> Vec<u32> {
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
    let mut places: Vec<u32> = (0..count).collect();
    for last in (1..places.len()).rev() {
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
        assert_eq!(sorted, (0..100).collect::<Vec<u32>>());
        assert_ne!(first, sorted);
    }

    #[test]
    fn ranges_cover_exactly_the_targets() {
        assert_eq!(ranges(&[3, 4, 5, 9, 12, 13]).as_ref(), [(3, 6), (9, 10), (12, 14)]);
        assert!(ranges(&[]).is_empty());
    }
}
