//! Oolong: questions about transcripts that are longer than a context window, as the authors of Oolong and of Recursive
//! Agent Optimization set them.
//!
//! Tasks come from rows of the published data sets, from real dialogue with questions whose answers are computed, or from a
//! seeded generator, which is the default. A root is scored as Oolong does; a child whose goal is given as data is scored
//! exactly, any other by a judge.

mod corpus;
mod date;
mod episode;
mod noisy;
mod oracle;
mod prompt;
mod query;
mod question;
mod rows;
mod score;
mod settings;
mod synth;
mod tasks;
mod transcript;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value as Json, json};

pub use corpus::{Series, load as load_corpus, question_id, read_crd3, read_play, window_id};
pub use date::{Date, lenient as read_date};
pub use episode::OolongEpisode;
pub use noisy::{MISTAKE_RATE, MISTAKES, Mistake};
pub use query::{Answer, Finish, Noun, Query, QueryError, Record, Verb};
pub use question::{Asked, about_dialogue};
pub use rows::{Place, Row, Scoring, files as row_files, scan as scan_rows, text_at};
pub use score::{
    AnswerType, Parsed, boxed, score_dnd, score_dnd_strict, score_synth, score_synth_strict, synth_candidate,
};
pub use settings::OolongConfig;
pub use synth::{PRESETS, Preset, Recipe, Window, generate};
pub use transcript::{Line, Player, lines, window};

use crate::{Defaults, EnvError, EnvSettings, Environment, Episode, Guards, Selection, Task, Text};
use episode::RootTask;
use tasks::Body;

/// The name on the command line.
pub const ENV: &str = "oolong";

/// How many characters the oracle reads in one go, at least.
pub const CHUNK: usize = 4_000;

/// Texts of rows are taken up to this many characters, as the authors filter them for training.
pub const MAX_CONTEXT: u64 = 240_000;

/// The environment. Texts are kept once, however many rows and rollouts have them.
#[derive(Debug)]
pub struct Oolong {
    config: OolongConfig,
    source: Source,
    /// Texts in use, by window: a text that no rollout holds any more is made or read again.
    windows: Mutex<BTreeMap<String, Held>>,
}

/// Where tasks come from.
#[derive(Debug)]
enum Source {
    /// The generator.
    Synthetic,
    /// Real dialogue.
    Corpus(Vec<Series>),
    /// Files with rows.
    Rows(Vec<PathBuf>),
}

#[derive(Clone, Debug)]
struct Held {
    text: Text,
    window: Option<Arc<Window>>,
}

/// How many windows are kept.
const KEPT: usize = 64;

impl Oolong {
    /// An environment; looks at the data, if some are given.
    ///
    /// # Errors
    /// [`EnvError::Data`] for data that cannot be read or are none of Oolong's, [`EnvError::Setting`] for a setting out of
    /// range.
    pub fn new(config: OolongConfig) -> Result<Self, EnvError> {
        config.check()?;
        let source = match &config.data {
            None => Source::Synthetic,
            Some(path) if path.is_dir() && corpus::is_corpus(path) => Source::Corpus(corpus::load(path)?),
            Some(path) => {
                let files = rows::files(path)?;
                if files.is_empty() {
                    let reason =
                        "it holds neither rows (.jsonl, .parquet) nor transcripts (C2E001.json) nor plays (.txt)";
                    return Err(EnvError::Data { file: path.display().to_string(), reason: reason.to_owned() });
                }
                Source::Rows(files)
            }
        };
        Ok(Oolong { config, source, windows: Mutex::default() })
    }

    /// The environment that the command line describes.
    ///
    /// # Errors
    /// As [`Oolong::new`], and for options that are unknown or out of range.
    pub fn from_settings(settings: &EnvSettings) -> Result<Self, EnvError> {
        Oolong::new(OolongConfig::from_command_line(settings)?)
    }

    /// The environment that a manifest describes; `data` is where its data lie, for runs that used some.
    ///
    /// # Errors
    /// When the stored settings cannot be read or their data is not there.
    pub fn reopen(stored: &Json, data: Option<PathBuf>) -> Result<Self, EnvError> {
        Oolong::new(OolongConfig::from_manifest(stored, data)?)
    }

    /// Like [`Environment::open`], as the concrete type.
    ///
    /// # Errors
    /// [`EnvError::BadTask`] for a body that is damaged, or whose text is not there any more.
    pub fn open_text(&self, task: &Task) -> Result<OolongEpisode, EnvError> {
        let bad = |reason: String| EnvError::BadTask { id: task.id.clone(), reason };
        let body = Body::from_json(&task.body).map_err(bad)?;
        let held = self.held(&body).map_err(|error| bad(error.to_string()))?;
        if let Some(expected) = &body.digest
            && *expected != digest(&held.text)
        {
            return Err(bad(
                "its text is another one than when the task was made; name the same data with --data".into()
            ));
        }
        let asked = body.asked.as_ref().map(Asked::from_stored).transpose().map_err(bad)?;
        let root = RootTask { question: body.question, answer: body.answer, scoring: body.scoring, asked };
        Ok(OolongEpisode::new(held.text, held.window, root, self.config.chunk))
    }

    /// The text of a task, from memory or made anew.
    fn held(&self, body: &Body) -> Result<Held, EnvError> {
        let key = body.origin.key();
        let known = self.windows.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(held) = known {
            return Ok(held);
        }
        let held = tasks::make(&self.source, &body.origin)?;
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if windows.len() >= KEPT {
            windows.pop_first();
        }
        windows.insert(key, held.clone());
        Ok(held)
    }
}

/// Digest of a text, in hexadecimal.
fn digest(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

impl Environment for Oolong {
    fn name(&self) -> &'static str {
        ENV
    }

    fn config(&self) -> Json {
        let source = match &self.source {
            Source::Synthetic => json!("synthetic"),
            Source::Corpus(series) => {
                let digests: BTreeMap<&str, String> = series
                    .iter()
                    .map(|series| {
                        let all: String = series.episodes.iter().map(|episode| digest(&episode.text)).collect();
                        (series.name.as_str(), digest(&all))
                    })
                    .collect();
                json!({ "corpus": digests })
            }
            // Files of many gigabytes are not read for their digest: every task has its text's.
            Source::Rows(files) => {
                let names: Vec<String> = files
                    .iter()
                    .filter_map(|file| file.file_name().map(|name| name.to_string_lossy().into_owned()))
                    .collect();
                json!({ "rows": names })
            }
        };
        json!({ "source": source, "chunk": self.config.chunk, "max_context": self.config.max_context })
    }

    fn defaults(&self, _presets: &[String]) -> Defaults {
        Defaults {
            max_steps: 15,
            max_steps_flat: 200,
            max_depth: 2,
            lambda: 0.4,
            context: 16_384,
            max_tokens: Some(4_096),
            output_chars: 32_000,
            guards: Guards { no_while: true, no_input: true },
            shows_ancestors: false,
        }
    }

    fn default_preset(&self) -> &'static str {
        match self.source {
            Source::Synthetic => "2k",
            Source::Corpus(_) | Source::Rows(_) => "1ep",
        }
    }

    fn default_judges(&self) -> Option<(&'static str, &'static str)> {
        Some(("exact", "root"))
    }

    fn tasks(&self, selection: &Selection) -> Result<Vec<Task>, EnvError> {
        tasks::select(&self.source, &self.config, selection)
    }

    fn open(&self, task: &Task) -> Result<Box<dyn Episode>, EnvError> {
        Ok(Box::new(self.open_text(task)?))
    }
}
