//! Generated questions, the scripted policies and the verdicts, without Python: moves are carried out as their cells would.

#![expect(clippy::unwrap_used, reason = "helpers of tests are not exempt by configuration")]

use std::collections::BTreeSet;

use rao_envs::mail::{Mail, MailConfig, MailEpisode, Move, NO_ANSWER, Query, ReadScope, RewardKind, Search};
use rao_envs::{
    Act, Args, Assessment, Ending, Environment, Episode, Goal, Judgement, Script, Selection, Split, Task, ToolResult,
    Turn, Value,
};
use serde_json::{Value as Json, json};

fn mail(config: MailConfig) -> Mail {
    Mail::new(config).unwrap()
}

fn select(env: &Mail, preset: &str, split: Split, count: usize, seed: u64) -> Vec<Task> {
    env.tasks(&Selection { presets: vec![preset.to_owned()], split, count: Some(count), seed }).unwrap()
}

fn search_args(search: &Search) -> Args {
    let text = |text: &Option<String>| text.as_ref().map_or(Value::None, Value::str);
    Args::positional([Value::List(search.keywords.iter().map(Value::str).collect())])
        .with("from_addr", text(&search.from_addr))
        .with("to_addr", text(&search.to_addr))
        .with("sent_after", text(&search.sent_after))
        .with("sent_before", text(&search.sent_before))
}

/// What an oracle's tree did.
#[derive(Default)]
struct Tally {
    nodes: usize,
    steps: usize,
    /// The most that one node was shown, in bytes.
    widest: usize,
    children: Vec<Judgement>,
}

struct Driver<'a> {
    world: &'a mut MailEpisode,
    recursive: bool,
    tally: Tally,
}

impl Driver<'_> {
    /// Runs a node to its end and judges it; gives what it gave to `finish`.
    fn node(&mut self, path: &[u32], goal: &Goal) -> (Value, Assessment) {
        self.world.enter(path, goal);
        self.tally.nodes += 1;
        let budget = if self.recursive { 15 } else { 50 };
        let (mut shown, mut observation, mut children) = (goal.text.len(), None::<String>, 0);
        for step in 0..budget {
            self.tally.steps += 1;
            let turn = Turn {
                node: path,
                goal,
                step,
                budget,
                max_depth: 3,
                recursive: self.recursive,
                observation: observation.as_deref(),
                seed: 1,
            };
            let lines: Vec<String> = match self.world.next_move(&turn) {
                Move::Search(searches) => {
                    searches.iter().map(|search| self.call(path, "search_emails", &search_args(search))).collect()
                }
                Move::Read(ids) => {
                    ids.iter().map(|id| self.call(path, "read_email", &Args::positional([Value::str(id)]))).collect()
                }
                Move::Delegate(parts) => {
                    assert!(self.recursive, "a flat oracle never delegates");
                    let mut answers = Vec::new();
                    for part in parts {
                        let args = Args::positional([Value::Str(part.text())]);
                        let goal = self.world.delegate(path, &args).unwrap();
                        let child = [path, &[children]].concat();
                        children += 1;
                        let (value, assessment) = self.node(&child, &goal);
                        self.tally.children.push(assessment.judged().expect("the form of the goal is known"));
                        answers.push(value.to_text());
                    }
                    answers
                }
                Move::Finish(last) => {
                    let value = Value::Str(json!({ "answer": last.answer, "sources": last.sources }).to_string());
                    self.tally.widest = self.tally.widest.max(shown);
                    let assessment = self.world.verify(path, &Ending::with(Some(&value)));
                    return (value, assessment);
                }
            };
            let text = lines.join("\n");
            shown += text.len();
            observation = Some(text);
        }
        panic!("out of steps: {}", goal.text);
    }

    fn call(&mut self, path: &[u32], tool: &str, args: &Args) -> String {
        match self.world.call(path, tool, args) {
            ToolResult::Value(value) => value.to_text(),
            ToolResult::Raised { kind, message } => panic!("{kind}: {message}"),
        }
    }
}

/// The oracle's verdict on a task, and what it took.
fn solve(env: &Mail, task: &Task, recursive: bool) -> (Judgement, Tally) {
    let mut world = env.open_mailbox(task).unwrap();
    let goal = world.root_goal();
    let mut driver = Driver { world: &mut world, recursive, tally: Tally::default() };
    let (_, assessment) = driver.node(&[0], &goal);
    let tally = driver.tally;
    (assessment.judged().expect("generated questions need no judge"), tally)
}

fn query(task: &Task) -> Query {
    serde_json::from_value(task.body["query"].clone()).unwrap()
}

#[test]
fn the_oracle_answers_every_generated_question() {
    let env = mail(MailConfig::default());
    let mut templates = BTreeSet::new();
    let mut unanswerable = 0;
    for (preset, needed) in [("easy", 0..=1), ("medium", 0..=3), ("hard", 0..=24)] {
        let tasks = select(&env, preset, Split::Train, 120, 7);
        for task in &tasks {
            let ids = task.body["message_ids"].as_array().unwrap().len();
            assert!(needed.contains(&ids), "{task:?}");
            unanswerable += usize::from(task.body["answer"] == NO_ANSWER);
            templates.insert(query(task).template());
            for recursive in [true, false] {
                let (judgement, tally) = solve(&env, task, recursive);
                assert_eq!(judgement.score, 1.0, "{} recursive {recursive}: {judgement:?}", task.body["question"]);
                let rubric = &judgement.evidence["rubric"];
                let right = (rubric["sources_correct"].clone(), rubric["read_invalid"].clone());
                assert_eq!(right, (json!(true), json!(0)), "{judgement:?}");
                for child in &tally.children {
                    assert_eq!(child.score, 1.0, "{}: {child:?}", task.body["question"]);
                }
            }
        }
    }
    let all = [
        "amount",
        "cc",
        "count",
        "day",
        "largest",
        "phone",
        "reply-cc",
        "sent",
        "subject",
        "sum",
        "thread-first",
        "thread-last",
        "time",
        "to",
    ];
    assert_eq!(templates.into_iter().collect::<Vec<_>>(), all, "every form is asked");
    assert!((20..120).contains(&unanswerable), "{unanswerable} of 360 have no answer");
}

#[test]
fn delegation_keeps_every_context_small() {
    let env = mail(MailConfig::default());
    let tasks = select(&env, "hard", Split::Val, 30, 3);
    let widest = |recursive| tasks.iter().map(|task| solve(&env, task, recursive).1.widest).max().unwrap();
    let (divided, alone) = (widest(true), widest(false));
    assert!(divided < 12_000 && alone > 20_000, "{divided} bytes against {alone}");
}

#[test]
fn tasks_are_the_same_everywhere_and_splits_never_meet() {
    let env = mail(MailConfig::default());
    let take = |split, seed| select(&env, "easy", split, 60, seed);
    let train = take(Split::Train, 1);
    assert_eq!(train, select(&mail(MailConfig::default()), "easy", Split::Train, 60, 1));
    assert_eq!(train[..10], select(&env, "easy", Split::Train, 10, 1));
    assert_ne!(train, take(Split::Train, 2));
    let inboxes =
        |tasks: &[Task]| -> BTreeSet<String> { tasks.iter().map(|task| task.body["inbox"].to_string()).collect() };
    let (train_inboxes, val_inboxes) = (inboxes(&train), inboxes(&take(Split::Val, 1)));
    assert!(train_inboxes.is_disjoint(&val_inboxes) && val_inboxes.len() <= 8 && train_inboxes.len() > 8);
    let ids: BTreeSet<&str> = train.iter().map(|task| task.id.as_str()).collect();
    assert_eq!(ids.len(), train.len(), "no question comes twice");
    let mixed = Selection { presets: vec!["easy".into(), "hard".into()], split: Split::Train, count: Some(4), seed: 1 };
    let labels: Vec<String> = env.tasks(&mixed).unwrap().into_iter().map(|task| task.difficulty).collect();
    assert_eq!(labels, ["easy", "hard", "easy", "hard"]);
    let wrong = Selection { presets: vec!["tiny".into()], ..mixed.clone() };
    assert!(env.tasks(&wrong).unwrap_err().to_string().contains("choose from easy, medium, hard"));
    assert!(env.tasks(&Selection { count: None, ..mixed }).unwrap_err().to_string().contains("say how many tasks"));
}

#[test]
fn a_mailbox_of_ones_own_is_asked_about_too() {
    // The synthetic mail to one person, as files would bring it; each sender's own inbox is too small to be asked about.
    let env = mail(MailConfig::default());
    let whole = env.mailbox().unwrap();
    let place = tempfile::tempdir().unwrap();
    let who: Vec<String> = whole.addresses().into_iter().take(1).map(|(name, _)| name.to_owned()).collect();
    let rows: Vec<String> = whole
        .inbox(&who[0])
        .take(250)
        .enumerate()
        .map(|(number, email)| {
            json!({
                "message_id": email.message_id, "date": email.date, "subject": email.subject,
                "from": format!("sender{}@x.example", number % 10),
                "to": [who[0]], "body": email.body,
            })
            .to_string()
        })
        .collect();
    std::fs::write(place.path().join("mine.jsonl"), rows.join("\n")).unwrap();
    let own = mail(MailConfig { data: Some(place.path().to_path_buf()), ..MailConfig::default() });
    let train = select(&own, "easy", Split::Train, 20, 0);
    let val = select(&own, "easy", Split::Val, 10, 0);
    let texts =
        |tasks: &[Task]| -> BTreeSet<String> { tasks.iter().map(|task| task.body["question"].to_string()).collect() };
    assert!(texts(&train).is_disjoint(&texts(&val)), "few inboxes are shared, the questions divided");
    for task in train.iter().chain(&val) {
        assert_eq!(solve(&own, task, true).0.score, 1.0, "{:?}", task.body);
    }
    assert!(env.open(&train[0]).is_err(), "a task of another mailbox");
    let stored = own.config();
    let again = Mail::reopen(&stored, Some(place.path().to_path_buf())).unwrap();
    assert_eq!(again.config(), stored);
    assert!(Mail::reopen(&stored, None).unwrap_err().to_string().contains("--data"));
}

/// A root's verdict on an answer.
fn root(config: MailConfig, task: &Task, value: Option<Value>, history: &[Act]) -> Assessment {
    let env = mail(config);
    let mut world = env.open_mailbox(task).unwrap();
    let goal = world.root_goal();
    world.enter(&[0], &goal);
    world.verify(&[0], &Ending { value: value.as_ref(), history, error: None })
}

fn finished(answer: &str, sources: &Json) -> Option<Value> {
    Some(Value::Str(json!({ "answer": answer, "sources": sources }).to_string()))
}

#[test]
fn roots_are_judged_by_their_answer() {
    let env = mail(MailConfig::default());
    let tasks = select(&env, "easy", Split::Train, 40, 5);
    let task = tasks.iter().find(|task| matches!(query(task).template(), "sent")).unwrap();
    let (truth, ids) = (task.body["answer"].as_str().unwrap(), &task.body["message_ids"]);
    let score = |value: Option<Value>| root(MailConfig::default(), task, value, &[]).judged().unwrap();
    assert_eq!(score(finished(&format!(" {truth} "), ids)).score, 1.0);
    assert_eq!(score(finished(truth, &json!([]))).score, 1.0, "sources are reported, not rewarded");
    assert_eq!(score(finished(truth, &json!([]))).evidence["rubric"]["sources_correct"], false);
    assert_eq!(score(finished("1999-01-01", ids)).score, 0.0);
    assert_eq!(score(finished(NO_ANSWER, ids)).score, 0.0);
    assert_eq!(score(Some(Value::str(truth))).score, 0.0, "no JSON");
    assert_eq!(score(None).score, 0.0);
    let unanswerable = tasks.iter().find(|task| task.body["answer"] == NO_ANSWER).unwrap();
    let verdict = |answer: &str| root(MailConfig::default(), unanswerable, finished(answer, &json!([])), &[]);
    assert_eq!(verdict("i don't  know").judged().unwrap().score, 1.0);
    assert_eq!(verdict("2031-01-01").judged().unwrap().score, 0.0);
}

#[test]
fn free_text_goes_to_a_judge() {
    let env = mail(MailConfig::default());
    let mut task = select(&env, "easy", Split::Train, 1, 5).remove(0);
    task.body.as_object_mut().unwrap().remove("query");
    task.body["answer"] = json!("She prefers the slate roof");
    let ask = |answer: &str| root(MailConfig::default(), &task, finished(answer, &json!([])), &[]);
    assert_eq!(ask("she prefers the  SLATE roof").judged().unwrap().score, 1.0);
    assert_eq!(ask(NO_ANSWER).judged().unwrap().score, 0.0);
    let Assessment::Ask(question) = ask("The roof of slate") else { panic!("a judge is asked") };
    assert_eq!(question.truth.as_deref(), Some("She prefers the slate roof"));
    assert_eq!(question.answer, Some(Value::str("The roof of slate")));
    assert!(rao_envs::judge::rubrics::text(question.rubric).is_some_and(|text| text.len() > 200));
}

#[test]
fn the_original_reward_is_kept_beside_its_place_in_the_unit_interval() {
    let env = mail(MailConfig::default());
    let task =
        select(&env, "easy", Split::Train, 40, 5).into_iter().find(|task| task.body["answer"] != NO_ANSWER).unwrap();
    let (truth, ids) = (task.body["answer"].as_str().unwrap(), &task.body["message_ids"]);
    let config = || MailConfig { reward: RewardKind::ArtE, ..MailConfig::default() };
    let act = |action: &str, output: &str| Act { action: action.to_owned(), output: output.to_owned() };
    let fine = || act("<python>x</python>", "1");
    let raw = |value: Option<Value>, history: &[Act]| {
        let judgement = root(config(), &task, value, history).judged().unwrap();
        let raw = judgement.evidence["art_e"].as_f64().unwrap();
        assert!((judgement.score - (raw + 2.0) / 3.5).abs() < 1e-12, "{judgement:?}");
        assert_eq!(judgement.source, "mail/art-e");
        (raw * 1_000.0).round() / 1_000.0
    };
    // Nothing was searched or read: 0.1 for no invalid id, 0.1 for right sources.
    assert_eq!(raw(finished(truth, ids), &[fine(), fine()]), 1.48);
    assert_eq!(raw(finished("1999-01-01", ids), &[fine()]), -0.8);
    assert_eq!(raw(finished(NO_ANSWER, &json!([])), &[fine()]), 0.1);
    assert_eq!(raw(None, &[fine()]), 0.1);
    assert_eq!(raw(None, &[act("I think", "Error: No <python> block was found.")]), -1.9);
    assert_eq!(raw(None, &[act("<python>(</python>", "Error: SyntaxError: unexpected EOF")]), -1.9);
    assert_eq!(raw(None, &[act("<python>f()</python>", "out\nError: NameError: name 'f'")]), -1.8);
    assert_eq!(raw(None, &[act("<python>x</python>", "Error: TypeError: read_email() missing")]), -1.7);
    assert_eq!(raw(Some(Value::str("prose")), &[fine()]), -1.9);
}

#[test]
fn children_are_judged_by_the_form_of_their_goal_and_for_waste() {
    let env = mail(MailConfig::default());
    let task =
        select(&env, "hard", Split::Train, 60, 5).into_iter().find(|task| query(task).template() == "sum").unwrap();
    let mut world = env.open_mailbox(&task).unwrap();
    let goal = world.root_goal();
    world.enter(&[0], &goal);
    let delegate =
        |world: &mut MailEpisode, text: &str| world.delegate(&[0], &Args::positional([Value::str(text)])).unwrap();
    let Query::Sum { mails } = query(&task) else { panic!("a sum") };
    let part = Query::Fact { fact: rao_envs::mail::Fact::Amount, mail: mails[0].clone() };
    let gold = part.answer(world.mailbox(), world.inbox()).unwrap();
    let child = delegate(&mut world, &format!("  {}\n\nPlease hurry.", part.text()));
    world.enter(&[0, 0], &child);
    let judge = |world: &mut MailEpisode, node: &[u32], value: Value, history: &[Act]| {
        world.verify(node, &Ending { value: Some(&value), history, error: None }).judged().unwrap()
    };
    for right in
        [Value::str(&gold.answer), finished(&gold.answer, &json!([])).unwrap(), Value::Str(format!("${}", gold.answer))]
    {
        let judgement = judge(&mut world, &[0, 0], right.clone(), &[]);
        assert_eq!(
            (judgement.score, &judgement.evidence["template"]),
            (1.0, &json!("amount")),
            "{right:?}: {judgement:?}"
        );
    }
    assert_eq!(judge(&mut world, &[0, 0], Value::str("1"), &[]).score, 0.0);
    let refused = Act {
        action: "<python>print(await launch_subagent(\"x\"))</python>".into(),
        output: "Launching a subagent for goal \"x\" would exceed the maximum allowed depth of 3.".into(),
    };
    let wasteful = judge(&mut world, &[0, 0], Value::str(&gold.answer), &[refused]);
    assert_eq!((wasteful.score, &wasteful.evidence["past_cap"]), (0.0, &json!(1)));
    // A child that passes its goal on fails, and so does the one that gets it.
    world.enter(&[0, 0, 0], &child);
    assert_eq!(judge(&mut world, &[0, 0, 0], Value::str(&gold.answer), &[]).evidence["forwarded"], true);
    let forwarding = judge(&mut world, &[0, 0], Value::str(&gold.answer), &[]);
    assert_eq!((forwarding.score, &forwarding.evidence["forwards"]), (0.0, &json!(true)));
    // The root's own question, without what the environment adds to it.
    let whole = delegate(&mut world, task.body["question"].as_str().unwrap());
    world.enter(&[0, 1], &whole);
    let forwarded = judge(&mut world, &[0, 1], Value::str(task.body["answer"].as_str().unwrap()), &[]);
    assert_eq!((forwarded.score, &forwarded.evidence["forwarded"]), (0.0, &json!(true)));

    let free = delegate(&mut world, "What is the mood in these mails?");
    world.enter(&[0, 2], &free);
    let value = Value::str("Gloomy");
    let ending = Ending { value: Some(&value), history: &[], error: None };
    let Assessment::Ask(question) = world.verify(&[0, 2], &ending) else { panic!("a judge is asked") };
    assert_eq!((question.goal.as_str(), question.truth), ("What is the mood in these mails?", None));
    let unfinished = world.verify(&[0, 2], &Ending::with(None)).judged().unwrap();
    assert_eq!(unfinished.score, 0.0);
    for (args, text) in [
        (Args::default(), "Error: launch_subagent() missing 1 required positional argument: 'goal'"),
        (Args::positional([Value::Int(1)]), "Error: goal must be a string, got int"),
        (Args::positional([Value::str("  ")]), "Error: goal must not be empty"),
    ] {
        assert_eq!(world.delegate(&[0], &args).unwrap_err(), text);
    }
}

#[test]
fn the_tools_raise_what_python_would() {
    let env = mail(MailConfig::default());
    let task = select(&env, "easy", Split::Train, 1, 5).remove(0);
    let mut world = env.open_mailbox(&task).unwrap();
    let goal = world.root_goal();
    world.enter(&[0], &goal);
    let strings = |items: &[&str]| Value::List(items.iter().map(|&item| Value::str(item)).collect());
    let rows = [
        (
            "search_emails",
            Args::default(),
            "TypeError",
            "search_emails() missing 1 required positional argument: 'keywords'",
        ),
        ("search_emails", Args::positional([strings(&[])]), "ValueError", "No keywords provided for search."),
        ("search_emails", Args::positional([Value::None]), "ValueError", "No keywords provided for search."),
        (
            "search_emails",
            Args::positional([strings(&["x"])]).with("max_results", Value::Int(11)),
            "ValueError",
            "max_results must be less than or equal to 10.",
        ),
        (
            "search_emails",
            Args::positional([Value::str("x")]),
            "TypeError",
            "keywords must be a list of strings, got str",
        ),
        (
            "search_emails",
            Args::positional([Value::List(vec![Value::Int(1)])]),
            "TypeError",
            "keywords must be a list of strings",
        ),
        (
            "search_emails",
            Args::positional([strings(&["x"])]).with("sent_after", Value::Int(2031)),
            "TypeError",
            "sent_after must be a string, got int",
        ),
        (
            "search_emails",
            Args::positional([strings(&["x"])]).with("inbox", Value::str("y")),
            "TypeError",
            "search_emails() got an unexpected keyword argument 'inbox'",
        ),
        ("read_email", Args::positional([Value::Int(1)]), "TypeError", "message_id must be a string, got int"),
    ];
    for (tool, args, kind, message) in rows {
        let expected = ToolResult::Raised { kind: kind.into(), message: message.into() };
        assert_eq!(world.call(&[0], tool, &args), expected, "{args:?}");
    }
    let absent = Args::positional([Value::str("<no>")]);
    assert_eq!(world.call(&[0], "read_email", &absent), ToolResult::Value(Value::None));
}

#[test]
fn a_mail_outside_the_inbox_can_be_kept_from_being_read() {
    let task = select(&mail(MailConfig::default()), "easy", Split::Train, 1, 5).remove(0);
    for (read_scope, shown) in [(ReadScope::Any, true), (ReadScope::Inbox, false)] {
        let env = mail(MailConfig { read_scope, ..MailConfig::default() });
        let mut world = env.open_mailbox(&task).unwrap();
        let mailbox = env.mailbox().unwrap();
        let foreign = mailbox.emails().iter().find(|email| !mailbox.is_in_inbox(email, world.inbox())).unwrap();
        let result = world.call(&[0], "read_email", &Args::positional([Value::str(&foreign.message_id)]));
        assert_eq!(result != ToolResult::Value(Value::None), shown);
    }
}

#[test]
fn a_world_that_took_over_logged_calls_judges_alike() {
    let env = mail(MailConfig::default());
    let task = select(&env, "easy", Split::Train, 1, 5).remove(0);
    let (mut live, mut taken) = (env.open_mailbox(&task).unwrap(), env.open_mailbox(&task).unwrap());
    let goal = live.root_goal();
    live.enter(&[0], &goal);
    taken.enter(&[0], &goal);
    let ids = task.body["message_ids"].as_array().unwrap().clone();
    let calls = [
        ("search_emails", Args::positional([Value::List(vec![Value::str("report")])])),
        ("search_emails", Args::positional([Value::List(vec![])])),
        ("read_email", Args::positional([Value::str("<no>")])),
        ("read_email", Args::positional([Value::str(ids.first().and_then(Json::as_str).unwrap_or("<none>"))])),
    ];
    for (tool, args) in &calls {
        let result = live.call(&[0], tool, args);
        taken.absorb(&[0], tool, args, &result);
    }
    let value = finished("x", &json!([]));
    let verdict = |world: &mut MailEpisode| world.verify(&[0], &Ending::with(value.as_ref())).judged().unwrap();
    assert_eq!(verdict(&mut live), verdict(&mut taken));
    let turn = Turn {
        node: &[0],
        goal: &goal,
        step: 1,
        budget: 15,
        max_depth: 3,
        recursive: true,
        observation: None,
        seed: 1,
    };
    for script in [Script::Oracle, Script::Noisy] {
        assert_eq!(live.scripted(script, &turn), taken.scripted(script, &turn));
    }
}
