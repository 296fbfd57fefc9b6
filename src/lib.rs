//! Regression tests from stored logs, for `cargo test`. Everything else that rao-log does is in its program, and in the
//! crates under it.

#![forbid(unsafe_code)]

pub mod testing;
