//! The files of a model folder that say how it writes.

use crate::{PolicyError, files};
use serde_json::Value;
use std::path::Path;

/// Verbatim copies of the files that say how a model writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatFiles {
    /// `tokenizer.json`.
    pub tokenizer: Vec<u8>,
    /// `tokenizer_config.json`: control tokens by name, and often the chat template.
    pub config: Option<Vec<u8>>,
    /// `chat_template.jinja`: the chat template, if it is a file of its own.
    pub template: Option<Vec<u8>>,
    /// `generation_config.json`: the ids that end a completion.
    pub generation: Option<Vec<u8>>,
}

/// The names that [`ChatFiles`] have in a folder, the tokenizer's first.
const NAMES: [&str; 4] = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"];

/// What the files other than the tokenizer say.
#[derive(Default)]
pub(super) struct Described {
    pub(super) template: Option<String>,
    pub(super) bos: Option<String>,
    pub(super) eos: Option<String>,
    /// Ids that end a completion.
    pub(super) ends: Vec<u32>,
}

impl ChatFiles {
    /// Reads the files of a folder; only the tokenizer must be there.
    ///
    /// # Errors
    /// When the tokenizer is missing, or a file cannot be read.
    pub fn read(dir: &Path) -> Result<Self, PolicyError> {
        Ok(Self {
            tokenizer: files::read(dir, NAMES[0])?,
            config: files::read_optional(dir, NAMES[1])?,
            template: files::read_optional(dir, NAMES[2])?,
            generation: files::read_optional(dir, NAMES[3])?,
        })
    }

    /// The files that there are, by name.
    pub fn named(&self) -> Vec<(&'static str, &[u8])> {
        let parts = [Some(&self.tokenizer), self.config.as_ref(), self.template.as_ref(), self.generation.as_ref()];
        NAMES.into_iter().zip(parts).filter_map(|(name, part)| Some((name, part?.as_slice()))).collect()
    }

    /// Writes the files into a folder.
    ///
    /// # Errors
    /// When the folder or a file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), PolicyError> {
        self.named().into_iter().try_for_each(|(name, bytes)| files::write(dir, name, bytes))
    }

    pub(super) fn described(&self) -> Result<Described, PolicyError> {
        let json = |bytes: &Option<Vec<u8>>, name: &str| match bytes {
            None => Ok(Value::Null),
            Some(bytes) => serde_json::from_slice(bytes)
                .map_err(|e| PolicyError::Tokenizer { reason: format!("{name} beside it: {e}") }),
        };
        let (config, generation) = (json(&self.config, NAMES[1])?, json(&self.generation, NAMES[3])?);
        let own = match &self.template {
            None => None,
            Some(bytes) => Some(
                String::from_utf8(bytes.clone())
                    .map_err(|_| PolicyError::Template { reason: format!("{} is not UTF-8", NAMES[2]) })?,
            ),
        };
        let ends = match &generation["eos_token_id"] {
            Value::Array(ids) => ids.iter().filter_map(id).collect(),
            one => id(one).into_iter().collect(),
        };
        let token = |name: &str| token(&config[name]);
        Ok(Described {
            template: own.or_else(|| template(&config["chat_template"])),
            bos: token("bos_token"),
            eos: token("eos_token"),
            ends,
        })
    }
}

fn id(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

/// A token given as its text, or as an object that holds it.
fn token(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned)
}

/// The template, or of several by name the one named `default`.
fn template(value: &Value) -> Option<String> {
    let named = |all: &Vec<Value>| {
        let default = all.iter().find(|one| one["name"] == "default")?;
        default["template"].as_str().map(str::to_owned)
    };
    value.as_str().map(str::to_owned).or_else(|| value.as_array().and_then(named))
}
