//! The KL term: what it compares with, and how it pulls.

use rao_replay::trainer::{Piece, Resources, Settings, Terms, Trainer, credit_table, gradient};
use rao_store::event::LossKind;

use crate::common::{BATCHING, ordinary, pieces, settings, train, trainer};
use crate::support::{decoder, decoder_with, tokenizer};

#[test]
fn a_reference_is_compared_with_and_pulls_when_asked_to() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let digest = |seed| rao_store::Digest(decoder(seed).digest().unwrap()).to_string();
    let with = |reference: u64, kl_coefficient| {
        let settings = Settings { reference: Some(digest(reference)), kl_coefficient, ..settings(LossKind::Cispo) };
        let mut trainer = trainer(1, &settings);
        trainer.set_reference(decoder(reference)).unwrap();
        let report = train(&mut trainer, &log, &[run]).unwrap();
        (report.last.unwrap(), trainer.weights())
    };
    let (same, _) = with(1, 0.0);
    assert_eq!(same.kl, Some(0.0), "the policy itself");
    let (measured, weights) = with(2, 0.0);
    assert!(measured.kl.unwrap() > 0.0);
    let mut alone = trainer(1, &settings(LossKind::Cispo));
    let report = train(&mut alone, &log, &[run]).unwrap();
    assert_eq!((report.last.unwrap().kl, alone.weights()), (None, weights), "at 0 it is only measured");
    let (pulled, moved) = with(2, 0.5);
    assert_eq!((pulled.kl, pulled.loss), (measured.kl, measured.loss), "the loss is told without the KL term");
    assert_ne!(moved, weights);
    let named = Settings { reference: Some(digest(2)), ..settings(LossKind::Cispo) };
    assert!(train(&mut trainer(1, &named), &log, &[run]).unwrap_err().to_string().contains("none was given"));
    assert!(trainer(1, &named).set_reference(decoder(3)).is_err());
    let nothing = Settings { kl_coefficient: 0.1, ..settings(LossKind::Cispo) };
    assert!(Trainer::new(decoder(1), tokenizer(), nothing, Resources::default()).is_err());
}

/// The KL term's gradient is that of its mean over the loss tokens: central differences along it.
#[test]
fn the_kl_terms_gradient_agrees_with_finite_differences() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let settings = settings(LossKind::Pg);
    let batch = credit_table(&log, &[run], &settings).unwrap();
    let lengths: Vec<u64> = batch.entries.iter().map(|entry| entry.length).collect();
    let (model, reference, tokens) = (decoder(2), decoder(3), batch.tokens());
    let of = || {
        // No policy loss: what is left is the KL term.
        let mut pieces = pieces(&log, &batch.entries).map(|piece| Ok(Piece { coefficient: 0.0, ..piece? }));
        let objective = &settings.objective;
        let terms = Terms { objective, loss_tokens: tokens, reference: Some(&reference), kl_coefficient: 1.0 };
        gradient(&model, &terms, &lengths, &mut pieces, &BATCHING, &mut |_| Ok(())).unwrap()
    };
    let (whole, _) = of();
    let name = "model.layers.0.mlp.down_proj.weight";
    let at = model.vars().keys().position(|key| key == name).unwrap();
    let (var, direction) = (&model.vars()[name], &whole.0[at]);
    let length = direction.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
    let start = var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let kl_at = |offset: f64| {
        let moved: Vec<f32> = start
            .iter()
            .zip(direction)
            .map(|(p, g)| (f64::from(*p) + offset * f64::from(*g) / length) as f32)
            .collect();
        var.set(&candle_core::Tensor::from_vec(moved, var.dims(), var.device()).unwrap()).unwrap();
        of().1.mean_kl()
    };
    let step = 0.02;
    let slope = (kl_at(step) - kl_at(-step)) / (2.0 * step);
    assert!(length > 0.0 && (slope - length).abs() < 0.02 * length, "slope {slope:e}, gradient {length:e}");
}

/// What is minimised is `loss + coefficient * mean KL term`, so the gradients add up the same way.
#[test]
fn the_kl_term_is_added_to_the_loss_times_its_coefficient() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let settings = settings(LossKind::Cispo);
    let batch = credit_table(&log, &[run], &settings).unwrap();
    let lengths: Vec<u64> = batch.entries.iter().map(|entry| entry.length).collect();
    let (model, reference) = (decoder(2), decoder(3));
    let of = |with_loss: bool, kl_coefficient: f64| {
        let mut pieces = pieces(&log, &batch.entries).map(|piece| {
            let piece = piece?;
            Ok(Piece { coefficient: if with_loss { piece.coefficient } else { 0.0 }, ..piece })
        });
        let (objective, loss_tokens) = (&settings.objective, batch.tokens());
        let terms = Terms { objective, loss_tokens, reference: Some(&reference), kl_coefficient };
        gradient(&model, &terms, &lengths, &mut pieces, &BATCHING, &mut |_| Ok(())).unwrap().0.0
    };
    let (loss, kl) = (of(true, 0.0), of(false, 1.0));
    for coefficient in [0.5, 3.0] {
        let both = of(true, coefficient);
        for (((name, both), loss), kl) in model.vars().keys().zip(&both).zip(&loss).zip(&kl) {
            let wanted = loss.iter().zip(kl).map(|(loss, kl)| f64::from(*loss) + coefficient * f64::from(*kl));
            let scale = loss.iter().chain(kl).fold(0f32, |most, value| most.max(value.abs()));
            let error =
                both.iter().zip(wanted).map(|(got, wanted)| (f64::from(*got) - wanted).abs()).fold(0.0, f64::max);
            assert!(scale > 0.0 && error < 1e-4 * f64::from(scale), "{name} at {coefficient}: {error} of {scale}");
        }
    }
}

#[test]
fn a_reference_of_another_vocabulary_is_refused() {
    let other = decoder_with(2, |config| config.vocab_size += 1);
    let digest = rao_store::Digest(other.digest().unwrap()).to_string();
    let settings = Settings { reference: Some(digest), ..settings(LossKind::Cispo) };
    let mut trainer = Trainer::new(decoder(1), tokenizer(), settings, Resources::default()).unwrap();
    let error = trainer.set_reference(other).unwrap_err().to_string();
    assert!(error.contains("265 tokens") && error.contains("264"), "{error}");
}
