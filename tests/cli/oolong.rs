//! Oolong, whole: recording, replaying, evaluating, training; and judging again.

use serde_json::Value;

use crate::common::Place;

/// Records questions about generated windows.
fn record(place: &Place, policy: &str, more: &[&str]) -> Value {
    let mut flags = vec!["--env", "oolong", "--prompt", "brief"];
    flags.extend(more);
    place.record(policy, &flags)
}

#[test]
fn oolong_replays_at_every_depth() {
    let place = Place::new();
    for (policy, preset, tasks) in [("oracle", "8k", "2"), ("noisy", "2k,8k", "6")] {
        let recorded = record(&place, policy, &["--preset", preset, "--tasks", tasks, "--seed", "3"]);
        place.replays_every_event(&recorded);
        if policy == "oracle" {
            assert_eq!(recorded["solved"], recorded["rollouts"], "{recorded}");
            assert!(recorded["nodes"].as_u64() > Some(20), "the oracle hands pieces on: {recorded}");
        }
    }
    assert_eq!(place.json(&["verify"])["intact"], true);
    // From the middle too: the interpreter gets its text and its pieces back.
    let events = place.json(&["show", "latest/0"])["events"].as_u64().unwrap();
    for from in [events / 3, events / 2, events - 2] {
        let from = format!("latest/0#{from}");
        assert!(place.json(&["replay", "--check", "tools", "--from", &from])["divergence"].is_null(), "{from}");
    }
}

#[test]
fn oolong_is_trained_on_and_graded_scores_reach_the_rewards() {
    let place = Place::new();
    record(&place, "noisy", &["--preset", "2k,8k", "--tasks", "8", "--group", "4"]);
    let credit = place.json(&["train", "latest", "--dry-run"]);
    let rewards: Vec<f64> = credit["rows"]
        .as_array()
        .or_else(|| credit["credit"].as_array())
        .unwrap_or_else(|| panic!("no rows in {credit}"))
        .iter()
        .map(|row| row["own"].as_f64().unwrap())
        .collect();
    assert!(rewards.iter().all(|own| (0.0..=1.0).contains(own)));
    assert!(rewards.iter().any(|own| *own > 0.0 && *own < 1.0), "a near miss counts in part: {rewards:?}");

    place.init_model();
    record(&place, "oracle", &["--tokenizer", "model", "--tasks", "1", "--group", "1"]);
    let trained = place.json(&["train", "--loss", "sft", "--model", "model", "--steps", "1", "--out", "trained"]);
    assert_eq!(trained["steps"], 1, "{trained}");
    // A model that knows nothing, sampled, replayed to the token, and trained on.
    let flags = ["record", "--env", "oolong", "--policy", "local:model", "--prompt", "brief", "--context", "2048"];
    let more = ["--max-tokens", "24", "--max-steps", "3", "--tasks", "1", "--group", "2"];
    place.json(&[flags.as_slice(), &more].concat());
    assert!(place.json(&["replay", "--check", "tokens"])["divergence"].is_null());
    let trained = place.json(&["train", "--model", "model", "--out", "again"]);
    assert_eq!(trained["steps"], 1, "{trained}");
}

#[test]
fn oolong_forks_and_resumes_with_texts_in_its_sessions() {
    let place = Place::new();
    record(&place, "oracle", &["--preset", "8k", "--tasks", "1", "--group", "1"]);
    let events = place.json(&["show", "latest/0"])["events"].as_u64().unwrap();
    let from = format!("latest/0#{}", events / 2);
    let forked = place.json(&["fork", "--from", &from, "--tokenizer", "bytes"]);
    assert_eq!(forked["solved"], 1, "{forked}");
    assert!(place.json(&["replay", "--check", "tools"])["divergence"].is_null());
}

#[test]
fn oolong_refuses_what_it_does_not_know() {
    let place = Place::new();
    let oolong = |more: &[&str]| {
        let mut flags = vec!["record", "--env", "oolong", "--policy", "oracle"];
        flags.extend(more);
        place.fails(&flags, 2)
    };
    assert!(oolong(&["--env-option", "chunks=9"]).contains("did you mean `chunk`"));
    assert!(oolong(&["--preset", "9k"]).contains("2k, 8k, 32k"));
    assert!(oolong(&["--judge", "root"]).contains("its own measure"));
    assert!(oolong(&["--child-judge", "f2"]).contains("there is no judge"));
    let textcraft = place.fails(&["record", "--policy", "oracle", "--judge", "exact"], 2);
    assert!(textcraft.contains("judges every node itself"), "{textcraft}");
}

#[test]
fn runs_are_judged_again_beside_their_verdicts() {
    let place = Place::new();
    let flags = ["--env", "deepdive", "--tasks", "6", "--group", "2"];
    let recorded = place.record("noisy", &flags);
    let first = place.json(&["rejudge", "latest", "--judge", "f1:0.3"]);
    let judged = first["judged"].as_u64().unwrap();
    assert!(judged >= 12 && first["asked"].as_u64() > Some(0), "{first}");
    let all = first["agreement"].as_array().unwrap().iter().find(|row| row["nodes"] == "all").unwrap().clone();
    assert!(all["now"].as_f64() >= all["before"].as_f64(), "a looser judge: {all}");
    // The same judge is not asked twice, and the run is what it was.
    let again = place.json(&["rejudge", "latest", "--judge", "f1:0.3"]);
    assert_eq!((again["asked"].as_u64(), again["judged"].as_u64()), (Some(0), Some(judged)));
    let verified = place.json(&["verify"]);
    assert_eq!(verified["intact"], true, "{verified}");
    let listed = place.json(&["list"]);
    assert_eq!(listed["runs"][0]["content_digest"], recorded["content_digest"]);
    assert!(place.json(&["replay", "--check", "tools"])["divergence"].is_null());
    // Another judge's verdicts are repeated from an archive of the run; what is not on record is a miss.
    place.out(&["export", "latest", "run.raolog"]);
    let exact = place.json(&["rejudge", "latest", "--judge", "exact", "--dry-run"]);
    assert_eq!(exact["asked"].as_u64(), Some(0), "exact judged the run when it was recorded: {exact}");
    let several = place.fails(&["rejudge", "latest", "--judge", "recorded:run.raolog"], 2);
    assert!(several.contains("verdicts of several judges on roots"), "{several}");
    let text_out = place.out(&["rejudge", "latest", "--judge", "f1:0.9"]);
    assert!(text_out.contains("agree") && text_out.contains("asked"), "{text_out}");
}
