//! One token from a row of logits.

use crate::ops::{exp, simd, softmax_parts};
use crate::sample::{SampleKey, Sampler};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The uniform number in [0, 1) for the token at `index` of the completion that `key` names.
fn uniform(key: SampleKey, index: usize) -> f64 {
    let mut rng = ChaCha8Rng::from_seed(key.0);
    rng.set_word_pos(2 * index as u128);
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// Draws the token at `index` of a completion, and gives its log-probability at temperature 1.
/// None when the logits are not finite.
pub(crate) fn draw(logits: &[f32], sampler: Sampler, key: SampleKey, index: usize) -> Option<(u32, f32)> {
    let (largest, log_sum) = simd(
        #[inline(always)]
        || softmax_parts(logits),
    );
    if !(largest.is_finite() && log_sum.is_finite()) {
        return None;
    }
    let id = if sampler.temperature > 0.0 {
        inverse_cdf(logits, largest, sampler.temperature, uniform(key, index))
    } else {
        // The first of equals.
        logits.iter().position(|x| *x == largest)?
    };
    let logprob = logits.get(id)? - largest - log_sum;
    Some((u32::try_from(id).ok()?, logprob))
}

/// The first id, in the order of the vocabulary, at which the cumulative probability passes `u`; all sums in f64.
fn inverse_cdf(logits: &[f32], largest: f32, temperature: f32, u: f64) -> usize {
    let mut weights = vec![0.0f32; logits.len()];
    simd(
        #[inline(always)]
        || {
            for (weight, x) in weights.iter_mut().zip(logits) {
                *weight = exp((x - largest) / temperature);
            }
        },
    );
    let total: f64 = weights.iter().map(|w| f64::from(*w)).sum();
    let (threshold, mut sum, mut last) = (u * total, 0.0, 0);
    for (id, weight) in weights.iter().enumerate().filter(|(_, w)| **w > 0.0) {
        sum += f64::from(*weight);
        last = id;
        if sum > threshold {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(temperature: f32) -> Sampler {
        Sampler { temperature, max_tokens: 1 }
    }

    #[test]
    fn draws_follow_the_distribution() {
        let logits = [0.5f32, -1.0, 2.0, f32::NEG_INFINITY, 0.0];
        for temperature in [1.0, 0.5, 2.0] {
            let weights: Vec<f64> = logits.iter().map(|x| f64::from(x / temperature).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut counts = [0usize; 5];
            let n = 40_000;
            for i in 0..n {
                let (id, logprob) = draw(&logits, sampler(temperature), SampleKey([7; 32]), i).unwrap();
                counts[id as usize] += 1;
                let at_one: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum::<f64>().ln();
                assert!((f64::from(logprob) - (f64::from(logits[id as usize]) - at_one)).abs() < 1e-6);
            }
            for (count, weight) in counts.iter().zip(&weights) {
                let p = weight / total;
                let deviation = (p * (1.0 - p) / f64::from(n as u32)).sqrt();
                assert!((*count as f64 / f64::from(n as u32) - p).abs() <= 4.5 * deviation, "{counts:?}");
            }
        }
    }

    #[test]
    fn greedy_takes_the_lowest_of_equals_and_keys_decide() {
        assert_eq!(draw(&[1.0, 3.0, 3.0], sampler(0.0), SampleKey([0; 32]), 0).unwrap().0, 1);
        assert!(draw(&[1.0, f32::NAN], sampler(1.0), SampleKey([0; 32]), 0).is_none());
        assert!(draw(&[1.0, f32::INFINITY], sampler(0.0), SampleKey([0; 32]), 0).is_none());
        let first = |key: u8| (0..64).map(|i| uniform(SampleKey([key; 32]), i)).collect::<Vec<_>>();
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
        assert!(first(1).iter().all(|u| (0.0..1.0).contains(u)));
    }
}
