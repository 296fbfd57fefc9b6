//! Which tasks there are: the authors' own, generated ones in one shared world, and generated ones with a world each.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};

use super::generate::GenConfig;
use super::recipes::{ItemId, RecipeDb, Stock};
use super::{SHARED_SEED, TextCraft, World, Worlds, minecraft, oracle, split_name};
use crate::rng::{Rng, derive};
use crate::{EnvError, Selection, Split, Task, Value};

/// The environment's name.
pub(super) const ENV: &str = "textcraft";

/// The preset that always has a world per task.
pub(super) const TINY: &str = "tiny";

/// A difficulty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Its name, which is also the tasks' difficulty.
    pub name: &'static str,
    /// The lowest and highest tier of a target.
    pub tiers: (u32, u32),
    /// The lowest and highest count of a target.
    pub counts: (u64, u64),
}

/// The presets, as the authors set them; `tiny` is this project's own.
pub const PRESETS: [Preset; 5] = [
    Preset { name: TINY, tiers: (1, 2), counts: (1, 3) },
    Preset { name: "easy", tiers: (2, 3), counts: (1, 3) },
    Preset { name: "medium", tiers: (4, 6), counts: (1, 3) },
    Preset { name: "hard", tiers: (7, 9), counts: (1, 2) },
    Preset { name: "extreme", tiers: (10, 12), counts: (1, 2) },
];

/// The largest count that a task may name; sums over a tree stay far below 64 bits.
const MAX_COUNT: u64 = 1 << 48;

/// How often a `tiny` target is of tier 1 and of tier 2.
const TINY_TIERS: [u64; 2] = [1, 3];

impl Preset {
    /// The preset of this name.
    ///
    /// # Errors
    /// [`EnvError::UnknownPreset`].
    pub fn find(name: &str) -> Result<Self, EnvError> {
        PRESETS.into_iter().find(|preset| preset.name == name).ok_or_else(|| EnvError::UnknownPreset {
            given: name.to_owned(),
            env: ENV,
            known: PRESETS.map(|preset| preset.name).join(", "),
        })
    }
}

/// The recipes that a task is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum WorldRef {
    /// A generated world.
    Generate(GenConfig),
    /// Loaded recipes, by digest.
    Data(String),
}

/// The shape of a task's body: all that is needed to open it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Body {
    pub(super) preset: String,
    pub(super) world: WorldRef,
    targets: Map<String, Json>,
    inventory: Map<String, Json>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) pre_crafted: bool,
    /// The recipe that each item with several is to be made by, if not the first.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(super) choices: Map<String, Json>,
}

impl Body {
    pub(super) fn from_json(json: &Json) -> Result<Self, String> {
        serde_json::from_value(json.clone()).map_err(|error| format!("its body is not a {ENV} task ({error})"))
    }

    pub(super) fn targets(&self, db: &RecipeDb) -> Result<Vec<(ItemId, u64)>, String> {
        let targets = amounts(db, &self.targets)?;
        match targets.iter().find(|&&(item, count)| count == 0 || db.is_base(item)) {
            Some(&(item, _)) => Err(format!("{} cannot be a target: it needs a recipe and a count", db.name(item))),
            None if targets.is_empty() => Err("it has no targets".to_owned()),
            None => Ok(targets),
        }
    }

    pub(super) fn stock(&self, db: &RecipeDb) -> Result<Stock, String> {
        Ok(amounts(db, &self.inventory)?.into_iter().collect())
    }
}

fn amounts(db: &RecipeDb, map: &Map<String, Json>) -> Result<Vec<(ItemId, u64)>, String> {
    let amount = |(name, count): (&String, &Json)| {
        let item = db.find(name).ok_or_else(|| format!("its world has no item {name}"))?;
        let count = count.as_u64().filter(|&count| count <= MAX_COUNT);
        Ok((item, count.ok_or_else(|| format!("the count of {name} is not a whole number of at most 2^48"))?))
    };
    map.iter().map(amount).collect()
}

fn names(db: &RecipeDb, amounts: impl IntoIterator<Item = (ItemId, u64)>) -> Map<String, Json> {
    amounts.into_iter().map(|(item, count)| (db.name(item).to_owned(), json!(count))).collect()
}

/// A task from its parts.
pub(super) fn task(
    db: &RecipeDb,
    world: WorldRef,
    id: String,
    preset: &str,
    targets: &[(ItemId, u64)],
    stock: &Stock,
    pre_crafted: bool,
) -> Task {
    let body = Body {
        preset: preset.to_owned(),
        world,
        targets: names(db, targets.iter().copied()),
        inventory: names(db, stock.iter().map(|(&item, &count)| (item, count))),
        pre_crafted,
        choices: Map::new(),
    };
    Task { id, difficulty: preset.to_owned(), body: json!(body) }
}

/// Generates tasks. The authors' rules are [`TaskGen::new`]; the fields change them.
#[derive(Clone, Debug)]
pub struct TaskGen {
    /// The difficulty.
    pub preset: Preset,
    /// Which half of the tasks: seeds of the two never meet, nor do the items of a shared world.
    pub split: Split,
    /// How many different targets a task with a world of its own has.
    pub n_targets: usize,
    /// Each base item comes with up to this share of its need more, at least 1, drawn uniformly.
    pub slack: f64,
    /// How many unrelated base items are in stock, lowest and highest.
    pub distractors: (u64, u64),
    /// Whether some intermediates, or some of the target, are in stock.
    pub pre_crafted: bool,
    /// Whether the stock is exactly what the best plan takes, distractors aside.
    pub tight: bool,
}

impl TaskGen {
    /// The authors' rules for a difficulty.
    pub fn new(preset: Preset, split: Split) -> Self {
        Self { preset, split, n_targets: 1, slack: 0.5, distractors: (1, 3), pre_crafted: false, tight: false }
    }

    /// The seed of the `index`-th task with a world of its own: even for training, odd for validation.
    pub fn seed(&self, seed: u64, index: u64) -> u64 {
        let parts: [&[u8]; 3] = [&seed.to_le_bytes(), self.preset.name.as_bytes(), &index.to_le_bytes()];
        derive("textcraft task", &parts) & !1 | u64::from(self.split == Split::Val)
    }

    /// A task with a world of its own. `seed` should come from [`TaskGen::seed`].
    ///
    /// # Errors
    /// [`EnvError`] if the world has too few items of the preset's tiers.
    pub fn fresh(&self, seed: u64) -> Result<Task, EnvError> {
        let tiny = self.preset.name == TINY;
        let config = if tiny { GenConfig::tiny(seed) } else { GenConfig::fresh(seed, self.preset.tiers.1) };
        let db = Arc::new(RecipeDb::generate(&config)?);
        let id = format!("{}.{}.{seed:016x}", self.preset.name, split_name(self.split));
        let mut rng = Rng::new("textcraft fresh task", &[&seed.to_le_bytes()]);
        let mut targets: Vec<(ItemId, u64)> = Vec::new();
        while targets.len() < self.n_targets {
            let tier = self.preset.tiers.0 + self.draw_tier(&mut rng);
            let left = |item: &ItemId| targets.iter().all(|target| target.0 != *item);
            let items: Vec<ItemId> = tier_items(&db, tier).filter(left).collect();
            let Some(&item) = rng.pick(&items) else {
                let reason = format!("tier {tier} has too few items for {} targets", self.n_targets);
                return Err(EnvError::Setting { name: "n_targets", reason });
            };
            targets.push((item, rng.range(self.preset.counts.0, self.preset.counts.1)));
        }
        self.finish(&db, WorldRef::Generate(config), id, &targets, &mut rng)
    }

    fn draw_tier(&self, rng: &mut Rng) -> u32 {
        let tiers = self.preset.tiers.1.saturating_sub(self.preset.tiers.0).min(12) + 1;
        let even = vec![1; tiers as usize];
        let weights = if self.preset.name == TINY { TINY_TIERS.as_slice() } else { &even };
        rng.weighted(weights).unwrap_or(0) as u32
    }

    /// Every (item, count) of the split in a shared world, each once. A fifth of each tier's items is kept for
    /// validation.
    pub(super) fn pool(&self, db: &RecipeDb) -> Vec<(ItemId, u64)> {
        let mut pool = Vec::new();
        for tier in self.preset.tiers.0..=self.preset.tiers.1 {
            let mut items: Vec<ItemId> = tier_items(db, tier).collect();
            Rng::new("textcraft split", &[db.digest().as_bytes(), &tier.to_le_bytes()]).shuffle(&mut items);
            let train = items.len() * 4 / 5;
            let (first, last) = items.split_at(train);
            let mut chosen = if self.split == Split::Train { first.to_vec() } else { last.to_vec() };
            chosen.sort();
            let counts = self.preset.counts.0..=self.preset.counts.1;
            pool.extend(chosen.into_iter().flat_map(|item| counts.clone().map(move |count| (item, count))));
        }
        pool
    }

    /// One task of a shared world; its stock does not depend on the selection.
    fn in_shared(&self, db: &Arc<RecipeDb>, target: (ItemId, u64)) -> Result<Task, EnvError> {
        let (item, count) = target;
        let id = format!("{}.{}.{}.x{count}", self.preset.name, split_name(self.split), db.name(item));
        let mut rng = Rng::new("textcraft shared task", &[db.digest().as_bytes(), id.as_bytes()]);
        self.finish(db, WorldRef::Generate(GenConfig::official(SHARED_SEED)), id, &[target], &mut rng)
    }

    /// The same for a world of which the task has settled on some recipes.
    pub(super) fn finish_with(
        &self,
        db: &Arc<RecipeDb>,
        world: WorldRef,
        id: String,
        targets: &[(ItemId, u64)],
        choices: &BTreeMap<ItemId, usize>,
        rng: &mut Rng,
    ) -> Result<Task, EnvError> {
        let mut task = self.finish(db, world, id, targets, rng)?;
        if let Some(body) = task.body.as_object_mut().filter(|_| !choices.is_empty()) {
            body.insert("choices".to_owned(), Json::Object(minecraft::choices_json(db, choices)));
        }
        Ok(task)
    }

    fn finish(
        &self,
        db: &Arc<RecipeDb>,
        world: WorldRef,
        id: String,
        targets: &[(ItemId, u64)],
        rng: &mut Rng,
    ) -> Result<Task, EnvError> {
        let stock = self.stock(db, targets, rng);
        prove(db, targets, &stock).map_err(|reason| EnvError::BadTask { id: id.clone(), reason })?;
        Ok(task(db, world, id, self.preset.name, targets, &stock, self.pre_crafted))
    }

    /// What the task starts with.
    fn stock(&self, db: &RecipeDb, targets: &[(ItemId, u64)], rng: &mut Rng) -> Stock {
        let held = if self.pre_crafted { pre_crafted(db, targets, rng) } else { Stock::new() };
        let need = if self.tight { exact_need(db, targets, &held) } else { db.base_need_without_yields(targets) };
        let mut stock = held;
        for (&item, &count) in &need {
            let most = ((count as f64 * self.slack) as u64).max(1);
            let slack = if self.tight { 0 } else { rng.range(0, most) };
            stock.insert(item, count + slack);
        }
        let roots: Vec<ItemId> = targets.iter().map(|target| target.0).collect();
        let related = db.closure(&roots);
        // An ordered list: the draw must not depend on any hash order.
        let mut others: Vec<ItemId> =
            db.items().map(|(id, _)| id).filter(|id| db.is_base(*id) && !related.contains(id)).collect();
        rng.shuffle(&mut others);
        others.truncate(rng.range(self.distractors.0, self.distractors.1) as usize);
        for item in others {
            stock.insert(item, rng.range(1, 5));
        }
        stock
    }
}

fn tier_items(db: &RecipeDb, tier: u32) -> impl Iterator<Item = ItemId> {
    db.items().filter(move |(_, item)| item.tier == tier && !item.recipes.is_empty()).map(|(id, _)| id)
}

/// One or two craftable items of the targets' trees, one to three of each.
fn pre_crafted(db: &RecipeDb, targets: &[(ItemId, u64)], rng: &mut Rng) -> Stock {
    let roots: Vec<ItemId> = targets.iter().map(|target| target.0).collect();
    let mut items: Vec<ItemId> = db.closure(&roots).into_iter().filter(|&item| !db.is_base(item)).collect();
    rng.shuffle(&mut items);
    items.truncate(rng.range(1, 2) as usize);
    items.into_iter().map(|item| (item, rng.range(1, 3))).collect()
}

/// The base items that the best plan takes.
fn exact_need(db: &RecipeDb, targets: &[(ItemId, u64)], held: &Stock) -> Stock {
    let needs = db.needs(targets, held);
    needs
        .into_iter()
        .filter(|(item, need)| db.is_base(*item) && need.used > 0)
        .map(|(item, need)| (item, need.used))
        .collect()
}

/// Carries the plan out with the real `craft`; a task is emitted only if that meets its goal.
fn prove(db: &Arc<RecipeDb>, targets: &[(ItemId, u64)], stock: &Stock) -> Result<(), String> {
    let steps = db.plan(targets, stock).map_err(|error| error.to_string())?;
    let mut world = World::new(Arc::clone(db), stock.clone(), false);
    for step in &steps {
        let parts = oracle::ingredients(db, step);
        let parts = Value::dict(parts.iter().map(|&(part, amount)| (db.name(part), Value::Int(amount as i64))));
        let target = Value::Tuple(vec![db.name(step.item).into(), Value::Int(step.total as i64)]);
        let text = world.craft(&[0], &parts, &target);
        if text.starts_with("Error") {
            return Err(text);
        }
    }
    let grown = |&(item, count): &(ItemId, u64)| world.count(item) >= stock.get(&item).copied().unwrap_or(0) + count;
    if targets.iter().all(grown) { Ok(()) } else { Err("its plan does not meet its goal".to_owned()) }
}

/// The tasks of a selection.
///
/// Presets without an end (`tiny`, and all others with fresh worlds) take turns with the rest, one task each; if there
/// is none among them, all their tasks form one pool. A pool of the authors' tasks is in file order at seed 0; any other
/// pool is shuffled by the seed.
pub(super) fn select(env: &TextCraft, selection: &Selection) -> Result<Vec<Task>, EnvError> {
    if let Some(minecraft) = &env.minecraft {
        return minecraft.select(env, selection);
    }
    let presets = selection.presets.iter().map(|name| Preset::find(name)).collect::<Result<Vec<_>, _>>()?;
    if presets.is_empty() {
        return Err(EnvError::UnknownPreset {
            given: String::new(),
            env: ENV,
            known: PRESETS.map(|p| p.name).join(", "),
        });
    }
    let endless = |preset: &Preset| preset.name == TINY || env.config.worlds == Worlds::Fresh;
    if !presets.iter().any(endless) {
        return Source::pool(env, &presets, selection)?.take(selection.count);
    }
    let Some(count) = selection.count else {
        let reason = "these presets are generated without an end; say how many tasks".to_owned();
        return Err(EnvError::Setting { name: "tasks", reason });
    };
    let mut sources = Vec::with_capacity(presets.len());
    for preset in &presets {
        sources.push(if endless(preset) {
            Source::Endless { make: task_gen(env, *preset, selection.split), seed: selection.seed, next: 0 }
        } else {
            Source::pool(env, std::slice::from_ref(preset), selection)?
        });
    }
    let mut tasks = Vec::with_capacity(count);
    for index in 0..count {
        let turn = index % presets.len();
        let task = match sources.get_mut(turn) {
            Some(source) => source.next()?,
            None => None,
        };
        let found = tasks.len();
        tasks.push(task.ok_or(EnvError::TooFewTasks { wanted: count, found, env: ENV })?);
    }
    Ok(tasks)
}

pub(super) fn task_gen(env: &TextCraft, preset: Preset, split: Split) -> TaskGen {
    TaskGen { pre_crafted: env.config.pre_crafted, tight: env.config.tight, ..TaskGen::new(preset, split) }
}

/// Where tasks come from.
enum Source<'a> {
    Endless { make: TaskGen, seed: u64, next: u64 },
    Shared { db: Arc<RecipeDb>, pool: std::vec::IntoIter<(TaskGen, (ItemId, u64))> },
    Official { pool: std::vec::IntoIter<&'a super::OfficialTask>, db: &'a RecipeDb },
}

impl<'a> Source<'a> {
    fn pool(env: &'a TextCraft, presets: &[Preset], selection: &Selection) -> Result<Self, EnvError> {
        let mut rng = Rng::new("textcraft order", &[&selection.seed.to_le_bytes()]);
        if let Some(official) = &env.official {
            if env.config.pre_crafted || env.config.tight {
                let reason = "only generated tasks can be pre-crafted or tight; leave the data folder out".to_owned();
                return Err(EnvError::Setting { name: "data", reason });
            }
            let chosen = |task: &&super::OfficialTask| presets.iter().any(|preset| preset.name == task.difficulty);
            let mut pool: Vec<_> = official.tasks(selection.split).iter().filter(chosen).collect();
            if selection.seed != 0 {
                rng.shuffle(&mut pool);
            }
            return Ok(Self::Official { pool: pool.into_iter(), db: &official.db });
        }
        let db = env.shared_world()?;
        let mut pool = Vec::new();
        for preset in presets {
            let make = task_gen(env, *preset, selection.split);
            pool.extend(make.pool(&db).into_iter().map(|target| (make.clone(), target)));
        }
        rng.shuffle(&mut pool);
        Ok(Self::Shared { db, pool: pool.into_iter() })
    }

    fn next(&mut self) -> Result<Option<Task>, EnvError> {
        match self {
            Self::Endless { make, seed, next } => {
                let task = make.fresh(make.seed(*seed, *next));
                *next += 1;
                task.map(Some)
            }
            Self::Shared { db, pool } => pool.next().map(|(make, target)| make.in_shared(db, target)).transpose(),
            Self::Official { pool, db } => Ok(pool.next().map(|official| official.task(db))),
        }
    }

    fn take(mut self, count: Option<usize>) -> Result<Vec<Task>, EnvError> {
        let mut tasks = Vec::new();
        while count.is_none_or(|count| tasks.len() < count) {
            match (self.next()?, count) {
                (Some(task), _) => tasks.push(task),
                (None, None) => break,
                (None, Some(wanted)) => {
                    return Err(EnvError::TooFewTasks { wanted, found: tasks.len(), env: ENV });
                }
            }
        }
        Ok(tasks)
    }
}
