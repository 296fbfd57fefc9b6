//! Words as SQLite's FTS5 sees them with its default tokenizer, `unicode61`: runs of letters and digits, in lower case
//! and without diacritics.

use std::ops::Range;

use unicode_normalization::UnicodeNormalization as _;
use unicode_normalization::char::is_combining_mark;

/// A word and where it stands in the text, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    /// The folded word.
    pub(super) word: String,
    /// Its place in the original.
    pub(super) span: Range<usize>,
}

/// The words of a text in order.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let mut found: Vec<Token> = Vec::new();
    let mut open = false;
    for (at, letter) in text.char_indices() {
        let end = at + letter.len_utf8();
        if letter.is_ascii() {
            // Most of all mail: neither tables nor decompositions are needed.
            if letter.is_ascii_alphanumeric() {
                extend(&mut found, open, at, end).push(letter.to_ascii_lowercase());
                open = true;
            } else {
                open = false;
            }
        } else if is_combining_mark(letter) {
            // A mark belongs to its letter and leaves no trace; on its own it begins no word.
            if let (true, Some(last)) = (open, found.last_mut()) {
                last.span.end = end;
            }
        } else if letter.is_alphanumeric() {
            let word = extend(&mut found, open, at, end);
            word.extend(letter.nfd().filter(|part| !is_combining_mark(*part)).flat_map(char::to_lowercase));
            open = true;
        } else {
            open = false;
        }
    }
    found
}

/// The words alone.
pub(super) fn words(text: &str) -> Vec<String> {
    tokens(text).into_iter().map(|token| token.word).collect()
}

/// The word to write on: the last one if it is still open, else a new one.
fn extend(found: &mut Vec<Token>, open: bool, start: usize, end: usize) -> &mut String {
    if !open || found.is_empty() {
        found.push(Token { word: String::new(), span: start..end });
    }
    let last = found.len() - 1;
    let token = &mut found[last];
    token.span.end = end;
    &mut token.word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_folded_runs_of_letters_and_digits() {
        assert_eq!(words("Re: the Q3-Budget (v2.1)!"), ["re", "the", "q3", "budget", "v2", "1"]);
        assert_eq!(words("Crème BRÛLÉE, naïve"), ["creme", "brulee", "naive"]);
        // The same with the marks as characters of their own.
        assert_eq!(words("Cre\u{300}me"), ["creme"]);
        assert_eq!(words("don't o_o"), ["don", "t", "o", "o"]);
        assert_eq!(words("\u{301}. -- "), Vec::<String>::new());
        assert_eq!(words("Straße ДОМ 東京"), ["straße", "дом", "東京"]);
    }

    #[test]
    fn spans_point_into_the_original() {
        let text = "Über  Nacht";
        let found = tokens(text);
        assert_eq!(found.iter().map(|token| &text[token.span.clone()]).collect::<Vec<_>>(), ["Über", "Nacht"]);
    }
}
