//! Tests of the store as its users see it. One binary, so that it links once.
#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod append_and_read;
mod archive;
mod behind;
mod common;
mod crash;
mod damage;
mod durability;
mod faults;
mod format_page;
mod fuzzed;
mod golden;
mod kill;
mod memory;
mod model;
mod payloads;
mod prune;
mod retry;
mod seal;
mod shared;
mod shared_crash;
mod shared_damage;
