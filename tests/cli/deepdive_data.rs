//! Questions and pages in Parquet files, as the DeepDive data set is published, and such files that are none.

use std::path::Path;

use rao_testkit::{Column, write_parquet};

use crate::common::Place;

type Columns<'a> = &'a [(&'a str, Column<'a>)];

const QUESTIONS: [Option<&str>; 3] = [
    Some("In which town was the founder of Halvor College born?"),
    Some("Who taught the engraver Ilva Torn?"),
    Some("In which year was the Tessel Bridge opened?"),
];
const ANSWERS: [Option<&str>; 3] = [Some("Orsel"), Some("Mara Venn"), Some("1871")];

/// The data set's columns, in its order; only its file of trajectories has conversations.
fn questions(file: &Path) {
    let turns: [&[(&str, &str)]; 3] = [&[], &[("user", "Who?"), ("assistant", "She.")], &[]];
    let columns = [
        ("id", Column::Whole(&[Some(7), Some(8), Some(9)])),
        ("question", Column::Texts(&QUESTIONS)),
        ("answer", Column::Texts(&ANSWERS)),
        ("conversations", Column::Turns(&turns)),
    ];
    write_parquet(file, &columns);
}

fn pages(file: &Path) {
    let titles = [Some("Halvor College"), Some("Ilva Torn"), Some("Tessel Bridge")];
    let texts = [
        Some("Halvor College was founded by Mara Venn, who was born in the town of Orsel."),
        Some("The engraver Ilva Torn was taught by Mara Venn."),
        Some("The Tessel Bridge was opened in 1871."),
    ];
    write_parquet(file, &[("title", Column::Texts(&titles)), ("text", Column::Texts(&texts))]);
}

const RECORD: [&str; 10] = [
    "record",
    "--env",
    "deepdive",
    "--policy",
    "oracle",
    "--tokenizer",
    "bytes",
    "--env-option",
    "corpus=pages.parquet",
    "--data",
];

#[test]
fn questions_and_pages_are_read_from_parquet() {
    let place = Place::new();
    std::fs::create_dir_all(place.path().join("dive/data")).unwrap();
    questions(&place.path().join("dive/data/qa_rl-00000-of-00001.parquet"));
    // The trajectories' questions are among those of `qa_sft` and are left out.
    questions(&place.path().join("dive/data/trajectories_sft-00000-of-00001.parquet"));
    pages(&place.path().join("pages.parquet"));
    let run = place.json(&[&RECORD[..], &["dive", "--tasks", "all", "--group", "1"]].concat());
    assert_eq!((run["rollouts"].as_u64(), run["solved"].as_u64()), (Some(3), Some(3)), "{run}");
    let shown = place.json(&["show", "latest"]);
    let tasks: Vec<&str> =
        shown["rollouts"].as_array().unwrap().iter().map(|row| row["task"].as_str().unwrap()).collect();
    assert_eq!(tasks, ["deepdive.7", "deepdive.8", "deepdive.9"]);
    let replayed = place.json(&["replay", "--check", "tools", "--data", "pages.parquet"]);
    assert!(replayed["divergence"].is_null(), "{replayed}");
    let val = [&RECORD[..], &["dive", "--split", "val", "--tasks", "1"]].concat();
    assert!(place.fails(&val, 2).contains("has only 0"), "`qa_rl` is for training");
}

#[test]
fn files_that_are_no_such_table_are_refused_by_row_and_column() {
    let place = Place::new();
    let at = |name: &str| place.path().join(name);
    questions(&at("good.parquet"));
    pages(&at("pages.parquet"));
    let fails = |file: &str, said: &[&str]| {
        let output = place.rao(&[&RECORD[..], &[file, "--tasks", "1"]].concat()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).replace("\n  │ ", "").replace('\n', " ");
        assert_eq!(output.status.code(), Some(1), "{file}: {error}");
        for part in said.iter().chain(&[file]) {
            assert!(error.contains(part), "{file}: {part:?} is not in {error}");
        }
        assert!(!place.log().exists());
    };
    let ids = Column::Whole(&[Some(7), Some(8), Some(9)]);
    let (asked, answers) = (Column::Texts(&QUESTIONS), Column::Texts(&ANSWERS));
    let tables: [(&str, Columns<'_>, &[&str]); 7] = [
        (
            "other.parquet",
            &[("id", ids), ("prompt", asked), ("answer", answers)],
            &["row 1", "no column `question`, only id, prompt, answer"],
        ),
        ("none.parquet", &[("id", ids), ("question", asked)], &["row 1", "no column `answer`"]),
        (
            "number.parquet",
            &[("id", ids), ("question", asked), ("answer", ids)],
            &["row 1", "`answer` must be text, not a number"],
        ),
        (
            "null.parquet",
            &[("id", ids), ("question", asked), ("answer", Column::Texts(&[Some("Orsel"), None, Some("1871")]))],
            &["row 2", "`answer` is null"],
        ),
        (
            "blank.parquet",
            &[("id", ids), ("question", Column::Texts(&[QUESTIONS[0], QUESTIONS[1], Some(" ")])), ("answer", answers)],
            &["row 3", "`question` is empty"],
        ),
        (
            "nameless.parquet",
            &[("id", Column::Whole(&[Some(7), None, Some(9)])), ("question", asked), ("answer", answers)],
            &["row 2", "`id` must be text or a whole number, not null"],
        ),
        (
            "empty.parquet",
            &[("id", Column::Whole(&[])), ("question", Column::Texts(&[])), ("answer", Column::Texts(&[]))],
            &["no questions"],
        ),
    ];
    for (file, columns, said) in tables {
        write_parquet(&at(file), columns);
        fails(file, said);
    }
    let whole = std::fs::read(at("good.parquet")).unwrap();
    for (file, length) in [("half.parquet", whole.len() / 2), ("tail.parquet", whole.len() - 1), ("nothing.parquet", 0)]
    {
        std::fs::write(at(file), &whole[..length]).unwrap();
        fails(file, &["no whole Parquet file", "cut short"]);
    }
    // A byte that changed on the way is an error or an answer that reads otherwise, never a crash.
    for part in 0..12 {
        let mut bytes = whole.clone();
        let place_of_it = 4 + part * (whole.len() - 12) / 12;
        bytes[place_of_it] ^= 0x55;
        std::fs::write(at("flipped.parquet"), bytes).unwrap();
        let output = place.rao(&[&RECORD[..], &["flipped.parquet", "--tasks", "1"]].concat()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(matches!(output.status.code(), Some(0..=2)), "byte {place_of_it}: {error}");
    }
}
