//! The paper's ablations of the learning rule, each with numbers worked by hand.

use rao_replay::credit::{BaselineRule, DepthWeight, Options, RewardRule, Scored, assign, group_mean, reward_by};

/// 9. Root-only reward: every node has its root's own success and no bonus, whatever it did itself.
#[test]
fn rule_9_a_sparse_reward_is_the_roots_own_success() {
    assert_eq!(reward_by(RewardRule::Root, 1.0, 0.0, &[0.0, 1.0], 0.4), 1.0);
    assert_eq!(reward_by(RewardRule::Root, 0.0, 1.0, &[1.0], 0.4), 0.0);
}

/// 10. Count bonus: lambda times the number of children's successes. Launching a third successful child raises it, which
///     Eq. 1's mean does not do.
#[test]
fn rule_10_a_count_bonus_grows_with_every_child() {
    assert_eq!(reward_by(RewardRule::Count, 1.0, 1.0, &[0.0, 1.0], 0.5), 1.5);
    assert_eq!(reward_by(RewardRule::Count, 1.0, 0.0, &[1.0, 1.0, 1.0], 0.5), 1.5);
    assert_eq!(reward_by(RewardRule::Own, 1.0, 0.0, &[1.0, 1.0, 1.0], 0.5), 0.5);
    assert_eq!(reward_by(RewardRule::Own, 1.0, 0.0, &[1.0, 1.0], 0.5), 0.5, "the mean stays");
    assert_eq!(reward_by(RewardRule::Count, 1.0, 1.0, &[], 0.5), 1.0);
}

/// 11. Group-mean baseline: the tree's own root reward is among those averaged.
#[test]
fn rule_11_a_group_mean_takes_the_trees_own_reward_too() {
    assert_eq!(group_mean(&[1.0, 0.0, 1.0, 0.0]), Some(0.5));
    assert_eq!(group_mean(&[1.0]), None, "as for Eq. 3, a lone tree has no baseline");
    let root = |reward| vec![Scored { depth: 0, reward, tokens: 3 }];
    let mut trees = vec![root(1.0), root(0.0), root(0.0)];
    trees[1].push(Scored { depth: 1, reward: 1.0, tokens: 2 });
    let of = |baseline| assign(&[trees.clone()], Options { baseline, ..Options::default() }).unwrap();
    let (own, mean) = (of(BaselineRule::LeaveOneOut), of(BaselineRule::GroupMean));
    let baselines =
        |credit: &rao_replay::credit::Credit| credit.rows.iter().map(|row| row.baseline).collect::<Vec<_>>();
    assert_eq!(baselines(&own), [0.0, 0.5, 0.5, 0.5]);
    assert_eq!(baselines(&mean), [1.0 / 3.0; 4]);
    assert_eq!(mean.rows[2].advantage, 1.0 - 1.0 / 3.0, "a child is compared with the same baseline");
    assert_eq!(own.depths, mean.depths, "Eq. 4 does not look at rewards");
    assert_eq!(mean.depths[1], DepthWeight { depth: 1, count: 1, weight: 2.0 });
}
