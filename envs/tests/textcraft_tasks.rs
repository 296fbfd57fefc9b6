//! Generated tasks: solvable, reproducible, apart in training and validation; and what the scripted policies write.

#![expect(clippy::unwrap_used, reason = "helpers of tests are not exempt by configuration")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use common::{Limits, Order, run};
use rao_envs::textcraft::{GenConfig, MISTAKES, Preset, RecipeDb, TaskGen, TextCraft, TextCraftConfig, Worlds};
use rao_envs::{Args, EnvError, Environment, Episode, Goal, Script, Selection, Split, Task, Turn, Value};

fn env(config: TextCraftConfig) -> TextCraft {
    TextCraft::new(config).unwrap()
}

fn select(presets: &[&str], split: Split, count: usize, seed: u64) -> Selection {
    let presets = presets.iter().map(|name| (*name).to_owned()).collect();
    Selection { presets, split, count: Some(count), seed }
}

/// Every kind of generated task: shared or own worlds, pre-crafted or not, tight or not.
fn all_kinds() -> Vec<TextCraft> {
    let mut kinds = Vec::new();
    for worlds in [Worlds::Shared, Worlds::Fresh] {
        for (pre_crafted, tight) in [(false, false), (true, false), (false, true), (true, true)] {
            kinds.push(env(TextCraftConfig { worlds, pre_crafted, tight, ..TextCraftConfig::default() }));
        }
    }
    kinds
}

#[test]
fn the_oracle_solves_every_kind_of_generated_task() {
    let limits = Limits { budget: 25, max_depth: 6, recursive: true };
    let mut delegations = 0;
    for (kind, env) in all_kinds().iter().enumerate() {
        let tasks = env.tasks(&select(&["tiny", "easy", "medium", "hard"], Split::Train, 80, kind as u64)).unwrap();
        for (task, order) in tasks.iter().flat_map(|task| [(task, Order::Rounds), (task, Order::DepthFirst)]) {
            for node in run(&mut env.open_world(task).unwrap(), limits, order) {
                let evidence = &node.judgement.evidence;
                assert_eq!(node.judgement.score, 1.0, "{} {:?} {order:?}: {evidence}", task.id, node.node);
                assert!(node.steps <= 25, "{}", task.id);
                delegations += usize::from(node.node.len() > 1);
            }
        }
    }
    assert!(delegations > 1_000, "{delegations}");
}

#[test]
fn the_flat_oracle_solves_tiny_tasks_in_four_steps() {
    let env = env(TextCraftConfig::default());
    let limits = Limits { budget: 16, max_depth: 0, recursive: false };
    for task in env.tasks(&select(&["tiny"], Split::Val, 200, 3)).unwrap() {
        let nodes = run(&mut env.open_world(&task).unwrap(), limits, Order::Rounds);
        assert_eq!((nodes.len(), nodes[0].judgement.score), (1, 1.0));
        assert!(nodes[0].steps <= 4);
    }
}

#[test]
fn equal_selections_give_equal_tasks_and_prefixes() {
    for worlds in [Worlds::Shared, Worlds::Fresh] {
        let make = || env(TextCraftConfig { worlds, ..TextCraftConfig::default() });
        let presets = ["tiny", "easy", "hard"];
        let long = make().tasks(&select(&presets, Split::Train, 30, 5)).unwrap();
        assert_eq!(long, make().tasks(&select(&presets, Split::Train, 30, 5)).unwrap());
        let short = make().tasks(&select(&presets, Split::Train, 9, 5)).unwrap();
        assert_eq!(short, long[..9], "a shorter selection is a prefix");
        assert_ne!(short, make().tasks(&select(&presets, Split::Train, 9, 6)).unwrap());
        let ids: BTreeSet<_> = long.iter().map(|task| &task.id).collect();
        assert_eq!(ids.len(), 30);
    }
}

#[test]
fn training_and_validation_never_meet() {
    let all = |split| {
        let env = env(TextCraftConfig::default());
        let presets = ["easy", "medium", "hard", "extreme"].map(str::to_owned).to_vec();
        let tasks = env.tasks(&Selection { presets, split, count: None, seed: 1 }).unwrap();
        let item = |task: &Task| task.body["targets"].as_object().unwrap().keys().next().unwrap().clone();
        (tasks.len(), tasks.iter().map(item).collect::<BTreeSet<_>>())
    };
    let ((train, train_items), (val, val_items)) = (all(Split::Train), all(Split::Val));
    assert_eq!((train, val), (2_522, 632), "as many as the authors have");
    assert!(train_items.is_disjoint(&val_items));

    let seeds = |split| {
        let make = TaskGen::new(Preset::find("tiny").unwrap(), split);
        (0..50).flat_map(move |seed| (0..20).map(move |index| (seed, index))).map(move |(s, i)| make.seed(s, i))
    };
    assert!(seeds(Split::Train).all(|seed| seed % 2 == 0) && seeds(Split::Val).all(|seed| seed % 2 == 1));
    assert_eq!(seeds(Split::Train).collect::<BTreeSet<_>>().len(), 1_000);
}

#[test]
fn stock_follows_the_authors_rule() {
    let env = env(TextCraftConfig::default());
    let db = RecipeDb::generate(&GenConfig::official(42)).unwrap();
    for task in env.tasks(&select(&["easy", "medium"], Split::Val, 100, 0)).unwrap() {
        let episode = env.open_world(&task).unwrap();
        let targets: Vec<_> = task.body["targets"].as_object().unwrap().iter().collect();
        let target = (db.find(targets[0].0).unwrap(), targets[0].1.as_u64().unwrap());
        let need = db.base_need_without_yields(&[target]);
        let stock = episode.world().stock();
        for (&item, &count) in &need {
            assert!((count..=count + (count / 2).max(1)).contains(&stock[&item]), "{}", task.id);
        }
        let extra = stock.iter().filter(|(item, _)| !need.contains_key(item));
        assert!((1..=3).contains(&extra.clone().count()) && extra.clone().all(|(_, count)| (1..=5).contains(count)));
        assert!(stock.keys().all(|&item| db.is_base(item)));
    }
}

#[test]
fn tight_stock_forgives_nothing() {
    let env = env(TextCraftConfig { tight: true, ..TextCraftConfig::default() });
    for task in env.tasks(&select(&["medium"], Split::Train, 20, 0)).unwrap() {
        let episode = env.open_world(&task).unwrap();
        let db = episode.world().db();
        let targets: Vec<_> = task.body["targets"].as_object().unwrap().iter().collect();
        let target = (db.find(targets[0].0).unwrap(), targets[0].1.as_u64().unwrap());
        for base in db.closure(&[target.0]).into_iter().filter(|&item| db.is_base(item)) {
            let mut less = episode.world().stock().clone();
            *less.get_mut(&base).unwrap() -= 1;
            assert!(db.plan(&[target], &less).is_err(), "{}: one {} less must be fatal", task.id, db.name(base));
        }
    }
}

#[test]
fn several_targets_can_be_asked_for() {
    let env = env(TextCraftConfig::default());
    let make = TaskGen { n_targets: 3, ..TaskGen::new(Preset::find("medium").unwrap(), Split::Train) };
    for index in 0..10 {
        let task = make.fresh(make.seed(1, index)).unwrap();
        assert_eq!(task.body["targets"].as_object().unwrap().len(), 3);
        let limits = Limits { budget: 25, max_depth: 6, recursive: true };
        let nodes = run(&mut env.open_world(&task).unwrap(), limits, Order::Rounds);
        assert!(nodes.iter().all(|node| node.judgement.score == 1.0));
    }
}

#[test]
fn bad_selections_and_bodies_are_named() {
    let env = env(TextCraftConfig::default());
    let error = env.tasks(&select(&["tyny"], Split::Val, 1, 0)).unwrap_err();
    let expected = "unknown preset `tyny` for textcraft: choose from tiny, easy, medium, hard, extreme";
    assert_eq!(error.to_string(), expected);
    let error = env.tasks(&select(&["easy"], Split::Val, 1_000, 0)).unwrap_err();
    assert!(matches!(error, EnvError::TooFewTasks { wanted: 1_000, found: 147, .. }), "{error}");
    let endless = Selection { count: None, ..select(&["tiny"], Split::Val, 0, 0) };
    assert!(matches!(env.tasks(&endless), Err(EnvError::Setting { name: "tasks", .. })));

    let good = env.tasks(&select(&["tiny"], Split::Val, 1, 0)).unwrap().remove(0);
    let spoilt: [fn(&mut serde_json::Value); 5] = [
        |body| body["extra"] = 1.into(),
        |body| body["targets"] = serde_json::json!({ "m0_nothing": 1 }),
        |body| body["targets"] = serde_json::json!({}),
        |body| body["inventory"]["m0_nothing"] = 1.into(),
        |body| body["world"]["generate"]["version"] = 9.into(),
    ];
    for spoil in spoilt {
        let mut task = good.clone();
        spoil(&mut task.body);
        assert!(matches!(env.open(&task).err(), Some(EnvError::BadTask { .. })), "{}", task.body);
    }
}

#[test]
fn the_manifest_names_content_and_no_path() {
    let config = env(TextCraftConfig::default()).config();
    assert_eq!(config["recipes"].as_str().unwrap().len(), 64);
    assert_eq!((config["verify"].as_str(), config["worlds"].as_str()), (Some("delta"), Some("shared")));
    let defaults = |presets: &[&str]| {
        let presets: Vec<String> = presets.iter().map(|name| (*name).to_owned()).collect();
        let defaults = env(TextCraftConfig::default()).defaults(&presets);
        (defaults.max_steps, defaults.max_steps_flat, defaults.max_depth, defaults.lambda)
    };
    assert_eq!(defaults(&["tiny"]), (8, 16, 3, 0.0));
    assert_eq!(defaults(&["tiny", "easy"]), (25, 200, 6, 0.0));
}

#[test]
fn opening_a_tiny_task_is_quick() {
    let env = env(TextCraftConfig::default());
    let tasks = env.tasks(&select(&["tiny"], Split::Train, 200, 0)).unwrap();
    let start = Instant::now();
    for task in &tasks {
        env.open(task).unwrap();
    }
    let each = start.elapsed() / 200;
    println!("opening a tiny task takes {each:?}");
    // Far above what it takes, for loaded machines.
    assert!(each.as_millis() < 5, "{each:?}");
}

fn turn<'a>(node: &'a [u32], goal: &'a Goal, step: u32, seed: u64) -> Turn<'a> {
    Turn { node, goal, step, budget: 8, max_depth: 3, recursive: true, observation: None, seed }
}

#[test]
fn the_tiny_oracle_writes_short_literal_cells() {
    let env = env(TextCraftConfig::default());
    let task = env.tasks(&select(&["tiny"], Split::Train, 40, 0)).unwrap().into_iter().find(|task| {
        let mut episode = env.open(task).unwrap();
        let goal = episode.root_goal();
        episode.enter(&[0], &goal);
        episode.scripted(Script::Oracle, &turn(&[0], &goal, 1, 0)).contains("gather")
    });
    let mut episode = env.open_world(&task.unwrap()).unwrap();
    let goal = episode.root_goal();
    episode.enter(&[0], &goal);
    let write = |episode: &dyn Episode, node: &[u32], goal: &Goal, step| {
        episode.scripted(Script::Oracle, &turn(node, goal, step, 0))
    };
    let target = goal.targets.as_object().unwrap().keys().next().unwrap().clone();
    let first = format!("<thought>Look up the recipe.</thought>\n<python>print(get_info([\"{target}\"]))</python>");
    assert_eq!(write(&episode, &[0], &goal, 0), first);
    let second = write(&episode, &[0], &goal, 1);
    let begin = "<thought>Delegate the missing parts.</thought>\n<python>import asyncio\n\
                 print(await asyncio.gather(launch_subagent({\"";
    assert!(second.starts_with(begin) && second.ends_with("})))</python>"), "{second}");
    // The children's work, as they would do it.
    for (index, call) in second.split("launch_subagent(").skip(1).enumerate() {
        let (name, count) = call.trim_start_matches("{\"").split_once("\": ").unwrap();
        let count: i64 = count[..count.find('}').unwrap()].parse().unwrap();
        let args = Args::positional([Value::dict([(name, Value::Int(count))])]);
        let (node, child) = ([0, index as u32], episode.delegate(&[0], &args).unwrap());
        episode.enter(&node, &child);
        let cell = write(&episode, &node, &child, 1);
        let begin = "<thought>Craft and finish.</thought>\n<python>print(craft({\"";
        assert!(cell.starts_with(begin) && cell.ends_with("))\nfinish(\"done\")</python>"), "{cell}");
        let db = episode.world().db().clone();
        let recipe = db.recipe(db.find(name).unwrap()).unwrap();
        let executions = (count as u64).div_ceil(recipe.result_count);
        let parts = recipe.ingredients.iter().map(|&(part, amount)| (db.name(part), amount * executions));
        episode.call(&node, "craft", &common::craft_args(parts, name, executions * recipe.result_count));
    }
    let last = write(&episode, &[0], &goal, 2);
    assert!(last.starts_with("<thought>Craft and finish.</thought>"), "{last}");
    assert!(last.contains(&format!("(\"{target}\", ")) && last.ends_with("finish(\"done\")</python>"), "{last}");
}

#[test]
fn the_noisy_policy_makes_every_kind_of_mistake_and_repeats_itself() {
    let env = env(TextCraftConfig { oracle_batch: Some(4), ..TextCraftConfig::default() });
    let (mut turns, mut wrong) = (0, 0);
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    for task in env.tasks(&select(&["tiny", "medium"], Split::Train, 300, 0)).unwrap() {
        let mut episode = env.open_world(&task).unwrap();
        let goal = episode.root_goal();
        episode.enter(&[0], &goal);
        for step in 0..4 {
            let turn = turn(&[0], &goal, step, turns);
            let (right, noisy) = (episode.scripted(Script::Oracle, &turn), episode.scripted(Script::Noisy, &turn));
            assert_eq!(noisy, episode.scripted(Script::Noisy, &turn));
            turns += 1;
            if noisy == right {
                continue;
            }
            wrong += 1;
            let kind = [
                ("no python", !noisy.contains("<python>")),
                ("syntax", !noisy.contains("\"]") && noisy.contains("get_info([") && noisy.contains("\"))")),
                ("raises", noisy.contains("stock[")),
                ("early", noisy.contains("finish(") && !noisy.contains("craft(")),
                ("no await", noisy.contains("launch_subagent") && !noisy.contains("await")),
                ("whole goal", noisy.contains("Delegate it all.")),
                ("delegates", noisy.contains("await")),
                ("craft", noisy.contains("craft(")),
            ];
            let kind = kind.iter().find(|(_, is)| *is).unwrap_or_else(|| panic!("what is {noisy}?")).0;
            *seen.entry(kind).or_default() += 1;
        }
    }
    assert_eq!(seen.len(), 8, "{seen:?}");
    let rate = f64::from(wrong) / turns as f64;
    assert!((0.15..0.25).contains(&rate), "{rate} {seen:?}");
    assert_eq!(MISTAKES.len(), 11);
}
