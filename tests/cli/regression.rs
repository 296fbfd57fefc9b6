//! Stored logs as regression tests, and replays that go on behind a difference.

use std::path::Path;
use std::sync::Arc;

use crate::common::{Place, redact, text};
use rao_store::event::{Body, Kind};
use rao_store::{EventSource, Expected, Filter, Log, Options, Reader, Seq, Stream};

/// Copies a log; `change` sees each stream's events before they are written.
pub(crate) fn copy(from: &Path, to: &Path, change: &mut dyn FnMut(Stream, &mut Vec<Body>)) {
    let (reader, _) = Reader::open(from).unwrap();
    let (log, _) = Log::open(to, Options::new(Arc::new(|| 0))).unwrap();
    for run in reader.runs() {
        for stream in reader.streams(run) {
            let events = reader.events(stream, Seq(0), &Filter::all());
            let mut bodies: Vec<Body> = events.map(|event| event.unwrap().body).collect();
            change(stream, &mut bodies);
            if !bodies.is_empty() {
                log.append(stream, Expected::Any, bodies).unwrap();
            }
        }
    }
    log.close().unwrap();
}

/// Changes the first output of a rollout.
fn change_output(bodies: &mut [Body]) {
    let cell = bodies.iter_mut().find_map(|body| if let Body::CellFinished(cell) = body { Some(cell) } else { None });
    cell.unwrap().stdout.push_str("more");
}

fn is_rollout(stream: Stream, numbers: &[u32]) -> bool {
    matches!(stream, Stream::Rollout(_, rollout) if numbers.contains(&rollout.0))
}

#[test]
fn sealed_archives_are_tested_too_but_not_blessed() {
    let place = Place::new();
    place.record("noisy", &[]);
    std::fs::create_dir(place.path().join("logs")).unwrap();
    place.out(&["export", "latest", "logs/noisy.raolog"]);
    for target in ["logs", "logs/noisy.raolog"] {
        let report = place.out(&["test", target]);
        assert!(report.contains("noisy.raolog ... ok") && report.contains("result: 1 ok"), "{target}: {report}");
    }
    let output = place.rao(&["test", "logs", "--bless"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stdout).contains("it is a sealed archive"), "{output:?}");
    assert!(place.path().join("logs/noisy.raolog").is_file());
}

#[test]
fn stored_logs_are_tested_like_a_test_suite() {
    let place = Place::new();
    place.record("noisy", &["--log", "logs/good"]);
    let good = place.path().join("logs/good");
    copy(&good, &place.path().join("logs/more/changed"), &mut |stream, bodies| {
        if is_rollout(stream, &[1, 2]) {
            change_output(bodies);
        }
    });
    copy(&good, &place.path().join("logs/short"), &mut |stream, bodies| match stream {
        Stream::Run(_) => bodies.retain(|body| body.kind() != Kind::RunFinished),
        _ if is_rollout(stream, &[3]) => bodies.truncate(9),
        _ => {}
    });
    let output = place.rao(&["test", "logs"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    insta::assert_snapshot!("test", redact(&timeless(&said), &place));

    assert_eq!(place.json(&["test", "logs/good"])["logs"][0]["rollouts"], 4);
    let fold = place.json(&["test", "logs/good", "logs/more", "--check", "fold"]);
    assert_eq!(fold["logs"][1]["outcome"], "ok", "numbers alone do not know of outputs: {fold}");
    place.fails(&["test", "logs/short"], 5);
    let error = place.fails(&["test", "nowhere"], 2);
    assert!(error.contains("holds no log"), "{error}");
    let journal = good.join("journal/0000000000.log");
    let mut bytes = std::fs::read(&journal).unwrap();
    bytes[3000] ^= 1;
    std::fs::write(&journal, bytes).unwrap();
    place.fails(&["test", "logs/good"], 4);
}

#[test]
fn blessing_records_anew_what_came_out_otherwise_and_nothing_else() {
    let place = Place::new();
    let recorded = place.record("noisy", &["--log", "logs/same"]);
    place.json(&[
        "fork",
        "--log",
        "logs/same",
        "--from",
        "latest/0#9",
        "--tokenizer",
        "bytes",
        "--seed",
        "5",
        "-n",
        "2",
    ]);
    let same = place.path().join("logs/same");
    copy(&same, &place.path().join("logs/changed"), &mut |stream, bodies| {
        if is_rollout(stream, &[2]) && bodies.iter().all(|body| body.kind() != Kind::RunFinished) {
            change_output(bodies);
        }
    });
    let before = std::fs::read(same.join("journal/0000000000.log")).unwrap();
    place.fails(&["test", "logs"], 3);
    let blessed = place.json(&["test", "logs", "--bless"]);
    assert_eq!((text(&blessed["logs"][0], "outcome"), text(&blessed["logs"][1], "outcome")), ("blessed", "unchanged"));
    let changed = blessed["logs"][0]["changed"].as_array().unwrap();
    assert_eq!(changed.len(), 1, "{blessed}");
    assert_eq!((changed[0]["rollout"].as_u64(), text(&changed[0]["first"], "field")), (Some(2), "stdout"));
    assert_eq!(std::fs::read(same.join("journal/0000000000.log")).unwrap(), before);
    assert!(place.out(&["test", "logs", "--check", "cells"]).contains("result: 2 ok"));
    let list = place.json(&["list", "--log", "logs/changed"]);
    assert_eq!(list["runs"][0]["content_digest"], recorded["content_digest"], "it is what it was before the change");
    assert_eq!(std::fs::read_dir(place.path().join("logs")).unwrap().count(), 2, "nothing is left beside the logs");
}

#[test]
fn a_replay_stops_at_the_first_difference_or_goes_on_and_sums_up() {
    let place = Place::new();
    place.record_oracle(&[]);
    let other = Place::new();
    copy(&place.log(), &other.log(), &mut |stream, bodies| {
        if is_rollout(stream, &[1, 3]) {
            change_output(bodies);
        }
    });
    let first = |flags: &[&str]| -> serde_json::Value {
        let output = other.rao(flags).output().unwrap();
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let stopped = first(&["replay", "--json"]);
    assert_eq!(
        (stopped["rollouts"].as_array().unwrap().len(), stopped["divergence"]["rollout"].as_u64()),
        (2, Some(1))
    );
    let all = first(&["replay", "latest", "--all", "--json"]);
    assert_eq!(all["rollouts"].as_array().unwrap().len(), 4);
    let places: Vec<u64> =
        all["divergences"].as_array().unwrap().iter().map(|one| one["rollout"].as_u64().unwrap()).collect();
    assert_eq!(places, [1, 3]);
    let output = other.rao(&["replay", "--all"]).output().unwrap();
    insta::assert_snapshot!("replay_all", redact(&String::from_utf8(output.stdout).unwrap(), &other));
    assert_eq!(first(&["replay", "latest/3", "--all", "--json"])["rollouts"].as_array().unwrap().len(), 1);
    assert!(other.json(&["replay", "latest/0", "--all"])["divergence"].is_null());
}

/// Durations in brackets depend on the machine.
fn timeless(text: &str) -> String {
    let words = text.split(' ').map(|word| match word.trim_start_matches('(').parse::<f64>() {
        Ok(_) if word.contains('.') => "<n>",
        _ => word,
    });
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn the_data_of_a_stored_log_lies_beside_it() {
    let place = Place::new();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logs/textcraft-minecraft.data");
    let beside = place.path().join("logs/crafting.data");
    std::fs::create_dir_all(&beside).unwrap();
    for name in ["items.json", "recipes.json"] {
        std::fs::copy(data.join(name), beside.join(name)).unwrap();
    }
    place.record_oracle(&["--data", "logs/crafting.data", "--log", "logs/crafting", "--context", "16384"]);
    place.out(&["export", "latest", "logs/sealed.raolog", "--log", "logs/crafting"]);
    // The archive's own data is not there.
    let output = place.rao(&["test", "logs", "--check", "tokens"]).output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(report.contains("test crafting ... ok") && report.contains("test sealed.raolog ... FAILED"), "{report}");
    assert!(report.contains("--data DIR"), "{report}");
    place.out(&["test", "logs", "--data", "logs/crafting.data"]);
    std::fs::rename(&beside, place.path().join("logs/sealed.data")).unwrap();
    place.out(&["test", "logs/sealed.raolog", "--check", "tokens"]);
    // What lies beside a log goes before what is named for all of them.
    std::fs::create_dir(place.path().join("empty")).unwrap();
    place.out(&["test", "logs/sealed.raolog", "--data", "empty"]);

    // A recipe that changed is no longer what the log was recorded with.
    let recipes = place.path().join("logs/sealed.data/recipes.json");
    let changed = std::fs::read_to_string(&recipes).unwrap().replacen("\"count\":4", "\"count\":5", 1);
    std::fs::write(&recipes, changed).unwrap();
    let output = place.rao(&["test", "logs/sealed.raolog"]).output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(report.contains("the folder holds other recipes"), "{report}");
}
