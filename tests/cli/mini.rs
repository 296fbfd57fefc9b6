//! The built-in policy, from the command line.

use crate::common::{Place, text};

#[test]
fn mini_repeats_itself_replays_and_trains_on_policy() {
    let place = Place::new();
    let record = |threads: &str| place.json(&["record", "--tasks", "2", "--group", "2", "--threads", threads]);
    let first = record("1");
    assert_eq!(text(&record("2"), "content_digest"), text(&first, "content_digest"));
    let replayed = place.json(&["replay", "--check", "tokens"]);
    assert!(replayed["divergence"].is_null(), "{replayed}");
    assert_eq!(place.json(&["replay", "--check", "tools"])["divergence"], serde_json::Value::Null);
    let trained = place.json(&["train"]);
    assert_eq!((&trained["first"]["equal"], &trained["on_policy"]), (&trained["first"]["tokens"], &true.into()));
    let alone = place.json(&["record", "--tasks", "2", "--group", "2", "--only", "1"]);
    let digest = |run: &str| text(&place.json(&["show", &format!("{run}/1")]), "content_digest").to_owned();
    assert_eq!(digest(text(&alone, "run")), digest(text(&first, "run")));
}

#[test]
fn the_demo_shows_the_whole_loop() {
    let place = Place::new();
    let said = place.out(&["demo", "--tasks", "2", "--group", "2"]);
    for part in ["1. record", "2. replay", "no difference", "3. train", "4. look", "advantage", "try next"] {
        assert!(said.contains(part), "{part} is missing in:\n{said}");
    }
    assert!(place.path().join("rao-log-checkpoint/model.safetensors").exists());
    place.json(&["eval", "--policy", "local:rao-log-checkpoint", "--tasks", "2"]);
}
