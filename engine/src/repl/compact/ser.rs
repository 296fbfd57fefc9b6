//! Writing.

use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::{Failure, Places, tag};

pub(super) struct Writer<'a> {
    pub(super) bytes: Vec<u8>,
    pub(super) places: Places<'a>,
}

impl Writer<'_> {
    /// Seven bits in each byte, the lowest first.
    fn number(&mut self, mut value: u64) {
        while value >= 128 {
            self.bytes.push(value as u8 | 128);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn length(&mut self, value: usize) {
        self.number(value as u64);
    }

    fn string(&mut self, text: &str) {
        self.bytes.push(tag::STRING);
        self.length(text.len());
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn begin(&mut self, tag: u8, length: usize) {
        self.bytes.push(tag);
        self.length(length);
    }

    /// A variant with fields is a map from its name to them.
    fn variant(&mut self, name: &str) {
        self.begin(tag::MAP, 1);
        self.string(name);
    }
}

/// A sequence, map or struct being written.
pub(super) struct Compound<'w, 'a> {
    writer: &'w mut Writer<'a>,
    is_open: bool,
}

impl<'w, 'a> Compound<'w, 'a> {
    fn closed(writer: &'w mut Writer<'a>) -> Result<Self, Failure> {
        Ok(Compound { writer, is_open: false })
    }

    fn put<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Failure> {
        value.serialize(&mut *self.writer)
    }

    fn close(self) -> Result<(), Failure> {
        if self.is_open {
            self.writer.bytes.push(tag::END);
        }
        Ok(())
    }
}

impl<'w, 'a> Serializer for &'w mut Writer<'a> {
    type Ok = ();
    type Error = Failure;
    type SerializeSeq = Compound<'w, 'a>;
    type SerializeTuple = Compound<'w, 'a>;
    type SerializeTupleStruct = Compound<'w, 'a>;
    type SerializeTupleVariant = Compound<'w, 'a>;
    type SerializeMap = Compound<'w, 'a>;
    type SerializeStruct = Compound<'w, 'a>;
    type SerializeStructVariant = Compound<'w, 'a>;

    fn is_human_readable(&self) -> bool {
        false
    }

    fn serialize_bool(self, value: bool) -> Result<(), Failure> {
        self.bytes.push(if value { tag::TRUE } else { tag::FALSE });
        Ok(())
    }

    fn serialize_i8(self, value: i8) -> Result<(), Failure> {
        self.serialize_i64(value.into())
    }

    fn serialize_i16(self, value: i16) -> Result<(), Failure> {
        self.serialize_i64(value.into())
    }

    fn serialize_i32(self, value: i32) -> Result<(), Failure> {
        self.serialize_i64(value.into())
    }

    fn serialize_i64(self, value: i64) -> Result<(), Failure> {
        match u64::try_from(value) {
            Ok(value) => self.serialize_u64(value),
            Err(_) => {
                self.bytes.push(tag::SIGNED);
                self.bytes.extend_from_slice(&value.to_le_bytes());
                Ok(())
            }
        }
    }

    fn serialize_i128(self, value: i128) -> Result<(), Failure> {
        self.bytes.push(tag::SIGNED_LONG);
        self.bytes.extend_from_slice(&value.to_le_bytes());
        Ok(())
    }

    fn serialize_u8(self, value: u8) -> Result<(), Failure> {
        self.serialize_u64(value.into())
    }

    fn serialize_u16(self, value: u16) -> Result<(), Failure> {
        self.serialize_u64(value.into())
    }

    fn serialize_u32(self, value: u32) -> Result<(), Failure> {
        self.serialize_u64(value.into())
    }

    fn serialize_u64(self, value: u64) -> Result<(), Failure> {
        if value < u64::from(tag::SMALL) {
            self.bytes.push(tag::SMALL | value as u8);
        } else {
            self.bytes.push(tag::UNSIGNED);
            self.number(value);
        }
        Ok(())
    }

    fn serialize_u128(self, value: u128) -> Result<(), Failure> {
        self.bytes.push(tag::UNSIGNED_LONG);
        self.bytes.extend_from_slice(&value.to_le_bytes());
        Ok(())
    }

    fn serialize_f32(self, value: f32) -> Result<(), Failure> {
        self.bytes.push(tag::SINGLE);
        self.bytes.extend_from_slice(&value.to_le_bytes());
        Ok(())
    }

    fn serialize_f64(self, value: f64) -> Result<(), Failure> {
        self.bytes.push(tag::DOUBLE);
        self.bytes.extend_from_slice(&value.to_le_bytes());
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), Failure> {
        self.bytes.push(tag::CHAR);
        self.number(u32::from(value).into());
        Ok(())
    }

    fn serialize_str(self, text: &str) -> Result<(), Failure> {
        match self.places.find(text) {
            None => self.string(text),
            Some((number, range)) => {
                self.bytes.push(tag::PLACE);
                self.length(number);
                self.length(range.start);
                self.length(range.end);
            }
        }
        Ok(())
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<(), Failure> {
        self.begin(tag::BYTES, bytes.len());
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), Failure> {
        self.bytes.push(tag::NONE);
        Ok(())
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Failure> {
        self.bytes.push(tag::SOME);
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), Failure> {
        self.bytes.push(tag::UNIT);
        Ok(())
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Result<(), Failure> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, variant: &'static str) -> Result<(), Failure> {
        self.string(variant);
        Ok(())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), Failure> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Failure> {
        self.variant(variant);
        value.serialize(self)
    }

    fn serialize_seq(self, length: Option<usize>) -> Result<Compound<'w, 'a>, Failure> {
        match length {
            Some(length) => self.begin(tag::SEQUENCE, length),
            None => self.bytes.push(tag::OPEN_SEQUENCE),
        }
        Ok(Compound { writer: self, is_open: length.is_none() })
    }

    fn serialize_tuple(self, length: usize) -> Result<Compound<'w, 'a>, Failure> {
        self.serialize_seq(Some(length))
    }

    fn serialize_tuple_struct(self, _name: &'static str, length: usize) -> Result<Compound<'w, 'a>, Failure> {
        self.serialize_seq(Some(length))
    }

    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        length: usize,
    ) -> Result<Compound<'w, 'a>, Failure> {
        self.variant(variant);
        self.begin(tag::SEQUENCE, length);
        Compound::closed(self)
    }

    fn serialize_map(self, length: Option<usize>) -> Result<Compound<'w, 'a>, Failure> {
        match length {
            Some(length) => self.begin(tag::MAP, length),
            None => self.bytes.push(tag::OPEN_MAP),
        }
        Ok(Compound { writer: self, is_open: length.is_none() })
    }

    fn serialize_struct(self, _name: &'static str, _length: usize) -> Result<Compound<'w, 'a>, Failure> {
        // The length counts fields that are left out.
        self.serialize_map(None)
    }

    fn serialize_struct_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        _length: usize,
    ) -> Result<Compound<'w, 'a>, Failure> {
        self.variant(variant);
        self.serialize_map(None)
    }
}

impl SerializeSeq for Compound<'_, '_> {
    type Ok = ();
    type Error = Failure;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Failure> {
        self.put(value)
    }

    fn end(self) -> Result<(), Failure> {
        self.close()
    }
}

impl SerializeTuple for Compound<'_, '_> {
    type Ok = ();
    type Error = Failure;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Failure> {
        self.put(value)
    }

    fn end(self) -> Result<(), Failure> {
        self.close()
    }
}

impl SerializeTupleStruct for Compound<'_, '_> {
    type Ok = ();
    type Error = Failure;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Failure> {
        self.put(value)
    }

    fn end(self) -> Result<(), Failure> {
        self.close()
    }
}

impl SerializeTupleVariant for Compound<'_, '_> {
    type Ok = ();
    type Error = Failure;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Failure> {
        self.put(value)
    }

    fn end(self) -> Result<(), Failure> {
        self.close()
    }
}

impl SerializeMap for Compound<'_, '_> {
    type Ok = ();
    type Error = Failure;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Failure> {
        self.put(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Failure> {
        self.put(value)
    }

    fn end(self) -> Result<(), Failure> {
        self.close()
    }
}

impl SerializeStruct for Compound<'_, '_> {
    type Ok = ();
    type Error = Failure;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Failure> {
        self.writer.string(name);
        self.put(value)
    }

    fn end(self) -> Result<(), Failure> {
        self.close()
    }
}

impl SerializeStructVariant for Compound<'_, '_> {
    type Ok = ();
    type Error = Failure;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), Failure> {
        self.writer.string(name);
        self.put(value)
    }

    fn end(self) -> Result<(), Failure> {
        self.close()
    }
}
