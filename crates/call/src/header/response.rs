//! The header of a response.

use std::borrow::Cow;

use super::extension::{HeaderSize, LENGTH_LEN, split_extension};
use crate::code::Code;
use crate::coding::CompressedBody;
use crate::field::{
    FIELD_LEN, Field, HeaderError, MAX_EXTENSION, field_head, lone_stream, put_compressed,
    put_field, put_stream, tag, walk,
};
use crate::metadata::Metadata;
use crate::status::Status;
use crate::stream::StreamPosition;

/// Where the fields of a response's extension begin.
pub const RESPONSE_FIELDS_AT: usize = LENGTH_LEN;

/// Bytes of a header that has a position in a stream and nothing else.
pub const STREAM_RESPONSE_LEN: usize = LENGTH_LEN + FIELD_LEN + StreamPosition::LEN;

/// The validated header of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHeader<'a> {
    /// The status code.
    pub code: Code,
    /// The status message.
    pub message: &'a str,
    /// The request did not run.
    pub not_run: bool,
    /// The position in a stream. The status is the stream's then.
    pub stream: Option<StreamPosition>,
    /// How the body is compressed, if it is.
    pub compressed: Option<CompressedBody>,
    /// Where the body begins.
    pub body_at: usize,
}

impl<'a> ResponseHeader<'a> {
    /// Reads the header of a response that has an extension.
    #[cold]
    pub fn parse(payload: &'a [u8]) -> Result<Self, HeaderError> {
        let fields = split_extension(payload)?;
        let mut header = Self {
            code: Code::Ok,
            message: "",
            not_run: false,
            stream: None,
            compressed: None,
            body_at: RESPONSE_FIELDS_AT + fields.len(),
        };
        if let Some(position) = lone_stream(fields) {
            header.stream = Some(position);
            return Ok(header);
        }
        walk(fields, |field| match field {
            Field::Status(code) => {
                header.code = code;
                true
            }
            Field::Message(message) => {
                header.message = message;
                true
            }
            Field::NotRun => {
                header.not_run = true;
                true
            }
            Field::Deadline { .. } | Field::Sent { .. } | Field::Encoding(_) => false,
            Field::Accepts(_) => false,
            Field::Compressed(body) => {
                header.compressed = Some(body);
                true
            }
            Field::Stream(position) => {
                header.stream = Some(position);
                true
            }
            Field::Metadata { .. } | Field::Skipped => true,
        })?;
        if header.stream.is_some() && header.compressed.is_some() {
            // The items of a stream are compressed one by one.
            return Err(HeaderError::Misplaced {
                tag: tag::COMPRESSED,
            });
        }
        Ok(header)
    }
}

/// The parts of a response besides its body.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseParts<'a> {
    /// The status of a call that failed.
    pub status: Option<&'a Status>,
    /// Metadata, not empty.
    pub metadata: Option<&'a Metadata>,
    /// The position in a stream.
    pub stream: Option<StreamPosition>,
    /// How the body is compressed.
    pub compressed: Option<CompressedBody>,
}

impl ResponseParts<'_> {
    /// The parts of a status.
    pub fn of_status(status: &Status) -> ResponseParts<'_> {
        ResponseParts {
            status: Some(status),
            metadata: status.metadata(),
            ..ResponseParts::default()
        }
    }

    /// Whether there is anything to write.
    pub fn needs_extension(&self) -> bool {
        self.status.is_some()
            || self.metadata.is_some()
            || self.stream.is_some()
            || self.compressed.is_some()
    }

    /// Appends the extension of a response.
    pub fn put(&self, out: &mut Vec<u8>) -> HeaderSize {
        let start = out.len();
        out.extend_from_slice(&[0; LENGTH_LEN]);
        if let Some(status) = self.status {
            let status = &match status.code() {
                // By a handler. To a receiver it would be a response that is malformed.
                Code::Ok => Cow::Owned(failure_with_ok(status)),
                _ => Cow::Borrowed(status),
            };
            put_field(out, tag::STATUS, &[status.code() as u8]);
            let message = status.wire_message();
            if !message.is_empty() {
                put_field(out, tag::MESSAGE, message.as_bytes());
            }
            if !status.may_have_run() {
                put_field(out, tag::NOT_RUN, &[]);
            }
        }
        put_stream(out, self.stream);
        put_compressed(out, self.compressed);
        if let Some(metadata) = self.metadata {
            out.extend_from_slice(metadata.as_fields());
        }
        let length = out.len() - start - LENGTH_LEN;
        assert!(length <= MAX_EXTENSION, "each part is bounded");
        out[start..start + LENGTH_LEN].copy_from_slice(&(length as u16).to_le_bytes());
        HeaderSize {
            extended: true,
            continues_stream: false,
            len: (LENGTH_LEN + length) as u16,
        }
    }
}

/// A failure that says that it is none.
#[cold]
fn failure_with_ok(status: &Status) -> Status {
    let text = format!("the handler failed with the code OK: {}", status.message());
    let failure = Status::internal(text);
    match status.may_have_run() {
        true => failure,
        false => failure.with_not_run(),
    }
}

/// Writes the extension of a response that has a position in a stream and nothing else.
#[inline]
pub fn put_stream_response(
    place: &mut [u8; STREAM_RESPONSE_LEN],
    position: StreamPosition,
) -> HeaderSize {
    let (length, field) = place.split_at_mut(LENGTH_LEN);
    length.copy_from_slice(&((FIELD_LEN + StreamPosition::LEN) as u16).to_le_bytes());
    let (head, value) = field.split_at_mut(FIELD_LEN);
    head.copy_from_slice(&field_head(tag::STREAM, StreamPosition::LEN));
    value.copy_from_slice(&position.to_bytes());
    HeaderSize {
        extended: true,
        continues_stream: false,
        len: STREAM_RESPONSE_LEN as u16,
    }
}
