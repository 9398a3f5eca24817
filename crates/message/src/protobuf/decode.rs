//! Decodes protobuf. Any input gives a message or a typed error, in time and memory bounded by the
//! input's size and the given limit.

use super::error::{DecodeError, DecodeErrorKind};
use super::wire::{Cursor, WireType};
use crate::arena::{Arena, MAX_MESSAGE_BYTES};
use crate::layout::{FieldLayout, Kind, MAX_DEPTH, MessageLayout, Presence, Shape};
use crate::layouts::{LayoutRef, Tables};
use crate::writer::{Writer, set_raw};

/// Decodes into `arena`, which holds a message of this layout. Fields that are already set are
/// merged, as in protobuf. The message may take at most `max_bytes` (and a quarter of
/// [`MAX_MESSAGE_BYTES`]) in memory. After an error the message holds what came before it.
pub fn decode<'l>(
    layout: impl Into<LayoutRef<'l>>,
    bytes: &[u8],
    arena: &mut Arena,
    max_bytes: usize,
) -> Result<(), DecodeError> {
    let layout = layout.into();
    let mut decoder = Decoder {
        total: bytes.len(),
        after: 0,
        max_bytes: max_bytes.min(MAX_MESSAGE_BYTES / 4),
        set: layout.set(),
    };
    decoder.message(layout.table(), Cursor::new(bytes), &mut arena.root(), 1)
}

struct Decoder<'l> {
    /// Length of the input.
    total: usize,
    /// Bytes that follow the message being decoded.
    after: usize,
    max_bytes: usize,
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
                    let done = value(field, wire, &mut cursor, to, self.max_bytes);
                    done.map_err(|kind| fault(number, cursor.len(), kind))?;
                }
                Some(child) => {
                    let inner = delimited(wire, &mut cursor, depth);
                    let inner = inner.map_err(|kind| fault(number, cursor.len(), kind))?;
                    self.after = after + cursor.len();
                    let mut to = if field.shape == Shape::Singular {
                        set(field, to);
                        to.reborrow().child(field.offset, child.stride())
                    } else {
                        let slot = to.slot(field.offset);
                        let at = to.arena().push(slot, child.stride());
                        Writer::new(to.arena(), at)
                    };
                    self.message(child, Cursor::new(inner), &mut to, depth + 1)?;
                }
            }
            if to.arena().message_len() > self.max_bytes {
                let offset = self.total - after - cursor.len();
                return Err(self::fault(
                    layout,
                    number,
                    offset,
                    DecodeErrorKind::TooLarge,
                ));
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

/// Reads a field that holds no messages.
fn value(
    field: &FieldLayout,
    wire: WireType,
    cursor: &mut Cursor<'_>,
    to: &mut Writer<'_>,
    max_bytes: usize,
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
            let at = to.arena().push(slot, stride);
            to.arena().write_bytes(at, bytes, false);
        } else {
            set(field, to);
            to.set_bytes(field.offset, bytes, field.presence != Presence::Implicit);
        }
        return Ok(());
    }
    if repeated && wire == WireType::Delimited {
        let mut packed = Cursor::new(cursor.delimited()?);
        while !packed.is_empty() {
            let bits = packed.scalar(field.kind)?;
            let at = to.arena().push(slot, stride);
            set_raw(to, at, field.kind, bits);
            // One byte of input becomes eight in memory, so the limit is checked on the way.
            if to.arena().message_len() > max_bytes {
                return Err(DecodeErrorKind::TooLarge);
            }
        }
        return Ok(());
    }
    if wire != expected {
        return Err(DecodeErrorKind::WireType);
    }
    let bits = cursor.scalar(field.kind)?;
    let at = if repeated {
        to.arena().push(slot, stride)
    } else {
        set(field, to);
        slot
    };
    set_raw(to, at, field.kind, bits);
    Ok(())
}
