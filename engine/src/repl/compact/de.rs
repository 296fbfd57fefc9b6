//! Reading.

use rao_envs::Text;
use serde::de::value::BorrowedStrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess, VariantAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::{Failure, tag};

pub(super) struct Reader<'de> {
    pub(super) rest: &'de [u8],
    pub(super) texts: &'de [Text],
}

impl<'de> Reader<'de> {
    fn take(&mut self, count: usize) -> Result<&'de [u8], Failure> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or_else(|| Failure::custom("it is cut short"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Failure> {
        self.take(N)?.try_into().map_err(Failure::custom)
    }

    fn tag(&mut self) -> Result<u8, Failure> {
        let [tag] = self.array()?;
        Ok(tag)
    }

    fn peek(&self) -> Result<u8, Failure> {
        self.rest.first().copied().ok_or_else(|| Failure::custom("it is cut short"))
    }

    fn number(&mut self) -> Result<u64, Failure> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.tag()?;
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Ok(value);
            }
        }
        Err(Failure::custom("a number without end"))
    }

    fn length(&mut self) -> Result<usize, Failure> {
        usize::try_from(self.number()?).map_err(Failure::custom)
    }

    fn string(&mut self) -> Result<&'de str, Failure> {
        let length = self.length()?;
        std::str::from_utf8(self.take(length)?).map_err(Failure::custom)
    }

    fn place(&mut self) -> Result<&'de str, Failure> {
        let (number, from, to) = (self.length()?, self.length()?, self.length()?);
        let piece = self.texts.get(number).and_then(|text| text.as_str().get(from..to));
        piece.ok_or_else(|| Failure::custom("a place that no text has"))
    }
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = Failure;

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match self.tag()? {
            tag::UNIT => visitor.visit_unit(),
            tag::NONE => visitor.visit_none(),
            tag::SOME => visitor.visit_some(self),
            tag::FALSE => visitor.visit_bool(false),
            tag::TRUE => visitor.visit_bool(true),
            tag::UNSIGNED => visitor.visit_u64(self.number()?),
            tag::SIGNED => visitor.visit_i64(i64::from_le_bytes(self.array()?)),
            tag::UNSIGNED_LONG => visitor.visit_u128(u128::from_le_bytes(self.array()?)),
            tag::SIGNED_LONG => visitor.visit_i128(i128::from_le_bytes(self.array()?)),
            tag::SINGLE => visitor.visit_f32(f32::from_le_bytes(self.array()?)),
            tag::DOUBLE => visitor.visit_f64(f64::from_le_bytes(self.array()?)),
            tag::CHAR => {
                let code = u32::try_from(self.number()?).map_err(Failure::custom)?;
                visitor.visit_char(char::try_from(code).map_err(Failure::custom)?)
            }
            tag::STRING => visitor.visit_borrowed_str(self.string()?),
            tag::PLACE => visitor.visit_borrowed_str(self.place()?),
            tag::BYTES => {
                let length = self.length()?;
                visitor.visit_borrowed_bytes(self.take(length)?)
            }
            tag::SEQUENCE => {
                let left = Some(self.length()?);
                Items::all(self, left, |items| visitor.visit_seq(items))
            }
            tag::OPEN_SEQUENCE => Items::all(self, None, |items| visitor.visit_seq(items)),
            tag::MAP => {
                let left = Some(self.length()?);
                Items::all(self, left, |items| visitor.visit_map(items))
            }
            tag::OPEN_MAP => Items::all(self, None, |items| visitor.visit_map(items)),
            small if small >= tag::SMALL => visitor.visit_u64(u64::from(small - tag::SMALL)),
            other => Err(Failure::custom(format_args!("an unknown tag {other}"))),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        self.deserialize_any(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        match self.tag()? {
            tag::STRING => visitor.visit_enum(BorrowedStrDeserializer::new(self.string()?)),
            tag::MAP if self.number()? == 1 => visitor.visit_enum(Variant(self)),
            other => Err(Failure::custom(format_args!("tag {other} in the place of a variant"))),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

/// The items of a sequence, or keys and values of a map.
struct Items<'r, 'de> {
    reader: &'r mut Reader<'de>,
    /// How many are left; `None` if only the end tells.
    left: Option<usize>,
}

impl<'r, 'de> Items<'r, 'de> {
    /// Lets `visit` take all items.
    fn all<T>(
        reader: &'r mut Reader<'de>,
        left: Option<usize>,
        visit: impl FnOnce(&mut Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut items = Items { reader, left };
        let value = visit(&mut items)?;
        if items.more()? { Err(Failure::custom("more items than were taken")) } else { items.end(value) }
    }

    fn more(&self) -> Result<bool, Failure> {
        match self.left {
            Some(left) => Ok(left > 0),
            None => Ok(self.reader.peek()? != tag::END),
        }
    }

    fn end<T>(self, value: T) -> Result<T, Failure> {
        if self.left.is_none() {
            self.reader.tag()?;
        }
        Ok(value)
    }

    fn next<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Failure> {
        if !self.more()? {
            return Ok(None);
        }
        self.left = self.left.map(|left| left - 1);
        seed.deserialize(&mut *self.reader).map(Some)
    }
}

impl<'de> SeqAccess<'de> for &mut Items<'_, 'de> {
    type Error = Failure;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Failure> {
        self.next(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        self.left
    }
}

impl<'de> MapAccess<'de> for &mut Items<'_, 'de> {
    type Error = Failure;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Failure> {
        self.next(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Failure> {
        seed.deserialize(&mut *self.reader)
    }

    fn size_hint(&self) -> Option<usize> {
        self.left
    }
}

/// A variant with fields: its name, then they.
struct Variant<'r, 'de>(&'r mut Reader<'de>);

impl<'de> EnumAccess<'de> for Variant<'_, 'de> {
    type Error = Failure;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Failure> {
        let name = seed.deserialize(&mut *self.0)?;
        Ok((name, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_, 'de> {
    type Error = Failure;

    fn unit_variant(self) -> Result<(), Failure> {
        Err(Failure::custom("a variant without fields has some"))
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Failure> {
        seed.deserialize(self.0)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _length: usize, visitor: V) -> Result<V::Value, Failure> {
        self.0.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, Failure> {
        self.0.deserialize_any(visitor)
    }
}
