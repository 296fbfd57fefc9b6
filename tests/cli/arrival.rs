//! Recording as answers arrive.

use crate::common::{Place, text};

#[test]
fn a_run_of_the_arrival_scheduler_is_replayed_forked_and_resumed_like_others() {
    let place = Place::new();
    let run = place.record("noisy", &["--scheduler", "arrival", "--seed", "3"]);
    for check in ["fold", "cells", "tools", "tokens"] {
        let found = place.json(&["replay", "--check", check, "--tokenizer", "bytes"]);
        assert!(found["divergence"].is_null(), "{check}: {found}");
    }
    // A scripted policy is asked in batches, so that with it the order is always the same.
    let again = place.record("noisy", &["--scheduler", "arrival", "--seed", "3", "--log", "again", "--width", "1"]);
    assert_eq!(text(&run, "content_digest"), text(&again, "content_digest"));
    let rounds = place.record("noisy", &["--seed", "3", "--log", "again"]);
    assert_eq!((&run["nodes"], &run["steps"]), (&rounds["nodes"], &rounds["steps"]));
    assert_ne!(text(&run, "content_digest"), text(&rounds, "content_digest"), "the manifest names the scheduler");
    let fork = place.json(&["fork", "--from", "latest/0#20", "--tokenizer", "bytes", "--seed", "9", "-n", "2"]);
    assert_eq!(fork["rollouts"], 2);
    for check in ["fold", "cells", "tools", "tokens"] {
        assert!(place.json(&["replay", "--check", check, "--tokenizer", "bytes"])["divergence"].is_null());
    }
    assert_eq!(place.json(&["verify"])["intact"], true);
}
