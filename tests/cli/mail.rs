//! The mail environment, whole: recording, replaying, evaluating, training.

use serde_json::json;

use crate::common::Place;

/// Records questions about the synthetic mailbox.
fn record(place: &Place, policy: &str, more: &[&str]) -> serde_json::Value {
    let mut flags = vec!["--env", "mail"];
    flags.extend(more);
    place.record(policy, &flags)
}

#[test]
fn every_check_replays_what_oracle_and_noisy_did() {
    let place = Place::new();
    for (policy, preset, tasks) in [("oracle", "hard", "2"), ("noisy", "medium", "4")] {
        let recorded = record(&place, policy, &["--preset", preset, "--tasks", tasks]);
        place.replays_every_event(&recorded);
        if policy == "oracle" {
            assert_eq!(recorded["solved"], recorded["rollouts"], "{recorded}");
            assert!(recorded["nodes"].as_u64() > Some(8), "the oracle delegates: {recorded}");
        }
    }
    assert_eq!(place.json(&["verify"])["intact"], true);
}

#[test]
fn the_original_reward_is_graded() {
    let place = Place::new();
    let recorded = record(&place, "oracle", &["--env-option", "reward=art-e", "--tasks", "2", "--group", "1"]);
    let mean = recorded["success"].as_f64().unwrap();
    assert!(mean > 0.95 && mean < 1.0, "right, with the right sources, in a few turns: {recorded}");
    assert!(place.json(&["replay", "--check", "tools"])["divergence"].is_null());
}

#[test]
fn a_run_on_files_is_replayed_with_the_same_files() {
    let place = Place::new();
    let rows = place.own_mail(12, 7);
    let recorded = record(&place, "oracle", &["--data", "mine", "--tasks", "1", "--group", "1"]);
    assert_eq!((&recorded["rollouts"], &recorded["solved"]), (&json!(1), &json!(1)), "{recorded}");
    assert!(place.json(&["replay", "--check", "tools", "--data", "mine"])["divergence"].is_null());
    assert!(place.fails(&["replay", "--check", "tools"], 2).contains("--data"));
    // Free text that differs from the truth is put before a judge; what is asked and answered is replayed too.
    record(&place, "noisy", &["--data", "mine", "--tasks", "1", "--group", "24"]);
    let verdicts = place.out(&["tail", "latest", "--kind", "verdict"]);
    assert!(verdicts.contains("exact/mail/root") && verdicts.contains("mail/rao"), "{verdicts}");
    assert!(place.json(&["replay", "--check", "tools", "--data", "mine"])["divergence"].is_null());
    std::fs::write(place.path().join("mine/emails.jsonl"), rows[..11].join("\n")).unwrap();
    assert!(place.fails(&["replay", "--check", "tools", "--data", "mine"], 2).contains("digest"));
}

#[test]
fn wrong_options_are_named() {
    let place = Place::new();
    let fails = |more: &[&str]| {
        let flags =
            [["record", "--env", "mail", "--policy", "oracle", "--tokenizer", "bytes"].as_slice(), more].concat();
        place.fails(&flags, 2)
    };
    assert!(fails(&["--env-option", "rewards=rao"]).contains("did you mean `reward`"));
    assert!(fails(&["--env-option", "reward=gold"]).contains("rao or art-e"));
    assert!(fails(&["--preset", "tiny"]).contains("choose from easy, medium, hard"));
    let nowhere = ["record", "--env", "mail", "--policy", "oracle", "--tokenizer", "bytes", "--data", "nowhere"];
    assert!(place.fails(&nowhere, 1).contains("cannot read nowhere"));
}
