//! Which node an event belongs to, read from its encoded body alone.

use super::Kind;
use crate::id::NodePath;

/// The node that the event belongs to; `None` if its kind belongs to none, or if the body is not one of its layout.
///
/// The node stands at the same place in every layout of a kind so far.
pub(crate) fn node_of(kind: Kind, layout: u16, body: &[u8]) -> Option<NodePath> {
    if layout == 0 || layout > kind.layout() {
        return None;
    }
    let before = match kind {
        Kind::NodeSpawned
        | Kind::SpawnRefused
        | Kind::ContextExtended
        | Kind::ActionSampled
        | Kind::CellStarted
        | Kind::CallIssued
        | Kind::CallAnswered
        | Kind::CellFinished
        | Kind::NodeFinished
        | Kind::Verdict
        | Kind::RewardAssigned => 0,
        // The step, the source's address, the run and the rollout.
        Kind::CreditAssigned => 8 + address_len(body.get(8..)?)? + 16 + 4,
        // The step, the run and the rollout.
        Kind::TrajectoryScored => 8 + 16 + 4,
        Kind::RunStarted
        | Kind::HostFacts
        | Kind::RolloutStarted
        | Kind::RolloutFinished
        | Kind::RunFinished
        | Kind::TrainStarted
        | Kind::TrainStep
        | Kind::TrainFinished
        | Kind::Note => return None,
    };
    let (count, ordinals) = body.get(before..)?.split_first_chunk()?;
    let count = usize::try_from(u64::from_le_bytes(*count)).ok()?;
    let ordinals = ordinals.get(..count.checked_mul(4)?)?.chunks_exact(4);
    let ordinals = ordinals.map(|four| four.try_into().map(u32::from_le_bytes)).collect::<Result<_, _>>().ok()?;
    Some(NodePath::from_ordinals(ordinals))
}

/// The length of an encoded address: the stream's variant (4 bytes), its fields, and the number.
fn address_len(bytes: &[u8]) -> Option<usize> {
    let (variant, _) = bytes.split_first_chunk()?;
    match u32::from_le_bytes(*variant) {
        0 | 2 => Some(4 + 16 + 8),
        1 => Some(4 + 16 + 4 + 8),
        _ => None,
    }
}
