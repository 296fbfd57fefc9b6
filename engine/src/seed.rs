//! Where randomness comes from: every seed is derived from the run's seed and from what it is for, so that a rollout
//! is the same whether it is recorded alone or among others, now or after a restart.

use rao_policy::SampleKey;
use rao_store::NodePath;

fn derive(purpose: &str, parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(purpose);
    for part in parts {
        // Lengths keep neighbouring parts apart.
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    *hasher.finalize().as_bytes()
}

fn first_u64(bytes: [u8; 32]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = bytes;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// The seed of the rollout number `member` of a task.
#[must_use]
pub fn rollout(run_seed: u64, task_id: &str, member: u32) -> u64 {
    let parts: [&[u8]; 3] = [&run_seed.to_le_bytes(), task_id.as_bytes(), &member.to_le_bytes()];
    first_u64(derive("rao-log 1 rollout seed", &parts))
}

fn path_bytes(node: &NodePath) -> Vec<u8> {
    node.ordinals().iter().flat_map(|ordinal| ordinal.to_le_bytes()).collect()
}

/// The random stream of a node's completion at `step`.
#[must_use]
pub fn sample_key(rollout_seed: u64, node: &NodePath, step: u32) -> SampleKey {
    let parts: [&[u8]; 3] = [&rollout_seed.to_le_bytes(), &path_bytes(node), &step.to_le_bytes()];
    SampleKey(derive("rao-log 1 sample key", &parts))
}

/// The seed of `random` inside a node's REPL.
#[must_use]
pub fn repl(rollout_seed: u64, node: &NodePath) -> u64 {
    let parts: [&[u8]; 2] = [&rollout_seed.to_le_bytes(), &path_bytes(node)];
    first_u64(derive("rao-log 1 repl seed", &parts))
}

/// The seed of a run's fork number `member`. The first has the run's seed itself, so that a fork with its base's seed and
/// policy goes on as its base did.
#[must_use]
pub fn fork(run_seed: u64, member: u32) -> u64 {
    if member == 0 {
        return run_seed;
    }
    first_u64(derive("rao-log 1 fork seed", &[&run_seed.to_le_bytes(), &member.to_le_bytes()]))
}
