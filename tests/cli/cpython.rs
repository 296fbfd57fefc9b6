//! The CPython engine on the command line.

use crate::common::{Place, text};

/// Whether there is a `python3` that may run cells here.
fn is_there(place: &Place) -> bool {
    let mut flags = vec!["record", "--repl", "cpython", "--policy", "oracle", "--tokenizer", "bytes"];
    flags.extend(["--tasks", "1", "--group", "1", "--log", "probe"]);
    let output = place.rao(&flags).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        assert!(error.contains("cannot run cells") || error.contains("locked in"), "{error}");
        println!("skipped: {error}");
    }
    output.status.success()
}

#[test]
fn a_run_names_its_engine_and_is_replayed_in_it() {
    let place = Place::new();
    if !is_there(&place) {
        return;
    }
    let recorded = place.record("noisy", &["--repl", "cpython", "--seed", "3"]);
    assert_eq!(recorded["rollouts"], 4);
    let shown = place.out(&["show", "latest#0"]);
    assert!(shown.contains("cpython 3.") && shown.contains(" worker "), "{shown}");
    for check in ["fold", "cells", "tools"] {
        let replayed = place.json(&["replay", "--check", check]);
        assert!(replayed["divergence"].is_null(), "{check}: {replayed}");
        let rollouts = replayed["rollouts"].as_array().unwrap();
        let compared: u64 = rollouts.iter().map(|rollout| rollout["compared"].as_u64().unwrap()).sum();
        assert_eq!(Some(compared), recorded["events"].as_u64());
    }
    // From the middle on: sessions are made again from the logged cells and answers.
    for from in ["#9", "#20", "#31"] {
        let replayed = place.json(&["replay", "latest/0", "--from", from, "--check", "cells"]);
        assert!(replayed["divergence"].is_null(), "from {from}: {replayed}");
        assert_eq!(replayed["rollouts"][0]["skipped"].to_string(), from.trim_start_matches('#'));
    }
    assert!(place.fails(&["replay", "--check", "cells", "--python", "no-such-python"], 2).contains("no-such-python"));
    place.out(&["replay", "--check", "fold", "--python", "no-such-python"]);
    // The digest covers the engine's identity, and nothing else differs from the embedded engine's recording.
    let digest = text(&recorded, "content_digest");
    assert_eq!(text(&place.record("noisy", &["--repl", "cpython", "--seed", "3"]), "content_digest"), digest);
    let embedded = place.record("noisy", &["--seed", "3"]);
    assert_ne!(text(&embedded, "content_digest"), digest);
    for field in ["events", "solved", "nodes", "steps", "tokens"] {
        assert_eq!(embedded[field], recorded[field], "{field}");
    }
}

#[test]
fn an_interpreter_that_is_none_stops_before_the_log_is_touched() {
    let place = Place::new();
    let flags =
        ["record", "--policy", "oracle", "--tokenizer", "bytes", "--repl", "cpython", "--python", "no-such-python"];
    let error = place.fails(&flags, 2);
    assert!(error.contains("no-such-python") && error.contains("--python"), "{error}");
    assert!(!place.log().exists());
}
