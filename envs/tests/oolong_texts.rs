//! Real dialogue, generated windows, rows of the data sets, questions, pieces, verdicts.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;
use rao_envs::oolong::{
    Asked, Oolong, OolongConfig, PRESETS, Query, Recipe, Scoring, about_dialogue, generate, lines, load_corpus,
    question_id, row_files, scan_rows, text_at, window, window_id,
};
use rao_envs::{Args, Assessment, Ending, Environment, Episode, Selection, Split, Task, Text, Value};
use serde_json::{Value as Json, json};

/// The folder with outside data, if the test is to use it.
fn data(folder: &str) -> Option<PathBuf> {
    let Some(root) = std::env::var_os("RAO_LOG_DATA") else {
        println!("skipped: RAO_LOG_DATA is not set");
        return None;
    };
    let folder = PathBuf::from(root).join(folder);
    assert!(folder.is_dir(), "{} is not there", folder.display());
    Some(folder)
}

fn selection(presets: &[&str], split: Split, count: Option<usize>) -> Selection {
    Selection { presets: presets.iter().map(|name| (*name).to_owned()).collect(), split, count, seed: 3 }
}

fn body(task: &Task) -> &Json {
    &task.body
}

#[test]
fn ids_of_published_rows_are_computed_again() {
    let Some(folder) = data("crd3") else { return };
    let rows = std::fs::read_to_string(folder.join("oolong_real_rows.jsonl")).unwrap();
    let mut seen = 0;
    for row in rows.lines().map(|line| serde_json::from_str::<Json>(line).unwrap()) {
        let text = |name: &str| row[name].as_str().unwrap().to_owned();
        let episodes: Vec<u32> =
            row["episodes"].as_array().unwrap().iter().map(|n| u32::try_from(n.as_u64().unwrap()).unwrap()).collect();
        assert_eq!(question_id(&text("campaign"), &text("question"), &episodes), text("id"));
        assert_eq!(window_id(&text("campaign"), &episodes), text("context_window_id"));
        seen += 1;
    }
    assert_eq!(seen, 3);
}

#[test]
fn transcripts_become_windows_as_upstream_builds_them() {
    let Some(folder) = data("crd3") else { return };
    let series = load_corpus(&folder).unwrap();
    let sizes: Vec<(String, Vec<(u32, usize)>)> = series
        .iter()
        .map(|s| (s.name.clone(), s.episodes.iter().map(|e| (e.number, e.text.chars().count() / 1_000)).collect()))
        .collect();
    let expected = [
        ("campaign1".to_owned(), vec![(69, 119), (104, 123), (109, 133)]),
        ("campaign2".to_owned(), vec![(1, 151), (37, 133)]),
    ];
    assert_eq!(sizes, expected);
    let second = &series[1];
    let text = window(&second.players, &second.episodes);
    assert!(text.contains("Return the final answer in \\boxed{}."));
    assert!(text.contains("\nTravis plays the character Fjord.\n"));
    assert!(!text.contains("NA plays"));
    assert!(
        text.contains("[START OF EPISODE]\nMatt: Hello, everyone. (laughter)\nMatt: And welcome to tonight's episode")
    );
    assert_eq!(text.matches("[END OF EPISODE]").count(), 2);
    assert_eq!(lines(&text).count(), 1_629 + 1_540);
}

#[test]
fn plays_become_episodes() {
    let Some(folder) = data("shakespeare") else { return };
    let series = load_corpus(&folder).unwrap();
    assert_eq!(series.len(), 6);
    for play in &series {
        assert_eq!(play.episodes.len(), 5, "{} has five acts", play.name);
        let speeches: usize = play.episodes.iter().map(|act| lines(&act.text).count()).sum();
        assert!((500..1_300).contains(&speeches), "{}: {speeches}", play.name);
    }
    let env = Oolong::new(OolongConfig { data: Some(folder), ..OolongConfig::default() }).unwrap();
    let train = env.tasks(&selection(&["1ep", "2ep"], Split::Train, Some(50))).unwrap();
    let val = env.tasks(&selection(&["all"], Split::Val, None)).unwrap();
    assert!(val.len() > 200, "{}", val.len());
    assert!(train.iter().all(|task| val.iter().all(|other| other.id != task.id)));
    let again = env.tasks(&selection(&["1ep", "2ep"], Split::Train, Some(50))).unwrap();
    assert_eq!(train, again);
    assert!(env.open(&train[0]).is_ok());
}

/// Every question about a window, answered from pieces cut between lines: the merged answer is the whole's.
fn pieces_make_the_whole(text: &str, episodes: usize, size: usize) {
    for asked in about_dialogue(text, episodes) {
        let end = asked.scope(text);
        let scope = &text[..end];
        let mut pieces: Vec<&str> = Vec::new();
        let mut from = 0;
        while from < scope.len() {
            let mut to = (from + size).min(scope.len());
            while !scope.is_char_boundary(to) {
                to += 1;
            }
            let to = scope[to..].find('\n').map_or(scope.len(), |at| to + at + 1);
            pieces.push(&scope[from..to]);
            from = to;
        }
        let query = &asked.query;
        let answers: Vec<_> = pieces.iter().map(|piece| query.answer(query.records_in(piece).iter())).collect();
        let merged = query.merge(&answers);
        assert_eq!(merged, query.answer(query.records_in(scope).iter()), "{}", asked.text);
        assert_eq!(asked.finish.gold(&merged), asked.gold(text, &[]), "{}", asked.text);
        assert_eq!(Query::from_json(&query.to_json()).as_ref(), Ok(query));
        assert_eq!(Asked::from_stored(&asked.stored()).as_ref(), Ok(&asked));
    }
}

#[test]
fn questions_about_real_dialogue_can_be_answered_piece_by_piece() {
    let Some(folder) = data("crd3") else { return };
    for series in load_corpus(&folder).unwrap() {
        for episodes in series.episodes.windows(1).chain([series.episodes.as_slice()]) {
            let text = window(&series.players, episodes);
            let asked = about_dialogue(&text, episodes.len());
            assert!(asked.len() >= 40, "{}", asked.len());
            pieces_make_the_whole(&text, episodes.len(), 9_000);
        }
    }
}

#[test]
fn gold_answers_hit_every_kind_of_scoring() {
    let Some(folder) = data("crd3") else { return };
    let env = Oolong::new(OolongConfig { data: Some(folder), ..OolongConfig::default() }).unwrap();
    let tasks = env.tasks(&selection(&["all"], Split::Val, None)).unwrap();
    let gold: Vec<&str> = tasks.iter().map(|task| body(task)["answer"].as_str().unwrap()).collect();
    assert!(gold.iter().any(|answer| answer.parse::<i64>().is_ok()));
    assert!(gold.iter().any(|answer| answer.contains(',')));
    assert!(gold.iter().any(|answer| !answer.is_empty() && answer.chars().all(char::is_alphabetic)));
    // A hand count of something small: 11 live-show lines by the audience and its members.
    let said = "campaign1";
    assert!(tasks.iter().all(|task| body(task)["origin"]["corpus"]["series"] == said));
    let of = |question: &str| {
        let found = tasks.iter().find(|task| {
            body(task)["question"] == question && body(task)["origin"]["corpus"]["episodes"] == json!([109])
        });
        body(found.unwrap())["answer"].as_str().unwrap().to_owned()
    };
    assert_eq!(of("Total number of lines of dialogue in this episode?"), "1355");
    assert_eq!(of("Number of lines of dialogue by Matt in this episode?"), "319");
    assert_eq!(
        of("What percentage of the lines of dialogue in this episode is by Laura? Round to the nearest integer."),
        "18"
    );
    assert_eq!(
        of("Which speaker has the most lines of dialogue in this episode? If several share the number, list them all."),
        "Matt"
    );
}

#[test]
fn generated_tasks_follow_from_their_seed_and_keep_the_splits_apart() {
    let env = Oolong::new(OolongConfig::default()).unwrap();
    let presets = ["2k", "8k"];
    let train = env.tasks(&selection(&presets, Split::Train, Some(40))).unwrap();
    assert_eq!(train, env.tasks(&selection(&presets, Split::Train, Some(40))).unwrap());
    assert_eq!(train[..10], env.tasks(&selection(&presets, Split::Train, Some(10))).unwrap());
    let val = env.tasks(&selection(&presets, Split::Val, Some(40))).unwrap();
    assert!(train.iter().all(|task| val.iter().all(|other| other.id != task.id)));
    let questions: std::collections::BTreeSet<&str> =
        train.iter().map(|task| body(task)["asked"]["query"]["kind"].as_str().unwrap()).collect();
    assert!(questions.len() >= 4, "{questions:?}");
    for task in &train {
        assert_ne!(body(task)["answer"], "", "{}", task.id);
        let episode = env.open_text(task).unwrap();
        let size = if task.difficulty == "2k" { 8_000 } else { 32_000 };
        assert!(
            (size..size + size / 4).contains(&episode.text().len()),
            "{} {}",
            task.difficulty,
            episode.text().len()
        );
    }
    assert!(env.tasks(&selection(&["3k"], Split::Train, Some(1))).is_err());
    assert!(env.tasks(&selection(&["2k"], Split::Train, None)).is_err());
    let largest = PRESETS.last().unwrap();
    let window = generate(&Recipe { seed: 1, chars: largest.chars, episodes: 8 });
    assert!(window.text.len() >= 700_000 && window.rolls.len() > 500, "{} {}", window.text.len(), window.rolls.len());
    let mut other = train[0].clone();
    other.body["digest"] = json!("00");
    assert!(env.open(&other).err().unwrap().to_string().contains("another one"));
}

/// An episode with its root entered.
fn opened(env: &Oolong, task: &Task) -> (rao_envs::oolong::OolongEpisode, Text) {
    let mut episode = env.open_text(task).unwrap();
    let root = episode.root_goal();
    episode.enter(&[0], &root);
    (episode, root.context)
}

fn launch(goal: &str, context: &str, query: Option<Value>) -> Args {
    let args = Args::positional([Value::str(goal), Value::str(context)]);
    query.map_or(args.clone(), |query| args.with("query", query))
}

#[test]
fn a_child_with_a_query_is_scored_exactly() {
    let env = Oolong::new(OolongConfig::default()).unwrap();
    let task = env.tasks(&selection(&["8k"], Split::Train, Some(1))).unwrap().remove(0);
    let (mut episode, text) = opened(&env, &task);
    let cut = text[..text.len() / 2].rfind('\n').unwrap() + 1;
    let (first, second) = (&text[..cut], &text[cut..]);
    let query = || Some(Value::dict([("kind", Value::str("count_rolls"))]));
    let mut counts = Vec::new();
    for (ordinal, piece) in (0..).zip([first, second]) {
        let goal = episode.delegate(&[0], &launch("Count.", piece, query())).unwrap();
        assert!(goal.context.shares(&text), "a piece is shared, not copied");
        episode.enter(&[0, ordinal], &goal);
        let wrong = Value::Int(-1);
        let verdict = episode.verify(&[0, ordinal], &Ending::with(Some(&wrong))).judged().unwrap();
        let gold = verdict.evidence["gold"].as_i64().unwrap();
        let near = Value::Int(gold + 1);
        assert_eq!(episode.verify(&[0, ordinal], &Ending::with(Some(&near))).judged().unwrap().score, 0.75);
        let right = Value::Int(gold);
        assert_eq!(episode.verify(&[0, ordinal], &Ending::with(Some(&right))).judged().unwrap().score, 1.0);
        assert_eq!(episode.verify(&[0, ordinal], &Ending::with(None)).judged().unwrap().score, 0.0);
        counts.push(gold);
    }
    let all = task_rolls(&env, &task);
    assert_eq!(counts.iter().sum::<i64>(), all);
    let answer = Value::str("\\boxed{0}");
    let root = episode.verify(&[0], &Ending::with(Some(&answer))).judged().unwrap();
    assert_eq!(root.evidence["cover"], json!({"pieces": 2, "chunks/altered": 0, "chunks/overlap": 0, "chunks/gap": 0}));
}

fn task_rolls(env: &Oolong, task: &Task) -> i64 {
    let recipe: Recipe = serde_json::from_value(task.body["origin"]["synthetic"].clone()).unwrap();
    assert_eq!(env.name(), "oolong");
    i64::try_from(generate(&recipe).rolls.len()).unwrap()
}

#[test]
fn pieces_that_overlap_leave_gaps_or_are_altered_are_noted() {
    let env = Oolong::new(OolongConfig::default()).unwrap();
    let task = env.tasks(&selection(&["2k"], Split::Train, Some(1))).unwrap().remove(0);
    let (mut episode, text) = opened(&env, &task);
    let altered = format!("{} and more", &text[..500]);
    for (ordinal, piece) in (0..).zip([&text[..1_000], &text[900..2_000], &text[2_100..], &altered]) {
        let goal = episode.delegate(&[0], &launch("Read.", piece, None)).unwrap();
        assert_eq!(goal.context.as_str(), piece);
        episode.enter(&[0, ordinal], &goal);
    }
    let evidence = episode.verify(&[0], &Ending::with(None)).judged().unwrap().evidence;
    let expected = json!({"pieces": 4, "chunks/altered": 1, "chunks/overlap": 100, "chunks/gap": 100});
    assert_eq!(evidence["cover"], expected);
    // Without a query a judge is asked, and sees the piece.
    let value = Value::str("nothing");
    let Assessment::Ask(question) = episode.verify(&[0, 1], &Ending::with(Some(&value))) else { panic!("no question") };
    assert_eq!(question.context.as_deref(), Some(&text[900..2_000]));
    // An altered text has no known events: its query cannot be checked, but one about its lines can.
    let events = Value::dict([("kind", Value::str("count_rolls"))]);
    let goal = episode.delegate(&[0], &launch("Count.", &altered, Some(events))).unwrap();
    episode.enter(&[0, 4], &goal);
    assert!(matches!(episode.verify(&[0, 4], &Ending::with(Some(&value))), Assessment::Ask(_)));
    let turns = Value::dict([("kind", Value::str("tally_turns")), ("by", Value::str("speaker"))]);
    let goal = episode.delegate(&[0], &launch("Count.", &altered, Some(turns))).unwrap();
    episode.enter(&[0, 5], &goal);
    assert!(matches!(episode.verify(&[0, 5], &Ending::with(Some(&value))), Assessment::Judged(_)));
}

#[test]
fn children_may_finish_with_anything() {
    let env = Oolong::new(OolongConfig::default()).unwrap();
    let task = env.tasks(&selection(&["2k"], Split::Train, Some(1))).unwrap().remove(0);
    let (mut episode, text) = opened(&env, &task);
    let tally = Value::dict([("kind", Value::str("tally_turns")), ("by", Value::str("speaker"))]);
    let goal = episode.delegate(&[0], &launch("Count.", &text[..2_000], Some(tally))).unwrap();
    episode.enter(&[0, 0], &goal);
    let huge = Value::str("x".repeat(1 << 20));
    let values = [Value::None, Value::List(vec![Value::None]), Value::Dict(vec![(Value::None, Value::Int(1))]), huge];
    for value in &values {
        let verdict = episode.verify(&[0, 0], &Ending::with(Some(value))).judged().unwrap();
        assert_eq!(verdict.score, 0.0);
        assert_eq!(episode.verify(&[0], &Ending::with(Some(value))).judged().unwrap().score, 0.0);
    }
    let gold = episode.verify(&[0, 0], &Ending::with(Some(&Value::None))).judged().unwrap().evidence["gold"].clone();
    let Value::Dict(mut pairs) = Value::from_json(&gold).unwrap() else { panic!("a tally is a dict") };
    let names = pairs.len();
    pairs[0].1 = Value::Int(-5);
    let part = episode.verify(&[0, 0], &Ending::with(Some(&Value::Dict(pairs)))).judged().unwrap().score;
    assert_eq!(part, (names - 1) as f64 / names as f64, "a tally counts name by name");
}

#[test]
fn launches_that_make_no_goal_are_refused() {
    let env = Oolong::new(OolongConfig::default()).unwrap();
    let task = env.tasks(&selection(&["2k"], Split::Train, Some(1))).unwrap().remove(0);
    let (mut episode, _) = opened(&env, &task);
    let kind = |kind: &str| Some(Value::dict([("kind", Value::str(kind))]));
    let cases = [
        (Args::positional([Value::Int(1), Value::str("x")]), "goal must be a str, got int"),
        (Args::positional([Value::str("g")]), "missing 1 required positional argument: 'context'"),
        (Args::positional([Value::str("g"), Value::List(vec![])]), "context must be a str, got list"),
        (
            Args::positional(["g", "c"].map(Value::str)).with("num_steps", Value::Int(3)),
            "unexpected keyword argument 'num_steps'",
        ),
        (Args::positional(["g", "c"].map(Value::str)).with("goal", Value::str("h")), "multiple values"),
        (Args::positional(["g", "c", "d", "e"].map(Value::str)), "takes from 2 to 3"),
        (launch("g", "c", Some(Value::str("count"))), "query must be a dict"),
        (launch("g", "c", kind("find_rolls")), "unknown query kind \"find_rolls\""),
        (launch("g", "c", kind("count_dragons")), "must end in turns"),
        (launch("g", "c", kind("tally_rolls")), "needs `by`"),
        (launch("g", "c", kind("count_phrase")), "needs `phrase`"),
    ];
    for (args, expected) in cases {
        let refusal = episode.delegate(&[0], &args).unwrap_err();
        assert!(refusal.starts_with("Error: ") && refusal.contains(expected), "{refusal}");
    }
    let odd = Value::dict([("kind", Value::str("count_rolls")), ("speaker", Value::str("Tess"))]);
    assert!(episode.delegate(&[0], &launch("g", "c", Some(odd))).unwrap_err().contains("no use for speaker"));
}

/// Two windows, three rows; the second window is far too long.
fn rows() -> Vec<Json> {
    let text = |words: &str| format!("[START OF EPISODE]\nAnn: {words}\n[END OF EPISODE]\n");
    let row = |id: &str, window: &str, text: &str, answer: &str, campaign: &str| {
        json!({"id": id, "context_window_id": window, "context_window_text": text, "question": "How many?", "answer": answer,
            "question_type": "singledoc_rolls", "episodes": [4], "campaign": campaign})
    };
    let short = text("h\u{e9}llo \"all\"");
    vec![
        row("a", "w1", &short, "84", "campaign2"),
        row("b", "w1", &short, "Fjord, Molly", "campaign2"),
        row("c", "w2", &text(&"long ".repeat(60_000)), "7", "campaign2"),
        row("d", "w1", &short, "1", "campaign1"),
    ]
}

fn check_rows(folder: &std::path::Path) {
    let env = Oolong::new(OolongConfig { data: Some(folder.to_owned()), ..OolongConfig::default() }).unwrap();
    let tasks = env.tasks(&selection(&["1ep"], Split::Train, None)).unwrap();
    let mut ids: Vec<&str> = tasks.iter().map(|task| task.id.as_str()).collect();
    ids.sort_unstable();
    let long = ids.contains(&"oolong.row.c");
    ids.retain(|id| *id != "oolong.row.c");
    assert_eq!(ids, ["oolong.row.a", "oolong.row.b"]);
    let find = |id: &str| tasks.iter().find(|task| task.id.ends_with(id)).unwrap();
    let (a, b) = (env.open_text(find("a")).unwrap(), env.open_text(find("b")).unwrap());
    assert!(a.text().contains("h\u{e9}llo \"all\""));
    assert!(a.text().shares(b.text()), "one text in memory for all its rows");
    let (mut a, answer) = (a, Value::str("\\boxed{83}"));
    assert_eq!(a.verify(&[0], &Ending::with(Some(&answer))).judged().unwrap().score, 0.75);
    let val = env.tasks(&selection(&["all"], Split::Val, None)).unwrap();
    assert_eq!(val.len(), 1);
    assert!(env.tasks(&selection(&["2ep"], Split::Train, None)).is_err());
    // A manifest finds it again.
    let again = Oolong::reopen(&env.config(), Some(folder.to_owned())).unwrap();
    assert_eq!(again.open_text(find("a")).unwrap().text(), a.text());
    assert!(Oolong::reopen(&env.config(), None).err().unwrap().to_string().contains("--data"));
    assert_eq!(long, row_files(folder).unwrap()[0].extension().unwrap() == "parquet", "Parquet texts are not measured");
}

#[test]
fn rows_are_streamed_from_jsonl() {
    let folder = tempfile::tempdir().unwrap();
    let text: String = rows().iter().map(|row| format!("{row}\n")).collect();
    std::fs::write(folder.path().join("dnd.jsonl"), format!("{text}\n")).unwrap();
    check_rows(folder.path());
    std::fs::write(folder.path().join("dnd.jsonl"), "{\"id\": 1}\n").unwrap();
    let env = Oolong::new(OolongConfig { data: Some(folder.path().to_owned()), ..OolongConfig::default() }).unwrap();
    let error = env.tasks(&selection(&["all"], Split::Train, None)).unwrap_err().to_string();
    assert!(error.contains("dnd.jsonl") && error.contains("line 1"), "{error}");
    std::fs::remove_file(folder.path().join("dnd.jsonl")).unwrap();
    let nothing = Oolong::new(OolongConfig { data: Some(folder.path().to_owned()), ..OolongConfig::default() });
    assert!(nothing.err().unwrap().to_string().contains("neither rows"));
}

#[test]
fn rows_are_streamed_from_parquet() {
    let folder = tempfile::tempdir().unwrap();
    let schema = "message rows { required binary id (UTF8); required binary context_window_id (UTF8);
        required binary context_window_text (UTF8); required binary question (UTF8); required binary answer (UTF8);
        required binary question_type (UTF8);
        required group episodes (LIST) { repeated group list { required int64 element; } }
        required binary campaign (UTF8); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = std::fs::File::create(folder.path().join("rows.parquet")).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(WriterProperties::builder().build())).unwrap();
    for group in rows().chunks(3) {
        let mut out = writer.next_row_group().unwrap();
        let names = [
            "id",
            "context_window_id",
            "context_window_text",
            "question",
            "answer",
            "question_type",
            "episodes",
            "campaign",
        ];
        for name in names {
            let mut column = out.next_column().unwrap().unwrap();
            if name == "episodes" {
                let values: Vec<i64> = group.iter().map(|row| row[name][0].as_i64().unwrap()).collect();
                let levels: Vec<i16> = values.iter().map(|_| 1).collect();
                let repeats: Vec<i16> = values.iter().map(|_| 0).collect();
                column.typed::<Int64Type>().write_batch(&values, Some(&levels), Some(&repeats)).unwrap();
            } else {
                let values: Vec<ByteArray> = group.iter().map(|row| row[name].as_str().unwrap().into()).collect();
                column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
            }
            column.close().unwrap();
        }
        out.close().unwrap();
    }
    writer.close().unwrap();
    check_rows(folder.path());
}

#[test]
fn synthetic_rows_have_their_own_scoring() {
    let folder = tempfile::tempdir().unwrap();
    let row = json!({"id": 17, "context_len": 1024, "dataset": "spam", "context_window_text": "User: 1 || ham",
        "question": "Which label is most common?", "task_group": "counting", "task": "TASK_TYPE.MOST_FREQ",
        "answer": "['ham']", "answer_type": "ANSWER_TYPE.LABEL", "context_window_id": 3});
    let file = folder.path().join("validation.jsonl");
    std::fs::write(&file, format!("{row}\n")).unwrap();
    let mut found = Vec::new();
    scan_rows(&file, &mut |row| found.push(row)).unwrap();
    assert_eq!((found[0].scoring, found[0].id.as_str(), found[0].split()), (Scoring::Synth, "17", Split::Train));
    assert_eq!(text_at(&file, 0).unwrap(), "User: 1 || ham");
    let env = Oolong::new(OolongConfig { data: Some(file), ..OolongConfig::default() }).unwrap();
    let task = env.tasks(&selection(&["all"], Split::Train, None)).unwrap().remove(0);
    assert_eq!(task.difficulty, "TASK_TYPE.MOST_FREQ");
    let mut episode = env.open_text(&task).unwrap();
    let answer = Value::str("Label: ham");
    let verdict = episode.verify(&[0], &Ending::with(Some(&answer))).judged().unwrap();
    assert_eq!((verdict.score, verdict.source.as_str()), (1.0, "oolong/synth"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever the window and the size of the pieces, pieces cut between lines have every event once.
    #[test]
    fn events_are_counted_once(seed in any::<u64>(), episodes in 1_u32..4, size in 300_usize..6_000) {
        let window = generate(&Recipe { seed, chars: 9_000, episodes });
        pieces_make_the_whole(&window.text, episodes as usize, size);
        let mut starts: Vec<usize> = window.rolls.iter().map(|record| record.at).collect();
        starts.dedup();
        prop_assert_eq!(starts.len(), window.rolls.len(), "one roll a line");
        prop_assert!(starts.is_sorted());
    }
}
