//! The scripted policy that answers every generated question. It looks at what its node has found and read so far, and
//! at the form of its goal; it keeps no state of its own.
//!
//! It searches by the rarest words first and drops the commonest while nothing is found, reads the top hits, and answers
//! from what it has read. A question about several independent mails, or a count that one search cannot show, it divides
//! among subagents; at the depth cap, or after a refusal, it does everything itself.

use super::cell::{action_text, delegation, finish, finish_json, read_code, search_code};
use super::episode::{MailEpisode, Seen};
use super::facts::{Fact, amount, cents, facts};
use super::generate::next_day;
use super::mailbox::{MAX_RESULTS, Search, same_address};
use super::message::{Email, thread_subject};
use super::query::{End, Header, NO_ANSWER, Named, Query, is_reply, listed};
use super::reward::Final;
use super::tokens::words;
use crate::Turn;

/// How many words the first search has at most.
const KEYWORDS: usize = 3;

/// How many mails one cell reads at most.
const READ_AT_ONCE: usize = 3;

/// How many hits of a widened search are worth reading.
const WIDENED_HITS: usize = 3;

/// What the engine's refusals have in common; after one, the oracle does the work itself.
const REFUSED: &str = "perform the task yourself";

/// What the oracle does in one cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move {
    /// Search, once or several times side by side.
    Search(Vec<Search>),
    /// Read mails.
    Read(Vec<String>),
    /// Hand out questions, side by side.
    Delegate(Vec<Query>),
    /// Finish.
    Finish(Final),
}

/// Where the search for a mail stands.
enum Seek<'a> {
    Search(Search),
    Read(Vec<String>),
    Found(&'a Email),
    Absent,
}

/// The oracle's action.
pub(super) fn act(episode: &MailEpisode, turn: &Turn<'_>) -> String {
    render(&next_move(episode, turn))
}

/// The action text of a move.
pub(super) fn render(action: &Move) -> String {
    match action {
        Move::Search(searches) => action_text("Search.", &search_code(searches)),
        Move::Read(ids) => action_text("Read what was found.", &read_code(ids)),
        Move::Delegate(queries) => {
            let goals: Vec<String> = queries.iter().map(Query::text).collect();
            action_text("Delegate the parts.", &delegation(&goals))
        }
        Move::Finish(last) => action_text("Answer.", &finish(&finish_json(last))),
    }
}

/// The oracle's next move.
pub(super) fn next_move(episode: &MailEpisode, turn: &Turn<'_>) -> Move {
    let seen = episode.seen(turn.node);
    let look = Look { episode, seen: &seen };
    match &seen.query {
        None => look.free_text(turn),
        Some(Query::Header { header, mail }) => look.about(mail, |email| match header {
            Header::Sent => Some(email.day().to_owned()),
            Header::To => Some(listed(&email.to_addresses)),
            Header::Cc => Some(listed(&email.cc_addresses)),
        }),
        Some(Query::Fact { fact, mail }) => look.about(mail, |email| facts(*fact, &email.body).into_iter().next()),
        Some(Query::Subject { from, day, phrase }) => look.subject(from, day, phrase),
        Some(Query::ThreadEnd { end, subject }) => look.thread_end(*end, subject),
        Some(Query::ReplyCc { mail }) => look.reply_cc(mail),
        Some(query @ Query::Count { from, phrase, first, last }) => {
            let window = Window { from, phrase, first: first.clone(), last: last.clone() };
            look.count(query, &window, turn)
        }
        Some(query @ (Query::Sum { mails } | Query::Largest { mails })) => look.amounts(query, mails, turn),
    }
}

/// Whether this turn may launch subagents.
pub(super) fn may_delegate(turn: &Turn<'_>) -> bool {
    let refused = turn.observation.is_some_and(|text| text.contains(REFUSED));
    // The root has depth 0 and a path of one ordinal, so a child's depth is the length of its parent's path.
    turn.recursive && turn.node.len() <= turn.max_depth as usize && !refused
}

/// A span of days in which the mails of someone that mention something are counted.
struct Window<'q> {
    from: &'q str,
    phrase: &'q str,
    first: String,
    last: String,
}

impl Window<'_> {
    fn search(&self) -> Search {
        Search {
            keywords: vec![self.phrase.to_owned()],
            from_addr: Some(self.from.to_owned()),
            sent_after: Some(self.first.clone()),
            sent_before: next_day(&self.last),
            ..Search::default()
        }
    }

    /// Both halves; `None` for a single day.
    fn halves(&self) -> Option<[Self; 2]> {
        let (first, last) =
            (self.first.parse::<jiff::civil::Date>().ok()?, self.last.parse::<jiff::civil::Date>().ok()?);
        let days = first.until(last).ok()?.get_days();
        let middle = first.checked_add(jiff::Span::new().days(days / 2)).ok()?;
        let half = |first: String, last: String| Self { from: self.from, phrase: self.phrase, first, last };
        (days > 0).then(|| {
            let behind = middle.tomorrow().unwrap_or(middle).to_string();
            [half(self.first.clone(), middle.to_string()), half(behind, self.last.clone())]
        })
    }

    fn query(&self) -> Query {
        Query::Count {
            from: self.from.to_owned(),
            phrase: self.phrase.to_owned(),
            first: self.first.clone(),
            last: self.last.clone(),
        }
    }
}

/// A node's knowledge.
struct Look<'a> {
    episode: &'a MailEpisode,
    seen: &'a Seen,
}

impl<'a> Look<'a> {
    fn hits(&self, search: &Search) -> Option<&'a [String]> {
        self.seen.searches.iter().find(|done| done.search == *search).map(|done| done.hits.as_slice())
    }

    /// The mails that the node has read, the newest first.
    fn read(&self) -> Vec<&'a Email> {
        let mut read: Vec<&Email> = self.seen.read.iter().filter_map(|id| self.episode.mailbox.read(id)).collect();
        read.sort_by(|a, b| b.date.cmp(&a.date));
        read
    }

    /// Up to a cell's share of hits that were not read.
    fn unread(&self, hits: &[String]) -> Vec<String> {
        hits.iter().filter(|id| !self.seen.read.contains(*id)).take(READ_AT_ONCE).cloned().collect()
    }

    /// The words of a text, the rarest first.
    fn by_rarity(&self, text: &str) -> Vec<String> {
        let mut found = words(text);
        found.sort_by_key(|word| (self.episode.mailbox.frequency(word), word.clone()));
        found.dedup();
        found
    }

    /// The searches for a text in the order they are tried: its rarest words, then without the commonest of them.
    fn attempts(&self, text: &str, base: &Search) -> Vec<Search> {
        let words = self.by_rarity(text);
        let most = words.len().min(KEYWORDS);
        let of = |size: usize| Search { keywords: words.iter().take(size).cloned().collect(), ..base.clone() };
        (1..=most).rev().map(of).collect()
    }

    /// The next step towards a mail that `fits`: a search for the text, then its hits, then a search for the text as one
    /// phrase if there were more hits than a search shows.
    fn seek(&self, text: &str, base: &Search, fits: impl Fn(&Email) -> bool) -> Seek<'a> {
        if let Some(email) = self.read().into_iter().find(|email| fits(email)) {
            return Seek::Found(email);
        }
        for (number, search) in self.attempts(text, base).into_iter().enumerate() {
            let Some(hits) = self.hits(&search) else { return Seek::Search(search) };
            if hits.is_empty() {
                continue;
            }
            if hits.len() as i64 >= MAX_RESULTS {
                let phrase = Search { keywords: vec![text.to_owned()], ..base.clone() };
                return match self.hits(&phrase) {
                    None => Seek::Search(phrase),
                    Some(narrowed) => self.go_through(if narrowed.is_empty() { hits } else { narrowed }),
                };
            }
            let worth = if number == 0 { hits.len() } else { hits.len().min(WIDENED_HITS) };
            return self.go_through(hits.get(..worth).unwrap_or_default());
        }
        Seek::Absent
    }

    fn go_through(&self, hits: &[String]) -> Seek<'a> {
        let unread = self.unread(hits);
        if unread.is_empty() { Seek::Absent } else { Seek::Read(unread) }
    }

    fn seek_named(&self, mail: &Named) -> Seek<'a> {
        let base = Search { from_addr: Some(mail.from.clone()), ..Search::default() };
        self.seek(&mail.subject, &base, |email| mail.names(email))
    }

    /// A question about one mail: `answer` says what follows from it.
    fn about(&self, mail: &Named, answer: impl Fn(&Email) -> Option<String>) -> Move {
        match self.seek_named(mail) {
            Seek::Search(search) => Move::Search(vec![search]),
            Seek::Read(ids) => Move::Read(ids),
            Seek::Absent => unknown(),
            Seek::Found(email) => match answer(email).filter(|text| !text.is_empty()) {
                Some(answer) => known(answer, [email]),
                None => unknown(),
            },
        }
    }

    fn subject(&self, from: &str, day: &str, phrase: &str) -> Move {
        let search = Search {
            keywords: vec![phrase.to_owned()],
            from_addr: Some(from.to_owned()),
            sent_after: Some(day.to_owned()),
            sent_before: next_day(day),
            ..Search::default()
        };
        let Some(hits) = self.hits(&search) else { return Move::Search(vec![search]) };
        let fits = |email: &&Email| same_address(&email.from_address, from) && email.day() == day;
        match self.read().into_iter().find(fits) {
            Some(email) => known(email.subject.trim().to_owned(), [email]),
            None => match self.go_through(hits) {
                Seek::Read(ids) => Move::Read(ids),
                _ => unknown(),
            },
        }
    }

    fn thread_end(&self, end: End, subject: &str) -> Move {
        let search = Search { keywords: vec![subject.to_owned()], ..Search::default() };
        let Some(hits) = self.hits(&search) else { return Move::Search(vec![search]) };
        let mut hits = hits.to_vec();
        if end == End::First {
            hits.reverse();
        }
        // From that end on, the first mail of the thread is the one.
        for id in &hits {
            if !self.seen.read.contains(id) {
                return Move::Read(vec![id.clone()]);
            }
            let email = self.episode.mailbox.read(id);
            if let Some(email) = email.filter(|email| thread_subject(&email.subject) == subject) {
                return known(email.from_address.to_lowercase(), [email]);
            }
        }
        unknown()
    }

    fn reply_cc(&self, mail: &Named) -> Move {
        let original = match self.seek_named(mail) {
            Seek::Search(search) => return Move::Search(vec![search]),
            Seek::Read(ids) => return Move::Read(ids),
            Seek::Absent => return unknown(),
            Seek::Found(email) => email,
        };
        let base = Search { sent_after: Some(original.day().to_owned()), ..Search::default() };
        let fits = |email: &Email| is_reply(email, &mail.subject) && email.date > original.date;
        match self.seek(thread_subject(&mail.subject), &base, fits) {
            Seek::Search(search) => Move::Search(vec![search]),
            Seek::Read(ids) => Move::Read(ids),
            Seek::Found(reply) if !reply.cc_addresses.is_empty() => {
                known(listed(&reply.cc_addresses), [original, reply])
            }
            Seek::Found(_) | Seek::Absent => unknown(),
        }
    }

    fn count(&self, query: &Query, window: &Window<'_>, turn: &Turn<'_>) -> Move {
        let search = window.search();
        let Some(hits) = self.hits(&search) else { return Move::Search(vec![search]) };
        if (hits.len() as i64) < MAX_RESULTS {
            return counted(hits.to_vec());
        }
        let Some(halves) = window.halves() else { return counted(hits.to_vec()) };
        let parts = halves.each_ref().map(Window::query);
        match self.asked_children(&parts, turn, 1) {
            Some(Answers::All(answers)) => {
                let numbers: Option<Vec<u64>> = answers.iter().map(|answer| answer.answer.parse().ok()).collect();
                if let Some(numbers) = numbers {
                    let sources = answers.into_iter().flat_map(|answer| answer.sources).collect();
                    return Move::Finish(Final { answer: numbers.iter().sum::<u64>().to_string(), sources });
                }
            }
            Some(Answers::Pending) if !parts.contains(query) => return Move::Delegate(parts.to_vec()),
            _ => {}
        }
        self.count_alone(halves.into())
    }

    /// Counts window by window, halving those that hold more than a search shows.
    fn count_alone(&self, windows: Vec<Window<'_>>) -> Move {
        let (mut open, mut found) = (Vec::new(), Vec::new());
        let mut windows = windows;
        while let Some(window) = windows.pop() {
            let search = window.search();
            match (self.hits(&search), window.halves()) {
                (None, _) => open.push(search),
                (Some(hits), Some(halves)) if hits.len() as i64 >= MAX_RESULTS => windows.extend(halves),
                (Some(hits), _) => found.extend(hits.iter().cloned()),
            }
        }
        if open.is_empty() { counted(found) } else { Move::Search(open) }
    }

    fn amounts(&self, query: &Query, mails: &[Named], turn: &Turn<'_>) -> Move {
        let parts: Vec<Query> =
            mails.iter().map(|mail| Query::Fact { fact: Fact::Amount, mail: mail.clone() }).collect();
        if parts.len() >= 2 {
            match self.asked_children(&parts, turn, 0) {
                Some(Answers::All(answers)) => {
                    if let Some(last) = put_together(query, mails, &answers) {
                        return Move::Finish(last);
                    }
                }
                Some(Answers::Pending) => return Move::Delegate(parts),
                None => {}
            }
        }
        self.amounts_alone(query, mails)
    }

    /// Looks for all mails side by side, then reads what was found.
    fn amounts_alone(&self, query: &Query, mails: &[Named]) -> Move {
        let (mut searches, mut ids, mut found) = (Vec::new(), Vec::new(), Vec::new());
        for mail in mails {
            match self.seek_named(mail) {
                Seek::Search(search) => searches.push(search),
                Seek::Read(mut more) => ids.append(&mut more),
                Seek::Found(email) => found.push((mail, email)),
                Seek::Absent => return unknown(),
            }
        }
        if !searches.is_empty() {
            return Move::Search(searches);
        }
        if !ids.is_empty() {
            ids.dedup();
            ids.truncate(READ_AT_ONCE);
            return Move::Read(ids);
        }
        let answers: Vec<Final> = found
            .into_iter()
            .map(|(_, email)| Final {
                answer: facts(Fact::Amount, &email.body).into_iter().next().unwrap_or_else(|| NO_ANSWER.to_owned()),
                sources: vec![email.message_id.clone()],
            })
            .collect();
        put_together(query, mails, &answers).map_or_else(unknown, Move::Finish)
    }

    /// What children said to these questions: `Pending` if they may still be asked, `None` if the node is on its own. A
    /// node that has made more than `searches` searches has begun to do the work itself, perhaps after a refusal.
    fn asked_children(&self, parts: &[Query], turn: &Turn<'_>, searches: usize) -> Option<Answers> {
        if self.episode.children(turn.node).next().is_none() {
            let pending = may_delegate(turn) && self.seen.searches.len() <= searches;
            return pending.then_some(Answers::Pending);
        }
        // What they answered stands in the last observation, one line each, if they were asked just now.
        let lines = turn.observation.unwrap_or("").lines();
        let answers: Vec<Final> = lines.filter_map(|line| Final::read(&crate::Value::str(line.trim()))).collect();
        (answers.len() == parts.len()).then_some(Answers::All(answers))
    }

    /// A question without a form. What it means is beyond a script: it searches and reads, and knows the answer if one of
    /// the right mails is among those it read.
    fn free_text(&self, turn: &Turn<'_>) -> Move {
        let question = self.seen.goal.split("\n\n").next().unwrap_or_default();
        let gold = &self.episode.body.message_ids;
        let is_root = turn.node.len() == 1;
        // Short words say little, numbers a lot; a word that is nowhere finds nothing.
        let tells = |word: &String| word.len() > 2 || word.bytes().all(|byte| byte.is_ascii_digit());
        let occurs = |word: &String| self.episode.mailbox.frequency(word) > 0;
        let telling: Vec<String> = words(question).into_iter().filter(|word| tells(word) && occurs(word)).collect();
        match self.seek(&telling.join(" "), &Search::default(), |email| is_root && gold.contains(&email.message_id)) {
            Seek::Search(search) => Move::Search(vec![search]),
            Seek::Read(ids) => Move::Read(ids),
            Seek::Found(email) => known(self.episode.body.answer.clone(), [email]),
            Seek::Absent => unknown(),
        }
    }
}

enum Answers {
    Pending,
    All(Vec<Final>),
}

fn known<'a>(answer: String, mails: impl IntoIterator<Item = &'a Email>) -> Move {
    Move::Finish(Final { answer, sources: mails.into_iter().map(|email| email.message_id.clone()).collect() })
}

fn unknown() -> Move {
    Move::Finish(Final { answer: NO_ANSWER.to_owned(), sources: Vec::new() })
}

fn counted(mut ids: Vec<String>) -> Move {
    ids.sort();
    ids.dedup();
    Move::Finish(Final { answer: ids.len().to_string(), sources: ids })
}

/// The answer from what each mail names; not to be known if one of them is not. `None` if an answer is no amount.
fn put_together(query: &Query, mails: &[Named], answers: &[Final]) -> Option<Final> {
    if answers.iter().any(Final::gives_up) {
        return Some(Final { answer: NO_ANSWER.to_owned(), sources: Vec::new() });
    }
    let values = answers.iter().map(|answer| cents(&answer.answer)).collect::<Option<Vec<u64>>>()?;
    let sources = answers.iter().flat_map(|answer| answer.sources.iter().cloned()).collect();
    let answer = match query {
        Query::Largest { .. } => {
            let best = values.iter().enumerate().max_by_key(|(_, value)| **value)?.0;
            mails.get(best)?.from.to_lowercase()
        }
        _ => amount(values.iter().try_fold(0_u64, |sum, value| sum.checked_add(*value))?),
    };
    Some(Final { answer, sources })
}
