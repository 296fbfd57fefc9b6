//! Properties of the losses: derivatives against finite differences, ratios, clipping, and the order of sums.

use proptest::prelude::*;
use rao_replay::objective::{LOSSES, Objective, ObjectiveError, loss_of, name_of};
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
}
