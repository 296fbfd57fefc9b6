//! The authors' own files: recipes, tasks, and the gold trajectories of the validation tasks.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value as Json};

use super::recipes::{ItemId, RecipeDb, Stock};
use super::tasks::{self, WorldRef};
use crate::{EnvError, Split, Task};

/// One of the authors' tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfficialTask {
    /// Such as `textcraft_synth.val.0`.
    pub id: String,
    /// The goal in words.
    pub goal: String,
    /// `easy`, `medium`, `hard` or `extreme`.
    pub difficulty: String,
    /// What to make, on top of what is in stock.
    pub targets: Vec<(ItemId, u64)>,
    /// What is in stock at the start.
    pub inventory: Stock,
    /// The length of the authors' gold trajectory.
    pub num_craft_steps: u64,
}

/// One craft of a gold trajectory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoldStep {
    /// What is made.
    pub item: String,
    /// How often its recipe is executed. (The files' `target[1]`; `craft` takes the total instead.)
    pub executions: u64,
    /// What it takes in all.
    pub ingredients: Vec<(String, u64)>,
    /// How many come out in all.
    pub total: u64,
}

/// A loaded data folder.
#[derive(Debug)]
pub struct Official {
    /// The authors' recipe world.
    pub db: Arc<RecipeDb>,
    folder: PathBuf,
    train: Vec<OfficialTask>,
    val: Vec<OfficialTask>,
    digest: String,
}

#[derive(Deserialize)]
struct Row {
    id: String,
    goal: String,
    misc: Misc,
}

#[derive(Deserialize)]
struct Misc {
    target_items: Map<String, Json>,
    initial_inventory: Map<String, Json>,
    difficulty: String,
    num_craft_steps: u64,
}

#[derive(Deserialize)]
struct GoldRow {
    id: String,
    gold_trajectory: Vec<GoldJson>,
}

#[derive(Deserialize)]
struct GoldJson {
    target: (String, u64),
    ingredients: Map<String, Json>,
    result_count: u64,
}

impl Official {
    /// Reads `recipes.json`, `train.jsonl` and `val.jsonl` from `folder`, or from `textcraft-synth` in it.
    ///
    /// # Errors
    /// [`EnvError::Data`] naming the file, the line and the reason.
    pub fn load(folder: &Path) -> Result<Self, EnvError> {
        let inner = folder.join("textcraft-synth");
        let folder = if inner.join("recipes.json").is_file() { inner } else { folder.to_path_buf() };
        let recipes = folder.join("recipes.json");
        let db = RecipeDb::from_json(&read(&recipes)?).map_err(|error| data_error(&recipes, error))?;
        let mut hasher = blake3::Hasher::new();
        let mut split = |name: &str| {
            let file = folder.join(name);
            let text = read(&file)?;
            // Writing to a hasher cannot fail.
            let _ = hasher.write_all(text.as_bytes());
            read_tasks(&db, &file, &text)
        };
        let (train, val) = (split("train.jsonl")?, split("val.jsonl")?);
        let digest = hasher.finalize().to_hex().to_string();
        Ok(Self { db: Arc::new(db), folder, train, val, digest })
    }

    /// The tasks of a split, in file order.
    pub fn tasks(&self, split: Split) -> &[OfficialTask] {
        match split {
            Split::Train => &self.train,
            Split::Val => &self.val,
        }
    }

    /// blake3 over both task files.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The gold trajectories of the validation tasks by task id, from `val_gold.jsonl.gz`.
    ///
    /// # Errors
    /// [`EnvError::Data`] naming the file and the reason.
    pub fn gold(&self) -> Result<BTreeMap<String, Vec<GoldStep>>, EnvError> {
        let file = self.folder.join("val_gold.jsonl.gz");
        let packed = fs::read(&file).map_err(|error| data_error(&file, error))?;
        let mut text = String::new();
        let unpacked = flate2::read::MultiGzDecoder::new(packed.as_slice()).read_to_string(&mut text);
        unpacked.map_err(|error| data_error(&file, error))?;
        let mut gold = BTreeMap::new();
        for (number, line) in lines(&text) {
            let row: GoldRow = parse(&file, number, line)?;
            let steps = row.gold_trajectory.into_iter().map(gold_step).collect::<Option<Vec<_>>>();
            let steps =
                steps.ok_or_else(|| data_error(&file, format!("line {number}: an amount is not a whole number")))?;
            gold.insert(row.id, steps);
        }
        Ok(gold)
    }
}

impl OfficialTask {
    /// The task in the environment's own shape.
    pub(super) fn task(&self, db: &RecipeDb) -> Task {
        let world = WorldRef::Data(db.digest().to_owned());
        tasks::task(db, world, self.id.clone(), &self.difficulty, &self.targets, &self.inventory, false)
    }
}

fn data_error(file: &Path, reason: impl ToString) -> EnvError {
    EnvError::Data { file: file.display().to_string(), reason: reason.to_string() }
}

fn read(file: &Path) -> Result<String, EnvError> {
    fs::read_to_string(file).map_err(|error| data_error(file, error))
}

/// Non-empty lines with their numbers from 1.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line)).filter(|(_, line)| !line.trim().is_empty())
}

fn parse<'a, T: Deserialize<'a>>(file: &Path, number: usize, line: &'a str) -> Result<T, EnvError> {
    serde_json::from_str(line).map_err(|error| data_error(file, format!("line {number}: {error}")))
}

fn read_tasks(db: &RecipeDb, file: &Path, text: &str) -> Result<Vec<OfficialTask>, EnvError> {
    let task = |(number, line)| {
        let row: Row = parse(file, number, line)?;
        let amounts = |map: &Map<String, Json>| {
            let amount = |(name, count): (&String, &Json)| Some((db.find(name)?, count.as_u64()?));
            let amounts: Option<Vec<_>> = map.iter().map(amount).collect();
            amounts.ok_or_else(|| data_error(file, format!("line {number}: an item without recipe or count")))
        };
        Ok(OfficialTask {
            targets: amounts(&row.misc.target_items)?,
            inventory: amounts(&row.misc.initial_inventory)?.into_iter().collect(),
            id: row.id,
            goal: row.goal,
            difficulty: row.misc.difficulty,
            num_craft_steps: row.misc.num_craft_steps,
        })
    };
    lines(text).map(task).collect()
}

fn gold_step(step: GoldJson) -> Option<GoldStep> {
    let (item, executions) = step.target;
    let ingredients = step.ingredients.into_iter().map(|(name, amount)| Some((name, amount.as_u64()?)));
    Some(GoldStep { item, executions, ingredients: ingredients.collect::<Option<_>>()?, total: step.result_count })
}
