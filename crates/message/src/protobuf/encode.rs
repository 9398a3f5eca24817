//! Encodes protobuf, in two passes. The first finds the lengths that precede their contents, in the
//! order in which the second needs them.

use std::borrow::Cow;

use super::wire::{WireType, put_varint, tag, to_varint, varint_len};
use crate::layout::{FieldLayout, MAX_DEPTH, Shape};
use crate::layouts::{FieldRef, LayoutRef};
use crate::reader::Reader;
use crate::value::{count, is_set, raw};

/// A message has no protobuf encoding that a peer would accept. The caller who built it is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// Nested too deeply.
    #[error("{message} is nested more than {MAX_DEPTH} deep")]
    TooDeep {
        /// Full name of the message type that exceeds the depth.
        message: Cow<'static, str>,
    },
    /// Longer than protobuf's 2 GiB.
    #[error("{message} is larger than 2 GiB")]
    TooLarge {
        /// Full name of the message type.
        message: Cow<'static, str>,
    },
}

/// Appends the encoding of a message.
pub fn encode<'l>(
    layout: impl Into<LayoutRef<'l>>,
    reader: Reader<'_>,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let layout = layout.into();
    let mut lengths = Lengths {
        found: Vec::new(),
        next: 0,
    };
    let total = measure(layout, reader, &mut lengths, 1)?;
    if total > i32::MAX as usize {
        return Err(EncodeError::TooLarge {
            message: layout.table().name.clone(),
        });
    }
    out.reserve(total);
    let start = out.len();
    write(layout, reader, &mut lengths, out);
    debug_assert_eq!(out.len() - start, total);
    Ok(())
}

/// Lengths of sub-messages and packed fields, in the order of their beginnings.
struct Lengths {
    found: Vec<usize>,
    next: usize,
}

impl Lengths {
    fn next(&mut self) -> usize {
        self.next += 1;
        self.found[self.next - 1]
    }
}

fn delimited(length: usize) -> usize {
    varint_len(length as u64) + length
}

/// Bytes of one scalar.
fn scalar_len(field: &FieldLayout, reader: Reader<'_>, offset: u32) -> usize {
    match WireType::of(field.kind) {
        WireType::Varint => varint_len(to_varint(field.kind, raw(field.kind, reader, offset))),
        WireType::Fixed32 => 4,
        _ => 8,
    }
}

fn put_scalar(field: &FieldLayout, reader: Reader<'_>, offset: u32, out: &mut Vec<u8>) {
    let bits = raw(field.kind, reader, offset);
    match WireType::of(field.kind) {
        WireType::Varint => put_varint(out, to_varint(field.kind, bits)),
        WireType::Fixed32 => out.extend_from_slice(&(bits as u32).to_le_bytes()),
        _ => out.extend_from_slice(&bits.to_le_bytes()),
    }
}

/// The elements of a repeated field.
fn elements<'a>(field: FieldRef<'_>, reader: Reader<'a>) -> impl Iterator<Item = Reader<'a>> {
    let (array, stride) = (reader.array(field.offset).0, field.stride());
    (0..count(&field, reader)).map(move |index| array.element(index, stride))
}

fn measure(
    layout: LayoutRef<'_>,
    reader: Reader<'_>,
    lengths: &mut Lengths,
    depth: u32,
) -> Result<usize, EncodeError> {
    if depth > MAX_DEPTH {
        return Err(EncodeError::TooDeep {
            message: layout.table().name.clone(),
        });
    }
    let mut total = 0;
    for field in layout.fields().filter(|field| is_set(field, reader)) {
        let tag_len = varint_len(tag(field.number, WireType::Varint));
        let mut message = |child, reader| {
            let index = lengths.found.len();
            lengths.found.push(0);
            let length = measure(child, reader, lengths, depth + 1)?;
            lengths.found[index] = length;
            Ok(tag_len + delimited(length))
        };
        match (field.shape, field.message()) {
            (Shape::Singular, Some(child)) => {
                total += message(child, reader.child(field.offset).unwrap_or(Reader::empty()))?;
            }
            (_, Some(child)) => {
                for element in elements(field, reader) {
                    total += message(child, element)?;
                }
            }
            (Shape::Singular, None) if field.kind.is_reference() => {
                total += tag_len + delimited(reader.bytes(field.offset).len());
            }
            (Shape::Singular, None) => total += tag_len + scalar_len(&field, reader, field.offset),
            (_, None) if field.kind.is_reference() => {
                let one = |element: Reader<'_>| tag_len + delimited(element.bytes(0).len());
                total += elements(field, reader).map(one).sum::<usize>();
            }
            (_, None) => {
                let length = elements(field, reader)
                    .map(|e| scalar_len(&field, e, 0))
                    .sum();
                lengths.found.push(length);
                total += tag_len + delimited(length);
            }
        }
    }
    Ok(total)
}

fn write(layout: LayoutRef<'_>, reader: Reader<'_>, lengths: &mut Lengths, out: &mut Vec<u8>) {
    for field in layout.fields().filter(|field| is_set(field, reader)) {
        let delimited_tag = tag(field.number, WireType::Delimited);
        let blob = |bytes: &[u8], out: &mut Vec<u8>| {
            put_varint(out, delimited_tag);
            put_varint(out, bytes.len() as u64);
            out.extend_from_slice(bytes);
        };
        let mut message = |child, reader, out: &mut Vec<u8>| {
            put_varint(out, delimited_tag);
            put_varint(out, lengths.next() as u64);
            write(child, reader, lengths, out);
        };
        match (field.shape, field.message()) {
            (Shape::Singular, Some(child)) => {
                message(
                    child,
                    reader.child(field.offset).unwrap_or(Reader::empty()),
                    out,
                );
            }
            (_, Some(child)) => {
                for element in elements(field, reader) {
                    message(child, element, out);
                }
            }
            (Shape::Singular, None) if field.kind.is_reference() => {
                blob(reader.bytes(field.offset), out);
            }
            (Shape::Singular, None) => {
                put_varint(out, tag(field.number, WireType::of(field.kind)));
                put_scalar(&field, reader, field.offset, out);
            }
            (_, None) if field.kind.is_reference() => {
                for element in elements(field, reader) {
                    blob(element.bytes(0), out);
                }
            }
            (_, None) => {
                put_varint(out, delimited_tag);
                put_varint(out, lengths.next() as u64);
                for element in elements(field, reader) {
                    put_scalar(&field, element, 0, out);
                }
            }
        }
    }
}
