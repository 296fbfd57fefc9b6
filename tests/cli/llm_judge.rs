//! A model that judges, whole: asked once, recorded with who it is, and taken from the log by a replay.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::common::{Place, text};
use crate::server::{Reply, Server};

const SECRET: &str = "sk-judge-not-to-be-seen";

fn says(content: &str) -> Reply {
    Reply::json(
        &json!({ "choices": [{ "message": { "role": "assistant", "content": content }, "finish_reason": "stop" }] }),
    )
}

/// Questions of two hops by a policy that makes mistakes, so that the environment cannot judge by itself. Gives what was
/// printed and what was said.
fn record(place: &Place, server: &Server) -> (Value, String) {
    let judge = format!("llm:{},model=grader,retries=0,temperature=0", server.url());
    let mut flags = vec!["record", "--env", "deepdive", "--policy", "noisy", "--tokenizer", "bytes"];
    flags.extend(["--tasks", "6", "--group", "2", "--judge", &judge, "--child-judge", &judge, "--json"]);
    let output = place.rao(&flags).env("RAO_LOG_API_KEY", SECRET).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{error}");
    (serde_json::from_slice(&output.stdout).unwrap(), error)
}

/// The verdicts that a model gave.
fn verdicts(place: &Place) -> Vec<Value> {
    let lines = place.out(&["tail", "latest", "--kind", "verdict", "--json"]);
    let all = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["body"].clone());
    all.filter(|verdict| text(verdict, "source").starts_with("llm/")).collect()
}

/// The evidence of a verdict, which is JSON or a text that holds it.
fn evidence(verdict: &Value) -> Value {
    match &verdict["evidence"] {
        Value::String(text) => serde_json::from_str(text).unwrap(),
        other => other.clone(),
    }
}

#[test]
fn a_model_judges_and_the_log_keeps_what_it_said() {
    let place = Place::new();
    let server = Server::start(|_, _| says("```json\n{\"reason\": \"near enough\", \"success\": \"true\"}\n```"));
    record(&place, &server);
    let judged = verdicts(&place);
    assert!(!judged.is_empty());
    let mut identities = BTreeSet::new();
    for verdict in &judged {
        assert!(text(verdict, "source").starts_with("llm/deepdive/"), "{verdict}");
        assert_eq!(verdict["score"], 1.0);
        assert!(text(verdict, "judge").contains("grader"), "{verdict}");
        let evidence = evidence(verdict);
        assert_eq!(evidence["reason"], "near enough");
        identities.insert(text(&evidence, "identity").to_owned());
    }
    let asked = server.requests("/v1/chat/completions");
    assert_eq!(asked.len(), identities.len(), "the same is never asked twice");
    assert!(asked[0].headers.iter().any(|line| line.contains(SECRET)));
    drop(server);
    // Nobody is asked again: what a model said is a fact.
    for check in ["fold", "cells", "tools"] {
        assert!(place.out(&["replay", "latest", "--check", check]).contains("no difference"), "{check}");
    }
    assert!(place.out(&["verify"]).contains("intact"));
    let log = std::fs::read(place.log().join("journal/0000000000.log")).unwrap();
    assert!(!log.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()));
}

#[test]
fn a_judge_that_fails_scores_0_and_is_heard_of() {
    let place = Place::new();
    let server = Server::start(|_, _| says("I would say that the agent did rather well."));
    let (_, said) = record(&place, &server);
    assert!(said.contains("warning: the judge grader gave no verdict") && said.contains("scores 0"), "{said}");
    for verdict in verdicts(&place) {
        assert_eq!(verdict["score"], 0.0);
        assert!(text(&evidence(&verdict), "failure").contains("cannot be read"), "{verdict}");
    }
    let error = place.fails(&["record", "--env", "mail", "--judge", "llm:http://127.0.0.1:1"], 2);
    assert!(error.contains("model=NAME"), "{error}");
}
