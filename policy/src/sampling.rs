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

/// Draws the token at `index` of a completion. Its log-probability is that of the model at temperature 1, or if the sampler
/// leaves tokens out ([`Sampler::leaves_out`]), that of the distribution that it was drawn from.
/// None when the logits are not finite.
pub(crate) fn draw(logits: &[f32], sampler: Sampler, key: SampleKey, index: usize) -> Option<(u32, f32)> {
    let (largest, log_sum) = simd(
        #[inline(always)]
        || softmax_parts(logits),
    );
    if !(largest.is_finite() && log_sum.is_finite()) {
        return None;
    }
    if sampler.leaves_out() {
        return Some(from_part(logits, largest, sampler, uniform(key, index)));
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

/// Every id's probability at a temperature, times a common factor.
fn weights(logits: &[f32], largest: f32, temperature: f32) -> Vec<f32> {
    let mut weights = vec![0.0f32; logits.len()];
    simd(
        #[inline(always)]
        || {
            for (weight, x) in weights.iter_mut().zip(logits) {
                *weight = exp((x - largest) / temperature);
            }
        },
    );
    weights
}

/// The first id, in the order of the vocabulary, at which the cumulative probability passes `u`; all sums in f64.
fn inverse_cdf(logits: &[f32], largest: f32, temperature: f32, u: f64) -> usize {
    let weights = weights(logits, largest, temperature);
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

/// Draws from the most probable tokens at the sampler's temperature: first the `top_k` of them, then of those the fewest that
/// together reach `top_p` of their probability. Of equally probable tokens the lowest ids come first.
fn from_part(logits: &[f32], largest: f32, sampler: Sampler, u: f64) -> (u32, f32) {
    let weights = weights(logits, largest, sampler.temperature);
    let before = |a: &u32, b: &u32| {
        let weight = |id: &u32| weights[*id as usize];
        weight(b).total_cmp(&weight(a)).then(a.cmp(b))
    };
    let mut kept: Vec<u32> = (0..weights.len() as u32).collect();
    if sampler.top_k > 0 && (sampler.top_k as usize) < kept.len() {
        kept.select_nth_unstable_by(sampler.top_k as usize, before);
        kept.truncate(sampler.top_k as usize);
    }
    kept.sort_unstable_by(before);
    let weight = |id: &u32| f64::from(weights[*id as usize]);
    let mut total: f64 = kept.iter().map(weight).sum();
    if sampler.top_p < 1.0 {
        let (enough, mut sum, mut count) = (f64::from(sampler.top_p) * total, 0.0, 0);
        while count < kept.len() && (count == 0 || sum < enough) {
            sum += weight(&kept[count]);
            count += 1;
        }
        kept.truncate(count);
        total = sum;
    }
    let (threshold, mut sum, mut drawn) = (u * total, 0.0, kept.first().copied().unwrap_or_default());
    for id in kept.iter().filter(|id| weight(id) > 0.0) {
        sum += weight(id);
        drawn = *id;
        if sum > threshold {
            break;
        }
    }
    (drawn, (weight(&drawn) / total).ln() as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(temperature: f32) -> Sampler {
        Sampler::whole(temperature, 1)
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
    fn what_is_left_out_is_never_drawn_and_the_rest_follows_its_own_distribution() {
        // Probabilities at temperature 1: 0.4, 0.3, 0.2, 0.1.
        let logits: Vec<f32> = [0.2f32, 0.4, 0.1, 0.3].iter().map(|p| p.ln() + 3.0).collect();
        let cases: [(Sampler, &[(u32, f64)]); 5] = [
            (Sampler { top_k: 2, ..sampler(1.0) }, &[(1, 4.0 / 7.0), (3, 3.0 / 7.0)]),
            (Sampler { top_p: 0.65, ..sampler(1.0) }, &[(1, 4.0 / 7.0), (3, 3.0 / 7.0)]),
            (Sampler { top_p: 0.75, ..sampler(1.0) }, &[(1, 4.0 / 9.0), (3, 3.0 / 9.0), (0, 2.0 / 9.0)]),
            // Of the three best, 0.4 is already 0.44 of the whole.
            (Sampler { top_k: 3, top_p: 0.4, ..sampler(1.0) }, &[(1, 1.0)]),
            (Sampler { top_k: 2, ..sampler(0.5) }, &[(1, 16.0 / 25.0), (3, 9.0 / 25.0)]),
        ];
        for (sampler, wanted) in cases {
            let (mut counts, n) = ([0u32; 4], 20_000);
            for i in 0..n {
                let (id, logprob) = draw(&logits, sampler, SampleKey([3; 32]), i as usize).unwrap();
                counts[id as usize] += 1;
                let p =
                    wanted.iter().find(|(kept, _)| *kept == id).unwrap_or_else(|| panic!("{sampler:?} drew {id}")).1;
                assert!((f64::from(logprob) - p.ln()).abs() < 1e-5, "{sampler:?}: {logprob} for {p}");
            }
            for (id, p) in wanted {
                let deviation = (p * (1.0 - p) / f64::from(n)).sqrt();
                let share = f64::from(counts[*id as usize]) / f64::from(n);
                assert!((share - p).abs() <= 4.5 * deviation, "{sampler:?}: {counts:?}");
            }
        }
        // Equals: the lowest ids stay.
        let equal = Sampler { top_k: 2, ..sampler(1.0) };
        assert!((0..50).all(|i| draw(&[1.0; 5], equal, SampleKey([1; 32]), i).unwrap().0 < 2));
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
