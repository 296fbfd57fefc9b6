//! DeepDive: answer questions of several hops by searching and reading pages.
//!
//! Tools, shapes and judging follow the environment in which the authors of Recursive Agent Optimization trained on the
//! DeepDive data set. Pages come from a search service, from an index in memory, or from a generated world whose
//! questions have one answer each; where the hops of a question are known, delegated sub-questions are judged exactly.

mod block;
pub mod chain;
mod dataset;
mod episode;
pub mod kg;
mod musique;
mod noisy;
mod oracle;
mod prompt;
mod reopen;
mod rows;
pub mod search;
mod settings;
mod tasks;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value as Json, json};

pub use dataset::{DiveQuestion, DiveSet};
pub use episode::DiveEpisode;
pub use musique::{Musique, MusiqueQuestion};
pub use noisy::{MISTAKE_RATE, MISTAKES, Mistake};
pub use oracle::Move;
pub use settings::{DeepDiveConfig, Search};
pub use tasks::{DEEPDIVE_PRESET, MUSIQUE_PRESETS, WALKS};

use crate::{Defaults, EnvError, EnvSettings, Environment, Episode, Guards, Secret, Selection, Task};
use kg::{GraphConfig, World};
use search::{LocalBm25, SearchBackend};
use settings::ENV;
use tasks::{Body, Pages, Source};

/// Version of the task generator: raised whenever equal seeds give other questions.
const GENERATOR: u32 = 1;

/// Worlds that are kept ready; each takes about a megabyte.
const WORLDS: usize = 32;

/// The authors' settings.
const DEFAULTS: Defaults = Defaults {
    max_steps: 25,
    max_steps_flat: 50,
    max_depth: 4,
    lambda: 0.0,
    context: 40_000,
    max_tokens: None,
    output_chars: 20_000,
    guards: Guards { no_while: true, no_input: true },
    shows_ancestors: true,
};

/// The environment. Cheap to share.
pub struct DeepDive {
    config: DeepDiveConfig,
    source: Source,
    /// The digest of the questions, where they are data.
    questions: Option<String>,
    /// The pages that come with the questions.
    passages: Option<Arc<LocalBm25>>,
    /// The back end that the settings name.
    backend: Option<Arc<dyn SearchBackend>>,
    worlds: Mutex<Vec<Arc<World>>>,
    /// Rollouts opened so far. Names lanes of the fair queue, and nothing else depends on it.
    rollouts: AtomicU64,
    /// The settings of the run that this environment was opened again for, where it answers from a recording.
    stored: Option<Json>,
}

impl DeepDive {
    /// An environment; reads its data and connects to nothing yet.
    ///
    /// # Errors
    /// [`EnvError::Data`] for data that cannot be read, [`EnvError::Setting`] for settings that do not fit it.
    pub fn new(config: DeepDiveConfig) -> Result<Self, EnvError> {
        let backend = settings::backend(&config)?;
        let (mut questions, mut passages) = (None, None);
        let source = match &config.data {
            None if backend.is_some() => {
                let reason = "generated questions have pages of their own: leave `search` and `corpus` out, or name questions \
                              with --data";
                return Err(EnvError::Setting { name: "search", reason: reason.to_owned() });
            }
            None => Source::Walks,
            Some(path) => match Musique::folder(path) {
                Some(folder) => {
                    let data = Musique::load(&folder)?;
                    let failed = |error: search::CorpusError| EnvError::Data {
                        file: folder.display().to_string(),
                        reason: error.to_string(),
                    };
                    let digest = data.corpus.digest().to_owned();
                    questions = Some(data.digest);
                    passages = Some(Arc::new(LocalBm25::new(data.corpus).map_err(failed)?));
                    Source::Musique(data.questions, digest)
                }
                None => {
                    let data = DiveSet::load(path)?;
                    if backend.is_none() {
                        let reason = "these questions come without pages: name a service with --env-option search=tavily, or \
                                      a table of pages with --env-option corpus=FILE";
                        return Err(EnvError::Setting { name: "search", reason: reason.to_owned() });
                    }
                    questions = Some(data.digest);
                    Source::Dive(data.questions)
                }
            },
        };
        let (worlds, rollouts) = (Mutex::default(), AtomicU64::new(0));
        Ok(Self { config, source, questions, passages, backend, worlds, rollouts, stored: None })
    }

    /// An environment for tasks that are known already: it has pages and no questions of its own.
    fn with_pages(config: DeepDiveConfig) -> Result<Self, EnvError> {
        let backend = settings::backend(&config)?;
        Ok(Self {
            config,
            source: Source::Dive(Vec::new()),
            questions: None,
            passages: None,
            backend,
            worlds: Mutex::default(),
            rollouts: AtomicU64::new(0),
            stored: None,
        })
    }

    /// The environment that the command line describes.
    ///
    /// # Errors
    /// As [`DeepDive::new`], and for options that are unknown or out of range.
    pub fn from_settings(settings: &EnvSettings) -> Result<Self, EnvError> {
        Self::new(settings::from_command_line(settings)?)
    }

    /// The environment that a manifest describes. `data` is where the run's pages lie: a folder with MuSiQue's files, the
    /// table of pages, or a recording of what a service answered; without a recording, a service is asked again.
    ///
    /// # Errors
    /// When the stored settings cannot be read or their data is not there.
    pub fn reopen(stored: &Json, data: Option<PathBuf>, key: Option<Secret>) -> Result<Self, EnvError> {
        reopen::environment(stored, data, key)
    }

    /// A generated world, made or taken from those that are kept.
    fn world(&self, config: &GraphConfig) -> Result<Arc<World>, EnvError> {
        let lock = || self.worlds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(world) = lock().iter().find(|world| world.config == *config) {
            return Ok(Arc::clone(world));
        }
        let world = Arc::new(World::new(config)?);
        let mut worlds = lock();
        if worlds.len() >= WORLDS {
            worlds.remove(0);
        }
        worlds.push(Arc::clone(&world));
        Ok(world)
    }

    /// Like [`Environment::open`], as the concrete type.
    ///
    /// # Errors
    /// [`EnvError::BadTask`] for a body that is damaged, or that needs pages which are not there.
    pub fn open_question(&self, task: &Task) -> Result<DiveEpisode, EnvError> {
        let bad = |reason: String| EnvError::BadTask { id: task.id.clone(), reason };
        let body: Body = serde_json::from_value(task.body.clone())
            .map_err(|error| bad(format!("its body is not a {ENV} task ({error})")))?;
        let (search, world): (Arc<dyn SearchBackend>, _) = match (&body.pages, &self.backend, &self.passages) {
            (Pages::Graph(config), _, _) => {
                let world = self.world(config).map_err(|error| bad(error.to_string()))?;
                (Arc::clone(&world.index) as _, Some(world))
            }
            (_, Some(backend), _) => (Arc::clone(backend), None),
            // Passages that have changed serve as well: a replay then shows where that matters.
            (Pages::Corpus(_), None, Some(passages)) => (Arc::clone(passages) as _, None),
            (Pages::Corpus(digest), None, None) => {
                return Err(bad(format!(
                    "it needs the passages with digest {digest}; name their folder with `--data`"
                )));
            }
            (Pages::Search, None, _) => {
                return Err(bad("it needs a search service; name one with --env-option search=..".to_owned()));
            }
        };
        let rollout = self.rollouts.fetch_add(1, Ordering::Relaxed);
        Ok(DiveEpisode::new(body, search, world, &self.config.block, rollout))
    }
}

impl Environment for DeepDive {
    fn name(&self) -> &'static str {
        ENV
    }

    fn config(&self) -> Json {
        if let Some(stored) = &self.stored {
            return stored.clone();
        }
        let search = match (&self.backend, &self.passages) {
            (Some(backend), _) => backend.identity(),
            (None, Some(passages)) => passages.identity(),
            (None, None) => json!({ "kind": "generated" }),
        };
        let tasks = match &self.questions {
            Some(digest) => json!({ "data": digest }),
            None => json!({ "generate": GENERATOR }),
        };
        json!({ "tasks": tasks, "search": search, "block": self.config.block })
    }

    fn defaults(&self, _presets: &[String]) -> Defaults {
        DEFAULTS
    }

    fn default_preset(&self) -> &'static str {
        match self.source {
            Source::Walks | Source::Musique(..) => "2hop",
            Source::Dive(_) => DEEPDIVE_PRESET,
        }
    }

    fn default_judges(&self) -> Option<(&'static str, &'static str)> {
        Some(("exact", "root"))
    }

    fn tasks(&self, selection: &Selection) -> Result<Vec<Task>, EnvError> {
        tasks::select(self, selection)
    }

    fn open(&self, task: &Task) -> Result<Box<dyn Episode>, EnvError> {
        Ok(Box::new(self.open_question(task)?))
    }
}
