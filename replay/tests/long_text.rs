//! Replays of a rollout with a long text take no copy of it for each level. See `oolong_memory` in the engine's tests.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::sync::Arc;

use rao_replay::check::{Check, Means, Request, replay_rollout};
use rao_store::{EventSource as _, Reader, RolloutId, Seq, Stream};
use rao_testkit::long_text::{LongText, SPLIT, agents, alone, growth};
use rao_testkit::{RUN, open, record_in, repl};

const TEXT: usize = 20_000_000;

/// Where the measured process finds the text, and the log.
const FOLDERS: [&str; 2] = ["RAO_LOG_LONG_TEXT", "RAO_LOG_LONG_LOG"];

#[test]
fn a_replay_holds_the_text_once() {
    let (folder, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let log = open(dir.path());
    record_in(&log, &LongText::new(folder.path(), TEXT).plan, &mut agents(SPLIT));
    drop(log);
    for test in ["fold", "cells", "cells_from_the_middle", "tools", "tools_from_the_middle"] {
        alone(test, &[(FOLDERS[0], folder.path()), (FOLDERS[1], dir.path())]);
    }
}

/// Replays; how many times the text's size the memory grew at most, the text itself included.
fn grown(check: Check, from_the_middle: bool) -> f64 {
    let [text, log] = FOLDERS.map(|name| PathBuf::from(std::env::var_os(name).unwrap()));
    let world = LongText::of(&text);
    let (reader, _) = Reader::open(&log).unwrap();
    let events = reader.head(Stream::Rollout(RUN, RolloutId(0))).unwrap().count;
    let request = Request { check, from: Seq(if from_the_middle { events / 2 } else { 0 }) };
    let env = (check == Check::Tools).then(|| Arc::clone(&world.plan.env));
    let mut means = Means { env, repl: repl(), actor: None };
    let (grown, checked) = growth(|| replay_rollout(&reader, RUN, RolloutId(0), &request, &mut means).unwrap());
    assert_eq!((checked.divergence, checked.compared), (None, events - request.from.0));
    let factor = grown as f64 / world.bytes as f64;
    println!("from {}: memory grew by at most {factor:.2} times the text, itself included", request.from);
    factor
}

// Reading an event with a long text has it twice for a moment: as it lies in the log, and as the event. After that it is there
// once, and cells take what they take when they are recorded. The environment reads its own copy before it is shared.

#[test]
#[ignore = "measures a process: run by `a_replay_holds_the_text_once`"]
fn fold() {
    let factor = grown(Check::Fold, false);
    assert!(factor < 4.2, "{factor}");
}

#[test]
#[ignore = "measures a process: run by `a_replay_holds_the_text_once`"]
fn cells() {
    let factor = grown(Check::Cells, false);
    assert!(factor < 4.2, "{factor}");
}

#[test]
#[ignore = "measures a process: run by `a_replay_holds_the_text_once`"]
fn cells_from_the_middle() {
    let factor = grown(Check::Cells, true);
    assert!(factor < 4.2, "{factor}");
}

#[test]
#[ignore = "measures a process: run by `a_replay_holds_the_text_once`"]
fn tools() {
    let factor = grown(Check::Tools, false);
    assert!(factor < 5.5, "{factor}");
}

#[test]
#[ignore = "measures a process: run by `a_replay_holds_the_text_once`"]
fn tools_from_the_middle() {
    let factor = grown(Check::Tools, true);
    assert!(factor < 5.5, "{factor}");
}
