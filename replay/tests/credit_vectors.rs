//! Eqs. 1, 3 and 4 against the reference vectors: every `*.json` of that shape in `RAO_LOG_VECTORS`.
#![expect(clippy::unwrap_used, reason = "a missing key of a vector file is a failed test")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use rao_replay::credit::{self, Node, Options};
use serde_json::Value;

/// The vectors' folder; `None`, with a note, if the variable is unset.
fn vectors() -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("RAO_LOG_VECTORS").map(PathBuf::from) else {
        println!("skipped: RAO_LOG_VECTORS is not set");
        return None;
    };
    Some(folder)
}

fn cases(text: &str) -> Option<Vec<Value>> {
    let Ok(Value::Array(cases)) = serde_json::from_str(text) else { return None };
    let shaped =
        cases.first().is_some_and(|case| case["groups"].is_array() && case["expected"]["trajectories"].is_array());
    shaped.then_some(cases)
}

/// A tree's nodes, and each node's id as it stands in the file.
fn tree(nodes: &[Value]) -> (Vec<Node>, Vec<Value>) {
    let ids: Vec<Value> = nodes.iter().map(|node| node["id"].clone()).collect();
    let place: BTreeMap<String, usize> = ids.iter().enumerate().map(|(at, id)| (id.to_string(), at)).collect();
    let read = |node: &Value| Node {
        parent: (!node["parent"].is_null()).then(|| place[&node["parent"].to_string()]),
        success: node["success"].as_f64().unwrap(),
        tokens: node["tokens"].as_u64().unwrap(),
    };
    (nodes.iter().map(read).collect(), ids)
}

fn near(what: &str, got: f64, expected: &Value) {
    let expected = expected.as_f64().unwrap_or_else(|| panic!("{what}: no number expected: {expected}"));
    assert!((got - expected).abs() <= 1e-12, "{what}: got {got}, expected {expected}");
}

fn check(case: &Value) -> usize {
    let name = case["name"].as_str().unwrap_or("unnamed");
    let lambda = case["lambda"].as_f64().unwrap();
    let mut ids = Vec::new();
    let mut groups = Vec::new();
    for group in case["groups"].as_array().unwrap() {
        let (trees, names): (Vec<_>, Vec<_>) =
            group.as_array().unwrap().iter().map(|nodes| tree(nodes.as_array().unwrap())).unzip();
        groups.push(trees);
        ids.push(names);
    }
    let got = credit::credit(&groups, lambda, Options::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let depths = case["expected"]["depths"].as_array().unwrap();
    assert_eq!(got.depths.len(), depths.len(), "{name}: depths");
    for (depth, expected) in got.depths.iter().zip(depths) {
        assert_eq!(Some(u64::from(depth.depth)), expected["depth"].as_u64(), "{name}");
        assert_eq!(Some(depth.count), expected["count"].as_u64(), "{name}: count of depth {}", depth.depth);
        near(&format!("{name}: weight of depth {}", depth.depth), depth.weight, &expected["weight"]);
    }
    let rows = case["expected"]["trajectories"].as_array().unwrap();
    assert_eq!(got.rows.len(), rows.len(), "{name}: trajectories");
    for (row, expected) in got.rows.iter().zip(rows) {
        let at = format!("{name}: group {} tree {} node {}", row.group, row.tree, row.node);
        assert_eq!(Some(row.group as u64), expected["group"].as_u64(), "{at}");
        assert_eq!(Some(row.tree as u64), expected["tree"].as_u64(), "{at}");
        assert_eq!(ids[row.group][row.tree][row.node], expected["node"], "{at}");
        assert_eq!(Some(u64::from(row.depth)), expected["depth"].as_u64(), "{at}");
        near(&format!("{at}: reward"), row.reward, &expected["reward"]);
        near(&format!("{at}: baseline"), row.baseline, &expected["baseline"]);
        near(&format!("{at}: advantage"), row.advantage, &expected["advantage"]);
        near(&format!("{at}: weight"), row.weight, &expected["weight"]);
    }
    rows.len()
}

#[test]
fn credit_equals_the_reference_vectors() {
    let Some(folder) = vectors() else { return };
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("RAO_LOG_VECTORS={}: {e}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "json"))
        .collect();
    files.sort();
    let (mut checked, mut rows) = (0, 0);
    for path in &files {
        let Some(cases) = cases(&std::fs::read_to_string(path).unwrap()) else { continue };
        rows += cases.iter().map(check).sum::<usize>();
        checked += cases.len();
    }
    assert!(checked > 0, "no credit vectors in {}", folder.display());
    println!("{checked} cases, {rows} trajectories");
}
