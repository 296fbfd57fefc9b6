//! What the integration tests share.

use rao_policy::{Architecture, Config, Packed, PackedSequence};

/// A small Qwen3 with grouped heads whose width is not a multiple of the vector width.
pub(crate) fn config(vocab_size: usize) -> Config {
    Config {
        architecture: Architecture::Qwen3,
        vocab_size,
        hidden_size: 48,
        intermediate_size: 72,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 20,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        rope_scaling: rao_policy::RopeScaling::None,
        tie_word_embeddings: true,
        max_positions: 512,
        experts: None,
    }
}

/// `len` ids below `vocab_size`, another row for another seed.
pub(crate) fn ids(seed: u64, len: usize, vocab_size: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 20) % vocab_size as u64) as u32
    };
    (0..len).map(|_| next()).collect()
}

/// Sequences with every position a target.
pub(crate) fn packed(sequences: &[Vec<u32>]) -> Packed {
    let sequence = |tokens: &Vec<u32>| PackedSequence { tokens: tokens.clone(), targets: (1..tokens.len()).collect() };
    Packed { sequences: sequences.iter().map(sequence).collect() }
}
