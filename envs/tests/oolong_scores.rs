//! The scorers of Oolong with every quirk.

use rao_envs::oolong::{
    AnswerType, boxed, read_date, score_dnd, score_dnd_strict, score_synth, score_synth_strict, synth_candidate,
};

/// Gold, answer, score as upstream gives it, strict score.
const DND: &[(&str, &str, f64, f64)] = &[
    // Numbers: by distance.
    ("84", r"\boxed{84}", 1.0, 1.0),
    ("84", r"The answer is $\boxed{84}$.", 1.0, 1.0),
    ("84", r"\boxed{85}", 0.75, 0.75),
    ("84", r"\boxed{82}", 0.5625, 0.5625),
    ("84", r"\boxed{ 84 }", 1.0, 1.0),
    ("84", r"\boxed{+84}", 1.0, 1.0),
    ("1000", r"\boxed{1_000}", 1.0, 1.0),
    ("-3", r"\boxed{-3}", 1.0, 1.0),
    ("0", r"\boxed{-1}", 0.75, 0.75),
    ("5", r"\boxed{99999999999999999999}", 0.0, 0.0),
    // Other types than the gold's are wrong.
    ("84", r"\boxed{84.0}", 0.0, 0.0),
    ("84", r"\boxed{84%}", 0.0, 0.0),
    ("84", r"\boxed{eighty-four}", 0.0, 0.0),
    ("84", r"\boxed{}", 0.0, 0.0),
    ("1000", r"\boxed{1,000}", 0.0, 0.0),
    // Without a box nothing is read.
    ("84", "84", 0.0, 0.0),
    ("84", "84%", 0.0, 0.0),
    ("84", "The total is 84.", 0.0, 0.0),
    ("84", r"\boxed{84", 0.0, 0.0),
    ("84", r"boxed{84}", 0.0, 0.0),
    // The box and its text.
    ("84", r"\boxed{\text{84}}", 1.0, 1.0),
    ("84", r"\boxed{{84}}", 1.0, 1.0),
    ("84", r"\boxed{83} and then \boxed{84}", 0.75, 0.75),
    ("84", r"\boxed{7} and then \boxed{\text{84}}", 1.0, 1.0),
    ("Fjord", r"\boxed{\textbf{Fjord}}", 0.0, 0.0),
    // Names: space and case do not count.
    ("Fjord", r"\boxed{Fjord}", 1.0, 1.0),
    ("Fjord", r"\boxed{ fjord }", 1.0, 1.0),
    ("Fjord", "fjord", 1.0, 1.0),
    ("Fjord", " Fjord\n", 1.0, 1.0),
    ("Fjord", "It is Fjord", 0.0, 0.0),
    ("Fjord", r"\boxed{Molly}", 0.0, 0.0),
    ("Fjord", r"\boxed{Fjord, Molly}", 0.0, 2.0 / 3.0),
    // Lists: the share of the gold items, in any order; case counts, extra items do not.
    ("Fjord, Molly", r"\boxed{Fjord, Molly}", 1.0, 1.0),
    ("Fjord, Molly", r"\boxed{Molly,Fjord}", 1.0, 1.0),
    ("Fjord, Molly", r"\boxed{Fjord, Nott}", 0.5, 0.5),
    ("Fjord, Molly", r"\boxed{fjord, molly}", 0.0, 1.0),
    ("Fjord, Molly", r"\boxed{Fjord, Molly, Nott, Jester}", 1.0, 2.0 / 3.0),
    ("Fjord, Molly", r"\boxed{Fjord}", 0.0, 2.0 / 3.0),
    ("Fjord, Molly", r"\boxed{Fjord,}", 0.5, 2.0 / 3.0),
    ("Fjord, Molly", "Fjord, Molly", 0.0, 0.0),
    ("Fjord, Fjord", r"\boxed{Fjord, x}", 0.5, 2.0 / 3.0),
    ("12, 14", r"\boxed{14, 12}", 1.0, 1.0),
    ("12, 14", r"\boxed{12}", 0.0, 2.0 / 3.0),
    ("", r"\boxed{}", 1.0, 1.0),
];

#[test]
fn dnd_answers_score_as_upstream_scores_them() {
    for &(gold, answer, expected, strict) in DND {
        assert_eq!(score_dnd(gold, answer), expected, "{gold:?} against {answer:?}");
        assert!((score_dnd_strict(gold, answer) - strict).abs() < 1e-12, "strict: {gold:?} against {answer:?}");
    }
    assert!(DND.len() >= 30);
    assert_eq!(boxed(r"a \boxed{\text{b c}} d"), Some("b c"));
}

/// Gold, type, answer, score, strict score.
const SYNTH: &[(&str, AnswerType, &str, f64, f64)] = &[
    ("['ham']", AnswerType::Other, "Label: ham", 1.0, 1.0),
    ("['ham']", AnswerType::Other, "Label: **ham**", 1.0, 1.0),
    ("['ham']", AnswerType::Other, "Label: [ham]", 1.0, 1.0),
    ("['ham']", AnswerType::Other, "Label: Ham", 0.0, 1.0),
    ("['ham']", AnswerType::Other, "Label: ham.", 0.0, 1.0),
    ("['ham']", AnswerType::Other, "ham", 1.0, 1.0),
    ("['ham']", AnswerType::Other, "I believe that the label is ham", 1.0, 1.0),
    ("['ham']", AnswerType::Other, "note: the label is: ham", 1.0, 1.0),
    ("['ham']", AnswerType::Other, "Label: spam", 0.0, 0.0),
    ("[\"it's\"]", AnswerType::Other, "Answer: it's", 1.0, 1.0),
    ("['a, b', 'c']", AnswerType::Other, "Answer: a, b", 1.0, 1.0),
    ("['more common than']", AnswerType::Other, "Answer: more common", 1.0, 1.0),
    ("['more common than']", AnswerType::Other, "Answer: ham is more common than spam here", 1.0, 1.0),
    ("['more common than']", AnswerType::Other, "Answer: ham is less common than spam here", 0.0, 0.0),
    ("['same frequency as']", AnswerType::Other, "So: they have the same frequency as far as I see", 1.0, 1.0),
    ("[42]", AnswerType::Numeric, "Answer: 42", 1.0, 1.0),
    ("[42]", AnswerType::Numeric, "Answer: 40", 0.5625, 0.5625),
    ("[42]", AnswerType::Numeric, "Answer: about forty", 0.0, 0.0),
    ("[42]", AnswerType::Numeric, "41", 0.75, 0.75),
    ("[datetime.date(2023, 1, 5)]", AnswerType::Date, "Date: 2023-01-05", 1.0, 1.0),
    ("[datetime.date(2023, 1, 5)]", AnswerType::Date, "Date: Jan 5, 2023", 1.0, 1.0),
    ("[datetime.date(2023, 1, 5)]", AnswerType::Date, "Date: 01/05/2023", 1.0, 1.0),
    ("[datetime.date(2023, 1, 5)]", AnswerType::Date, "Date: Thursday, 5th of January 2023", 1.0, 1.0),
    ("[datetime.date(2023, 1, 5)]", AnswerType::Date, "Date: 2023-01-06", 0.0, 0.0),
    ("[datetime.date(2023, 1, 5)]", AnswerType::Date, "Date: unknown", 0.0, 0.0),
];

#[test]
fn synth_answers_score_as_upstream_scores_them() {
    for &(gold, kind, answer, expected, strict) in SYNTH {
        assert_eq!(score_synth(gold, kind, answer), Some(expected), "{gold:?} against {answer:?}");
        assert_eq!(score_synth_strict(gold, kind, answer), Some(strict), "strict: {gold:?} against {answer:?}");
    }
    for damaged in ["ham", "['ham", "[]", "[datetime.date(2023, 13, 5)]", "[datetime.date(2023)]"] {
        assert_eq!(score_synth(damaged, AnswerType::Other, "Answer: ham"), None, "{damaged}");
    }
    assert_eq!(synth_candidate("a long answer without any such sign"), "sign");
    assert_eq!(AnswerType::of("ANSWER_TYPE.DATE"), AnswerType::Date);
}

#[test]
fn dates_are_read_in_many_forms() {
    let expected = read_date("2001-03-05");
    assert!(expected.is_some());
    for text in [
        "March 5, 2001",
        "5 March 2001",
        "3/5/2001",
        "03/05/01",
        "Mon, Mar 5th 2001",
        "2001/3/5",
        "on the 5th of march 2001",
    ] {
        assert_eq!(read_date(text), expected, "{text}");
    }
    assert_eq!(read_date("25/12/2020"), read_date("2020-12-25"), "a month cannot be 25");
    for text in ["", "March 2001", "5 March", "2001", "31 April 2001", "29 Feb 2001", "March April 5 2001", "soon"] {
        assert_eq!(read_date(text), None, "{text}");
    }
}
