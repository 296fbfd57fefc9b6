//! Whole rollouts, recorded with the real parts and then replayed, cut off, resumed, changed and forked.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod aligned;
mod arrival;
mod cases;
mod changed;
mod forks;
mod judges;
mod kept;
mod programs;
mod stage;
