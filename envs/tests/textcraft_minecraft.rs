//! Minecraft's recipes, where `RAO_LOG_DATA` says that they are, and small recipe files of the same shape.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rao_envs::textcraft::{Minecraft, TextCraft, TextCraftConfig};
use rao_envs::{Environment as _, Selection, Split, Value};

fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("RAO_LOG_DATA").map(|folder| Path::new(&folder).join("minecraft-recipes"));
    if folder.is_none() {
        println!("skipped: RAO_LOG_DATA is not set");
    }
    folder
}

fn selection(presets: &[&str], split: Split, count: Option<usize>) -> Selection {
    Selection { presets: presets.iter().map(|preset| (*preset).to_owned()).collect(), split, count, seed: 5 }
}

#[test]
fn the_real_recipes_make_a_shallow_world_with_choices() {
    let Some(folder) = folder() else { return };
    let Minecraft { db, left_out } = Minecraft::load(&folder).unwrap();
    let craftable: Vec<_> = db.items().filter(|(_, item)| !item.recipes.is_empty()).collect();
    let recipes: usize = craftable.iter().map(|(_, item)| item.recipes.len()).sum();
    let several = craftable.iter().filter(|(_, item)| item.recipes.len() > 1).count();
    let deepest = craftable.iter().map(|(_, item)| item.tier).max().unwrap();
    println!(
        "{} items, {} craftable, {recipes} recipes, {several} items with several, {left_out} recipes left out, \
              depth {deepest}",
        db.len(),
        craftable.len()
    );
    assert_eq!((db.len(), recipes + left_out), (975, 1_198));
    assert!(left_out < 40, "{left_out}");
    assert!(craftable.len() > 545 && several > 90, "{} {several}", craftable.len());
    assert!(craftable.iter().all(|(_, item)| item.tier == item.true_depth && item.tier >= 1));
    for raw in ["iron_ingot", "diamond", "coal", "emerald", "dried_kelp", "oak_log"] {
        assert!(db.is_base(db.find(raw).unwrap()), "{raw}");
    }
    let stick = db.item(db.find("stick").unwrap());
    assert_eq!(stick.recipes.len(), 9, "eight kinds of planks and bamboo");
    let chest = db.item(db.find("iron_block").unwrap());
    assert_eq!(chest.recipes[0].ingredients, [(db.find("iron_ingot").unwrap(), 9)]);
}

#[test]
fn every_task_is_solved_by_crafting_its_plan() {
    let Some(folder) = folder() else { return };
    let env = TextCraft::new(TextCraftConfig { data: Some(folder), ..TextCraftConfig::default() }).unwrap();
    assert_eq!(env.default_preset(), "easy");
    let mut items = [BTreeSet::new(), BTreeSet::new()];
    let mut other_recipes = 0;
    for (split, items) in [Split::Train, Split::Val].into_iter().zip(&mut items) {
        let tasks = env.tasks(&selection(&["easy", "medium", "hard"], split, None)).unwrap();
        assert!(tasks.len() > 250, "{}", tasks.len());
        for task in &tasks {
            let targets = task.body["targets"].as_object().unwrap();
            items.extend(targets.keys().cloned());
            let episode = env.open_world(task).unwrap();
            let mut world = episode.world().clone();
            let db = world.db().clone();
            let goal: Vec<_> =
                targets.iter().map(|(name, count)| (db.find(name).unwrap(), count.as_u64().unwrap())).collect();
            for step in db.plan(&goal, world.stock()).unwrap() {
                let recipe = db.recipe(step.item).unwrap();
                other_recipes += usize::from(Some(recipe) != db.item(step.item).recipes.first());
                let parts = recipe
                    .ingredients
                    .iter()
                    .map(|&(part, amount)| (db.name(part).to_owned(), Value::Int((amount * step.executions) as i64)));
                let target = Value::Tuple(vec![db.name(step.item).into(), Value::Int(step.total as i64)]);
                let said = world.craft(&[0], &Value::dict(parts), &target);
                assert!(said.starts_with("Successfully"), "{}: {said}", task.id);
            }
            assert!(goal.iter().all(|&(item, count)| world.count(item) >= count));
        }
    }
    assert!(items[0].is_disjoint(&items[1]));
    assert!(other_recipes > 100, "stocks must not always serve the first recipe: {other_recipes}");
}

#[test]
fn the_tool_tries_every_recipe_and_says_why_each_fails() {
    let Some(folder) = folder() else { return };
    let env = TextCraft::new(TextCraftConfig { data: Some(folder), ..TextCraftConfig::default() }).unwrap();
    let tasks = env.tasks(&selection(&["easy"], Split::Train, None)).unwrap();
    let task = tasks.iter().find(|task| task.body["targets"].get("stick").is_some());
    let task = task.or_else(|| tasks.iter().find(|task| !task.body["choices"].is_null())).unwrap();
    let mut world = env.open_world(task).unwrap().world().clone();
    let said = world.craft(
        &[0],
        &Value::dict([("oak_planks", Value::Int(3))]),
        &Value::Tuple(vec!["stick".into(), Value::Int(4)]),
    );
    assert!(said.starts_with("Error: All 9 recipe(s) failed for stick. Errors:\nRecipe 1: "), "{said}");
    assert!(said.contains("Wrong amount of oak_planks. Need 2, provided 3"), "{said}");
    assert!(said.contains("Missing required ingredient spruce_planks"), "{said}");
    assert_eq!(said.matches("\nRecipe ").count(), 9);
}

#[test]
fn files_that_make_no_world_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let items = r#"[{"id": 1, "name": "log"}, {"id": 2, "name": "plank"}, {"id": 3, "name": "block"}, {"id": 4, "name": "ingot"}]"#;
    let load = |recipes: &str| {
        std::fs::write(dir.path().join("items.json"), items).unwrap();
        std::fs::write(dir.path().join("recipes.json"), recipes).unwrap();
        Minecraft::load(dir.path())
    };
    let recipe = |id: u32, made: u32, count: u32, parts: &str| {
        format!(r#""{id}": [{{"ingredients": {parts}, "result": {{"id": {made}, "count": {count}}}}}]"#)
    };
    let whole = |recipes: &[String]| format!("{{{}}}", recipes.join(", "));
    let cycle = whole(&[recipe(3, 3, 1, "[4, 4, null]"), recipe(4, 4, 2, "[3]"), recipe(2, 2, 4, "[1]")]);
    let loaded = load(&cycle).unwrap();
    assert_eq!(loaded.left_out, 1, "an ingot is not made of blocks that are made of ingots");
    assert!(loaded.db.is_base(loaded.db.find("ingot").unwrap()));
    let refused = |recipes: &str| load(recipes).unwrap_err().to_string();
    assert!(refused(&whole(&[recipe(2, 3, 1, "[1]")])).contains("listed under 2 makes 3"));
    assert!(refused(&whole(&[recipe(2, 2, 0, "[1]")])).contains("makes nothing"));
    assert!(refused(&whole(&[recipe(2, 2, 1, "[9]")])).contains("item 9, which items.json does not have"));
    assert!(refused(r#"{"2": [{"result": {"id": 2, "count": 1}}]}"#).contains("either `inShape` or `ingredients`"));
    assert!(refused("[]").contains("recipes.json"));
}
