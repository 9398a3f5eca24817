//! The compact form of schemas: encoding it, and decoding it from untrusted peers.

use super::{FieldSchema, MessageSchema, MethodSchema, Schema, SchemaError};
use crate::layout::{Kind, Shape};

const VERSION: u8 = 1;

/// The longest compact form that is decoded, in bytes. Its length bounds the counts in it.
const MAX_SCHEMA_BYTES: usize = 1 << 20;

/// The largest field number that protobuf allows.
const MAX_FIELD_NUMBER: u32 = (1 << 29) - 1;

impl Schema {
    /// Encodes the compact form; without names, it is the input of the hash.
    pub(super) fn encode_into(&self, out: &mut Vec<u8>, names: bool) {
        let name = |out: &mut Vec<u8>, text: &str| {
            if names {
                put_text(out, text);
            }
        };
        out.push(VERSION);
        put(out, self.messages.len() as u32);
        for message in &self.messages {
            name(out, &message.name);
            put(out, message.fields.len() as u32);
            for field in &message.fields {
                put(out, field.number);
                out.push(field.kind as u8);
                let shape = match field.shape {
                    Shape::Singular => 0,
                    Shape::Repeated => 1,
                    Shape::Map => 2,
                };
                let in_oneof = u8::from(field.oneof.is_some());
                out.push(shape | u8::from(field.optional) << 2 | in_oneof << 3);
                if let Some(oneof) = field.oneof {
                    put(out, oneof);
                }
                name(out, &field.name);
                if let Some(message) = field.message {
                    put(out, message);
                }
            }
        }
        put(out, self.methods.len() as u32);
        for method in &self.methods {
            put_text(out, &method.path);
            out.push(u8::from(method.client_streaming) | u8::from(method.server_streaming) << 1);
            put(out, method.request);
            put(out, method.response);
        }
    }

    /// Decodes the compact form.
    pub fn parse(bytes: &[u8]) -> Result<Schema, SchemaError> {
        if bytes.len() > MAX_SCHEMA_BYTES {
            return Err(SchemaError::Malformed("too long"));
        }
        let mut input = Input { left: bytes };
        if input.byte()? != VERSION {
            return Err(SchemaError::Malformed("unknown version"));
        }
        let mut schema = Schema::default();
        for _ in 0..input.number()? {
            schema.messages.push(input.message()?);
        }
        for _ in 0..input.number()? {
            schema.methods.push(input.method()?);
        }
        if !input.left.is_empty() {
            return Err(SchemaError::Malformed("trailing bytes"));
        }
        schema.check()?;
        Ok(schema)
    }

    /// Checks what involves more than one field or method.
    fn check(&self) -> Result<(), SchemaError> {
        let known = |index: u32| (index as usize) < self.messages.len();
        for field in self.messages.iter().flat_map(|message| &message.fields) {
            let Some(index) = field.message else { continue };
            let Some(message) = self.messages.get(index as usize) else {
                return Err(SchemaError::Malformed("no such message"));
            };
            let plain = |field: &FieldSchema, number| {
                field.number == number
                    && field.shape == Shape::Singular
                    && !field.optional
                    && field.oneof.is_none()
            };
            let is_entry = matches!(&message.fields[..], [key, value]
                if plain(key, 1) && key.message.is_none() && plain(value, 2));
            if field.shape == Shape::Map && !is_entry {
                return Err(SchemaError::Malformed(
                    "a map's entries are not key and value",
                ));
            }
        }
        if self
            .methods
            .iter()
            .any(|method| !known(method.request) || !known(method.response))
        {
            return Err(SchemaError::Malformed("no such message"));
        }
        if !self.methods.is_sorted_by(|a, b| a.path < b.path) {
            return Err(SchemaError::Malformed("methods are not in order"));
        }
        Ok(())
    }
}

fn put(out: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u32);
    out.extend_from_slice(text.as_bytes());
}

struct Input<'a> {
    left: &'a [u8],
}

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], SchemaError> {
        let (taken, left) = self
            .left
            .split_at_checked(count)
            .ok_or(SchemaError::Malformed("truncated"))?;
        self.left = left;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, SchemaError> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> Result<u32, SchemaError> {
        let mut value = 0u64;
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return u32::try_from(value)
                    .map_err(|_| SchemaError::Malformed("number too large"));
            }
        }
        Err(SchemaError::Malformed("number too long"))
    }

    fn text(&mut self) -> Result<String, SchemaError> {
        let length = self.number()? as usize;
        let text = str::from_utf8(self.take(length)?);
        Ok(text
            .map_err(|_| SchemaError::Malformed("a name is not UTF-8"))?
            .to_owned())
    }

    fn message(&mut self) -> Result<MessageSchema, SchemaError> {
        let name = self.text()?;
        let mut fields: Vec<FieldSchema> = Vec::new();
        for _ in 0..self.number()? {
            let field = self.field()?;
            if fields
                .last()
                .is_some_and(|last| last.number >= field.number)
            {
                return Err(SchemaError::Malformed("fields are not in order"));
            }
            fields.push(field);
        }
        Ok(MessageSchema { name, fields })
    }

    fn field(&mut self) -> Result<FieldSchema, SchemaError> {
        let number = self.number()?;
        if number == 0 || number > MAX_FIELD_NUMBER {
            return Err(SchemaError::Malformed("not a field number"));
        }
        let kind = Kind::from_number(self.byte()?).ok_or(SchemaError::Malformed("unknown type"))?;
        let flags = self.byte()?;
        let shape = match flags & 3 {
            0 => Shape::Singular,
            1 => Shape::Repeated,
            2 if kind == Kind::Message => Shape::Map,
            _ => return Err(SchemaError::Malformed("unknown shape")),
        };
        let optional = flags & 4 != 0;
        let oneof = if flags & 8 != 0 {
            Some(self.number()?)
        } else {
            None
        };
        let singular_only = optional || oneof.is_some();
        if flags > 15 || (singular_only && shape != Shape::Singular) {
            return Err(SchemaError::Malformed("unknown flags"));
        }
        let name = self.text()?;
        let message = if kind == Kind::Message {
            Some(self.number()?)
        } else {
            None
        };
        Ok(FieldSchema {
            name,
            number,
            kind,
            shape,
            optional,
            oneof,
            message,
        })
    }

    fn method(&mut self) -> Result<MethodSchema, SchemaError> {
        let path = self.text()?;
        let flags = self.byte()?;
        if flags > 3 {
            return Err(SchemaError::Malformed("unknown flags"));
        }
        Ok(MethodSchema {
            path,
            client_streaming: flags & 1 != 0,
            server_streaming: flags & 2 != 0,
            request: self.number()?,
            response: self.number()?,
        })
    }
}
