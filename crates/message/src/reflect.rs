//! Compares, copies, prints and reads messages by their tables alone.

use std::collections::BTreeMap;
use std::fmt;

pub use crate::copy::copy;
use crate::layout::{Kind, MAX_DEPTH, Shape};
use crate::layouts::{FieldRef, LayoutRef};
use crate::message::{Message, MessageView};
use crate::reader::Reader;
use crate::value::raw;
pub use crate::value::{ValueRef, count, is_set, value, values};

/// Whether two messages of one type have equal content. Their positions and the order in which maps
/// were filled do not count. Numbers compare as numbers do: NaN differs from itself. Content nested
/// more than [`MAX_DEPTH`] deep, which cannot be sent, is not equal.
pub fn equal<'l>(layout: impl Into<LayoutRef<'l>>, a: Reader<'_>, b: Reader<'_>) -> bool {
    equal_at(layout.into(), a, b, 1)
}

fn equal_at(layout: LayoutRef<'_>, a: Reader<'_>, b: Reader<'_>, depth: u32) -> bool {
    depth <= MAX_DEPTH
        && layout.fields().all(|field| match field.shape {
            Shape::Map => equal_maps(field, a, b, depth),
            _ => {
                count(&field, a) == count(&field, b)
                    && values(field, a)
                        .zip(values(field, b))
                        .all(|(a, b)| equal_values(a, b, depth))
            }
        })
}

fn equal_values(a: ValueRef<'_>, b: ValueRef<'_>, depth: u32) -> bool {
    match (a, b) {
        (ValueRef::Message(layout, a), ValueRef::Message(_, b)) => {
            equal_at(layout, a, b, depth + 1)
        }
        (ValueRef::Bool(a), ValueRef::Bool(b)) => a == b,
        (ValueRef::I32(a), ValueRef::I32(b)) | (ValueRef::Enum(a), ValueRef::Enum(b)) => a == b,
        (ValueRef::U32(a), ValueRef::U32(b)) => a == b,
        (ValueRef::I64(a), ValueRef::I64(b)) => a == b,
        (ValueRef::U64(a), ValueRef::U64(b)) => a == b,
        (ValueRef::F32(a), ValueRef::F32(b)) => a == b,
        (ValueRef::F64(a), ValueRef::F64(b)) => a == b,
        (ValueRef::String(a), ValueRef::String(b)) => a == b,
        (ValueRef::Bytes(a), ValueRef::Bytes(b)) => a == b,
        _ => false,
    }
}

/// The entries of a map by key; the last one of each key.
fn entries<'a>(field: FieldRef<'a>, reader: Reader<'a>) -> BTreeMap<MapKey<'a>, Reader<'a>> {
    let entry = |value| match value {
        ValueRef::Message(layout, entry) => {
            let key = layout.fields().next()?;
            Some(match key.kind {
                Kind::String => (MapKey::Text(entry.bytes(key.offset)), entry),
                kind => (MapKey::Number(raw(kind, entry, key.offset)), entry),
            })
        }
        _ => None,
    };
    values(field, reader).filter_map(entry).collect()
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum MapKey<'a> {
    Number(u64),
    Text(&'a [u8]),
}

fn equal_maps(field: FieldRef<'_>, a: Reader<'_>, b: Reader<'_>, depth: u32) -> bool {
    let Some(value) = field.message().and_then(|entry| entry.fields().nth(1)) else {
        return false;
    };
    let (a, b) = (entries(field, a), entries(field, b));
    // An entry without a value is the same as one with an empty value.
    a.len() == b.len()
        && a.into_iter().zip(b).all(|((key_a, a), (key_b, b))| {
            key_a == key_b
                && equal_values(self::value(value, a, 0), self::value(value, b, 0), depth)
        })
}

/// Bytes of a bytes field that are printed.
const DEBUG_BYTES: usize = 64;

/// Prints the fields that are set.
pub fn debug<'l>(
    layout: impl Into<LayoutRef<'l>>,
    reader: Reader<'_>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    debug_at(layout.into(), reader, 1, f)
}

fn debug_at(
    layout: LayoutRef<'_>,
    reader: Reader<'_>,
    depth: u32,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    if depth > MAX_DEPTH {
        return f.write_str("..");
    }
    let name = layout.name().rsplit('.').next().unwrap_or_default();
    let mut out = f.debug_struct(name);
    for field in layout.fields().filter(|field| is_set(field, reader)) {
        let printed = DebugValue {
            field,
            value: value(field, reader, 0),
            depth,
        };
        match field.shape {
            Shape::Singular => out.field(field.name(), &printed),
            Shape::Repeated | Shape::Map => out.field(
                field.name(),
                &DebugList {
                    field,
                    reader,
                    depth,
                },
            ),
        };
    }
    out.finish()
}

struct DebugList<'a> {
    field: FieldRef<'a>,
    reader: Reader<'a>,
    depth: u32,
}

impl fmt::Debug for DebugList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &DebugList {
            field,
            reader,
            depth,
        } = self;
        let all = values(field, reader);
        match (field.shape, field.message()) {
            (Shape::Map, Some(entry)) => {
                let mut fields = entry.fields();
                let (Some(key), Some(value_of)) = (fields.next(), fields.next()) else {
                    return Err(fmt::Error);
                };
                let entries = all.filter_map(|value| match value {
                    ValueRef::Message(_, entry) => Some((
                        DebugValue {
                            field: key,
                            value: self::value(key, entry, 0),
                            depth,
                        },
                        DebugValue {
                            field: value_of,
                            value: self::value(value_of, entry, 0),
                            depth,
                        },
                    )),
                    _ => None,
                });
                f.debug_map().entries(entries).finish()
            }
            _ => f
                .debug_list()
                .entries(all.map(|value| DebugValue {
                    field,
                    value,
                    depth,
                }))
                .finish(),
        }
    }
}

struct DebugValue<'a> {
    field: FieldRef<'a>,
    value: ValueRef<'a>,
    depth: u32,
}

impl fmt::Debug for DebugValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            ValueRef::Bool(value) => value.fmt(f),
            ValueRef::I32(value) => value.fmt(f),
            ValueRef::U32(value) => value.fmt(f),
            ValueRef::I64(value) => value.fmt(f),
            ValueRef::U64(value) => value.fmt(f),
            ValueRef::F32(value) => value.fmt(f),
            ValueRef::F64(value) => value.fmt(f),
            ValueRef::Enum(value) => {
                match self
                    .field
                    .enumeration
                    .and_then(|names| names.name_of(value))
                {
                    Some(name) => f.write_str(name),
                    None => value.fmt(f),
                }
            }
            ValueRef::String(value) => value.fmt(f),
            ValueRef::Bytes(value) => {
                let shown = &value[..value.len().min(DEBUG_BYTES)];
                write!(f, "b\"{}\"", shown.escape_ascii())?;
                match value.len() - shown.len() {
                    0 => Ok(()),
                    more => write!(f, " and {more} more bytes"),
                }
            }
            ValueRef::Message(layout, reader) => debug_at(layout, reader, self.depth + 1, f),
        }
    }
}

/// Whether two views of a message type have equal content.
pub fn equal_views<'a, 'b, M: Message>(a: M::View<'a>, b: M::View<'b>) -> bool {
    equal(M::LAYOUT, a.reader(), b.reader())
}
