//! ART-E: questions about a mailbox, answered with a search and by reading mails.
//!
//! The tools, their texts and both rewards follow the published environment (OpenPipe's ART-E, and its form in Recursive
//! Agent Optimization). Mail comes from files in the usual formats; without any it is a synthetic mailbox of people who
//! do not exist. Questions come from files too, or are generated with exact answers.

mod cell;
mod episode;
mod facts;
mod generate;
mod index;
mod judging;
mod load;
mod mailbox;
mod message;
mod noisy;
mod oracle;
mod pattern;
mod prompt;
mod query;
mod questions;
mod reward;
mod settings;
mod snippet;
mod synthetic;
mod tasks;
mod tokens;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use serde_json::{Value as Json, json};

pub use episode::{MailEpisode, Searched};
pub use facts::{FACTS, Fact, amount, cents, facts};
pub use generate::{Made, Maker, PRESETS, Preset};
pub use mailbox::{Dropped, Hit, MAX_BODY, MAX_RECIPIENTS, MAX_RESULTS, Mailbox, MailboxBuilder, Search, SearchError};
pub use message::{Email, thread_subject};
pub use noisy::{MISTAKE_RATE, MISTAKES, Mistake};
pub use oracle::Move;
pub use query::{End, Gold, Header, NO_ANSWER, Named, Query};
pub use questions::{Asked, EXCLUDED, Questions};
pub use reward::{Attempt, BadCall, Final, LEAST, MOST, RewardKind, Rubric, art_e, folded, unit};
pub use settings::{MailConfig, QuestionSource, ReadScope};
pub use synthetic::Synthetic;

use crate::{Defaults, EnvError, EnvSettings, Environment, Episode, Guards, Selection, Split, Task};
use settings::Stored;
use tasks::{Body, Pool};

/// The environment's name.
pub(crate) const ENV: &str = "mail";

/// The environment. Cheap to share; a synthetic mailbox is made at most once, when it is first needed.
#[derive(Debug)]
pub struct Mail {
    config: MailConfig,
    loaded: Option<Loaded>,
    made: OnceLock<Arc<Mailbox>>,
}

#[derive(Debug)]
struct Loaded {
    mailbox: Arc<Mailbox>,
    questions: Option<Questions>,
}

impl Mail {
    /// An environment; reads the data, if a place is given.
    ///
    /// # Errors
    /// [`EnvError::Data`] for data that cannot be read, or for questions none of which the mailbox can answer.
    pub fn new(config: MailConfig) -> Result<Self, EnvError> {
        let loaded = config.data.as_ref().map(|path| {
            let mailbox = Mailbox::load(path)?;
            let wanted = config.questions == QuestionSource::Auto;
            let questions = if wanted { Questions::load(path, &mailbox)? } else { None };
            if let Some(none) = questions.as_ref().filter(|questions| questions.asked.is_empty()) {
                let reason = format!(
                    "none of its questions is about a mail in the mailbox ({} left out); choose --env-option \
                     questions=generated to have some made",
                    none.excluded + none.unsupported
                );
                return Err(EnvError::Data { file: path.display().to_string(), reason });
            }
            Ok(Loaded { mailbox: Arc::new(mailbox), questions })
        });
        Ok(Self { loaded: loaded.transpose()?, config, made: OnceLock::new() })
    }

    /// An environment from the command line's words.
    ///
    /// # Errors
    /// As [`Mail::new`], and for unknown options or values.
    pub fn from_settings(settings: &EnvSettings) -> Result<Self, EnvError> {
        Self::new(MailConfig::from_settings(settings)?)
    }

    /// The environment that a manifest describes. `data` is where its mail lies now, for runs that used some.
    ///
    /// # Errors
    /// When the stored settings cannot be read, or the mailbox is not there or another one.
    pub fn reopen(stored: &Json, data: Option<PathBuf>) -> Result<Self, EnvError> {
        let stored = Stored::read(stored)?;
        let mail = Self::new(stored.config(data)?)?;
        let found = mail.mailbox()?;
        if found.digest() != stored.digest() {
            let what = format!("the mailbox with digest {}", stored.digest());
            return Err(EnvError::NeedsData { what });
        }
        Ok(mail)
    }

    /// The mailbox.
    ///
    /// # Errors
    /// [`EnvError::Setting`] if a synthetic one cannot be made of the settings.
    pub fn mailbox(&self) -> Result<Arc<Mailbox>, EnvError> {
        if let Some(loaded) = &self.loaded {
            return Ok(Arc::clone(&loaded.mailbox));
        }
        if let Some(made) = self.made.get() {
            return Ok(Arc::clone(made));
        }
        let made = Arc::new(self.config.world.mailbox()?);
        Ok(Arc::clone(self.made.get_or_init(|| made)))
    }

    /// The questions that were loaded, if there are some.
    pub fn questions(&self) -> Option<&Questions> {
        self.loaded.as_ref()?.questions.as_ref()
    }

    /// Like [`Environment::open`], as the concrete type.
    ///
    /// # Errors
    /// [`EnvError::BadTask`] for a body that is damaged, or that is about another mailbox.
    pub fn open_mailbox(&self, task: &Task) -> Result<MailEpisode, EnvError> {
        let bad = |reason: String| EnvError::BadTask { id: task.id.clone(), reason };
        let body = Body::from_json(&task.body).map_err(bad)?;
        let mailbox = self.mailbox()?;
        if body.mailbox != mailbox.digest() {
            let reason = format!("it is about the mailbox with digest {}; name its place with --data", body.mailbox);
            return Err(bad(reason));
        }
        Ok(MailEpisode::new(mailbox, body, self.config.reward, self.config.read_scope))
    }
}

impl Environment for Mail {
    fn name(&self) -> &'static str {
        ENV
    }

    fn config(&self) -> Json {
        let digest = self.mailbox().map(|mailbox| mailbox.digest().to_owned()).unwrap_or_default();
        let questions = self.questions().map(|questions| questions.digest.clone());
        json!(Stored::new(&self.config, digest, questions))
    }

    fn defaults(&self, _presets: &[String]) -> Defaults {
        Defaults {
            max_steps: 15,
            max_steps_flat: 50,
            max_depth: 3,
            lambda: 0.4,
            context: 32_768,
            max_tokens: None,
            output_chars: 20_000,
            guards: Guards { no_while: true, no_input: true },
            shows_ancestors: true,
        }
    }

    fn default_preset(&self) -> &'static str {
        let [easy, ..] = PRESETS;
        easy.name
    }

    fn default_judges(&self) -> Option<(&'static str, &'static str)> {
        Some(("exact", "root"))
    }

    fn tasks(&self, selection: &Selection) -> Result<Vec<Task>, EnvError> {
        let mailbox = self.mailbox()?;
        Pool { mailbox: &mailbox, questions: self.questions() }.select(selection)
    }

    fn open(&self, task: &Task) -> Result<Box<dyn Episode>, EnvError> {
        Ok(Box::new(self.open_mailbox(task)?))
    }
}

/// The name of a split in ids.
fn split_name(split: Split) -> &'static str {
    match split {
        Split::Train => "train",
        Split::Val => "val",
    }
}
