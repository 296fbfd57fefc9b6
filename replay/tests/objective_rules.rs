//! Properties of the losses: derivatives against finite differences, ratios, clipping, and the order of sums.

use proptest::prelude::*;
use rao_replay::objective::{LOSSES, Objective, ObjectiveError, kl_term, loss_of, name_of};
use rao_store::event::LossKind;

const EIGHTH: f32 = 0.125;

#[test]
fn on_policy_every_ratio_is_exactly_one() {
    let logprobs = [-0.1, -7.25, -1e-7, -33.0];
    for (loss, _) in LOSSES.into_iter().filter(|(loss, _)| *loss != LossKind::Sft) {
        let share = Objective::new(loss).share(0.5, &logprobs, &logprobs, 4).unwrap();
        assert_eq!((share.ratios, share.clipped, share.equal), (4.0, 0, 4));
    }
}

#[test]
fn on_policy_is_ppo_and_cispo_have_the_gradient_of_eq5_as_a_token_mean() {
    let logprobs = [-0.5, -2.0, -0.25];
    let pg = Objective::new(LossKind::Pg).share(-1.5, &logprobs, &logprobs, 10).unwrap();
    assert_eq!(pg.derivatives, [1.5, 1.5, 1.5]);
    assert_eq!(pg.loss, 1.5 * -2.75, "Eq. 5 as printed: a sum, whatever the number of tokens");
    for loss in [LossKind::Is, LossKind::Ppo, LossKind::Cispo] {
        let share = Objective::new(loss).share(-1.5, &logprobs, &logprobs, 10).unwrap();
        assert_eq!(share.derivatives, [0.15, 0.15, 0.15]);
    }
}

#[test]
fn cispo_weighs_by_the_clipped_ratio_and_holds_it_constant() {
    let share = Objective::new(LossKind::Cispo).share(2.0, &[-1.0, -1.0], &[-1.5, -9.0], 1).unwrap();
    assert!((share.derivatives[0] + 2.0 * 0.5_f64.exp()).abs() < 1e-12);
    assert_eq!(share.derivatives[1], -10.0, "a ratio of e^8 counts as 5");
    assert_eq!(share.clipped, 1);
}

#[test]
fn ppo_takes_the_lesser_value_and_cuts_the_gradient_where_it_is_the_clipped_one() {
    let ppo = Objective::new(LossKind::Ppo);
    // Ratio e^0.5 above 1.2: cut for a good trajectory, not for a bad one; below 0.8 the other way round.
    for (c, current, cut) in [(1.0, 0.5, true), (-1.0, 0.5, false), (1.0, -0.5, false), (-1.0, -0.5, true)] {
        let share = ppo.share(c, &[-1.0 + current], &[-1.0], 1).unwrap();
        assert_eq!((share.derivatives[0] == 0.0, share.clipped == 1), (cut, cut), "{c} {current}");
        let held = if current > 0.0 { 1.2 } else { 0.8 };
        let wanted = if cut { -c * held } else { -c * f64::from(current).exp() };
        assert!((share.loss - wanted).abs() < 1e-6);
    }
}

#[test]
fn sft_is_the_mean_negative_log_likelihood() {
    let share = Objective::new(LossKind::Sft).share(123.0, &[-1.0, -3.0], &[], 8).unwrap();
    assert_eq!((share.loss, share.derivatives.as_slice()), (0.5, [-EIGHTH as f64; 2].as_slice()));
}

#[test]
fn what_has_no_value_is_refused() {
    let cispo = Objective::new(LossKind::Cispo);
    assert_eq!(cispo.share(1.0, &[-1.0; 5], &[-1.0; 4], 5), Err(ObjectiveError::Lengths { current: 5, stored: 4 }));
    let infinite = cispo.share(1.0, &[-1.0, f32::NEG_INFINITY], &[-1.0, -1.0], 2);
    assert!(matches!(infinite, Err(ObjectiveError::NotFinite { index: 1, .. })));
    let overflow = cispo.share(1.0, &[-1.0], &[-3e4], 2);
    assert!(matches!(overflow, Err(ObjectiveError::NotFinite { index: 0, .. })));
}

#[test]
fn names_lead_back_to_losses() {
    for (loss, name) in LOSSES {
        assert_eq!((loss_of(name), name_of(loss)), (Some(loss), name));
        let json = serde_json::to_string(&Objective::new(loss)).unwrap();
        assert_eq!(serde_json::from_str::<Objective>(&json).unwrap(), Objective::new(loss));
    }
    let unknown = serde_json::from_str::<Objective>(r#"{"loss": "grpo"}"#).unwrap_err().to_string();
    assert!(unknown.contains("grpo") && unknown.contains("cispo"), "{unknown}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn derivatives_equal_finite_differences(
        which in 0..5usize,
        c in -2.0..2.0f64,
        // Multiples of 1/64: moving by 1/1024 is exact in f32.
        tokens in prop::collection::vec((-256..-1i32, -40..40i32), 1..6),
    ) {
        let objective = Objective::new(LOSSES[which].0);
        let current: Vec<f32> = tokens.iter().map(|(lp, _)| *lp as f32 / 64.0).collect();
        let stored: Vec<f32> = tokens.iter().map(|(lp, off)| (*lp + off) as f32 / 64.0 + 0.007_812_5).collect();
        let stored: &[f32] = if objective.needs_stored() { &stored } else { &[] };
        let share = objective.share(c, &current, stored, 7).unwrap();
        let step = 1.0 / 1024.0;
        for at in 0..current.len() {
            let moved = |by: f32| {
                let mut moved = current.clone();
                moved[at] += by;
                // CISPO's weight is a constant: its value moves with the log-probability alone.
                match objective.loss {
                    LossKind::Cispo => share.derivatives.iter().zip(&moved).map(|(d, lp)| d * f64::from(*lp)).sum(),
                    _ => objective.share(c, &moved, stored, 7).unwrap().loss,
                }
            };
            let slope = (moved(step) - moved(-step)) / (2.0 * f64::from(step));
            // PPO has kinks at the ends of its clip range; the grid of ratios keeps more than a step away from them.
            prop_assert!((slope - share.derivatives[at]).abs() < 2e-6 * c.abs().max(1.0) * 7.0,
                "{:?}: {} against {}", objective.loss, slope, share.derivatives[at]);
        }
        let again = objective.share(c, &current, stored, 7).unwrap();
        prop_assert_eq!(share.loss.to_bits(), again.loss.to_bits());
    }

    /// Each loss as its formula says, with bounds that differ from one another and from the defaults.
    #[test]
    fn every_loss_is_its_formula_under_any_bounds(
        c in -2.0..2.0f64,
        (clip_low, clip_high, ratio_max) in (0.0..0.9f64, 0.0..3.0f64, 0.1..6.0f64),
        tokens in prop::collection::vec((-6.0..-0.1f32, -2.5..2.5f32), 1..6),
    ) {
        let (m, current) = (7.0, tokens.iter().map(|(lp, _)| *lp).collect::<Vec<f32>>());
        let stored: Vec<f32> = tokens.iter().map(|(lp, off)| lp - off).collect();
        for (loss, _) in LOSSES.into_iter().filter(|(loss, _)| *loss != LossKind::Sft) {
            let objective = Objective { loss, clip_low, clip_high, ratio_max };
            let share = objective.share(c, &current, &stored, 7).unwrap();
            let (mut value, mut clipped) = (0.0, 0);
            for ((now, then), slope) in current.iter().zip(&stored).zip(&share.derivatives) {
                let (lp, r) = (f64::from(*now), (f64::from(*now) - f64::from(*then)).exp());
                let (low, high) = (1.0 - clip_low, 1.0 + clip_high);
                let held = if r < low { low } else if r > high { high } else { r };
                let weight = if r > ratio_max { ratio_max } else { r };
                let (term, wanted, is_clipped) = match loss {
                    LossKind::Pg => (-c * lp, -c, false),
                    LossKind::Is => (-c * r / m, -c * r / m, false),
                    LossKind::Ppo if c * held < c * r => (-c * held / m, 0.0, true),
                    LossKind::Ppo => (-c * r / m, -c * r / m, false),
                    _ => (-c * weight * lp / m, -c * weight / m, r > ratio_max),
                };
                prop_assert!((slope - wanted).abs() < 1e-9 * (1.0 + wanted.abs()), "{loss:?}: {slope} for {wanted}");
                value += term;
                clipped += u64::from(is_clipped);
            }
            prop_assert!((share.loss - value).abs() < 1e-9 * (1.0 + value.abs()), "{loss:?}: {} for {value}", share.loss);
            prop_assert_eq!(share.clipped, clipped, "{:?}", loss);
        }
    }

    /// The KL term's mean over the policy's own samples is KL(policy || reference), not the other way round.
    #[test]
    fn the_kl_term_means_the_divergence_of_the_policy_from_the_reference(
        weights in prop::collection::vec((0.05..1.0f64, 0.05..1.0f64), 2..6),
    ) {
        let (ps, qs) = weights.iter().fold((0.0, 0.0), |(p, q), (a, b)| (p + a, q + b));
        let (mut mean, mut divergence) = (0.0, 0.0);
        for (p, q) in weights.iter().map(|(a, b)| (a / ps, b / qs)) {
            let (term, slope) = kl_term(p.ln() as f32, q.ln() as f32);
            prop_assert!(term >= 0.0);
            prop_assert!((slope - (1.0 - q / p)).abs() < 1e-5 * (1.0 + q / p));
            mean += p * term;
            divergence += p * (p / q).ln();
        }
        prop_assert!((mean - divergence).abs() < 1e-5, "{mean} for {divergence}");
    }
}
