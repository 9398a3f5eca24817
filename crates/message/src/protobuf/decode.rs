//! Decodes protobuf. Any input gives a message or a typed error, in time and memory bounded by the
//! input's size and the given limits. Memory is asked for before it is taken ([`Room::take`]).

use super::error::{DecodeError, DecodeErrorKind};
use super::limits::{DecodeLimits, Room};
use super::wire::{Cursor, WireType};
use crate::arena::Arena;
use crate::layout::{FieldLayout, Kind, MAX_DEPTH, MessageLayout, Presence, Shape};
use crate::layouts::{LayoutRef, Tables};
use crate::writer::{Writer, set_raw};

/// Decodes into `arena`, which holds a message of this layout. Fields that are already set are
/// merged, as in protobuf. `limits`, or a number of bytes, bound what the message takes in memory. After an
/// error the message holds what came before it.
pub fn decode<'l>(
    layout: impl Into<LayoutRef<'l>>,
    bytes: &[u8],
    arena: &mut Arena,
    limits: impl Into<DecodeLimits>,
) -> Result<(), DecodeError> {
    let layout = layout.into();
    let room = limits.into().room(arena.message_len(), bytes.len());
    room.take(arena, 0)
        .map_err(|kind| fault(layout.table(), 0, 0, kind))?;
    let mut decoder = Decoder {
        total: bytes.len(),
        after: 0,
        room,
        set: layout.set(),
    };
    decoder.message(layout.table(), Cursor::new(bytes), &mut arena.root(), 1)
}

struct Decoder<'l> {
    /// Length of the input.
    total: usize,
    /// Bytes that follow the message being decoded.
    after: usize,
    room: Room,
    /// The set that the layouts belong to.
    set: &'l Tables,
}

impl Decoder<'_> {
    fn message(
        &mut self,
        layout: &MessageLayout,
        mut cursor: Cursor<'_>,
        to: &mut Writer<'_>,
        depth: u32,
    ) -> Result<(), DecodeError> {
        let after = self.after;
        while !cursor.is_empty() {
            let fault =
                |number, left: usize, kind| fault(layout, number, self.total - after - left, kind);
            let (number, wire) = cursor.tag().map_err(|kind| fault(0, cursor.len(), kind))?;
            let Some(field) = layout.field(number) else {
                let skipped = cursor.skip(number, wire, MAX_DEPTH - depth);
                skipped.map_err(|kind| fault(number, cursor.len(), kind))?;
                continue;
            };
            let nested = self.set.nested(field);
            match nested {
                None => {
                    let done = value(field, wire, &mut cursor, to, self.room);
                    done.map_err(|kind| fault(number, cursor.len(), kind))?;
                }
                Some(child) => {
                    let inner = delimited(wire, &mut cursor, depth);
                    let inner = inner.map_err(|kind| fault(number, cursor.len(), kind))?;
                    let stride = child.stride();
                    let room = make_room(field, stride, to, self.room);
                    room.map_err(|kind| fault(number, cursor.len(), kind))?;
                    self.after = after + cursor.len();
                    let mut to = if field.shape == Shape::Singular {
                        set(field, to);
                        to.reborrow().child(field.offset, stride)
                    } else {
                        let slot = to.slot(field.offset);
                        let at = to.arena().push(slot, stride);
                        Writer::new(to.arena(), at)
                    };
                    self.message(child, Cursor::new(inner), &mut to, depth + 1)?;
                }
            }
        }
        Ok(())
    }
}

#[cold]
#[inline(never)]
fn fault(layout: &MessageLayout, number: u32, offset: usize, kind: DecodeErrorKind) -> DecodeError {
    DecodeError {
        message: layout.name.clone(),
        number,
        offset,
        kind,
    }
}

fn delimited<'a>(
    wire: WireType,
    cursor: &mut Cursor<'a>,
    depth: u32,
) -> Result<&'a [u8], DecodeErrorKind> {
    if wire != WireType::Delimited {
        return Err(DecodeErrorKind::WireType);
    }
    if depth == MAX_DEPTH {
        return Err(DecodeErrorKind::TooDeep);
    }
    cursor.delimited()
}

/// Takes memory for a sub-message of a field.
fn make_room(
    field: &FieldLayout,
    stride: u32,
    to: &mut Writer<'_>,
    room: Room,
) -> Result<(), DecodeErrorKind> {
    let slot = to.slot(field.offset);
    let more = match field.shape {
        // One that is there already needs none. But before the case of a oneof is set, its slot does not
        // tell.
        Shape::Singular => stride as usize,
        Shape::Repeated | Shape::Map => to.arena().growth_of_push(slot, stride),
    };
    room.take(to.arena(), more)
}

/// Marks a singular field as set. Inlined because most fields need nothing.
#[inline(always)]
fn set(field: &FieldLayout, to: &mut Writer<'_>) {
    match field.presence {
        Presence::Bit { byte, mask } => to.set_bit(byte, mask, true),
        Presence::Oneof {
            discriminant, case, ..
        } => {
            to.set_case(discriminant, case, field.offset, field.kind.slot_size());
        }
        Presence::Implicit | Presence::Reference => {}
    }
}

/// Appends a scalar to the array behind `slot`; returns its position.
fn push(slot: u32, stride: u32, to: &mut Writer<'_>, room: Room) -> Result<u32, DecodeErrorKind> {
    let more = to.arena().growth_of_push(slot, stride);
    room.take(to.arena(), more)?;
    Ok(to.arena().push(slot, stride))
}

/// Reads a field that holds no messages.
fn value(
    field: &FieldLayout,
    wire: WireType,
    cursor: &mut Cursor<'_>,
    to: &mut Writer<'_>,
    room: Room,
) -> Result<(), DecodeErrorKind> {
    let expected = WireType::of(field.kind);
    let repeated = field.shape != Shape::Singular;
    let (slot, stride) = (to.slot(field.offset), field.kind.slot_size());
    if expected == WireType::Delimited {
        if wire != expected {
            return Err(DecodeErrorKind::WireType);
        }
        let bytes = cursor.delimited()?;
        if field.kind == Kind::String && str::from_utf8(bytes).is_err() {
            return Err(DecodeErrorKind::Utf8);
        }
        if repeated {
            let more = to.arena().growth_of_push(slot, stride) + bytes.len();
            room.take(to.arena(), more)?;
            let at = to.arena().push(slot, stride);
            to.arena().write_bytes(at, bytes, false);
        } else {
            room.take(to.arena(), bytes.len())?;
            set(field, to);
            to.set_bytes(field.offset, bytes, field.presence != Presence::Implicit);
        }
        return Ok(());
    }
    if repeated && wire == WireType::Delimited {
        let mut packed = Cursor::new(cursor.delimited()?);
        while !packed.is_empty() {
            let bits = packed.scalar(field.kind)?;
            let at = push(slot, stride, to, room)?;
            set_raw(to, at, field.kind, bits);
        }
        return Ok(());
    }
    if wire != expected {
        return Err(DecodeErrorKind::WireType);
    }
    let bits = cursor.scalar(field.kind)?;
    let at = if repeated {
        push(slot, stride, to, room)?
    } else {
        set(field, to);
        slot
    };
    set_raw(to, at, field.kind, bits);
    Ok(())
}
