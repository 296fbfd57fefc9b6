//! Replays of a rollout with a long text take no copy of it for each level. See `oolong_memory` in the engine's tests.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;

use rao_replay::check::{Check, Means, Request, replay_rollout};
use rao_store::{EventSource as _, RolloutId, Seq, Stream};
use rao_testkit::long_text::{LongText, SPLIT, agents, alone, growth};
use rao_testkit::{RUN, open, record_in, repl};

const TEXT: usize = 20_000_000;

fn replayed(world: &LongText, dir: &Path, request: Request, with_world: bool) -> u64 {
    let log = open(dir);
    let env = with_world.then(|| Arc::clone(&world.plan.env));
    let mut means = Means { env, repl: repl(), actor: None };
    let checked = replay_rollout(&*log, RUN, RolloutId(0), &request, &mut means).unwrap();
    assert_eq!(checked.divergence, None);
    checked.compared
}

#[test]
fn a_replay_holds_the_text_once() {
    alone("measured");
}

#[test]
#[ignore = "measures a process: run by `a_replay_holds_the_text_once`"]
fn measured() {
    let (folder, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let world = LongText::new(folder.path(), TEXT);
    let log = open(dir.path());
    record_in(&log, &world.plan, &mut agents(SPLIT));
    let events = log.head(Stream::Rollout(RUN, RolloutId(0))).unwrap().count;
    drop(log);
    for (check, with_world, most) in [(Check::Fold, false, 2.2), (Check::Cells, false, 2.6), (Check::Tools, true, 2.6)] {
        for from in [0, events / 2] {
            let request = Request { check, from: Seq(from) };
            let (grown, compared) = growth(|| replayed(&world, dir.path(), request, with_world));
            assert_eq!(compared, events - from);
            let factor = grown as f64 / world.bytes as f64;
            println!("{} from {from}: memory grew by at most {factor:.2} times the text, itself included", check.name());
            assert!(factor < most, "{check:?} from {from}: {factor}");
        }
    }
}
