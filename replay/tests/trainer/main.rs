//! The trainer over small real logs: exactness, resumption, threads, streaming, refusals, and recomputation from the log.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod batches;
mod common;
mod exact;
mod figures;
mod rederived;
mod reference;
mod refused;
mod resumed;
mod supervised;
mod support;
