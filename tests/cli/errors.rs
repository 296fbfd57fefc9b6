//! What goes wrong gets a name, a next step and its documented exit code.

use crate::common::{Place, redact};

#[test]
fn unknown_flags_and_keys_name_the_nearest() {
    let place = Place::new();
    let error = place.fails(&["record", "--grup", "2"], 2);
    assert!(error.contains("--group"), "{error}");
    std::fs::write(place.path().join("rao-log.toml"), "seed = 1\ngropu = 2\n").unwrap();
    let error = place.fails(&["list"], 2);
    assert!(
        error.contains("unknown key `gropu`") && error.contains("`group`") && error.contains("rao-log.toml:2"),
        "{error}"
    );
    std::fs::write(place.path().join("rao-log.toml"), "group = \"many\"\n").unwrap();
    let error = place.fails(&["list"], 2);
    assert!(error.contains("many") && error.contains("--group"), "{error}");
    std::fs::write(place.path().join("rao-log.toml"), "group = \n").unwrap();
    assert!(place.fails(&["list"], 2).contains("no TOML"));
    std::fs::remove_file(place.path().join("rao-log.toml")).unwrap();
    let output = place.rao(&["list"]).env("RAO_LOG_GRUOP", "2").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2));
    assert!(error.contains("RAO_LOG_GRUOP") && error.contains("RAO_LOG_GROUP"), "{error}");
}

#[test]
fn refused_values_are_refused_before_the_log_is_touched() {
    let place = Place::new();
    for (flags, said) in [
        (&["--preset", "tinny"][..], "tinny"),
        (&["--max-steps", "0"], "max-steps"),
        (&["--policy", "human"], "local:PATH, gguf:FILE or openai:URL"),
        (&["--only", "99"], "numbered from 0"),
        (&["--data", "nowhere", "--preset", "easy"], "nowhere"),
        (&["--tasks", "0"], "at least 1"),
        (&["--verify", "sometimes"], "delta, ledger or both"),
    ] {
        let mut all = vec!["record"];
        if !flags.contains(&"--policy") {
            all.extend(["--policy", "oracle", "--tokenizer", "bytes"]);
        }
        all.extend(flags);
        let output = place.rao(&all).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(matches!(output.status.code(), Some(1 | 2)), "{flags:?}: {output:?}");
        assert!(error.contains(said), "{flags:?}: {error}");
        assert!(!place.log().exists(), "{flags:?} touched the log");
    }
}

#[test]
fn a_missing_or_empty_log_is_named() {
    let place = Place::new();
    for flags in [&["list"][..], &["show"], &["verify"], &["replay"], &["train", "--dry-run"], &["train"]] {
        let error = place.fails(flags, 2);
        assert!(error.contains("there is no log here") && error.contains("rao-log record"), "{flags:?}: {error}");
    }
    assert!(!place.log().exists(), "none of these makes a log");
    std::fs::create_dir_all(place.log().join("journal")).unwrap();
    let error = place.fails(&["train"], 2);
    assert!(error.contains("no recorded run is called `latest`"), "{error}");
    let error = place.fails(&["replay"], 2);
    assert!(error.contains("there is none in this log"), "{error}");
    assert!(place.out(&["list"]).contains("no runs yet"));
    assert!(place.out(&["verify"]).contains("intact"));
}

#[test]
fn unknown_runs_rollouts_events_and_nodes_are_named() {
    let place = Place::new();
    place.record_oracle(&[]);
    for (flags, said) in [
        (&["show", "0000"][..], "no recorded run"),
        (&["show", "latest/77"], "rollout 77"),
        (&["show", "latest/0#99999"], "#99999"),
        (&["show", "latest/0", "--node", "0.9"], "no node 0.9"),
        (&["show", "latest/x"], "is no address"),
        (&["show", "--node", "0"], "need a rollout"),
        (&["replay", "latest/0", "--from", "latest/0#1"], "both"),
    ] {
        let error = place.fails(flags, 2);
        assert!(error.contains(said), "{flags:?}: {error}");
    }
}

#[test]
fn a_second_writer_is_told_to_wait() {
    let place = Place::new();
    place.record_oracle(&[]);
    let clock: rao_store::Clock = std::sync::Arc::new(|| 0);
    let (held, _) = rao_store::Log::open(&place.log(), rao_store::Options::new(clock)).unwrap();
    let error = place.fails(&["record", "--policy", "oracle", "--tokenizer", "bytes"], 1);
    assert!(error.contains("another process is writing"), "{error}");
    // Readers go on.
    assert!(place.out(&["list"]).contains("oracle"));
    held.close().unwrap();
    place.record_oracle(&[]);
}

#[test]
fn a_missing_model_is_code_6() {
    let place = Place::new();
    let error = place.fails(&["record", "--policy", "local:nowhere"], 6);
    assert!(error.contains("nowhere"), "{error}");
    assert!(!place.log().exists());
    place.record_oracle(&[]);
    let error = place.fails(&["train", "--loss", "sft", "--model", "nowhere"], 6);
    assert!(error.contains("nowhere"), "{error}");
}

#[test]
fn a_tokenizer_that_is_not_the_logs_is_named() {
    let place = Place::new();
    place.record_oracle(&[]);
    place.init_model();
    let error = place.fails(&["train", "--loss", "sft", "--model", "model"], 2);
    assert!(error.contains("tokenizer"), "{error}");
    let error = place.fails(&["replay", "--check", "tokens", "--tokenizer", "model"], 2);
    assert!(error.contains("recorded with tokenizer"), "{error}");
}

#[test]
fn scripted_actions_cannot_be_reinforced() {
    let place = Place::new();
    place.record_oracle(&[]);
    place.init_model();
    place.record("oracle", &["--tokenizer", "model"]);
    let error = place.fails(&["train", "--model", "model"], 2);
    assert!(error.contains("--loss sft"), "{error}");
}

#[test]
fn an_existing_folder_is_not_replaced() {
    let place = Place::new();
    place.record_oracle(&[]);
    std::fs::create_dir(place.path().join("mine")).unwrap();
    std::fs::write(place.path().join("mine/notes"), "x").unwrap();
    assert!(place.fails(&["init", "mine", "--from", "latest"], 2).contains("not empty"));
    let error = place.fails(&["train", "--loss", "sft", "--out", "mine"], 2);
    assert!(error.contains("something else than a checkpoint"), "{error}");
    assert!(place.path().join("mine/notes").exists());
}

#[test]
fn errors_look_the_same_everywhere() {
    let place = Place::new();
    insta::assert_snapshot!("error_no_log", redact(&place.fails(&["show"], 2), &place));
    std::fs::write(place.path().join("rao-log.toml"), "seed = 1\ngropu = 2\n").unwrap();
    insta::assert_snapshot!("error_unknown_key", redact(&place.fails(&["list"], 2), &place));
}
