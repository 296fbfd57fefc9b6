//! How noisy policies choose their mistakes.

use crate::Turn;
use crate::rng::Rng;

/// The mistake to make at this turn, already written out, if one is to be made: decided by the rollout's seed, the node and the
/// step. `rate` is how often a turn is spoilt; `spoil` writes a mistake, or says that it does not fit the turn; among those that
/// fit, each is drawn by its weight.
pub(crate) fn draw<M: Copy>(
    label: &str,
    turn: &Turn<'_>,
    rate: f64,
    mistakes: &[(M, u64)],
    spoil: impl Fn(M) -> Option<String>,
) -> Option<String> {
    let node: Vec<u8> = turn.node.iter().flat_map(|ordinal| ordinal.to_le_bytes()).collect();
    let mut rng = Rng::new(label, &[&turn.seed.to_le_bytes(), &node, &turn.step.to_le_bytes()]);
    if rng.unit() >= rate {
        return None;
    }
    let fitting: Vec<(String, u64)> =
        mistakes.iter().filter_map(|&(mistake, weight)| Some((spoil(mistake)?, weight))).collect();
    let weights: Vec<u64> = fitting.iter().map(|fit| fit.1).collect();
    let (text, _) = rng.weighted(&weights).and_then(|chosen| fitting.get(chosen))?;
    Some(text.clone())
}
