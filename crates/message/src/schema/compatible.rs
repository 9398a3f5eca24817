//! Decides whether two peers with different schemas of a service can talk, by protobuf's rules for
//! changing a message type.
//!
//! A field, method or oneof that only one side knows is fine. A field that both know must have types
//! that share their encoding, and the same shape. One exception: a message, string or bytes field may
//! be singular on one side and repeated on the other (a singular reader takes the last one and merges
//! messages). Packed numbers may not. A field may move into or out of a oneof.

use std::collections::HashSet;

use super::{FieldSchema, MethodSchema, Schema, SchemaError};
use crate::layout::{Kind, Shape};

/// The most comparisons of fields; beyond them, two schemas count as too complex. A schema has at most
/// [`MAX_FIELDS`](super::MAX_FIELDS); only a hostile one is compared again and again.
const MAX_COMPARISONS: u32 = 1 << 20;

/// How two peers can talk about a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compatibility {
    /// In the native layout: all messages that both know have the same layout.
    Identical,
    /// In protobuf encoding.
    ThroughProtobuf,
}

/// Compares the compact form of our schema with a peer's: all methods that both know.
pub fn check_compatible(ours: &[u8], theirs: &[u8]) -> Result<Compatibility, SchemaError> {
    let (ours, theirs) = (Schema::parse(ours)?, Schema::parse(theirs)?);
    let mut comparison = Comparison::new(&ours, &theirs);
    let mut theirs_left = theirs.methods.iter().peekable();
    for method in &ours.methods {
        while theirs_left
            .next_if(|other| other.path < method.path)
            .is_some()
        {}
        if let Some(other) = theirs_left.next_if(|other| other.path == method.path) {
            comparison.method(method, other)?;
        }
    }
    comparison.finish()
}

/// Like [`check_compatible`], for one method. Only the common fields of its request and response
/// matter. A method that one side does not know is [`SchemaError::Incompatible`].
pub fn check_method_compatible(
    ours: &[u8],
    theirs: &[u8],
    path: &str,
) -> Result<Compatibility, SchemaError> {
    let (ours, theirs) = (Schema::parse(ours)?, Schema::parse(theirs)?);
    let find = |schema: &Schema| {
        let index = schema
            .methods
            .binary_search_by(|method| method.path.as_str().cmp(path));
        index.ok().map(|index| schema.methods[index].clone())
    };
    let mut comparison = Comparison::new(&ours, &theirs);
    match (find(&ours), find(&theirs)) {
        (Some(method), Some(other)) => comparison.method(&method, &other)?,
        (ours, theirs) => {
            let known = |method: &Option<MethodSchema>| match method {
                Some(_) => "a method".to_owned(),
                None => "unknown".to_owned(),
            };
            return Err(SchemaError::Incompatible {
                field: path.to_owned(),
                ours: known(&ours),
                theirs: known(&theirs),
            });
        }
    }
    comparison.finish()
}

struct Comparison<'a> {
    ours: &'a Schema,
    theirs: &'a Schema,
    /// Pairs of messages (ours, theirs) still to be compared, and all pairs so far.
    pending: Vec<(u32, u32)>,
    met: HashSet<(u32, u32)>,
    comparisons_left: u32,
    identical: bool,
}

impl<'a> Comparison<'a> {
    fn new(ours: &'a Schema, theirs: &'a Schema) -> Self {
        Comparison {
            ours,
            theirs,
            pending: Vec::new(),
            met: HashSet::new(),
            comparisons_left: MAX_COMPARISONS,
            identical: true,
        }
    }

    fn method(&mut self, ours: &MethodSchema, theirs: &MethodSchema) -> Result<(), SchemaError> {
        let streams = |method: &MethodSchema| {
            let arrow = |streaming| if streaming { "stream" } else { "unary" };
            format!(
                "{} -> {}",
                arrow(method.client_streaming),
                arrow(method.server_streaming)
            )
        };
        if streams(ours) != streams(theirs) {
            return Err(SchemaError::Incompatible {
                field: ours.path.clone(),
                ours: streams(ours),
                theirs: streams(theirs),
            });
        }
        self.meet(ours.request, theirs.request);
        self.meet(ours.response, theirs.response);
        Ok(())
    }

    fn meet(&mut self, ours: u32, theirs: u32) {
        if self.met.insert((ours, theirs)) {
            self.pending.push((ours, theirs));
        }
    }

    fn finish(mut self) -> Result<Compatibility, SchemaError> {
        while let Some((ours, theirs)) = self.pending.pop() {
            self.message(ours, theirs)?;
        }
        Ok(match self.identical {
            true => Compatibility::Identical,
            false => Compatibility::ThroughProtobuf,
        })
    }

    fn message(&mut self, ours: u32, theirs: u32) -> Result<(), SchemaError> {
        let message = &self.ours.messages[ours as usize];
        let other = &self.theirs.messages[theirs as usize];
        let work = 1 + message.fields.len() + other.fields.len();
        self.comparisons_left = u32::try_from(work)
            .ok()
            .and_then(|work| self.comparisons_left.checked_sub(work))
            .ok_or(SchemaError::TooComplex)?;

        self.identical &= message.fields.len() == other.fields.len();
        let mut others = other.fields.iter().peekable();
        for field in &message.fields {
            while others
                .next_if(|other| other.number < field.number)
                .is_some()
            {}
            let Some(other) = others.next_if(|other| other.number == field.number) else {
                self.identical = false;
                continue;
            };
            if !can_convert(field, other) {
                return Err(SchemaError::Incompatible {
                    field: format!("{}.{}", message.name, field.name),
                    ours: describe(field),
                    theirs: describe(other),
                });
            }
            self.identical &= field.plan_field() == other.plan_field();
            if let (Some(ours), Some(theirs)) = (field.message, other.message) {
                self.meet(ours, theirs);
            }
        }
        Ok(())
    }
}

/// Types in one class read each other's encoding.
fn class(kind: Kind) -> u8 {
    match kind {
        Kind::Bool | Kind::Int32 | Kind::Uint32 | Kind::Int64 | Kind::Uint64 | Kind::Enum => 0,
        Kind::Sint32 | Kind::Sint64 => 1,
        Kind::Fixed32 | Kind::Sfixed32 => 2,
        Kind::Fixed64 | Kind::Sfixed64 => 3,
        Kind::Float => 4,
        Kind::Double => 5,
        Kind::String | Kind::Bytes => 6,
        Kind::Message => 7,
    }
}

fn can_convert(ours: &FieldSchema, theirs: &FieldSchema) -> bool {
    // A map is a repeated field of entries.
    let repeated = |field: &FieldSchema| field.shape != Shape::Singular;
    class(ours.kind) == class(theirs.kind)
        && (repeated(ours) == repeated(theirs) || ours.kind.is_reference())
}

fn describe(field: &FieldSchema) -> String {
    match field.shape {
        Shape::Singular => field.kind.name().to_owned(),
        Shape::Repeated => format!("repeated {}", field.kind.name()),
        Shape::Map => "map".to_owned(),
    }
}
