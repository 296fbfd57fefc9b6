//! What cannot be trained on right is refused by name, and leaves nothing behind.

use rao_replay::trainer::{Class, Flow, LogSink, Resources, Settings, TrainError, Trainer, credit_table, rederive};
use rao_store::event::{Body, Kind, LossKind};
use rao_store::{EventSource, Filter, Reader, Seq, Stream};

use crate::common::{ordinary, settings, train, trainer, training_events};
use crate::support::{Recording, decoder, decoder_with, open, record, run_id, tokenizer};

fn refusal(recording: Recording, settings: &Settings) -> TrainError {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record(&log, &decoder(1), recording);
    train(&mut trainer(1, settings), &log, &[recording.run]).unwrap_err()
}

#[test]
fn what_cannot_be_trained_right_is_refused_by_name() {
    let ordinary = Recording::new(1);
    let cispo = settings(LossKind::Cispo);
    let error = refusal(Recording { scripted: true, ..ordinary }, &cispo);
    assert!(matches!(error, TrainError::NoLogprobs { .. }) && error.to_string().contains("--loss sft"), "{error}");
    let error = refusal(Recording { temperature: 0.0, ..ordinary }, &cispo);
    assert!(matches!(error, TrainError::Temperature { .. }) && error.class() == Class::Usage, "{error}");
    let error = refusal(Recording { broken_prefix: true, ..ordinary }, &cispo);
    assert!(matches!(error, TrainError::Prefix { .. }) && error.class() == Class::Integrity, "{error}");
    let error = refusal(Recording { top_p: 0.9, ..ordinary }, &cispo);
    assert!(matches!(error, TrainError::Truncated { .. }) && error.class() == Class::Usage, "{error}");
    for field in ["own success", "number of children", "child mean", "reward"] {
        let error = refusal(Recording { wrong_reward: Some(field), ..ordinary }, &cispo);
        let named = matches!(error, TrainError::Reward { what, .. } if what == field);
        assert!(named && error.class() == Class::Integrity, "{field}: {error}");
    }
    let error = refusal(Recording { groups: 1, members: 2, cut: Some(1), ..ordinary }, &cispo);
    assert!(matches!(error, TrainError::Nothing(_)) && error.class() == Class::Incomplete, "{error}");
    assert!(error.to_string().contains("1 unfinished rollouts"), "{error}");
}

#[test]
fn another_tokenizer_an_unknown_run_and_bad_settings_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let cispo = settings(LossKind::Cispo);
    let mut other = Trainer::new(decoder(1), b"{}".to_vec(), cispo.clone(), Resources::default()).unwrap();
    let error = train(&mut other, &log, &[run]).unwrap_err();
    assert!(matches!(error, TrainError::Tokenizer { .. }), "{error}");
    let error = train(&mut trainer(1, &cispo), &log, &[run, run]).unwrap_err();
    assert!(error.to_string().contains("twice"), "{error}");
    assert!(train(&mut trainer(1, &cispo), &log, &[run_id(9)]).is_err());
    assert!(matches!(rederive(&log, run_id(9)), Err(TrainError::Nothing(_))));
    let bad = Settings { minibatches: 0, ..cispo };
    let error = Trainer::new(decoder(1), tokenizer(), bad, Resources::default()).err().unwrap();
    assert!(error.to_string().contains("minibatches"), "{error}");
}

#[test]
fn one_flipped_byte_of_a_reward_stops_training() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let stream = Stream::Rollout(run, rao_store::RolloutId(2));
    let reward = log.events(stream, Seq(0), &Filter::kinds([Kind::RewardAssigned])).next().unwrap().unwrap();
    log.close().unwrap();
    let needle = reward.body.encode().unwrap();
    let journal = std::fs::read_dir(dir.path().join("journal")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&journal).unwrap();
    let places: Vec<usize> =
        bytes.windows(needle.len()).enumerate().filter(|(_, w)| *w == needle).map(|(i, _)| i).collect();
    for place in places {
        bytes[place + needle.len() - 3] ^= 0x10;
    }
    std::fs::write(&journal, bytes).unwrap();
    let (reader, _) = Reader::open(dir.path()).unwrap();
    let error = train(&mut trainer(1, &settings(LossKind::Cispo)), &reader, &[run]).unwrap_err();
    assert_eq!(error.class(), Class::Integrity, "{error}");
    assert!(error.to_string().contains('#'), "the event is named: {error}");
}

#[test]
fn a_gradient_that_is_not_finite_is_named_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let model = decoder(1);
    // A finite weight whose gradient overflows: the activations behind it are scaled down by the next matrix.
    let scale = |name: &str, factor: f64| {
        let var = &model.vars()[name];
        var.set(&(var.as_tensor() * factor).unwrap()).unwrap();
    };
    scale("model.layers.0.mlp.down_proj.weight", 1e-37);
    scale("model.layers.0.mlp.up_proj.weight", 1e38);
    let before = model.digest().unwrap();
    let settings = Settings { lambda: Some(1000.0), ..settings(LossKind::Pg) };
    let mut trainer = Trainer::new(model, tokenizer(), settings, Resources::default()).unwrap();
    let mut sink = LogSink::new(&log, run_id(100));
    let error = trainer.train(&log, &[run], &mut sink, &mut |_, _| Ok(Flow::Continue)).unwrap_err();
    let told = error.to_string();
    assert!(told.contains("model.layers.0.mlp.") && told.contains("not finite"), "{told}");
    assert_eq!(trainer.decoder().digest().unwrap(), before);
    log.flush().unwrap();
    let kinds: Vec<Kind> = training_events(&log, run_id(100)).iter().map(Body::kind).collect();
    assert_eq!(kinds, [Kind::TrainStarted], "the step left no trace");
}

#[test]
fn a_trajectory_may_be_as_long_as_the_model_has_positions_and_no_longer() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let settings = settings(LossKind::Pg);
    let batch = credit_table(&log, &[run], &settings).unwrap();
    let longest = batch.entries.iter().map(|entry| entry.length).max().unwrap() as usize;
    let of = |positions: usize| {
        let model = decoder_with(1, |config| config.max_positions = positions);
        let mut trainer = Trainer::new(model, tokenizer(), settings.clone(), Resources::default()).unwrap();
        train(&mut trainer, &log, &[run])
    };
    let (error, longest) = (of(longest - 1).unwrap_err(), longest as u64);
    assert!(
        matches!(error, TrainError::TooLong { tokens, limit, .. } if (tokens, limit) == (longest, longest - 1)),
        "{error}"
    );
    assert!(of(longest as usize).is_ok());
}
