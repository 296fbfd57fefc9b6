//! The environment of a recorded run, opened again.
//!
//! Tasks stand in the log whole, so only pages are needed: those of generated worlds are made again, all others are where
//! `data` says, or are asked for anew.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value as Json;

use super::search::FieldMap;
use super::{DeepDive, DeepDiveConfig, Search};
use crate::{EnvError, Secret};

/// Settings as a manifest holds them.
#[derive(Deserialize)]
struct Stored {
    tasks: Json,
    search: StoredSearch,
    block: Vec<String>,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum StoredSearch {
    Generated,
    Local { corpus: String },
    Tavily { url: String },
    Json { search: String, page: Option<String>, fields: FieldMap },
    Recorded { digest: String },
}

pub(super) fn environment(stored: &Json, data: Option<PathBuf>, key: Option<Secret>) -> Result<DeepDive, EnvError> {
    let Stored { tasks, search, block } =
        Stored::deserialize(stored).map_err(|error| EnvError::Stored { reason: error.to_string() })?;
    let config = DeepDiveConfig { block, key, ..DeepDiveConfig::default() };
    let needs = |what: String| EnvError::NeedsData { what };
    let search = match (search, data) {
        (StoredSearch::Generated, _) => return DeepDive::new(config),
        (StoredSearch::Local { .. }, Some(path)) if path.is_dir() && tasks.get("data").is_some() => {
            return DeepDive::new(DeepDiveConfig { data: Some(path), ..config });
        }
        (StoredSearch::Local { .. }, Some(path)) => Search::Corpus(path),
        (StoredSearch::Local { corpus }, None) => return Err(needs(format!("passages with digest {corpus}"))),
        (StoredSearch::Recorded { .. }, Some(path)) => Search::Recorded(path),
        (StoredSearch::Recorded { digest }, None) => {
            return Err(needs(format!("recorded answers of a search service (digest {digest})")));
        }
        // What the service answered, so the settings are those of the run.
        (StoredSearch::Tavily { .. } | StoredSearch::Json { .. }, Some(path)) => {
            let mut env = DeepDive::with_pages(DeepDiveConfig { search: Search::Recorded(path), ..config })?;
            env.stored = Some(stored.clone());
            return Ok(env);
        }
        (StoredSearch::Tavily { url }, None) => Search::Tavily { url },
        (StoredSearch::Json { search, page, fields }, None) => Search::Json { search, page, fields },
    };
    let mut env = DeepDive::with_pages(DeepDiveConfig { search, ..config })?;
    env.questions = tasks.get("data").and_then(Json::as_str).map(str::to_owned);
    Ok(env)
}
