//! The values of a message's fields, read by its table.

use crate::layout::{FieldLayout, Kind, Presence, Shape};
use crate::layouts::{FieldRef, LayoutRef};
use crate::reader::Reader;

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
    Message(LayoutRef<'a>, Reader<'a>),
}

/// Whether a field of the message at `reader` is set (or not zero, or not empty).
#[inline]
pub fn is_set(field: &FieldLayout, reader: Reader<'_>) -> bool {
    match field.presence {
        Presence::Bit { byte, mask } => reader.bit(byte, mask),
        Presence::Oneof {
            discriminant, case, ..
        } => reader.scalar::<u8>(discriminant) == case,
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
pub fn value<'a>(field: FieldRef<'a>, reader: Reader<'a>, index: u32) -> ValueRef<'a> {
    let (first, offset, stride) = first(field, reader);
    value_at(field, first.element(index, stride), offset)
}

/// All values of a field: none or one if it is singular.
pub fn values<'a>(field: FieldRef<'a>, reader: Reader<'a>) -> impl Iterator<Item = ValueRef<'a>> {
    let (first, offset, stride) = first(field, reader);
    (0..count(&field, reader))
        .map(move |index| value_at(field, first.element(index, stride), offset))
}

/// Where a field's first value lies: a position and an offset from there, and the bytes to the next
/// position.
#[inline]
fn first<'a>(field: FieldRef<'_>, reader: Reader<'a>) -> (Reader<'a>, u32, u32) {
    match field.shape {
        Shape::Singular => (reader, field.offset, 0),
        Shape::Repeated | Shape::Map => (reader.array(field.offset).0, 0, field.stride()),
    }
}

fn value_at<'a>(field: FieldRef<'a>, at: Reader<'a>, offset: u32) -> ValueRef<'a> {
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
