//! Supervised training: which nodes are learnt from, and in which order.

use rao_replay::trainer::{
    Flow, NoSink, Resources, STATE_FILE, Settings, SftFilter, StepReport, Trainer, credit_table, order,
};
use rao_store::Digest;
use rao_store::event::{Body, LossKind, Outcome};

use crate::common::{log_of, ordinary, settings, train, train_logged, trainer, training_events};
use crate::support::{Recording, decoder, open, record, run_id, tokenizer};

#[test]
fn supervised_training_learns_verified_nodes_from_memory_or_log_alike() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let recording = Recording { scripted: true, ..Recording::new(1) };
    record(&log, &decoder(1), recording);
    let settings = Settings { steps: 40, ..settings(LossKind::Sft) };
    let good = |filter| {
        let settings = Settings { steps: 1, sft_filter: filter, ..settings.clone() };
        train(&mut trainer(3, &settings), &log, &[recording.run]).unwrap().trajectories
    };
    let all = credit_table(&log, &[recording.run], &settings).unwrap().entries;
    assert_eq!(good(SftFilter::All), all.len() as u64);
    assert_eq!(good(SftFilter::Verified), all.iter().filter(|entry| entry.own == 1.0).count() as u64);
    let mut weights = Vec::new();
    for cache_bytes in [0, 300, 1 << 20] {
        let mut losses = Vec::new();
        let resources = Resources { cache_bytes, ..Resources::default() };
        let mut trainer = Trainer::new(decoder(3), tokenizer(), settings.clone(), resources).unwrap();
        let mut watch = |_: &Trainer, step: &StepReport| {
            losses.push(step.loss);
            Ok(Flow::Continue)
        };
        weights.push(trainer.train(&log, &[recording.run], &mut NoSink, &mut watch).unwrap().weights);
        assert!(losses[39] < 0.6 * losses[0], "{losses:?}");
    }
    assert!(weights[0] == weights[1] && weights[1] == weights[2], "where tokens are kept decides nothing");
}

/// Verified is who called `finish` and has own success 1: neither is enough.
#[test]
fn a_node_is_verified_if_it_finished_and_wholly_succeeded() {
    let settings = settings(LossKind::Sft);
    let learnt = |ends| {
        let dir = tempfile::tempdir().unwrap();
        let recording = Recording { ends: Some(ends), ..Recording::new(1) };
        let log = log_of(dir.path(), recording);
        let all = credit_table(&log, &[recording.run], &settings).unwrap().entries;
        let whole = all.iter().filter(|entry| entry.own == 1.0).count() as u64;
        assert!(whole > 0 && all.iter().any(|entry| entry.own > 0.0 && entry.own < 1.0));
        (train(&mut trainer(3, &settings), &log, &[recording.run]).map(|report| report.trajectories), whole)
    };
    let (all_finished, whole) = learnt(Outcome::Finished);
    assert_eq!(all_finished.unwrap(), whole);
    assert!(learnt(Outcome::OutOfSteps).0.unwrap_err().to_string().contains("nothing to train on"));
}

/// Step by step: the digest of a step's trajectories is that of the next ones in the epoch's own order, an epoch ends with
/// what is left, and the next one has another order.
#[test]
fn every_epoch_visits_each_trajectory_once_in_an_order_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let entries = credit_table(&log, &[run], &settings(LossKind::Cispo)).unwrap().entries;
    let batch = 5;
    assert!(!entries.len().is_multiple_of(batch) && entries.len() > 2 * batch, "{} trajectories", entries.len());
    let mut wanted = Vec::new();
    for epoch in 0..3 {
        for places in order(7, epoch, u32::try_from(entries.len()).unwrap()).chunks(batch) {
            let lines = places.iter().map(|place| {
                let entry = &entries[*place as usize];
                format!("{}/{} {} {}\n", entry.run, entry.rollout.0, entry.node, entry.tokens)
            });
            wanted.push((places.len() as u64, Digest::of(lines.collect::<String>().as_bytes())));
        }
    }
    let settings = Settings {
        steps: wanted.len() as u64,
        seed: 7,
        batch_trajectories: batch as u64,
        sft_filter: SftFilter::All,
        ..settings(LossKind::Sft)
    };
    train_logged(&mut trainer(3, &settings), &log, run, run_id(100));
    let steps: Vec<(u64, Digest)> = training_events(&log, run_id(100))
        .iter()
        .filter_map(|body| if let Body::TrainStep(step) = body { Some((step.trajectories, step.batch)) } else { None })
        .collect();
    assert_eq!(steps, wanted);
}

/// The position in the data belongs to that data: another run is begun at its beginning.
#[test]
fn other_data_is_begun_at_its_beginning() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(&dir.path().join("log"));
    for number in [1, 2] {
        record(&log, &decoder(u64::from(number)), Recording::new(number));
    }
    let settings = Settings { sft_filter: SftFilter::All, ..settings(LossKind::Sft) };
    let mut trainer = trainer(3, &settings);
    let mut taken_after = |run: u8| {
        train(&mut trainer, &log, &[run_id(run)]).unwrap();
        let place = dir.path().join("checkpoint");
        trainer.save(&place).unwrap();
        let state: serde_json::Value = serde_json::from_slice(&std::fs::read(place.join(STATE_FILE)).unwrap()).unwrap();
        state["taken"].as_u64().unwrap()
    };
    assert_eq!([1, 1, 2, 2, 1].map(&mut taken_after), [3, 6, 3, 6, 3]);
}
