//! A session out of use, as bytes in memory: small, because long strings that are pieces of a text that the host holds
//! anyway are written as their places there.
//!
//! The interpreter's own dump has every string in it, and is made whole before anything can be left out of it: saving a
//! session that holds a long text would double the text first. This form leaves such strings out as it goes, and reading it
//! makes each of them once. It tells the interpreter's types what its dump tells them (names of fields and of variants, sizes
//! of sequences), and never leaves the process that wrote it.

mod de;
mod ser;

use std::fmt;
use std::ops::Range;

use rao_envs::Text;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Strings of fewer bytes are written as they are.
const SHORTEST: usize = 64 << 10;

/// How many long strings are looked for in vain before the rest is written as it is: looking takes time in the text's length.
const MOST_MISSES: u32 = 8;

/// What stands before a value. The numbers matter to nobody but [`ser`] and [`de`].
mod tag {
    pub(super) const UNIT: u8 = 0;
    pub(super) const NONE: u8 = 1;
    pub(super) const SOME: u8 = 2;
    pub(super) const FALSE: u8 = 3;
    pub(super) const TRUE: u8 = 4;
    pub(super) const UNSIGNED: u8 = 5;
    pub(super) const SIGNED: u8 = 6;
    pub(super) const UNSIGNED_LONG: u8 = 7;
    pub(super) const SIGNED_LONG: u8 = 8;
    pub(super) const SINGLE: u8 = 9;
    pub(super) const DOUBLE: u8 = 10;
    pub(super) const CHAR: u8 = 11;
    pub(super) const STRING: u8 = 12;
    pub(super) const BYTES: u8 = 13;
    pub(super) const PLACE: u8 = 14;
    /// A sequence or map of a known length.
    pub(super) const SEQUENCE: u8 = 15;
    pub(super) const MAP: u8 = 16;
    /// One that lasts to its [`END`].
    pub(super) const OPEN_SEQUENCE: u8 = 17;
    pub(super) const OPEN_MAP: u8 = 18;
    pub(super) const END: u8 = 19;
    /// This and everything above stands for a small unsigned number itself.
    pub(super) const SMALL: u8 = 128;
}

/// A value as bytes, with the texts that it refers to.
#[derive(Debug)]
pub(super) struct Compact {
    bytes: Vec<u8>,
    texts: Vec<Text>,
}

impl Compact {
    /// Writes a value. `texts` are shared, not copied.
    ///
    /// # Errors
    /// When the value refuses to be written.
    pub(super) fn write(value: &impl Serialize, texts: Vec<Text>) -> Result<Compact, Failure> {
        let places = Places { texts: &texts, last: None, misses: 0 };
        let mut writer = ser::Writer { bytes: Vec::with_capacity(4 << 10), places };
        value.serialize(&mut writer)?;
        let mut bytes = writer.bytes;
        bytes.shrink_to_fit();
        Ok(Compact { bytes, texts })
    }

    /// Makes the value again.
    ///
    /// # Errors
    /// When the bytes are not such a value.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        let mut reader = de::Reader { rest: &self.bytes, texts: &self.texts };
        let value = T::deserialize(&mut reader)?;
        if reader.rest.is_empty() { Ok(value) } else { Err(Failure("bytes are left over".to_owned())) }
    }
}

/// Finds strings in texts.
struct Places<'a> {
    texts: &'a [Text],
    /// Where the last one was found: pieces of a text often follow each other.
    last: Option<(usize, usize)>,
    misses: u32,
}

impl Places<'_> {
    /// The text that has `piece`, and where.
    fn find(&mut self, piece: &str) -> Option<(usize, Range<usize>)> {
        if piece.len() < SHORTEST || self.misses >= MOST_MISSES {
            return None;
        }
        let found = self
            .follows(piece)
            .or_else(|| self.texts.iter().enumerate().find_map(|(number, text)| Some((number, text.locate(piece)?))));
        match &found {
            Some((number, range)) => self.last = Some((*number, range.end)),
            None => self.misses += 1,
        }
        found
    }

    fn follows(&self, piece: &str) -> Option<(usize, Range<usize>)> {
        let (number, from) = self.last?;
        let is_next = self.texts.get(number)?.get(from..)?.starts_with(piece);
        is_next.then(|| (number, from..from + piece.len()))
    }
}

/// Why a value could not be written or read.
#[derive(Debug)]
pub(super) struct Failure(String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl serde::ser::Error for Failure {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Failure(message.to_string())
    }
}

impl serde::de::Error for Failure {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Failure(message.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    /// One of everything that serde knows, with what the interpreter's types use of it.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Everything {
        small: (u8, i8, u16, i16, u32, i32),
        long: (u64, i64, u128, i128),
        float: (f32, f64),
        text: (char, String, Box<str>),
        maybe: (Option<Option<u8>>, Option<()>, Option<String>),
        list: Vec<Kind>,
        by_number: BTreeMap<i32, Vec<bool>>,
        bytes: Bytes,
        #[serde(flatten)]
        flat: Flat,
        loose: Vec<Loose>,
        wrapped: Wrapped,
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Flat {
        cursor: usize,
        at: Option<u32>,
        kind: Kind,
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    enum Kind {
        Unit,
        One(u32),
        Two(String, i64),
        Named { left: f64, right: Option<Box<Kind>> },
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(untagged)]
    enum Loose {
        Number(u64),
        Kind(Kind),
        Pair { value: String, error: Box<Kind> },
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Wrapped(u32);

    /// Written as bytes, not as a list of numbers.
    #[derive(Debug, Clone, PartialEq)]
    struct Bytes(Vec<u8>);

    impl Serialize for Bytes {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(&self.0)
        }
    }

    impl<'de> Deserialize<'de> for Bytes {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Take;
            impl serde::de::Visitor<'_> for Take {
                type Value = Bytes;
                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("bytes")
                }
                fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Bytes, E> {
                    Ok(Bytes(bytes.to_vec()))
                }
            }
            deserializer.deserialize_byte_buf(Take)
        }
    }

    fn kind() -> impl Strategy<Value = Kind> {
        let leaf = prop_oneof![
            Just(Kind::Unit),
            any::<u32>().prop_map(Kind::One),
            (".{0,9}", any::<i64>()).prop_map(|(text, number)| Kind::Two(text, number)),
        ];
        leaf.prop_recursive(3, 6, 1, |inner| {
            (-1e9..1e9, prop::option::of(inner))
                .prop_map(|(left, right)| Kind::Named { left, right: right.map(Box::new) })
        })
    }

    prop_compose! {
        fn everything()(
            small in any::<(u8, i8, u16, i16, u32, i32)>(),
            long in any::<(u64, i64, u128, i128)>(),
            float in (-1e30f32..1e30, -1e300..1e300),
            text in (any::<char>(), ".{0,200}", ".{0,20}"),
            maybe in any::<(Option<Option<u8>>, Option<()>, Option<String>)>(),
            list in prop::collection::vec(kind(), 0..4),
            by_number in prop::collection::btree_map(any::<i32>(), prop::collection::vec(any::<bool>(), 0..3), 0..3),
            bytes in prop::collection::vec(any::<u8>(), 0..300),
            flat in (any::<usize>(), any::<Option<u32>>(), kind()),
            loose in prop::collection::vec(
                prop_oneof![
                    any::<u64>().prop_map(Loose::Number),
                    kind().prop_map(Loose::Kind),
                    (".{0,5}", kind()).prop_map(|(value, error)| Loose::Pair { value, error: Box::new(error) }),
                ],
                0..4,
            ),
            wrapped in any::<u32>(),
        ) -> Everything {
            let text = (text.0, text.1, text.2.into());
            let (cursor, at, kind) = flat;
            let (bytes, flat, wrapped) = (Bytes(bytes), Flat { cursor, at, kind }, Wrapped(wrapped));
            Everything { small, long, float, text, maybe, list, by_number, bytes, flat, loose, wrapped }
        }
    }

    proptest! {
        #[test]
        fn everything_comes_back(value in everything()) {
            let compact = Compact::write(&value, Vec::new()).unwrap();
            prop_assert_eq!(compact.read::<Everything>().unwrap(), value);
            let mut cut = compact;
            cut.bytes.pop();
            prop_assert!(cut.read::<Everything>().is_err());
        }
    }

    #[test]
    fn strings_that_a_text_has_are_not_written() {
        let text: String = (0..40_000).map(|n| format!("{n} h\u{e9}\n")).collect();
        let at = |n: usize| text.find(&format!("\n{n} ")).unwrap() + 1;
        let (first, second) = (&text[at(3)..at(12_000)], &text[at(12_000)..at(30_000)]);
        let other = "x".repeat(SHORTEST);
        let value = vec![text.as_str(), first, second, &text[..at(9)], &other];
        let compact = Compact::write(&value, vec![Text::from("none"), Text::from(text.as_str())]).unwrap();
        assert!((SHORTEST..SHORTEST + 1_000).contains(&compact.bytes.len()), "{}", compact.bytes.len());
        assert_eq!(compact.read::<Vec<String>>().unwrap(), value);
    }

    #[test]
    fn looking_in_vain_has_an_end() {
        let texts = [Text::from("y".repeat(2 * SHORTEST))];
        let mut places = Places { texts: &texts, last: None, misses: 0 };
        let (there, not_there) = ("y".repeat(SHORTEST), "x".repeat(SHORTEST));
        for _ in 0..MOST_MISSES {
            assert!(places.find(&there).is_some() && places.find(&not_there).is_none());
        }
        assert!(places.find(&there).is_none());
    }
}
