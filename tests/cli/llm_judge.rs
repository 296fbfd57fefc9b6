//! A model that judges, whole: asked once, recorded with who it is, and taken from the log by a replay.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Place, text};
use crate::server::{Reply, Request, Server};

/// What the evidence says of a node that gave nothing to judge.
const NO_ANSWER: &str = "the agent ended without an answer";

const SECRET: &str = "sk-judge-not-to-be-seen";

fn says(content: &str) -> Reply {
    Reply::json(
        &json!({ "choices": [{ "message": { "role": "assistant", "content": content }, "finish_reason": "stop" }] }),
    )
}

/// Questions of two hops by a policy that makes mistakes, so that the environment cannot judge by itself. Gives what was
/// printed and what was said.
fn record(place: &Place, server: &Server) -> (Value, String) {
    record_with(place, server, "", &[])
}

fn record_with(place: &Place, server: &Server, settings: &str, more: &[&str]) -> (Value, String) {
    let judge = format!("llm:{},model=grader,retries=0,temperature=0{settings}", server.url());
    let mut flags = vec!["record", "--env", "deepdive", "--policy", "noisy", "--tokenizer", "bytes"];
    flags.extend(["--tasks", "6", "--group", "2", "--judge", &judge, "--child-judge", &judge, "--json"]);
    flags.extend(more);
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
        assert!(text(verdict, "judge").contains("grader"), "{verdict}");
        let evidence = evidence(verdict);
        if evidence["reason"] == NO_ANSWER {
            assert_eq!(verdict["score"], 0.0, "nobody is asked about what there is not");
            continue;
        }
        assert_eq!(verdict["score"], 1.0);
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
        let evidence = evidence(&verdict);
        assert!(evidence["reason"] == NO_ANSWER || text(&evidence, "failure").contains("cannot be read"), "{verdict}");
    }
    let error = place.fails(&["record", "--env", "mail", "--judge", "llm:http://127.0.0.1:1"], 2);
    assert!(error.contains("model=NAME"), "{error}");
}

/// A number that a question alone decides.
fn mixed(request: &Request) -> u64 {
    let question = request.body["messages"][1]["content"].as_str().unwrap();
    question.bytes().fold(7, |mixed: u64, byte| mixed.wrapping_mul(31).wrapping_add(u64::from(byte)))
}

/// How many requests a server had at a time, at most, and when the first came and the last was answered.
#[derive(Default)]
struct Load {
    now: usize,
    most: usize,
    span: Option<(Instant, Instant)>,
}

#[test]
fn questions_are_asked_side_by_side_up_to_the_judges_limit() {
    let slow = Duration::from_millis(300);
    for scheduler in ["rounds", "arrival"] {
        let place = Place::new();
        let load = Arc::new(Mutex::new(Load::default()));
        let noted = Arc::clone(&load);
        let server = Server::start(move |_, _| {
            {
                let mut load = noted.lock().unwrap();
                load.now += 1;
                load.most = load.most.max(load.now);
                let now = Instant::now();
                load.span.get_or_insert((now, now));
            }
            std::thread::sleep(slow);
            let mut load = noted.lock().unwrap();
            load.now -= 1;
            if let Some((_, last)) = &mut load.span {
                *last = Instant::now();
            }
            says(r#"{"success": true}"#)
        });
        let judge = format!("llm:{},model=grader,concurrency=4", server.url());
        let mut flags = vec!["record", "--env", "deepdive", "--policy", "oracle", "--tokenizer", "bytes"];
        // Eight roots that may not delegate, so that they end at about the same time.
        flags.extend(["--tasks", "8", "--group", "1", "--max-depth", "0", "--context", "65536"]);
        flags.extend(["--judge", &judge, "--scheduler", scheduler]);
        let made = place.json(&flags);
        assert_eq!(made["rollouts"], 8, "{made}");
        assert_eq!(server.requests("/v1/chat/completions").len(), 8);
        let load = load.lock().unwrap();
        let (first, last) = load.span.unwrap();
        println!("{scheduler}: at most {} at a time, {:?}", load.most, last - first);
        assert_eq!(load.most, 4, "{scheduler}");
        assert!(last - first >= slow * 2, "two waves: {:?}", last - first);
        assert!(last - first < slow * 5, "{scheduler}: not eight: {:?}", last - first);
    }
}

#[test]
fn the_order_of_answers_decides_nothing_in_rounds_and_is_replayed_under_arrival() {
    let mut digests = BTreeSet::new();
    for late in [0, 1, 2] {
        for scheduler in ["rounds", "arrival"] {
            let place = Place::new();
            // Which answers come late differs from time to time; what is answered does not.
            let server = Server::start(move |request, _| {
                let mixed = mixed(request);
                let reply = says(&format!("{{\"reason\": \"{mixed}\", \"success\": {}}}", mixed.is_multiple_of(2)));
                match (mixed / 2) % 3 == late {
                    true => Reply::Late(Duration::from_millis(80), Box::new(reply)),
                    false => reply,
                }
            });
            let width = (1 + 3 * late).to_string();
            let (made, _) = record_with(&place, &server, "", &["--scheduler", scheduler, "--width", &width]);
            if scheduler == "rounds" {
                digests.insert(text(&made, "content_digest").to_owned());
            }
            let events = made["events"].as_u64().unwrap();
            drop(server);
            for check in ["fold", "cells", "tools", "tokens"] {
                let bytes = if check == "tokens" { ["--tokenizer", "bytes"].as_slice() } else { &[] };
                let replayed = place.json(&[&["replay", "latest", "--check", check], bytes].concat());
                assert!(replayed["divergence"].is_null(), "{scheduler} {check}: {replayed}");
                let rows = replayed["rollouts"].as_array().unwrap();
                assert_eq!(rows.iter().map(|row| row["compared"].as_u64().unwrap()).sum::<u64>(), events);
            }
            assert_eq!(place.json(&["verify"])["intact"], true);
        }
    }
    assert_eq!(digests.len(), 1, "{digests:?}");
}

#[test]
fn one_question_that_is_never_answered_scores_0_and_holds_up_no_other() {
    for scheduler in ["rounds", "arrival"] {
        let place = Place::new();
        let server = Server::start(|_, before| match before {
            0 => Reply::Silence,
            1 => says("It did well, I would say."),
            2 => says(r#"{"reason": "half", "succ"#),
            _ => says(r#"{"reason": "so", "success": true}"#),
        });
        let (_, said) = record_with(&place, &server, ",timeout=2", &["--scheduler", scheduler]);
        assert_eq!(said.matches("scores 0 without having been judged").count(), 3, "{said}");
        assert!(said.contains("no answer within 2 s") && said.contains("cannot be read"), "{said}");
        let mut scores = Vec::new();
        for verdict in verdicts(&place) {
            let evidence = evidence(&verdict);
            let failed = evidence.get("failure").is_some() || evidence["reason"] == NO_ANSWER;
            scores.push((verdict["score"].as_f64().unwrap(), failed));
        }
        assert!(scores.iter().filter(|row| **row == (0.0, true)).count() >= 3, "{scores:?}");
        assert!(scores.iter().all(|row| row.1 || row.0 == 1.0), "{scores:?}");
        if scheduler == "arrival" {
            // Whatever else there was to do came before it.
            let events = place.out(&["tail", "latest", "--json"]);
            let late = events.lines().position(|line| line.contains("no answer within")).unwrap();
            let ends = events.lines().filter(|line| line.contains("node_finished")).count();
            let before = events.lines().take(late).filter(|line| line.contains("node_finished")).count();
            assert!(before > 0 && ends > 0, "{before} of {ends}");
        }
        for check in ["fold", "cells", "tools"] {
            assert!(place.out(&["replay", "latest", "--check", check]).contains("no difference"), "{check}");
        }
    }
}

#[test]
fn judging_again_asks_side_by_side_and_writes_in_the_order_of_the_nodes() {
    let place = Place::new();
    place.out(&["record", "--env", "deepdive", "--policy", "noisy", "--tokenizer", "bytes", "--tasks", "6"]);
    let server = Server::start(|request, _| {
        let mixed = mixed(request);
        let reply = says(&format!("{{\"reason\": \"{mixed}\", \"success\": {}}}", mixed.is_multiple_of(2)));
        Reply::Late(Duration::from_millis(400 + mixed % 100), Box::new(reply))
    });
    let rejudge = |concurrency: u32, more: &[&str]| {
        let judge = format!("llm:{},model=grader,concurrency={concurrency}", server.url());
        let begin = Instant::now();
        let made = place.json(&[&["rejudge", "latest", "--judge", &judge], more].concat());
        (made, begin.elapsed())
    };
    let (dry, took) = rejudge(64, &["--dry-run"]);
    let asked = u32::try_from(dry["asked"].as_u64().unwrap()).unwrap();
    println!("{asked} questions in {took:?}");
    assert!(asked > 8, "{dry}");
    assert!(took < Duration::from_millis(400) * asked / 2, "{asked} questions took {took:?}");
    let (made, _) = rejudge(3, &[]);
    assert_eq!(made["verdicts"], dry["verdicts"], "the order of answers is no matter");
    let lines = place.out(&["tail", "latest", "--kind", "verdict", "--json"]);
    let later = lines.lines().filter(|line| line.contains("llm/deepdive")).count() as u64;
    assert_eq!(later, made["asked"].as_u64().unwrap());
    let (again, _) = rejudge(3, &[]);
    assert_eq!(again["asked"], 0);
    assert_eq!(again["agreement"], made["agreement"]);
}

#[test]
fn what_the_mail_environment_saw_stands_beside_what_the_judge_said() {
    let place = Place::new();
    place.own_mail(6, 5);
    let server = Server::start(|_, _| says(r#"{"reason": "near enough", "success": true}"#));
    let judge = format!("llm:{},model=grader,retries=0", server.url());
    let mut flags = vec!["record", "--env", "mail", "--policy", "noisy", "--tokenizer", "bytes", "--data", "mine"];
    flags.extend(["--tasks", "1", "--group", "24", "--judge", &judge]);
    place.out(&flags);
    let judged = verdicts(&place);
    let mut identities = BTreeSet::new();
    for verdict in &judged {
        let evidence = evidence(verdict);
        assert_eq!(evidence["reason"], "near enough");
        assert_eq!(evidence["environment"]["truth"], "item 5");
        assert!(evidence["environment"]["rubric"]["turns"].as_u64().unwrap() > 0, "{evidence}");
        assert!(evidence["environment"]["rubric"]["ever_found_right_email"].is_boolean());
        assert!(evidence["environment"]["attempt"].is_null(), "that is for the judge to say");
        identities.insert(text(&evidence, "identity").to_owned());
    }
    assert!(!judged.is_empty());
    assert_eq!(server.requests("/v1/chat/completions").len(), identities.len(), "notes are no part of a question");
    let asked = server.requests("/v1/chat/completions");
    assert!(
        asked.iter().all(|request| !request.body.to_string().contains("ever_found_right_email")),
        "no judge sees them"
    );
    for check in ["fold", "cells", "tools"] {
        let replayed = place.json(&["replay", "latest", "--check", check, "--data", "mine"]);
        assert!(replayed["divergence"].is_null(), "{check}: {replayed}");
    }
}
