//! A mailbox: what is kept of the mails that are loaded, and the two tools that look into it.

use std::collections::{HashMap, HashSet};

use super::index::Index;
use super::message::Email;
use super::snippet::snippet;
use super::tokens::words;

/// Mails with a longer text, in characters, are left out, as the environment's authors do.
pub const MAX_BODY: usize = 5_000;

/// Mails with more recipients are left out.
pub const MAX_RECIPIENTS: usize = 30;

/// The most hits that a search may ask for.
pub const MAX_RESULTS: i64 = 10;

/// What was left out while loading, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Text longer than [`MAX_BODY`].
    pub long: u64,
    /// More recipients than [`MAX_RECIPIENTS`].
    pub crowded: u64,
    /// Same subject, text and sender as a mail before.
    pub duplicates: u64,
    /// Same message id as another mail before.
    pub same_id: u64,
    /// No sender or no date that can be read (mbox and maildir only; in tables that is an error).
    pub incomplete: u64,
}

impl Dropped {
    /// All that was left out.
    pub fn total(&self) -> u64 {
        self.long + self.crowded + self.duplicates + self.same_id + self.incomplete
    }
}

/// A search as the tool takes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// Each is a phrase; all must be in the subject or in the text.
    pub keywords: Vec<String>,
    /// Only mails from this address.
    pub from_addr: Option<String>,
    /// Only mails to this address, copies included.
    pub to_addr: Option<String>,
    /// Only mails of this day or later, `YYYY-MM-DD`.
    pub sent_after: Option<String>,
    /// Only mails from before this day, `YYYY-MM-DD`.
    pub sent_before: Option<String>,
    /// How many hits at most; `None` is [`MAX_RESULTS`].
    pub max_results: Option<i64>,
}

/// A hit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The mail.
    pub message_id: String,
    /// Some words around what was found, which stands in `<b>..</b>`.
    pub snippet: String,
}

/// Why a search is refused; the texts are upstream's, but for [`SearchError::TooFew`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SearchError {
    /// No keywords.
    #[error("No keywords provided for search.")]
    NoKeywords,
    /// More than [`MAX_RESULTS`].
    #[error("max_results must be less than or equal to 10.")]
    TooMany,
    /// Less than 0. Upstream's database takes that for "no limit".
    #[error("max_results must not be negative.")]
    TooFew,
}

/// Mails in the order they were loaded, with an index.
#[derive(Debug, Default)]
pub struct Mailbox {
    emails: Vec<Email>,
    index: Index,
    // Looked up, never walked.
    by_id: HashMap<String, u32>,
    // The mails from or to an address (in lower case), in ascending order.
    inboxes: HashMap<String, Vec<u32>>,
    dropped: Dropped,
    digest: String,
}

/// Takes mails one by one and keeps what belongs into a mailbox.
#[derive(Debug, Default)]
pub struct MailboxBuilder {
    mailbox: Mailbox,
    seen: HashSet<[u8; 32]>,
    hasher: blake3::Hasher,
}

impl MailboxBuilder {
    /// Takes a mail, or counts why it is left out.
    pub fn push(&mut self, email: Email) {
        let dropped = &mut self.mailbox.dropped;
        if email.body.chars().count() > MAX_BODY {
            dropped.long += 1;
        } else if email.recipients().count() > MAX_RECIPIENTS {
            dropped.crowded += 1;
        } else if !self.seen.insert(digest_of(&[&email.subject, &email.body, &email.from_address])) {
            dropped.duplicates += 1;
        } else if self.mailbox.by_id.contains_key(&email.message_id) {
            dropped.same_id += 1;
        } else {
            self.add(email);
        }
    }

    /// Counts a mail that has no sender or no date.
    pub fn incomplete(&mut self) {
        self.mailbox.dropped.incomplete += 1;
    }

    fn add(&mut self, email: Email) {
        let number = self.mailbox.emails.len() as u32;
        let file_name = email.file_name.as_deref().unwrap_or("");
        let fields = [&email.message_id, &email.date, &email.subject, &email.from_address, &email.body, file_name];
        self.hasher.update(&digest_of(&fields));
        for list in [&email.to_addresses, &email.cc_addresses, &email.bcc_addresses] {
            let list: Vec<&str> = list.iter().map(String::as_str).collect();
            self.hasher.update(&digest_of(&list));
        }
        self.mailbox.index.add(&[&email.subject, &email.body]);
        self.mailbox.by_id.insert(email.message_id.clone(), number);
        for address in email.recipients().chain([email.from_address.as_str()]) {
            let list = self.mailbox.inboxes.entry(address.to_lowercase()).or_default();
            if list.last() != Some(&number) {
                list.push(number);
            }
        }
        self.mailbox.emails.push(email);
    }

    /// The mailbox.
    pub fn finish(mut self) -> Mailbox {
        self.mailbox.digest = self.hasher.finalize().to_hex().to_string();
        self.mailbox
    }
}

impl Mailbox {
    /// A mailbox of these mails.
    pub fn new(emails: impl IntoIterator<Item = Email>) -> Self {
        let mut builder = MailboxBuilder::default();
        for email in emails {
            builder.push(email);
        }
        builder.finish()
    }

    /// The mails that were kept, in the order they were loaded.
    pub fn emails(&self) -> &[Email] {
        &self.emails
    }

    /// What was left out.
    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// blake3 over every kept mail, in order.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// A mail by its id.
    pub fn read(&self, message_id: &str) -> Option<&Email> {
        self.emails.get(*self.by_id.get(message_id)? as usize)
    }

    /// Whether a mail is from or to an address.
    pub fn is_in_inbox(&self, email: &Email, inbox: &str) -> bool {
        email.recipients().chain([email.from_address.as_str()]).any(|address| same_address(address, inbox))
    }

    /// The mails from or to an address, in the order they were loaded.
    pub fn inbox(&self, address: &str) -> impl Iterator<Item = &Email> {
        self.inbox_numbers(address).iter().filter_map(|&number| self.emails.get(number as usize))
    }

    /// Every address that mail is from or to, in lower case, with its number of mails; the largest first.
    pub fn addresses(&self) -> Vec<(&str, usize)> {
        let mut all: Vec<(&str, usize)> = self.inboxes.iter().map(|(name, list)| (name.as_str(), list.len())).collect();
        // Names are unique, so that the order is fixed whatever the map's.
        all.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        all
    }

    /// In how many mails a word (folded as the index does) stands.
    pub fn frequency(&self, word: &str) -> u32 {
        self.index.frequency(word)
    }

    /// The mails of an inbox that match, newest first; mails of the same second in the order they were loaded.
    ///
    /// Dates are compared as text, so a date in another form is no error but finds something else than was meant.
    ///
    /// # Errors
    /// [`SearchError`].
    pub fn search(&self, inbox: &str, search: &Search) -> Result<Vec<Hit>, SearchError> {
        let limit = search.max_results.unwrap_or(MAX_RESULTS);
        if search.keywords.is_empty() {
            return Err(SearchError::NoKeywords);
        }
        if limit > MAX_RESULTS {
            return Err(SearchError::TooMany);
        }
        let limit = usize::try_from(limit).map_err(|_| SearchError::TooFew)?;
        // A phrase without a word says nothing; a search of nothing else finds nothing.
        let phrases: Vec<Vec<String>> =
            search.keywords.iter().map(|keyword| words(keyword)).filter(|words| !words.is_empty()).collect();
        let mut found: Vec<&Email> = self
            .matching(inbox, &phrases)
            .into_iter()
            .filter_map(|number| self.emails.get(number as usize))
            .filter(|email| search.admits(email))
            .collect();
        found.sort_by(|a, b| b.date.cmp(&a.date));
        found.truncate(limit);
        let hit = |email: &Email| Hit {
            message_id: email.message_id.clone(),
            snippet: snippet(&[&email.subject, &email.body], &phrases),
        };
        Ok(found.into_iter().map(hit).collect())
    }

    fn matching(&self, inbox: &str, phrases: &[Vec<String>]) -> Vec<u32> {
        let mut found: Option<Vec<u32>> = None;
        for phrase in phrases {
            let Some(here) = self.index.phrase(phrase) else { continue };
            found = Some(match found {
                None => here,
                Some(before) => before.into_iter().filter(|number| here.binary_search(number).is_ok()).collect(),
            });
        }
        let inbox = self.inbox_numbers(inbox);
        found.unwrap_or_default().into_iter().filter(|number| inbox.binary_search(number).is_ok()).collect()
    }

    fn inbox_numbers(&self, address: &str) -> &[u32] {
        self.inboxes.get(&address.to_lowercase()).map_or(&[], Vec::as_slice)
    }
}

impl Search {
    /// Whether a mail passes everything but the keywords.
    fn admits(&self, email: &Email) -> bool {
        let from = self.from_addr.as_ref().is_none_or(|address| same_address(&email.from_address, address));
        let to = self.to_addr.as_ref().is_none_or(|to| email.recipients().any(|address| same_address(address, to)));
        let after = self.sent_after.as_ref().is_none_or(|day| email.date >= format!("{day} 00:00:00"));
        let before = self.sent_before.as_ref().is_none_or(|day| email.date < format!("{day} 00:00:00"));
        from && to && after && before
    }
}

/// Whether two addresses are the same; case does not matter.
pub(super) fn same_address(left: &str, right: &str) -> bool {
    left == right || left.to_lowercase() == right.to_lowercase()
}

fn digest_of(fields: &[&str]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for field in fields {
        // Lengths keep ("ab", "c") and ("a", "bc") apart.
        hasher.update(&(field.len() as u64).to_le_bytes());
        hasher.update(field.as_bytes());
    }
    *hasher.finalize().as_bytes()
}
