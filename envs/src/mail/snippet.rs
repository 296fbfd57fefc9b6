//! The words around a hit, in the shape of FTS5's `snippet(.., '<b>', '</b>', ' ... ', 15)`.

use std::ops::Range;

use super::tokens::{Token, tokens};

/// How many words a snippet has at most.
const WORDS: usize = 15;

const CUT: &str = " ... ";

/// A stretch of a field.
struct Window<'a> {
    field: &'a str,
    tokens: Vec<Token>,
    hits: Vec<Range<usize>>,
    start: usize,
}

/// The stretch of at most 15 words with the most different phrases in it; among equals the first field's first. What
/// was found stands in `<b>..</b>`, and what is left out before or behind is marked by ` ... `.
pub(super) fn snippet(fields: &[&str], phrases: &[Vec<String>]) -> String {
    let mut best: Option<(usize, Window<'_>)> = None;
    for field in fields {
        let tokens = tokens(field);
        let hits = find(&tokens, phrases);
        let scored = hits.iter().map(|(_, hit)| (covered(&hits, hit.start), hit.clone()));
        // The last maximum would be taken; the first one is wanted.
        let Some((score, hit)) = scored.rev().max_by_key(|(score, _)| *score) else { continue };
        if best.as_ref().is_none_or(|(before, _)| score > *before) {
            let start = (earliest(&hit, tokens.len())..hit.start).find(|&start| covered(&hits, start) >= score);
            let start = start.unwrap_or(hit.start);
            let hits = hits.into_iter().map(|(_, hit)| hit).collect();
            best = Some((score, Window { field, tokens, hits, start }));
        }
    }
    best.map(|(_, window)| window.render()).unwrap_or_default()
}

/// Where the phrases stand, as ranges of words in order of their start, each with the phrase's number.
fn find(tokens: &[Token], phrases: &[Vec<String>]) -> Vec<(usize, Range<usize>)> {
    let mut hits = Vec::new();
    for start in 0..tokens.len() {
        for (number, phrase) in phrases.iter().enumerate() {
            let here = tokens.get(start..start + phrase.len()).unwrap_or_default();
            if !here.is_empty() && here.iter().map(|token| &token.word).eq(phrase) {
                hits.push((number, start..start + phrase.len()));
            }
        }
    }
    hits
}

/// How many different phrases lie in the window that begins at a word.
fn covered(hits: &[(usize, Range<usize>)], start: usize) -> usize {
    let inside = hits.iter().filter(|(_, hit)| hit.start >= start && hit.end <= start + WORDS);
    let mut numbers: Vec<usize> = inside.map(|(number, _)| *number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.len()
}

/// The earliest that a window may begin: some words before what was found, more at the field's end.
fn earliest(hit: &Range<usize>, words: usize) -> usize {
    let before = WORDS.saturating_sub(hit.len()) / 4;
    hit.start.saturating_sub(before).min(words.saturating_sub(WORDS)).min(hit.start)
}

impl Window<'_> {
    fn render(&self) -> String {
        let end = (self.start + WORDS).min(self.tokens.len());
        let byte = |word: usize| self.tokens.get(word).map(|token| token.span.clone());
        let from = if self.start == 0 { 0 } else { byte(self.start).map_or(0, |span| span.start) };
        let to = if end == self.tokens.len() { self.field.len() } else { byte(end - 1).map_or(0, |span| span.end) };
        let mut out = String::new();
        if self.start > 0 {
            out.push_str(CUT);
        }
        let mut at = from;
        for hit in self.merged(end) {
            let (Some(first), Some(last)) = (byte(hit.start), byte(hit.end - 1)) else { continue };
            out.push_str(self.field.get(at..first.start).unwrap_or_default());
            out.push_str("<b>");
            out.push_str(self.field.get(first.start..last.end).unwrap_or_default());
            out.push_str("</b>");
            at = last.end;
        }
        out.push_str(self.field.get(at..to).unwrap_or_default());
        if end < self.tokens.len() {
            out.push_str(CUT);
        }
        out
    }

    /// The hits inside the window; those that overlap as one.
    fn merged(&self, end: usize) -> Vec<Range<usize>> {
        let mut merged: Vec<Range<usize>> = Vec::new();
        for hit in self.hits.iter().filter(|hit| hit.start >= self.start && hit.end <= end) {
            match merged.last_mut().filter(|last| hit.start < last.end) {
                Some(last) => last.end = last.end.max(hit.end),
                None => merged.push(hit.clone()),
            }
        }
        merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mail::tokens::words;

    fn of(fields: &[&str], keywords: &[&str]) -> String {
        let phrases: Vec<Vec<String>> = keywords.iter().map(|keyword| words(keyword)).collect();
        snippet(fields, &phrases)
    }

    #[test]
    fn a_snippet_marks_what_was_found() {
        assert_eq!(of(&["The budget.", "text"], &["Budget"]), "The <b>budget</b>.");
        let long = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen";
        assert_eq!(
            of(&["", long], &["two"]),
            "one <b>two</b> three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen ... "
        );
        assert_eq!(
            of(&["", long], &["fifteen sixteen"]),
            " ... two three four five six seven eight nine ten eleven twelve thirteen fourteen <b>fifteen sixteen</b>"
        );
    }

    #[test]
    fn the_most_phrases_win_then_the_first_place() {
        let body = format!("alpha {} alpha and beta", "x ".repeat(20));
        let shown = of(&["alpha alone", &body], &["alpha", "beta"]);
        assert!(shown.starts_with(CUT) && shown.ends_with("<b>alpha</b> and <b>beta</b>"), "{shown}");
        assert_eq!(of(&["alpha first", "alpha second"], &["alpha"]), "<b>alpha</b> first");
        assert_eq!(of(&["a b c"], &["a b", "b c"]), "<b>a b c</b>");
    }
}
