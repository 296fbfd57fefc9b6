//! Recording from servers, whole: what the log holds, what a replay does with it, what goes wrong and how it goes on.

use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::common::{Place, text};
use crate::fake::{self, Like, about, honest};
use crate::server::{Reply, Request, Server};

const SECRET: &str = "sk-never-to-be-seen";

/// What the "model" does next: it looks, sends a child to make the same, and finishes.
fn next(like: Like, request: &Request) -> String {
    let (cells, prompt) = match like {
        Like::Chat => {
            let messages = request.body["messages"].as_array().unwrap();
            let own = messages.iter().filter(|message| message["role"] == "assistant").count();
            (own, messages[1]["content"].as_str().unwrap().to_owned())
        }
        Like::Sglang => (turns(&request.body["input_ids"]), decoded(&request.body["input_ids"])),
        _ => (turns(&request.body["prompt"]), decoded(&request.body["prompt"])),
    };
    match cells {
        0 => "<thought>Look.</thought>\n<python>print(view_inventory())</python>".to_owned(),
        1 => {
            // `Craft the following items: 2x o2_i2_12`, in whatever tokens.
            let item = prompt.split("items: ").nth(1).and_then(|rest| rest.split("x ").nth(1)).unwrap_or("o0_i5");
            let name: String = item.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            format!("<python>print(await launch_subagent({{'{name}': 1}}))</python>")
        }
        _ => "<python>finish('done')</python>".to_owned(),
    }
}

/// The text of single-byte tokens; others are left out.
fn decoded(ids: &Value) -> String {
    let bytes = ids.as_array().unwrap().iter().filter_map(|id| u8::try_from(id.as_u64()?.checked_sub(3)?).ok());
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

/// Turns that the assistant has ended: one control token opens each turn, and three turns are open before its first.
fn turns(ids: &Value) -> usize {
    let opened = ids.as_array().unwrap().iter().filter(|id| id.as_u64() == Some(1)).count();
    (opened - 3) / 2
}

fn server(like: Like) -> Server {
    Server::start(move |request, _| {
        let checks_key = request.headers.iter().any(|line| line.contains(SECRET));
        about(like, request).unwrap_or_else(|| match checks_key {
            true => honest(like, request, &next(like, request)),
            false => Reply::Status(401, json!({ "error": { "message": "no key" } }).to_string()),
        })
    })
}

/// Few rollouts, short prompts, no waiting.
fn record(place: &Place, server: &Server, more: &[&str]) -> Output {
    let policy = format!("openai:{}", server.url());
    let mut flags = vec!["record", "--policy", &policy, "--tasks", "2", "--group", "2", "--json"];
    flags.extend(["--prompt", "brief", "--max-depth", "1", "--server-retries", "0"]);
    flags.extend(more);
    place.rao(&flags).env("OPENAI_API_KEY", SECRET).output().unwrap()
}

fn recorded(place: &Place, server: &Server, more: &[&str]) -> (Value, String) {
    let output = record(place, server, more);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{more:?}: {error}");
    (serde_json::from_slice(&output.stdout).unwrap(), error)
}

fn actions(place: &Place) -> Vec<Value> {
    let lines = place.out(&["tail", "latest", "--kind", "action_sampled", "--json"]);
    lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["body"].clone()).collect()
}

/// Whether a file of the log has the text in it.
fn holds(dir: &Path, wanted: &[u8]) -> bool {
    std::fs::read_dir(dir).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => holds(&path, wanted),
            false => std::fs::read(&path).unwrap().windows(wanted.len()).any(|window| window == wanted),
        }
    })
}

#[test]
fn tokens_and_numbers_of_every_kind_of_server_are_kept_and_replayed() {
    for like in [Like::Vllm, Like::Sglang, Like::LlamaCpp] {
        for scheduler in ["rounds", "arrival"] {
            let (place, server) = (Place::new(), server(like));
            let (made, note) = recorded(&place, &server, &["--tokenizer", "bytes", "--scheduler", scheduler]);
            assert_eq!(made["rollouts"], 4, "{like:?} {scheduler}");
            assert!(!note.contains("note:"), "{note}");
            let actions = actions(&place);
            assert!(actions.len() >= 4 * 3, "{like:?}");
            for action in &actions {
                let said = text(action, "text");
                assert_eq!(action["tokens"], json!(fake::ids(said)), "{like:?}");
                let numbers: Vec<f64> = serde_json::from_value(action["logprobs"].clone()).unwrap();
                assert_eq!(numbers, (0..said.len()).map(fake::score).collect::<Vec<_>>());
                assert_eq!((text(action, "logprob_kind"), text(action, "stop")), ("Served", "CellEnd"));
                assert_eq!(
                    action["sampler"],
                    json!({ "temperature": 1.0, "max_tokens": 256, "top_p": 1.0, "top_k": 0 })
                );
            }
            for check in ["fold", "cells", "tools"] {
                assert!(
                    place.out(&["replay", "latest", "--check", check]).contains("no difference"),
                    "{like:?} {check}"
                );
            }
            assert!(place.out(&["verify"]).contains("intact"));
            let error = place.fails(&["replay", "latest", "--check", "tokens"], 2);
            assert!(error.contains("served model `tiny.gguf`") && error.contains("--check tools"), "{error}");
            assert!(holds(&place.log(), b"tiny.gguf") && !holds(&place.log(), SECRET.as_bytes()));
            let shown = place.out(&["show", "latest/0"]);
            assert!(shown.contains("0.0"), "a child was launched: {shown}");
        }
    }
}

#[test]
fn a_policy_of_text_is_marked_and_not_reinforced() {
    let (place, server) = (Place::new(), server(Like::Chat));
    let (_, note) = recorded(&place, &server, &["--server", "text"]);
    assert!(note.contains("text mode"), "{note}");
    for action in &actions(&place) {
        assert_eq!((text(action, "logprob_kind"), &action["logprobs"]), ("Absent", &json!([])));
    }
    assert!(place.out(&["replay", "latest", "--check", "tools"]).contains("no difference"));
    let error = place.fails(&["train", "--model", "mini"], 2);
    assert!(error.contains("no log-probabilities") && error.contains("only text"), "{error}");
    assert!(place.out(&["list"]).contains("tiny.gguf"));
}

#[test]
fn the_numbers_of_a_server_are_the_behaviour_policy_of_a_training() {
    let (place, server) = (Place::new(), server(Like::Sglang));
    let silent = Server::start(move |request, _| match request.path.as_str() {
        // The tokenizer of `mini` begins with the same 259 entries as `bytes`, but writes texts otherwise.
        "/tokenize" => Reply::Status(404, String::new()),
        _ => {
            about(Like::Sglang, request).unwrap_or_else(|| honest(Like::Sglang, request, &next(Like::Sglang, request)))
        }
    });
    let error = String::from_utf8_lossy(&record(&place, &server, &["--tokenizer", "mini"]).stderr).into_owned();
    assert!(error.contains("the server's tokenizer is not the one given"), "{error}");
    let (_, note) = recorded(&place, &silent, &["--tokenizer", "mini"]);
    assert!(note.contains("was not checked"), "{note}");
    let error = place.fails(&["train"], 2);
    assert!(error.contains("--model"), "{error}");
    let trained = place.json(&["train", "--model", "mini", "--out", "trained"]);
    assert_eq!((&trained["on_policy"], &trained["first"]["equal"]), (&json!(false), &json!(0)));
    assert!(trained["first"]["mean_ratio"].as_f64().unwrap() > 0.0);
    let tempered = ["--tokenizer", "mini", "--temperature", "0.7"];
    recorded(&place, &silent, &tempered);
    assert_eq!(text(&actions(&place)[0], "logprob_kind"), "Unknown");
    let error = place.fails(&["train", "--model", "mini", "--out", "trained2"], 2);
    assert!(error.contains("of a known distribution"), "{error}");
}

#[test]
fn a_run_goes_on_after_its_server_failed() {
    for scheduler in ["rounds", "arrival"] {
        let place = Place::new();
        let allowed = Arc::new(AtomicUsize::new(5));
        let left = Arc::clone(&allowed);
        let server = Server::start(move |request, _| {
            about(Like::Vllm, request).unwrap_or_else(|| {
                let before = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
                match before {
                    Ok(_) => honest(Like::Vllm, request, &next(Like::Vllm, request)),
                    Err(_) => Reply::Status(500, json!({ "error": { "message": "out of memory" } }).to_string()),
                }
            })
        });
        let output = record(&place, &server, &["--tokenizer", "bytes", "--scheduler", scheduler]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(6), "{error}");
        assert!(error.contains("out of memory") && error.contains("record --resume"), "{error}");
        allowed.store(1000, Ordering::SeqCst);
        // Server, kind, model and tokenizer are known from the log.
        let made = place.json(&["record", "--resume", "latest"]);
        assert_eq!(made["rollouts"], 4, "{scheduler}");
        assert!(place.out(&["replay", "latest", "--check", "tools"]).contains("no difference"));
        assert!(place.out(&["verify"]).contains("intact"));
    }
}

#[test]
fn what_a_server_lacks_is_said_before_the_log_is_touched() {
    let place = Place::new();
    let served = server(Like::Vllm);
    let fails = |more: &[&str], code: i32| {
        let output = record(&place, &served, more);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{more:?}: {error}");
        assert!(!place.log().exists(), "{more:?}");
        error
    };
    assert!(fails(&[], 2).contains("--tokenizer"));
    assert!(fails(&["--tokenizer", "bytes", "--server-model", "other"], 2).contains("has no model `other`"));
    assert!(fails(&["--tokenizer", "bytes", "--context", "100000"], 2).contains("65536 positions"));
    let error = place.fails(&["record", "--policy", "openai:http://me:pass@127.0.0.1:1"], 2);
    assert!(error.contains("RAO_LOG_API_KEY"), "{error}");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nobody = format!("openai:http://127.0.0.1:{free}");
    let flags = ["record", "--policy", &nobody, "--tokenizer", "bytes", "--server-retries", "0"];
    assert!(place.fails(&flags, 6).contains("is it running"));
    assert!(place.fails(&["record", "--policy", "oracle", "--top-p", "0.5"], 2).contains("--top-p"));
    assert!(!place.log().exists());
}
