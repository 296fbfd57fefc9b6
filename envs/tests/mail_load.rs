//! Mailboxes and questions from files, whole and damaged.

#![expect(clippy::unwrap_used, reason = "helpers of tests are not exempt by configuration")]

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use rao_envs::mail::{Mail, MailConfig, Mailbox, QuestionSource};
use rao_envs::{Environment, Selection, Split};

const ROWS: &str = r#"{"message_id": "<1>", "subject": "Hello", "from": "a@x.example", "to": ["b@x.example"], "cc": [], "bcc": null, "date": "2031-05-14T16:39:00Z", "body": "Text one", "file_name": "one"}

{"message_id": "<2>", "subject": null, "from": "b@x.example", "to": "a@x.example", "date": 1936629540000, "body": "Text two"}
"#;

fn write(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn load(path: &Path) -> Mailbox {
    Mailbox::load(path).unwrap()
}

fn error(path: &Path) -> String {
    Mailbox::load(path).unwrap_err().to_string()
}

#[test]
fn jsonl_rows_become_mails() {
    let place = tempfile::tempdir().unwrap();
    write(place.path(), "mails.jsonl", ROWS);
    let mailbox = load(&place.path().join("mails.jsonl"));
    let [one, two] = mailbox.emails() else { panic!("{mailbox:?}") };
    assert_eq!((one.date.as_str(), one.file_name.as_deref()), ("2031-05-14 16:39:00", Some("one")));
    assert_eq!(one.to_addresses, ["b@x.example"]);
    assert!(one.bcc_addresses.is_empty() && two.subject.is_empty() && two.cc_addresses.is_empty());
    assert_eq!((two.date.as_str(), &two.to_addresses), ("2031-05-15 16:39:00", &vec!["a@x.example".to_owned()]));
    assert_eq!(load(place.path()).digest(), mailbox.digest(), "the folder of the file is the same mailbox");
}

#[test]
fn damaged_tables_are_refused_with_file_and_row() {
    let place = tempfile::tempdir().unwrap();
    let good = ROWS.lines().next().unwrap();
    let rows = [
        ("{\"message_id\": ", "line 2: EOF while parsing"),
        ("[1]", "line 2: a row must be a JSON object"),
        (r#"{"message_id": "<3>", "from": "a@x"}"#, "line 2: `date` is missing"),
        (r#"{"message_id": "<3>", "from": "a@x", "date": "soon"}"#, "line 2: `date` must be a date such as"),
        (r#"{"message_id": "<3>", "date": "2031-01-01"}"#, "line 2: `from` is missing"),
        (
            r#"{"message_id": 3, "from": "a@x", "date": "2031-01-01"}"#,
            "line 2: `message_id` must be text, not a whole number",
        ),
        (
            r#"{"message_id": "<3>", "from": "a@x", "date": "2031-01-01", "to": [1]}"#,
            "line 2: `to` must be a list of texts",
        ),
    ];
    for (row, reason) in rows {
        write(place.path(), "bad.jsonl", &format!("{good}\n{row}\n"));
        let said = error(&place.path().join("bad.jsonl"));
        assert!(said.contains("bad.jsonl") && said.contains(reason), "{row}: {said}");
    }
    write(place.path(), "bad.parquet", "PAR1 and then nothing");
    assert!(error(&place.path().join("bad.parquet")).contains("bad.parquet"));
    write(place.path(), "mails.txt", "x");
    assert!(error(&place.path().join("mails.txt")).contains("a mailbox is a .jsonl, .parquet or .mbox file"));
    assert!(error(&place.path().join("missing.jsonl")).contains("No such file"));
    write(place.path(), "empty/empty.jsonl", "\n");
    assert!(error(&place.path().join("empty")).contains("holds no mail"));
    let bytes: &[u8] = b"\xff\xfe{}\n";
    fs::write(place.path().join("latin.jsonl"), bytes).unwrap();
    assert!(error(&place.path().join("latin.jsonl")).contains("line 1"), "not UTF-8");
}

const LIST: &str = "(LIST) { REPEATED GROUP list { OPTIONAL BYTE_ARRAY element (UTF8); } }";

/// Definition and repetition levels of a nullable list of nullable texts.
fn list_levels(rows: &[Vec<&str>]) -> (Vec<ByteArray>, Vec<i16>, Vec<i16>) {
    let (mut values, mut definitions, mut repetitions) = (vec![], vec![], vec![]);
    for row in rows {
        if row.is_empty() {
            definitions.push(1);
            repetitions.push(0);
        }
        for (index, item) in row.iter().enumerate() {
            values.push(ByteArray::from(*item));
            definitions.push(3);
            repetitions.push(i16::from(index > 0));
        }
    }
    (values, definitions, repetitions)
}

#[test]
fn parquet_rows_become_the_same_mails() {
    let place = tempfile::tempdir().unwrap();
    let schema = format!(
        "message mails {{ OPTIONAL BYTE_ARRAY message_id (UTF8); OPTIONAL BYTE_ARRAY subject (UTF8); OPTIONAL BYTE_ARRAY from (UTF8); \
         OPTIONAL GROUP to {LIST} OPTIONAL INT64 date (TIMESTAMP_MICROS); OPTIONAL BYTE_ARRAY body (UTF8); OPTIONAL BYTE_ARRAY \
         file_name (UTF8); }}"
    );
    let schema = Arc::new(parse_message_type(&schema).unwrap());
    let file = File::create(place.path().join("mails.parquet")).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(WriterProperties::default())).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let texts: [Option<[Option<&str>; 2]>; 7] = [
        Some([Some("<1>"), Some("<2>")]),
        Some([Some("Hello"), None]),
        Some([Some("a@x.example"), Some("b@x.example")]),
        None,
        None,
        Some([Some("Text one"), Some("Text two")]),
        Some([Some("one"), None]),
    ];
    let lists = [vec!["b@x.example"], vec!["a@x.example"]];
    for column in texts {
        let mut next = group.next_column().unwrap().unwrap();
        match column {
            Some(cells) => {
                let values: Vec<ByteArray> = cells.iter().flatten().map(|text| ByteArray::from(*text)).collect();
                let levels = cells.map(|cell| i16::from(cell.is_some()));
                next.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
            }
            None if matches!(next.untyped(), parquet::column::writer::ColumnWriter::Int64ColumnWriter(_)) => {
                let stamps = [1_936_543_140_000_000, 1_936_629_540_000_000];
                next.typed::<Int64Type>().write_batch(&stamps, Some(&[1, 1]), None).unwrap();
            }
            None => {
                let (values, definitions, repetitions) = list_levels(&lists);
                next.typed::<ByteArrayType>().write_batch(&values, Some(&definitions), Some(&repetitions)).unwrap();
            }
        }
        next.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();

    write(place.path(), "mails.jsonl", ROWS);
    let tables = [load(&place.path().join("mails.parquet")), load(&place.path().join("mails.jsonl"))];
    assert_eq!(tables[0].emails(), tables[1].emails());

    let whole = fs::read(place.path().join("mails.parquet")).unwrap();
    fs::write(place.path().join("cut.parquet"), &whole[..whole.len() - 20]).unwrap();
    assert!(error(&place.path().join("cut.parquet")).contains("cut.parquet"));
}

const MESSAGE: &str = "From: Ann <Ann@X.example>\r\nTo: Bo <bo@x.example>, cy@x.example\r\nCc: di@x.example\r\nSubject: =?utf-8?q?Caf=C3=A9?=\r\nDate: Wed, 14 May 2031 18:39:00 +0200\r\nMessage-ID: <one@x.example>\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nLine one\r\nLine two\r\n";

#[test]
fn mbox_and_maildir_hold_the_same_mail() {
    let place = tempfile::tempdir().unwrap();
    let plain =
        "From: bo@x.example\nTo: ann@x.example\nSubject: Second\nDate: Thu, 15 May 2031 08:00:00 +0000\n\nHello\n";
    let undated = "From: bo@x.example\nSubject: Third\n\nNo date\n";
    let html = "From: cy@x.example\nTo: ann@x.example\nSubject: Rich\nDate: Fri, 16 May 2031 08:00:00 +0000\nMessage-ID: <h@x>\nContent-Type: text/html\n\n<p>Some <b>bold</b> words</p>\n";
    let mut mbox = String::new();
    for (message, from) in [(MESSAGE, "Ann"), (plain, "bo"), (undated, "bo"), (html, "cy")] {
        mbox.push_str(&format!("From {from}@x Wed May 14 18:39:00 2031\n{message}\n"));
    }
    write(place.path(), "all.mbox", &mbox);
    let from_mbox = load(&place.path().join("all.mbox"));
    assert_eq!(from_mbox.emails().len(), 3);
    assert_eq!(from_mbox.dropped().incomplete, 1);
    let one = &from_mbox.emails()[0];
    assert_eq!((one.message_id.as_str(), one.subject.as_str()), ("<one@x.example>", "Café"));
    assert_eq!((one.date.as_str(), one.from_address.as_str()), ("2031-05-14 16:39:00", "Ann@X.example"));
    assert_eq!((one.to_addresses.len(), &one.cc_addresses), (2, &vec!["di@x.example".to_owned()]));
    assert_eq!(one.body.trim(), "Line one\nLine two");
    assert!(from_mbox.emails()[1].message_id.ends_with("@no-id>"));
    assert!(from_mbox.emails()[2].body.contains("bold") && !from_mbox.emails()[2].body.contains("<b>"));

    write(place.path(), "md/cur/1:2,S", MESSAGE);
    write(place.path(), "md/new/2", plain);
    write(place.path(), "md/tmp/3", "still coming");
    write(place.path(), "md/dovecot.index", "not a mail");
    write(place.path(), "md/.Sent/cur/4", html);
    let maildir = load(&place.path().join("md"));
    let subjects: Vec<&str> = maildir.emails().iter().map(|email| email.subject.as_str()).collect();
    assert_eq!(subjects, ["Rich", "Café", "Second"], "by name, subfolders too");
    assert_eq!(maildir.dropped().total(), 0);
    assert_eq!(maildir.emails()[1].file_name.as_deref(), Some("cur/1:2,S"));

    write(place.path(), "tree/ann/sent/1.", MESSAGE);
    write(place.path(), "tree/ann/inbox/1.", plain);
    assert_eq!(load(&place.path().join("tree")).emails().len(), 2, "a plain tree of messages");

    write(place.path(), "bad.mbox", "Hello\n");
    assert!(error(&place.path().join("bad.mbox")).contains("begins with a line that begins with `From `"));
}

const QUESTIONS: &str = r#"{"id": 1, "question": "Who says hello?", "answer": "Ann", "message_ids": ["<1>"], "how_realistic": 0.9, "inbox_address": "b@x.example", "query_date": "2031-06-01"}
{"id": 49, "question": "Bad?", "answer": "Yes", "message_ids": ["<1>"], "inbox_address": "b@x.example", "query_date": "2031-06-01"}
{"id": 2, "question": "Gone?", "answer": "Yes", "message_ids": ["<9>"], "inbox_address": "b@x.example", "query_date": "2031-06-01"}
{"id": 3, "question": "Both?", "answer": "Yes", "message_ids": ["<1>", "<2>"], "how_realistic": 1, "inbox_address": "b@x.example", "query_date": "2031-06-01"}
"#;

fn select(mail: &Mail, split: Split, presets: &[&str]) -> Vec<String> {
    let presets = presets.iter().map(|&name| name.to_owned()).collect();
    let tasks = mail.tasks(&Selection { presets, split, count: None, seed: 0 }).unwrap();
    tasks.into_iter().map(|task| task.id).collect()
}

fn open(place: &Path) -> Result<Mail, String> {
    Mail::new(MailConfig { data: Some(place.to_path_buf()), ..MailConfig::default() })
        .map_err(|error| error.to_string())
}

#[test]
fn questions_come_in_the_real_columns() {
    let place = tempfile::tempdir().unwrap();
    write(place.path(), "emails.jsonl", ROWS);
    write(place.path(), "questions-train.jsonl", QUESTIONS);
    let mail = open(place.path()).unwrap();
    let questions = mail.questions().unwrap();
    assert_eq!((questions.asked.len(), questions.excluded, questions.unsupported), (2, 1, 1));
    assert_eq!(select(&mail, Split::Train, &["easy"]), ["easy.train.1"]);
    assert_eq!(select(&mail, Split::Train, &["medium"]), ["medium.train.3"]);
    assert_eq!(select(&mail, Split::Val, &["easy", "hard"]), Vec::<String>::new());
    let few = mail.tasks(&Selection { presets: vec!["easy".into()], split: Split::Train, count: Some(2), seed: 0 });
    assert!(few.unwrap_err().to_string().contains("only 1"));

    for (row, reason) in [
        (r#"{"question": "x"}"#, "line 1: `id` is missing"),
        (r#"{"id": "7", "question": "x"}"#, "line 1: `id` must be a whole number, not text"),
        (r#"{"id": 7, "message_ids": [], "question": "x"}"#, "`message_ids` names no mail"),
        (
            r#"{"id": 7, "message_ids": ["<1>"], "question": "x", "answer": "y", "inbox_address": "z"}"#,
            "`query_date` is missing",
        ),
    ] {
        write(place.path(), "questions-train.jsonl", row);
        let said = open(place.path()).unwrap_err();
        assert!(said.contains("questions-train.jsonl") && said.contains(reason), "{row}: {said}");
    }
    write(place.path(), "questions-train.jsonl", &QUESTIONS.lines().nth(1).unwrap().replace("<1>", "<9>"));
    assert!(open(place.path()).unwrap_err().contains("none of its questions is about a mail in the mailbox"));
    let config =
        MailConfig { data: Some(place.path().into()), questions: QuestionSource::Generated, ..MailConfig::default() };
    assert!(Mail::new(config).unwrap().questions().is_none());
}

#[test]
fn questions_come_as_parquet_too() {
    let place = tempfile::tempdir().unwrap();
    write(place.path(), "emails.jsonl", ROWS);
    fs::create_dir(place.path().join("questions")).unwrap();
    let schema = format!(
        "message questions {{ OPTIONAL INT64 id; OPTIONAL BYTE_ARRAY question (UTF8); OPTIONAL BYTE_ARRAY answer (UTF8); OPTIONAL GROUP \
         message_ids {LIST} OPTIONAL DOUBLE how_realistic; OPTIONAL BYTE_ARRAY inbox_address (UTF8); OPTIONAL BYTE_ARRAY query_date \
         (UTF8); }}"
    );
    let schema = Arc::new(parse_message_type(&schema).unwrap());
    let file = File::create(place.path().join("questions/test-00000-of-00001.parquet")).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(WriterProperties::default())).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let texts = ["", "Who says hello?", "Ann", "", "", "b@x.example", "2031-06-01"];
    for (index, text) in texts.into_iter().enumerate() {
        let mut next = group.next_column().unwrap().unwrap();
        match index {
            0 => next.typed::<Int64Type>().write_batch(&[5], Some(&[1]), None).unwrap(),
            3 => {
                let (values, definitions, repetitions) = list_levels(&[vec!["<1>"]]);
                next.typed::<ByteArrayType>().write_batch(&values, Some(&definitions), Some(&repetitions)).unwrap()
            }
            4 => next.typed::<DoubleType>().write_batch(&[0.8], Some(&[1]), None).unwrap(),
            _ => next.typed::<ByteArrayType>().write_batch(&[ByteArray::from(text)], Some(&[1]), None).unwrap(),
        };
        next.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
    let mail = open(place.path()).unwrap();
    let [asked] = mail.questions().unwrap().asked.as_slice() else { panic!("one question") };
    assert_eq!((asked.id, asked.split, asked.how_realistic), (5, Split::Val, Some(0.8)));
    assert_eq!(asked.message_ids, ["<1>"]);
}
