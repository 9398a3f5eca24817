//! The fields of a call header's extension: their tags, their limits, how they are read and
//! written. The table of tags is in [`crate::header`].

use crate::code::Code;
use crate::coding::CompressedBody;
use crate::encoding::Encoding;
use crate::stream::StreamPosition;

/// The most bytes of metadata fields in one message.
pub const MAX_METADATA: usize = 8192;
/// The most bytes of a status message.
pub const MAX_STATUS_MESSAGE: usize = 1024;
/// The most bytes of all fields of an extension.
pub const MAX_EXTENSION: usize = 12288;

/// Bytes of a field's tag and length.
pub(crate) const FIELD_LEN: usize = 3;

pub(crate) mod tag {
    pub(crate) const DEADLINE: u8 = 1;
    pub(crate) const ENCODING: u8 = 2;
    pub(crate) const METADATA: u8 = 3;
    pub(crate) const STREAM: u8 = 4;
    pub(crate) const STATUS: u8 = 5;
    pub(crate) const MESSAGE: u8 = 6;
    pub(crate) const COMPRESSED: u8 = 7;
    /// A receiver skips unknown fields with this tag or a greater one.
    pub(crate) const OPTIONAL: u8 = 128;
    pub(crate) const SENT: u8 = OPTIONAL;
    pub(crate) const NOT_RUN: u8 = OPTIONAL + 1;
    pub(crate) const ACCEPTS: u8 = OPTIONAL + 2;

    /// The name of a field, for errors.
    pub(super) fn name(tag: u8) -> &'static str {
        match tag {
            DEADLINE => "deadline",
            ENCODING => "encoding",
            METADATA => "metadata",
            STREAM => "stream position",
            STATUS => "status code",
            MESSAGE => "status message",
            SENT => "time of the call",
            NOT_RUN => "not run",
            COMPRESSED => "compression",
            ACCEPTS => "compression of the response",
            _ => "unknown",
        }
    }
}

/// Why a call header is refused. The sender is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The payload ends inside the header.
    #[error("the call header is cut short: its sender has a bug")]
    Truncated,
    /// The extension is longer than [`MAX_EXTENSION`], or its metadata than [`MAX_METADATA`].
    #[error(
        "the call header has more than {MAX_EXTENSION} bytes, or its metadata more than \
         {MAX_METADATA}: its sender has a bug"
    )]
    TooLong,
    /// A field has the wrong length or a value that is not allowed.
    #[error(
        "field {tag} ({}) of the call header has a bad value: its sender has a bug",
        tag::name(*.tag)
    )]
    BadValue {
        /// The field.
        tag: u8,
    },
    /// A field came twice, or may only occur in the other direction.
    #[error(
        "field {tag} ({}) of the call header comes twice or in the wrong direction: \
         its sender has a bug",
        tag::name(*.tag)
    )]
    Misplaced {
        /// The field.
        tag: u8,
    },
    /// The receiver has to understand the field and does not.
    #[error(
        "field {tag} of the call header is unknown here: if the sender is newer, update this end, \
         else the sender has a bug"
    )]
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
    Compressed(CompressedBody),
    Accepts(u8),
    Skipped,
}

/// Iterates over the fields of an extension; ends after the first error.
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
                let bytes = value.try_into().map_err(|_| bad)?;
                Field::Stream(StreamPosition::from_bytes(bytes).ok_or(bad)?)
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
            tag::COMPRESSED => {
                let bytes = value.try_into().map_err(|_| bad)?;
                Field::Compressed(CompressedBody::from_bytes(bytes))
            }
            // A later version may know more algorithms than fit one byte.
            tag::ACCEPTS => Field::Accepts(*value.first().ok_or(bad)?),
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

/// The bytes of a position in a stream, if these fields are that alone, as those of most messages of streams.
#[inline]
fn lone_stream_bytes(fields: &[u8]) -> Option<&[u8; StreamPosition::LEN]> {
    let (head, value) = fields.split_first_chunk::<FIELD_LEN>()?;
    let is_stream = *head == field_head(tag::STREAM, StreamPosition::LEN);
    value.try_into().ok().filter(|_| is_stream)
}

/// The position in a stream, if these fields are that alone.
#[inline]
pub(crate) fn lone_stream(fields: &[u8]) -> Option<StreamPosition> {
    StreamPosition::from_bytes(lone_stream_bytes(fields)?)
}

/// Whether these fields, which were validated, are a position in a stream alone.
#[inline]
pub(crate) fn is_lone_stream(fields: &[u8]) -> bool {
    lone_stream_bytes(fields).is_some()
}

/// Validates the fields of a message. `accept` gets every field and returns whether it may occur in
/// this direction; the limits on all fields together are checked here.
pub(crate) fn walk<'a>(
    bytes: &'a [u8],
    mut accept: impl FnMut(Field<'a>) -> bool,
) -> Result<(), HeaderError> {
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
    out.reserve(FIELD_LEN + length);
    out.push(tag::METADATA);
    out.extend_from_slice(&(length as u16).to_le_bytes());
    out.push(key.len() as u8);
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(value);
}

pub(crate) fn put_field(out: &mut Vec<u8>, tag: u8, value: &[u8]) {
    out.extend_from_slice(&field_head(tag, value.len()));
    out.extend_from_slice(value);
}

/// What stands in front of the value of a field.
#[inline]
pub(crate) fn field_head(tag: u8, value_len: usize) -> [u8; FIELD_LEN] {
    let [low, high] = (value_len as u16).to_le_bytes();
    [tag, low, high]
}

pub(crate) fn put_stream(out: &mut Vec<u8>, stream: Option<StreamPosition>) {
    if let Some(position) = stream {
        put_field(out, tag::STREAM, &position.to_bytes());
    }
}

pub(crate) fn put_compressed(out: &mut Vec<u8>, compressed: Option<CompressedBody>) {
    if let Some(body) = compressed {
        put_field(out, tag::COMPRESSED, &body.to_bytes());
    }
}
