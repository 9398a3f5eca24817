//! Validates received bytes in one pass, before any view of them exists.
//!
//! Every reference must lie within the message, and every text must be UTF-8. The work is bounded:
//! each reference charges the bytes it refers to against a budget of the message's own size. So
//! references that all point at the same bytes exhaust the budget, and a message of n bytes costs
//! O(n) with any contents. [`MAX_DEPTH`] bounds nesting.

use std::borrow::Cow;

use crate::layout::{
    FieldLayout, Kind, MAX_DEPTH, MessageLayout, Presence, REFERENCE_SIZE, Shape, TAIL_OFFSET,
};
use crate::layouts::{FieldRef, LayoutRef};
use crate::reader::Reader;

/// Received bytes are not a message of the expected type. The sender is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid message: {message}{dot}{field} at byte {offset}: {kind}",
    dot = if self.field.is_empty() { "" } else { "." }
)]
pub struct ValidationError {
    /// Full name of the faulty message type.
    pub message: Cow<'static, str>,
    /// Name of the field; empty if the fault is in the message as such.
    pub field: Cow<'static, str>,
    /// Number of the field, or 0.
    pub number: u32,
    /// Offset of the field in bytes from the message's start.
    pub offset: u32,
    /// The kind of mistake.
    pub kind: ValidationErrorKind,
}

/// A kind of mistake in received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValidationErrorKind {
    /// Shorter than the type's fixed part.
    #[error("shorter than its fixed part")]
    Truncated,
    /// Longer than 32-bit offsets reach.
    #[error("too large")]
    TooLarge,
    /// A reference to bytes that are not there.
    #[error("refers to bytes outside the message")]
    OutOfBounds,
    /// Offset zero with a length.
    #[error("absent, but with a length")]
    AbsentWithLength,
    /// A sub-message's count is not 1.
    #[error("a sub-message's count must be 1")]
    Count,
    /// Parts overlap so much that together they are larger than the message.
    #[error("parts overlap")]
    Overlap,
    /// Nested too deeply.
    #[error("nested more than {MAX_DEPTH} deep")]
    TooDeep,
    /// Not UTF-8.
    #[error("text is not UTF-8")]
    Utf8,
    /// A oneof's discriminant is none of its cases.
    #[error("no such case of a oneof")]
    Case,
    /// More than one field is the tail.
    #[error("more than one field at the message's end")]
    Tail,
}

/// Checks that `bytes` are a message of this layout.
#[inline]
pub fn validate<'l>(layout: impl Into<LayoutRef<'l>>, bytes: &[u8]) -> Result<(), ValidationError> {
    let layout = layout.into();
    let mut pass = begin(layout.size(), bytes).map_err(|kind| whole(layout.table(), kind))?;
    pass.message(layout, Reader::root(bytes), 1)
}

/// Like [`validate`], for a layout that [`is_flat`]. Unrolled for a constant layout, so that it
/// becomes a few comparisons.
#[inline(always)]
pub(crate) fn validate_flat(
    layout: &'static MessageLayout,
    bytes: &[u8],
) -> Result<(), ValidationError> {
    let mut pass = match begin(layout.size, bytes) {
        Ok(pass) => pass,
        Err(kind) => return Err(whole(layout, kind)),
    };
    let found = pass.flat(layout.fields());
    found.map_err(|(field, kind)| at(layout, field, 0, kind))
}

/// Whether a message has only singular numbers, text and bytes, outside oneofs.
pub(crate) const fn is_flat(layout: &MessageLayout) -> bool {
    let mut index = 0;
    while index < layout.fields().len() {
        let field = &layout.fields()[index];
        if !matches!(field.shape, Shape::Singular)
            || matches!(field.kind, Kind::Message)
            || matches!(field.presence, Presence::Oneof { .. })
        {
            return false;
        }
        index += 1;
    }
    true
}

#[inline(always)]
fn begin(size: u32, bytes: &[u8]) -> Result<Pass<'_>, Fault> {
    let budget = bytes.len().checked_sub(size as usize);
    let budget = budget.ok_or(Fault::Truncated)?;
    if bytes.len() >= TAIL_OFFSET as usize {
        return Err(Fault::TooLarge);
    }
    Ok(Pass {
        bytes,
        budget,
        tail: false,
    })
}

#[cold]
#[inline(never)]
fn whole(layout: &MessageLayout, kind: ValidationErrorKind) -> ValidationError {
    ValidationError {
        message: layout.name.clone(),
        field: Cow::Borrowed(""),
        number: 0,
        offset: 0,
        kind,
    }
}

struct Pass<'a> {
    bytes: &'a [u8],
    /// Bytes that may still be referred to.
    budget: usize,
    /// Whether a reference to the tail was found.
    tail: bool,
}

/// A fault without its position.
type Fault = ValidationErrorKind;

impl<'a> Pass<'a> {
    /// Checks the references of a fixed part, which itself lies within the bytes.
    fn message(
        &mut self,
        layout: LayoutRef<'_>,
        reader: Reader<'a>,
        depth: u32,
    ) -> Result<(), ValidationError> {
        for field in layout.fields() {
            if let Presence::Oneof {
                discriminant,
                case,
                cases,
            } = field.presence
            {
                let set: u8 = reader.scalar(discriminant);
                if case == 1 && set > cases {
                    return Err(at(layout.table(), &field, reader.position(), Fault::Case));
                }
                if set != case {
                    continue;
                }
            }
            if field.shape == Shape::Singular && !field.kind.is_reference() {
                continue;
            }
            let (start, length) = reader.reference(field.offset);
            if start == 0 && length == 0 {
                continue;
            }
            let fault = |fault| at(layout.table(), &field, reader.position(), fault);
            match (field.shape, field.kind) {
                (Shape::Singular, Kind::Message) => {
                    if length != 1 {
                        return Err(fault(Fault::Count));
                    }
                    self.array(field, start, 1).map_err(fault)?;
                    if depth == MAX_DEPTH {
                        return Err(fault(Fault::TooDeep));
                    }
                    if let Some(child) = field.message() {
                        self.message(child, reader.moved_to(start), depth + 1)?;
                    }
                }
                (Shape::Singular, kind) => {
                    self.blob(kind, start, length).map_err(fault)?;
                }
                (Shape::Repeated, Kind::String | Kind::Bytes) => {
                    self.array(field, start, length).map_err(fault)?;
                    let array = reader.moved_to(start);
                    for index in 0..length {
                        let element = array.element(index, REFERENCE_SIZE);
                        let (start, length) = element.reference(0);
                        self.blob(field.kind, start, length).map_err(fault)?;
                    }
                }
                _ => {
                    self.array(field, start, length).map_err(fault)?;
                    let Some(child) = field.message() else {
                        continue;
                    };
                    if depth == MAX_DEPTH {
                        return Err(fault(Fault::TooDeep));
                    }
                    let array = reader.moved_to(start);
                    for index in 0..length {
                        self.message(child, array.element(index, child.stride()), depth + 1)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks the references of a flat message. It leaves the error to the caller: with its making in the
    /// loop, compilers check ranges again.
    #[inline(always)]
    fn flat<'l>(&mut self, fields: &'l [FieldLayout]) -> Result<(), (&'l FieldLayout, Fault)> {
        let reader = Reader::root(self.bytes);
        for field in fields {
            if field.kind.is_reference() {
                let (start, length) = reader.reference(field.offset);
                if let Err(fault) = self.blob(field.kind, start, length) {
                    return Err((field, fault));
                }
            }
        }
        Ok(())
    }

    /// Checks and charges an array, or a sub-message as an array of one.
    fn array(&mut self, field: FieldRef<'_>, start: u32, count: u32) -> Result<(), Fault> {
        self.charge(start, u64::from(count) * u64::from(field.stride()))
    }

    #[inline(always)]
    fn charge(&mut self, start: u32, length: u64) -> Result<(), Fault> {
        if start == 0 {
            return Err(Fault::AbsentWithLength);
        }
        if u64::from(start) + length > self.bytes.len() as u64 {
            return Err(Fault::OutOfBounds);
        }
        // Within the bytes, so it fits a usize.
        self.budget = self
            .budget
            .checked_sub(length as usize)
            .ok_or(Fault::Overlap)?;
        Ok(())
    }

    #[inline(always)]
    fn blob(&mut self, kind: Kind, start: u32, length: u32) -> Result<(), Fault> {
        if start == 0 && length == 0 {
            return Ok(());
        }
        let bytes = self.bytes;
        let start = if start == TAIL_OFFSET {
            if std::mem::replace(&mut self.tail, true) {
                return Err(Fault::Tail);
            }
            // The bytes are fewer than u32::MAX.
            (bytes.len() as u32)
                .checked_sub(length)
                .ok_or(Fault::OutOfBounds)?
        } else {
            start
        };
        self.charge(start, u64::from(length))?;
        let blob = &bytes[start as usize..][..length as usize];
        if kind == Kind::String && !is_utf8(blob) {
            return Err(Fault::Utf8);
        }
        Ok(())
    }
}

/// Whether bytes are UTF-8. Most texts are short and ASCII, which is seen by words; the library's check takes them byte
/// by byte.
#[inline(always)]
fn is_utf8(bytes: &[u8]) -> bool {
    let is_ascii = match bytes.len() {
        4..=8 => is_ascii_by::<4>(bytes),
        9..=16 => is_ascii_by::<8>(bytes),
        _ => bytes.is_ascii(),
    };
    is_ascii || str::from_utf8(bytes).is_ok()
}

/// Whether one or two words of bytes are ASCII: the second one may begin in the first.
#[inline(always)]
fn is_ascii_by<const WORD: usize>(bytes: &[u8]) -> bool {
    match (bytes.first_chunk::<WORD>(), bytes.last_chunk::<WORD>()) {
        (Some(first), Some(last)) => first.is_ascii() && last.is_ascii(),
        _ => false,
    }
}

/// The fault of a field of the message at `position`.
#[cold]
#[inline(never)]
fn at(
    layout: &MessageLayout,
    field: &FieldLayout,
    position: u32,
    kind: ValidationErrorKind,
) -> ValidationError {
    ValidationError {
        message: layout.name.clone(),
        field: field.name.clone(),
        number: field.number,
        offset: position + field.offset,
        kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_utf8_whatever_its_length_and_wherever_it_is_not_ascii() {
        for len in 0..40 {
            for at in 0..len {
                for other in [&[0xff][..], "é".as_bytes(), "€".as_bytes(), &[0xc3]] {
                    let mut text = vec![b'a'; len];
                    let end = (at + other.len()).min(len);
                    text[at..end].copy_from_slice(&other[..end - at]);
                    let expected = str::from_utf8(&text).is_ok();
                    assert_eq!(is_utf8(&text), expected, "{text:?}");
                }
            }
            assert!(is_utf8(&vec![b'z'; len]));
        }
    }
}
