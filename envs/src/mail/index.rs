//! An inverted index with positions, for phrases.
//!
//! Each word has one list of bytes: for each mail that holds it, in order, the difference of the mail's number to the
//! last one, how many places there are, and their differences; all as variable-length integers. That is one to two
//! bytes for most words of a text.

use std::collections::HashMap;

use super::tokens::words;

/// Where words stand. Mails are numbered as they are added.
#[derive(Debug, Default)]
pub(super) struct Index {
    // Looked up, never walked: the order of a hash map reaches no result.
    lists: HashMap<Box<str>, List>,
    mails: u32,
}

#[derive(Debug, Default)]
struct List {
    mails: u32,
    last: u32,
    bytes: Vec<u8>,
}

/// The mails that hold a word, with the word's places in each.
type Places = Vec<(u32, Vec<u32>)>;

impl Index {
    /// Adds the next mail by its fields. A phrase cannot reach from one field into the next.
    pub(super) fn add(&mut self, fields: &[&str]) {
        let mut places: Vec<(String, u32)> = Vec::new();
        let mut next = 0;
        for field in fields {
            for word in words(field) {
                places.push((word, next));
                next += 1;
            }
            // No word stands here, so that neighbours in different fields are no neighbours.
            next += 1;
        }
        places.sort();
        for group in places.chunk_by(|a, b| a.0 == b.0) {
            let Some((word, _)) = group.first() else { continue };
            let list = self.lists.entry(word.as_str().into()).or_default();
            put(&mut list.bytes, self.mails - list.last);
            put(&mut list.bytes, group.len() as u32);
            let mut last = 0;
            for (_, place) in group {
                put(&mut list.bytes, place - last);
                last = *place;
            }
            list.last = self.mails;
            list.mails += 1;
        }
        self.mails += 1;
    }

    /// In how many mails a word stands.
    pub(super) fn frequency(&self, word: &str) -> u32 {
        self.lists.get(word).map_or(0, |list| list.mails)
    }

    /// The mails that hold the words one after the other, in ascending order; `None` for no words at all.
    pub(super) fn phrase(&self, phrase: &[String]) -> Option<Vec<u32>> {
        // The rarest word first: what it rules out needs no further look.
        let mut order: Vec<usize> = (0..phrase.len()).collect();
        order.sort_by_key(|&at| phrase.get(at).map_or(0, |word| self.frequency(word)));
        let mut starts: Option<Places> = None;
        for at in order {
            let list = phrase.get(at).and_then(|word| self.lists.get(word.as_str()));
            let Some(list) = list else { return Some(Vec::new()) };
            let here = list.decode(at as u32);
            starts = Some(match starts {
                None => here,
                Some(before) => intersect(&before, &here),
            });
        }
        Some(starts?.into_iter().filter(|(_, places)| !places.is_empty()).map(|(mail, _)| mail).collect())
    }
}

impl List {
    /// The places, each less `offset`: where a phrase begins whose word number `offset` this is.
    fn decode(&self, offset: u32) -> Places {
        let mut reader = self.bytes.iter();
        let mut mail = 0;
        let mut found = Vec::with_capacity(self.mails as usize);
        for _ in 0..self.mails {
            mail += take(&mut reader);
            let count = take(&mut reader);
            let mut place = 0;
            let mut places = Vec::with_capacity(count as usize);
            for _ in 0..count {
                place += take(&mut reader);
                places.extend(place.checked_sub(offset));
            }
            found.push((mail, places));
        }
        found
    }
}

/// The places that both have.
fn intersect(left: &Places, right: &Places) -> Places {
    let mut found = Vec::new();
    let mut others = right.iter().peekable();
    for (mail, places) in left {
        while others.next_if(|other| other.0 < *mail).is_some() {}
        if let Some((_, theirs)) = others.next_if(|other| other.0 == *mail) {
            let both: Vec<u32> = places.iter().copied().filter(|place| theirs.binary_search(place).is_ok()).collect();
            if !both.is_empty() {
                found.push((*mail, both));
            }
        }
    }
    found
}

fn put(bytes: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take<'a>(bytes: &mut impl Iterator<Item = &'a u8>) -> u32 {
    let mut number = 0;
    let mut shift = 0;
    for &byte in bytes {
        number |= u32::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
        shift += 7;
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phrase(index: &Index, text: &str) -> Option<Vec<u32>> {
        index.phrase(&words(text))
    }

    #[test]
    fn phrases_are_neighbouring_words_of_one_field() {
        let mut index = Index::default();
        index.add(&["red fox", "jumps over the fence"]);
        index.add(&["the fox", "is red, fox or not"]);
        index.add(&["", "fox red red fox red"]);
        assert_eq!(phrase(&index, "red fox"), Some(vec![0, 1, 2]));
        assert_eq!(phrase(&index, "Fox RED"), Some(vec![2]));
        assert_eq!(phrase(&index, "fox jumps"), Some(vec![]), "the subject's end is not next to the body");
        assert_eq!(phrase(&index, "red fox red"), Some(vec![2]));
        assert_eq!(phrase(&index, "wolf fox"), Some(vec![]));
        assert_eq!(phrase(&index, "!?"), None);
        assert_eq!((index.frequency("fox"), index.frequency("the"), index.frequency("wolf")), (3, 2, 0));
    }

    #[test]
    fn numbers_of_every_size_are_kept() {
        let mut index = Index::default();
        for _ in 0..300 {
            index.add(&["", "other"]);
        }
        let long = "filler ".repeat(70_000) + "needle";
        index.add(&["needle", &long]);
        assert_eq!(phrase(&index, "filler needle"), Some(vec![300]));
        assert_eq!(phrase(&index, "needle filler"), Some(vec![]));
    }
}
