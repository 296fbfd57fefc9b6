//! TextCraft-Synth: make a target item from base items through recipes that can only be read with tools, with one
//! inventory shared by the whole execution tree.
//!
//! The rules, texts and worlds follow the environment that the authors of Recursive Agent Optimization published; the
//! recipe generator has their world's shape and naming but its own random numbers.

mod episode;
mod generate;
mod loader;
mod minecraft;
mod noisy;
mod oracle;
mod prompt;
mod recipes;
mod settings;
mod tasks;
mod world;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde::Deserialize as _;
use serde_json::{Value as Json, json};

pub use episode::CraftEpisode;
pub use generate::{DOMAINS, GenConfig, Naming};
pub use loader::{GoldStep, Official, OfficialTask};
pub use minecraft::{MINECRAFT_PRESETS, Minecraft};
pub use noisy::{MISTAKE_RATE, MISTAKES, Mistake};
pub use oracle::Move;
pub use recipes::{Item, ItemId, PlanStep, Recipe, RecipeDb, RecipeError, Shortage, Stock};
pub use settings::{Verify, Worlds};
pub use tasks::{PRESETS, Preset, TaskGen};
pub use world::{Consumed, LedgerEntry, World};

use crate::{Defaults, EnvError, EnvSettings, Environment, Episode, Guards, Selection, Split, Task};
use tasks::{Body, WorldRef};

/// The seed of the generated world that tasks share.
pub const SHARED_SEED: u64 = 42;

/// How many distinct crafts the oracle makes itself, in one cell, before it delegates.
pub const ORACLE_BATCH: u32 = 8;

/// The same for `tiny` tasks, which otherwise would never need a delegation.
pub const ORACLE_BATCH_TINY: u32 = 1;

/// The settings for all but `tiny` tasks.
const DEFAULTS: Defaults = Defaults {
    max_steps: 25,
    max_steps_flat: 200,
    max_depth: 6,
    lambda: 0.0,
    context: 8192,
    max_tokens: None,
    output_chars: 10_000,
    guards: Guards { no_while: false, no_input: true },
    shows_ancestors: false,
};

/// The settings of [`TextCraft`]. The default is the authors' verifier on generated tasks.
#[derive(Clone, Debug, Default)]
pub struct TextCraftConfig {
    /// What counts as success.
    pub verify: Verify,
    /// A folder with the authors' files: easy to extreme are then their tasks. Their parent folder will do.
    pub data: Option<PathBuf>,
    /// Whether generated tasks from easy to extreme share one world. Fresh worlds are generated even if `data` is given.
    pub worlds: Worlds,
    /// How many distinct crafts the oracle makes itself before it delegates; `None` is [`ORACLE_BATCH`], or
    /// [`ORACLE_BATCH_TINY`] on `tiny` tasks.
    pub oracle_batch: Option<u32>,
    /// Whether what a running child made is kept from nodes outside its subtree.
    pub reserve: bool,
    /// Whether generated tasks start with some intermediates, or some of the target, in stock.
    pub pre_crafted: bool,
    /// Whether generated tasks start with exactly the base items of the best plan, so that waste is fatal.
    pub tight: bool,
}

/// The environment. Cheap to share; the shared world is generated at most once.
#[derive(Debug)]
pub struct TextCraft {
    config: TextCraftConfig,
    official: Option<Official>,
    minecraft: Option<Minecraft>,
    shared: OnceLock<Arc<RecipeDb>>,
    /// The world generated last: the rollouts of a group follow one another, in recordings and in replays.
    latest: Mutex<Option<(GenConfig, Arc<RecipeDb>)>>,
}

impl TextCraft {
    /// An environment; reads the data folder, if one is given.
    ///
    /// # Errors
    /// [`EnvError::Data`] for data that cannot be read, [`EnvError::Setting`] for a batch of zero.
    pub fn new(config: TextCraftConfig) -> Result<Self, EnvError> {
        if config.oracle_batch == Some(0) {
            let reason = "the oracle must be allowed at least 1 craft".to_owned();
            return Err(EnvError::Setting { name: "oracle_batch", reason });
        }
        let minecraft = config.data.as_deref().and_then(Minecraft::folder);
        let minecraft = minecraft.map(|folder| Minecraft::load(&folder)).transpose()?;
        let official = config.data.as_deref().filter(|_| minecraft.is_none()).map(Official::load).transpose()?;
        Ok(Self { config, official, minecraft, shared: OnceLock::new(), latest: Mutex::default() })
    }

    /// The environment that the command line describes.
    ///
    /// # Errors
    /// As [`TextCraft::new`], and for options that are unknown or out of range.
    pub fn from_settings(settings: &EnvSettings) -> Result<Self, EnvError> {
        Self::new(settings::from_command_line(settings)?)
    }

    /// The environment that a manifest describes; `data` is the folder with the authors' files, for runs that used them.
    ///
    /// # Errors
    /// When the stored settings cannot be read or their data is not there.
    pub fn reopen(stored: &Json, data: Option<PathBuf>) -> Result<Self, EnvError> {
        Self::new(settings::from_manifest(stored, data)?)
    }

    /// The authors' files, if a data folder was given.
    pub fn official(&self) -> Option<&Official> {
        self.official.as_ref()
    }

    /// Like [`Environment::open`], as the concrete type.
    ///
    /// # Errors
    /// [`EnvError::BadTask`] for a body that is damaged, or that needs data which is not loaded.
    pub fn open_world(&self, task: &Task) -> Result<CraftEpisode, EnvError> {
        let bad = |reason: String| EnvError::BadTask { id: task.id.clone(), reason };
        let body = Body::from_json(&task.body).map_err(bad)?;
        let mut db = self.world(&body.world).map_err(|error| bad(error.to_string()))?;
        if !body.choices.is_empty() {
            let choices = minecraft::read_choices(&db, &body.choices).map_err(bad)?;
            db = Arc::new(db.with_choices(&choices));
        }
        let targets = body.targets(&db).map_err(bad)?;
        let stock = body.stock(&db).map_err(bad)?;
        Ok(CraftEpisode::new(
            World::new(db, stock, self.config.reserve),
            targets,
            self.batch(&body.preset),
            &body,
            self,
        ))
    }

    fn batch(&self, preset: &str) -> usize {
        let default = if preset == tasks::TINY { ORACLE_BATCH_TINY } else { ORACLE_BATCH };
        self.config.oracle_batch.unwrap_or(default) as usize
    }

    /// The recipes of a data folder.
    fn loaded(&self) -> Option<&Arc<RecipeDb>> {
        self.official.as_ref().map(|official| &official.db).or(self.minecraft.as_ref().map(|minecraft| &minecraft.db))
    }

    fn world(&self, world: &WorldRef) -> Result<Arc<RecipeDb>, EnvError> {
        match world {
            WorldRef::Generate(config) if *config == GenConfig::official(SHARED_SEED) => self.shared_world(),
            WorldRef::Generate(config) => self.generated(config),
            WorldRef::Data(digest) => match self.loaded() {
                Some(db) if db.digest() == digest => Ok(Arc::clone(db)),
                Some(_) => Err(EnvError::Setting {
                    name: "data",
                    reason: format!(
                        "the folder holds other recipes; the task needs those with digest {digest} (`replay --other-data` \
                         replays with these all the same, and says where they make a difference)"
                    ),
                }),
                None => Err(EnvError::Setting {
                    name: "data",
                    reason: format!("the task needs the recipes with digest {digest}; give their folder with `--data`"),
                }),
            },
        }
    }

    fn generated(&self, config: &GenConfig) -> Result<Arc<RecipeDb>, EnvError> {
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, db)) = &*latest
            && known == config
        {
            return Ok(Arc::clone(db));
        }
        let db = Arc::new(RecipeDb::generate(config)?);
        *latest = Some((config.clone(), Arc::clone(&db)));
        Ok(db)
    }

    fn shared_world(&self) -> Result<Arc<RecipeDb>, EnvError> {
        if let Some(db) = self.shared.get() {
            return Ok(Arc::clone(db));
        }
        let db = Arc::new(RecipeDb::generate(&GenConfig::official(SHARED_SEED))?);
        Ok(Arc::clone(self.shared.get_or_init(|| db)))
    }
}

impl Environment for TextCraft {
    fn name(&self) -> &'static str {
        tasks::ENV
    }

    fn config(&self) -> Json {
        let world = match (&self.official, &self.minecraft) {
            (Some(official), _) => json!({ "data": official.db.digest(), "tasks": official.digest() }),
            (None, Some(minecraft)) => json!({ "data": minecraft.db.digest(), "minecraft": minecraft.left_out }),
            (None, None) => json!({ "generate": GenConfig::official(SHARED_SEED) }),
        };
        let recipes = match self.loaded() {
            Some(db) => Some(db.digest().to_owned()),
            None => self.shared_world().ok().map(|db| db.digest().to_owned()),
        };
        json!({
            "verify": self.config.verify,
            "worlds": self.config.worlds,
            "world": world,
            "recipes": recipes,
            "oracle_batch": self.config.oracle_batch,
            "reserve": self.config.reserve,
            "pre_crafted": self.config.pre_crafted,
            "tight": self.config.tight,
        })
    }

    fn defaults(&self, presets: &[String]) -> Defaults {
        if !presets.is_empty() && presets.iter().all(|preset| preset == tasks::TINY) {
            Defaults { max_steps: 8, max_steps_flat: 16, max_depth: 3, ..DEFAULTS }
        } else {
            DEFAULTS
        }
    }

    fn default_preset(&self) -> &'static str {
        if self.minecraft.is_some() { "easy" } else { tasks::TINY }
    }

    fn tasks(&self, selection: &Selection) -> Result<Vec<Task>, EnvError> {
        tasks::select(self, selection)
    }

    fn open(&self, task: &Task) -> Result<Box<dyn Episode>, EnvError> {
        Ok(Box::new(self.open_world(task)?))
    }

    fn on_own_data(&self, task: &Task) -> Task {
        let mut task = task.clone();
        let world = task.body.get_mut("world");
        if let (Some(world), Some(official)) = (world, &self.official)
            && matches!(WorldRef::deserialize(&*world), Ok(WorldRef::Data(_)))
        {
            *world = json!(WorldRef::Data(official.db.digest().to_owned()));
        }
        task
    }
}

/// The name of a split in ids and files.
fn split_name(split: Split) -> &'static str {
    match split {
        Split::Train => "train",
        Split::Val => "val",
    }
}
