//! Pass 1 of reinforcement in a few bytes a trajectory: what credit needs, and nothing that can be read again.
//!
//! A batch's credit depends on every trajectory in it (Eq. 4's counts), so pass 1 must see all of them before pass 2 can use
//! one. Kept are a trajectory's reward, depth, tokens and length (18 bytes) and a tree's place and baseline; pass 2 reads each
//! rollout again, checks it again, and puts the rest of the credit together. So memory hardly follows the log.
//! [`credit_table`](super::credit_table) gives the same numbers, all at once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use rao_store::{Digest, EventSource, RolloutId, RunId};

use super::batch::{Entry, LeftOut, Share, entry_of, rewards};
use super::fold::{RolloutNumbers, fold_each, fold_one};
use super::summary::{BatchSummary, Sums};
use super::trajectory::{Trajectory, read_rollout};
use super::{Settings, TrainError};
use crate::credit::{self, BaselineRule};

/// A rollout.
struct Tree {
    run: RunId,
    rollout: RolloutId,
    /// The run's place among those chosen, and the task's in it.
    group: (usize, u32),
    root_reward: f64,
    /// Its first trajectory among all, and how many it has.
    first: usize,
    count: usize,
    /// Mean root reward that it is compared with; `None` leaves it out.
    baseline: Option<f64>,
}

/// Trajectories, by column.
#[derive(Default)]
struct Columns {
    rewards: Vec<f64>,
    depths: Vec<u16>,
    tokens: Vec<u32>,
    lengths: Vec<u32>,
}

/// The trajectories of a batch in numbers, in the batch's order: runs in the order given, rollouts by number, nodes by path.
pub(crate) struct Census<'a> {
    source: &'a dyn EventSource,
    lambda: Option<f64>,
    settings: Settings,
    /// The runs with the content digest of each.
    pub(crate) runs: Vec<(RunId, Digest)>,
    trees: Vec<Tree>,
    columns: Columns,
    /// Trajectories by depth, of those that are trained on.
    counts: BTreeMap<u32, u64>,
    /// What was left out.
    pub(crate) left_out: LeftOut,
    /// Digests of the weights that acted.
    pub(crate) acted: BTreeSet<Option<Digest>>,
    /// What the rollouts were like.
    pub(crate) summary: BatchSummary,
    /// Length of the longest trajectory of the runs.
    pub(crate) longest: u64,
}

impl<'a> Census<'a> {
    /// Folds the runs, in the order given; `check` may refuse a rollout.
    ///
    /// # Errors
    /// As [`fold`](super::fold), and when `check` or the equations refuse a number.
    pub(crate) fn take(
        source: &'a dyn EventSource,
        runs: &[RunId],
        settings: &Settings,
        check: &dyn Fn(&RolloutNumbers) -> Result<(), TrainError>,
    ) -> Result<Self, TrainError> {
        let mut census = Census {
            source,
            lambda: settings.lambda,
            settings: settings.clone(),
            runs: Vec::new(),
            trees: Vec::new(),
            columns: Columns::default(),
            counts: BTreeMap::new(),
            left_out: LeftOut::default(),
            acted: BTreeSet::new(),
            summary: BatchSummary::default(),
            longest: 0,
        };
        let mut sums = Sums::default();
        let (folded, incomplete) = fold_each(source, runs, settings.lambda, &mut |numbers| {
            check(&numbers)?;
            sums.add(&numbers);
            census.add(runs, &numbers)
        })?;
        (census.runs, census.left_out.incomplete, census.summary) = (folded, incomplete, sums.summary());
        census.compare();
        Ok(census)
    }

    fn add(&mut self, runs: &[RunId], rollout: &RolloutNumbers) -> Result<(), TrainError> {
        self.acted.insert(rollout.weights);
        self.longest = rollout.nodes.iter().map(|node| node.length).fold(self.longest, u64::max);
        if rollout.fork && !self.settings.forks {
            self.left_out.forks += 1;
            return Ok(());
        }
        let first = self.columns.rewards.len();
        let mut root_reward = None;
        for (node, reward) in rollout.nodes.iter().zip(rewards(rollout, self.settings.reward)) {
            let depth = node.node.depth().0;
            if !reward.is_finite() {
                return Err(credit::CreditError::NotFinite { node: 0, reward }.into());
            }
            if depth == 0 {
                root_reward = Some(reward);
            }
            if node.tokens > 0 {
                self.columns.rewards.push(reward);
                // A tree is far less deep and a context far shorter than these hold; both are bounded when recorded.
                self.columns.depths.push(u16::try_from(depth).unwrap_or(u16::MAX));
                self.columns.tokens.push(u32::try_from(node.tokens).unwrap_or(u32::MAX));
                self.columns.lengths.push(u32::try_from(node.length).unwrap_or(u32::MAX));
            }
        }
        let run = runs.iter().position(|run| *run == rollout.run).unwrap_or(usize::MAX);
        self.trees.push(Tree {
            run: rollout.run,
            rollout: rollout.rollout,
            group: (run, rollout.group),
            root_reward: root_reward.ok_or(credit::CreditError::Roots { roots: 0 })?,
            first,
            count: self.columns.rewards.len() - first,
            baseline: None,
        });
        Ok(())
    }

    /// Baselines (Eq. 3) and counts (Eq. 4), in the order that [`credit::assign`] has.
    fn compare(&mut self) {
        let mut groups = BTreeMap::<(usize, u32), Vec<usize>>::new();
        for (at, tree) in self.trees.iter().enumerate() {
            groups.entry(tree.group).or_default().push(at);
        }
        for members in groups.values() {
            if members.len() < 2 {
                self.left_out.single_groups += 1;
                continue;
            }
            let roots: Vec<f64> = members.iter().filter_map(|at| self.trees.get(*at)).map(|t| t.root_reward).collect();
            let baseline = |place: usize| match self.settings.baseline {
                BaselineRule::LeaveOneOut => credit::baseline(&roots, place),
                BaselineRule::GroupMean => credit::group_mean(&roots),
            };
            let baselines: Vec<Option<f64>> = (0..members.len()).map(baseline).collect();
            if self.settings.drop_flat_groups && self.is_flat(members, &baselines) {
                self.left_out.flat_groups += 1;
                continue;
            }
            for (at, baseline) in members.iter().zip(baselines) {
                if let Some(tree) = self.trees.get_mut(*at) {
                    tree.baseline = baseline;
                }
            }
        }
        for tree in self.trees.iter().filter(|tree| tree.baseline.is_some()) {
            for depth in self.columns.depths.iter().skip(tree.first).take(tree.count) {
                *self.counts.entry(u32::from(*depth)).or_default() += 1;
            }
        }
    }

    fn is_flat(&self, members: &[usize], baselines: &[Option<f64>]) -> bool {
        let mut advantages = members.iter().zip(baselines).flat_map(|(at, baseline)| {
            let tree = self.trees.get(*at);
            let (first, count) = tree.map_or((0, 0), |tree| (tree.first, tree.count));
            let rewards = self.columns.rewards.iter().skip(first).take(count);
            rewards.map(move |reward| reward - baseline.unwrap_or(0.0))
        });
        let first = advantages.next();
        advantages.all(|advantage| Some(advantage) == first)
    }

    fn taken(&self) -> impl Iterator<Item = &Tree> {
        self.trees.iter().filter(|tree| tree.baseline.is_some())
    }

    /// Trajectories that are trained on.
    pub(crate) fn count(&self) -> usize {
        self.taken().map(|tree| tree.count).sum()
    }

    fn column<'c>(&'c self, column: &'c [u32], range: Range<usize>) -> impl Iterator<Item = u64> {
        let all = self.taken().flat_map(|tree| column.iter().skip(tree.first).take(tree.count));
        all.skip(range.start).take(range.len()).map(|value| u64::from(*value))
    }

    /// Lengths of some of the trajectories.
    pub(crate) fn lengths(&self, range: Range<usize>) -> Vec<u64> {
        self.column(&self.columns.lengths, range).collect()
    }

    /// Loss tokens of some of the trajectories.
    pub(crate) fn tokens(&self, range: Range<usize>) -> u64 {
        self.column(&self.columns.tokens, range).sum()
    }

    /// The credit of some of the trajectories, read from the log again.
    pub(crate) fn entries(&self, range: Range<usize>) -> impl Iterator<Item = Result<Entry, TrainError>> {
        let mut walk = Walk::new(self, range);
        std::iter::from_fn(move || walk.next_entry().transpose())
    }

    /// The same with their token sequences.
    pub(crate) fn trajectories(
        &self,
        range: Range<usize>,
    ) -> impl Iterator<Item = Result<(Entry, Trajectory), TrainError>> {
        let mut walk = Walk::new(self, range);
        std::iter::from_fn(move || walk.next_trajectory().transpose())
    }

    /// The entries of one tree, checked once more against the log.
    fn entries_of(&self, tree: &Tree) -> Result<VecDeque<Entry>, TrainError> {
        let missing = || TrainError::Nothing(format!("rollout {}/{} is gone from the log", tree.run, tree.rollout));
        let numbers = fold_one(self.source, tree.run, tree.rollout, self.lambda)?.ok_or_else(missing)?;
        let baseline = tree.baseline.unwrap_or(0.0);
        let (total, levels) = (self.counts.values().sum(), self.counts.len() as u64);
        let mut entries = VecDeque::with_capacity(tree.count);
        for (node, reward) in numbers.nodes.iter().zip(rewards(&numbers, self.settings.reward)) {
            if node.tokens == 0 {
                continue;
            }
            let depth = node.node.depth().0;
            let count = self.counts.get(&depth).copied().unwrap_or_default();
            let weight = if self.settings.depth_weighting { credit::depth_weight(total, levels, count) } else { 1.0 };
            let share = Share { depth, reward, baseline, advantage: reward - baseline, count, weight };
            entries.push_back(entry_of(&numbers, node, &share));
        }
        Ok(entries)
    }
}

/// Some of a census's trajectories, one tree in memory at a time.
struct Walk<'c, 'a> {
    census: &'c Census<'a>,
    /// Places in the census's trees.
    next: usize,
    /// Trajectories to leave out before the first, and to give.
    skip: usize,
    left: usize,
    held: VecDeque<Entry>,
    tokens: BTreeMap<rao_store::NodePath, Trajectory>,
}

impl<'c, 'a> Walk<'c, 'a> {
    fn new(census: &'c Census<'a>, range: Range<usize>) -> Self {
        let (skip, left) = (range.start, range.len());
        Walk { census, next: 0, skip, left, held: VecDeque::new(), tokens: BTreeMap::new() }
    }

    /// Moves to the next tree with a trajectory to give; `None` at the end.
    fn advance(&mut self) -> Result<Option<&'c Tree>, TrainError> {
        while let Some(tree) = self.census.trees.get(self.next) {
            self.next += 1;
            if tree.baseline.is_none() {
                continue;
            }
            if self.skip >= tree.count {
                self.skip -= tree.count;
                continue;
            }
            self.held = self.census.entries_of(tree)?;
            self.held.drain(..self.skip.min(self.held.len()));
            self.skip = 0;
            return Ok(Some(tree));
        }
        Ok(None)
    }

    fn next_entry(&mut self) -> Result<Option<Entry>, TrainError> {
        while self.left > 0 {
            if let Some(entry) = self.held.pop_front() {
                self.left -= 1;
                return Ok(Some(entry));
            }
            if self.advance()?.is_none() {
                break;
            }
        }
        Ok(None)
    }

    /// Not to be mixed with [`Walk::next_entry`] in one walk: it reads the tokens of a tree when it comes to it.
    fn next_trajectory(&mut self) -> Result<Option<(Entry, Trajectory)>, TrainError> {
        if self.left > 0 && self.held.is_empty() {
            match self.advance()? {
                Some(tree) => self.tokens = read_rollout(self.census.source, tree.run, tree.rollout)?,
                None => return Ok(None),
            }
        }
        let Some(entry) = self.next_entry()? else { return Ok(None) };
        let trajectory = super::trajectory::cut(self.tokens.remove(&entry.node), &entry)?;
        Ok(Some((entry, trajectory)))
    }
}
