//! Content digests: what an equal recording has in common with this one.

use crate::error::LogError;
use crate::event::Kind;
use crate::id::{Digest, RunId, Seq, Stream};
use crate::source::{EventSource, Filter, Head};

/// The content digest after one more content event: blake3 over the digest before it (32 bytes), the kind's number and
/// the layout version (2 bytes each, little-endian) and the encoded body. The first event continues 32 zero bytes.
///
/// Clock, run id and sequence number are left out, and so are events whose [`Kind::is_content`] is false.
#[must_use]
pub fn chain_content(previous: Digest, kind: Kind, version: u16, body: &[u8]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&previous.0);
    hasher.update(&kind.code().to_le_bytes());
    hasher.update(&version.to_le_bytes());
    hasher.update(body);
    Digest(*hasher.finalize().as_bytes())
}

/// The content digest of a recorded run: blake3 over the content digest of the run's own stream up to, but not
/// including, its `RunFinished` event, followed for each rollout in order of its number by the number (4 bytes,
/// little-endian) and the rollout's content digest (32 bytes).
///
/// The run's id is no part of it, so two equal recordings have equal digests. Rollouts count whether finished or not.
///
/// # Errors
/// [`LogError::Incomplete`] if the run has no manifest, and whatever reading its own stream meets.
pub fn content_digest_of_run(source: &dyn EventSource, run: RunId) -> Result<Digest, LogError> {
    let mut own = Head::EMPTY.content;
    let mut started = false;
    for frame in source.frames(Stream::Run(run), Seq(0), &Filter::all()) {
        let frame = frame?;
        let kind = frame.kind()?;
        if kind == Kind::RunFinished {
            break;
        }
        started |= kind == Kind::RunStarted;
        if kind.is_content() {
            own = chain_content(own, kind, frame.layout(), frame.body());
        }
    }
    if !started {
        return Err(LogError::Incomplete { run, reason: "it has no run_started event".to_owned() });
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(&own.0);
    for stream in source.streams(run) {
        let Stream::Rollout(_, rollout) = stream else { continue };
        let Some(head) = source.head(stream) else { continue };
        hasher.update(&rollout.0.to_le_bytes());
        hasher.update(&head.content.0);
    }
    Ok(Digest(*hasher.finalize().as_bytes()))
}
