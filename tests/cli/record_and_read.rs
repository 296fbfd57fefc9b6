//! Recording and everything that reads a log.

use crate::common::{Place, redact, text};

#[test]
fn a_recorded_run_is_listed_shown_verified_and_replayed() {
    let place = Place::new();
    let recorded = place.record_oracle(&["--seed", "3"]);
    assert_eq!(recorded["rollouts"], 4);
    assert_eq!(recorded["solved"], 4, "the oracle solves every tiny task");
    let run = text(&recorded, "run").to_owned();

    let list = place.json(&["list"]);
    assert_eq!(text(&list["runs"][0], "run"), run);
    assert_eq!(list["runs"][0]["content_digest"], recorded["content_digest"]);

    let shown = place.json(&["show", "latest"]);
    let events: u64 = shown["rollouts"].as_array().unwrap().iter().map(|r| r["events"].as_u64().unwrap()).sum();
    assert_eq!(Some(events), recorded["events"].as_u64());

    let verified = place.json(&["verify"]);
    assert_eq!(verified["intact"], true);
    assert_eq!(verified["rewards_checked"], recorded["nodes"]);

    for check in ["fold", "cells", "tools", "tokens"] {
        let replayed = if check == "tokens" {
            place.json(&["replay", "--check", check, "--tokenizer", "bytes"])
        } else {
            place.json(&["replay", "--check", check])
        };
        assert!(replayed["divergence"].is_null(), "{check}: {replayed}");
        let compared: u64 =
            replayed["rollouts"].as_array().unwrap().iter().map(|r| r["compared"].as_u64().unwrap()).sum();
        assert_eq!(compared, events, "{check} compares every event");
    }
}

#[test]
fn texts_for_people() {
    let place = Place::new();
    place.record_oracle(&["--seed", "3"]);
    insta::assert_snapshot!("list", redact(&place.out(&["list"]), &place));
    insta::assert_snapshot!("show_run", redact(&place.out(&["show"]), &place));
    insta::assert_snapshot!("show_rollout", redact(&place.out(&["show", "latest/0"]), &place));
    insta::assert_snapshot!("show_node", redact(&place.out(&["show", "latest/0", "--node", "0"]), &place));
    insta::assert_snapshot!("show_event", redact(&place.out(&["show", "latest/0#2"]), &place));
    insta::assert_snapshot!("show_credit", redact(&place.out(&["show", "latest/0", "--credit"]), &place));
    insta::assert_snapshot!("verify", redact(&place.out(&["verify"]), &place));
    insta::assert_snapshot!("replay", redact(&place.out(&["replay", "latest/1", "--check", "cells"]), &place));
    insta::assert_snapshot!("train_dry_run", redact(&place.out(&["train", "--dry-run"]), &place));
}

#[test]
fn the_same_command_gives_the_same_digest_whatever_the_threads() {
    let place = Place::new();
    let noisy = |threads: &str| text(&place.record("noisy", &["--threads", threads]), "content_digest").to_owned();
    let first = noisy("1");
    assert_eq!(noisy("1"), first);
    assert_eq!(noisy("2"), first);
    let other = place.record("noisy", &["--seed", "1"]);
    assert_ne!(text(&other, "content_digest"), first, "another seed is another recording");
}

#[test]
fn a_rollout_is_the_same_alone_and_among_others() {
    let place = Place::new();
    let digest_of = |rollout: u64| {
        let shown = place.json(&["show", "latest"]);
        let rows = shown["rollouts"].as_array().unwrap().clone();
        let row = rows.iter().find(|row| row["rollout"] == rollout).unwrap().clone();
        text(&row, "content_digest").to_owned()
    };
    place.record("noisy", &[]);
    let among = digest_of(3);
    let alone = place.record("noisy", &["--only", "3"]);
    assert_eq!(alone["rollouts"], 1);
    assert_eq!(digest_of(3), among);
    place.record("noisy", &["--only", "2,3", "--width", "1"]);
    assert_eq!(digest_of(3), among);
}

#[test]
fn a_replay_from_an_event_calls_nothing_before_it() {
    let place = Place::new();
    place.record_oracle(&[]);
    let whole = place.json(&["replay", "latest/0", "--check", "tools"]);
    let events = whole["rollouts"][0]["events"].as_u64().unwrap();
    let last = (events - 1).to_string();
    let end = place.json(&["replay", "latest/0", "--check", "tools", "--from", &last]);
    let row = &end["rollouts"][0];
    assert_eq!((row["skipped"].as_u64(), row["compared"].as_u64()), (Some(events - 1), Some(1)));
    assert_eq!((row["tool_calls"].as_u64(), row["judge_calls"].as_u64()), (Some(0), Some(0)));
    let same = place.json(&["replay", "--from", &format!("latest/0#{last}")]);
    assert_eq!(same["rollouts"], end["rollouts"]);

    // In the middle: the first replay keeps the sessions that it built, the second takes them up.
    let cells = place.out(&["tail", "latest/0", "--json", "--kind", "cell_finished"]);
    let events = cells.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let mut roots = events.filter(|event| event["body"]["node"] == "0").map(|event| text(&event, "event").to_owned());
    let second = roots.nth(1).unwrap();
    let seq = second.rsplit('#').next().unwrap().to_owned();
    let from = ["replay", "latest/0", "--from", seq.as_str()];
    let (first, again) = (place.out(&from), place.out(&from));
    assert!(
        !first.contains("taken up") && again.contains("taken up where an earlier replay kept them: 1 session"),
        "{again}"
    );
    assert_eq!(place.out(&[&from[..], &["--fresh-sessions"]].concat()), first);
    assert!(
        place.out(&["verify"]).contains("intact") || place.json(&["verify"])["findings"].as_array().unwrap().is_empty()
    );
}

#[test]
fn a_flat_run_has_one_node_for_each_rollout() {
    let place = Place::new();
    let flat = place.record_oracle(&["--flat"]);
    assert_eq!(flat["nodes"], 4);
    let recursive = place.record_oracle(&[]);
    assert!(recursive["nodes"].as_u64() > Some(4), "the oracle delegates: {recursive}");
}

#[test]
fn eval_reports_rates_with_intervals() {
    let place = Place::new();
    let flags = ["eval", "--policy", "oracle", "--tokenizer", "bytes", "--tasks", "3"];
    let evaluated = place.json(&flags);
    let row = &evaluated["difficulties"][0];
    assert_eq!((row["tasks"].as_u64(), row["successes"].as_u64()), (Some(3), Some(3)));
    assert_eq!(row["rate"], 1.0);
    assert!(row["low"].as_f64() < Some(0.5) && row["high"].as_f64() >= Some(0.999), "{row}");
    let table = place.out(&flags);
    assert!(table.contains("tiny") && table.contains("1.000"), "{table}");
}

#[test]
fn settings_come_from_file_then_environment_then_flags() {
    let place = Place::new();
    let file = "policy = \"oracle\"\ntokenizer = \"bytes\"\ntasks = 1\n[record]\ngroup = 3\n[train]\nlr = 0.01\n";
    std::fs::write(place.path().join("rao-log.toml"), file).unwrap();
    assert_eq!(place.json(&["record"])["rollouts"], 3);
    let output = place.rao(&["record", "--json"]).env("RAO_LOG_GROUP", "2").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"rollouts\":2"), "{output:?}");
    let output = place.rao(&["record", "--json", "--group", "1"]).env("RAO_LOG_GROUP", "2").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"rollouts\":1"), "{output:?}");
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    use std::process::{Command, Stdio};
    let place = Place::new();
    place.record_oracle(&[]);
    let mut child = Command::new(assert_cmd::cargo::cargo_bin!("rao-log"))
        .current_dir(place.path())
        .env_remove("RAO_LOG_DATA")
        .args(["show", "latest/0", "--node", "0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}
