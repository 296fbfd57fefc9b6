//! TextCraft on Minecraft's recipes, where `RAO_LOG_DATA` says that they are.

use std::path::Path;

use crate::common::Place;

#[test]
fn the_oracle_makes_every_item_and_its_log_replays() {
    let Some(data) = std::env::var_os("RAO_LOG_DATA") else {
        println!("skipped: RAO_LOG_DATA is not set");
        return;
    };
    let data = Path::new(&data).join("minecraft-recipes").display().to_string();
    let place = Place::new();
    let eval = |more: &[&str]| {
        let mut flags = vec!["eval", "--policy", "oracle", "--tokenizer", "bytes", "--tasks", "all", "--data", &data];
        flags.extend(["--preset", "easy,medium,hard", "--prompt", "full", "--context", "200000"]);
        flags.extend(more);
        place.json(&flags)["difficulties"].as_array().unwrap().clone()
    };
    for rows in [eval(&[]), eval(&["--flat"])] {
        for row in &rows {
            assert_eq!(row["tasks"], row["successes"], "{row}");
        }
        assert_eq!(rows.len(), 3);
    }
    let noisy = ["record", "--policy", "noisy", "--tokenizer", "bytes", "--data", &data, "--context", "200000"];
    place.json(&noisy);
    for check in ["fold", "cells", "tools", "tokens"] {
        let bytes = if check == "tokens" { ["--tokenizer", "bytes"].as_slice() } else { &[] };
        let replayed = place.json(&[&["replay", "--check", check, "--data", &data], bytes].concat());
        assert!(replayed["divergence"].is_null(), "{check}: {replayed}");
    }
    let error = place.fails(&["record", "--policy", "oracle", "--data", &data, "--preset", "extreme"], 2);
    assert!(error.contains("easy, medium, hard"), "{error}");
}
