//! Served policies against servers that behave, and against servers that do not.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may stop at the first thing that is not there"
)]

mod fake;
mod faults;

use std::sync::Arc;
use std::time::Duration;

use rao_policy::served::{Address, End, Given, Interrupt, Job, Key, Kind, Score, Served, ServedError, ServedSettings};
use rao_policy::{Chat, SampleKey};
use rao_testkit_server as server;
use serde_json::json;

use fake::{Like, SAID, about, honest, honest_server, ids, score};
use server::{Reply, Server};

pub(crate) fn settings(server: &Server) -> ServedSettings {
    ServedSettings {
        address: Address::parse(&server.url()).unwrap(),
        model: None,
        kind: None,
        key: None,
        concurrency: None,
        timeout: Duration::from_secs(20),
        retries: 2,
    }
}

pub(crate) fn never() -> Interrupt {
    Arc::new(|| false)
}

pub(crate) fn connect(settings: &ServedSettings) -> Result<Served, ServedError> {
    Served::connect(settings, Chat::bytes().unwrap(), never())
}

pub(crate) fn job() -> Job {
    Job {
        context: Chat::bytes().unwrap().open("be exact", "do it").unwrap(),
        temperature: 1.0,
        top_p: 1.0,
        max_tokens: 200,
        window: 4096,
        key: SampleKey([7; 32]),
    }
}

pub(crate) fn one(served: &Served, job: Job) -> Result<Given, ServedError> {
    served.complete(vec![job]).map(|mut all| all.remove(0))
}

#[test]
fn every_kind_gives_the_very_tokens_and_numbers() {
    for (like, kind) in [(Like::Vllm, Kind::Vllm), (Like::Sglang, Kind::Sglang), (Like::LlamaCpp, Kind::LlamaCpp)] {
        let server = honest_server(like, SAID);
        let served = connect(&settings(&server)).unwrap();
        assert_eq!((served.kind(), served.name(), served.window()), (kind, "tiny.gguf", Some(65536)), "{like:?}");
        assert!(served.is_tokenizer_checked());
        let given = one(&served, job()).unwrap();
        assert_eq!((given.text.as_str(), given.end, given.score), (SAID, End::CellEnd, Score::Own), "{like:?}");
        assert_eq!(given.tokens, ids(SAID));
        let wanted: Vec<f32> = (0..ids(SAID).len()).map(|at| score(at) as f32).collect();
        assert_eq!(given.logprobs, wanted, "{like:?}");
        let sent = server.requests(like.path());
        assert!(sent[0].body.to_string().contains(&serde_json::to_string(&job().context).unwrap()), "{like:?}");
    }
}

#[test]
fn what_a_model_says_after_its_cell_is_not_part_of_the_completion() {
    for like in [Like::Vllm, Like::Sglang, Like::LlamaCpp] {
        let server = honest_server(like, "<python>x</python>\nand so on");
        let served = connect(&settings(&server)).unwrap();
        let given = one(&served, job()).unwrap();
        assert_eq!((given.text.as_str(), given.end), ("<python>x</python>", End::CellEnd), "{like:?}");
        assert_eq!(given.tokens.len(), given.logprobs.len());
    }
}

#[test]
fn limits_are_told_apart() {
    let server = honest_server(Like::LlamaCpp, "abcdefgh");
    let served = connect(&settings(&server)).unwrap();
    let context = job().context.len() as u32;
    let ends = |max_tokens, window| {
        let given = one(&served, Job { max_tokens, window, ..job() }).unwrap();
        (given.text, given.end)
    };
    assert_eq!(ends(4, 4096), ("abcd".into(), End::MaxTokens));
    assert_eq!(ends(200, context + 3), ("abc".into(), End::Window));
    assert_eq!(ends(200, context), (String::new(), End::Window));
    // Its own end, at no token that the chat format knows.
    assert_eq!(ends(200, 4096), ("abcdefgh".into(), End::Server));
}

#[test]
fn text_mode_has_no_numbers_and_says_so() {
    let server = honest_server(Like::Chat, SAID);
    let error = connect(&settings(&server)).err().unwrap();
    assert!(matches!(error, ServedError::Kind { .. }) && error.to_string().contains("or text"), "{error}");
    let served = connect(&ServedSettings { kind: Some(Kind::Text), ..settings(&server) }).unwrap();
    let given = one(&served, job()).unwrap();
    assert_eq!((given.text.as_str(), given.end, given.score), (SAID, End::CellEnd, Score::Absent));
    assert!(given.logprobs.is_empty());
    let sent = &server.requests(Like::Chat.path())[0].body;
    assert_eq!(
        sent["messages"],
        json!([{ "role": "system", "content": "be exact" }, { "role": "user", "content": "do it" }])
    );
}

#[test]
fn a_batch_runs_side_by_side_and_comes_back_in_order() {
    let server = Server::start(|request, _| {
        about(Like::Vllm, request).unwrap_or_else(|| {
            let length = request.body["prompt"].as_array().unwrap().len();
            // The first takes longest.
            let wait = Duration::from_millis(if length.is_multiple_of(2) { 150 } else { 10 });
            Reply::Late(wait, Box::new(honest(Like::Vllm, request, &format!("<python>{length}</python>"))))
        })
    });
    let served = connect(&ServedSettings { concurrency: Some(8), ..settings(&server) }).unwrap();
    let jobs: Vec<Job> = (0..8)
        .map(|more| {
            let mut job = job();
            job.context.extend(std::iter::repeat_n(9, more));
            job
        })
        .collect();
    let lengths: Vec<usize> = jobs.iter().map(|job| job.context.len()).collect();
    let begin = std::time::Instant::now();
    let given = served.complete(jobs).unwrap();
    assert!(begin.elapsed() < Duration::from_millis(500), "{:?}", begin.elapsed());
    let texts: Vec<String> = given.into_iter().map(|given| given.text).collect();
    assert_eq!(texts, lengths.iter().map(|length| format!("<python>{length}</python>")).collect::<Vec<_>>());
}

#[test]
fn at_other_temperatures_only_llamacpp_says_what_its_numbers_are_of() {
    for (like, score) in [(Like::Vllm, Score::Unknown), (Like::Sglang, Score::Unknown), (Like::LlamaCpp, Score::Own)] {
        let server = honest_server(like, SAID);
        let served = connect(&settings(&server)).unwrap();
        let given = one(&served, Job { temperature: 0.5, ..job() }).unwrap();
        assert_eq!(given.score, score, "{like:?}");
        let given = one(&served, Job { top_p: 0.5, ..job() }).unwrap();
        assert_eq!(given.score, score, "{like:?}");
    }
}

#[test]
fn the_key_goes_into_one_header_and_into_no_text() {
    let key = "sk-very-secret";
    let server = Server::start(move |request, _| {
        let greeted =
            request.headers.iter().any(|line| line.eq_ignore_ascii_case(&format!("authorization: bearer {key}")));
        match about(Like::Vllm, request) {
            Some(reply) if greeted => reply,
            Some(_) => Reply::Status(401, json!({ "error": { "message": "no key" } }).to_string()),
            None => Reply::Status(
                400,
                json!({ "error": { "message": format!("key {key} is not good enough") } }).to_string(),
            ),
        }
    });
    let error = connect(&settings(&server)).err().unwrap().to_string();
    assert!(error.contains("401") && error.contains("RAO_LOG_API_KEY"), "{error}");
    let with_key = ServedSettings { key: Key::new(key), ..settings(&server) };
    assert!(!format!("{with_key:?}").contains("secret"));
    let served = connect(&with_key).unwrap();
    let error = one(&served, job()).unwrap_err();
    assert!(error.to_string().contains("key [key] is not good enough"), "{error}");
    assert!(!format!("{error:?}").contains("secret"));
}
