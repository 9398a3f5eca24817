//! The call header: what precedes the body in the payload of a request or a response.
//!
//! The session protocol below carries a payload of bytes and one bit, `ext`, which says that an
//! *extension* precedes the body. A plain call sets no extension and pays four bytes; a plain
//! answer pays none. All integers are little-endian; nothing is aligned.
//!
//! ```text
//! request                                        response
//!  0   4  method id, u32                          (ext = 0)
//! (ext = 0)                                       0   ..  body: the call succeeded
//!  4   ..  body                                  (ext = 1)
//! (ext = 1)                                       0   2   L, u16
//!  4   2  L, u16                                  2   L   fields
//!  6   L  fields                                  2+L ..  body, empty unless the status is OK
//!  6+L ..  body
//!
//! field
//!  0   1  tag
//!  1   2  n, u16
//!  3   n  value
//! ```
//!
//! | tag | in | value | meaning |
//! |---|---|---|---|
//! | 1 | request | u64 | time that the caller still waits when it makes the call, microseconds: relative, so the hosts' clocks need not agree; time spent in queues and on the way is not taken off |
//! | 128 | request | u32 | the caller's clock when it makes the call, microseconds since whenever, modulo 2^32: from the differences to its own clock the server sees how long a request was in queues |
//! | 2 | request | u8 | encoding of both bodies: 0 native layout (the default), 1 protobuf |
//! | 3 | both | u8 k; k bytes; n-1-k bytes | metadata: key of `a-z 0-9 - _ .`, value of any bytes |
//! | 4 | both | u64, u8 | stream: call id, then flags (bit 0: end of stream, others 0) |
//! | 5 | response | u8 | status code, 0 to 16; OK if absent |
//! | 6 | response | UTF-8 | status message, at most 1024 bytes |
//! | 129 | response | empty | the request was refused before any of its handler ran |
//!
//! A known field other than metadata comes at most once. A receiver skips an unknown field with a tag of
//! 128 or more and refuses the message for one below. Metadata fields of a message are at most 8192
//! bytes together (with their tags and lengths), all fields at most 12288.
//!
//! Nothing here is trusted: any bytes give a header or a typed error.

use starling_proto::Prefix;

use crate::admission::Stamps;
use crate::options::{CallOptions, Encoding, StreamPosition};
use crate::status::{Code, Status};

/// The most bytes of metadata fields in one message.
pub const MAX_METADATA: usize = 8192;
/// The most bytes of a status message.
pub const MAX_STATUS_MESSAGE: usize = 1024;
/// The most bytes of all fields of an extension.
pub const MAX_EXTENSION: usize = 12288;
const _: () = assert!(REQUEST_FIELDS_AT + MAX_EXTENSION <= Prefix::MAX as usize);

/// Bytes of the method id.
const METHOD_LEN: usize = 4;
/// Bytes of an extension's length.
const LENGTH_LEN: usize = 2;
/// Bytes of a field's tag and length.
const FIELD_LEN: usize = 3;

mod tag {
    pub(super) const DEADLINE: u8 = 1;
    pub(super) const ENCODING: u8 = 2;
    pub(super) const METADATA: u8 = 3;
    pub(super) const STREAM: u8 = 4;
    pub(super) const STATUS: u8 = 5;
    pub(super) const MESSAGE: u8 = 6;
    /// Tags from here on may be skipped by who does not know them.
    pub(super) const OPTIONAL: u8 = 128;
    pub(super) const SENT: u8 = OPTIONAL;
    pub(super) const NOT_RUN: u8 = OPTIONAL + 1;
}

/// Names a method: what generated code derives from `package.Service/Method`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MethodId(pub u32);

/// What is wrong with a call header. The sender is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The payload ends inside the header.
    #[error("the call header is cut short")]
    Truncated,
    /// The extension is longer than [`MAX_EXTENSION`], or its metadata than [`MAX_METADATA`].
    #[error("the call header is too long")]
    TooLong,
    /// A field has the wrong length or a value that is not allowed.
    #[error("field {tag} of the call header has a bad value")]
    BadValue {
        /// The field.
        tag: u8,
    },
    /// A field came twice, or belongs in the other direction.
    #[error("field {tag} of the call header does not belong here")]
    Misplaced {
        /// The field.
        tag: u8,
    },
    /// A field that must be understood and is not.
    #[error("field {tag} of the call header is unknown here; this end may be older than its peer")]
    Unknown {
        /// The field.
        tag: u8,
    },
}

/// One field of an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field<'a> {
    Deadline { remaining_us: u64 },
    Encoding(Encoding),
    Metadata { key: &'a str, value: &'a [u8] },
    Stream(StreamPosition),
    Status(Code),
    Message(&'a str),
    Sent { clock_us: u32 },
    NotRun,
    Skipped,
}

/// Walks the fields of an extension; ends after the first error.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(fields: &'a [u8]) -> Self {
        Self { rest: fields }
    }

    fn parse(&mut self) -> Result<(u8, Field<'a>), HeaderError> {
        let (&[tag, n0, n1], rest) = self
            .rest
            .split_first_chunk::<FIELD_LEN>()
            .ok_or(HeaderError::Truncated)?;
        let (value, rest) = rest
            .split_at_checked(usize::from(u16::from_le_bytes([n0, n1])))
            .ok_or(HeaderError::Truncated)?;
        self.rest = rest;
        let bad = HeaderError::BadValue { tag };
        let field = match tag {
            tag::DEADLINE => Field::Deadline {
                remaining_us: u64::from_le_bytes(value.try_into().map_err(|_| bad)?),
            },
            tag::ENCODING => Field::Encoding(match value {
                [0] => Encoding::Native,
                [1] => Encoding::Protobuf,
                _ => return Err(bad),
            }),
            tag::METADATA => {
                let (&key_len, rest) = value.split_first().ok_or(bad)?;
                let (key, value) = rest.split_at_checked(usize::from(key_len)).ok_or(bad)?;
                if !key_is_valid(key) {
                    return Err(bad);
                }
                let key = std::str::from_utf8(key).map_err(|_| bad)?;
                Field::Metadata { key, value }
            }
            tag::STREAM => {
                let (id, flags) = value.split_first_chunk::<8>().ok_or(bad)?;
                let [flags @ 0..=1] = flags else {
                    return Err(bad);
                };
                Field::Stream(StreamPosition {
                    call_id: u64::from_le_bytes(*id),
                    end: *flags == 1,
                })
            }
            tag::STATUS => match value {
                [code] => Field::Status(Code::from_u8(*code).ok_or(bad)?),
                _ => return Err(bad),
            },
            tag::MESSAGE if value.len() <= MAX_STATUS_MESSAGE => {
                Field::Message(std::str::from_utf8(value).map_err(|_| bad)?)
            }
            tag::MESSAGE => return Err(bad),
            tag::SENT => Field::Sent {
                clock_us: u32::from_le_bytes(value.try_into().map_err(|_| bad)?),
            },
            tag::NOT_RUN if value.is_empty() => Field::NotRun,
            tag::NOT_RUN => return Err(bad),
            _ if tag >= tag::OPTIONAL => Field::Skipped,
            _ => return Err(HeaderError::Unknown { tag }),
        };
        Ok((tag, field))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, HeaderError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.parse().map(|(_, field)| field);
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Where the fields of a request's extension begin.
pub(crate) const REQUEST_FIELDS_AT: usize = METHOD_LEN + LENGTH_LEN;
/// Where the body of a request without an extension begins.
pub(crate) const REQUEST_BODY_AT: usize = METHOD_LEN;
/// Where the fields of a response's extension begin.
pub(crate) const RESPONSE_FIELDS_AT: usize = LENGTH_LEN;

/// The method that a request is for. Apart from the extension, so that a plain call pays for
/// nothing else.
#[inline]
pub(crate) fn method_of(payload: &[u8]) -> Option<MethodId> {
    let method = payload.first_chunk::<METHOD_LEN>()?;
    Some(MethodId(u32::from_le_bytes(*method)))
}

/// What a request's extension says to the endpoint; the rest is found when somebody asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestExtension {
    /// Where the body begins and the fields end.
    pub(crate) body_at: usize,
    /// Set by calls with a deadline.
    pub(crate) stamps: Option<Stamps>,
}

impl RequestExtension {
    /// Validates the extension of a request.
    #[cold]
    pub(crate) fn parse(payload: &[u8]) -> Result<Self, HeaderError> {
        let rest = payload.get(METHOD_LEN..).ok_or(HeaderError::Truncated)?;
        let fields = split_extension(rest)?;
        let (mut timeout_us, mut sent_us) = (None, None);
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
            Field::Encoding(_) | Field::Stream(_) => true,
            Field::Metadata { .. } | Field::Skipped => true,
        })?;
        Ok(Self {
            body_at: REQUEST_FIELDS_AT + fields.len(),
            stamps: timeout_us.map(|timeout_us| Stamps {
                timeout_us,
                sent_us,
            }),
        })
    }
}

/// The validated header of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResponseHeader<'a> {
    pub(crate) code: Code,
    pub(crate) message: &'a str,
    /// The request certainly did not run.
    pub(crate) not_run: bool,
    pub(crate) body_at: usize,
}

impl<'a> ResponseHeader<'a> {
    /// Reads the header of a response that has an extension.
    #[cold]
    pub(crate) fn parse(payload: &'a [u8]) -> Result<Self, HeaderError> {
        let fields = split_extension(payload)?;
        let mut header = Self {
            code: Code::Ok,
            message: "",
            not_run: false,
            body_at: RESPONSE_FIELDS_AT + fields.len(),
        };
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
            Field::Stream(_) | Field::Metadata { .. } | Field::Skipped => true,
        })?;
        Ok(header)
    }
}

fn split_extension(bytes: &[u8]) -> Result<&[u8], HeaderError> {
    let (length, rest) = bytes
        .split_first_chunk::<LENGTH_LEN>()
        .ok_or(HeaderError::Truncated)?;
    let length = usize::from(u16::from_le_bytes(*length));
    if length > MAX_EXTENSION {
        return Err(HeaderError::TooLong);
    }
    rest.get(..length).ok_or(HeaderError::Truncated)
}

/// Hands every field to `accept` (which says whether it belongs here) and checks what holds for
/// all fields together.
fn walk<'a>(bytes: &'a [u8], mut accept: impl FnMut(Field<'a>) -> bool) -> Result<(), HeaderError> {
    let mut fields = Fields::new(bytes);
    let mut seen = 0u32;
    let mut metadata = 0;
    while !fields.rest.is_empty() {
        let before = fields.rest.len();
        let (tag, field) = fields.parse()?;
        if tag == tag::METADATA {
            metadata += before - fields.rest.len();
            if metadata > MAX_METADATA {
                return Err(HeaderError::TooLong);
            }
        } else if field != Field::Skipped {
            // One for each tag that is known.
            let bit = 1 << (tag % 16 + tag / tag::OPTIONAL * 16);
            if seen & bit != 0 {
                return Err(HeaderError::Misplaced { tag });
            }
            seen |= bit;
        }
        if !accept(field) {
            return Err(HeaderError::Misplaced { tag });
        }
    }
    Ok(())
}

pub(crate) fn key_is_valid(key: &[u8]) -> bool {
    (1..=255).contains(&key.len())
        && key
            .iter()
            .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.'))
}

pub(crate) fn metadata_field_len(key: &str, value: &[u8]) -> usize {
    FIELD_LEN + 1 + key.len() + value.len()
}

/// Appends a metadata field. The caller has checked key and size.
pub(crate) fn put_metadata(out: &mut Vec<u8>, key: &str, value: &[u8]) {
    let length = 1 + key.len() + value.len();
    debug_assert!(key_is_valid(key.as_bytes()) && length <= MAX_METADATA);
    out.push(tag::METADATA);
    out.extend_from_slice(&(length as u16).to_le_bytes());
    out.push(key.len() as u8);
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(value);
}

fn put_field(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    out.push(tag);
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
}

fn put_stream(out: &mut Vec<u8>, stream: Option<StreamPosition>) {
    if let Some(position) = stream {
        let mut value = [0; 9];
        value[..8].copy_from_slice(&position.call_id.to_le_bytes());
        value[8] = u8::from(position.end);
        put_field(out, tag::STREAM, &value);
    }
}

/// Bytes that [`put_request`] writes for these options.
#[inline]
pub(crate) fn request_len(options: &CallOptions) -> usize {
    if options.is_plain() {
        METHOD_LEN
    } else {
        request_len_extended(options)
    }
}

#[cold]
fn request_len_extended(options: &CallOptions) -> usize {
    REQUEST_FIELDS_AT
        + options.timeout.map_or(0, |_| 2 * FIELD_LEN + 8 + 4)
        + match options.encoding {
            Encoding::Native => 0,
            Encoding::Protobuf => FIELD_LEN + 1,
        }
        + options.stream.map_or(0, |_| FIELD_LEN + 9)
        + options.metadata.as_fields().len()
}

/// Appends the header of a request that is made at `now_ns`.
#[inline]
pub(crate) fn put_request(
    out: &mut Vec<u8>,
    method: MethodId,
    options: &CallOptions,
    now_ns: u64,
) -> Prefix {
    out.extend_from_slice(&method.0.to_le_bytes());
    if options.is_plain() {
        return Prefix {
            ext: false,
            len: METHOD_LEN as u16,
        };
    }
    put_request_extension(out, options, now_ns)
}

#[cold]
fn put_request_extension(out: &mut Vec<u8>, options: &CallOptions, now_ns: u64) -> Prefix {
    let length = request_len_extended(options) - REQUEST_FIELDS_AT;
    assert!(length <= MAX_EXTENSION, "bounded by Metadata::insert");
    out.extend_from_slice(&(length as u16).to_le_bytes());
    let start = out.len();
    if let Some(timeout) = options.timeout {
        // Rounded up: a deadline in the future does not look expired.
        let us = u64::try_from(timeout.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX);
        put_field(out, tag::DEADLINE, &us.to_le_bytes());
        put_field(out, tag::SENT, &clock_us(now_ns).to_le_bytes());
    }
    if options.encoding == Encoding::Protobuf {
        put_field(out, tag::ENCODING, &[1]);
    }
    put_stream(out, options.stream);
    out.extend_from_slice(options.metadata.as_fields());
    debug_assert_eq!(out.len() - start, length);
    Prefix {
        ext: true,
        len: (REQUEST_FIELDS_AT + length) as u16,
    }
}

fn clock_us(now_ns: u64) -> u32 {
    (now_ns / 1000) as u32
}

/// Says in the header of a request with a deadline that the call is made at `now_ns`.
pub(crate) fn set_sent(request: &mut [u8], now_ns: u64) {
    let at = REQUEST_FIELDS_AT + FIELD_LEN + 8;
    let field = &mut request[at..at + FIELD_LEN + 4];
    assert_eq!(field[0], tag::SENT, "follows the deadline");
    field[FIELD_LEN..].copy_from_slice(&clock_us(now_ns).to_le_bytes());
}

/// What a response says besides its body.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResponseParts<'a> {
    pub(crate) status: Option<&'a Status>,
    pub(crate) metadata: Option<&'a crate::Metadata>,
    pub(crate) stream: Option<StreamPosition>,
}

impl ResponseParts<'_> {
    pub(crate) fn of_status(status: &Status) -> ResponseParts<'_> {
        ResponseParts {
            status: Some(status),
            metadata: status.metadata(),
            stream: None,
        }
    }

    pub(crate) fn needs_extension(&self) -> bool {
        self.status.is_some() || self.metadata.is_some() || self.stream.is_some()
    }

    /// Appends the extension of a response.
    pub(crate) fn put(&self, out: &mut Vec<u8>) -> Prefix {
        let start = out.len();
        out.extend_from_slice(&[0; LENGTH_LEN]);
        if let Some(status) = self.status {
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
        if let Some(metadata) = self.metadata {
            out.extend_from_slice(metadata.as_fields());
        }
        let length = out.len() - start - LENGTH_LEN;
        assert!(length <= MAX_EXTENSION, "each part is bounded");
        out[start..start + LENGTH_LEN].copy_from_slice(&(length as u16).to_le_bytes());
        Prefix {
            ext: true,
            len: (LENGTH_LEN + length) as u16,
        }
    }
}

/// The fields of a message whose header was validated.
pub(crate) fn fields_between(payload: &[u8], from: usize, to: usize) -> &[u8] {
    // Without an extension the body begins before the fields would.
    payload.get(from..to).unwrap_or(&[])
}

/// The encoding that validated fields name.
pub(crate) fn encoding_of(fields: &[u8]) -> Encoding {
    Fields::new(fields)
        .find_map(|field| match field {
            Ok(Field::Encoding(encoding)) => Some(encoding),
            _ => None,
        })
        .unwrap_or_default()
}

/// The place in a stream that validated fields name.
pub(crate) fn stream_of(fields: &[u8]) -> Option<StreamPosition> {
    Fields::new(fields).find_map(|field| match field {
        Ok(Field::Stream(position)) => Some(position),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Metadata, MetadataView};

    fn full_options() -> CallOptions {
        let mut metadata = Metadata::new();
        metadata.insert("k", "value").unwrap();
        CallOptions {
            timeout: Some(Duration::from_nanos(1_500)),
            encoding: Encoding::Protobuf,
            stream: Some(StreamPosition {
                call_id: 9,
                end: true,
            }),
            metadata,
        }
    }

    #[test]
    fn a_plain_request_costs_four_bytes_and_a_plain_response_none() {
        let mut out = Vec::new();
        let plain = CallOptions::default();
        let prefix = put_request(&mut out, MethodId(0x0403_0201), &plain, 5);
        assert_eq!(prefix, Prefix { ext: false, len: 4 });
        assert_eq!(out, [1, 2, 3, 4]);
        assert_eq!(request_len(&plain), 4);
        assert!(!ResponseParts::default().needs_extension());
        assert_eq!(method_of(&out), Some(MethodId(0x0403_0201)));
    }

    #[test]
    fn the_bytes_of_a_full_request_header() {
        let mut out = Vec::new();
        let options = full_options();
        let prefix = put_request(
            &mut out,
            MethodId(7),
            &options,
            (3 << 32 | 0x0a0b) * 1000 + 999,
        );
        assert_eq!(prefix, Prefix { ext: true, len: 50 });
        assert_eq!(out.len(), request_len(&options));
        let expected: &[u8] = &[
            7, 0, 0, 0, // method
            44, 0, // length
            1, 8, 0, 2, 0, 0, 0, 0, 0, 0, 0, // 2 us, rounded up
            128, 4, 0, 0x0b, 0x0a, 0, 0, // the clock, without its upper bits
            2, 1, 0, 1, // protobuf
            4, 9, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, // stream
            3, 7, 0, 1, b'k', b'v', b'a', b'l', b'u', b'e',
        ];
        assert_eq!(out, expected);
        out.extend_from_slice(b"body");
        let extension = RequestExtension::parse(&out).unwrap();
        let stamps = Stamps {
            timeout_us: 2,
            sent_us: Some(0x0a0b),
        };
        assert_eq!(extension.stamps, Some(stamps));
        assert_eq!(&out[extension.body_at..], b"body");
        let fields = fields_between(&out, REQUEST_FIELDS_AT, extension.body_at);
        let view = MetadataView::of_extension(fields);
        assert_eq!(view.to_owned(), options.metadata);
    }

    #[test]
    fn a_status_survives_the_wire() {
        let mut metadata = Metadata::new();
        metadata.insert("retry-after", "3").unwrap();
        let status = Status::resource_exhausted("busy").with_metadata(metadata.clone());
        let mut out = Vec::new();
        ResponseParts::of_status(&status).put(&mut out);
        let header = ResponseHeader::parse(&out).unwrap();
        assert_eq!(
            (header.code, header.message),
            (Code::ResourceExhausted, "busy")
        );
        assert_eq!(header.body_at, out.len());
        let fields = fields_between(&out, RESPONSE_FIELDS_AT, header.body_at);
        assert_eq!(MetadataView::of_extension(fields).to_owned(), metadata);
    }

    #[test]
    fn a_refusal_says_that_nothing_ran() {
        for status in [Status::internal(""), Status::internal("").with_not_run()] {
            let mut out = Vec::new();
            ResponseParts::of_status(&status).put(&mut out);
            let header = ResponseHeader::parse(&out).unwrap();
            assert_eq!(header.not_run, !status.may_have_run());
        }
    }

    #[test]
    fn a_call_is_stamped_when_it_is_issued() {
        let mut out = Vec::new();
        put_request(&mut out, MethodId(7), &full_options(), 0);
        set_sent(&mut out, 9_000_500);
        let extension = RequestExtension::parse(&out).unwrap();
        assert_eq!(extension.stamps.unwrap().sent_us, Some(9_000));
    }

    #[test]
    fn the_largest_status_fits() {
        let mut metadata = Metadata::new();
        let overhead = metadata_field_len("k", &[]);
        metadata
            .insert("k", vec![1; MAX_METADATA - overhead])
            .unwrap();
        let status = Status::internal("x".repeat(5000)).with_metadata(metadata);
        let mut out = Vec::new();
        ResponseParts::of_status(&status).put(&mut out);
        let header = ResponseHeader::parse(&out).unwrap();
        assert_eq!(header.message.len(), MAX_STATUS_MESSAGE);
    }

    fn request_with(fields: &[u8]) -> Result<RequestExtension, HeaderError> {
        let mut payload = vec![1, 0, 0, 0];
        payload.extend_from_slice(&(fields.len() as u16).to_le_bytes());
        payload.extend_from_slice(fields);
        RequestExtension::parse(&payload)
    }

    #[test]
    fn faults_are_told_apart() {
        assert_eq!(method_of(&[1, 2, 3]), None);
        assert_eq!(
            RequestExtension::parse(&[1, 2, 3, 4, 9]),
            Err(HeaderError::Truncated)
        );
        assert_eq!(
            RequestExtension::parse(&[1, 2, 3, 4, 9, 0, 1]),
            Err(HeaderError::Truncated)
        );
        assert_eq!(
            RequestExtension::parse(&[1, 2, 3, 4, 255, 255, 1]),
            Err(HeaderError::TooLong)
        );
        assert_eq!(
            request_with(&[2, 1, 0, 2]),
            Err(HeaderError::BadValue { tag: 2 })
        );
        assert_eq!(
            request_with(&[1, 1, 0, 2]),
            Err(HeaderError::BadValue { tag: 1 })
        );
        assert_eq!(
            request_with(&[3, 0, 0]),
            Err(HeaderError::BadValue { tag: 3 })
        );
        assert_eq!(
            request_with(&[3, 2, 0, 1, b'A']),
            Err(HeaderError::BadValue { tag: 3 })
        );
        assert_eq!(
            request_with(&[5, 1, 0, 3]),
            Err(HeaderError::Misplaced { tag: 5 })
        );
        assert_eq!(
            request_with(&[2, 1, 0, 1, 2, 1, 0, 1]),
            Err(HeaderError::Misplaced { tag: 2 })
        );
        assert_eq!(
            request_with(&[0, 0, 0]),
            Err(HeaderError::Unknown { tag: 0 })
        );
        assert_eq!(
            request_with(&[127, 0, 0]),
            Err(HeaderError::Unknown { tag: 127 })
        );
        assert_eq!(
            request_with(&[128, 2, 0, 1, 2]),
            Err(HeaderError::BadValue { tag: 128 })
        );
        assert_eq!(
            request_with(&[128, 4, 0, 1, 2, 3, 4, 128, 4, 0, 1, 2, 3, 4]),
            Err(HeaderError::Misplaced { tag: 128 })
        );
        assert_eq!(
            request_with(&[129, 0, 0]),
            Err(HeaderError::Misplaced { tag: 129 })
        );
        assert_eq!(
            ResponseHeader::parse(&[7, 0, 128, 4, 0, 1, 2, 3, 4]),
            Err(HeaderError::Misplaced { tag: 128 })
        );
        assert_eq!(
            ResponseHeader::parse(&[4, 0, 129, 1, 0, 1]),
            Err(HeaderError::BadValue { tag: 129 })
        );
        // Nothing can be said of a time without a deadline.
        let sent = request_with(&[128, 4, 0, 1, 2, 3, 4]).unwrap();
        assert_eq!(sent.stamps, None);
        assert!(request_with(&[130, 2, 0, 1, 2, 130, 0, 0, 200, 0, 0]).is_ok());
        assert_eq!(
            ResponseHeader::parse(&[4, 0, 5, 1, 0, 17]),
            Err(HeaderError::BadValue { tag: 5 })
        );
    }

    #[test]
    fn too_much_metadata_is_refused() {
        let mut fields = Vec::new();
        for _ in 0..3 {
            put_metadata(&mut fields, "k", &[0; 3000]);
        }
        assert_eq!(request_with(&fields), Err(HeaderError::TooLong));
    }

    #[test]
    fn any_bytes_give_a_header_or_an_error() {
        bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
            if let Ok(extension) = RequestExtension::parse(bytes) {
                assert!(extension.body_at <= bytes.len());
                assert!(method_of(bytes).is_some());
                let fields = fields_between(bytes, REQUEST_FIELDS_AT, extension.body_at);
                let view = MetadataView::of_extension(fields);
                assert!(view.to_owned().as_fields().len() <= MAX_METADATA);
            }
            if let Ok(header) = ResponseHeader::parse(bytes) {
                assert!(header.body_at <= bytes.len());
                assert!(header.message.len() <= MAX_STATUS_MESSAGE);
            }
        });
    }
}
