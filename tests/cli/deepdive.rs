//! DeepDive from the command line: recorded, replayed, forked, evaluated, trained on.

use std::path::Path;

use rao_store::event::{Body, Kind};
use rao_store::{EventSource, Filter, Reader, Seq};
use serde_json::{Value, json};

use crate::common::{Place, text};
use crate::server::{Reply, Server};

/// Records with a scripted policy; contexts are counted in bytes.
fn record(place: &Place, policy: &str, more: &[&str]) -> Value {
    let mut flags = vec!["record", "--env", "deepdive", "--policy", policy, "--tokenizer", "bytes"];
    flags.extend(more);
    place.json(&flags)
}

fn bodies(place: &Place, kind: Kind) -> Vec<Body> {
    let (reader, _) = Reader::open(&place.log()).unwrap();
    let run = *reader.runs().last().unwrap();
    let events = reader.streams(run).into_iter().flat_map(|stream| {
        reader.events(stream, Seq(0), &Filter::kinds([kind])).map(|event| event.unwrap().body).collect::<Vec<_>>()
    });
    events.collect()
}

fn replays(place: &Place) {
    for check in ["fold", "cells", "tools", "tokens"] {
        let bytes = if check == "tokens" { ["--tokenizer", "bytes"].as_slice() } else { &[] };
        let replayed = place.json(&[&["replay", "--check", check], bytes].concat());
        assert!(replayed["divergence"].is_null(), "{check}: {replayed}");
    }
}

/// Success by difficulty.
fn rates(place: &Place, more: &[&str]) -> Vec<f64> {
    let mut flags = vec!["eval", "--env", "deepdive", "--policy", "oracle", "--tokenizer", "bytes"];
    flags.extend(more);
    let rows = place.json(&flags)["difficulties"].as_array().unwrap().clone();
    rows.iter().map(|row| row["rate"].as_f64().unwrap()).collect()
}

#[test]
fn walks_are_answered_delegated_and_replayed() {
    let place = Place::new();
    let flags = ["--preset", "2hop,4hop,6hop,9hop", "--tasks", "8", "--group", "1", "--context", "65536"];
    let run = record(&place, "oracle", &flags);
    assert_eq!(run["success"], 1.0, "{run}");
    assert_eq!(record(&place, "oracle", &flags)["content_digest"], run["content_digest"]);
    let verdicts = bodies(&place, Kind::Verdict);
    let mut deepest = 0;
    for body in &verdicts {
        let Body::Verdict(verdict) = body else { panic!() };
        assert_eq!(verdict.score, 1.0, "node {}: {}", verdict.node, verdict.evidence);
        deepest = deepest.max(verdict.node.depth().0);
    }
    assert!(deepest >= 2, "stretches are delegated further");
    replays(&place);
}

#[test]
fn mistakes_are_logged_replayed_and_trained_on() {
    let place = Place::new();
    let run = record(&place, "noisy", &["--preset", "4hop", "--tasks", "2", "--group", "4", "--context", "8192"]);
    let success = run["success"].as_f64().unwrap();
    assert!(success > 0.0 && success < 1.0, "{run}");
    replays(&place);
    let ends = bodies(&place, Kind::CellFinished);
    let errors = ends.iter().filter(|body| matches!(body, Body::CellFinished(cell) if cell.error.is_some()));
    assert!(errors.count() > 3);

    place.init_model();
    let flags = ["record", "--env", "deepdive", "--policy", "oracle", "--tokenizer", "model", "--context", "8192"];
    place.json(&[flags.as_slice(), &["--tasks", "1", "--group", "2"]].concat());
    let sft = place.json(&["train", "--loss", "sft", "--model", "model", "--out", "trained", "--steps", "1"]);
    assert_eq!(sft["steps"], 1, "{sft}");
    let eval = ["eval", "--env", "deepdive", "--policy", "local:trained", "--tasks", "1", "--context", "8192"];
    let row = &place.json(&[eval.as_slice(), &["--max-steps", "1", "--max-tokens", "8"]].concat())["difficulties"][0];
    assert_eq!((row["tasks"].as_u64(), row["successes"].as_u64()), (Some(1), Some(0)), "{row}");
}

#[test]
fn forks_and_later_starts_take_earlier_answers_from_the_log() {
    let place = Place::new();
    let flags = ["--preset", "4hop", "--tasks", "1", "--group", "1", "--context", "65536"];
    let half = record(&place, "oracle", &flags)["events"].as_u64().unwrap() / 2;
    for check in ["tools", "tokens"] {
        let flags = ["replay", "--from", &format!("latest/0#{half}"), "--check", check];
        let bytes = if check == "tokens" { ["--tokenizer", "bytes"].as_slice() } else { &[] };
        let replayed = place.json(&[flags.as_slice(), bytes].concat());
        assert!(replayed["divergence"].is_null(), "{replayed}");
    }
    let fork =
        place.json(&["fork", "--from", &format!("latest/0#{half}"), "--policy", "oracle", "--tokenizer", "bytes"]);
    assert_eq!(fork["success"], 1.0, "what was found before the fork is known after it: {fork}");
}

/// A table of questions and a table of pages.
fn tables(folder: &Path) {
    let question =
        json!({ "id": 1, "question": "In which town was the founder of Halvor College born?", "answer": "Orsel" });
    std::fs::write(folder.join("qa_rl.jsonl"), format!("{question}\n")).unwrap();
    let page = |title: &str, text: &str| json!({ "title": title, "text": text }).to_string();
    let pages = [
        page("Halvor College", "Halvor College was founded by Mara Venn, who was born in the town of Orsel."),
        page("Velm College", "Velm College was founded by Tib Korl of Habrar."),
        page("Quiz", "In which town was the founder of Halvor College born? Orsel!"),
    ];
    std::fs::write(folder.join("pages.jsonl"), pages.join("\n")).unwrap();
}

#[test]
fn a_page_that_changed_is_found_at_the_event_that_shows_it() {
    let place = Place::new();
    tables(place.path());
    let own = ["--data", "qa_rl.jsonl", "--env-option", "corpus=pages.jsonl", "--tasks", "1", "--group", "1"];
    let run = record(&place, "oracle", &own);
    assert_eq!(run["success"], 1.0, "{run}");
    let shown = bodies(&place, Kind::CellFinished);
    let all: String =
        shown.iter().map(|body| if let Body::CellFinished(cell) = body { cell.stdout.as_str() } else { "" }).collect();
    assert!(
        all.contains("born in the town of Orsel") && !all.contains("Quiz"),
        "the page that quotes the question is blocked: {all}"
    );
    let error = place.fails(&["replay", "--check", "tools"], 2);
    assert!(error.contains("--data"), "{error}");
    assert!(place.json(&["replay", "--check", "tools", "--data", "pages.jsonl"])["divergence"].is_null());

    let changed =
        std::fs::read_to_string(place.path().join("pages.jsonl")).unwrap().replace("town of Orsel", "town of Velmar");
    std::fs::write(place.path().join("pages.jsonl"), changed).unwrap();
    let replayed = place.rao(&["replay", "--check", "tools", "--data", "pages.jsonl", "--json"]).output().unwrap();
    assert_eq!(replayed.status.code(), Some(3));
    let replayed: Value = serde_json::from_slice(&replayed.stdout).unwrap();
    let divergence = &replayed["divergence"];
    assert_eq!(
        divergence["expected"]["kind"].as_str().or(divergence["kind"].as_str()),
        Some("call_answered"),
        "{divergence}"
    );
    assert!(divergence.to_string().contains("Velmar"), "{divergence}");
    assert!(place.json(&["replay", "--check", "cells"])["divergence"].is_null(), "the log still has what was seen");
}

#[test]
fn settings_are_checked_before_anything_runs() {
    let place = Place::new();
    tables(place.path());
    let fails = |more: &[&str], text: &str| {
        let mut flags =
            vec!["record", "--env", "deepdive", "--policy", "oracle", "--tokenizer", "bytes", "--tasks", "1"];
        flags.extend(more);
        let error = place.fails(&flags, 2);
        assert!(error.replace("\n  │ ", "").replace('\n', " ").contains(text), "{error}");
    };
    fails(&["--env-option", "serach=tavily"], "did you mean `search`?");
    fails(&["--env-option", "search=google"], "recorded:FILE");
    fails(&["--env-option", "search=tavily"], "pages of their own");
    fails(&["--env-option", "rate=9"], "goes with a service");
    fails(&["--data", "qa_rl.jsonl"], "search=tavily");
    fails(&["--preset", "tiny"], "2hop");
    assert!(!place.log().exists());
}

#[test]
fn a_service_is_recorded_and_its_answers_replay_without_it() {
    let place = Place::new();
    tables(place.path());
    let server = service();
    let search = format!("search=tavily:{}", server.url());
    let flags =
        ["--data", "qa_rl.jsonl", "--env-option", &search, "--env-option", "record=answers.jsonl", "--tasks", "1"];
    let mut command = place.rao(&["record", "--env", "deepdive", "--policy", "oracle", "--tokenizer", "bytes"]);
    let output =
        command.args(flags).args(["--group", "2", "--json"]).env("RAO_LOG_SEARCH_KEY", "tvly-hidden").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(run["success"], 1.0, "{run}");
    assert!(!text(&run, "run").is_empty());
    let log = std::fs::read(place.log().join("journal/0000000000.log")).unwrap();
    assert!(!log.windows(11).any(|bytes| bytes == b"tvly-hidden"), "a key must never reach the log");
    let replayed = place.json(&["replay", "--check", "tools", "--data", "answers.jsonl"]);
    assert!(replayed["divergence"].is_null(), "{replayed}");
    let short = std::fs::read_to_string(place.path().join("answers.jsonl")).unwrap();
    std::fs::write(place.path().join("answers.jsonl"), short.lines().next().unwrap()).unwrap();
    let error = place.fails(&["replay", "--check", "tools", "--data", "answers.jsonl"], 3);
    assert!(error.contains("differs from the log"), "{error}");
}

/// A service with one page, in Tavily's language; it wants a key.
fn service() -> Server {
    let found = json!({ "answer": "Orsel", "response_time": 0.7, "request_id": "x", "results": [
        { "url": "https://p.example/1", "title": "Halvor", "content": "A college.", "score": 0.9, "raw_content": null }
    ] });
    let page = json!({ "results": [{ "url": "https://p.example/1", "raw_content": "Its founder came from Orsel." }] });
    Server::start(move |request, _| match (request.header("authorization"), request.path.as_str()) {
        (Some("Bearer tvly-hidden"), "/search") => Reply::json(&found),
        (Some("Bearer tvly-hidden"), _) => Reply::json(&page),
        _ => Reply::Status(401, String::new()),
    })
}

#[test]
fn real_questions_are_answered_where_their_pages_are_found() {
    let Some(data) = std::env::var_os("RAO_LOG_DATA") else {
        println!("skipped: RAO_LOG_DATA is not set");
        return;
    };
    let data = Path::new(&data).join("multihop-qa").display().to_string();
    let place = Place::new();
    let flags =
        ["--data", &data, "--preset", "2hop,3hop,4hop", "--tasks", "all", "--split", "train", "--context", "65536"];
    let rates = rates(&place, &flags);
    println!("MuSiQue by number of hops: {rates:?}");
    assert!(rates.len() == 3 && rates.iter().all(|rate| *rate >= 0.75), "{rates:?}");
    let replayed = place.json(&["replay", "latest/0", "--check", "tools", "--data", &data]);
    assert!(replayed["divergence"].is_null(), "{replayed}");
}
