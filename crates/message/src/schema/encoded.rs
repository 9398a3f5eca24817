//! The compact form of schemas: encoding it, and decoding it from untrusted peers.

use super::{
    FieldSchema, MAX_FIELDS, MAX_MESSAGES, MAX_METHODS, MAX_SCHEMA_BYTES, MessageSchema,
    MethodSchema, Schema, SchemaError,
};
use crate::layout::{Kind, Shape};

const VERSION: u8 = 1;

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
    ///
    /// # Errors
    /// If the bytes are none, or the schema is larger than the limits of [`crate::schema`].
    pub fn parse(bytes: &[u8]) -> Result<Schema, SchemaError> {
        at_most(bytes.len(), MAX_SCHEMA_BYTES, "bytes")?;
        let mut input = Input {
            left: bytes,
            fields: 0,
        };
        if input.byte()? != VERSION {
            return Err(SchemaError::Malformed("unknown version"));
        }
        let mut schema = Schema::default();
        let count = input.number()?;
        at_most(count as usize, MAX_MESSAGES, MESSAGES)?;
        for _ in 0..count {
            schema.messages.push(input.message()?);
        }
        let count = input.number()?;
        at_most(count as usize, MAX_METHODS, METHODS)?;
        for _ in 0..count {
            schema.methods.push(input.method()?);
        }
        if !input.left.is_empty() {
            return Err(SchemaError::Malformed("trailing bytes"));
        }
        schema.check()?;
        Ok(schema)
    }

    /// Checks all that [`Schema::parse`] promises: a schema may also be put together by hand.
    pub(super) fn check(&self) -> Result<(), SchemaError> {
        let fields = || self.messages.iter().flat_map(|message| &message.fields);
        at_most(self.messages.len(), MAX_MESSAGES, MESSAGES)?;
        at_most(fields().count(), MAX_FIELDS, FIELDS)?;
        at_most(self.methods.len(), MAX_METHODS, METHODS)?;
        for message in &self.messages {
            if !message.fields.is_sorted_by(|a, b| a.number < b.number) {
                return Err(SchemaError::Malformed("fields are not in order"));
            }
        }
        for field in fields() {
            self.check_field(field)?;
        }
        let known = |index: u32| (index as usize) < self.messages.len();
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

    fn check_field(&self, field: &FieldSchema) -> Result<(), SchemaError> {
        if field.number == 0 || field.number > MAX_FIELD_NUMBER {
            return Err(SchemaError::Malformed("not a field number"));
        }
        if field.shape != Shape::Singular && (field.optional || field.oneof.is_some()) {
            return Err(SchemaError::Malformed("unknown flags"));
        }
        let message = match (field.kind, field.message) {
            (Kind::Message, Some(index)) => self.messages.get(index as usize),
            (Kind::Message, None) => None,
            _ if field.message.is_some() || field.shape == Shape::Map => {
                return Err(SchemaError::Malformed(
                    "a field that holds no messages refers to one",
                ));
            }
            _ => return Ok(()),
        };
        let message = message.ok_or(SchemaError::Malformed("no such message"))?;
        if field.shape == Shape::Map && !is_entry(message) {
            return Err(SchemaError::Malformed(
                "a map's entries are not key and value",
            ));
        }
        Ok(())
    }
}

const MESSAGES: &str = "messages";
const FIELDS: &str = "fields";
const METHODS: &str = "methods";

fn at_most(count: usize, most: usize, what: &'static str) -> Result<(), SchemaError> {
    match count <= most {
        true => Ok(()),
        false => Err(SchemaError::TooLarge { what, most }),
    }
}

/// Whether a message can be a map's entry: a key of a type that can be looked up, and a value.
fn is_entry(message: &MessageSchema) -> bool {
    let plain = |field: &FieldSchema, number| {
        field.number == number
            && field.shape == Shape::Singular
            && !field.optional
            && field.oneof.is_none()
    };
    let is_key = |kind| {
        !matches!(
            kind,
            Kind::Double | Kind::Float | Kind::Bytes | Kind::Enum | Kind::Message
        )
    };
    matches!(&message.fields[..], [key, value]
        if plain(key, 1) && is_key(key.kind) && plain(value, 2))
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
    /// Fields so far, of all messages.
    fields: usize,
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
        let count = self.number()?;
        self.fields = self.fields.saturating_add(count as usize);
        at_most(self.fields, MAX_FIELDS, FIELDS)?;
        let mut fields = Vec::new();
        for _ in 0..count {
            fields.push(self.field()?);
        }
        Ok(MessageSchema { name, fields })
    }

    fn field(&mut self) -> Result<FieldSchema, SchemaError> {
        let number = self.number()?;
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
        if flags > 15 {
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
