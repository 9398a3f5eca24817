//! Messages by their tables alone: reading fields, comparing, copying, printing.

use std::collections::BTreeMap;
use std::fmt;

use crate::layout::{FieldLayout, Kind, MAX_DEPTH, MessageLayout, Presence, REFERENCE_SIZE, Shape};
use crate::message::{Message, MessageView};
use crate::reader::Reader;
use crate::writer::Writer;

/// One value of a field.
#[derive(Clone, Copy)]
pub enum ValueRef<'a> {
    /// `bool`.
    Bool(bool),
    /// `int32`, `sint32`, `sfixed32`.
    I32(i32),
    /// `uint32`, `fixed32`.
    U32(u32),
    /// `int64`, `sint64`, `sfixed64`.
    I64(i64),
    /// `uint64`, `fixed64`.
    U64(u64),
    /// `float`.
    F32(f32),
    /// `double`.
    F64(f64),
    /// An enumeration's number.
    Enum(i32),
    /// `string`.
    String(&'a str),
    /// `bytes`.
    Bytes(&'a [u8]),
    /// A message, or a map's entry.
    Message(&'static MessageLayout, Reader<'a>),
}

/// Whether a field of the message at `reader` is set (or not zero, or not empty).
#[inline]
pub fn is_set(field: &FieldLayout, reader: Reader<'_>) -> bool {
    match field.presence {
        Presence::Bit { byte, mask } => reader.bit(byte, mask),
        Presence::Oneof { discriminant, case } => reader.scalar::<u8>(discriminant) == case,
        Presence::Reference => reader.reference(field.offset).0 != 0,
        Presence::Implicit if field.shape != Shape::Singular || field.kind.is_reference() => {
            reader.reference(field.offset).1 != 0
        }
        Presence::Implicit => raw(field.kind, reader, field.offset) != 0,
    }
}

/// A scalar's bits, zero-extended.
#[inline]
pub(crate) fn raw(kind: Kind, reader: Reader<'_>, offset: u32) -> u64 {
    match kind.slot_size() {
        1 => u64::from(reader.scalar::<bool>(offset)),
        4 => u64::from(reader.scalar::<u32>(offset)),
        _ => reader.scalar(offset),
    }
}

/// How many values a field has.
pub fn count(field: &FieldLayout, reader: Reader<'_>) -> u32 {
    match field.shape {
        Shape::Singular => u32::from(is_set(field, reader)),
        Shape::Repeated | Shape::Map => reader.reference(field.offset).1,
    }
}

/// Value `index` of a field that has more than `index` values.
pub fn value<'a>(field: &FieldLayout, reader: Reader<'a>, index: u32) -> ValueRef<'a> {
    let (at, offset) = match field.shape {
        Shape::Singular => (reader, field.offset),
        Shape::Repeated | Shape::Map => (
            reader.array(field.offset).0.element(index, field.stride()),
            0,
        ),
    };
    match field.kind {
        Kind::Bool => ValueRef::Bool(at.scalar(offset)),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => ValueRef::I32(at.scalar(offset)),
        Kind::Uint32 | Kind::Fixed32 => ValueRef::U32(at.scalar(offset)),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => ValueRef::I64(at.scalar(offset)),
        Kind::Uint64 | Kind::Fixed64 => ValueRef::U64(at.scalar(offset)),
        Kind::Float => ValueRef::F32(at.scalar(offset)),
        Kind::Double => ValueRef::F64(at.scalar(offset)),
        Kind::Enum => ValueRef::Enum(at.scalar(offset)),
        Kind::String => ValueRef::String(at.text(offset)),
        Kind::Bytes => ValueRef::Bytes(at.bytes(offset)),
        Kind::Message => {
            let layout = field.message().expect("a message field has a layout");
            let child = match field.shape {
                Shape::Singular => at.child(offset).unwrap_or(Reader::empty()),
                Shape::Repeated | Shape::Map => at,
            };
            ValueRef::Message(layout, child)
        }
    }
}

/// All values of a field: none or one if it is singular.
pub fn values<'a>(
    field: &'static FieldLayout,
    reader: Reader<'a>,
) -> impl Iterator<Item = ValueRef<'a>> {
    (0..count(field, reader)).map(move |index| value(field, reader, index))
}

/// Whether two messages of one type have equal content: where it lies, and in which order maps
/// were filled, does not matter. Numbers compare as numbers do: NaN differs from itself.
/// What is nested more than [`MAX_DEPTH`] deep, and so can be sent nowhere, is not equal.
pub fn equal(layout: &'static MessageLayout, a: Reader<'_>, b: Reader<'_>) -> bool {
    equal_at(layout, a, b, 1)
}

fn equal_at(layout: &'static MessageLayout, a: Reader<'_>, b: Reader<'_>, depth: u32) -> bool {
    depth <= MAX_DEPTH
        && layout.fields.iter().all(|field| match field.shape {
            Shape::Map => equal_maps(field, a, b, depth),
            _ => {
                count(field, a) == count(field, b)
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

/// The entries of a map by key, the last one of each.
fn entries<'a>(
    field: &'static FieldLayout,
    reader: Reader<'a>,
) -> BTreeMap<MapKey<'a>, Reader<'a>> {
    let entry = |value| match value {
        ValueRef::Message(layout, entry) => {
            let key = &layout.fields[0];
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

fn equal_maps(field: &'static FieldLayout, a: Reader<'_>, b: Reader<'_>, depth: u32) -> bool {
    let Some(layout) = field.message() else {
        return false;
    };
    let (a, b) = (entries(field, a), entries(field, b));
    // An entry's value may be unset, which is the same as a value with nothing set.
    let value = &layout.fields[1];
    a.len() == b.len()
        && a.into_iter().zip(b).all(|((key_a, a), (key_b, b))| {
            key_a == key_b
                && equal_values(self::value(value, a, 0), self::value(value, b, 0), depth)
        })
}

/// Copies all fields of a message into one of the same type with nothing set.
///
/// # Panics
/// If messages are nested more than [`MAX_DEPTH`] deep; no received message is.
pub fn copy(layout: &'static MessageLayout, from: Reader<'_>, to: &mut Writer<'_>) {
    copy_at(layout, from, to, 1);
}

fn copy_at(layout: &'static MessageLayout, from: Reader<'_>, to: &mut Writer<'_>, depth: u32) {
    assert!(
        depth <= MAX_DEPTH,
        "{} is nested more than {MAX_DEPTH} deep",
        layout.name
    );
    for field in layout.fields.iter().filter(|field| is_set(field, from)) {
        let explicit = field.presence != Presence::Implicit;
        match field.presence {
            Presence::Bit { byte, mask } => to.set_bit(byte, mask, true),
            Presence::Oneof { discriminant, case } => {
                to.set_case(discriminant, case, field.offset, field.kind.slot_size());
            }
            Presence::Implicit | Presence::Reference => {}
        }
        if field.shape == Shape::Singular {
            match value(field, from, 0) {
                ValueRef::Message(child, reader) => {
                    let mut writer = to.reborrow().child(field.offset, child.stride());
                    copy_at(child, reader, &mut writer, depth + 1);
                }
                _ if field.kind.is_reference() => {
                    to.set_bytes(field.offset, from.bytes(field.offset), explicit);
                }
                _ => {
                    let slot = to.slot(field.offset);
                    set_raw(to, slot, field.kind, raw(field.kind, from, field.offset));
                }
            }
            continue;
        }
        let (slot, stride) = (to.slot(field.offset), field.stride());
        to.arena().reserve(slot, stride, count(field, from));
        let array = from.array(field.offset).0;
        for index in 0..count(field, from) {
            let element = array.element(index, stride);
            let at = to.arena().push(slot, stride);
            match field.message() {
                Some(child) => {
                    copy_at(child, element, &mut Writer::new(to.arena(), at), depth + 1);
                }
                None if field.kind.is_reference() => {
                    to.arena().write_bytes(at, element.bytes(0), false);
                }
                None => set_raw(to, at, field.kind, raw(field.kind, element, 0)),
            }
        }
    }
}

/// Writes a scalar's bits at a position.
#[inline]
pub(crate) fn set_raw(to: &mut Writer<'_>, at: u32, kind: Kind, bits: u64) {
    match kind.slot_size() {
        1 => to.arena().write(at, bits != 0),
        4 => to.arena().write(at, bits as u32),
        size => {
            debug_assert_eq!(size, REFERENCE_SIZE);
            to.arena().write(at, bits);
        }
    }
}

/// Bytes that are printed of a bytes field.
const DEBUG_BYTES: usize = 64;

/// Prints the fields that are set.
pub fn debug(
    layout: &'static MessageLayout,
    reader: Reader<'_>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    debug_at(layout, reader, 1, f)
}

fn debug_at(
    layout: &'static MessageLayout,
    reader: Reader<'_>,
    depth: u32,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    if depth > MAX_DEPTH {
        return f.write_str("..");
    }
    let name = layout.name.rsplit('.').next().unwrap_or(layout.name);
    let mut out = f.debug_struct(name);
    for field in layout.fields.iter().filter(|field| is_set(field, reader)) {
        let printed = DebugValue {
            field,
            value: value(field, reader, 0),
            depth,
        };
        match field.shape {
            Shape::Singular => out.field(field.name, &printed),
            Shape::Repeated | Shape::Map => out.field(
                field.name,
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
    field: &'static FieldLayout,
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
                let [key, value_of] = entry.fields else {
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
    field: &'static FieldLayout,
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

/// Whether two views of a message type show equal content.
pub fn equal_views<'a, 'b, M: Message>(a: M::View<'a>, b: M::View<'b>) -> bool {
    equal(M::LAYOUT, a.reader(), b.reader())
}
