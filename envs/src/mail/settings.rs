//! Settings that are chosen by name.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::ENV;
use super::reward::RewardKind;
use super::synthetic::Synthetic;
use crate::{EnvError, EnvSettings};

/// The environment's options, as the command line names them.
const OPTIONS: [&str; 4] = ["reward", "read_scope", "questions", "world"];

/// The settings of [`super::Mail`]. The default is the paper's reward on a synthetic mailbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MailConfig {
    /// A file or folder with mail, and perhaps questions.
    pub data: Option<PathBuf>,
    /// How a root's success is reckoned.
    pub reward: RewardKind,
    /// Which mails can be read.
    pub read_scope: ReadScope,
    /// Where questions come from.
    pub questions: QuestionSource,
    /// The mailbox where there is no data.
    pub world: Synthetic,
}

impl MailConfig {
    /// The settings that the command line gives.
    pub(super) fn from_settings(settings: &EnvSettings) -> Result<Self, EnvError> {
        let options = settings.options.known(ENV, &OPTIONS)?;
        let world = match options.read("world")? {
            Some(seed) => Synthetic { seed, ..Synthetic::default() },
            None => Synthetic::default(),
        };
        if settings.data.is_some() && options.get("world").is_some() {
            let reason = "a synthetic mailbox has a seed, one from files has none; leave --data or this out".to_owned();
            return Err(EnvError::Setting { name: "world", reason });
        }
        Ok(Self {
            data: settings.data.clone(),
            reward: options.read("reward")?.unwrap_or_default(),
            read_scope: options.read("read_scope")?.unwrap_or_default(),
            questions: options.read("questions")?.unwrap_or_default(),
            world,
        })
    }
}

/// Where a run's mail came from, as its manifest says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Origin {
    /// Made.
    Synthetic(Synthetic),
    /// Files.
    Files,
}

/// The environment's settings in a manifest: data by digest, not by path. (The engine adds the tools' names.)
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stored {
    origin: Origin,
    mailbox: String,
    questions: Option<String>,
    reward: RewardKind,
    read_scope: ReadScope,
}

impl Stored {
    pub(super) fn new(config: &MailConfig, mailbox: String, questions: Option<String>) -> Self {
        let origin = if config.data.is_some() { Origin::Files } else { Origin::Synthetic(config.world) };
        Self { origin, mailbox, questions, reward: config.reward, read_scope: config.read_scope }
    }

    pub(super) fn read(json: &Json) -> Result<Self, EnvError> {
        serde_json::from_value(json.clone()).map_err(|error| EnvError::Stored { reason: error.to_string() })
    }

    /// The digest of the run's mailbox.
    pub(super) fn digest(&self) -> &str {
        &self.mailbox
    }

    /// The settings to open the environment with again.
    pub(super) fn config(&self, data: Option<PathBuf>) -> Result<MailConfig, EnvError> {
        let (data, world) = match &self.origin {
            Origin::Synthetic(world) => (None, *world),
            Origin::Files if data.is_some() => (data, Synthetic::default()),
            Origin::Files => {
                return Err(EnvError::NeedsData { what: format!("the mailbox with digest {}", self.mailbox) });
            }
        };
        let questions = match self.questions {
            Some(_) => QuestionSource::Auto,
            None => QuestionSource::Generated,
        };
        Ok(MailConfig { data, reward: self.reward, read_scope: self.read_scope, questions, world })
    }
}

/// Which mails `read_email` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReadScope {
    /// Every mail of the mailbox whose id is known, as upstream.
    #[default]
    Any,
    /// Only those from or to the inbox that is asked about.
    Inbox,
}

/// Where questions come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QuestionSource {
    /// From the data folder if it has some, else generated.
    #[default]
    Auto,
    /// Generated, whatever the data folder has.
    Generated,
}

impl FromStr for ReadScope {
    type Err = EnvError;

    fn from_str(text: &str) -> Result<Self, EnvError> {
        match text {
            "any" => Ok(Self::Any),
            "inbox" => Ok(Self::Inbox),
            _ => Err(unknown("read_scope", text, "any or inbox")),
        }
    }
}

impl FromStr for QuestionSource {
    type Err = EnvError;

    fn from_str(text: &str) -> Result<Self, EnvError> {
        match text {
            "auto" => Ok(Self::Auto),
            "generated" => Ok(Self::Generated),
            _ => Err(unknown("questions", text, "auto or generated")),
        }
    }
}

impl FromStr for RewardKind {
    type Err = EnvError;

    fn from_str(text: &str) -> Result<Self, EnvError> {
        match text {
            "rao" => Ok(Self::Rao),
            "art-e" => Ok(Self::ArtE),
            _ => Err(unknown("reward", text, "rao or art-e")),
        }
    }
}

impl fmt::Display for RewardKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rao => "rao",
            Self::ArtE => "art-e",
        })
    }
}

fn unknown(name: &'static str, given: &str, known: &str) -> EnvError {
    EnvError::Setting { name, reason: format!("`{given}` is not known: choose {known}") }
}
