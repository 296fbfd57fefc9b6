//! Layouts of bodies that came after the first, and how the older ones are read and written.
//!
//! A body is written in the oldest layout that can hold it. So a program that does not know a newer layout still reads
//! every log that has no use for it, and what was written before has the same bytes and digests today.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::spawned::{self, Context};
use super::tree::{ActionSampled, LogProbKind, NodeSpawned, SamplerSettings, StopReason};
use super::{Body, BodyError, Kind, MAX_BODY};
use crate::id::{LogProb, NodePath, PolicyVersion, TokenId};

/// The newest layout of a kind.
pub(super) fn newest(kind: Kind) -> u16 {
    match kind {
        Kind::ActionSampled | Kind::NodeSpawned => 2,
        _ => 1,
    }
}

/// The layout that a body is written in.
pub(super) fn of(body: &Body) -> u16 {
    match body {
        Body::ActionSampled(action) if !fits_first(action) => 2,
        Body::NodeSpawned(NodeSpawned { context: Context::Piece { .. }, .. }) => 2,
        _ => 1,
    }
}

/// Whether layout 1 can hold the action: it knows neither truncation nor what only servers do.
fn fits_first(action: &ActionSampled) -> bool {
    action.sampler.is_whole()
        && matches!(action.logprob_kind, LogProbKind::Absent | LogProbKind::Model)
        && !matches!(action.stop, StopReason::Server | StopReason::Asked)
}

/// Layout 1 of `action_sampled`.
#[derive(Serialize, Deserialize)]
struct FirstAction {
    node: NodePath,
    step: u32,
    text: String,
    at: u32,
    tokens: Vec<TokenId>,
    logprobs: Vec<LogProb>,
    logprob_kind: LogProbKind,
    temperature: f32,
    max_tokens: u32,
    stop: StopReason,
    policy_version: PolicyVersion,
}

impl FirstAction {
    fn newest(self) -> ActionSampled {
        ActionSampled {
            node: self.node,
            step: self.step,
            text: self.text,
            at: self.at,
            tokens: self.tokens,
            logprobs: self.logprobs,
            logprob_kind: self.logprob_kind,
            sampler: SamplerSettings::whole(self.temperature, self.max_tokens),
            stop: self.stop,
            policy_version: self.policy_version,
        }
    }
}

/// The same fields by reference: bodies are written far more often than they are large enough to copy for nothing.
#[derive(Serialize)]
struct FirstActionRef<'a> {
    node: &'a NodePath,
    step: u32,
    text: &'a str,
    at: u32,
    tokens: &'a [TokenId],
    logprobs: &'a [LogProb],
    logprob_kind: LogProbKind,
    temperature: f32,
    max_tokens: u32,
    stop: StopReason,
    policy_version: PolicyVersion,
}

/// The bytes of a body that an older layout holds.
pub(super) fn encode_older(body: &Body) -> Option<Result<Vec<u8>, bincode::error::EncodeError>> {
    let action = match body {
        Body::NodeSpawned(body) => return spawned::encode_first(body),
        Body::ActionSampled(action) => action,
        _ => return None,
    };
    fits_first(action).then(|| {
        let first = FirstActionRef {
            node: &action.node,
            step: action.step,
            text: &action.text,
            at: action.at,
            tokens: &action.tokens,
            logprobs: &action.logprobs,
            logprob_kind: action.logprob_kind,
            temperature: action.sampler.temperature,
            max_tokens: action.sampler.max_tokens,
            stop: action.stop,
            policy_version: action.policy_version,
        };
        bincode::serde::encode_to_vec(&first, bincode::config::legacy())
    })
}

/// A body in a layout that is not the newest of its kind.
pub(super) fn decode_older(kind: Kind, version: u16, bytes: &[u8]) -> Option<Result<Body, BodyError>> {
    match (kind, version) {
        (Kind::NodeSpawned, 1) => return Some(spawned::decode_first(bytes)),
        (Kind::ActionSampled, 1) => {}
        _ => return None,
    }
    let read = decode::<FirstAction>(kind, bytes).map(FirstAction::newest).and_then(|action| {
        if fits_first(&action) {
            return Ok(Body::ActionSampled(action));
        }
        let source = bincode::error::DecodeError::Other("a value that layout 1 does not have");
        Err(BodyError::Codec { kind: kind.name(), source })
    });
    Some(read)
}

/// Reads bytes as one value; bytes behind it are an error.
pub(super) fn decode<T: DeserializeOwned>(kind: Kind, bytes: &[u8]) -> Result<T, BodyError> {
    // Lengths inside the bytes are untrusted: the limit keeps a forged one from reserving memory.
    let config = bincode::config::legacy().with_limit::<MAX_BODY>();
    let (body, read): (T, usize) = bincode::serde::decode_from_slice(bytes, config)
        .map_err(|source| BodyError::Codec { kind: kind.name(), source })?;
    if read != bytes.len() {
        return Err(BodyError::Trailing { kind: kind.name(), extra: bytes.len() - read });
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(kind: LogProbKind, top_p: f32, stop: StopReason) -> Body {
        let logprobs = if kind == LogProbKind::Absent { vec![] } else { vec![LogProb(-0.5), LogProb(-1.25)] };
        Body::ActionSampled(ActionSampled {
            node: NodePath::root(),
            step: 3,
            text: "hi".into(),
            at: 7,
            tokens: vec![TokenId(5), TokenId(6)],
            logprobs,
            logprob_kind: kind,
            sampler: SamplerSettings { top_p, ..SamplerSettings::whole(1.0, 64) },
            stop,
            policy_version: PolicyVersion(2),
        })
    }

    #[test]
    fn an_action_is_written_in_the_oldest_layout_that_holds_it() {
        for (body, layout) in [
            (action(LogProbKind::Absent, 1.0, StopReason::Scripted), 1),
            (action(LogProbKind::Model, 1.0, StopReason::CellEnd), 1),
            (action(LogProbKind::Model, 0.9, StopReason::CellEnd), 2),
            (action(LogProbKind::Served, 1.0, StopReason::CellEnd), 2),
            (action(LogProbKind::Sampled, 0.5, StopReason::CellEnd), 2),
            (action(LogProbKind::Unknown, 1.0, StopReason::CellEnd), 2),
            (action(LogProbKind::Absent, 1.0, StopReason::Server), 2),
            (action(LogProbKind::Absent, 1.0, StopReason::Asked), 2),
            (action(LogProbKind::Model, 1.0, StopReason::Asked), 2),
        ] {
            assert_eq!(body.version(), layout);
            let bytes = body.encode().unwrap();
            assert_eq!(Body::decode(Kind::ActionSampled, layout, &bytes).unwrap(), body);
            let other = 3 - layout;
            assert!(Body::decode(Kind::ActionSampled, other, &bytes).is_err(), "layout {layout} read as {other}");
        }
    }

    #[test]
    fn layout_1_has_no_values_of_layout_2() {
        let bytes = action(LogProbKind::Model, 1.0, StopReason::CellEnd).encode().unwrap();
        let kind_at = bytes.len() - (4 + 4 + 4 + 4 + 8);
        assert_eq!(bytes.get(kind_at..kind_at + 4), Some(&[1, 0, 0, 0][..]));
        let mut forged = bytes;
        *forged.get_mut(kind_at).unwrap() = 2;
        assert!(matches!(Body::decode(Kind::ActionSampled, 1, &forged), Err(BodyError::Codec { .. })));
        assert!(matches!(Body::decode(Kind::ActionSampled, 3, &forged), Err(BodyError::Version { .. })));
        assert!(matches!(Body::decode(Kind::Note, 2, &forged), Err(BodyError::Version { .. })));
    }
}
