//! What is asked of every server's answer before it becomes a completion.

use super::error::ServedError;
use super::{End, Given, Job, Score};
use crate::Chat;

/// The text that ends a completion.
pub(super) const CELL_END: &str = "</python>";

/// A logarithm of a probability may exceed 0 by what a server's sums round to.
const SLACK: f32 = 1e-3;

/// Why the server says that it stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// At a stop text or an end token.
    Stop,
    /// At the number of tokens asked for.
    Length,
}

/// The prompt must have been taken as it was sent.
pub(super) fn prompt(sent: &[u32], seen: u64, ids: Option<&[u32]>) -> Result<(), ServedError> {
    let first = ids.and_then(|ids| (0..sent.len().max(ids.len())).find(|at| sent.get(*at) != ids.get(*at)));
    if first.is_none() && seen == sent.len() as u64 {
        return Ok(());
    }
    let detail = first.map_or(String::new(), |at| format!(", and they differ from token {at}"));
    Err(ServedError::Retokenized { sent: sent.len(), seen, detail })
}

/// Makes a completion of a server's tokens: one log-probability each, none unknown to the tokenizer, none too many.
/// What follows the first end of a cell or turn is left out, as the local sampler stops there.
pub(super) fn finish(
    chat: &Chat,
    job: &Job,
    mut tokens: Vec<u32>,
    mut logprobs: Vec<f32>,
    score: Score,
    reason: Reason,
) -> Result<Given, ServedError> {
    if tokens.len() != logprobs.len() {
        return Err(ServedError::Counts { tokens: tokens.len(), logprobs: logprobs.len() });
    }
    if let Some(at) = tokens.iter().position(|id| chat.token_bytes(*id).is_none()) {
        let id = tokens.get(at).copied().unwrap_or_default();
        return Err(ServedError::Vocabulary { at, id, size: chat.vocab_size() });
    }
    if let Some(at) = logprobs.iter().position(|value| !value.is_finite() || *value > SLACK) {
        let value = logprobs.get(at).map_or(String::new(), ToString::to_string);
        return Err(ServedError::LogProb { at, value });
    }
    let (asked, given) = (job.room(), tokens.len());
    if given > asked {
        return Err(ServedError::Length { given, asked, reason: "it gave more" });
    }
    let end = match first_end(chat, &tokens) {
        Some((length, end)) => {
            tokens.truncate(length);
            logprobs.truncate(length);
            end
        }
        None => match reason {
            Reason::Length if given < asked => {
                return Err(ServedError::Length {
                    given,
                    asked,
                    reason: "its own context window is full: record with a smaller --context",
                });
            }
            Reason::Stop if given == 0 => {
                return Err(ServedError::Length { given, asked, reason: "an answer has at least one token" });
            }
            _ if given == asked => job.limit(),
            _ => End::Server,
        },
    };
    Ok(Given { text: chat.decode(&tokens), tokens, logprobs, score, end })
}

/// Where the first cell or turn ends: the number of tokens up to there, and how.
pub(super) fn first_end(chat: &Chat, tokens: &[u32]) -> Option<(usize, End)> {
    let mut tail: Vec<u8> = Vec::new();
    let pattern = CELL_END.as_bytes();
    for (at, id) in tokens.iter().enumerate() {
        if chat.ends_completion(*id) {
            return Some((at + 1, End::EndOfTurn));
        }
        tail.extend_from_slice(chat.token_bytes(*id).unwrap_or_default());
        if tail.windows(pattern.len()).any(|text| text == pattern) {
            return Some((at + 1, End::CellEnd));
        }
        tail.drain(..tail.len().saturating_sub(pattern.len() - 1));
    }
    None
}

/// Compares how the server writes a test text with how the tokenizer here does.
pub(super) fn tokenizer(ours: &[u32], theirs: &[u32]) -> Result<(), ServedError> {
    let Some(at) = (0..ours.len().max(theirs.len())).find(|at| ours.get(*at) != theirs.get(*at)) else {
        return Ok(());
    };
    let detail = match (ours.get(at), theirs.get(at)) {
        (Some(ours), Some(theirs)) => format!(" ({ours} here, {theirs} there)"),
        _ => String::new(),
    };
    Err(ServedError::Tokenizer { ours: ours.len(), theirs: theirs.len(), at, detail })
}
