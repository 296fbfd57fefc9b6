//! Crafting with the recipes of a real game: Minecraft's, as the `minecraft-data` package lists them.
//!
//! The world is shallow and has several recipes for many items, the original TextCraft's two properties that
//! TextCraft-Synth's worlds lack. Each task settles on one recipe per item, and its stock serves those alone: an agent
//! has to find out which of the recipes its stock allows.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value as Json;

use super::recipes::{Draft, ItemId, RecipeDb};
use super::tasks::{self, ENV, Preset, TaskGen, WorldRef};
use super::{TextCraft, split_name};
use crate::rng::Rng;
use crate::{EnvError, Selection, Split, Task};

/// The presets by the depth of the target's longest chain of crafts; counts as in TextCraft-Synth.
pub const MINECRAFT_PRESETS: [Preset; 3] = [
    Preset { name: "easy", tiers: (1, 2), counts: (1, 3) },
    Preset { name: "medium", tiers: (3, 3), counts: (1, 3) },
    Preset { name: "hard", tiers: (4, 64), counts: (1, 2) },
];

/// The loaded recipes.
#[derive(Debug)]
pub struct Minecraft {
    /// The recipe book.
    pub db: Arc<RecipeDb>,
    /// Recipes that would have items need themselves and are left out, such as ingots from blocks of ingots.
    pub left_out: usize,
}

#[derive(Deserialize)]
struct FileItem {
    id: u32,
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FileRecipe {
    in_shape: Option<Vec<Vec<Option<u32>>>>,
    ingredients: Option<Vec<Option<u32>>>,
    result: FileResult,
}

#[derive(Deserialize)]
struct FileResult {
    id: u32,
    count: u64,
}

/// A way to make an item: how many come out, and how many of what go in. Where things lie on the grid does not matter.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Way {
    count: u64,
    parts: BTreeMap<u32, u64>,
}

type Ways = BTreeMap<u32, Vec<Way>>;

impl Minecraft {
    /// The folder with `recipes.json` and `items.json`: `path`, or `minecraft-recipes` in it unless TextCraft-Synth's files
    /// are there too.
    #[must_use]
    pub fn folder(path: &Path) -> Option<PathBuf> {
        let is_one = |folder: &Path| folder.join("items.json").is_file() && folder.join("recipes.json").is_file();
        let inner = path.join("minecraft-recipes");
        if is_one(path) {
            Some(path.to_owned())
        } else {
            (!path.join("textcraft-synth").is_dir() && is_one(&inner)).then_some(inner)
        }
    }

    /// Reads a folder's `items.json` (`[{id, name, ..}]`) and `recipes.json` (`{result id: [{inShape | ingredients,
    /// result: {id, count}}]}`, item ids with tags expanded). What recipes give back beside their result is left out.
    ///
    /// # Errors
    /// [`EnvError::Data`] naming the file, the recipe and the reason.
    pub fn load(folder: &Path) -> Result<Self, EnvError> {
        let items_file = folder.join("items.json");
        let items: Vec<FileItem> = read(&items_file)?;
        let names: BTreeMap<u32, String> = items.into_iter().map(|item| (item.id, item.name)).collect();
        let recipes_file = folder.join("recipes.json");
        let failed = |reason: String| data_error(&recipes_file, reason);
        let raw: BTreeMap<String, Vec<FileRecipe>> = read(&recipes_file)?;
        let mut ways = Ways::new();
        for (key, recipes) in raw {
            for recipe in recipes {
                let (id, way) = way(&key, recipe, &names).map_err(failed)?;
                let known = ways.entry(id).or_default();
                if !known.contains(&way) {
                    known.push(way);
                }
            }
        }
        let all: usize = ways.values().map(Vec::len).sum();
        let ways = without_cycles(&ways, &names);
        let left_out = all - ways.values().map(Vec::len).sum::<usize>();
        let depths = depths(&ways);
        let name = |id: &u32| names.get(id).cloned().unwrap_or_default();
        let drafts = names.iter().map(|(id, item)| Draft {
            name: item.clone(),
            tier: depths.get(id).copied().unwrap_or(0),
            recipes: ways
                .get(id)
                .into_iter()
                .flatten()
                .map(|way| (way.count, way.parts.iter().map(|(part, amount)| (name(part), *amount)).collect()))
                .collect(),
        });
        let db = RecipeDb::from_drafts(drafts.collect()).map_err(|error| failed(error.to_string()))?;
        Ok(Self { db: Arc::new(db), left_out })
    }

    /// The tasks of a selection: every item of the presets' depths and every count once, shuffled by the seed.
    pub(super) fn select(&self, env: &TextCraft, selection: &Selection) -> Result<Vec<Task>, EnvError> {
        let known = MINECRAFT_PRESETS.map(|preset| preset.name).join(", ");
        let find = |name: &String| {
            let unknown = || EnvError::UnknownPreset { given: name.clone(), env: ENV, known: known.clone() };
            MINECRAFT_PRESETS.into_iter().find(|preset| preset.name == name).ok_or_else(unknown)
        };
        let presets = selection.presets.iter().map(find).collect::<Result<Vec<Preset>, _>>()?;
        let mut pool: Vec<(TaskGen, (ItemId, u64))> = Vec::new();
        for preset in presets {
            let make = tasks::task_gen(env, preset, selection.split);
            pool.extend(make.pool(&self.db).into_iter().map(|target| (make.clone(), target)));
        }
        Rng::new("minecraft order", &[&selection.seed.to_le_bytes()]).shuffle(&mut pool);
        if let Some(wanted) = selection.count {
            if pool.len() < wanted {
                return Err(EnvError::TooFewTasks { wanted, found: pool.len(), env: ENV });
            }
            pool.truncate(wanted);
        }
        pool.iter().map(|(make, target)| self.task(make, *target, selection.split)).collect()
    }

    /// One task; what it settles on does not depend on the selection.
    fn task(&self, make: &TaskGen, target: (ItemId, u64), split: Split) -> Result<Task, EnvError> {
        let (item, count) = target;
        let id = format!("minecraft.{}.{}.{}.x{count}", make.preset.name, split_name(split), self.db.name(item));
        let mut rng = Rng::new("minecraft task", &[self.db.digest().as_bytes(), id.as_bytes()]);
        let choices = self.choose(item, &mut rng);
        let db = Arc::new(self.db.with_choices(&choices));
        make.finish_with(&db, WorldRef::Data(db.digest().to_owned()), id, &[target], &choices, &mut rng)
    }

    /// A recipe for every item with several that the target needs by the recipes chosen for those above it.
    fn choose(&self, target: ItemId, rng: &mut Rng) -> BTreeMap<ItemId, usize> {
        let mut choices = BTreeMap::new();
        let mut waiting = BTreeSet::from([target]);
        let mut seen = BTreeSet::new();
        while let Some(item) = waiting.pop_last() {
            if !seen.insert(item) {
                continue;
            }
            let recipes = &self.db.item(item).recipes;
            let chosen = if recipes.len() > 1 { rng.below(recipes.len() as u64) as usize } else { 0 };
            if recipes.len() > 1 {
                choices.insert(item, chosen);
            }
            waiting.extend(
                recipes.get(chosen).into_iter().flat_map(|recipe| recipe.ingredients.iter().map(|part| part.0)),
            );
        }
        choices
    }
}

fn data_error(file: &Path, reason: impl ToString) -> EnvError {
    EnvError::Data { file: file.display().to_string(), reason: reason.to_string() }
}

fn read<T: serde::de::DeserializeOwned>(file: &Path) -> Result<T, EnvError> {
    let text = fs::read_to_string(file).map_err(|error| data_error(file, error))?;
    serde_json::from_str(&text).map_err(|error| data_error(file, error))
}

fn way(key: &str, recipe: FileRecipe, names: &BTreeMap<u32, String>) -> Result<(u32, Way), String> {
    let FileResult { id, count } = recipe.result;
    if key != id.to_string() {
        return Err(format!("a recipe listed under {key} makes {id}"));
    }
    let cells: Vec<Option<u32>> = match (recipe.in_shape, recipe.ingredients) {
        (Some(rows), None) => rows.into_iter().flatten().collect(),
        (None, Some(cells)) => cells,
        _ => return Err(format!("a recipe of {id} must have either `inShape` or `ingredients`")),
    };
    let mut parts: BTreeMap<u32, u64> = BTreeMap::new();
    for part in cells.into_iter().flatten() {
        *parts.entry(part).or_default() += 1;
    }
    if count == 0 || parts.is_empty() {
        return Err(format!("a recipe of {id} makes nothing or takes nothing"));
    }
    if let Some(unknown) = parts.keys().chain([&id]).find(|item| !names.contains_key(item)) {
        return Err(format!("a recipe of {id} has to do with item {unknown}, which items.json does not have"));
    }
    Ok((id, Way { count, parts }))
}

/// The recipes without those by which an item would need itself.
///
/// First everything is made that can be, level by level, from what has no recipe; where that stops, the item that most
/// recipes wait for (an ingot rather than its block) is taken to be a raw material. What was made that way needs nothing
/// of itself, and every other recipe is added that leaves it so.
fn without_cycles(all: &Ways, names: &BTreeMap<u32, String>) -> Ways {
    let mut uses: BTreeMap<u32, usize> = BTreeMap::new();
    for part in all.values().flatten().flat_map(|way| way.parts.keys()) {
        *uses.entry(*part).or_default() += 1;
    }
    let mut made: BTreeSet<u32> = names.keys().copied().filter(|id| !all.contains_key(id)).collect();
    let mut kept = Ways::new();
    loop {
        let possible = |way: &&Way| way.parts.keys().all(|part| made.contains(part));
        let next: Vec<(u32, Way)> = all
            .iter()
            .filter(|(id, _)| !made.contains(id))
            .filter_map(|(id, ways)| Some((*id, ways.iter().find(possible)?.clone())))
            .collect();
        if next.is_empty() {
            let stuck = all.iter().filter(|(id, _)| !made.contains(id));
            let yields = |ways: &[Way]| ways.first().map_or(0, |way| way.count);
            let rank = |(id, ways): &(&u32, &Vec<Way>)| {
                (uses.get(id).copied().unwrap_or(0), yields(ways), std::cmp::Reverse(**id))
            };
            let Some((raw, _)) = stuck.max_by_key(rank) else { break };
            made.insert(*raw);
        }
        for (id, way) in next {
            made.insert(id);
            kept.insert(id, vec![way]);
        }
    }
    for (id, ways) in all {
        if !kept.contains_key(id) {
            // A raw material: made of nothing.
            continue;
        }
        // In the order of the file, so that what agents see is what the game lists.
        let mut ordered = Vec::new();
        for way in ways {
            let first = kept.get(id).is_some_and(|kept| kept.contains(way));
            if first || !way.parts.keys().any(|part| needs(&kept, *part, *id)) {
                ordered.push(way.clone());
            }
            // The recipes before it count for what comes after.
            if !first && ordered.last() == Some(way) {
                kept.entry(*id).or_default().push(way.clone());
            }
        }
        kept.insert(*id, ordered);
    }
    kept
}

/// Whether making `item` can take `wanted`.
fn needs(ways: &Ways, item: u32, wanted: u32) -> bool {
    let mut waiting = vec![item];
    let mut seen = BTreeSet::new();
    while let Some(item) = waiting.pop() {
        if item == wanted {
            return true;
        }
        if seen.insert(item) {
            waiting.extend(ways.get(&item).into_iter().flatten().flat_map(|way| way.parts.keys().copied()));
        }
    }
    false
}

/// The longest chain of crafts under each item that is made. The recipes must be free of cycles.
fn depths(ways: &Ways) -> BTreeMap<u32, u32> {
    let mut depths: BTreeMap<u32, u32> = BTreeMap::new();
    // Each pass settles at least the next level.
    loop {
        let mut changed = false;
        for (id, ways) in ways {
            let parts = ways.iter().flat_map(|way| way.parts.keys());
            let depth = 1 + parts.map(|part| depths.get(part).copied().unwrap_or(0)).max().unwrap_or(0);
            changed |= depths.insert(*id, depth) != Some(depth);
        }
        if !changed {
            return depths;
        }
    }
}

/// Choices as a task's body holds them.
pub(super) fn choices_json(db: &RecipeDb, choices: &BTreeMap<ItemId, usize>) -> serde_json::Map<String, Json> {
    choices.iter().map(|(&item, &chosen)| (db.name(item).to_owned(), Json::from(chosen))).collect()
}

/// Choices from a task's body.
pub(super) fn read_choices(
    db: &RecipeDb,
    json: &serde_json::Map<String, Json>,
) -> Result<BTreeMap<ItemId, usize>, String> {
    let choice = |(name, chosen): (&String, &Json)| {
        let item = db.find(name).ok_or_else(|| format!("its world has no item {name}"))?;
        let chosen = chosen.as_u64().and_then(|chosen| usize::try_from(chosen).ok());
        let chosen = chosen.filter(|&chosen| chosen < db.item(item).recipes.len());
        Ok((item, chosen.ok_or_else(|| format!("{name} has no recipe of the chosen number"))?))
    };
    json.iter().map(choice).collect()
}
