//! Settings that are chosen by name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::EnvError;

/// What counts as a node's success. In every mode `finish` must have been called with a non-empty message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// The stock of every target grew by its count since the node began: the authors' rule.
    #[default]
    Delta,
    /// The node's subtree crafted every target's count itself.
    Ledger,
    /// Scores by `delta` and reports where `ledger` disagrees.
    Both,
}

/// Where generated tasks from easy to extreme take place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Worlds {
    /// In one world for all of them, as the authors' tasks do.
    #[default]
    Shared,
    /// Each in its own, so that recipes must be read.
    Fresh,
}

impl fmt::Display for Verify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Delta => "delta",
            Self::Ledger => "ledger",
            Self::Both => "both",
        })
    }
}

impl FromStr for Verify {
    type Err = EnvError;

    fn from_str(text: &str) -> Result<Self, EnvError> {
        match text {
            "delta" => Ok(Self::Delta),
            "ledger" => Ok(Self::Ledger),
            "both" => Ok(Self::Both),
            _ => Err(unknown("verify", text, "delta, ledger or both")),
        }
    }
}

impl fmt::Display for Worlds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shared => "shared",
            Self::Fresh => "fresh",
        })
    }
}

impl FromStr for Worlds {
    type Err = EnvError;

    fn from_str(text: &str) -> Result<Self, EnvError> {
        match text {
            "shared" => Ok(Self::Shared),
            "fresh" => Ok(Self::Fresh),
            _ => Err(unknown("worlds", text, "shared or fresh")),
        }
    }
}

fn unknown(name: &'static str, given: &str, known: &str) -> EnvError {
    EnvError::Setting { name, reason: format!("`{given}` is not known: choose {known}") }
}
