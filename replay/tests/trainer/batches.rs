//! What the batch is made of: credit by the equations, ablations, forks, and what is left out.

use rao_replay::credit::{BaselineRule, RewardRule};
use rao_replay::trainer::{Entry, Flow, LogSink, NoSink, Settings, batch_digest, credit_table, rederive};
use rao_store::event::{Body, LossKind};
use rao_store::{Digest, NodePath, RunId, Seq};

use crate::common::{log_of, ordinary, settings, train, train_logged, trainer, training_events};
use crate::support::{LAMBDA, Recording, decoder, open, record, run_id};

#[test]
fn the_credit_table_needs_no_weights_and_follows_the_equations() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let recording = Recording { scripted: true, cut: Some(5), ..Recording::new(1) };
    record(&log, &decoder(1), recording);
    let batch = credit_table(&log, &[recording.run], &settings(LossKind::Cispo)).unwrap();
    assert_eq!((batch.groups, batch.left_out.incomplete), (2, 1));
    let places: Vec<_> = batch.entries.iter().map(|entry| (entry.rollout, entry.node.clone())).collect();
    assert!(places.is_sorted() && places.iter().any(|(_, node)| node.depth().0 == 2));
    let roots: Vec<_> = batch.entries.iter().filter(|entry| entry.depth.0 == 0).collect();
    assert_eq!(roots[3].baseline, roots[4].reward, "of the second group two trees are left");
    assert_eq!(roots[0].baseline, (roots[1].reward + roots[2].reward) / 2.0);
    for entry in &batch.entries {
        assert_eq!(entry.reward, entry.own + LAMBDA * entry.child_mean);
        assert_eq!(entry.count, batch.entries.iter().filter(|other| other.depth == entry.depth).count() as u64);
    }
    let weights: f64 = batch.entries.iter().map(|entry| entry.weight).sum();
    assert!((weights - batch.entries.len() as f64).abs() < 1e-9);
    let other = Settings { lambda: Some(0.0), ..settings(LossKind::Cispo) };
    let plain = credit_table(&log, &[recording.run], &other).unwrap();
    assert!(plain.entries.iter().all(|entry| entry.reward == entry.own));
}

#[test]
fn two_runs_make_one_batch_and_an_observer_can_stop() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let runs: Vec<RunId> = [1, 2]
        .into_iter()
        .map(|number| {
            record(&log, &decoder(u64::from(number)), Recording { groups: 1, ..Recording::new(number) });
            run_id(number)
        })
        .collect();
    let settings = Settings { epochs: 5, ..settings(LossKind::Ppo) };
    let batch = credit_table(&log, &runs, &settings).unwrap();
    assert_eq!((batch.groups, batch.runs.len()), (2, 2), "equal group numbers of two runs stay apart");
    let mut trainer = trainer(1, &settings);
    let report = trainer
        .train(&log, &runs, &mut NoSink, &mut |_, step| Ok(if step.step == 1 { Flow::Stop } else { Flow::Continue }))
        .unwrap();
    assert_eq!((report.steps, report.on_policy), (2, false), "the second run was sampled by other weights");
    let last = report.last.unwrap();
    assert_eq!((last.version, last.learning_rate), (2, 1e-2 * 2.0 / 3.0));
    assert!(trainer.decoder().vars().values().all(|var| {
        let values = var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        values.iter().all(|value| value.is_finite())
    }));
}

/// Trains one step under a reward rule and gives its entries.
fn entries_under(reward: RewardRule, baseline: BaselineRule) -> Vec<rao_replay::trainer::Entry> {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let settings = Settings { reward, baseline, ..settings(LossKind::Cispo) };
    let mut sink = LogSink::new(&log, run_id(100));
    trainer(1, &settings).train(&log, &[run], &mut sink, &mut |_, _| Ok(Flow::Continue)).unwrap();
    log.flush().unwrap();
    assert_eq!(rederive(&log, run_id(100)).unwrap().mismatch, None, "the log gives the ablation's numbers again");
    credit_table(&log, &[run], &settings).unwrap().entries
}

#[test]
fn ablations_reward_nodes_by_their_rule() {
    let plain = entries_under(RewardRule::Own, BaselineRule::LeaveOneOut);
    let root_of = |entry: &rao_replay::trainer::Entry, all: &[rao_replay::trainer::Entry]| {
        all.iter().find(|other| other.rollout == entry.rollout && other.depth.0 == 0).unwrap().clone()
    };
    let sparse = entries_under(RewardRule::Root, BaselineRule::LeaveOneOut);
    assert!(sparse.iter().all(|entry| entry.reward == root_of(entry, &sparse).own));
    assert!(sparse.iter().any(|entry| entry.reward != entry.own), "some child differs from its root");
    let count = entries_under(RewardRule::Count, BaselineRule::GroupMean);
    for (entry, plain) in count.iter().zip(&plain) {
        let bonus = LAMBDA * entry.child_mean * f64::from(entry.children);
        assert!((entry.reward - entry.own - bonus).abs() < 1e-12);
        assert!(entry.children > 1 || entry.reward == plain.reward);
    }
    assert!(count.iter().any(|entry| entry.children > 1 && entry.child_mean > 0.0));
    let roots: Vec<f64> = count[..].iter().filter(|e| e.depth.0 == 0).map(|e| e.reward).take(3).collect();
    assert_eq!(count[0].baseline, (0.0 + roots[0] + roots[1] + roots[2]) / 3.0);
}

/// Training folds a log into its own small table; [`credit_table`] makes the whole of it. Under whatever settings, both leave
/// out the same and the events that training writes are the table's rows.
#[test]
fn training_has_the_credit_tables_rows_under_any_settings() {
    let dir = tempfile::tempdir().unwrap();
    let recording =
        Recording { groups: 4, members: 2, flat: Some(1), cut: Some(7), fork: Some((4, None)), ..Recording::new(1) };
    let log = log_of(dir.path(), recording);
    let plain = Settings { lambda: Some(0.0), ..settings(LossKind::Pg) };
    let mut number = 100;
    let mut compared = |settings: Settings| {
        number += 1;
        let (report, _) = train_logged(&mut trainer(1, &settings), &log, recording.run, run_id(number));
        let table = credit_table(&log, &[recording.run], &settings).unwrap();
        let written: Vec<_> = training_events(&log, run_id(number))
            .into_iter()
            .filter_map(|body| if let Body::CreditAssigned(credit) = body { Some(credit) } else { None })
            .collect();
        assert_eq!(written, table.entries.iter().map(|entry| entry.event(0)).collect::<Vec<_>>(), "{settings:?}");
        assert_eq!(report.left_out, table.left_out, "{settings:?}");
        assert_eq!(rederive(&log, run_id(number)).unwrap().mismatch, None, "{settings:?}");
        (table, report.left_out)
    };
    let (table, left_out) = compared(plain.clone());
    // Of eight rollouts one has no end and one is a fork: two groups are left with a single tree.
    assert_eq!((left_out.incomplete, left_out.forks, left_out.single_groups, left_out.flat_groups), (1, 1, 2, 0));
    let has_flat =
        |table: &rao_replay::trainer::Batch| table.entries.iter().any(|entry| [2, 3].contains(&entry.rollout.0));
    assert!(has_flat(&table) && table.depths.len() > 1);
    let (spread, left_out) = compared(Settings { drop_flat_groups: true, ..plain.clone() });
    assert_eq!((left_out.flat_groups, has_flat(&spread)), (1, false));
    for depth in &spread.depths {
        assert_eq!(depth.count, spread.entries.iter().filter(|entry| entry.depth.0 == depth.depth).count() as u64);
    }
    let (even, _) = compared(Settings { depth_weighting: false, ..plain.clone() });
    assert!(even.entries.iter().all(|entry| entry.weight == 1.0));
    let (_, left_out) = compared(Settings { forks: true, ..plain.clone() });
    assert_eq!((left_out.forks, left_out.single_groups), (0, 1), "the fork makes its group one of two");
    for (reward, baseline) in
        [(RewardRule::Root, BaselineRule::GroupMean), (RewardRule::Count, BaselineRule::LeaveOneOut)]
    {
        compared(Settings { reward, baseline, lambda: None, forks: true, ..plain.clone() });
    }
    compared(Settings { lambda: Some(0.75), ..plain });
}

/// A fork's nodes acted with its base's weights before it and with its own after it.
#[test]
fn a_fork_of_other_weights_is_not_on_policy() {
    for (base, on_policy) in [(None, true), (Some(Digest([7; 32])), false)] {
        let dir = tempfile::tempdir().unwrap();
        let recording = Recording { fork: Some((1, base)), ..Recording::new(1) };
        let log = log_of(dir.path(), recording);
        let settings = Settings { forks: true, ..settings(LossKind::Cispo) };
        assert_eq!(train(&mut trainer(1, &settings), &log, &[recording.run]).unwrap().on_policy, on_policy);
    }
}

/// Verdicts that came after a rollout's end judge it again; its reward stays.
#[test]
fn later_verdicts_change_no_reward() {
    let dir = tempfile::tempdir().unwrap();
    let entries = |judged_again: bool| {
        let dir = dir.path().join(judged_again.to_string());
        let recording = Recording { judged_again, ..Recording::new(1) };
        let log = log_of(&dir, recording);
        let batch = credit_table(&log, &[recording.run], &settings(LossKind::Cispo)).unwrap();
        batch.entries.iter().map(|entry| (entry.own, entry.reward, entry.advantage)).collect::<Vec<_>>()
    };
    assert_eq!(entries(true), entries(false));
}

/// What a step's digest covers: every number that its gradient depends on, and where it came from.
#[test]
fn a_batchs_digest_changes_with_each_of_its_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let entries = credit_table(&log, &[run], &settings(LossKind::Cispo)).unwrap().entries;
    let digest = batch_digest(&entries);
    let changes: [fn(&mut Entry); 7] = [
        |entry| entry.source.seq = Seq(entry.source.seq.0 + 1),
        |entry| entry.node = NodePath::root().child(9),
        |entry| entry.tokens += 1,
        |entry| entry.reward += 0.25,
        |entry| entry.advantage = -entry.advantage - 1.0,
        |entry| entry.weight *= 2.0,
        |entry| entry.count += 1,
    ];
    for (at, change) in changes.iter().enumerate() {
        let mut other = entries.clone();
        change(&mut other[1]);
        assert_ne!(batch_digest(&other), digest, "change {at}");
    }
    let mut swapped = entries.clone();
    swapped.swap(0, 1);
    assert_ne!(batch_digest(&swapped), digest, "the order counts");
    assert_eq!(batch_digest(&entries), digest);
}
