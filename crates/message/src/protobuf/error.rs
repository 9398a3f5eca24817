//! Errors of decoding.

use std::borrow::Cow;

use crate::layout::MAX_DEPTH;

/// Bytes are not the protobuf encoding of the expected type. The sender is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid protobuf: {message} field {number} before byte {offset}: {kind}")]
pub struct DecodeError {
    /// Full name of the faulty message type.
    pub message: Cow<'static, str>,
    /// Number of the field, or 0 if it is not known.
    pub number: u32,
    /// How far decoding got, in bytes from the start of the input.
    pub offset: usize,
    /// The kind of mistake.
    pub kind: DecodeErrorKind,
}

/// A kind of mistake in encoded bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeErrorKind {
    /// The input ends within a value.
    #[error("truncated")]
    Truncated,
    /// A varint of more than 64 bits.
    #[error("a varint has more than 64 bits")]
    Varint,
    /// No field number, or no such wire type.
    #[error("not a tag")]
    Tag,
    /// A known field with the wire type of another kind of field.
    #[error("the wire type is not the field's")]
    WireType,
    /// A group ends that did not begin.
    #[error("a group ends that did not begin")]
    Group,
    /// Not UTF-8.
    #[error("text is not UTF-8")]
    Utf8,
    /// Nested too deeply.
    #[error("nested more than {MAX_DEPTH} deep")]
    TooDeep,
    /// The message would take more memory than allowed.
    #[error("larger than allowed")]
    TooLarge,
}
