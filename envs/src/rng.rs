//! Seeded randomness whose results depend on nothing but the seed.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};

/// A counter-based generator, keyed by what it is for and by its seeds.
pub(crate) struct Rng(ChaCha8Rng);

impl Rng {
    /// A generator for `purpose`; equal purposes and parts give equal sequences, others have nothing in common.
    pub(crate) fn new(purpose: &str, parts: &[&[u8]]) -> Self {
        Self(ChaCha8Rng::from_seed(key(purpose, parts)))
    }

    /// Uniform in `0..bound`; 0 if `bound` is 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 {
            return 0;
        }
        // Values past the last whole multiple of `bound` would make small results likelier.
        let zone = u64::MAX - u64::MAX % bound;
        loop {
            let value = self.0.next_u64();
            if value < zone {
                return value % bound;
            }
        }
    }

    /// Uniform in `low..=high`; `low` if the range is empty.
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// Uniform in `0.0..1.0`.
    pub(crate) fn unit(&mut self) -> f64 {
        // 53 bits fill a double's mantissa exactly.
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// One element, or `None` of an empty slice.
    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        items.get(self.below(items.len() as u64) as usize)
    }

    /// An index with probability proportional to its weight; `None` if all weights are zero.
    pub(crate) fn weighted(&mut self, weights: &[u64]) -> Option<usize> {
        let mut left = self.below(weights.iter().sum());
        weights.iter().position(|&weight| {
            let here = left < weight;
            left = left.saturating_sub(weight);
            here
        })
    }

    /// Every order equally likely.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// 64 bits derived from a purpose and its parts.
pub(crate) fn derive(purpose: &str, parts: &[&[u8]]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = key(purpose, parts);
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

fn key(purpose: &str, parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for part in [purpose.as_bytes()].iter().chain(parts) {
        // Lengths keep ("ab", "c") and ("a", "bc") apart.
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_decide_how_often_an_index_comes() {
        let mut rng = Rng::new("test", &[b"1"]);
        let mut hits = [0_u32; 3];
        for _ in 0..6_000 {
            hits[rng.weighted(&[1, 0, 2]).unwrap()] += 1;
        }
        assert_eq!(hits[1], 0);
        assert!((1_800..2_200).contains(&hits[0]), "{hits:?}");
        assert_eq!(rng.weighted(&[0, 0]), None);
    }

    #[test]
    fn parts_cannot_run_into_each_other() {
        assert_ne!(derive("p", &[b"ab", b"c"]), derive("p", &[b"a", b"bc"]));
    }
}
