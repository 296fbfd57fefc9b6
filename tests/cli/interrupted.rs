//! Ctrl-C while a server that never answers is asked: a judge, a policy, a search service. Nothing that was acknowledged
//! is lost, and the run goes on once the server answers.

#![cfg(unix)]

use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Place, text};
use crate::fake::{Like, about, honest};
use crate::server::{Reply, Request, Server};

const SCHEDULERS: [&str; 2] = ["rounds", "arrival"];

/// Starts the program, sends it SIGINT once `is_time`, and sees that it ends soon after that.
fn interrupt(place: &Place, flags: &[&str], is_time: impl Fn() -> bool) -> Output {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("rao-log"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RAO_LOG_") {
            command.env_remove(name);
        }
    }
    command.env("NO_COLOR", "1").env("RAO_LOG_SEARCH_KEY", "k").current_dir(place.path()).args(flags);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    while !is_time() {
        assert!(begin.elapsed() < Duration::from_secs(60), "the server was never asked");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Whatever comes to the server now, it is let wait.
    std::thread::sleep(Duration::from_millis(200));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let sent = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(sent.elapsed() < Duration::from_secs(5), "it took {:?} to stop", sent.elapsed());
    output
}

/// A server that is silent about a path until it is told to speak.
fn silent(path: &'static str, answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> (Server, Arc<AtomicBool>) {
    let speaks = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&speaks);
    let server = Server::start(move |request, _| match request.path == path && !told.load(Ordering::SeqCst) {
        true => Reply::Silence,
        false => answer(request),
    });
    (server, speaks)
}

/// Records until `path` is asked, stops, and resumes; gives the content digest of the run.
fn stopped_and_resumed(flags: &[&str], more: &[&str], server: &Server, path: &str, speaks: &AtomicBool) -> String {
    let place = Place::new();
    std::fs::write(place.path().join("qa_rl.jsonl"), questions()).unwrap();
    let output = interrupt(&place, flags, || !server.requests(path).is_empty());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("rao-log record --resume"), "{error}");
    let before = place.out(&["tail", "latest", "--json"]);
    assert!(
        before.contains("action_sampled") || path.contains("completion"),
        "what happened before is there: {before}"
    );
    for check in ["fold", "cells"] {
        let replayed = place.rao(&["replay", "latest", "--check", check]).output().unwrap();
        // It says that the log has no end, and nothing else.
        assert_eq!(replayed.status.code(), Some(5), "{check}: {replayed:?}");
    }
    speaks.store(true, Ordering::SeqCst);
    let resume = [&["record", "--resume", "latest", "--json"], more].concat();
    let output = place.rao(&resume).env("RAO_LOG_SEARCH_KEY", "k").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    let after = place.out(&["tail", "latest", "--json"]);
    let lost = before.lines().filter(|line| !after.contains(line)).count();
    assert_eq!(lost, 0, "what was acknowledged stays");
    assert!(place.out(&["replay", "latest", "--check", "cells"]).contains("no difference"));
    assert_eq!(place.json(&["verify"])["intact"], true);
    text(&run, "content_digest").to_owned()
}

/// The digest of the same recording, made without a break.
fn whole(flags: &[&str]) -> String {
    let place = Place::new();
    std::fs::write(place.path().join("qa_rl.jsonl"), questions()).unwrap();
    let output = place.rao(&[flags, &["--json"]].concat()).env("RAO_LOG_SEARCH_KEY", "k").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    text(&run, "content_digest").to_owned()
}

fn questions() -> String {
    let ask = |id: u32, whom: &str| json!({ "id": id, "question": format!("In which town was the {whom} of Halvor College born?"), "answer": "Orsel" });
    format!("{}\n{}\n", ask(1, "founder"), ask(2, "first pupil"))
}

fn says(content: &str) -> Reply {
    Reply::json(
        &json!({ "choices": [{ "message": { "role": "assistant", "content": content }, "finish_reason": "stop" }] }),
    )
}

#[test]
fn a_judge_that_never_answers_does_not_hold_a_run() {
    for scheduler in SCHEDULERS {
        let path = "/v1/chat/completions";
        let (server, speaks) = silent(path, |_| says(r#"{"reason": "so", "success": true}"#));
        let judge = format!("llm:{},model=grader", server.url());
        let mut flags = vec!["record", "--env", "deepdive", "--policy", "noisy", "--tokenizer", "bytes"];
        flags.extend(["--tasks", "4", "--group", "2", "--judge", &judge, "--child-judge", &judge]);
        flags.extend(["--scheduler", scheduler]);
        let resumed = stopped_and_resumed(&flags, &["--tokenizer", "bytes"], &server, path, &speaks);
        if scheduler == "rounds" {
            assert_eq!(resumed, whole(&flags));
        }
    }
}

#[test]
fn a_policy_that_never_answers_does_not_hold_a_run() {
    for scheduler in SCHEDULERS {
        let like = Like::Vllm;
        let (server, speaks) = silent(like.path(), move |request| {
            about(like, request).unwrap_or_else(|| honest(like, request, "<python>finish('done')</python>"))
        });
        let policy = format!("openai:{}", server.url());
        let flags = ["record", "--policy", &policy, "--tasks", "1", "--group", "2", "--tokenizer", "bytes"];
        let flags = [flags.as_slice(), &["--prompt", "brief", "--scheduler", scheduler]].concat();
        let resumed = stopped_and_resumed(&flags, &[], &server, like.path(), &speaks);
        assert_eq!(resumed, whole(&flags), "{scheduler}: one node each, so the order is no matter");
    }
}

#[test]
fn a_search_that_never_answers_does_not_hold_a_run() {
    for scheduler in SCHEDULERS {
        let (server, speaks) = silent("/search", |request| match request.path.as_str() {
            "/search" => Reply::json(&json!({ "results": [
                { "url": "https://p.example/1", "title": "Halvor", "content": "A college.", "score": 0.9, "raw_content": null }
            ] })),
            _ => Reply::json(
                &json!({ "results": [{ "url": "https://p.example/1", "raw_content": "Its founder came from Orsel." }] }),
            ),
        });
        let search = format!("search=tavily:{}", server.url());
        let mut flags = vec!["record", "--env", "deepdive", "--policy", "oracle", "--tokenizer", "bytes"];
        // One task after the other, so that the second has not begun when the first is stopped.
        flags.extend(["--data", "qa_rl.jsonl", "--env-option", &search, "--tasks", "2", "--group", "1"]);
        flags.extend(["--width", "1", "--scheduler", scheduler]);
        let more = ["--tokenizer", "bytes", "--data", "qa_rl.jsonl"];
        let resumed = stopped_and_resumed(&flags, &more, &server, "/search", &speaks);
        if scheduler == "rounds" {
            assert_eq!(resumed, whole(&flags));
        }
    }
}

#[test]
fn judging_again_keeps_the_verdicts_that_came_before_it_was_stopped() {
    let place = Place::new();
    let flags = ["record", "--env", "deepdive", "--policy", "noisy", "--tokenizer", "bytes", "--tasks", "6"];
    place.out(&flags);
    let speaks = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&speaks);
    let server = Server::start(move |_, before| match before < 2 || told.load(Ordering::SeqCst) {
        true => says(r#"{"reason": "so", "success": true}"#),
        false => Reply::Silence,
    });
    let judge = format!("llm:{},model=grader,concurrency=2", server.url());
    let path = "/v1/chat/completions";
    let flags = ["rejudge", "latest", "--judge", &judge];
    let output = interrupt(&place, &flags, || server.requests(path).len() >= 4);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("2 verdicts that came before are in the log"), "{error}");
    speaks.store(true, Ordering::SeqCst);
    let asked = server.requests(path).len() as u64;
    let rest = place.json(&flags);
    assert_eq!(rest["asked"].as_u64(), Some(server.requests(path).len() as u64 - asked), "{rest}");
    let nodes = rest["judged"].as_u64().unwrap();
    assert!(rest["asked"].as_u64().unwrap() + 2 <= nodes, "{rest}");
    let again = place.json(&flags);
    assert_eq!((again["asked"].as_u64(), again["judged"].as_u64()), (Some(0), Some(nodes)));
}
