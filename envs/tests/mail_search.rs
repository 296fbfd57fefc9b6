//! `search_emails` and `read_email`: a table of what upstream does, and a comparison with a model that looks at every mail.

#![expect(clippy::unwrap_used, reason = "helpers of tests are not exempt by configuration")]

use proptest::prelude::*;
use rao_envs::mail::{Email, Mailbox, Search, SearchError};

fn email(number: usize, from: &str, to: &[&str], date: &str, subject: &str, body: &str) -> Email {
    Email {
        message_id: format!("<{number}@test>"),
        date: date.to_owned(),
        subject: subject.to_owned(),
        from_address: from.to_owned(),
        to_addresses: to.iter().map(|&address| address.to_owned()).collect(),
        cc_addresses: vec![],
        bcc_addresses: vec![],
        body: body.to_owned(),
        file_name: None,
    }
}

fn search(keywords: &[&str]) -> Search {
    Search { keywords: keywords.iter().map(|&keyword| keyword.to_owned()).collect(), ..Search::default() }
}

fn sample() -> Mailbox {
    let mut copied = email(4, "bo@x", &["cy@x"], "2031-03-01 00:00:00", "Plan B", "The red door is shut.");
    copied.cc_addresses = vec!["di@x".to_owned()];
    copied.bcc_addresses = vec!["Ann@X".to_owned()];
    Mailbox::new([
        email(1, "ann@x", &["bo@x"], "2031-01-05 10:00:00", "Red door", "Where is the key?"),
        email(2, "bo@x", &["ann@x"], "2031-02-28 23:59:59", "Re: Red door", "Under the mat. The door is red."),
        email(3, "bo@x", &["cy@x"], "2031-02-01 12:00:00", "Red door", "Not for Ann."),
        copied,
        email(5, "cy@x", &["ann@x"], "2031-03-01 00:00:00", "café", "Crème brûlée; red, door."),
    ])
}

fn ids(mailbox: &Mailbox, search: &Search) -> Vec<String> {
    let hits = mailbox.search("ann@x", search).unwrap();
    hits.into_iter().map(|hit| hit.message_id.trim_matches(['<', '>']).replace("@test", "")).collect()
}

#[test]
fn searches_as_upstream_answers_them() {
    let mailbox = sample();
    let base = || search(&["red door"]);
    let rows: [(Search, &[&str], &str); 17] = [
        // Equal dates stay in the order they were loaded.
        (base(), &["4", "5", "2", "1"], "a phrase, newest first, only mail from, to, cc or bcc the inbox"),
        (search(&["red", "key"]), &["1"], "subject and text count as one"),
        (search(&["door red"]), &[], "the words of a phrase are in order"),
        (search(&["RED-DOOR!"]), &["4", "5", "2", "1"], "case and punctuation do not matter"),
        (search(&["creme brulee"]), &["5"], "nor do diacritics"),
        (search(&["red door", "wolf"]), &[], "every keyword must be there"),
        (search(&["..."]), &[], "nothing but punctuation finds nothing"),
        (search(&["...", "red door"]), &["4", "5", "2", "1"], "and beside a word it does not matter"),
        (search(&["do"]), &[], "words are whole"),
        (Search { from_addr: Some("bo@x".into()), ..base() }, &["4", "2"], "from"),
        (Search { from_addr: Some("bo".into()), ..base() }, &[], "addresses are whole"),
        (Search { to_addr: Some("di@x".into()), ..base() }, &["4"], "copies are sent to as well"),
        (
            Search { to_addr: Some("ann@x".into()), ..base() },
            &["4", "5", "2"],
            "blind copies too, in any case of letters",
        ),
        (Search { sent_after: Some("2031-03-01".into()), ..base() }, &["4", "5"], "the first day is included"),
        (Search { sent_before: Some("2031-03-01".into()), ..base() }, &["2", "1"], "the last day is not"),
        (Search { max_results: Some(1), ..base() }, &["4"], "as many as wanted"),
        (
            Search { sent_after: Some("03/01/2031".into()), ..base() },
            &["4", "5", "2", "1"],
            "dates are compared as text",
        ),
    ];
    for (search, expected, why) in rows {
        assert_eq!(ids(&mailbox, &search), expected, "{why}: {search:?}");
    }
}

#[test]
fn searches_that_are_refused() {
    let mailbox = sample();
    let refused = |search: &Search| mailbox.search("ann@x", search).unwrap_err();
    assert_eq!(refused(&Search::default()).to_string(), "No keywords provided for search.");
    let many = Search { max_results: Some(11), ..search(&["x"]) };
    assert_eq!(refused(&many).to_string(), "max_results must be less than or equal to 10.");
    assert_eq!(refused(&Search { max_results: Some(-1), ..search(&["x"]) }), SearchError::TooFew);
    assert_eq!(mailbox.search("ann@x", &Search { max_results: Some(0), ..search(&["red"]) }), Ok(vec![]));
    assert_eq!(mailbox.search("nobody@x", &search(&["red"])), Ok(vec![]));
}

#[test]
fn a_hit_shows_where_it_was_found() {
    let hits = sample().search("ann@x", &search(&["mat"])).unwrap();
    assert_eq!(hits[0].snippet, "Under the <b>mat</b>. The door is red.");
}

#[test]
fn mails_are_left_out_as_upstream_does() {
    let long = "x".repeat(5_001);
    let full = "é".repeat(5_000);
    let crowd: Vec<String> = (0..31).map(|number| format!("{number}@x")).collect();
    let crowd: Vec<&str> = crowd.iter().map(String::as_str).collect();
    let mailbox = Mailbox::new([
        email(1, "a@x", &["b@x"], "2031-01-01 00:00:00", "s", &long),
        email(2, "a@x", &["b@x"], "2031-01-01 00:00:00", "s", &full),
        email(3, "a@x", &crowd, "2031-01-01 00:00:00", "s", "many"),
        email(4, "a@x", &crowd[..30], "2031-01-01 00:00:00", "s", "many"),
        email(5, "a@x", &["c@x"], "2032-01-01 00:00:00", "s", "many"),
        email(6, "b@x", &["c@x"], "2032-01-01 00:00:00", "s", "many"),
        email(6, "c@x", &["c@x"], "2032-01-01 00:00:00", "s", "another"),
    ]);
    let kept: Vec<&str> = mailbox.emails().iter().map(|email| email.message_id.as_str()).collect();
    assert_eq!(kept, ["<2@test>", "<4@test>", "<6@test>"]);
    let dropped = mailbox.dropped();
    assert_eq!((dropped.long, dropped.crowded, dropped.duplicates, dropped.same_id), (1, 1, 1, 1));
    assert_eq!(mailbox.read("<6@test>").unwrap().from_address, "b@x");
    assert!(mailbox.read("<5@test>").is_none());
}

/// The words of a text, for a model: plain ASCII only.
fn split(text: &str) -> Vec<String> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect()
}

/// What a search finds, mail by mail.
fn model(emails: &[Email], inbox: &str, search: &Search) -> Vec<String> {
    let keywords: Vec<Vec<String>> = search.keywords.iter().map(|keyword| split(keyword)).collect();
    if keywords.iter().all(Vec::is_empty) {
        return vec![];
    }
    let mut found: Vec<&Email> = emails
        .iter()
        .filter(|email| email.from_address == inbox || email.recipients().any(|address| address == inbox))
        .filter(|email| {
            let fields = [split(&email.subject), split(&email.body)];
            keywords
                .iter()
                .filter(|keyword| !keyword.is_empty())
                .all(|keyword| fields.iter().any(|field| field.windows(keyword.len()).any(|window| window == keyword)))
        })
        .filter(|email| search.from_addr.as_ref().is_none_or(|from| email.from_address == *from))
        .filter(|email| search.to_addr.as_ref().is_none_or(|to| email.recipients().any(|address| address == to)))
        .filter(|email| search.sent_after.as_ref().is_none_or(|day| email.date[..10] >= **day))
        .filter(|email| search.sent_before.as_ref().is_none_or(|day| email.date[..10] < **day))
        .collect();
    found.sort_by(|a, b| b.date.cmp(&a.date));
    found.truncate(search.max_results.unwrap_or(10) as usize);
    found.into_iter().map(|email| email.message_id.clone()).collect()
}

fn word() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["red", "Red", "door", "key", "plan", "b", "-", "the"])
}

fn text(most: usize) -> impl Strategy<Value = String> {
    prop::collection::vec(word(), 0..most).prop_map(|words| words.join(" "))
}

fn address() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a@x", "b@x", "c@x"])
}

fn day() -> impl Strategy<Value = String> {
    (1..4_u8).prop_map(|day| format!("2031-01-0{day}"))
}

prop_compose! {
    fn mail()(from in address(), to in address(), cc in prop::option::of(address()), day in day(), hour in 0..3_u8,
              subject in text(4), body in text(12)) -> Email {
        let mut email = email(0, from, &[to], &format!("{day} 0{hour}:00:00"), &subject, &body);
        email.cc_addresses = cc.into_iter().map(str::to_owned).collect();
        email
    }
}

prop_compose! {
    fn searches()(keywords in prop::collection::vec(text(4), 1..3), from_addr in prop::option::of(address()),
                  to_addr in prop::option::of(address()), sent_after in prop::option::of(day()),
                  sent_before in prop::option::of(day()), max_results in prop::option::of(0..11_i64)) -> Search {
        let own = |address: Option<&'static str>| address.map(str::to_owned);
        Search { keywords, from_addr: own(from_addr), to_addr: own(to_addr), sent_after, sent_before, max_results }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_index_finds_what_a_look_at_every_mail_finds(
        mails in prop::collection::vec(mail(), 0..25),
        inbox in address(),
        search in searches(),
    ) {
        let mails = mails.into_iter().enumerate().map(|(number, email)| Email {
            message_id: format!("<{number}>"), ..email
        });
        let mailbox = Mailbox::new(mails);
        let hits = mailbox.search(inbox, &search).unwrap();
        let found: Vec<String> = hits.iter().map(|hit| hit.message_id.clone()).collect();
        prop_assert_eq!(found, model(mailbox.emails(), inbox, &search));
        for hit in &hits {
            prop_assert!(hit.snippet.contains("<b>"), "{}", hit.snippet);
        }
    }
}
