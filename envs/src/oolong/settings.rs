//! The environment's settings, from the command line and from manifests.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value as Json;

use super::{CHUNK, ENV, MAX_CONTEXT};
use crate::{EnvError, EnvSettings};

/// The settings of [`Oolong`](super::Oolong).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OolongConfig {
    /// Rows (`.jsonl`, `.parquet`, or a folder of them), transcripts of CRD3 or plays (a folder); without, windows are
    /// generated.
    pub data: Option<PathBuf>,
    /// How many characters the oracle reads in one go, at least. It takes more for texts that would fall into too many
    /// pieces.
    pub chunk: usize,
    /// The longest text of a row that is taken, in characters.
    pub max_context: u64,
}

impl Default for OolongConfig {
    fn default() -> Self {
        OolongConfig { data: None, chunk: CHUNK, max_context: MAX_CONTEXT }
    }
}

#[derive(Deserialize)]
struct Stored {
    source: Json,
    chunk: usize,
    max_context: u64,
}

impl OolongConfig {
    pub(super) fn check(&self) -> Result<(), EnvError> {
        if self.chunk < 200 {
            let reason = format!("{} characters are too few for a piece: give at least 200", self.chunk);
            return Err(EnvError::Setting { name: "chunk", reason });
        }
        Ok(())
    }

    pub(super) fn from_command_line(settings: &EnvSettings) -> Result<Self, EnvError> {
        let options = settings.options.known(ENV, &["chunk", "max-context"])?;
        Ok(OolongConfig {
            data: settings.data.clone(),
            chunk: options.read("chunk")?.unwrap_or(CHUNK),
            max_context: options.read("max-context")?.unwrap_or(MAX_CONTEXT),
        })
    }

    pub(super) fn from_manifest(stored: &Json, data: Option<PathBuf>) -> Result<Self, EnvError> {
        let stored = Stored::deserialize(stored).map_err(|error| EnvError::Stored { reason: error.to_string() })?;
        let what = match (stored.source.get("corpus"), stored.source.get("rows")) {
            (Some(corpus), _) => Some(format!("the dialogue of {}", names(corpus))),
            (_, Some(rows)) => Some(format!("the rows in {}", names(rows))),
            _ => None,
        };
        let data = match (what, data) {
            (None, _) => None,
            (Some(what), None) => return Err(EnvError::NeedsData { what }),
            (Some(_), data) => data,
        };
        Ok(OolongConfig { data, chunk: stored.chunk, max_context: stored.max_context })
    }
}

fn names(json: &Json) -> String {
    let names: Vec<&str> = match json {
        Json::Object(map) => map.keys().map(String::as_str).collect(),
        Json::Array(items) => items.iter().filter_map(Json::as_str).collect(),
        _ => Vec::new(),
    };
    names.join(", ")
}
