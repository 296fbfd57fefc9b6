//! What several commands need: errors and exit codes, settings in layers, output, and opening things by name.

pub(crate) mod args;
pub(crate) mod credit;
pub(crate) mod cursor;
pub(crate) mod curves;
pub(crate) mod decoding;
pub(crate) mod exit;
pub(crate) mod forks;
pub(crate) mod hints;
pub(crate) mod json;
pub(crate) mod judges;
pub(crate) mod layers;
pub(crate) mod memory;
pub(crate) mod metrics;
pub(crate) mod open;
pub(crate) mod out;
pub(crate) mod places;
pub(crate) mod policies;
pub(crate) mod recording;
pub(crate) mod repls;
pub(crate) mod served;
pub(crate) mod table;
pub(crate) mod training;
pub(crate) mod tuning;
pub(crate) mod worlds;
