//! Interrupted runs on data of one's own, taken up with nothing but their name.

use std::path::Path;

use rao_store::Stream;
use rao_store::event::Kind;
use serde_json::{Value, json};

use crate::common::{Place, text};
use crate::regression::copy;

/// A log that ends in the middle of its first rollout: the second task has not been begun.
fn interrupt(place: &Place) {
    copy(&place.log(), &place.path().join("cut"), &mut |stream, bodies| match stream {
        Stream::Run(_) => bodies.retain(|body| body.kind() != Kind::RunFinished),
        Stream::Rollout(_, rollout) if rollout.0 == 0 => bodies.truncate(9),
        _ => bodies.clear(),
    });
}

fn write(file: &Path, rows: &[Value]) {
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, rows.iter().map(|row| format!("{row}\n")).collect::<String>()).unwrap();
}

fn dive(folder: &Path) {
    let asked = [("Halvor College", "Orsel"), ("Velm College", "Habrar"), ("Torn College", "Venn")];
    let question = |(id, (name, town)): (usize, &(&str, &str))| json!({ "id": id, "question": format!("In which town is {name}?"), "answer": town });
    write(&folder.join("dive/qa_rl.jsonl"), &asked.iter().enumerate().map(question).collect::<Vec<_>>());
    let page =
        |(name, town): &(&str, &str)| json!({ "title": name, "text": format!("{name} is in the town of {town}.") });
    write(&folder.join("pages.jsonl"), &asked.iter().map(page).collect::<Vec<_>>());
}

fn mails(folder: &Path) {
    let mail = |n: u32| {
        json!({ "message_id": format!("<{n}>"), "subject": format!("Note {n}"), "from": "ann@x.example", "to": ["bo@x.example"],
            "date": format!("2031-01-{n:02} 08:00:00"), "body": format!("Bring item {n}.") })
    };
    write(&folder.join("mails/emails.jsonl"), &(1..=9).map(mail).collect::<Vec<_>>());
    let question = |n: u32| {
        json!({ "id": n, "question": format!("What does note {n} ask for?"), "answer": format!("item {n}"),
            "message_ids": [format!("<{n}>")], "inbox_address": "bo@x.example", "query_date": "2031-02-01" })
    };
    write(&folder.join("mails/questions-train.jsonl"), &(2..=4).map(question).collect::<Vec<_>>());
}

fn rows(folder: &Path) {
    let row = |n: u32| {
        json!({ "id": format!("r{n}"), "context_window_id": "w", "context_window_text": "Ann: I rolled a 7.\n", "campaign": "campaign2",
            "question": format!("What was roll {n}?"), "answer": "7", "question_type": "singledoc_rolls", "episodes": [1] })
    };
    write(&folder.join("rows.jsonl"), &(1..=3).map(row).collect::<Vec<_>>());
}

#[test]
fn runs_on_own_data_go_on_where_they_stopped() {
    let recipes =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/logs/textcraft-minecraft.data").display().to_string();
    let worlds: [&[&str]; 4] = [
        &["--env", "deepdive", "--data", "dive", "--env-option", "corpus=pages.jsonl"],
        &["--env", "mail", "--data", "mails", "--env-option", "reward=art-e"],
        &["--env", "oolong", "--data", "rows.jsonl"],
        &["--env", "textcraft", "--data", &recipes, "--verify", "both", "--preset", "easy"],
    ];
    for named in worlds {
        let place = Place::new();
        dive(place.path());
        mails(place.path());
        rows(place.path());
        let whole = place.record_oracle(&[named, &["--seed", "4"]].concat());
        interrupt(&place);
        let resumed = place.json(&["record", "--log", "cut", "--resume", "latest"]);
        assert_eq!(text(&resumed, "content_digest"), text(&whole, "content_digest"), "{named:?}: {resumed}");
        assert_eq!(place.json(&["verify", "--log", "cut"])["intact"], true);
    }
}

#[test]
fn data_that_was_moved_is_named_and_data_that_changed_is_refused() {
    let place = Place::new();
    mails(place.path());
    place.record_oracle(&["--env", "mail", "--data", "mails"]);
    interrupt(&place);
    std::fs::rename(place.path().join("mails"), place.path().join("moved")).unwrap();
    let resume = ["record", "--log", "cut", "--resume", "latest"];
    assert!(place.fails(&resume, 1).contains("mails"));
    let named = [&resume[..], &["--data", "moved"]].concat();
    let file = place.path().join("moved/emails.jsonl");
    let mails = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, mails.replace("item 9", "item 10")).unwrap();
    let error = place.fails(&named, 2);
    assert!(error.contains("`mailbox` differs") && error.contains("--data PATH"), "{error}");
    std::fs::write(&file, mails).unwrap();
    place.out(&named);
}

#[test]
fn a_model_with_a_small_window_and_one_that_knows_nothing_are_noted() {
    let place = Place::new();
    let flags = ["record", "--env", "mail", "--tasks", "1", "--group", "1", "--max-steps", "1", "--max-tokens", "8"];
    let output = place.rao(&flags).output().unwrap();
    let noted = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{noted}");
    assert!(noted.contains("mini was trained in textcraft") && noted.contains("the model's 8192 tokens"), "{noted}");
    let flags = ["record", "--tasks", "1", "--group", "1", "--max-steps", "1"];
    assert!(place.rao(&flags).output().unwrap().stderr.is_empty());
    let error = place.fails(&["record", "--env", "mail", "--context", "9000"], 2);
    assert!(error.contains("8192 positions"), "{error}");
}
