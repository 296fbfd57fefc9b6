//! The environment authors' own tasks, where `RAO_LOG_DATA` says that they are.

use crate::common::Place;
use rao_store::event::{Body, Kind};
use rao_store::{EventSource, Filter, Reader, Seq, Stream};
use std::collections::BTreeSet;

#[test]
fn the_oracle_solves_every_official_task_with_every_node_verified() {
    let Some(data) = std::env::var_os("RAO_LOG_DATA") else {
        println!("skipped: RAO_LOG_DATA is not set");
        return;
    };
    let data = std::path::Path::new(&data).join("textcraft-synth").display().to_string();
    let place = Place::new();
    let eval = |more: &[&str]| {
        let mut flags = vec!["eval", "--policy", "oracle", "--tokenizer", "bytes", "--tasks", "all", "--data", &data];
        flags.extend(["--prompt", "full", "--context", "65536"]);
        flags.extend(more);
        let found = place.json(&flags);
        let rows = found["difficulties"].as_array().unwrap().clone();
        rows.iter().map(|row| (row["tasks"].as_u64().unwrap(), row["successes"].as_u64().unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(eval(&["--preset", "easy,medium,hard"]), [(147, 147), (213, 213), (136, 136)]);
    let (reader, _) = Reader::open(&place.log()).unwrap();
    let (mut nodes, mut deepest) = (0, 0);
    for stream in reader.streams(reader.runs()[0]) {
        for event in reader.events(stream, Seq(0), &Filter::kinds([Kind::Verdict, Kind::NodeFinished])) {
            match event.unwrap().body {
                Body::Verdict(verdict) => {
                    assert_eq!(verdict.score, 1.0, "{stream}: node {}", verdict.node);
                    deepest = deepest.max(verdict.node.depth().0);
                    nodes += 1;
                }
                Body::NodeFinished(end) => assert!(end.steps <= 25, "{stream}: node {}", end.node),
                _ => {}
            }
        }
    }
    assert!(nodes > 496 && (1..=6).contains(&deepest), "{nodes} nodes, depth {deepest}");
    assert_eq!(eval(&["--preset", "easy", "--flat"]), [(147, 147)]);
}

#[test]
fn a_changed_recipe_is_named_before_anything_runs() {
    let Some(data) = std::env::var_os("RAO_LOG_DATA") else {
        println!("skipped: RAO_LOG_DATA is not set");
        return;
    };
    let place = Place::new();
    let copy = place.path().join("data");
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(std::path::Path::new(&data).join("textcraft-synth")).unwrap() {
        let entry = entry.unwrap();
        std::fs::write(copy.join(entry.file_name()), std::fs::read(entry.path()).unwrap()).unwrap();
    }
    let tasks = ["--data", "data", "--preset", "easy", "--tasks", "1", "--group", "1"];
    let mut flags = vec!["record", "--policy", "oracle", "--tokenizer", "bytes"];
    flags.extend(tasks);
    place.json(&flags);
    let (item, answered) = asked_last(&place);
    let recipes = copy.join("recipes.json");
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&recipes).unwrap()).unwrap();
    let ingredients = json["recipes"][&item]["ingredients"].as_object_mut().unwrap();
    let first = ingredients.values_mut().next().unwrap();
    *first = (first.as_u64().unwrap() + 1).into();
    std::fs::write(&recipes, json.to_string()).unwrap();

    // Tasks name their recipes by digest, so the change is found before anything is executed.
    let error = place.fails(&["replay", "--data", "data"], 1);
    assert!(error.contains("the folder holds other recipes"), "{error}");
    assert!(error.contains("--other-data"), "{error}");
    assert!(place.json(&["replay", "--check", "cells"])["divergence"].is_null());

    // With the flag it is found at the first answer that shows it; everything before is as it was.
    let replay = |check: &str, code: i32| -> serde_json::Value {
        let flags = ["replay", "--data", "data", "--other-data", "--check", check, "--json"];
        let output = place.rao(&flags).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    for check in ["fold", "cells"] {
        assert!(replay(check, 0)["divergence"].is_null());
    }
    let found = &replay("tools", 3)["divergence"];
    assert_eq!((found["seq"].as_u64(), found["kind"].as_str()), (Some(answered), Some("call_answered")), "{found}");
    assert!(found["cause"].as_str().unwrap().contains("environment's settings differ"), "{found}");
}

/// The item whose recipe the rollout asked for last, for the first time, and the event that answers it.
fn asked_last(place: &Place) -> (String, u64) {
    let (reader, _) = Reader::open(&place.log()).unwrap();
    let stream = reader.streams(reader.runs()[0]).into_iter().find(|s| matches!(s, Stream::Rollout(..))).unwrap();
    let (mut seen, mut last, mut open) = (BTreeSet::new(), None, None);
    for event in reader.events(stream, Seq(0), &Filter::kinds([Kind::CallIssued, Kind::CallAnswered])) {
        let event = event.unwrap();
        match event.body {
            Body::CallIssued(call) if call.name == "get_info" => {
                let args: serde_json::Value = serde_json::from_str(&call.args).unwrap();
                let items = args["args"][0].as_array().unwrap().iter().map(|item| item.as_str().unwrap().to_owned());
                // Base items, whose names begin otherwise, have no recipe.
                let fresh = items.filter(|item| seen.insert(item.clone()) && item.contains("_i")).last();
                open = fresh.map(|item| (call.node, call.call, item));
            }
            Body::CallAnswered(answer) => {
                if let Some((node, call, item)) = open.take()
                    && (&answer.node, answer.answers[0].0) == (&node, call)
                {
                    last = Some((item, event.seq.0));
                }
            }
            _ => {}
        }
    }
    last.unwrap()
}
