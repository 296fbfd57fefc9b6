//! Search services that misbehave: scripted servers that answer late, cut off, wrongly, or not at all.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rao_envs::deepdive::search::{
    Cached, FieldMap, HttpSettings, JsonApi, Lane, Rate, Recorded, Recording, SearchBackend, SearchError, Tavily,
    Transport,
};
use rao_envs::deepdive::{DeepDive, DeepDiveConfig, Search};
use rao_envs::{Args, Environment as _, Goal, Secret, Selection, Split, Text, ToolResult, Value};
use rao_testkit_server::{Reply, Server};
use serde_json::{Value as Json, json};

fn results(urls: &[&str]) -> Json {
    let result = |url: &&str| json!({ "url": url, "title": "T", "content": "C", "score": 0.5, "raw_content": null });
    json!({ "query": "q", "answer": "the secret answer", "results": urls.iter().map(result).collect::<Vec<_>>() })
}

fn late(milliseconds: u64) -> Reply {
    Reply::json(&results(&["late"])).late(Duration::from_millis(milliseconds))
}

fn settings() -> HttpSettings {
    HttpSettings {
        timeout: Duration::from_millis(300),
        retries: 2,
        pause: Duration::from_millis(10),
        most_bytes: 10_000,
        rate: Rate { per_minute: None, concurrency: 4 },
    }
}

fn tavily(server: &Server) -> Tavily {
    Tavily::new(Transport::new(settings()).unwrap(), &server.url(), Some("tvly-key".into()))
}

fn urls(found: Result<Vec<rao_envs::deepdive::search::Hit>, SearchError>) -> Vec<String> {
    found.unwrap().into_iter().map(|hit| hit.url).collect()
}

#[test]
fn the_service_is_asked_in_its_own_language() {
    let page = json!({ "results": [{ "url": "u", "raw_content": "the page" }], "failed_results": [] });
    let none = json!({ "results": [], "failed_results": [{ "url": "v", "error": "no" }] });
    let server =
        Server::scripted(vec![Reply::json(&results(&["a", "b", "c"])), Reply::json(&page), Reply::json(&none)]);
    let (tavily, lane) = (tavily(&server), Lane::default());
    assert_eq!(urls(tavily.search(&lane, "two words", 2)), ["a", "b"]);
    assert_eq!(tavily.open(&lane, "u").unwrap(), "the page");
    assert_eq!(tavily.open(&lane, "v").unwrap_err(), SearchError::NoPage { url: "v".into() });
    let seen = server.all();
    let asked: Vec<(&str, &str)> = seen.iter().map(|seen| (seen.method.as_str(), seen.path.as_str())).collect();
    assert_eq!(asked, [("POST", "/search"), ("POST", "/extract"), ("POST", "/extract")]);
    assert_eq!(seen[0].header("Authorization"), Some("Bearer tvly-key"));
    let body = &seen[0].body;
    assert_eq!(
        (&body["query"], &body["max_results"], &body["include_answer"]),
        (&json!("two words"), &json!(2), &json!(false))
    );
    assert!(!tavily.identity().to_string().contains("key"));
}

#[test]
fn what_may_pass_is_tried_again_and_what_stays_is_told() {
    let fine = || Reply::json(&results(&["a"]));
    let fault = |status| Reply::Status(status, "no".into());
    let lane = Lane::default();
    for passing in [fault(500), fault(429), fault(503), fault(408), Reply::CutShort("{}".into()), late(600)] {
        let server = Server::scripted(vec![passing.clone(), passing, fine()]);
        assert_eq!(urls(tavily(&server).search(&lane, "q", 5)), ["a"]);
        assert_eq!(server.all().len(), 3);
    }
    let lasting = [
        (fault(500), SearchError::Unavailable { attempts: 3, reason: "HTTP 500".into() }, 3),
        (fault(429), SearchError::Unavailable { attempts: 3, reason: "HTTP 429".into() }, 3),
        (late(900), SearchError::Unavailable { attempts: 3, reason: "time-out".into() }, 3),
        (
            Reply::CutShort("{\"results\": []".into()),
            SearchError::Unavailable { attempts: 3, reason: "the answer was cut off".into() },
            3,
        ),
        (fault(401), SearchError::Refused { status: 401 }, 1),
        (fault(403), SearchError::Refused { status: 403 }, 1),
        (fault(400), SearchError::BadRequest { status: 400 }, 1),
        (Reply::Status(200, "<html>".into()), SearchError::Garbage { reason: "not JSON".into() }, 1),
        (Reply::Status(200, "{}".into()), SearchError::Garbage { reason: "no list `results`".into() }, 1),
        (
            Reply::json(&json!({ "results": [{ "title": "T" }] })),
            SearchError::Garbage { reason: "a result without `url`".into() },
            1,
        ),
        (Reply::Status(200, "x".repeat(20_000)), SearchError::Garbage { reason: "more than 10000 bytes".into() }, 1),
    ];
    for (reply, error, asked) in lasting {
        let server = Server::scripted(vec![reply]);
        assert_eq!(tavily(&server).search(&lane, "q", 5).unwrap_err(), error);
        assert_eq!(server.all().len(), asked, "{error}");
    }
}

#[test]
fn a_service_says_when_to_come_back() {
    let busy = Reply::With(429, "Retry-After: 1", "busy".into());
    let server = Server::scripted(vec![busy, Reply::json(&results(&["a"]))]);
    let begin = Instant::now();
    assert_eq!(urls(tavily(&server).search(&Lane::default(), "q", 5)), ["a"]);
    assert!(begin.elapsed() >= Duration::from_millis(950), "{:?}", begin.elapsed());
}

#[test]
fn nothing_listens_and_nothing_waits_for_ever() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let tavily = Tavily::new(Transport::new(settings()).unwrap(), &url, None);
    let error = tavily.search(&Lane::default(), "q", 5).unwrap_err();
    assert_eq!(error, SearchError::Unavailable { attempts: 3, reason: "no connection".into() });
}

#[test]
fn a_greedy_child_does_not_starve_its_siblings() {
    let server = Server::scripted(vec![Reply::json(&results(&["a"]))]);
    let rate = Rate { per_minute: Some(1_200), concurrency: 1 };
    let transport = Transport::new(HttpSettings { rate, ..settings() }).unwrap();
    let tavily = Arc::new(Tavily::new(transport, &server.url(), None));
    let order = Arc::new(Mutex::new(Vec::new()));
    let ask = |node: u32, wait: u64| {
        let (tavily, order) = (Arc::clone(&tavily), Arc::clone(&order));
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(wait));
            let lane = Lane { rollout: 1, node: vec![0, node] };
            tavily.search(&lane, "q", 5).unwrap();
            order.lock().unwrap().push(node);
        })
    };
    let begin = Instant::now();
    // Eleven requests of one child stand in line when its siblings ask for one each.
    let mut threads: Vec<_> = (0..11).map(|_| ask(0, 0)).collect();
    threads.push(ask(1, 60));
    threads.push(ask(2, 60));
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let order = order.lock().unwrap().clone();
    assert_eq!(order.len(), 13);
    let place = |node: u32| order.iter().position(|&other| other == node).unwrap();
    assert!(place(1) < 6 && place(2) < 6, "{order:?}");
    // 1,200 a minute are 50 ms each, of which the first costs nothing.
    assert!(begin.elapsed() >= Duration::from_millis(500), "{:?}", begin.elapsed());
}

#[test]
fn any_json_service_is_read_by_its_field_map() {
    let answer =
        json!({ "web": { "items": [{ "link": "a", "name": "A", "text": "C", "rank": 2.5 }, { "link": "b" }] } });
    let server = Server::scripted(vec![
        Reply::json(&answer),
        Reply::json(&json!({ "doc": { "body": "the page" } })),
        Reply::Status(404, String::new()),
    ]);
    let mut fields = FieldMap::default();
    for (name, pointer) in [
        ("results", "/web/items"),
        ("url", "/link"),
        ("title", "/name"),
        ("content", "/text"),
        ("score", "/rank"),
        ("text", "/doc/body"),
    ] {
        fields.set(name, pointer).unwrap();
    }
    assert!(fields.set("results", "items").unwrap_err().contains("JSON pointer"));
    assert!(fields.set("rank", "/x").unwrap_err().contains("choose results"));
    let search = format!("{}/find?q={{query}}&n={{count}}", server.url());
    let page = Some(format!("{}/page/{{url}}", server.url()));
    let transport = || Transport::new(settings()).unwrap();
    let api = JsonApi::new(transport(), &search, page, fields.clone(), Some("k".into())).unwrap();
    let lane = Lane::default();
    let hits = api.search(&lane, "a b&c", 7).unwrap();
    assert_eq!((hits[0].title.as_str(), hits[0].score, hits[1].url.as_str()), ("A", 2.5, "b"));
    assert_eq!(api.open(&lane, "http://x/y?z").unwrap(), "the page");
    assert!(matches!(api.open(&lane, "gone"), Err(SearchError::NoPage { .. })));
    let seen = server.all();
    assert_eq!((seen[0].method.as_str(), seen[0].path.as_str()), ("GET", "/find?q=a%20b%26c&n=7"));
    assert_eq!(seen[1].path, "/page/http%3A%2F%2Fx%2Fy%3Fz");
    let refused = JsonApi::new(transport(), "http://x/find", None, fields, None).unwrap_err().to_string();
    assert!(refused.contains("{query}"), "{refused}");
}

#[test]
fn recordings_give_back_what_was_answered_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("answers.jsonl");
    let page = json!({ "results": [{ "url": "a", "raw_content": "the page" }] });
    let none = json!({ "results": [] });
    let server = Server::scripted(vec![Reply::json(&results(&["a"])), Reply::json(&page), Reply::json(&none)]);
    let lane = Lane::default();
    let live = Cached::new(Recording::new(tavily(&server), &file).unwrap());
    let found = live.search(&lane, "q", 5).unwrap();
    live.search(&lane, "q", 5).unwrap();
    live.open(&lane, "a").unwrap();
    live.open(&lane, "gone").unwrap_err();
    assert_eq!(server.all().len(), 3, "the cache asks once");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.lines().count() == 3 && !text.contains("tvly-key"), "{text}");
    let recorded = Recorded::load(&file).unwrap();
    assert_eq!(recorded.search(&lane, "q", 5).unwrap(), found);
    assert_eq!(recorded.open(&lane, "a").unwrap(), "the page");
    assert_eq!(recorded.open(&lane, "gone").unwrap_err(), SearchError::NoPage { url: "gone".into() });
    assert!(recorded.search(&lane, "q", 6).unwrap_err().to_string().contains("holds no answer"));
    // What failed for good fails again; what failed and was answered later is answered.
    let fault = Reply::Status(500, "no".into());
    let faults = vec![fault.clone(), fault.clone(), fault.clone()];
    let late = [&faults[..], &[Reply::json(&results(&["late"]))]].concat();
    let closed = Server::scripted(vec![Reply::Status(401, String::new())]);
    for (name, replies, asked) in [("down", faults, 1), ("late", late, 2)] {
        let server = Server::scripted(replies);
        let live = Cached::new(Recording::new(tavily(&server), &file).unwrap());
        let answers: Vec<_> = (0..asked).map(|_| live.search(&lane, name, 5)).collect();
        assert_eq!(answers[0], Err(SearchError::Unavailable { attempts: 3, reason: "HTTP 500".into() }));
        assert_eq!(Recorded::load(&file).unwrap().search(&lane, name, 5), answers[asked - 1]);
        let refused = Recording::new(tavily(&closed), &file).unwrap();
        assert_eq!(refused.open(&lane, name).unwrap_err(), SearchError::Refused { status: 401 });
        assert_eq!(Recorded::load(&file).unwrap().open(&lane, name).unwrap_err(), SearchError::Refused { status: 401 });
    }
    std::fs::write(&file, "{\"request\": \"search\", \"query\": \"q\", \"count\": 5}\n").unwrap();
    assert!(Recorded::load(&file).unwrap_err().to_string().contains("line 1: give either results or an error"));
    std::fs::write(&file, "{\"request\": \"search\"}\n").unwrap();
    assert!(Recorded::load(&file).unwrap_err().to_string().contains("line 1"));
}

/// The environment on one question of the data set's shape, with a server for the web.
fn environment(dir: &Path, server: &Server) -> DeepDive {
    let rows = dir.join("qa_rl.jsonl");
    let question = "Which town was the teacher of the engraver born in?";
    std::fs::write(&rows, format!("{}\n", json!({ "id": 7, "question": question, "answer": "Orsel" }))).unwrap();
    let config = DeepDiveConfig {
        data: Some(rows),
        search: Search::Tavily { url: server.url() },
        key: Some(Secret::new("tvly-key".into())),
        http: settings(),
        block: vec!["leaks.example".into()],
        ..DeepDiveConfig::default()
    };
    DeepDive::new(config).unwrap()
}

#[test]
fn tools_have_upstreams_shapes_and_never_leak_the_question_or_the_answer() {
    let leak = "Q7: which town was the TEACHER of the engraver born in -- Orsel!";
    let hits = json!({ "answer": "Orsel", "results": [
        { "url": "a", "title": "A", "content": "fine", "score": 0.5 },
        { "url": "b", "title": "B", "content": leak, "score": 0.4 },
        { "url": "https://leaks.example/1", "title": "L", "content": "fine", "score": 0.3 },
    ] });
    let page = |text: &str| Reply::json(&json!({ "results": [{ "url": "a", "raw_content": text }] }));
    let fault = Reply::Status(500, "no".into());
    let server = Server::scripted(vec![
        Reply::json(&hits),
        page("Orsel is a town."),
        page(leak),
        Reply::json(&json!({ "results": [] })),
        fault.clone(),
        fault.clone(),
        fault,
    ]);
    let dir = tempfile::tempdir().unwrap();
    let env = environment(dir.path(), &server);
    assert!(!format!("{} {:?}", env.config(), Secret::new("tvly-key".into())).contains("tvly-key"));
    let selection = Selection { presets: vec!["deepdive".into()], split: Split::Train, count: Some(1), seed: 0 };
    let task = env.tasks(&selection).unwrap().remove(0);
    let mut episode = env.open(&task).unwrap();
    let root = episode.root_goal();
    episode.enter(&[0], &root);
    let mut call = |tool: &str, args: Args| episode.call(&[0], tool, &args);
    let text = |text: &str| Args::positional([Value::str(text)]);

    let ToolResult::Value(Value::Dict(answer)) = call("search_web", text("engraver")) else { panic!() };
    let keys: Vec<&str> = answer.iter().filter_map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["query", "follow_up_questions", "answer", "images", "results", "response_time", "request_id"]);
    let shown = Value::Dict(answer).repr();
    assert!(shown.contains("'answer': None") && shown.contains("'url': 'a'"), "{shown}");
    assert!(!shown.contains("Orsel") && !shown.contains("leaks.example") && !shown.contains("'url': 'b'"), "{shown}");

    let raised = |kind: &str, message: &str| ToolResult::Raised { kind: kind.into(), message: message.into() };
    let unreadable = raised("ValueError", "Content extraction failed for the given URL.");
    assert_eq!(call("view_webpage_content", text("a")), ToolResult::Value(Value::str("Orsel is a town.")));
    assert_eq!(call("view_webpage_content", text("b")), unreadable, "a page with the question on it");
    assert_eq!(call("view_webpage_content", text("gone")), unreadable);
    let outage = "the search service gave no answer after 3 attempts (HTTP 500)";
    assert_eq!(call("view_webpage_content", text("later")), raised("RuntimeError", outage));
    let wrong = [
        (Args::default(), "TypeError", "search_web() missing 1 required positional argument: 'query'"),
        (Args::positional([Value::Int(1)]), "TypeError", "query must be a string, got int"),
        (text(" "), "ValueError", "query must not be empty"),
        (text("q").with("max_results", Value::Int(21)), "ValueError", "max_results must be between 1 and 20."),
        (text("q").with("max_results", Value::str("5")), "TypeError", "max_results must be an integer, got str"),
    ];
    for (args, kind, message) in wrong {
        assert_eq!(call("search_web", args), raised(kind, message));
    }
    assert_eq!(server.all().len(), 7, "wrong arguments never reach the service");
}

#[test]
fn delegations_are_data_and_refusals_make_no_node() {
    let server = Server::scripted(vec![Reply::json(&results(&[]))]);
    let dir = tempfile::tempdir().unwrap();
    let env = environment(dir.path(), &server);
    let selection = Selection { presets: vec!["deepdive".into()], split: Split::Train, count: Some(1), seed: 0 };
    let mut episode = env.open(&env.tasks(&selection).unwrap()[0]).unwrap();
    let mut delegate = |args: Args| episode.delegate(&[0], &args);
    let goal =
        delegate(Args::positional([Value::str(" Who taught her? ")]).with("expect", Value::str("a name"))).unwrap();
    let text = "Who taught her?\n\nAnswer with: a name".to_owned();
    assert_eq!(goal, Goal { text, targets: json!("open"), context: Text::default() });
    let refused = |args: Args, episode: &mut dyn rao_envs::Episode| episode.delegate(&[0], &args).unwrap_err();
    for (args, text) in [
        (Args::positional([Value::str("  ")]), "Error: goal must not be empty"),
        (Args::positional([Value::Int(3)]), "Error: goal must be a string, got int"),
        (Args::positional([Value::str("x"), Value::Int(1)]), "Error: expect must be a string, got int"),
        (Args::default(), "Error: launch_subagent() missing 1 required positional argument: 'goal'"),
    ] {
        assert_eq!(refused(args, &mut *episode), text);
    }
}
