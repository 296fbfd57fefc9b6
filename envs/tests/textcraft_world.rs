//! The tools' exact texts, delegation, verdicts, and what crafts do to the world.

#![expect(clippy::unwrap_used, reason = "helpers of tests are not exempt by configuration")]

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use rao_envs::textcraft::{CraftEpisode, RecipeDb, TextCraft, TextCraftConfig, Verify, World};
use rao_envs::{Args, Ending, Episode, Goal, Task, Text, ToolResult, Value};
use serde_json::{Value as Json, json};

const WORLD: &str = r#"{"base_items": ["b", "w"], "recipes": {
    "plank": {"result_count": 4, "ingredients": {"w": 1}, "depth": 1},
    "rod": {"result_count": 2, "ingredients": {"plank": 1, "b": 2}, "depth": 2},
    "gate": {"result_count": 1, "ingredients": {"plank": 3, "rod": 1}, "depth": 3}}}"#;

/// An episode over [`WORLD`], read through the loader as any other data.
fn episode(config: TextCraftConfig, target: Json, inventory: Json) -> CraftEpisode {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("recipes.json"), WORLD).unwrap();
    for file in ["train.jsonl", "val.jsonl"] {
        std::fs::write(folder.path().join(file), "").unwrap();
    }
    let env = TextCraft::new(TextCraftConfig { data: Some(folder.path().to_owned()), ..config }).unwrap();
    let digest = env.official().unwrap().db.digest().to_owned();
    let body = json!({ "preset": "easy", "world": { "data": digest }, "targets": target, "inventory": inventory });
    let task = Task { id: "t".into(), difficulty: "easy".into(), body };
    let mut episode = env.open_world(&task).unwrap();
    let root = episode.root_goal();
    episode.enter(&[0], &root);
    episode
}

fn small() -> CraftEpisode {
    episode(TextCraftConfig::default(), json!({ "gate": 1 }), json!({ "w": 3, "b": 5, "plank": 2 }))
}

fn craft_args(parts: &[(&str, i64)], item: &str, count: i64) -> Args {
    let parts = Value::dict(parts.iter().map(|&(name, count)| (name, Value::Int(count))));
    Args::positional([parts, Value::Tuple(vec![item.into(), Value::Int(count)])])
}

fn craft(episode: &mut CraftEpisode, node: &[u32], parts: &[(&str, i64)], item: &str, count: i64) -> String {
    text(episode.call(node, "craft", &craft_args(parts, item, count)))
}

fn text(result: ToolResult) -> String {
    match result {
        ToolResult::Value(Value::Str(text)) => text,
        other => format!("{other:?}"),
    }
}

fn inventory(episode: &CraftEpisode) -> String {
    episode.world().view_inventory().repr()
}

#[test]
fn craft_says_exactly_this() {
    let none = Value::None;
    let target = |count| Value::Tuple(vec!["plank".into(), Value::Int(count)]);
    let dict = |pairs: &[(&str, Value)]| Value::dict(pairs.iter().cloned());
    let w = |amount: i64| dict(&[("w", Value::Int(amount))]);
    let failed =
        |item: &str, reason: &str| format!("Error: All 1 recipe(s) failed for {item}. Errors:\nRecipe 1: {reason}");
    let bad_target = "Error: target must be a tuple of (item_name, count)".to_owned();
    let cases = [
        (Value::List(vec![]), target(4), "Error: ingredients must be a dict, got list".to_owned()),
        (none.clone(), none.clone(), "Error: ingredients must be a dict, got NoneType".to_owned()),
        (w(1), Value::str("plank"), bad_target.clone()),
        (w(1), Value::List(vec!["plank".into(), Value::Int(4)]), bad_target.clone()),
        (w(1), Value::Tuple(vec!["plank".into()]), bad_target.clone()),
        (w(1), Value::Tuple(vec!["plank".into(), "4".into()]), bad_target),
        (w(1), target(0), "Error: target count must be positive, got 0".to_owned()),
        (w(1), target(-4), "Error: target count must be positive, got -4".to_owned()),
        (w(1), Value::Tuple(vec!["w".into(), Value::Int(1)]), "Error: No recipe found for w".to_owned()),
        (w(1), Value::Tuple(vec!["zzz".into(), Value::Int(1)]), "Error: No recipe found for zzz".to_owned()),
        (w(1), target(6), failed("plank", "Target count 6 is not divisible by recipe result count 4")),
        (dict(&[]), target(4), failed("plank", "Missing required ingredient w")),
        (w(1), target(8), failed("plank", "Wrong amount of w. Need 2, provided 1")),
        (dict(&[("w", "1".into())]), target(4), failed("plank", "Wrong amount of w. Need 1, provided '1'")),
        (
            dict(&[("w", Value::Int(1)), ("b", Value::Int(1)), ("x", Value::Int(2))]),
            target(4),
            failed("plank", "Extra ingredients not required: b, x"),
        ),
        (w(4), target(16), failed("plank", "Insufficient ingredients in inventory: w: need 4, have 3")),
        (
            w(1),
            target(i64::MAX),
            failed("plank", &format!("Target count {} is not divisible by recipe result count 4", i64::MAX)),
        ),
    ];
    let mut episode = small();
    for (ingredients, target, expected) in cases {
        let result = episode.call(&[0], "craft", &Args::positional([ingredients, target]));
        assert_eq!(text(result), expected);
        assert_eq!(inventory(&episode), "{'b': 5, 'w': 3, 'plank': 2}", "a refused craft changes nothing: {expected}");
    }
    assert_eq!(craft(&mut episode, &[0], &[("w", 3)], "plank", 12), "Successfully crafted 12 plank(s)");
    assert_eq!(inventory(&episode), "{'b': 5, 'plank': 14}");
    let lacking = craft(&mut episode, &[0], &[("plank", 30), ("rod", 10)], "gate", 10);
    assert_eq!(
        lacking,
        failed("gate", "Insufficient ingredients in inventory: plank: need 30, have 14, rod: need 10, have 0")
    );
}

#[test]
fn every_recipe_is_tried() {
    let world = r#"{"base_items": ["a", "b"], "recipes": {"x": [
        {"result_count": 2, "ingredients": {"a": 1}, "depth": 1}, {"result_count": 1, "ingredients": {"b": 1}, "depth": 1}]}}"#;
    let db = Arc::new(RecipeDb::from_json(world).unwrap());
    let stock = [("a", 1), ("b", 1)].map(|(name, count)| (db.find(name).unwrap(), count)).into_iter().collect();
    let mut world = World::new(db, stock, false);
    let mut craft = |part: &str, amount, count| {
        let target = Value::Tuple(vec!["x".into(), Value::Int(count)]);
        world.craft(&[0], &Value::dict([(part, Value::Int(amount))]), &target)
    };
    let both = "Error: All 2 recipe(s) failed for x. Errors:\nRecipe 1: Missing required ingredient a\n\
                Recipe 2: Wrong amount of b. Need 2, provided 1";
    assert_eq!(craft("b", 1, 2), both);
    assert_eq!(craft("b", 1, 1), "Successfully crafted 1 x(s)");
    assert_eq!(craft("a", 1, 2), "Successfully crafted 2 x(s)");
}

#[test]
fn info_and_inventory_look_like_this() {
    let mut episode = small();
    let items = Args::positional([Value::List(vec!["rod".into(), "w".into(), "zzz".into()])]);
    let ToolResult::Value(info) = episode.call(&[0], "get_info", &items) else { panic!("no value") };
    let expected = "[{'item': 'rod', 'can_craft': True, 'is_base': False, 'in_inventory': 0, 'crafting_depth': 2, \
        'recipes': [{'ingredients': {'plank': 1, 'b': 2}, 'result_count': 2}]}, \
        {'item': 'w', 'can_craft': False, 'is_base': True, 'in_inventory': 3, 'crafting_depth': 0, 'recipes': []}, \
        {'item': 'zzz', 'can_craft': False, 'is_base': False, 'in_inventory': 0, 'crafting_depth': 0, 'recipes': []}]";
    assert_eq!(info.repr(), expected);
    let ToolResult::Value(stock) = episode.call(&[0], "view_inventory", &Args::default()) else { panic!("no value") };
    assert_eq!(stock.repr(), "{'b': 5, 'w': 3, 'plank': 2}");
}

#[test]
fn wrong_signatures_raise_as_in_python() {
    let one = Value::Int(1);
    let many = |count: usize| Args::positional(vec![one.clone(); count]);
    let cases = [
        ("craft", many(0), "craft() missing 2 required positional arguments: 'ingredients' and 'target'"),
        ("craft", many(1), "craft() missing 1 required positional argument: 'target'"),
        ("craft", many(3), "craft() takes 2 positional arguments but 3 were given"),
        ("craft", many(1).with("item", one.clone()), "craft() got an unexpected keyword argument 'item'"),
        ("craft", many(1).with("ingredients", one.clone()), "craft() got multiple values for argument 'ingredients'"),
        ("get_info", many(2), "get_info() takes 1 positional argument but 2 were given"),
        ("get_info", many(1), "items must be a list of item names, got int"),
        ("get_info", Args::positional([Value::List(vec![one.clone()])]), "item names must be strings, got int"),
        ("view_inventory", many(1), "view_inventory() takes 0 positional arguments but 1 was given"),
    ];
    let mut episode = small();
    for (tool, args, expected) in cases {
        let raised = ToolResult::Raised { kind: "TypeError".into(), message: expected.into() };
        assert_eq!(episode.call(&[0], tool, &args), raised);
    }
    let unknown = ToolResult::Raised { kind: "NameError".into(), message: "name 'get' is not defined".into() };
    assert_eq!(episode.call(&[0], "get", &Args::default()), unknown);
}

#[test]
fn keyword_arguments_work() {
    let mut episode = small();
    let args = Args::default()
        .with("target", Value::Tuple(vec!["plank".into(), Value::Int(4)]))
        .with("ingredients", Value::dict([("w", Value::Int(1))]));
    assert_eq!(text(episode.call(&[0], "craft", &args)), "Successfully crafted 4 plank(s)");
}

#[test]
fn delegation_makes_goals_of_data() {
    let mut episode = small();
    let targets = Value::dict([("rod", Value::Int(2)), ("plank", Value::Int(1))]);
    let goal = Goal {
        text: "Craft the following items: 2x rod, 1x plank".into(),
        targets: json!({ "rod": 2, "plank": 1 }),
        context: Text::default(),
    };
    assert_eq!(episode.delegate(&[0], &Args::positional([targets.clone()])), Ok(goal.clone()));
    assert_eq!(episode.delegate(&[0], &Args::default().with("targets", targets.clone())), Ok(goal.clone()));
    // Text that looks like a target stays text.
    let context = Value::str("also 3x gate");
    let told = episode.delegate(&[0], &Args::positional([targets]).with("context", context)).unwrap();
    assert_eq!(told.text, format!("{}\n\nContext provided from parent agent: also 3x gate", goal.text));
    assert_eq!((told.targets, told.context.as_str()), (goal.targets, "also 3x gate"));
}

#[test]
fn bad_delegations_are_refused_in_words() {
    let of = |name: &str, count: Value| Args::positional([Value::dict([(name, count)])]);
    let cases = [
        (Args::default(), "Error: launch_subagent() missing 1 required positional argument: 'targets'"),
        (
            of("rod", Value::Int(1)).with("num_steps", Value::Int(5)),
            "Error: launch_subagent() got an unexpected keyword argument 'num_steps'",
        ),
        (
            Args::positional(vec![Value::None; 3]),
            "Error: launch_subagent() takes from 1 to 2 positional arguments but 3 were given",
        ),
        (Args::positional([Value::str("2x rod")]), "Error: targets must be a dict, got str"),
        (Args::positional([Value::Dict(vec![])]), "Error: targets must not be empty"),
        (
            Args::positional([Value::Dict(vec![(Value::Int(1), Value::Int(1))])]),
            "Error: target names must be strings, got int",
        ),
        (of("zzz", Value::Int(1)), "Error: unknown item zzz"),
        (of("w", Value::Int(1)), "Error: w is a base item and cannot be crafted"),
        (of("rod", Value::Int(0)), "Error: count of rod must be a positive integer, got 0"),
        (of("rod", Value::Int(-2)), "Error: count of rod must be a positive integer, got -2"),
        (of("rod", Value::Float(2.0)), "Error: count of rod must be a positive integer, got 2.0"),
        (of("rod", Value::Bool(true)), "Error: count of rod must be a positive integer, got True"),
        (of("rod", Value::Int(1)).with("context", Value::Int(1)), "Error: context must be a string, got int"),
    ];
    let mut episode = small();
    for (args, expected) in cases {
        assert_eq!(episode.delegate(&[0], &args), Err(expected.to_owned()));
    }
}

fn child(episode: &mut CraftEpisode, node: &[u32], item: &str, count: i64) {
    let goal = episode.delegate(&[0], &Args::positional([Value::dict([(item, Value::Int(count))])])).unwrap();
    episode.enter(node, &goal);
}

#[test]
fn finishing_needs_a_message_and_growth() {
    let mut episode = episode(TextCraftConfig::default(), json!({ "plank": 4 }), json!({ "w": 2, "plank": 9 }));
    let done = Value::str("done");
    assert_eq!(
        episode.verify(&[0], &Ending::with(Some(&done))).judged().unwrap().score,
        0.0,
        "stock from before does not count"
    );
    craft(&mut episode, &[0], &[("w", 1)], "plank", 4);
    for (value, score) in [
        (None, 0.0),
        (Some(Value::str("")), 0.0),
        (Some(Value::None), 0.0),
        (Some(Value::Dict(vec![])), 0.0),
        (Some(Value::Int(7)), 1.0),
        (Some(done), 1.0),
    ] {
        let verdict = episode.verify(&[0], &Ending::with(value.as_ref())).judged().unwrap();
        assert_eq!((verdict.score, verdict.source.as_str()), (score, "textcraft/delta"), "{value:?}");
    }
    let verdict = episode.verify(&[0], &Ending::with(Some(&Value::str("done")))).judged().unwrap();
    let row = json!({ "item": "plank", "count": 4, "start": 9, "now": 13, "crafted": 4 });
    let expected = json!({ "finished": true, "targets": [row], "delta": true, "ledger": true, "disagree": false });
    assert_eq!(verdict.evidence, expected);
}

/// Two children side by side: `[0, 0]` makes planks that `[0, 1]` uses up, and a third that does nothing profits.
#[test]
fn delta_and_ledger_disagree_where_siblings_interfere() {
    let scores = |verify| {
        let config = TextCraftConfig { verify, ..TextCraftConfig::default() };
        let mut episode = episode(config, json!({ "gate": 1 }), json!({ "w": 5, "b": 9 }));
        child(&mut episode, &[0, 0], "plank", 4);
        child(&mut episode, &[0, 1], "rod", 2);
        child(&mut episode, &[0, 2], "rod", 2);
        craft(&mut episode, &[0, 0], &[("w", 1)], "plank", 4);
        craft(&mut episode, &[0, 1], &[("plank", 1), ("b", 2)], "rod", 2);
        let done = Value::str("done");
        [[0, 0], [0, 1], [0, 2]].map(|node| {
            let verdict = episode.verify(&node, &Ending::with(Some(&done))).judged().unwrap();
            (verdict.score, verdict.evidence["disagree"] == true)
        })
    };
    assert_eq!(scores(Verify::Delta), [(0.0, true), (1.0, false), (1.0, true)]);
    assert_eq!(scores(Verify::Ledger), [(1.0, true), (1.0, false), (0.0, true)]);
    assert_eq!(scores(Verify::Both), scores(Verify::Delta));
}

#[test]
fn a_grandchilds_work_counts_for_its_ancestors_only() {
    let mut episode = episode(TextCraftConfig::default(), json!({ "plank": 4 }), json!({ "w": 5 }));
    craft(&mut episode, &[0, 1, 0], &[("w", 1)], "plank", 4);
    craft(&mut episode, &[0, 10], &[("w", 1)], "plank", 4);
    let plank = episode.world().db().find("plank").unwrap();
    let made = |node: &[u32]| episode.world().crafted_by_subtree(node, plank);
    assert_eq!([made(&[0]), made(&[0, 1]), made(&[0, 1, 0]), made(&[0, 10]), made(&[0, 0])], [8, 4, 4, 4, 0]);
}

#[test]
fn reserve_keeps_a_running_childs_goods() {
    let config = TextCraftConfig { reserve: true, ..TextCraftConfig::default() };
    let mut episode = episode(config, json!({ "gate": 1 }), json!({ "w": 5, "b": 9, "plank": 1 }));
    child(&mut episode, &[0, 0], "plank", 4);
    child(&mut episode, &[0, 1], "rod", 4);
    craft(&mut episode, &[0, 0, 3], &[("w", 1)], "plank", 4);
    let parts = [("plank", 2), ("b", 4)];
    let refused = "Error: All 1 recipe(s) failed for rod. Errors:\nRecipe 1: Reserved by a running subagent: plank: need 2, have 1";
    assert_eq!(craft(&mut episode, &[0, 1], &parts, "rod", 4), refused);
    assert_eq!(craft(&mut episode, &[0], &parts, "rod", 4), refused);
    assert_eq!(craft(&mut episode, &[0, 0], &parts, "rod", 4), "Successfully crafted 4 rod(s)");
    craft(&mut episode, &[0, 0], &[("w", 1)], "plank", 4);
    episode.verify(&[0, 0], &Ending::with(Some(&Value::str("done"))));
    assert_eq!(craft(&mut episode, &[0, 1], &parts, "rod", 4), "Successfully crafted 4 rod(s)");
}

#[test]
fn the_ledger_says_who_made_what_was_used() {
    let mut episode = small();
    craft(&mut episode, &[0, 0], &[("w", 1)], "plank", 4);
    craft(&mut episode, &[0], &[("plank", 2), ("b", 4)], "rod", 4);
    craft(&mut episode, &[0, 1], &[("plank", 3), ("rod", 1)], "gate", 1);
    let world = episode.world();
    let name = |item| world.db().name(item).to_owned();
    let used = |index: usize| {
        let entry = &world.ledger()[index];
        entry.consumed.iter().map(|part| (name(part.item), part.amount, part.from.clone())).collect::<Vec<_>>()
    };
    // The oldest goods go first: the two planks of the initial inventory, then those of the child.
    assert_eq!(used(1), [("plank".into(), 2, None), ("b".into(), 4, None)]);
    assert_eq!(used(2), [("plank".into(), 3, Some(vec![0, 0])), ("rod".into(), 1, Some(vec![0]))]);
    assert_eq!((name(world.ledger()[2].item), world.ledger()[2].produced), ("gate".to_owned(), 1));
    assert_eq!(inventory(&episode), "{'b': 1, 'w': 2, 'plank': 1, 'rod': 3, 'gate': 1}");
}

/// What an agent might try: amounts right or slightly wrong, by one of three nodes.
fn attempts() -> impl Strategy<Value = Vec<(u32, &'static str, i64, i64)>> {
    let item = prop_oneof![Just("plank"), Just("rod"), Just("gate"), Just("w")];
    prop::collection::vec((0..3_u32, item, 0..4_i64, prop_oneof![4 => Just(0), 1 => -1..=1_i64]), 0..40)
}

/// The recipes once more, as plainly as can be.
fn recipe(item: &str) -> (i64, &'static [(&'static str, i64)]) {
    match item {
        "plank" => (4, &[("w", 1)]),
        "rod" => (2, &[("plank", 1), ("b", 2)]),
        "gate" => (1, &[("plank", 3), ("rod", 1)]),
        _ => (1, &[("b", 1)]),
    }
}

fn attempt(&(node, item, times, off): &(u32, &'static str, i64, i64)) -> ([u32; 2], Args) {
    let (yields, parts) = recipe(item);
    let parts: Vec<(&str, i64)> = parts.iter().map(|&(name, amount)| (name, amount * times + off)).collect();
    ([0, node], craft_args(&parts, item, yields * times))
}

proptest! {
    #[test]
    fn crafts_conserve_what_a_simple_model_says(attempts in attempts()) {
        let mut episode = episode(TextCraftConfig::default(), json!({ "gate": 1 }), json!({ "w": 9, "b": 9 }));
        let mut model: BTreeMap<&str, i64> = BTreeMap::from([("w", 9), ("b", 9)]);
        for tried in &attempts {
            let &(_, item, times, off) = tried;
            let (yields, parts) = recipe(item);
            let works = times > 0 && off == 0 && item != "w"
                && parts.iter().all(|(name, amount)| model.get(name).copied().unwrap_or(0) >= amount * times);
            let (node, args) = attempt(tried);
            let said = text(episode.call(&node, "craft", &args));
            prop_assert_eq!(said.starts_with("Successfully"), works, "{}", said);
            if works {
                parts.iter().for_each(|(name, amount)| *model.entry(name).or_default() -= amount * times);
                *model.entry(item).or_default() += yields * times;
            }
        }
        let world = episode.world();
        for (_, item) in world.db().items() {
            let count = world.count(world.db().find(&item.name).unwrap()) as i64;
            prop_assert_eq!(count, model.get(&*item.name).copied().unwrap_or(0), "{}", item.name);
        }
    }

    #[test]
    fn absorbing_a_logged_call_is_making_it(attempts in attempts(), reserve in any::<bool>()) {
        let config = TextCraftConfig { reserve, ..TextCraftConfig::default() };
        let open = || episode(config.clone(), json!({ "gate": 1 }), json!({ "w": 9, "b": 9 }));
        let (mut live, mut replayed) = (open(), open());
        for node in [[0, 0], [0, 1]] {
            child(&mut live, &node, "rod", 2);
            child(&mut replayed, &node, "rod", 2);
        }
        for (index, tried) in attempts.iter().enumerate() {
            let (node, args) = attempt(tried);
            let result = live.call(&node, "craft", &args);
            replayed.absorb(&node, "craft", &args, &result);
            if index == 10 {
                live.verify(&[0, 0], &Ending::with(None));
                replayed.verify(&[0, 0], &Ending::with(None));
            }
        }
        prop_assert_eq!(live.world().stock(), replayed.world().stock());
        prop_assert_eq!(live.world().ledger(), replayed.world().ledger());
        let done = Value::str("done");
        let ending = Ending::with(Some(&done));
        prop_assert_eq!(live.verify(&[0], &ending), replayed.verify(&[0], &ending));
    }
}
