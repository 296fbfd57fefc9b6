//! The environments by name: one arm each to open it from the command line's words, and one from a manifest's.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::deepdive::DeepDive;
use crate::mail::Mail;
use crate::oolong::Oolong;
use crate::textcraft::TextCraft;
use crate::{EnvError, EnvSettings, Environment, Secret};

/// The names, as the command line and manifests write them.
pub const NAMES: &[&str] = &["textcraft", "oolong", "deepdive", "mail"];

/// Opens an environment.
///
/// # Errors
/// When it does not exist, its data cannot be read, or an option is unknown or out of range.
pub fn open(name: &str, settings: &EnvSettings) -> Result<Arc<dyn Environment>, EnvError> {
    match name {
        "deepdive" => Ok(Arc::new(DeepDive::from_settings(settings)?)),
        "textcraft" => Ok(Arc::new(TextCraft::from_settings(settings)?)),
        "oolong" => Ok(Arc::new(Oolong::from_settings(settings)?)),
        "mail" => Ok(Arc::new(Mail::from_settings(settings)?)),
        _ => Err(unknown(name)),
    }
}

/// Opens the environment that a manifest describes: `stored` is what [`Environment::config`] gave. `data` is where its data
/// lies now, for runs that used some.
///
/// # Errors
/// When the environment does not exist, the stored settings cannot be read, or their data is not there.
pub fn reopen(name: &str, stored: &Json, data: Option<PathBuf>) -> Result<Arc<dyn Environment>, EnvError> {
    reopen_with(name, stored, data, None)
}

/// The same with the key of a search service, for runs that asked one.
///
/// # Errors
/// As [`reopen`].
pub fn reopen_with(
    name: &str,
    stored: &Json,
    data: Option<PathBuf>,
    search_key: Option<Secret>,
) -> Result<Arc<dyn Environment>, EnvError> {
    match name {
        "deepdive" => Ok(Arc::new(DeepDive::reopen(stored, data, search_key)?)),
        "textcraft" => Ok(Arc::new(TextCraft::reopen(stored, data)?)),
        "oolong" => Ok(Arc::new(Oolong::reopen(stored, data)?)),
        "mail" => Ok(Arc::new(Mail::reopen(stored, data)?)),
        _ => Err(unknown(name)),
    }
}

fn unknown(given: &str) -> EnvError {
    EnvError::UnknownEnvironment { given: given.to_owned(), known: NAMES.join(", ") }
}
