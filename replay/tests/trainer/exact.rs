//! The trainer's numbers are the sampler's and the reference's, however the work is cut up.

use std::path::Path;

use rao_replay::objective::Objective;
use rao_replay::trainer::{
    Batching, Gradient, Outcome, Piece, Settings, StepReport, Terms, credit_table, gradient, rederive,
};
use rao_replay::trainer::{Flow, LogSink};
use rao_store::event::LossKind;

use crate::common::{BATCHING, ordinary, pieces, settings, trainer};
use crate::support::{decoder, run_id};

#[test]
fn on_policy_the_trainer_has_the_samplers_own_logprobs_and_the_log_gives_every_number_again() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    for (number, loss) in [LossKind::Pg, LossKind::Is, LossKind::Ppo, LossKind::Cispo].into_iter().enumerate() {
        let training = run_id(100 + number as u8);
        let settings = Settings { minibatches: 2, epochs: 2, ..settings(loss) };
        let mut trainer = trainer(1, &settings);
        let mut steps: Vec<StepReport> = Vec::new();
        let mut sink = LogSink::new(&log, training);
        let report = trainer
            .train(&log, &[run], &mut sink, &mut |_, step| {
                steps.push(step.clone());
                Ok(Flow::Continue)
            })
            .unwrap();
        log.flush().unwrap();
        assert!(report.on_policy);
        assert_eq!((report.steps, steps.len()), (4, 4));
        assert_eq!((steps[0].equal, steps[0].mean_ratio, steps[0].clip_fraction), (steps[0].tokens, 1.0, 0.0));
        assert!(steps[2].equal < steps[2].tokens, "after a step the ratios have moved");
        assert_ne!(steps[0].weights_before, steps[0].weights_after);
        assert_eq!(steps[1].weights_before, steps[0].weights_after);
        let again = rederive(&log, training).unwrap();
        assert_eq!(again.mismatch, None);
        assert_eq!((again.steps, again.losses, again.credits), (4, 2 * report.trajectories, 2 * report.trajectories));
        let tokens: u64 = steps.iter().map(|step| step.tokens).sum();
        assert_eq!(again.tokens, tokens);
    }
}

#[test]
fn a_full_batch_gradient_is_the_sum_of_its_streamed_micro_batches() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let settings = settings(LossKind::Cispo);
    let batch = credit_table(&log, &[run], &settings).unwrap();
    let (model, tokens) = (decoder(2), batch.tokens());
    let lengths: Vec<u64> = batch.entries.iter().map(|entry| entry.length).collect();
    let of = |micro_tokens, lanes, share_prefixes| {
        let mut pieces = pieces(&log, &batch.entries);
        let batching = Batching { micro_tokens, share_prefixes, checkpoints: lanes == 2, lanes };
        let objective = &settings.objective;
        let terms = Terms { objective, loss_tokens: tokens, reference: None, kl_coefficient: 0.0 };
        let mut outcomes = Vec::new();
        let mut seen = |more: Vec<Outcome>| {
            outcomes.extend(more);
            Ok(())
        };
        let (gradient, sums) = gradient(&model, &terms, &lengths, &mut pieces, &batching, &mut seen).unwrap();
        (gradient, sums, outcomes)
    };
    let (whole, sums, outcomes) = of(1 << 30, 1, false);
    assert_eq!((sums.micro_batches, sums.model_tokens), (1, sums.summed_tokens));
    let close = |parts: &Gradient| {
        for ((name, whole), parts) in model.vars().keys().zip(&whole.0).zip(&parts.0) {
            let scale = whole.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            let error = whole.iter().zip(parts).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(scale > 0.0 && error <= 1e-5 * scale, "{name}: {error} of {scale}");
        }
    };
    for share_prefixes in [false, true] {
        let (parts, again, same) = of(100, 1, share_prefixes);
        assert!(again.micro_batches > 5);
        assert_eq!(sums.loss.to_bits(), again.loss.to_bits(), "the loss does not know of micro-batches");
        assert_eq!(outcomes, same, "nor does an outcome, or their order");
        for lanes in [2, 3] {
            let (side_by_side, _, same) = of(100, lanes, share_prefixes);
            assert_eq!(parts, side_by_side, "lanes and checkpoints decide nothing");
            assert_eq!(outcomes, same);
        }
        close(&parts);
    }
    let (shared, distinct, same) = of(1 << 30, 1, true);
    assert_eq!(outcomes, same);
    assert_eq!((distinct.micro_batches, distinct.summed_tokens), (1, sums.summed_tokens));
    assert!(distinct.model_tokens < sums.model_tokens, "{} of {}", distinct.model_tokens, sums.model_tokens);
    close(&shared);
}

#[test]
fn the_gradients_of_all_losses_equal_the_reference() {
    let Some(root) = std::env::var_os("RAO_LOG_VECTORS") else {
        println!("skipped: RAO_LOG_VECTORS is not set");
        return;
    };
    let mut compared = 0;
    for name in ["llama", "llama-tied", "qwen3"] {
        let folder = Path::new(&root).join("models").join(name);
        let model = rao_policy::Decoder::load(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let case: Vec<serde_json::Value> =
            serde_json::from_slice(&std::fs::read(folder.join("case.json")).unwrap()).unwrap();
        let expected = std::fs::read(folder.join("expected.safetensors")).unwrap();
        let expected = safetensors::SafeTensors::deserialize(&expected).unwrap();
        for (loss, loss_name) in rao_replay::objective::LOSSES {
            let objective = rao_replay::objective::Objective::new(loss);
            let pieces: Vec<Piece> = case.iter().map(|value| vector_piece(value, loss)).collect();
            let tokens = pieces.iter().map(|piece| piece.sequence.targets.len() as u64).sum();
            let lengths: Vec<u64> = pieces.iter().map(|piece| piece.sequence.tokens.len() as u64).collect();
            let mut given = pieces.into_iter().map(Ok);
            let terms = Terms { objective: &objective, loss_tokens: tokens, reference: None, kl_coefficient: 0.0 };
            let batching = Batching { micro_tokens: lengths.iter().sum::<u64>() / 2, ..BATCHING };
            let (got, sums) = gradient(&model, &terms, &lengths, &mut given, &batching, &mut |_| Ok(())).unwrap();
            assert!(sums.micro_batches > 1);
            for (tensor, got) in model.vars().keys().zip(&got.0) {
                let wanted = expected.tensor(&format!("grad.{loss_name}.{tensor}")).unwrap();
                let wanted: Vec<f32> =
                    wanted.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
                let scale = wanted.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
                let error = got.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(
                    got.len() == wanted.len() && error <= 1e-3 * scale,
                    "{name} {loss_name} {tensor}: {error} of {scale}"
                );
                compared += 1;
            }
        }
    }
    assert!(compared > 200);
}

fn vector_piece(value: &serde_json::Value, loss: LossKind) -> Piece {
    let list = |key: &str| value[key].as_array().unwrap().clone();
    let targets: Vec<usize> =
        list("mask").iter().enumerate().filter(|(_, mask)| mask.as_u64() == Some(1)).map(|(at, _)| at).collect();
    let old = list("old_logprobs");
    let stored = targets.iter().map(|at| old[*at].as_f64().unwrap() as f32);
    Piece {
        run: run_id(0),
        rollout: rao_store::RolloutId(0),
        node: rao_store::NodePath::root(),
        coefficient: value["coefficient"].as_f64().unwrap(),
        stored: if loss == LossKind::Sft { Vec::new() } else { stored.collect() },
        sequence: rao_policy::PackedSequence {
            tokens: list("tokens").iter().map(|id| id.as_u64().unwrap() as u32).collect(),
            targets,
        },
    }
}

/// Of a uniform distribution the entropy is the logarithm of the vocabulary's size, and with a `ratio_max` below 1 every ratio
/// of an on-policy batch is clipped: both are means over tokens, whatever the trajectories' lengths.
#[test]
fn entropy_and_clip_fraction_are_means_over_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let batch = credit_table(&log, &[run], &settings(LossKind::Cispo)).unwrap();
    let lengths: Vec<u64> = batch.entries.iter().map(|entry| entry.length).collect();
    let objective = Objective { ratio_max: 0.5, ..Objective::new(LossKind::Cispo) };
    let sums_of = |model: &rao_policy::Decoder| {
        let terms = Terms { objective: &objective, loss_tokens: batch.tokens(), reference: None, kl_coefficient: 0.0 };
        let mut outcomes = Vec::new();
        let mut seen = |more: Vec<Outcome>| {
            outcomes.extend(more);
            Ok(())
        };
        let mut pieces = pieces(&log, &batch.entries);
        let (_, sums) = gradient(model, &terms, &lengths, &mut pieces, &BATCHING, &mut seen).unwrap();
        (sums, outcomes)
    };
    let (sums, outcomes) = sums_of(&decoder(1));
    assert!(batch.entries.iter().any(|entry| entry.tokens > 1));
    assert_eq!((sums.tokens, sums.clip_fraction()), (batch.tokens(), 1.0));
    let total: f64 = outcomes.iter().map(|outcome| outcome.entropy).sum();
    assert!((sums.mean_entropy() - total / batch.tokens() as f64).abs() < 1e-12);
    let uniform = decoder(1);
    let embedding = &uniform.vars()["model.embed_tokens.weight"];
    embedding.set(&embedding.zeros_like().unwrap()).unwrap();
    let (sums, _) = sums_of(&uniform);
    assert!((sums.mean_entropy() - 264f64.ln()).abs() < 1e-5, "{}", sums.mean_entropy());
}
