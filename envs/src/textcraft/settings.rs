//! Settings that are chosen by name, on the command line or in a manifest.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::{TextCraftConfig, tasks};
use crate::{EnvError, EnvSettings};

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

/// Settings as a manifest holds them, without what depends on where the data lies.
#[derive(Deserialize)]
struct Stored {
    verify: Verify,
    worlds: Worlds,
    world: Json,
    oracle_batch: Option<u32>,
    reserve: bool,
    pre_crafted: bool,
    tight: bool,
}

/// The settings of a manifest, with the folder of the authors' files where the run used them.
pub(super) fn from_manifest(stored: &Json, data: Option<PathBuf>) -> Result<TextCraftConfig, EnvError> {
    let stored: Stored = Stored::deserialize(stored).map_err(|error| EnvError::Stored { reason: error.to_string() })?;
    let wanted = stored.world.get("data").and_then(Json::as_str);
    if let (Some(digest), None) = (wanted, &data) {
        let whose =
            if stored.world.get("minecraft").is_some() { "Minecraft's recipes" } else { "TextCraft-Synth's own files" };
        return Err(EnvError::NeedsData { what: format!("{whose} (recipes {digest})") });
    }
    Ok(TextCraftConfig {
        verify: stored.verify,
        data: wanted.and(data),
        worlds: stored.worlds,
        oracle_batch: stored.oracle_batch,
        reserve: stored.reserve,
        pre_crafted: stored.pre_crafted,
        tight: stored.tight,
    })
}

/// The settings of the command line.
pub(super) fn from_command_line(settings: &EnvSettings) -> Result<TextCraftConfig, EnvError> {
    let options = settings.options.known(tasks::ENV, &["verify", "worlds"])?;
    Ok(TextCraftConfig {
        verify: options.read("verify")?.unwrap_or_default(),
        worlds: options.read("worlds")?.unwrap_or_default(),
        data: settings.data.clone(),
        ..TextCraftConfig::default()
    })
}

fn unknown(name: &'static str, given: &str, known: &str) -> EnvError {
    EnvError::Setting { name, reason: format!("`{given}` is not known: choose {known}") }
}
