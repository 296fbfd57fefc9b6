//! Questions with exact answers, made from the mails of an inbox.

use super::facts::{FACTS, Fact, cents, facts};
use super::mailbox::{MAX_RESULTS, Mailbox, Search};
use super::message::{Email, thread_subject};
use super::query::{End, Gold, Header, NO_ANSWER, Named, Query, is_reply, mentions, thread};
use super::tokens::words;
use crate::EnvError;
use crate::rng::Rng;

/// A difficulty: how many mails an answer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// Its name, which is also the tasks' difficulty.
    pub name: &'static str,
    /// The fewest and the most mails.
    pub mails: (usize, usize),
}

/// The presets.
pub const PRESETS: [Preset; 3] = [
    Preset { name: "easy", mails: (1, 1) },
    Preset { name: "medium", mails: (2, 3) },
    Preset { name: "hard", mails: (4, 6) },
];

/// The most mails that a count may come to.
const MOST_COUNTED: usize = 24;

/// How many mails are tried before a question of a form is given up.
const TRIES: usize = 60;

/// How many forms are tried before an inbox is given up.
const FORMS: usize = 60;

/// The longest subject that is quoted, in characters.
const MAX_SUBJECT: usize = 120;

/// A form of question, with its share among those of a preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Header(Header),
    Fact(Fact),
    Subject,
    Thread(End),
    ReplyCc,
    Count,
    Sum,
    Largest,
    /// A question like the others of its preset that the inbox does not answer.
    Unanswerable,
}

const EASY: [(Form, u64); 11] = [
    (Form::Header(Header::Sent), 2),
    (Form::Header(Header::To), 1),
    (Form::Header(Header::Cc), 2),
    (Form::Fact(Fact::Phone), 3),
    (Form::Fact(Fact::Amount), 3),
    (Form::Fact(Fact::Time), 2),
    (Form::Fact(Fact::Day), 3),
    (Form::Subject, 2),
    (Form::Thread(End::First), 1),
    (Form::Thread(End::Last), 1),
    (Form::Unanswerable, 3),
];

const MEDIUM: [(Form, u64); 5] =
    [(Form::ReplyCc, 3), (Form::Sum, 3), (Form::Largest, 2), (Form::Count, 2), (Form::Unanswerable, 1)];

const HARD: [(Form, u64); 4] = [(Form::Sum, 4), (Form::Largest, 3), (Form::Count, 3), (Form::Unanswerable, 1)];

impl Preset {
    /// The preset of this name.
    ///
    /// # Errors
    /// [`EnvError::UnknownPreset`].
    pub fn find(name: &str) -> Result<Self, EnvError> {
        PRESETS.into_iter().find(|preset| preset.name == name).ok_or_else(|| EnvError::UnknownPreset {
            given: name.to_owned(),
            env: super::ENV,
            known: PRESETS.map(|preset| preset.name).join(", "),
        })
    }

    /// The preset of questions that need so many mails.
    pub fn of_mails(mails: usize) -> Self {
        let [easy, medium, hard] = PRESETS;
        if mails <= easy.mails.1 {
            easy
        } else if mails <= medium.mails.1 {
            medium
        } else {
            hard
        }
    }

    fn forms(&self) -> &'static [(Form, u64)] {
        match self.name {
            "easy" => &EASY,
            "medium" => &MEDIUM,
            _ => &HARD,
        }
    }
}

/// A question with its exact answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The question.
    pub query: Query,
    /// Its answer.
    pub gold: Gold,
}

/// Makes questions about one inbox.
pub struct Maker<'a> {
    mailbox: &'a Mailbox,
    inbox: &'a str,
    mails: Vec<&'a Email>,
}

impl<'a> Maker<'a> {
    /// A maker for an inbox.
    pub fn new(mailbox: &'a Mailbox, inbox: &'a str) -> Self {
        Self { mailbox, inbox, mails: mailbox.inbox(inbox).collect() }
    }

    /// A question of a preset; `None` if the inbox gives none, as far as the tries go.
    pub(crate) fn make(&self, preset: Preset, rng: &mut Rng) -> Option<Made> {
        let forms = preset.forms();
        let weights: Vec<u64> = forms.iter().map(|(_, weight)| *weight).collect();
        for _ in 0..FORMS {
            let (form, _) = *forms.get(rng.weighted(&weights)?)?;
            if let Some(made) = self.of_form(form, preset, rng) {
                return Some(made);
            }
        }
        None
    }

    fn of_form(&self, form: Form, preset: Preset, rng: &mut Rng) -> Option<Made> {
        for _ in 0..TRIES {
            let answerable = form != Form::Unanswerable;
            let query = if answerable { self.guess(form, preset, rng) } else { self.unanswerable(preset, rng) };
            let Some(query) = query else { continue };
            // What is asked must be what is read, and it must have one answer, which a search can lead to.
            if Query::read(&query.text()).as_ref() != Some(&query) {
                continue;
            }
            let Some(gold) = query.answer(self.mailbox, self.inbox) else { continue };
            let needed = gold.message_ids.len();
            let most =
                if matches!(query, Query::Count { .. }) && preset.mails.0 > 3 { MOST_COUNTED } else { preset.mails.1 };
            let fits = if answerable {
                gold.answer != NO_ANSWER && (preset.mails.0..=most).contains(&needed)
            } else {
                gold.answer == NO_ANSWER
            };
            if fits && self.findable(&query) {
                return Some(Made { query, gold });
            }
        }
        None
    }

    fn guess(&self, form: Form, preset: Preset, rng: &mut Rng) -> Option<Query> {
        let email = *rng.pick(&self.mails)?;
        match form {
            Form::Header(header) => Some(Query::Header { header, mail: named(email)? }),
            Form::Fact(fact) => Some(Query::Fact { fact, mail: named(email)? }),
            Form::Subject => {
                let phrase = opening(email)?;
                Some(Query::Subject { from: email.from_address.to_lowercase(), day: email.day().to_owned(), phrase })
            }
            Form::Thread(end) => {
                let subject = thread_subject(&email.subject);
                let mails = thread(subject, self.mailbox, self.inbox).len();
                (quotable(subject) && mails >= 3).then(|| Query::ThreadEnd { end, subject: subject.to_owned() })
            }
            Form::ReplyCc => {
                let replied = self.mails.iter().any(|other| is_reply(other, email.subject.trim()));
                let original = thread_subject(&email.subject) == email.subject.trim();
                (replied && original).then_some(Query::ReplyCc { mail: named(email)? })
            }
            Form::Count => self.count(email, preset, rng),
            Form::Sum => Some(Query::Sum { mails: self.with_amounts(email, preset, rng)? }),
            Form::Largest => Some(Query::Largest { mails: self.with_amounts(email, preset, rng)? }),
            Form::Unanswerable => None,
        }
    }

    /// How many mails of someone are about something, in a span that begins and ends with one of them.
    fn count(&self, email: &Email, preset: Preset, rng: &mut Rng) -> Option<Query> {
        let phrase = opening(email)?;
        let from = email.from_address.to_lowercase();
        let alike = |other: &&&Email| other.from_address.to_lowercase() == from && mentions(other, &phrase);
        let mut days: Vec<&str> = self.mails.iter().filter(alike).map(|email| email.day()).collect();
        days.sort_unstable();
        let most = if preset.mails.0 > 3 { MOST_COUNTED } else { preset.mails.1 };
        let size = rng.range(preset.mails.0 as u64, days.len().min(most) as u64) as usize;
        let start = rng.below((days.len() + 1).saturating_sub(size) as u64) as usize;
        let (first, last) = (days.get(start)?, days.get(start + size.checked_sub(1)?)?);
        Some(Query::Count { from, phrase, first: (*first).to_owned(), last: (*last).to_owned() })
    }

    /// Some mails that name one amount each; half of the time all from the same sender.
    fn with_amounts(&self, email: &Email, preset: Preset, rng: &mut Rng) -> Option<Vec<Named>> {
        let size = rng.range(preset.mails.0 as u64, preset.mails.1 as u64) as usize;
        let same_sender = rng.below(2) == 0;
        let mut others: Vec<&Email> = self.mails.clone();
        rng.shuffle(&mut others);
        let mut chosen: Vec<Named> = Vec::new();
        for other in std::iter::once(email).chain(others) {
            let fits = !same_sender || other.from_address == email.from_address;
            let mail = if fits && one_amount(other) { named(other) } else { None };
            chosen.extend(mail.filter(|mail| !chosen.contains(mail)));
            if chosen.len() == size {
                return Some(chosen);
            }
        }
        None
    }

    /// A question of the preset's size about something that is not there: a fact that a mail does not give, or a mail
    /// that its sender did not write.
    fn unanswerable(&self, preset: Preset, rng: &mut Rng) -> Option<Query> {
        let (one, other) = (named(rng.pick(&self.mails)?)?, *rng.pick(&self.mails)?);
        let missing = match rng.below(2) {
            0 => one,
            _ => Named { from: other.from_address.to_lowercase(), subject: one.subject },
        };
        if preset.mails.1 == 1 {
            return Some(Query::Fact { fact: *rng.pick(&FACTS)?, mail: missing });
        }
        let mut mails = self.with_amounts(other, preset, rng)?;
        let place = rng.below(mails.len() as u64) as usize;
        *mails.get_mut(place)? = missing;
        let distinct = mails.iter().enumerate().all(|(at, mail)| !mails.iter().skip(at + 1).any(|next| next == mail));
        distinct.then_some(Query::Sum { mails })
    }

    /// Whether the obvious search shows every mail that is needed: fewer hits than one search may give.
    fn findable(&self, query: &Query) -> bool {
        let few = |keyword: &str, from: Option<&str>, day: Option<&str>| {
            let search = Search {
                keywords: vec![keyword.to_owned()],
                from_addr: from.map(str::to_owned),
                sent_after: day.map(str::to_owned),
                sent_before: day.and_then(next_day),
                ..Search::default()
            };
            self.mailbox.search(self.inbox, &search).is_ok_and(|hits| (hits.len() as i64) < MAX_RESULTS)
        };
        let named = |mail: &Named| few(&mail.subject, Some(&mail.from), None);
        match query {
            Query::Header { mail, .. } | Query::Fact { mail, .. } => named(mail),
            Query::Subject { from, day, phrase } => few(phrase, Some(from), Some(day)),
            Query::ThreadEnd { subject, .. } => few(subject, None, None),
            Query::ReplyCc { mail } => named(mail) && few(thread_subject(&mail.subject), None, None),
            Query::Sum { mails } | Query::Largest { mails } => mails.iter().all(named),
            // Spans can be halved until they hold few enough, down to a day.
            Query::Count { from, phrase, first, last } => {
                let mut days: Vec<&str> = self.mails.iter().map(|email| email.day()).collect();
                days.sort_unstable();
                days.dedup();
                let inside = days.iter().filter(|day| **day >= first.as_str() && **day <= last.as_str());
                inside.into_iter().all(|day| few(phrase, Some(from), Some(day)))
            }
        }
    }
}

/// The day after, as text.
pub(super) fn next_day(day: &str) -> Option<String> {
    day.parse::<jiff::civil::Date>().ok()?.tomorrow().ok().map(|day| day.to_string())
}

/// A mail by sender and subject, if its subject can be quoted.
fn named(email: &Email) -> Option<Named> {
    let subject = email.subject.trim();
    quotable(subject).then(|| Named { from: email.from_address.to_lowercase(), subject: subject.to_owned() })
}

fn quotable(subject: &str) -> bool {
    let plain = !subject.chars().any(|letter| letter.is_control() || letter == '"');
    plain && subject.chars().count() <= MAX_SUBJECT && !words(subject).is_empty()
}

/// The first two words of a subject: what a mail is about.
fn opening(email: &Email) -> Option<String> {
    let words = words(thread_subject(&email.subject));
    words.get(..2).map(|pair| pair.join(" "))
}

fn one_amount(email: &Email) -> bool {
    matches!(facts(Fact::Amount, &email.body).as_slice(), [only] if cents(only).is_some())
}
