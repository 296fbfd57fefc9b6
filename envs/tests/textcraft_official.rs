//! The authors' own tasks and gold trajectories, and the oracle on them. Needs `RAO_LOG_DATA`.

#![expect(clippy::unwrap_used, reason = "helpers of tests are not exempt by configuration")]

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;

use common::{Limits, Order, craft_args, run};
use rao_envs::textcraft::{TextCraft, TextCraftConfig, Verify};
use rao_envs::{Ending, Environment, Selection, Split, ToolResult, Value};

const NOT_EXTREME: [&str; 3] = ["easy", "medium", "hard"];

/// The data folder, if the environment names one; a named folder without data is an error.
fn data() -> Option<PathBuf> {
    let Some(root) = std::env::var_os("RAO_LOG_DATA") else {
        println!("skipped: RAO_LOG_DATA is not set");
        return None;
    };
    let folder = PathBuf::from(root).join("textcraft-synth");
    assert!(folder.join("recipes.json").is_file(), "RAO_LOG_DATA is set, but {} holds no data", folder.display());
    Some(folder)
}

fn open() -> Option<TextCraft> {
    let config = TextCraftConfig { data: Some(data()?), verify: Verify::Both, ..TextCraftConfig::default() };
    Some(TextCraft::new(config).unwrap())
}

fn select(presets: &[&str], split: Split, seed: u64) -> Selection {
    Selection { presets: presets.iter().map(|name| (*name).to_owned()).collect(), split, count: None, seed }
}

#[test]
fn all_tasks_load_and_open() {
    let Some(env) = open() else { return };
    let official = env.official().unwrap();
    let sizes = |split: Split| {
        let mut sizes = BTreeMap::new();
        for task in official.tasks(split) {
            *sizes.entry(task.difficulty.clone()).or_insert(0) += 1;
        }
        sizes.into_iter().map(|(name, size)| format!("{name} {size}")).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(sizes(Split::Train), "easy 588, extreme 538, hard 544, medium 852");
    assert_eq!(sizes(Split::Val), "easy 147, extreme 136, hard 136, medium 213");
    let mut opened = 0;
    for split in [Split::Train, Split::Val] {
        let tasks = env.tasks(&select(&["easy", "medium", "hard", "extreme"], split, 0)).unwrap();
        for (task, official) in tasks.iter().zip(official.tasks(split)) {
            assert_eq!(task.id, official.id, "file order at seed 0");
            assert_eq!(env.open(task).unwrap().root_goal().text, official.goal);
            opened += 1;
        }
    }
    assert_eq!(opened, 3_154);
}

#[test]
fn the_recipe_world_is_the_authors() {
    let Some(env) = open() else { return };
    let db = &env.official().unwrap().db;
    let craftable = db.items().filter(|(id, _)| !db.is_base(*id)).count();
    let deeper = db.items().filter(|(_, item)| item.true_depth < item.tier).count();
    assert_eq!((db.len(), craftable, deeper), (1_452, 1_402, 164));
    assert!(db.items().all(|(_, item)| item.true_depth <= item.tier));
}

#[test]
fn gold_trajectories_replay_through_craft() {
    let Some(env) = open() else { return };
    let gold = env.official().unwrap().gold().unwrap();
    let tasks = env.tasks(&select(&["easy", "medium", "hard", "extreme"], Split::Val, 0)).unwrap();
    assert_eq!((gold.len(), tasks.len()), (632, 632));
    for task in &tasks {
        let mut episode = env.open(task).unwrap();
        episode.enter(&[0], &episode.root_goal());
        for step in &gold[&task.id] {
            let parts = step.ingredients.iter().map(|(name, amount)| (name.as_str(), *amount));
            let result = episode.call(&[0], "craft", &craft_args(parts, &step.item, step.total));
            let text = format!("Successfully crafted {} {}(s)", step.total, step.item);
            assert_eq!(result, ToolResult::Value(Value::Str(text)), "{}", task.id);
        }
        let verdict = episode.verify(&[0], &Ending::with(Some(&Value::str("done")))).judged().unwrap();
        assert_eq!((verdict.score, verdict.evidence["disagree"].as_bool()), (1.0, Some(false)), "{}", task.id);
    }
}

#[test]
fn the_planner_is_never_worse_than_gold() {
    let Some(env) = open() else { return };
    for task in env.official().unwrap().tasks(Split::Val) {
        let steps = env.official().unwrap().db.plan(&task.targets, &task.inventory).unwrap();
        assert!(steps.len() as u64 <= task.num_craft_steps, "{}: {}", task.id, steps.len());
    }
}

/// Runs the oracle on every validation task of `presets` and checks every node by both verifiers.
fn solve(env: &TextCraft, presets: &[&str], limits: Limits, order: Order) -> usize {
    let tasks = env.tasks(&select(presets, Split::Val, 0)).unwrap();
    let (mut nodes, mut steps, mut depth) = (0, 0, 0);
    for task in &tasks {
        let mut episode = env.open_world(task).unwrap();
        for node in run(&mut episode, limits, order) {
            let verdict = &node.judgement;
            assert_eq!(verdict.score, 1.0, "{} {:?} {order:?}: {}", task.id, node.node, verdict.evidence);
            assert_eq!(verdict.evidence["ledger"], true, "{} {:?} {order:?}", task.id, node.node);
            assert!(node.steps <= limits.budget && node.node.len() <= limits.max_depth as usize + 1);
            nodes += 1;
            steps = steps.max(node.steps);
            depth = depth.max(node.node.len() - 1);
        }
    }
    println!("{presets:?} {order:?}: {} tasks, {nodes} nodes, at most {steps} steps, depth {depth}", tasks.len());
    tasks.len()
}

#[test]
fn the_recursive_oracle_solves_every_easy_medium_and_hard_task() {
    let Some(env) = open() else { return };
    let limits = Limits { budget: 25, max_depth: 6, recursive: true };
    for order in [Order::Rounds, Order::DepthFirst] {
        let solved: usize = NOT_EXTREME.iter().map(|preset| solve(&env, &[preset], limits, order)).sum();
        assert_eq!(solved, 496);
    }
}

#[test]
fn the_recursive_oracle_solves_extreme_tasks_too() {
    let Some(env) = open() else { return };
    let limits = Limits { budget: 25, max_depth: 6, recursive: true };
    assert_eq!(solve(&env, &["extreme"], limits, Order::Rounds), 136);
}

#[test]
fn an_oracle_that_delegates_every_ingredient_solves_them_too() {
    let Some(folder) = data() else { return };
    let config = TextCraftConfig { data: Some(folder), oracle_batch: Some(1), ..TextCraftConfig::default() };
    let env = TextCraft::new(config).unwrap();
    let limits = Limits { budget: 25, max_depth: 6, recursive: true };
    assert_eq!(solve(&env, &NOT_EXTREME, limits, Order::Rounds), 496);
}

#[test]
fn the_flat_oracle_solves_the_easy_tasks() {
    let Some(env) = open() else { return };
    let limits = Limits { budget: 200, max_depth: 6, recursive: false };
    assert_eq!(solve(&env, &["easy"], limits, Order::Rounds), 147);
    assert_eq!(solve(&env, &["hard"], limits, Order::Rounds), 136);
}

#[test]
fn a_seed_shuffles_and_loses_nothing() {
    let Some(env) = open() else { return };
    let ids = |seed| {
        let tasks = env.tasks(&select(&NOT_EXTREME, Split::Val, seed)).unwrap();
        tasks.into_iter().map(|task| task.id).collect::<Vec<_>>()
    };
    let (plain, mut shuffled) = (ids(0), ids(42));
    assert_eq!(shuffled, ids(42));
    assert_ne!(shuffled, plain);
    shuffled.sort();
    let mut sorted = plain;
    sorted.sort();
    assert_eq!(shuffled, sorted);
}

#[test]
fn a_task_of_other_recipes_is_refused_with_a_next_step() {
    let Some(env) = open() else { return };
    let task = env.tasks(&select(&["easy"], Split::Val, 0)).unwrap().remove(0);
    let error = TextCraft::new(TextCraftConfig::default()).unwrap().open(&task).err().unwrap();
    assert!(error.to_string().contains("give their folder with `--data`"), "{error}");
}
