//! The batch: every trajectory of the chosen runs with its credit, in the order in which it is trained on.

use std::collections::BTreeMap;

use rao_store::event::CreditAssigned;
use rao_store::{Address, Depth, Digest, EventSource, NodePath, RolloutId, RunId};

use super::fold::{Folded, NodeNumbers, RolloutNumbers, fold};
use super::{Settings, TrainError};
use crate::credit::{self, DepthWeight, RewardRule, Scored};

/// A trajectory of the batch: a row of the credit table.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The run.
    pub run: RunId,
    /// The rollout.
    pub rollout: RolloutId,
    /// The node.
    pub node: NodePath,
    /// Own success.
    pub own: f64,
    /// Launched children.
    pub children: u32,
    /// Mean of the children's own success.
    pub child_mean: f64,
    /// The lambda of the reward.
    pub lambda: f64,
    /// The reward (Eq. 1).
    pub reward: f64,
    /// Mean root reward of the group's other trees (Eq. 3).
    pub baseline: f64,
    /// `reward - baseline` (Eq. 3).
    pub advantage: f64,
    /// The node's depth.
    pub depth: Depth,
    /// Trajectories of this depth in the batch (Eq. 4).
    pub count: u64,
    /// The depth's weight (Eq. 4).
    pub weight: f64,
    /// Tokens that the node generated: its loss tokens.
    pub tokens: u64,
    /// Length of its token sequence up to its last generated token.
    pub length: u64,
    /// The event that assigned the reward.
    pub source: Address,
}

impl Entry {
    /// What multiplies the trajectory's log-probability in Eq. 5: `weight * advantage`.
    #[must_use]
    pub fn coefficient(&self) -> f64 {
        self.weight * self.advantage
    }

    /// The entry as the event that training writes.
    #[must_use]
    pub fn event(&self, step: u64) -> CreditAssigned {
        CreditAssigned {
            step,
            source: self.source,
            run: self.run,
            rollout: self.rollout,
            node: self.node.clone(),
            depth: self.depth,
            reward: self.reward,
            baseline: self.baseline,
            advantage: self.advantage,
            count: self.count,
            weight: self.weight,
            tokens: self.tokens,
        }
    }
}

/// What was left out of a batch, and why.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Rollouts without an end.
    pub incomplete: u64,
    /// Forked rollouts.
    pub forks: u64,
    /// Groups of fewer than two trees, which have no baseline.
    pub single_groups: u64,
    /// Groups in which every trajectory had the same advantage, if the settings leave those out.
    pub flat_groups: u64,
}

impl std::fmt::Display for LeftOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} unfinished rollouts, {} forks, {} groups of fewer than two finished rollouts, {} groups without spread",
            self.incomplete, self.forks, self.single_groups, self.flat_groups
        )
    }
}

/// A batch with its credit: what `train --dry-run` prints.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The runs with the content digest of each.
    pub runs: Vec<(RunId, Digest)>,
    /// The trajectories: runs in the order given, rollouts by number, nodes by path.
    pub entries: Vec<Entry>,
    /// The depths that have a trajectory, ascending.
    pub depths: Vec<DepthWeight>,
    /// Groups in the batch.
    pub groups: u64,
    /// What was left out.
    pub left_out: LeftOut,
    /// Digests of the weights that acted, each once, in order.
    pub acted: Vec<Option<Digest>>,
}

impl Batch {
    /// Loss tokens of the whole batch.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.entries.iter().map(|entry| entry.tokens).sum()
    }
}

/// Pass 1 without weights: the credit table of the runs under the settings.
///
/// # Errors
/// When the log is damaged or contradicts itself, or a number lies outside the equations.
pub fn credit_table(source: &dyn EventSource, runs: &[RunId], settings: &Settings) -> Result<Batch, TrainError> {
    settings.check()?;
    assign(&fold(source, runs, settings.lambda)?, settings)
}

/// Digest over the addresses and credits of trajectories, in order: what a step's `batch` holds.
#[must_use]
pub fn batch_digest<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Digest {
    let mut hasher = BatchHasher::default();
    entries.into_iter().for_each(|entry| hasher.add(entry));
    hasher.finish()
}

/// A [`batch_digest`] in the making.
#[derive(Default)]
pub(crate) struct BatchHasher(blake3::Hasher);

impl BatchHasher {
    /// Adds the next trajectory.
    pub(crate) fn add(&mut self, entry: &Entry) {
        let line = format!(
            "{} {} {} {:016x} {:016x} {:016x} {}\n",
            entry.source,
            entry.node,
            entry.tokens,
            entry.reward.to_bits(),
            entry.advantage.to_bits(),
            entry.weight.to_bits(),
            entry.count,
        );
        self.0.update(line.as_bytes());
    }

    /// The digest.
    pub(crate) fn finish(&self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}

pub(crate) fn assign(folded: &Folded, settings: &Settings) -> Result<Batch, TrainError> {
    let mut left_out = LeftOut { incomplete: folded.incomplete, ..LeftOut::default() };
    let mut groups = BTreeMap::<(usize, u32), Vec<&RolloutNumbers>>::new();
    for rollout in &folded.rollouts {
        if rollout.fork && !settings.forks {
            left_out.forks += 1;
            continue;
        }
        let run = folded.runs.iter().position(|(run, _)| *run == rollout.run).unwrap_or(usize::MAX);
        groups.entry((run, rollout.group)).or_default().push(rollout);
    }
    let scored: Vec<Vec<Vec<Scored>>> =
        groups.values().map(|trees| trees.iter().map(|tree| scored(tree, settings.reward)).collect()).collect();
    let credit = credit::assign(&scored, settings.credit_options())?;
    left_out.single_groups = credit.single_groups as u64;
    left_out.flat_groups = credit.flat_groups as u64;
    let members: Vec<(usize, &Vec<&RolloutNumbers>)> = groups.iter().map(|((run, _), trees)| (*run, trees)).collect();
    let mut placed = Vec::with_capacity(credit.rows.len());
    for row in &credit.rows {
        let Some((run, trees)) = members.get(row.group) else { continue };
        let Some(tree) = trees.get(row.tree) else { continue };
        let Some(node) = tree.nodes.get(row.node) else { continue };
        placed.push((*run, entry(tree, node, row)));
    }
    placed.sort_by(|(a, x), (b, y)| (a, x.rollout, &x.node).cmp(&(b, y.rollout, &y.node)));
    let acted: std::collections::BTreeSet<Option<Digest>> = folded.rollouts.iter().map(|r| r.weights).collect();
    Ok(Batch {
        runs: folded.runs.clone(),
        entries: placed.into_iter().map(|(_, entry)| entry).collect(),
        depths: credit.depths,
        groups: (groups.len() - credit.single_groups - credit.flat_groups) as u64,
        left_out,
        acted: acted.into_iter().collect(),
    })
}

/// The rewards of a tree's nodes under the rule, in the nodes' order. Under Eq. 1 these are the folded ones.
pub(crate) fn rewards(tree: &RolloutNumbers, rule: RewardRule) -> Vec<f64> {
    let root = tree.nodes.iter().find(|node| node.node.depth().0 == 0).map_or(0.0, |node| node.own);
    let reward = |node: &NodeNumbers| {
        if rule == RewardRule::Own {
            return node.reward;
        }
        let is_child = |other: &&NodeNumbers| other.node.parent().as_ref() == Some(&node.node);
        let children: Vec<f64> = tree.nodes.iter().filter(is_child).map(|child| child.own).collect();
        credit::reward_by(rule, root, node.own, &children, node.lambda)
    };
    tree.nodes.iter().map(reward).collect()
}

fn scored(tree: &RolloutNumbers, rule: RewardRule) -> Vec<Scored> {
    let both = tree.nodes.iter().zip(rewards(tree, rule));
    both.map(|(node, reward)| Scored { depth: node.node.depth().0, reward, tokens: node.tokens }).collect()
}

/// A trajectory's credit, without its place in the batch.
pub(crate) struct Share {
    pub(crate) depth: u32,
    pub(crate) reward: f64,
    pub(crate) baseline: f64,
    pub(crate) advantage: f64,
    pub(crate) count: u64,
    pub(crate) weight: f64,
}

fn entry(tree: &RolloutNumbers, node: &NodeNumbers, row: &credit::Row) -> Entry {
    let credit::Row { depth, reward, baseline, advantage, count, weight, .. } = *row;
    entry_of(tree, node, &Share { depth, reward, baseline, advantage, count, weight })
}

/// A node with its credit.
pub(crate) fn entry_of(tree: &RolloutNumbers, node: &NodeNumbers, share: &Share) -> Entry {
    Entry {
        run: tree.run,
        rollout: tree.rollout,
        node: node.node.clone(),
        own: node.own,
        children: node.children,
        child_mean: node.child_mean,
        lambda: node.lambda,
        reward: share.reward,
        baseline: share.baseline,
        advantage: share.advantage,
        depth: Depth(share.depth),
        count: share.count,
        weight: share.weight,
        tokens: node.tokens,
        length: node.length,
        source: node.source,
    }
}
