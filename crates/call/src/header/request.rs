//! The header of a request.

use super::extension::{HeaderSize, LENGTH_LEN, split_extension, stream_of};
use crate::coding::{CompressedBody, RequestCoding};
use crate::descriptor::CallDescriptor;
use crate::encoding::Encoding;
use crate::field::{
    FIELD_LEN, Field, HeaderError, MAX_EXTENSION, lone_stream, put_compressed, put_field,
    put_stream, tag, walk,
};
use crate::metadata::Metadata;
use crate::method::MethodId;
use crate::options::CallOptions;
use crate::stream::StreamPosition;

/// Bytes of the method id.
const METHOD_LEN: usize = 4;
/// Where the fields of a request's extension begin.
pub const REQUEST_FIELDS_AT: usize = METHOD_LEN + LENGTH_LEN;
/// Where the body of a request without an extension begins.
pub const REQUEST_BODY_AT: usize = METHOD_LEN;

/// The times in a request with a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadlineStamp {
    /// Microseconds from the call to the deadline.
    pub timeout_us: u64,
    /// The caller's clock when it made the call, microseconds modulo 2^32, if the caller sent it.
    pub sent_us: Option<u32>,
}

/// The method of a request, and what follows it: the body, if there is no extension. Separate from the
/// extension, so that a plain call costs no more than this.
#[inline]
pub fn split_method(payload: &[u8]) -> Option<(MethodId, &[u8])> {
    let (method, rest) = payload.split_first_chunk::<METHOD_LEN>()?;
    Some((MethodId(u32::from_le_bytes(*method)), rest))
}

/// The place in its stream of a request with an extension, if it is one of a stream.
#[cold]
pub fn stream_of_request(payload: &[u8]) -> Option<StreamPosition> {
    let fields = split_extension(payload.get(METHOD_LEN..)?).ok()?;
    stream_of(fields)
}

/// The method of a request.
#[inline]
pub fn method_of(payload: &[u8]) -> Option<MethodId> {
    split_method(payload).map(|(method, _)| method)
}

/// The fields of a request's extension that the endpoint needs. The other fields are looked up on
/// demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestExtension {
    /// Where the fields end and the body begins.
    pub body_at: usize,
    /// Present in calls with a deadline.
    pub stamp: Option<DeadlineStamp>,
    /// The request belongs to a stream that has begun.
    pub continues_stream: bool,
}

impl RequestExtension {
    /// Validates the extension of a request.
    #[cold]
    pub fn parse(payload: &[u8]) -> Result<Self, HeaderError> {
        let rest = payload.get(METHOD_LEN..).ok_or(HeaderError::Truncated)?;
        let fields = split_extension(rest)?;
        if let Some(position) = lone_stream(fields) {
            return Ok(Self {
                body_at: REQUEST_FIELDS_AT + fields.len(),
                stamp: None,
                continues_stream: position.number != 0,
            });
        }
        let (mut timeout_us, mut sent_us) = (None, None);
        let mut continues_stream = false;
        let (mut has_stream, mut is_compressed) = (false, false);
        walk(fields, |field| match field {
            Field::Deadline { remaining_us } => {
                timeout_us = Some(remaining_us);
                true
            }
            Field::Sent { clock_us } => {
                sent_us = Some(clock_us);
                true
            }
            Field::Status(_) | Field::Message(_) | Field::NotRun => false,
            Field::Stream(position) => {
                has_stream = true;
                continues_stream = position.number != 0;
                true
            }
            Field::Compressed(_) => {
                is_compressed = true;
                true
            }
            Field::Encoding(_) | Field::Metadata { .. } | Field::Accepts(_) | Field::Skipped => {
                true
            }
        })?;
        if has_stream && is_compressed {
            // The items of a stream are compressed one by one.
            return Err(HeaderError::Misplaced {
                tag: tag::COMPRESSED,
            });
        }
        Ok(Self {
            body_at: REQUEST_FIELDS_AT + fields.len(),
            stamp: timeout_us.map(|timeout_us| DeadlineStamp {
                timeout_us,
                sent_us,
            }),
            continues_stream,
        })
    }
}

impl CallOptions {
    /// Bytes of the header of a request with these options. A message that is built elsewhere leaves
    /// as many free at its beginning.
    #[inline]
    pub fn header_len(&self) -> usize {
        if self.is_plain() {
            METHOD_LEN
        } else {
            extended_len(
                self.timeout.is_some(),
                self.encoding,
                self.coding,
                self.stream.is_some(),
                &self.metadata,
            )
        }
    }

    /// Appends the header of a request that is made at `now_ns`.
    #[inline]
    pub fn put_header(&self, method: MethodId, out: &mut Vec<u8>, now_ns: u64) -> HeaderSize {
        out.extend_from_slice(&method.0.to_le_bytes());
        if self.is_plain() {
            return HeaderSize {
                extended: false,
                continues_stream: false,
                len: METHOD_LEN as u16,
            };
        }
        put_request_extension(out, self, now_ns)
    }
}

impl CallDescriptor {
    /// Bytes of the header of this request.
    pub fn header_len(&self) -> usize {
        let (has_deadline, has_stream) = (self.deadline.is_some(), self.stream.is_some());
        let is_plain = !has_deadline
            && self.encoding == Encoding::Native
            && self.coding.is_none()
            && !has_stream
            && self.metadata.is_empty();
        match is_plain {
            true => METHOD_LEN,
            false => extended_len(
                has_deadline,
                self.encoding,
                self.coding.as_deref().copied().unwrap_or_default(),
                has_stream,
                &self.metadata,
            ),
        }
    }
}

#[cold]
fn extended_len(
    has_timeout: bool,
    encoding: Encoding,
    coding: RequestCoding,
    has_stream: bool,
    metadata: &Metadata,
) -> usize {
    let if_so = |there: bool, len: usize| if there { len } else { 0 };
    REQUEST_FIELDS_AT
        + if_so(has_timeout, 2 * FIELD_LEN + 8 + 4)
        + if_so(encoding == Encoding::Protobuf, FIELD_LEN + 1)
        + if_so(coding.compressed.is_some(), FIELD_LEN + CompressedBody::LEN)
        + if_so(coding.accepts != 0, FIELD_LEN + 1)
        + if_so(has_stream, FIELD_LEN + StreamPosition::LEN)
        + metadata.as_fields().len()
}

#[cold]
fn put_request_extension(out: &mut Vec<u8>, options: &CallOptions, now_ns: u64) -> HeaderSize {
    let length = options.header_len() - REQUEST_FIELDS_AT;
    assert!(
        length <= MAX_EXTENSION,
        "Metadata::insert bounds the extension"
    );
    out.extend_from_slice(&(length as u16).to_le_bytes());
    let start = out.len();
    if let Some(timeout) = options.timeout {
        // Rounded up, so that a deadline in the future does not look expired.
        let us = u64::try_from(timeout.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX);
        put_field(out, tag::DEADLINE, &us.to_le_bytes());
        put_field(out, tag::SENT, &clock_us(now_ns).to_le_bytes());
    }
    if options.encoding == Encoding::Protobuf {
        put_field(out, tag::ENCODING, &[1]);
    }
    let RequestCoding {
        compressed,
        accepts,
        items: _,
    } = options.coding;
    put_compressed(out, compressed);
    if accepts != 0 {
        put_field(out, tag::ACCEPTS, &[accepts]);
    }
    put_stream(out, options.stream);
    out.extend_from_slice(options.metadata.as_fields());
    debug_assert_eq!(out.len() - start, length);
    HeaderSize {
        extended: true,
        continues_stream: options.stream.is_some_and(|position| position.number != 0),
        len: (REQUEST_FIELDS_AT + length) as u16,
    }
}

fn clock_us(now_ns: u64) -> u32 {
    (now_ns / 1000) as u32
}

/// Writes into the header of a request with a deadline that the call is made at `now_ns`.
///
/// # Panics
/// If `request` does not begin with such a header.
pub fn set_sent(request: &mut [u8], now_ns: u64) {
    let at = REQUEST_FIELDS_AT + FIELD_LEN + 8;
    let field = &mut request[at..at + FIELD_LEN + 4];
    assert_eq!(
        field[0],
        tag::SENT,
        "the caller's clock follows the deadline"
    );
    field[FIELD_LEN..].copy_from_slice(&clock_us(now_ns).to_le_bytes());
}
