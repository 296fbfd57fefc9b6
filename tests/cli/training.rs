//! Training from the command line, with a small untrained model.

use crate::common::{Place, text};

/// A place with a model and a run that it sampled.
fn sampled() -> Place {
    let place = Place::new();
    place.record_oracle(&[]);
    place.init_model();
    record_local(&place, "model", "1");
    place
}

fn record_local(place: &Place, folder: &str, threads: &str) -> serde_json::Value {
    let policy = format!("local:{folder}");
    let mut flags = vec!["record", "--policy", &policy, "--threads", threads, "--tasks", "2", "--group", "2"];
    flags.extend(["--max-tokens", "12", "--max-steps", "2"]);
    place.json(&flags)
}

#[test]
fn a_sampled_run_repeats_replays_and_trains_on_policy() {
    let place = sampled();
    let first = place.json(&["show"]);
    let again = record_local(&place, "model", "2");
    let list = place.json(&["list"]);
    assert_eq!(list["runs"][1]["content_digest"], again["content_digest"], "threads change nothing");
    let replayed = place.json(&["replay", text(&first, "run"), "--check", "tokens"]);
    assert!(replayed["divergence"].is_null(), "{replayed}");

    let trained = place.json(&["train", text(&first, "run"), "--out", "trained"]);
    assert_eq!(trained["on_policy"], true);
    let step = &trained["first"];
    assert_eq!(step["equal"], step["tokens"], "the trainer's logprobs are the sampler's, bit for bit");
    assert_eq!(step["mean_ratio"], 1.0);
    // The checkpoint is a model.
    let version = record_local(&place, "trained", "1");
    assert_eq!(version["rollouts"], 4);

    let credit = place.json(&["show", &format!("{}/0", text(&first, "run")), "--credit"]);
    assert!(text(&credit, "origin").contains("training"), "{credit}");
    assert!(credit["credit"][0]["advantage"].is_number(), "{credit}");
}

#[test]
fn stored_training_is_derived_again_without_the_model() {
    let place = sampled();
    let trained = place.json(&["train", "--epochs", "2", "--out", "trained"]);
    std::fs::remove_dir_all(place.path().join("model")).unwrap();
    std::fs::remove_dir_all(place.path().join("trained")).unwrap();
    let dry = place.json(&["train", "--dry-run"]);
    let derived = &dry["trainings"][0];
    assert_eq!(derived["training"], trained["training"]);
    assert_eq!((derived["steps"].as_u64(), derived["stored_steps"].as_u64()), (Some(2), Some(2)), "{derived}");
    assert!(derived["mismatch"].is_null(), "{derived}");
    assert!(derived["losses"].as_u64() > Some(0), "{derived}");
    let error = place.fails(&["replay", "--check", "tokens"], 6);
    assert!(error.contains("model"), "{error}");
}

#[test]
fn five_steps_are_three_and_two_more_with_any_threads() {
    let place = Place::new();
    place.record_oracle(&[]);
    place.init_model();
    place.record("oracle", &["--tokenizer", "model"]);
    let train = |out: &str, steps: &str, more: &[&str]| {
        let mut flags = vec!["train", "--loss", "sft", "--batch", "2", "--micro-tokens", "256", "--out", out];
        flags.extend(["--steps", steps]);
        flags.extend(more);
        text(&place.json(&flags), "weights").to_owned()
    };
    let straight = train("a", "5", &["--model", "model", "--threads", "1"]);
    train("b", "3", &["--model", "model", "--threads", "2"]);
    assert_eq!(train("b", "2", &["--resume", "--threads", "2"]), straight);
    let bytes = |out: &str| std::fs::read(place.path().join(out).join("model.safetensors")).unwrap();
    assert_eq!(bytes("a"), bytes("b"));
    let mut wrong = vec!["train", "--loss", "sft", "--batch", "4", "--micro-tokens", "256", "--out", "b"];
    wrong.push("--resume");
    assert!(place.fails(&wrong, 2).contains("other settings"));
}

#[test]
fn iterations_alternate_between_recording_and_training() {
    let place = sampled();
    let mut flags = vec!["train", "--iterations", "2", "--model", "model", "--tasks", "1", "--group", "2"];
    flags.extend(["--max-tokens", "12", "--max-steps", "2"]);
    let done = place.json(&flags);
    let rows = done["iterations"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!(row["on_policy"], true, "{row}");
    }
    assert_eq!(done["weights"], rows[1]["weights"]);
    assert_ne!(rows[0]["run"], rows[1]["run"]);
    let list = place.json(&["list"]);
    assert_eq!(list["trainings"].as_array().unwrap().len(), 2);
}

#[test]
fn a_changed_weight_is_found_by_tokens_alone() {
    let place = sampled();
    let weights = place.path().join("model/model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&3.0f32.to_le_bytes());
    std::fs::write(&weights, bytes).unwrap();
    assert!(place.json(&["replay", "--check", "tools"])["divergence"].is_null());
    let error = place.fails(&["replay", "--check", "tokens"], 6);
    assert!(error.contains("has weights"), "{error}");
    // Named by the user, the weights are taken as they are, and the first action shows it.
    let flags = ["replay", "latest/0", "--check", "tokens", "--policy", "local:model", "--json"];
    let output = place.rao(&flags).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let divergence = &found["divergence"];
    assert_eq!((text(divergence, "kind"), divergence["step"].as_u64()), ("action_sampled", Some(0)), "{divergence}");
    assert!(text(divergence, "cause").contains("the policy differs"), "{divergence}");
}
