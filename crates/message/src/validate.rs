//! Validates received bytes in one pass, before any view of them exists. [`FieldChecks`] is for readers of few fields.
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

/// What checks bytes as far as it takes to read some fields: a number, a text or bytes is checked by itself. If one of
/// the fields is anything else, this is [`validate`].
#[derive(Clone, Debug)]
pub struct FieldChecks {
    /// Of the fixed part.
    size: u32,
    /// Whether all is checked.
    whole: bool,
    fields: Vec<FieldCheck>,
}

/// What is checked of one field.
#[derive(Clone, Copy, Debug)]
struct FieldCheck {
    number: u32,
    offset: u32,
    kind: Kind,
    presence: Presence,
}

impl FieldChecks {
    /// Those of the fields with these numbers.
    pub fn new<'l>(layout: impl Into<LayoutRef<'l>>, numbers: &[u32]) -> Self {
        let layout = layout.into();
        let mut checks = Self {
            size: layout.size(),
            whole: false,
            fields: Vec::new(),
        };
        for number in numbers {
            match layout.field(*number) {
                Some(field) if field.shape == Shape::Singular && field.kind != Kind::Message => {
                    checks.fields.push(FieldCheck {
                        number: *number,
                        offset: field.offset,
                        kind: field.kind,
                        presence: field.presence,
                    });
                }
                _ => checks.whole = true,
            }
        }
        checks
    }

    /// Checks bytes, by the layout that these checks were made for.
    ///
    /// # Errors
    /// The fields cannot be read.
    #[inline]
    pub fn validate(&self, layout: LayoutRef<'_>, bytes: &[u8]) -> Result<(), ValidationError> {
        debug_assert_eq!(layout.size(), self.size);
        match self.whole || layout.size() != self.size {
            true => validate(layout, bytes),
            false => self
                .find_fault(bytes)
                .map_or(Ok(()), |(number, kind)| Err(fault_of(layout, number, kind))),
        }
    }

    /// The first fault, and the number of its field, or 0.
    #[inline]
    fn find_fault(&self, bytes: &[u8]) -> Option<(u32, Fault)> {
        let mut pass = match begin(self.size, bytes) {
            Ok(pass) => pass,
            Err(fault) => return Some((0, fault)),
        };
        let reader = Reader::root(bytes);
        for field in &self.fields {
            let checked = match is_case(field.presence, reader) {
                Ok(true) if field.kind.is_reference() => {
                    let (start, length) = reader.reference(field.offset);
                    pass.blob(field.kind, start, length)
                }
                checked => checked.map(drop),
            };
            if let Err(fault) = checked {
                return Some((field.number, fault));
            }
        }
        None
    }
}

/// The fault of a field of the root, or of the message as such.
#[cold]
fn fault_of(layout: LayoutRef<'_>, number: u32, kind: Fault) -> ValidationError {
    let table = layout.table();
    match table.field(number) {
        Some(field) => at(table, field, 0, kind),
        None => whole(table, kind),
    }
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

/// Whether a field is looked at: it is in no oneof, or is the case that is set.
#[inline(always)]
fn is_case(presence: Presence, reader: Reader<'_>) -> Result<bool, Fault> {
    match presence {
        Presence::Oneof {
            discriminant,
            case,
            cases,
        } => match reader.scalar::<u8>(discriminant) {
            set if case == 1 && set > cases => Err(Fault::Case),
            set => Ok(set == case),
        },
        _ => Ok(true),
    }
}

impl<'a> Pass<'a> {
    /// Checks the references of a fixed part, which itself lies within the bytes.
    fn message(
        &mut self,
        layout: LayoutRef<'_>,
        reader: Reader<'a>,
        depth: u32,
    ) -> Result<(), ValidationError> {
        for field in layout.fields() {
            let fault = |fault| at(layout.table(), &field, reader.position(), fault);
            if !is_case(field.presence, reader).map_err(fault)? {
                continue;
            }
            if field.shape == Shape::Singular && !field.kind.is_reference() {
                continue;
            }
            let (start, length) = reader.reference(field.offset);
            if start == 0 && length == 0 {
                continue;
            }
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
    use crate::layout::Nested;

    const fn field(number: u32, kind: Kind, offset: u32, presence: Presence) -> FieldLayout {
        FieldLayout {
            name: Cow::Borrowed("field"),
            json_name: Cow::Borrowed("field"),
            number,
            kind,
            shape: Shape::Singular,
            presence,
            offset,
            nested: Nested::None,
            enumeration: None,
        }
    }

    const fn case(case: u8) -> Presence {
        Presence::Oneof {
            discriminant: 12,
            case,
            cases: 2,
        }
    }

    static FIELDS: [FieldLayout; 5] = [
        field(1, Kind::String, 0, Presence::Implicit),
        field(2, Kind::Uint32, 8, Presence::Implicit),
        field(3, Kind::Bytes, 16, case(1)),
        field(4, Kind::String, 16, case(2)),
        field(5, Kind::String, 24, Presence::Implicit),
    ];
    static LAYOUT: MessageLayout = MessageLayout {
        name: Cow::Borrowed("a.Message"),
        size: 32,
        fields: Cow::Borrowed(&FIELDS),
        schema_hash: 0,
    };

    /// A message with a case and references, and `ab\xff` behind its fixed part.
    fn message(case: u8, references: [(usize, u32, u32); 3]) -> Vec<u8> {
        let mut bytes = vec![0; 32];
        bytes[12] = case;
        for (offset, start, length) in references {
            bytes[offset..offset + 4].copy_from_slice(&start.to_le_bytes());
            bytes[offset + 4..offset + 8].copy_from_slice(&length.to_le_bytes());
        }
        bytes.extend_from_slice(b"ab\xff");
        bytes
    }

    #[test]
    fn fields_that_are_read_are_checked_and_others_are_not() {
        let kind = |fields: &[u32], bytes: &[u8]| {
            let checked = FieldChecks::new(&LAYOUT, fields).validate((&LAYOUT).into(), bytes);
            checked.map_err(|error| (error.number, error.kind))
        };
        // 1 is sound, 3 is bytes, 5 lies outside of the message.
        let bytes = message(1, [(0, 32, 2), (16, 34, 1), (24, 33, 3)]);
        assert_eq!(kind(&[1, 2, 3, 4], &bytes), Ok(()));
        assert_eq!(kind(&[5], &bytes), Err((5, Fault::OutOfBounds)));
        assert_eq!(kind(&[1, 5], &bytes), Err((5, Fault::OutOfBounds)));
        // A number that no field has: all are checked.
        assert_eq!(kind(&[1, 9], &bytes), Err((5, Fault::OutOfBounds)));
        // The same reference as the case that is a text.
        let bytes = message(2, [(0, 32, 3), (16, 34, 1), (24, 0, 0)]);
        assert_eq!(kind(&[3], &bytes), Ok(()));
        assert_eq!(kind(&[4], &bytes), Err((4, Fault::Utf8)));
        assert_eq!(kind(&[1], &bytes), Err((1, Fault::Utf8)));
        let bytes = message(3, [(0, 0, 1), (16, 0, 0), (24, TAIL_OFFSET, 4)]);
        assert_eq!(kind(&[3], &bytes), Err((3, Fault::Case)));
        assert_eq!(kind(&[1], &bytes), Err((1, Fault::AbsentWithLength)));
        assert_eq!(kind(&[5], &bytes[..31]), Err((0, Fault::Truncated)));
    }

    #[test]
    fn what_is_valid_has_valid_fields() {
        bolero::check!()
            .with_type::<(u8, [(u8, u8); 3], Vec<u8>)>()
            .for_each(|(case, references, more)| {
                let [first, second, third] = references.map(|(at, len)| (at.into(), len.into()));
                let reference = |offset, (at, length): (u32, u32)| (offset, at % 40, length % 5);
                let mut bytes = message(
                    case % 4,
                    [
                        reference(0, first),
                        reference(16, second),
                        reference(24, third),
                    ],
                );
                bytes.extend_from_slice(more);
                let of_each = [1, 2, 3, 4, 5].map(|number| {
                    FieldChecks::new(&LAYOUT, &[number]).validate((&LAYOUT).into(), &bytes)
                });
                match validate(&LAYOUT, &bytes) {
                    Ok(()) => assert!(of_each.iter().all(Result::is_ok)),
                    Err(error) if error.kind == Fault::Overlap => {}
                    Err(error) => assert!(of_each.contains(&Err(error))),
                }
            });
    }

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
