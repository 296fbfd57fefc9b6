//! What a step may hold: from a bound in bytes to the number of lanes and whether passes keep checkpoints.
//!
//! Held for the whole training: weights, two moments and the summed gradient of what is trained, the reference, and what the
//! program itself takes. On top come the lanes, each with one micro-batch's gradient and activations. The choice decides time,
//! never results.

use rao_policy::{Decoder, PassOptions};

use super::{Resources, Settings, TrainError};

/// Bytes that the program takes besides tensors: its code, the log's caches, tokens in flight, the index of nodes.
const PROGRAM: u64 = 96 << 20;
/// Freed memory that the allocator has not given back, as a share of what a lane uses: one in so many.
const SLACK: u64 = 4;

/// How passes are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    /// Micro-batches side by side.
    pub lanes: usize,
    /// Whether passes keep checkpoints.
    pub checkpoints: bool,
    /// The bytes that the step takes at most, by the estimate.
    pub bytes: u64,
}

/// The fastest way to run passes within the bound: as many lanes as there are threads, or fewer, without checkpoints if they
/// fit. `longest` is the length of the longest trajectory.
///
/// # Errors
/// When one lane with checkpoints does not fit: names the least that would do.
pub(crate) fn lanes(
    decoder: &Decoder,
    reference: Option<&Decoder>,
    settings: &Settings,
    resources: &Resources,
    longest: u64,
) -> Result<Lanes, TrainError> {
    let rows = settings.micro_tokens.max(longest);
    let of = |lanes: usize, checkpoints: bool| {
        let options = PassOptions { share_prefixes: settings.prefix_sharing, checkpoints };
        let lane = decoder.pass_bytes(rows, options)
            + reference.map_or(0, |other| other.pass_bytes(rows, PassOptions { checkpoints: true, ..options }));
        let cache = if settings.is_sft() { resources.memory.map_or(0, |_| resources.cache_bytes() as u64) } else { 0 };
        let bytes = held(decoder, reference)
            .saturating_add(cache)
            .saturating_add((lane + lane / SLACK).saturating_mul(lanes as u64));
        Lanes { lanes, checkpoints, bytes }
    };
    let most = resources.lanes();
    let Some(bound) = resources.memory else { return Ok(of(most, false)) };
    let choices = (1..=most).rev().flat_map(|lanes| [of(lanes, false), of(lanes, true)]);
    choices.into_iter().find(|choice| choice.bytes <= bound).ok_or_else(|| {
        // Of a model of one block, checkpoints keep no less.
        let needed = of(1, true).bytes.min(of(1, false).bytes);
        TrainError::Memory { bound, needed, rows, longest }
    })
}

/// What is held whatever the lanes are.
fn held(decoder: &Decoder, reference: Option<&Decoder>) -> u64 {
    let own = decoder.parameters();
    let other = reference.map_or(0, |other| {
        let all = other.parameters();
        4 * (all.trained + all.frozen)
    });
    // Weights, moments, gradient, and the largest tensor twice while it is updated, hashed or written.
    PROGRAM + 4 * (own.trained + own.frozen) + 12 * own.trained + 8 * own.largest + other
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoder() -> Decoder {
        let json = r#"{"architectures": ["LlamaForCausalLM"], "vocab_size": 1000, "hidden_size": 64,
            "intermediate_size": 128, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
            "tie_word_embeddings": true, "max_position_embeddings": 4096}"#;
        let config = rao_policy::Config::from_json(json.as_bytes()).unwrap();
        Decoder::init(config, 1).unwrap()
    }

    /// Of what is held whatever the lanes are, nothing is left out: weights, moments and gradient of what is trained, what is
    /// frozen, and a reference's weights and passes.
    #[test]
    fn everything_that_is_held_is_counted() {
        let (plain, settings) = (decoder(), Settings { micro_tokens: 64, ..Settings::default() });
        let bytes = |decoder: &Decoder, reference: Option<&Decoder>, count| {
            let resources = Resources { lanes: count, ..Resources::default() };
            lanes(decoder, reference, &settings, &resources, 64).unwrap().bytes
        };
        // The lanes' share is in proportion to their number.
        let fixed = |decoder: &Decoder, reference: Option<&Decoder>| {
            2 * bytes(decoder, reference, 1) - bytes(decoder, reference, 2)
        };
        let all: u64 = plain.vars().values().map(|var| var.elem_count() as u64).sum();
        let largest = plain.vars().values().map(|var| var.elem_count() as u64).max().unwrap();
        assert_eq!(fixed(&plain, None), PROGRAM + 16 * all + 8 * largest);
        assert_eq!(fixed(&plain, Some(&plain)), fixed(&plain, None) + 4 * all);
        assert!(bytes(&plain, Some(&plain), 1) > bytes(&plain, None, 1) + 4 * all, "its passes take something too");
        let config = rao_policy::AdapterConfig { rank: 2, alpha: 4.0, targets: vec!["q_proj".to_owned()] };
        let adapted = decoder().with_adapter(config, 1).unwrap();
        let trained: u64 = adapted.vars().values().map(|var| var.elem_count() as u64).sum();
        assert!(trained < all / 10);
        assert!(
            fixed(&adapted, None) >= PROGRAM + 4 * all + 16 * trained && fixed(&adapted, None) < fixed(&plain, None)
        );
    }

    #[test]
    fn less_memory_takes_checkpoints_then_lanes_and_then_refuses() {
        let (decoder, settings) = (decoder(), Settings { micro_tokens: 2048, ..Settings::default() });
        let choose = |memory, longest| {
            let resources = Resources { lanes: 3, memory, ..Resources::default() };
            lanes(&decoder, None, &settings, &resources, longest)
        };
        let free = choose(None, 100).unwrap();
        assert_eq!((free.lanes, free.checkpoints), (3, false));
        let (mut last, mut seen) = (free, vec![(3, false)]);
        let refused = loop {
            match choose(Some(last.bytes - 1), 100) {
                Ok(next) => {
                    assert!(next.bytes < last.bytes);
                    seen.push((next.lanes, next.checkpoints));
                    last = next;
                }
                Err(error) => break error.to_string(),
            }
        };
        assert!(seen.contains(&(3, true)), "{seen:?}");
        assert_eq!(seen.last(), Some(&(1, true)), "{seen:?}");
        assert!(refused.contains("--memory") && refused.contains("--micro-tokens"), "{refused}");
        assert!(choose(None, 4000).unwrap().bytes > free.bytes, "a long trajectory is a micro-batch of its own");
    }
}
