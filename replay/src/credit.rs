//! The learning rule's arithmetic: Eqs. 1, 3 and 4 of Recursive Agent Optimization (arXiv 2605.06639), in f64.
//!
//! Pure functions over small numbers; no log, no model. Every sum has one stated order, so the same inputs give the
//! same bits wherever they are computed again:
//!
//! * children's successes (Eq. 1) are added in the order in which the nodes are given, from 0.0, and divided once;
//! * the other trees' root rewards (Eq. 3) are added in the order of the trees, the tree's own left out (never
//!   subtracted from a total, which would round differently), and divided once;
//! * a depth's weight (Eq. 4) is one division of exact integers.
//!
//! A group of fewer than two trees has no leave-one-out baseline and is left out of the batch. A node that generated no
//! token is a child for Eq. 1 but no trajectory for Eqs. 3 to 5: it has no row and is not counted in its depth.

use serde::{Deserialize, Serialize};

/// A node of an execution tree as Eq. 1 sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// Index of the parent in the same tree; `None` for the root, of which a tree has exactly one.
    pub parent: Option<usize>,
    /// Own success, in \[0, 1\].
    pub success: f64,
    /// Tokens that the node itself generated.
    pub tokens: u64,
}

/// Eq. 1 for one node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reward {
    /// Own success.
    pub own: f64,
    /// Launched children.
    pub children: u32,
    /// Mean of the children's own success; 0 without children.
    pub child_mean: f64,
    /// `own + lambda * child_mean`.
    pub reward: f64,
}

/// A node as Eqs. 3 and 4 see it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scored {
    /// Distance from the root; the node of depth 0 is the root.
    pub depth: u32,
    /// The node's reward (Eq. 1).
    pub reward: f64,
    /// Tokens that the node itself generated.
    pub tokens: u64,
}

/// How a node is rewarded. All but the default are ablations of the paper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RewardRule {
    /// Eq. 1: own success plus lambda times the *mean* of the children's.
    #[default]
    Own,
    /// Sparse: every node has its root's own success, and no bonus.
    Root,
    /// Own success plus lambda times the *number* of children's successes: the bonus that launching more raises.
    Count,
}

/// What a reward is compared with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BaselineRule {
    /// Eq. 3: the mean root reward of the group's other trees.
    #[default]
    LeaveOneOut,
    /// The mean root reward of all the group's trees, the tree's own among them: an ablation, biased towards zero.
    GroupMean,
}

/// What departs from the paper's rule. The default departs in nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Eq. 3's baseline, or another.
    pub baseline: BaselineRule,
    /// Eq. 4. Off, every trajectory has weight 1 (the ablation); depths are still counted.
    pub depth_weighting: bool,
    /// Leaves out groups in which every trajectory has the same advantage, before depths are counted. Off by default:
    /// such a group's rows matter to Eq. 4's counts in the equations as printed.
    pub drop_flat_groups: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { baseline: BaselineRule::LeaveOneOut, depth_weighting: true, drop_flat_groups: false }
    }
}

/// One trajectory's credit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Index of the group.
    pub group: usize,
    /// Index of the tree in the group.
    pub tree: usize,
    /// Index of the node in the tree.
    pub node: usize,
    /// The node's depth.
    pub depth: u32,
    /// The node's reward (Eq. 1).
    pub reward: f64,
    /// Mean root reward of the group's other trees (Eq. 3), or what [`BaselineRule`] says.
    pub baseline: f64,
    /// `reward - baseline` (Eq. 3).
    pub advantage: f64,
    /// Trajectories of this depth in the batch (`N_d` of Eq. 4).
    pub count: u64,
    /// The depth's weight (`w_d` of Eq. 4).
    pub weight: f64,
}

impl Row {
    /// What multiplies the trajectory's log-probability in Eq. 5: `weight * advantage`.
    #[must_use]
    pub fn coefficient(&self) -> f64 {
        self.weight * self.advantage
    }
}

/// A depth of the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DepthWeight {
    /// The depth.
    pub depth: u32,
    /// Its trajectories.
    pub count: u64,
    /// Their weight (Eq. 4).
    pub weight: f64,
}

/// A batch's credit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Credit {
    /// One row for each trajectory: groups in order, trees in order, nodes in order.
    pub rows: Vec<Row>,
    /// The depths that have a trajectory, ascending.
    pub depths: Vec<DepthWeight>,
    /// Groups left out because they hold fewer than two trees.
    pub single_groups: usize,
    /// Groups left out by [`Options::drop_flat_groups`].
    pub flat_groups: usize,
}

/// Why numbers are not a batch.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CreditError {
    /// A tree without exactly one root.
    #[error("an execution tree has {roots} roots; it must have exactly one")]
    Roots {
        /// How many there are.
        roots: usize,
    },
    /// A parent that does not lead to the root.
    #[error("node {node} has parent {parent}, from which no path leads to the root")]
    Parent {
        /// The node.
        node: usize,
        /// Its parent as given.
        parent: usize,
    },
    /// A success outside [0, 1], which Eq. 1 does not admit.
    #[error("node {node} has own success {success}; it must be between 0 and 1")]
    Success {
        /// The node.
        node: usize,
        /// Its success as given.
        success: f64,
    },
    /// A lambda that Eq. 1 does not admit.
    #[error("lambda is {lambda}; it must be a finite number of at least 0")]
    Lambda {
        /// The lambda as given.
        lambda: f64,
    },
    /// A reward that is not a number.
    #[error("the reward of node {node} is {reward}; it must be finite")]
    NotFinite {
        /// The node.
        node: usize,
        /// Its reward.
        reward: f64,
    },
}

/// Eq. 1 for one node, from its own success and its children's in spawn order.
#[must_use]
pub fn reward(own: f64, children: &[f64], lambda: f64) -> Reward {
    let count = u32::try_from(children.len()).unwrap_or(u32::MAX);
    let child_mean = if count == 0 { 0.0 } else { sum(children.iter().copied()) / f64::from(count) };
    Reward { own, children: count, child_mean, reward: own + lambda * child_mean }
}

/// The reward of one node under a rule, from its root's own success, its own and its children's in spawn order.
#[must_use]
pub fn reward_by(rule: RewardRule, root: f64, own: f64, children: &[f64], lambda: f64) -> f64 {
    match rule {
        RewardRule::Own => reward(own, children, lambda).reward,
        RewardRule::Root => root,
        RewardRule::Count => own + lambda * sum(children.iter().copied()),
    }
}

/// Eq. 1 for every node of a tree, in the nodes' order. Children's raw success enters, never their reward.
///
/// # Errors
/// When `nodes` is no tree, a success lies outside \[0, 1\], or lambda is negative or not finite.
pub fn rewards(nodes: &[Node], lambda: f64) -> Result<Vec<Reward>, CreditError> {
    if !(lambda.is_finite() && lambda >= 0.0) {
        return Err(CreditError::Lambda { lambda });
    }
    let mut children: Vec<Vec<f64>> = vec![Vec::new(); nodes.len()];
    for (index, node) in nodes.iter().enumerate() {
        if !(0.0..=1.0).contains(&node.success) {
            return Err(CreditError::Success { node: index, success: node.success });
        }
        if let Some(parent) = node.parent {
            let list = children.get_mut(parent).ok_or(CreditError::Parent { node: index, parent })?;
            list.push(node.success);
        }
    }
    Ok(nodes.iter().zip(&children).map(|(node, kids)| reward(node.success, kids, lambda)).collect())
}

/// Every node's distance from the root, in the nodes' order.
///
/// # Errors
/// When there is not exactly one root, or a node does not hang below it.
pub fn depths(nodes: &[Node]) -> Result<Vec<u32>, CreditError> {
    let roots = nodes.iter().filter(|node| node.parent.is_none()).count();
    if roots != 1 {
        return Err(CreditError::Roots { roots });
    }
    let mut known: Vec<Option<u32>> = vec![None; nodes.len()];
    for start in 0..nodes.len() {
        let (mut path, mut at) = (Vec::new(), start);
        let base = loop {
            if let Some(Some(depth)) = known.get(at) {
                break Some(*depth);
            }
            path.push(at);
            match nodes.get(at).map(|node| node.parent) {
                Some(Some(parent)) if path.len() <= nodes.len() && parent < nodes.len() => at = parent,
                Some(None) => break None,
                _ => return Err(unrooted(nodes, start)),
            }
        };
        let first = base.map_or(0, |depth| depth + 1);
        for (depth, index) in (first..).zip(path.into_iter().rev()) {
            if let Some(slot) = known.get_mut(index) {
                *slot = Some(depth);
            }
        }
    }
    Ok(known.into_iter().flatten().collect())
}

fn unrooted(nodes: &[Node], node: usize) -> CreditError {
    let parent = nodes.get(node).and_then(|node| node.parent).unwrap_or(node);
    CreditError::Parent { node, parent }
}

/// Eq. 3's baseline for the tree at `index`: the mean root reward of the group's other trees, or `None` where there is
/// no other tree.
#[must_use]
pub fn baseline(roots: &[f64], index: usize) -> Option<f64> {
    let others = u32::try_from(roots.len().checked_sub(1)?).ok().filter(|&count| count > 0)?;
    let rest = roots.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, reward)| *reward);
    Some(sum(rest) / f64::from(others))
}

/// The mean root reward of all the group's trees; `None` where there are fewer than two, as for Eq. 3.
#[must_use]
pub fn group_mean(roots: &[f64]) -> Option<f64> {
    let count = u32::try_from(roots.len()).ok().filter(|&count| count > 1)?;
    Some(sum(roots.iter().copied()) / f64::from(count))
}

/// Eq. 4: `N / (depths * N_d)`, where `total` is the batch's number of trajectories and `levels` the number of depths
/// that have one.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a batch has far fewer than 2^53 trajectories")]
pub fn depth_weight(total: u64, levels: u64, count: u64) -> f64 {
    total as f64 / (levels * count) as f64
}

/// Eqs. 3 and 4 over a whole batch: groups of trees of nodes that already have their reward.
///
/// # Errors
/// When a tree has not exactly one node of depth 0, or a reward is not finite.
pub fn assign(groups: &[Vec<Vec<Scored>>], options: Options) -> Result<Credit, CreditError> {
    let mut credit = Credit::default();
    for (index, trees) in groups.iter().enumerate() {
        if trees.len() < 2 {
            credit.single_groups += 1;
            continue;
        }
        let rows = group_rows(index, trees, options.baseline)?;
        if options.drop_flat_groups && is_flat(&rows) {
            credit.flat_groups += 1;
        } else {
            credit.rows.extend(rows);
        }
    }
    weigh(&mut credit, options.depth_weighting);
    Ok(credit)
}

/// Eqs. 1, 3 and 4 over a whole batch of bare trees.
///
/// # Errors
/// As [`rewards`], [`depths`] and [`assign`].
pub fn credit(groups: &[Vec<Vec<Node>>], lambda: f64, options: Options) -> Result<Credit, CreditError> {
    let mut scored = Vec::with_capacity(groups.len());
    for trees in groups {
        scored.push(trees.iter().map(|nodes| score(nodes, lambda)).collect::<Result<Vec<_>, _>>()?);
    }
    assign(&scored, options)
}

fn score(nodes: &[Node], lambda: f64) -> Result<Vec<Scored>, CreditError> {
    let depths = depths(nodes)?;
    let rewards = rewards(nodes, lambda)?;
    let scored = nodes.iter().zip(depths).zip(rewards);
    Ok(scored.map(|((node, depth), r)| Scored { depth, reward: r.reward, tokens: node.tokens }).collect())
}

fn group_rows(group: usize, trees: &[Vec<Scored>], rule: BaselineRule) -> Result<Vec<Row>, CreditError> {
    let roots = trees.iter().map(|nodes| root_reward(nodes)).collect::<Result<Vec<f64>, _>>()?;
    let mut rows = Vec::new();
    for (tree, nodes) in trees.iter().enumerate() {
        let baseline = match rule {
            BaselineRule::LeaveOneOut => baseline(&roots, tree),
            BaselineRule::GroupMean => group_mean(&roots),
        };
        let Some(baseline) = baseline else { continue };
        for (node, scored) in nodes.iter().enumerate() {
            if !scored.reward.is_finite() {
                return Err(CreditError::NotFinite { node, reward: scored.reward });
            }
            if scored.tokens == 0 {
                continue;
            }
            let (depth, reward) = (scored.depth, scored.reward);
            rows.push(Row {
                group,
                tree,
                node,
                depth,
                reward,
                baseline,
                advantage: reward - baseline,
                count: 0,
                weight: 1.0,
            });
        }
    }
    Ok(rows)
}

fn root_reward(nodes: &[Scored]) -> Result<f64, CreditError> {
    let mut roots = nodes.iter().filter(|node| node.depth == 0);
    match (roots.next(), roots.count()) {
        (Some(root), 0) => Ok(root.reward),
        (first, rest) => Err(CreditError::Roots { roots: usize::from(first.is_some()) + rest }),
    }
}

fn is_flat(rows: &[Row]) -> bool {
    rows.windows(2).all(|pair| matches!(pair, [a, b] if a.advantage == b.advantage))
}

fn weigh(credit: &mut Credit, depth_weighting: bool) {
    let mut counts = std::collections::BTreeMap::<u32, u64>::new();
    for row in &credit.rows {
        *counts.entry(row.depth).or_default() += 1;
    }
    let (total, levels) = (counts.values().sum::<u64>(), counts.len() as u64);
    let weight = |count| if depth_weighting { depth_weight(total, levels, count) } else { 1.0 };
    for row in &mut credit.rows {
        row.count = counts.get(&row.depth).copied().unwrap_or_default();
        row.weight = weight(row.count);
    }
    credit.depths = counts.iter().map(|(&depth, &count)| DepthWeight { depth, count, weight: weight(count) }).collect();
}

/// Left to right from 0.0: the one order of every sum of the learning rule.
pub(crate) fn sum(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |total, value| total + value)
}
