//! `mini`: the small policy that ships inside the program. `scripts/make-mini.sh` makes it from nothing; the digest of
//! the log that it was trained on stands beside the weights.

use crate::{Chat, Limits, LocalPolicy, PolicyError};

const CONFIG: &[u8] = include_bytes!("../mini/config.json");
const TOKENIZER: &[u8] = include_bytes!("../mini/tokenizer.json");
const WEIGHTS: &[u8] = include_bytes!("../mini/model.safetensors");

/// The name under which the policy stands in a log.
pub const MINI: &str = "mini";

/// The policy with its weights.
///
/// # Errors
/// Never for a program built from an intact checkout.
pub fn mini() -> Result<LocalPolicy, PolicyError> {
    LocalPolicy::from_bytes(MINI, CONFIG, TOKENIZER, WEIGHTS, Limits::default())
}

/// The policy's tokenizer.
///
/// # Errors
/// Never for a program built from an intact checkout.
pub fn mini_chat() -> Result<Chat, PolicyError> {
    Chat::from_bytes(TOKENIZER)
}
