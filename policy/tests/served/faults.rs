//! What is refused, what is asked again, and how it is said.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rao_policy::Chat;
use rao_policy::served::{Address, Kind, Served, ServedError, ServedSettings};
use serde_json::{Value, json};

use crate::fake::{Like, SAID, about, honest, honest_server, ids, llamacpp, score, sglang, vllm};
use crate::server::{Reply, Request, Server};
use crate::{connect, job, never, one, settings};

/// The error of one completion by a server whose honest answer a test has changed.
fn refused(like: Like, change: impl Fn(&mut Value) + Send + Sync + 'static) -> (ServedError, usize) {
    let server = Server::start(move |request, _| {
        about(like, request).unwrap_or_else(|| {
            let mut answer = if like == Like::Vllm { vllm(request, SAID) } else { sglang(request, SAID) };
            change(&mut answer);
            Reply::json(&answer)
        })
    });
    let served = connect(&settings(&server)).unwrap();
    let error = one(&served, job()).unwrap_err();
    (error, server.requests(like.path()).len())
}

fn pop(list: &mut Value) {
    list.as_array_mut().unwrap().pop();
}

#[test]
fn fewer_numbers_than_tokens_are_refused_at_once() {
    let count = ids(SAID).len();
    let short = ServedError::Counts { tokens: count, logprobs: count - 1 };
    let vllm_short = refused(Like::Vllm, |answer| {
        pop(&mut answer["choices"][0]["logprobs"]["token_logprobs"]);
    });
    assert_eq!(vllm_short, (short.clone(), 1));
    assert_eq!(
        refused(Like::Sglang, |answer| pop(&mut answer["meta_info"]["output_token_logprobs"])),
        (short.clone(), 1)
    );
    let null = refused(Like::Vllm, |answer| answer["choices"][0]["logprobs"]["token_logprobs"][3] = Value::Null);
    assert_eq!(null, (short, 1));
    let none = refused(Like::Vllm, |answer| answer["choices"][0]["logprobs"] = Value::Null);
    assert!(matches!(none, (ServedError::Reply { .. }, 1)), "{none:?}");
    let none = refused(Like::Sglang, |answer| {
        drop(answer["meta_info"].as_object_mut().unwrap().remove("output_token_logprobs"))
    });
    assert!(matches!(none, (ServedError::Reply { .. }, 1)), "{none:?}");
}

#[test]
fn four_numbers_for_five_tokens_of_a_stream_are_refused() {
    let server = Server::start(|request, _| {
        about(Like::LlamaCpp, request).unwrap_or_else(|| {
            let entry = |at: usize| json!({ "id": 70 + at, "logprob": score(at) });
            let four: Vec<Value> = (0..4).map(entry).collect();
            let sent = request.body["prompt"].as_array().unwrap().len();
            Reply::Events(vec![json!({
                "tokens": [70, 71, 72, 73, 74], "completion_probabilities": four, "tokens_predicted": 5,
                "tokens_evaluated": sent, "stop": false,
            })])
        })
    });
    let served = connect(&settings(&server)).unwrap();
    assert_eq!(one(&served, job()).unwrap_err(), ServedError::Counts { tokens: 5, logprobs: 4 });
}

#[test]
fn a_prompt_that_was_tokenized_anew_is_refused() {
    let sent = job().context.len();
    let (error, tries) = refused(Like::Vllm, |answer| answer["choices"][0]["prompt_token_ids"][5] = json!(99));
    assert_eq!(
        (&error, tries),
        (&ServedError::Retokenized { sent, seen: sent as u64, detail: ", and they differ from token 5".into() }, 1)
    );
    let (error, _) = refused(Like::Sglang, move |answer| answer["meta_info"]["prompt_tokens"] = json!(sent + 1));
    assert_eq!(error, ServedError::Retokenized { sent, seen: sent as u64 + 1, detail: String::new() });
    assert!(error.to_string().contains("--server text"), "{error}");
}

#[test]
fn ids_that_are_not_those_of_the_numbers_are_refused() {
    let (error, _) = refused(Like::Vllm, |answer| answer["choices"][0]["token_ids"][2] = json!(50));
    assert!(matches!(error, ServedError::Mismatch { at: 2, id: 50, .. }), "{error:?}");
    let (error, _) = refused(Like::Sglang, |answer| answer["output_ids"][2] = json!(50));
    assert!(matches!(error, ServedError::Mismatch { at: 2, id: 50, .. }), "{error:?}");
    let (error, _) = refused(Like::Sglang, |answer| {
        answer["output_ids"][0] = json!(5000);
        answer["meta_info"]["output_token_logprobs"][0][1] = json!(5000);
    });
    assert_eq!(error, ServedError::Vocabulary { at: 0, id: 5000, size: 259 });
    let (error, _) = refused(Like::Sglang, |answer| answer["meta_info"]["output_token_logprobs"][1][0] = json!(0.5));
    assert_eq!(error, ServedError::LogProb { at: 1, value: "0.5".into() });
}

#[test]
fn too_many_tokens_and_strange_ends_are_refused() {
    let server = honest_server(Like::Vllm, "abcdefgh");
    let served = connect(&settings(&server)).unwrap();
    let error = one(&served, rao_policy::served::Job { max_tokens: 5, ..job() }).unwrap_err();
    assert!(matches!(error, ServedError::Length { given: 8, asked: 5, .. }), "{error:?}");
    let (error, _) = refused(Like::Vllm, |answer| answer["choices"][0]["finish_reason"] = json!("content_filter"));
    assert!(error.to_string().contains("content_filter"), "{error}");
    let (error, _) = refused(Like::Sglang, |answer| answer["meta_info"]["finish_reason"] = json!({ "type": "abort" }));
    assert!(error.to_string().contains("abort"), "{error}");
}

#[test]
fn a_token_inside_a_character_is_looked_up_where_llamacpp_hides_it() {
    let server = honest_server(Like::LlamaCpp, "<python>'🤖é'</python>");
    let served = connect(&settings(&server)).unwrap();
    let given = one(&served, job()).unwrap();
    assert_eq!(given.tokens, ids("<python>'🤖é'</python>"));
    let wanted: Vec<f32> = (0..given.tokens.len()).map(|at| score(at) as f32).collect();
    assert_eq!(given.logprobs, wanted);
    // Once as a stream, once whole, and one look-up for each number that the stream did not give.
    let shown = "<python>'".len();
    assert_eq!(server.requests("/completion").len(), 2 + given.tokens.len() - shown);
}

#[test]
fn a_number_that_nobody_gives_is_not_made_up() {
    let server = Server::start(|request, _| {
        about(Like::LlamaCpp, request).unwrap_or_else(|| match request.body["n_predict"].as_u64() {
            Some(1) => {
                let sent = request.body["prompt"].as_array().unwrap().len();
                Reply::json(&json!({ "tokens": [2], "tokens_evaluated": sent, "completion_probabilities": [] }))
            }
            _ => llamacpp(request, "🤖"),
        })
    });
    let served = connect(&settings(&server)).unwrap();
    assert_eq!(one(&served, job()).unwrap_err(), ServedError::Counts { tokens: 4, logprobs: 0 });
}

#[test]
fn a_stream_that_ends_early_is_asked_for_again_with_the_same_seed() {
    let cut_times = |times: usize| {
        Server::start(move |request, before| {
            about(Like::LlamaCpp, request).unwrap_or_else(|| match llamacpp(request, "<python>x</python>") {
                Reply::Events(mut events) if before < times => {
                    events.truncate(3);
                    Reply::Events(events)
                }
                whole => whole,
            })
        })
    };
    let server = cut_times(1);
    let served = connect(&settings(&server)).unwrap();
    assert_eq!(one(&served, job()).unwrap().text, "<python>x</python>");
    let asked = server.requests("/completion");
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0].body, asked[1].body);
    let server = cut_times(9);
    let served = connect(&settings(&server)).unwrap();
    let error = one(&served, job()).unwrap_err();
    assert!(matches!(error, ServedError::Cut { .. }), "{error:?}");
    assert_eq!(server.requests("/completion").len(), 3);
}

#[test]
fn busy_servers_and_broken_answers_are_asked_again_and_refusals_are_not() {
    let busy = |status: u16| Reply::Status(status, json!({ "error": { "message": "busy" } }).to_string());
    for (fault, tries) in [
        (busy(429), 2),
        (busy(500), 2),
        (busy(503), 2),
        (Reply::With(429, "Retry-After: 1", String::new()), 2),
        (Reply::HangUp, 2),
        (Reply::CutShort("{\"choices\": [".into()), 2),
        (busy(400), 1),
        (busy(401), 1),
        (busy(404), 1),
        (Reply::Status(200, "<html>".into()), 1),
        (Reply::Status(302, String::new()), 1),
    ] {
        let first = fault.clone();
        let server = Server::start(move |request, before| {
            let later = || if before == 0 { first.clone() } else { honest(Like::Vllm, request, SAID) };
            about(Like::Vllm, request).unwrap_or_else(later)
        });
        let served = connect(&settings(&server)).unwrap();
        let begin = Instant::now();
        let outcome = one(&served, job());
        assert_eq!(server.requests(Like::Vllm.path()).len(), tries);
        assert_eq!(outcome.is_ok(), tries == 2, "{outcome:?}");
        if let Reply::With(..) = fault {
            assert!(begin.elapsed() >= Duration::from_secs(1), "Retry-After is heeded");
        }
    }
}

#[test]
fn a_slow_server_runs_into_the_limit() {
    let server = Server::start(|request, _| about(Like::Vllm, request).unwrap_or(Reply::Silence));
    let brief = ServedSettings { timeout: Duration::from_millis(150), retries: 1, ..settings(&server) };
    let served = connect(&brief).unwrap();
    let error = one(&served, job()).unwrap_err();
    assert!(matches!(error, ServedError::Timeout { .. }) && error.to_string().contains("0.15 s"), "{error}");
    assert_eq!(server.requests(Like::Vllm.path()).len(), 2);
}

#[test]
fn an_interrupt_ends_the_wait() {
    let server = Server::start(|request, _| about(Like::Vllm, request).unwrap_or(Reply::Silence));
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    let interrupt: rao_policy::served::Interrupt = Arc::new(move || asked.load(Ordering::Relaxed));
    let served = Served::connect(&settings(&server), Chat::bytes().unwrap(), interrupt).unwrap();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        stop.store(true, Ordering::Relaxed);
    });
    let begin = Instant::now();
    assert_eq!(one(&served, job()).unwrap_err(), ServedError::Cancelled);
    assert!(begin.elapsed() < Duration::from_secs(5));
    stopper.join().unwrap();
}

#[test]
fn nobody_at_the_address_is_said_after_the_retries() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = Address::parse(&format!("http://127.0.0.1:{free}")).unwrap();
    let nobody = ServedSettings {
        address,
        model: None,
        kind: Some(Kind::Vllm),
        key: None,
        concurrency: None,
        timeout: Duration::from_secs(5),
        retries: 1,
    };
    let error = connect(&nobody).err().unwrap();
    assert!(matches!(error, ServedError::Unreachable { .. }) && error.to_string().contains("is it running"), "{error}");
}

#[test]
fn models_are_named_or_found() {
    let two = |request: &Request| {
        let data = json!([{ "id": "org/first", "owned_by": "vllm" }, { "id": "second", "owned_by": "vllm" }]);
        match request.path.as_str() {
            "/v1/models" => Some(Reply::json(&json!({ "data": data }))),
            _ => about(Like::Vllm, request),
        }
    };
    let server = Server::start(move |request, _| two(request).unwrap_or_else(|| honest(Like::Vllm, request, SAID)));
    let named = |model: Option<&str>| connect(&ServedSettings { model: model.map(str::to_owned), ..settings(&server) });
    let error = named(None).err().unwrap();
    assert!(error.to_string().contains("--server-model") && error.to_string().contains("org/first, second"), "{error}");
    let error = named(Some("third")).err().unwrap();
    assert!(error.is_usage() && error.to_string().contains("has no model `third`"), "{error}");
    assert_eq!(named(Some("first")).unwrap().name(), "first");
    one(&named(Some("org/first")).unwrap(), job()).unwrap();
    assert_eq!(server.requests(Like::Vllm.path())[0].body["model"], "org/first");
}

#[test]
fn another_tokenizer_is_found_before_anything_is_recorded() {
    let server = Server::start(|request, _| match request.path.as_str() {
        "/tokenize" => Reply::json(&json!({ "tokens": [1, 2, 3] })),
        _ => about(Like::LlamaCpp, request).unwrap_or_else(|| honest(Like::LlamaCpp, request, SAID)),
    });
    let error = connect(&settings(&server)).err().unwrap();
    assert!(matches!(error, ServedError::Tokenizer { theirs: 3, at: 1, .. }), "{error:?}");
    assert!(error.is_usage() && error.to_string().contains("--tokenizer"), "{error}");
    let silent = Server::start(|request, _| match request.path.as_str() {
        "/tokenize" => Reply::Status(404, String::new()),
        _ => about(Like::Sglang, request).unwrap_or_else(|| honest(Like::Sglang, request, SAID)),
    });
    let served = Served::connect(&settings(&silent), Chat::bytes().unwrap(), never()).unwrap();
    assert!(!served.is_tokenizer_checked());
}
