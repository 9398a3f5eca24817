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
    /// The message would take more memory than [`DecodeLimits::max_bytes`](super::DecodeLimits).
    #[error(
        "it takes more memory than allowed: send less in one message, or raise `DecodeLimits::max_bytes` \
         where it is decoded"
    )]
    TooLarge,
    /// The message would take more memory than its encoding may become. See
    /// [`DecodeLimits::factor`](super::DecodeLimits).
    #[error(
        "its {encoded} bytes take more than the {allowed} bytes of memory that so many may become: send \
         fewer sub-messages of which nothing is set, or raise `DecodeLimits::factor` where it is decoded"
    )]
    OutOfProportion {
        /// Length of the encoding in bytes.
        encoded: usize,
        /// What it may take in bytes.
        allowed: usize,
    },
}
