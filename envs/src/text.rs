//! Texts that many hold.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A piece of a text that many hold: cloning and slicing copy nothing.
///
/// Two pieces are equal if they read the same, wherever they come from.
#[derive(Clone)]
pub struct Text {
    whole: Arc<str>,
    start: usize,
    end: usize,
}

impl Text {
    /// The text itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // The range was checked when the piece was made; an empty text stands for what cannot be.
        self.whole.get(self.start..self.end).unwrap_or_default()
    }

    /// The piece at a range of bytes of this one; `None` if the range lies outside or cuts a character.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Option<Text> {
        self.as_str().get(range.clone())?;
        Some(Text { whole: Arc::clone(&self.whole), start: self.start + range.start, end: self.start + range.end })
    }

    /// Where `piece` first stands in this text, in bytes.
    #[must_use]
    pub fn locate(&self, piece: &str) -> Option<Range<usize>> {
        let start = first_place(self, piece)?;
        Some(start..start + piece.len())
    }

    /// The text for others to hold: the one in memory if this is all of it, else a copy of the piece.
    #[must_use]
    pub fn shared(&self) -> Arc<str> {
        if self.is_whole() { Arc::clone(&self.whole) } else { self.as_str().into() }
    }

    /// Whether this is all of the text in memory.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.start == 0 && self.end == self.whole.len()
    }

    /// The same piece of another copy of the whole text, which must read the same.
    #[must_use]
    pub fn moved_to(&self, copy: &Text) -> Text {
        Text { whole: Arc::clone(&copy.whole), start: self.start, end: self.end }
    }

    /// Whether both are pieces of one text in memory.
    #[must_use]
    pub fn shares(&self, other: &Text) -> bool {
        Arc::ptr_eq(&self.whole, &other.whole)
    }
}

/// Where `piece` first stands in `text`. Searching prepares itself in the piece's length, which is for nothing where the piece
/// stands at the beginning, as the first of several or the whole does.
pub(crate) fn first_place(text: &str, piece: &str) -> Option<usize> {
    if text.starts_with(piece) { Some(0) } else { text.find(piece) }
}

impl Default for Text {
    fn default() -> Self {
        Text::from("")
    }
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl From<Arc<str>> for Text {
    fn from(whole: Arc<str>) -> Self {
        let end = whole.len();
        Text { whole, start: 0, end }
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Text::from(Arc::<str>::from(text))
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Text::from(Arc::<str>::from(text))
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        (self.shares(other) && self.start == other.start && self.end == other.end) || self.as_str() == other.as_str()
    }
}

impl Eq for Text {}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_share_their_text() {
        let text = Text::from("one\ntwo é three");
        let two = text.slice(4..8).unwrap();
        assert_eq!(two, "two ");
        assert!(two.shares(&text));
        let three = text.slice(4..text.len()).unwrap().slice(7..12).unwrap();
        assert_eq!(three, "three");
        assert_eq!(text.locate("three"), Some(11..16));
        assert!(text.slice(9..9).is_none(), "inside the é");
        assert!(text.slice(0..99).is_none());
        assert_eq!(three, Text::from("three"));
    }
}
