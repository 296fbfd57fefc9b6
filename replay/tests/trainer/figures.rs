//! What a step reports: figures in the log, norms by group, and what the rollouts were like.

use std::collections::BTreeMap;

use rao_replay::optimizer::group_of;
use rao_replay::trainer::{Flow, LogSink, Metrics, Settings, Trainer, credit_table};
use rao_store::event::{Body, LossKind};

use crate::common::{ordinary, settings, train_logged, trainer, training_events};
use crate::support::run_id;

#[test]
fn a_steps_figures_stand_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let settings = Settings { minibatches: 2, ..settings(LossKind::Cispo) };
    let mut steps = Vec::new();
    let mut sink = LogSink::new(&log, run_id(100));
    let report = trainer(1, &settings)
        .train(&log, &[run], &mut sink, &mut |_, step| {
            steps.push(step.clone());
            Ok(Flow::Continue)
        })
        .unwrap();
    log.flush().unwrap();
    let stored: Vec<Metrics> = training_events(&log, run_id(100))
        .iter()
        .filter_map(|body| if let Body::Note(note) = body { Metrics::from_note(note) } else { None })
        .collect();
    assert_eq!(stored.len(), 2);
    for (stored, step) in stored.iter().zip(&steps) {
        assert_eq!((stored.loss, stored.entropy, &stored.groups), (step.loss, step.entropy, &step.groups));
        assert_eq!(Metrics::from_line(&stored.to_line()).as_ref(), Some(stored));
        let squares: f64 = stored.groups.0.values().map(|group| group.gradient.powi(2)).sum();
        assert!((squares.sqrt() - step.gradient_norm).abs() < 1e-9, "groups make up the whole");
        assert!(stored.groups.0.values().all(|group| group.update > 0.0));
        assert!(step.entropy > 0.0 && step.model_tokens < step.summed_tokens);
    }
    let batch = credit_table(&log, &[run], &settings).unwrap();
    let summary = stored[0].batch.as_ref().unwrap();
    assert_eq!((summary, &stored[1].batch), (&report.summary, &None));
    let roots: Vec<_> = batch.entries.iter().filter(|entry| entry.depth.0 == 0).collect();
    assert_eq!(summary.reward.count, roots.len() as u64);
    let mean = roots.iter().map(|entry| entry.reward).sum::<f64>() / roots.len() as f64;
    assert!((summary.reward.mean - mean).abs() < 1e-12);
    assert_eq!(summary.success_by_depth[&1].count, batch.entries.iter().filter(|e| e.depth.0 == 1).count() as u64);
    assert_eq!(summary.success_by_difficulty.len(), 1);
}

/// Norms of updates are those of what the weights really changed by; tokens are the trajectories' own.
#[test]
fn updates_and_tokens_are_what_they_say() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let settings = settings(LossKind::Cispo);
    let mut trainer = trainer(1, &settings);
    let values = |trainer: &Trainer| -> BTreeMap<String, Vec<f32>> {
        let flat = |var: &candle_core::Var| var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        trainer.decoder().vars().iter().map(|(name, var)| (name.clone(), flat(var))).collect()
    };
    let before = values(&trainer);
    let (_, steps) = train_logged(&mut trainer, &log, run, run_id(100));
    let after = values(&trainer);
    let mut squares = BTreeMap::<&str, f64>::new();
    for ((name, before), after) in before.iter().zip(after.values()) {
        let changed = before.iter().zip(after).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum::<f64>();
        *squares.entry(group_of(name)).or_default() += changed;
    }
    assert_eq!(steps.len(), 1);
    let groups = &steps[0].groups.0;
    assert!(groups.keys().map(String::as_str).eq(squares.keys().copied()));
    for (name, square) in squares {
        let told = groups[name].update;
        assert!((told - square.sqrt()).abs() < 1e-9 * told, "{name}: {told} for {}", square.sqrt());
    }
    let entries = credit_table(&log, &[run], &settings).unwrap().entries;
    assert_eq!(steps[0].summed_tokens, entries.iter().map(|entry| entry.length).sum::<u64>());
    assert_eq!(
        (steps[0].tokens, steps[0].trajectories),
        (entries.iter().map(|e| e.tokens).sum(), entries.len() as u64)
    );
}

#[test]
fn a_batchs_summary_is_that_of_its_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let settings = settings(LossKind::Cispo);
    let summary = train_logged(&mut trainer(1, &settings), &log, run, run_id(100)).0.summary;
    let entries = credit_table(&log, &[run], &settings).unwrap().entries;
    let mut trees = BTreeMap::<u32, (u64, u32)>::new();
    for entry in &entries {
        let tree = trees.entry(entry.rollout.0).or_default();
        *tree = (tree.0 + 1, tree.1.max(entry.depth.0));
    }
    let close = |mean: rao_replay::trainer::Mean, values: Vec<f64>| {
        let wanted = values.iter().sum::<f64>() / values.len() as f64;
        assert!(mean.count == values.len() as u64 && (mean.mean - wanted).abs() < 1e-12, "{mean:?} for {values:?}");
    };
    close(summary.nodes, trees.values().map(|(nodes, _)| *nodes as f64).collect());
    close(summary.depth, trees.values().map(|(_, depth)| f64::from(*depth)).collect());
    for (depth, mean) in &summary.success_by_depth {
        close(*mean, entries.iter().filter(|entry| entry.depth.0 == *depth).map(|entry| entry.own).collect());
    }
    let roots: Vec<_> = entries.iter().filter(|entry| entry.depth.0 == 0).collect();
    close(summary.reward, roots.iter().map(|entry| entry.reward).collect());
    close(summary.success_by_difficulty["tiny"], roots.iter().map(|entry| entry.own).collect());
    assert!(entries.iter().any(|entry| entry.reward != entry.own), "the bonus tells reward from success");
}
