//! Forking from the command line.

use crate::common::{Place, redact, text};

#[test]
fn a_fork_is_listed_shown_replayed_verified_and_forked_again() {
    let place = Place::new();
    let base = place.record("noisy", &["--seed", "3"]);
    let fork = place.json(&["fork", "--from", "latest/0#20", "--tokenizer", "bytes", "--seed", "9", "-n", "2"]);
    assert_eq!(text(&fork, "fork_base"), format!("{}/0#20", text(&base, "run")));
    assert_eq!((fork["rollouts"].as_u64(), fork["shared"].as_u64()), (Some(2), Some(21)));
    let again = place.json(&["fork", "--from", "latest/1#30", "--tokenizer", "bytes", "--policy", "oracle"]);
    let list = place.json(&["list"]);
    assert_eq!(list["runs"][0]["fork_base"], serde_json::Value::Null);
    assert_eq!(list["runs"][2]["fork_base"], format!("{}/1#30", text(&fork, "run")));
    for check in ["fold", "cells", "tools", "tokens"] {
        let mut flags = vec!["replay", text(&fork, "run"), "--check", check];
        if check == "tokens" {
            flags.extend(["--tokenizer", "bytes"]);
        }
        let replayed = place.json(&flags);
        assert!(replayed["divergence"].is_null(), "{check}: {replayed}");
    }
    assert_eq!(place.json(&["verify"])["intact"], true);
    let shown = place.json(&["show", &format!("{}/0", text(&base, "run"))]);
    let forks = shown["forks"].as_array().unwrap();
    assert_eq!(forks.len(), 2);
    assert_eq!(text(&forks[1]["forks"][0], "fork"), format!("{}/0", text(&again, "run")));

    let base_run = text(&base, "run");
    insta::assert_snapshot!("fork_list", squeezed(&redact(&place.out(&["list"]), &place)));
    let tree = place.out(&["show", &format!("{base_run}/0")]);
    insta::assert_snapshot!("fork_show_base", squeezed(&redact(&tree, &place)));
    insta::assert_snapshot!("fork_show_fork", redact(&place.out(&["show", "latest/0"]), &place));
    let told = place.out(&["fork", "--from", &format!("{base_run}/0#20"), "--tokenizer", "bytes"]);
    insta::assert_snapshot!("fork", redact(&told, &place));
}

#[test]
fn the_same_fork_gives_the_same_digest_and_resumes_to_it() {
    let place = Place::new();
    place.record("noisy", &[]);
    let flags = ["fork", "--tokenizer", "bytes", "--seed", "4", "-n", "3", "--from"];
    let fork = |threads: &str| {
        let from = format!("{}/2#11", text(&place.json(&["list"])["runs"][0], "run"));
        let mut all = flags.to_vec();
        all.extend([&from, "--threads", threads]);
        place.json(&all)
    };
    let first = fork("1");
    assert_eq!(fork("2")["content_digest"], first["content_digest"]);
    // A finished run is left as it is.
    let resumed = place.json(&["record", "--resume", text(&first, "run"), "--tokenizer", "bytes"]);
    assert_eq!(resumed["content_digest"], first["content_digest"]);
}

#[test]
fn forks_are_trained_on_when_asked_for() {
    let place = Place::new();
    place.record_oracle(&[]);
    place.init_model();
    let model = ["--policy", "local:model", "--tasks", "1", "--group", "1", "--max-tokens", "12", "--max-steps", "2"];
    let mut flags = vec!["record"];
    flags.extend(model);
    place.json(&flags);
    let fork = place.json(&["fork", "--from", "latest/0#3", "-n", "3", "--seed", "5"]);
    let run = text(&fork, "run");
    let error = place.fails(&["train", run, "--out", "out"], 5);
    assert!(error.contains("3 forks"), "{error}");
    let trained = place.json(&["train", run, "--out", "out", "--forks"]);
    assert_eq!(trained["on_policy"], true, "{trained}");
    assert_eq!(trained["first"]["equal"], trained["first"]["tokens"]);
    let dry = place.json(&["train", "--dry-run", run, "--forks"]);
    assert!(dry["trainings"][0]["mismatch"].is_null() && dry["trainings"][0]["stored_steps"] == 1, "{dry}");
    // Other weights go on from the same event: then not all of a fork is on policy.
    let from = text(&fork, "fork_base").to_owned();
    let other = place.json(&["fork", "--from", &from, "-n", "2", "--policy", "local:out"]);
    let trained = place.json(&["train", text(&other, "run"), "--model", "out", "--out", "out2", "--forks"]);
    assert_eq!(trained["on_policy"], false, "{trained}");
}

#[test]
fn what_cannot_be_forked_is_named() {
    let place = Place::new();
    let error = place.fails(&["fork", "--from", "latest/0#1"], 2);
    assert!(error.contains("there is no log here"), "{error}");
    place.record_oracle(&[]);
    let last = place.json(&["show", "latest"])["rollouts"][0]["events"].as_u64().unwrap() - 1;
    let end = format!("latest/0#{last}");
    for (flags, said) in [
        (&["--from", "latest/0"][..], "names no event"),
        (&["--from", "latest#1"], "no event of a rollout"),
        (&["--from", "latest/0#9999"], "#9999"),
        (&["--from", end.as_str(), "--tokenizer", "bytes"], "has ended there"),
        (&["--from", "latest/0#3", "--tokenizer", "mini"], "recorded with tokenizer"),
    ] {
        let mut all = vec!["fork"];
        all.extend(flags);
        let error = place.fails(&all, 2);
        assert!(error.contains(said), "{flags:?}: {error}");
    }
    assert_eq!(place.json(&["list"])["runs"].as_array().unwrap().len(), 1, "nothing was written");
}

/// Columns one space apart: ids are as short as they stay unique, which is not always the same.
fn squeezed(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let start: String = line.chars().take_while(|c| *c == ' ').collect();
        start + &line.split_whitespace().collect::<Vec<_>>().join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}
