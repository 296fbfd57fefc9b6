//! Re-execution, credit, objective and trainer of rao-log.

#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

pub mod check;
pub mod credit;
pub mod diff;
pub mod objective;
pub mod optimizer;
pub mod plots;
pub mod recorded;
pub mod regression;
pub mod rejudge;
pub mod schedule;
pub mod spread;
pub mod trainer;
