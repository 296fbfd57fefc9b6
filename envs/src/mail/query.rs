//! Questions with a form: each is written as one sentence, read back from it, and answered exactly from a mailbox.
//!
//! A child's goal that has one of these forms is checked against its exact answer, whoever asked it.

use serde::{Deserialize, Serialize};

use super::facts::{Fact, amount, cents, facts};
use super::mailbox::{Mailbox, same_address};
use super::message::{Email, thread_subject};
use super::pattern::{fill, read};
use super::tokens::words;

/// The answer where there is none.
pub const NO_ANSWER: &str = "I don't know";

/// A mail by sender and exact subject.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Named {
    /// The sender's address.
    pub from: String,
    /// The whole subject.
    pub subject: String,
}

/// A header of a mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Header {
    /// The day it was sent.
    Sent,
    /// Addresses in To.
    To,
    /// Addresses in Cc.
    Cc,
}

/// An end of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// The oldest mail.
    First,
    /// The newest mail.
    Last,
}

/// A question about the mails of one inbox.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Query {
    /// A header of a mail.
    Header {
        /// Which.
        header: Header,
        /// Of which mail.
        mail: Named,
    },
    /// The only fact of a kind in a mail's text.
    Fact {
        /// The kind.
        fact: Fact,
        /// Of which mail.
        mail: Named,
    },
    /// The subject of a sender's mail of a day that holds a phrase.
    Subject {
        /// The sender's address.
        from: String,
        /// `YYYY-MM-DD`.
        day: String,
        /// What it mentions.
        phrase: String,
    },
    /// Who wrote the first or last mail of a thread.
    ThreadEnd {
        /// Which.
        end: End,
        /// The thread's subject, without `Re:`.
        subject: String,
    },
    /// Who was in copy of the only reply to a mail.
    ReplyCc {
        /// The mail that was replied to.
        mail: Named,
    },
    /// How many mails of a sender mention a phrase in a span of days.
    Count {
        /// The sender's address.
        from: String,
        /// What they mention.
        phrase: String,
        /// The first day, `YYYY-MM-DD`.
        first: String,
        /// The last day, included.
        last: String,
    },
    /// The sum of the only amounts in some mails.
    Sum {
        /// The mails.
        mails: Vec<Named>,
    },
    /// Who names the largest amount in some mails.
    Largest {
        /// The mails.
        mails: Vec<Named>,
    },
}

/// An exact answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gold {
    /// The answer; [`NO_ANSWER`] if the inbox does not hold it.
    pub answer: String,
    /// The mails that it rests on, each by id, in the order they are needed.
    pub message_ids: Vec<String>,
}

const MAIL: &str = "the mail with the subject \"{subject}\" from {from}";
const SEPARATOR: &str = "; ";
const SENT: &str = "On which day was the mail with the subject \"{subject}\" from {from} sent? Answer as YYYY-MM-DD.";
const TO: &str = "To which addresses (To) was the mail with the subject \"{subject}\" from {from} sent? Answer with the \
                  addresses in alphabetical order, separated by commas.";
const CC: &str = "Which addresses were in copy (Cc) of the mail with the subject \"{subject}\" from {from}? Answer with \
                  the addresses in alphabetical order, separated by commas.";
const PHONE: &str = "Which telephone number does the mail with the subject \"{subject}\" from {from} give? Answer as it \
                     is written there.";
const AMOUNT: &str = "Which amount in dollars does the mail with the subject \"{subject}\" from {from} name? Answer with \
                      digits only, such as 1250 or 1250.50.";
const TIME: &str = "Which time of day does the mail with the subject \"{subject}\" from {from} name? Answer such as 9:30 \
                    am.";
const DAY: &str = "Which date does the text of the mail with the subject \"{subject}\" from {from} name? Answer as \
                   YYYY-MM-DD.";
const SUBJECT: &str = "What is the subject of the mail that {from} sent on {day} and that mentions \"{phrase}\"?";
const FIRST: &str = "Who sent the first mail of the thread \"{subject}\"? Answer with the address.";
const LAST: &str = "Who sent the last mail of the thread \"{subject}\"? Answer with the address.";
const REPLY: &str = "Who was in copy (Cc) of the reply to the mail with the subject \"{subject}\" from {from}? Answer \
                     with the addresses in alphabetical order, separated by commas.";
const COUNT: &str = "How many mails from {from} mention \"{phrase}\" from {first} to {last}, both days included? Answer \
                     with a number.";
const SUM: &str = "What do the amounts in dollars add up to that these mails name: {mails}? Answer with digits only, such \
                   as 1250 or 1250.50.";
const LARGEST: &str = "Which of these mails names the largest amount in dollars: {mails}? Answer with its sender's \
                       address.";

impl Header {
    const ALL: [(Header, &str); 3] = [(Header::Sent, SENT), (Header::To, TO), (Header::Cc, CC)];
}

impl Fact {
    const PATTERNS: [(Fact, &str); 4] =
        [(Fact::Phone, PHONE), (Fact::Amount, AMOUNT), (Fact::Time, TIME), (Fact::Day, DAY)];
}

impl End {
    const ALL: [(End, &str); 2] = [(End::First, FIRST), (End::Last, LAST)];
}

fn pattern<T: PartialEq>(table: &[(T, &'static str)], key: T) -> &'static str {
    table.iter().find(|row| row.0 == key).map_or("", |row| row.1)
}

impl Named {
    /// `the mail with the subject ".." from ..`.
    pub fn text(&self) -> String {
        fill(MAIL, &[&self.subject, &self.from])
    }

    fn read(text: &str) -> Option<Self> {
        Self::of(&read(MAIL, text)?)
    }

    fn of(slots: &[String]) -> Option<Self> {
        let [subject, from] = slots else { return None };
        Some(Self { from: from.clone(), subject: subject.clone() })
    }

    /// The mails of an inbox with this sender and subject.
    pub fn find<'a>(&self, mailbox: &'a Mailbox, inbox: &str) -> Vec<&'a Email> {
        mailbox.inbox(inbox).filter(|email| self.names(email)).collect()
    }

    /// Whether a mail has this sender and subject.
    pub fn names(&self, email: &Email) -> bool {
        same_address(&email.from_address, &self.from) && email.subject.trim() == self.subject
    }
}

impl Query {
    /// The question as a sentence.
    pub fn text(&self) -> String {
        let named = |pattern: &str, mail: &Named| fill(pattern, &[&mail.subject, &mail.from]);
        let all = |mails: &[Named]| mails.iter().map(Named::text).collect::<Vec<_>>().join(SEPARATOR);
        match self {
            Self::Header { header, mail } => named(pattern(&Header::ALL, *header), mail),
            Self::Fact { fact, mail } => named(pattern(&Fact::PATTERNS, *fact), mail),
            Self::Subject { from, day, phrase } => fill(SUBJECT, &[from, day, phrase]),
            Self::ThreadEnd { end, subject } => fill(pattern(&End::ALL, *end), &[subject]),
            Self::ReplyCc { mail } => named(REPLY, mail),
            Self::Count { from, phrase, first, last } => fill(COUNT, &[from, phrase, first, last]),
            Self::Sum { mails } => fill(SUM, &[&all(mails)]),
            Self::Largest { mails } => fill(LARGEST, &[&all(mails)]),
        }
    }

    /// The question that a sentence is; white space around it does not matter, nor does what follows a blank line.
    pub fn read(text: &str) -> Option<Self> {
        let text = text.trim().split("\n\n").next().unwrap_or("").trim();
        let query = Self::guess(text)?;
        (query.text() == text).then_some(query)
    }

    fn guess(text: &str) -> Option<Self> {
        let named = |pattern| read(pattern, text).and_then(|slots| Named::of(&slots));
        for (header, pattern) in Header::ALL {
            if let Some(mail) = named(pattern) {
                return Some(Self::Header { header, mail });
            }
        }
        for (fact, pattern) in Fact::PATTERNS {
            if let Some(mail) = named(pattern) {
                return Some(Self::Fact { fact, mail });
            }
        }
        for (end, pattern) in End::ALL {
            if let Some([subject]) = read(pattern, text).as_deref() {
                return Some(Self::ThreadEnd { end, subject: subject.clone() });
            }
        }
        if let Some(mail) = named(REPLY) {
            return Some(Self::ReplyCc { mail });
        }
        if let Some([from, day, phrase]) = read(SUBJECT, text).as_deref() {
            return Some(Self::Subject { from: from.clone(), day: day.clone(), phrase: phrase.clone() });
        }
        if let Some([from, phrase, first, last]) = read(COUNT, text).as_deref() {
            let [from, phrase, first, last] = [from, phrase, first, last].map(String::clone);
            return Some(Self::Count { from, phrase, first, last });
        }
        let mails = |pattern| {
            let slots = read(pattern, text)?;
            slots.first()?.split(SEPARATOR).map(Named::read).collect::<Option<Vec<_>>>()
        };
        mails(SUM).map(|mails| Self::Sum { mails }).or_else(|| mails(LARGEST).map(|mails| Self::Largest { mails }))
    }

    /// A name for the question's form.
    pub fn template(&self) -> &'static str {
        match self {
            Self::Header { header: Header::Sent, .. } => "sent",
            Self::Header { header: Header::To, .. } => "to",
            Self::Header { header: Header::Cc, .. } => "cc",
            Self::Fact { fact: Fact::Phone, .. } => "phone",
            Self::Fact { fact: Fact::Amount, .. } => "amount",
            Self::Fact { fact: Fact::Time, .. } => "time",
            Self::Fact { fact: Fact::Day, .. } => "day",
            Self::Subject { .. } => "subject",
            Self::ThreadEnd { end: End::First, .. } => "thread-first",
            Self::ThreadEnd { end: End::Last, .. } => "thread-last",
            Self::ReplyCc { .. } => "reply-cc",
            Self::Count { .. } => "count",
            Self::Sum { .. } => "sum",
            Self::Largest { .. } => "largest",
        }
    }

    /// The exact answer from the mails of an inbox: [`NO_ANSWER`] if it is not there, `None` if more than one could be
    /// meant.
    pub fn answer(&self, mailbox: &Mailbox, inbox: &str) -> Option<Gold> {
        match self {
            Self::Header { header, mail } => one_mail(mail, mailbox, inbox)
                .and_then(|found| found.map_or_else(none, |email| header_of(*header, email))),
            Self::Fact { fact, mail } => match one_mail(mail, mailbox, inbox)? {
                None => none(),
                Some(email) => match facts(*fact, &email.body).as_slice() {
                    [] => none(),
                    [only] => some(only.clone(), [email]),
                    _ => None,
                },
            },
            Self::Subject { from, day, phrase } => {
                let sent = |email: &&Email| same_address(&email.from_address, from) && email.day() == day;
                match mailbox.inbox(inbox).filter(sent).filter(|email| mentions(email, phrase)).collect::<Vec<_>>()[..]
                {
                    [] => none(),
                    [only] if !only.subject.trim().is_empty() => some(only.subject.trim().to_owned(), [only]),
                    _ => None,
                }
            }
            Self::ThreadEnd { end, subject } => thread_end(*end, subject, mailbox, inbox),
            Self::ReplyCc { mail } => reply_cc(mail, mailbox, inbox),
            Self::Count { from, phrase, first, last } => {
                let within = |email: &&Email| email.day() >= first.as_str() && email.day() <= last.as_str();
                let found = mailbox
                    .inbox(inbox)
                    .filter(within)
                    .filter(|email| same_address(&email.from_address, from) && mentions(email, phrase));
                let found: Vec<&Email> = found.collect();
                some(found.len().to_string(), found)
            }
            Self::Sum { mails } => match amounts(mails, mailbox, inbox)? {
                None => none(),
                Some(found) => {
                    let total = found.iter().try_fold(0_u64, |sum, (_, cents)| sum.checked_add(*cents))?;
                    some(amount(total), found.into_iter().map(|(email, _)| email))
                }
            },
            Self::Largest { mails } => match amounts(mails, mailbox, inbox)? {
                None => none(),
                Some(found) => {
                    let most = found.iter().map(|(_, cents)| *cents).max()?;
                    let mut holders = found.iter().filter(|(_, cents)| *cents == most);
                    match (holders.next(), holders.next()) {
                        (Some((winner, _)), None) => {
                            some(winner.from_address.to_lowercase(), found.iter().map(|(email, _)| *email))
                        }
                        _ => None,
                    }
                }
            },
        }
    }
}

/// Whether a mail's subject or text holds a phrase, as a search sees it.
pub(super) fn mentions(email: &Email, phrase: &str) -> bool {
    let phrase = words(phrase);
    let holds = |text: &str| words(text).windows(phrase.len().max(1)).any(|here| here == phrase);
    holds(&email.subject) || holds(&email.body)
}

/// The mails of a thread in an inbox, oldest first.
pub(super) fn thread<'a>(subject: &str, mailbox: &'a Mailbox, inbox: &str) -> Vec<&'a Email> {
    let mut mails: Vec<&Email> =
        mailbox.inbox(inbox).filter(|email| thread_subject(&email.subject) == subject).collect();
    mails.sort_by(|a, b| a.date.cmp(&b.date));
    mails
}

/// Addresses as answers list them.
pub(super) fn listed(addresses: &[String]) -> String {
    let mut addresses: Vec<String> = addresses.iter().map(|address| address.to_lowercase()).collect();
    addresses.sort();
    addresses.dedup();
    addresses.join(", ")
}

#[expect(clippy::unnecessary_wraps, reason = "an answer in the shape that its callers give back")]
fn some<'a>(answer: String, mails: impl IntoIterator<Item = &'a Email>) -> Option<Gold> {
    Some(Gold { answer, message_ids: mails.into_iter().map(|email| email.message_id.clone()).collect() })
}

fn none() -> Option<Gold> {
    some(NO_ANSWER.to_owned(), [])
}

/// The mail that is named: `None` if several could be, `Some(None)` if there is none.
fn one_mail<'a>(mail: &Named, mailbox: &'a Mailbox, inbox: &str) -> Option<Option<&'a Email>> {
    match mail.find(mailbox, inbox)[..] {
        [] => Some(None),
        [only] => Some(Some(only)),
        _ => None,
    }
}

fn header_of(header: Header, email: &Email) -> Option<Gold> {
    let answer = match header {
        Header::Sent => email.day().to_owned(),
        Header::To => listed(&email.to_addresses),
        Header::Cc => listed(&email.cc_addresses),
    };
    if answer.is_empty() { none() } else { some(answer, [email]) }
}

fn thread_end(end: End, subject: &str, mailbox: &Mailbox, inbox: &str) -> Option<Gold> {
    let mails = thread(subject, mailbox, inbox);
    let (at_end, next) = match end {
        End::First => (mails.first(), mails.get(1)),
        End::Last => (mails.last(), mails.len().checked_sub(2).and_then(|at| mails.get(at))),
    };
    match (at_end, next) {
        (None, _) => none(),
        (Some(email), Some(other)) if email.date == other.date => None,
        (Some(email), _) => some(email.from_address.to_lowercase(), [*email]),
    }
}

fn reply_cc(mail: &Named, mailbox: &Mailbox, inbox: &str) -> Option<Gold> {
    let Some(original) = one_mail(mail, mailbox, inbox)? else { return none() };
    let replies: Vec<&Email> =
        mailbox.inbox(inbox).filter(|email| is_reply(email, &mail.subject) && email.date > original.date).collect();
    match replies[..] {
        [] => none(),
        [reply] if reply.cc_addresses.is_empty() => none(),
        [reply] => some(listed(&reply.cc_addresses), [original, reply]),
        _ => None,
    }
}

/// Whether a mail is a reply to, or a forward of, one with a subject.
pub(super) fn is_reply(email: &Email, subject: &str) -> bool {
    email.subject.trim() != subject && thread_subject(&email.subject) == thread_subject(subject)
}

/// The only amounts of some mails: `None` if it cannot be said, `Some(None)` if one is not there.
fn amounts<'a>(mails: &[Named], mailbox: &'a Mailbox, inbox: &str) -> Option<Option<Vec<(&'a Email, u64)>>> {
    let mut found = Vec::with_capacity(mails.len());
    let mut lacking = mails.is_empty();
    for mail in mails {
        match one_mail(mail, mailbox, inbox)? {
            None => lacking = true,
            Some(email) => match facts(Fact::Amount, &email.body).as_slice() {
                [] => lacking = true,
                [only] => found.push((email, cents(only)?)),
                _ => return None,
            },
        }
    }
    Some((!lacking).then_some(found))
}
