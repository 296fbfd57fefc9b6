//! The judge behind a chat endpoint, against servers that answer well, badly, late and never.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may stop at the first thing that is not there"
)]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rao_envs::judge::{Act, Judge, Llm, LlmError, LlmSettings, Panel, Question, Role, Ruling, Seat, Secret};
use rao_envs::{Assessment, Judgement, Value};
use serde_json::json;

use rao_testkit_server::{Reply, Request, Server};

fn says(text: &str) -> Reply {
    Reply::json(
        &json!({ "choices": [{ "message": { "role": "assistant", "content": text }, "finish_reason": "stop" }] }),
    )
}

fn question(rubric: &'static str) -> Question {
    Question {
        role: Role::Child,
        rubric,
        goal: "Count the dragons.".into(),
        context: None,
        truth: None,
        aliases: Vec::new(),
        answer: Some(Value::Str("three".into())),
        history: vec![Act { action: "<python>print(context)</python>".into(), output: "a dragon, two dragons".into() }],
        error: None,
        notes: None,
    }
}

/// What a judge says of one question, and what it warns of.
struct Asked {
    judgement: Judgement,
    warnings: Vec<String>,
    requests: Vec<Request>,
}

fn ask(rubric: &'static str, more: &str, answer: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Asked {
    let server = Server::start(move |_, before| answer(before));
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&warnings);
    let settings = LlmSettings::parse(
        &format!("{}/v1,model=grader,{more}", server.url()),
        Secret::new("sk-secret"),
        Arc::new(move |text: &str| heard.lock().unwrap().push(text.to_owned())),
    );
    let judgement = Llm::new(settings.unwrap()).unwrap().judge(&question(rubric)).unwrap();
    let warnings = warnings.lock().unwrap().clone();
    Asked { judgement, warnings, requests: server.requests("/v1/chat/completions") }
}

#[test]
fn the_rubric_comes_first_and_the_order_to_grade_comes_last() {
    let asked =
        ask("oolong/child", "temperature=0.5,max-tokens=300", |_| says(r#"{"reason": "it read", "success": true}"#));
    assert_eq!((asked.judgement.score, asked.judgement.source.as_str()), (1.0, "llm/oolong/child"));
    assert_eq!(asked.judgement.evidence["reason"], "it read");
    assert_eq!(asked.judgement.evidence["attempts"], 1);
    assert!(asked.warnings.is_empty());
    let body = &asked.requests[0].body;
    assert_eq!(
        (&body["model"], &body["temperature"], &body["max_tokens"]),
        (&json!("grader"), &json!(0.5), &json!(300))
    );
    let user = body["messages"][1]["content"].as_str().unwrap();
    let place = |text: &str| user.find(text).unwrap_or_else(|| panic!("no {text:?} in {user}"));
    assert!(place("You grade one agent") < place("Count the dragons."));
    assert!(place("Count the dragons.") < place("a dragon, two dragons"));
    assert!(place("a dragon, two dragons") < place("What the agent answered\nthree"));
    assert!(place("What the agent answered") < place("Do not solve the task"));
    assert!(place("Do not solve the task") < place("\"success\": true or false"));
}

#[test]
fn graded_rubrics_ask_for_a_score() {
    let asked = ask("deepdive/child", "", |_| says("```json\n{\"checklist\": [\"a\"], \"overall_score\": 0.75}\n```"));
    assert_eq!(asked.judgement.score, 0.75);
    assert!(asked.requests[0].body["messages"][1]["content"].as_str().unwrap().contains("overall_score"));
    for rubric in ["deepdive/root", "mail/root", "mail/child"] {
        let asked = ask(rubric, "", |_| says(r#"{"success": "false"}"#));
        assert_eq!(asked.judgement.score, 0.0);
        assert!(asked.judgement.evidence.get("failure").is_none());
        assert!(!rao_envs::judge::rubrics::text(rubric).unwrap().is_empty());
    }
}

#[test]
fn prose_half_json_and_no_booleans_score_0_loudly() {
    for reply in ["It did well.", r#"{"reason": "so", "succ"#, r#"{"success": 1}"#, r#"{"success": null}"#] {
        let asked = ask("oolong/child", "retries=1", move |_| says(reply));
        assert_eq!(asked.judgement.score, 0.0, "{reply}");
        assert_eq!((asked.requests.len(), &asked.judgement.evidence["attempts"]), (2, &json!(2)));
        assert_eq!(asked.judgement.evidence["reply"], reply);
        assert!(asked.judgement.evidence["failure"].as_str().unwrap().contains("cannot be read"));
        assert_eq!(asked.warnings.len(), 1);
        assert!(asked.warnings[0].contains("grader") && asked.warnings[0].contains("scores 0"), "{:?}", asked.warnings);
    }
    let asked = ask("oolong/child", "", |before| says(if before == 0 { "Hm." } else { r#"{"success": true}"# }));
    assert_eq!((asked.judgement.score, asked.requests.len(), asked.warnings.len()), (1.0, 2, 0));
}

#[test]
fn a_busy_server_is_asked_again_and_one_that_refuses_is_not() {
    let busy = |before| if before < 2 { Reply::Status(429, "slow down".into()) } else { says(r#"{"success": true}"#) };
    let asked = ask("oolong/child", "", busy);
    assert_eq!((asked.judgement.score, asked.requests.len(), asked.warnings.len()), (1.0, 3, 0));
    let asked = ask("oolong/child", "retries=5", |_| Reply::Status(400, "no such model; key sk-secret".into()));
    assert_eq!((asked.judgement.score, asked.requests.len(), asked.warnings.len()), (0.0, 1, 1));
    assert!(asked.warnings[0].contains("status 400") && asked.warnings[0].contains("[key]"), "{:?}", asked.warnings);
    assert!(!asked.judgement.evidence.to_string().contains("sk-secret"));
    assert!(asked.requests[0].headers.iter().any(|line| line.eq_ignore_ascii_case("authorization: bearer sk-secret")));
    let asked = ask("oolong/child", "retries=1", |_| Reply::CutShort("{".into()));
    assert_eq!((asked.judgement.score, asked.requests.len(), asked.warnings.len()), (0.0, 2, 1));
}

#[test]
fn one_that_never_answers_runs_into_the_limit() {
    let begin = Instant::now();
    let asked = ask("oolong/child", "timeout=1,retries=0", |_| Reply::Silence);
    assert_eq!((asked.judgement.score, asked.warnings.len()), (0.0, 1));
    assert!(asked.warnings[0].contains("within 1 s"), "{:?}", asked.warnings);
    assert!(begin.elapsed() < Duration::from_secs(10));
}

#[test]
fn questions_are_asked_side_by_side_up_to_the_limit() {
    let server = Server::start(|_, _| Reply::Late(Duration::from_millis(100), Box::new(says(r#"{"success": true}"#))));
    let elapsed = |concurrency: usize| {
        let text = format!("{},model=m,concurrency={concurrency}", server.url());
        let judge = Llm::new(LlmSettings::parse(&text, None, Arc::new(|_| {})).unwrap()).unwrap();
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| judge.judge(&question("oolong/child")).unwrap());
            }
        });
        begin.elapsed()
    };
    assert!(elapsed(1) >= Duration::from_millis(400));
    assert!(elapsed(4) < Duration::from_millis(390));
}

#[test]
fn who_judges_is_told_by_what_the_verdict_depends_on() {
    let identity = |text: &str| {
        let settings = LlmSettings::parse(text, None, Arc::new(|_| {})).unwrap();
        Llm::new(settings).unwrap().identity()
    };
    let one = identity("http://h:1,model=m");
    assert_eq!(one, identity("https://elsewhere/v1,model=m,timeout=5,retries=0,concurrency=2"));
    assert_ne!(one, identity("http://h:1,model=n"));
    assert_ne!(one, identity("http://h:1,model=m,temperature=0"));
    assert_ne!(one, identity("http://h:1,model=m,max-tokens=9"));
    assert_eq!(one.kind, "llm");
    let error = |text: &str| {
        let made = LlmSettings::parse(text, Secret::new("k"), Arc::new(|_| {})).and_then(Llm::new);
        made.err().unwrap()
    };
    assert!(matches!(error("http://h:1"), LlmError::Setting { .. }));
    for text in ["h:1,model=m", "http://u:secret@h,model=m", "http://h/?key=secret,model=m"] {
        let error = error(text);
        assert!(matches!(error, LlmError::Address { .. }) && !error.to_string().contains("secret"), "{error}");
    }
    assert!(!error("http://h:1,model=m,key=sk-secret").to_string().contains("secret"));
    for part in ["model", "temperature=3", "timeout=0"] {
        assert!(error(&format!("http://h:1,model=m,{part}")).to_string().contains(part), "{part}");
    }
}

#[test]
fn the_same_question_asked_twice_at_once_is_one_request_and_each_keeps_its_notes() {
    let server = Server::start(|_, _| Reply::Late(Duration::from_millis(200), Box::new(says(r#"{"success": true}"#))));
    let settings = LlmSettings::parse(&format!("{},model=m", server.url()), None, Arc::new(|_| {})).unwrap();
    let judge: Arc<dyn Judge> = Arc::new(Llm::new(settings).unwrap());
    let panel = Panel::new(Arc::clone(&judge), Seat::Judge(judge));
    let (send, receive) = std::sync::mpsc::channel();
    let ask = |notes: serde_json::Value| {
        let question = Question { notes: Some(notes), ..question("oolong/child") };
        let Ruling::Asked(inquiry) = panel.rule(Assessment::Ask(Box::new(question))).unwrap() else { panic!() };
        let send = send.clone();
        inquiry.start(move |outcome| send.send(outcome.unwrap()).unwrap())
    };
    let wait = || receive.recv_timeout(Duration::from_secs(10)).unwrap();
    let requests = || server.requests("/v1/chat/completions").len();
    let sittings = [ask(json!({ "node": 1 })), ask(json!({ "node": 2 }))];
    // One of three loses interest: the others are answered all the same.
    drop(ask(json!({ "node": 3 })));
    let mut noted: Vec<_> = [wait(), wait()].map(|judgement| judgement.evidence["environment"]["node"].clone()).into();
    noted.sort_by_key(|node| node.as_u64());
    assert_eq!((noted, requests()), (vec![json!(1), json!(2)], 1));
    drop(sittings);
    // Known by now, and told at once.
    drop(ask(json!({ "node": 4 })));
    let judgement = receive.try_recv().unwrap();
    assert_eq!((&judgement.evidence["environment"], requests()), (&json!({ "node": 4 }), 1));
    // What the environment saw is no part of what is asked.
    assert_eq!(judgement.evidence["identity"], identity_of(&panel));
}

fn identity_of(panel: &Panel) -> String {
    panel.identities().1.verdict_digest(&question("oolong/child"))
}

#[test]
fn a_question_that_nobody_waits_for_any_more_is_given_up() {
    let server = Server::start(|_, before| match before {
        0 => Reply::Silence,
        _ => says(r#"{"success": true}"#),
    });
    let settings = LlmSettings::parse(&format!("{},model=m,concurrency=1", server.url()), None, Arc::new(|_| {}));
    let judge: Arc<dyn Judge> = Arc::new(Llm::new(settings.unwrap()).unwrap());
    let panel = Panel::new(Arc::clone(&judge), Seat::Judge(judge));
    let ask = |goal: &str, send: std::sync::mpsc::Sender<Judgement>| {
        let question = Question { goal: goal.into(), ..question("oolong/child") };
        let Ruling::Asked(inquiry) = panel.rule(Assessment::Ask(Box::new(question))).unwrap() else { panic!() };
        inquiry.start(move |outcome| send.send(outcome.unwrap()).unwrap())
    };
    let (send, receive) = std::sync::mpsc::channel();
    let first = ask("Count the dragons.", send.clone());
    while server.requests("/v1/chat/completions").is_empty() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let _second = ask("Count the knights.", send);
    assert!(receive.recv_timeout(Duration::from_millis(200)).is_err(), "one question at a time");
    drop(first);
    assert_eq!(receive.recv_timeout(Duration::from_secs(10)).unwrap().score, 1.0);
}
