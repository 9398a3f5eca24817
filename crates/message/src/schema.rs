//! Schemas as peers exchange them, and their hashes.
//!
//! A schema lists methods and the messages that they reach, in one canonical order: methods by path,
//! and messages in the order of a depth-first walk (each method's request, then its response; fields
//! by number). The hash covers what decides layouts and calls: paths, streaming, field numbers,
//! types, `optional`, oneofs, maps. It does not cover the names of messages, fields and enumerations,
//! nor the values of enumerations. Calls carry none of these, so renaming them changes nothing.
//!
//! The compact form, little-endian base-128 varints, strings with their length in front:
//!
//! ```text
//! schema  = version:1  count message*  count method*
//! message = name  count field*                          fields by ascending number
//! field   = number kind flags [oneof] name [message]    oneof if flags & 8: its lowest field number
//!                                                       message if kind = 11: index of its type
//! flags   = shape (0 singular, 1 repeated, 2 map) | optional << 2 | in a oneof << 3
//! method  = path  flags (1 client streams, 2 server streams)  request  response
//! ```
//!
//! A schema may come from anyone, so its size is bounded ([`MAX_SCHEMA_BYTES`], [`MAX_MESSAGES`],
//! [`MAX_FIELDS`], [`MAX_METHODS`]). What is made from it takes some ten megabytes at most. Nothing
//! recurses over a schema: messages may refer to each other in any way.

mod compatible;
mod encoded;
mod layouts;
mod part;

pub use compatible::{Compatibility, check_compatible, check_method_compatible};
pub use layouts::OwnedMethod;

use crate::descriptor::fnv1a;
use crate::layout::{Kind, Shape};
use crate::plan::PlanField;

/// The longest compact form that is decoded, in bytes.
pub const MAX_SCHEMA_BYTES: usize = 1 << 20;

/// The most messages of a schema.
pub const MAX_MESSAGES: usize = 1 << 14;

/// The most fields of a schema, over all its messages.
pub const MAX_FIELDS: usize = 1 << 16;

/// The most methods of a schema.
pub const MAX_METHODS: usize = 1 << 12;

/// A schema: methods and the messages that they reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schema {
    /// The messages, in canonical order.
    pub messages: Vec<MessageSchema>,
    /// The methods, by path.
    pub methods: Vec<MethodSchema>,
}

/// A message in a [`Schema`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageSchema {
    /// Full name.
    pub name: String,
    /// The fields, by ascending number.
    pub fields: Vec<FieldSchema>,
}

/// A field in a [`MessageSchema`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldSchema {
    /// Its name.
    pub name: String,
    /// Field number.
    pub number: u32,
    /// Type of the value, or of each value.
    pub kind: Kind,
    /// Singular, repeated or map.
    pub shape: Shape,
    /// Declared `optional`.
    pub optional: bool,
    /// The lowest field number of its oneof, if it is in one.
    pub oneof: Option<u32>,
    /// Index of its type among the messages, if its kind is [`Kind::Message`].
    pub message: Option<u32>,
}

impl FieldSchema {
    /// The field as the layout rule sees it.
    pub fn plan_field(&self) -> PlanField {
        PlanField {
            number: self.number,
            kind: self.kind,
            shape: self.shape,
            optional: self.optional,
            oneof: self.oneof,
        }
    }
}

/// A method in a [`Schema`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodSchema {
    /// The path that gRPC uses: `/kv.Kv/Get`.
    pub path: String,
    /// The client sends a stream of requests.
    pub client_streaming: bool,
    /// The server sends a stream of responses.
    pub server_streaming: bool,
    /// Index of the request's type among the messages.
    pub request: u32,
    /// Index of the response's type among the messages.
    pub response: u32,
}

/// Two peers cannot talk about a service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// A schema is not in the compact form. Its sender is at fault.
    #[error("malformed schema: {0}")]
    Malformed(&'static str),
    /// A schema has more of something than is taken from a peer. Its sender is at fault.
    #[error("a schema has more than {most} {what}")]
    TooLarge {
        /// What it has too many of.
        what: &'static str,
        /// How many are taken.
        most: usize,
    },
    /// Comparing would take too long.
    #[error("the schemas are too large to compare")]
    TooComplex,
    /// Both know a field (or a method), but of types that protobuf cannot convert.
    #[error("incompatible schemas: {field} is {ours} here and {theirs} at the peer")]
    Incompatible {
        /// Full name on our side: `kv.PutRequest.value`, or a method's path.
        field: String,
        /// Its type on our side.
        ours: String,
        /// Its type at the peer.
        theirs: String,
    },
}

impl Schema {
    /// The hash: see the module's documentation.
    pub fn hash(&self) -> u64 {
        let mut covered = Vec::new();
        self.encode_into(&mut covered, false);
        fnv1a(&covered)
    }

    /// The compact form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_into(&mut out, true);
        out
    }
}

#[cfg(test)]
mod tests;
