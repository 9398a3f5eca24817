//! The extension of a header, as a whole.

use crate::code::Code;
use crate::coding::RequestCoding;
use crate::encoding::Encoding;
use crate::field::{Field, Fields, HeaderError, MAX_EXTENSION, is_lone_stream, lone_stream};
use crate::metadata::MetadataView;
use crate::status::Status;
use crate::stream::StreamPosition;

/// Bytes of an extension's length.
pub(super) const LENGTH_LEN: usize = 2;

/// The size of a call header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderSize {
    /// Whether there is an extension. The session protocol carries this bit.
    pub extended: bool,
    /// Whether it is that of a request of a stream that has begun.
    pub continues_stream: bool,
    /// Bytes.
    pub len: u16,
}

impl HeaderSize {
    /// No header: that of a plain response.
    pub const NONE: Self = Self {
        extended: false,
        continues_stream: false,
        len: 0,
    };
}

pub(super) fn split_extension(bytes: &[u8]) -> Result<&[u8], HeaderError> {
    let (length, rest) = bytes
        .split_first_chunk::<LENGTH_LEN>()
        .ok_or(HeaderError::Truncated)?;
    let length = usize::from(u16::from_le_bytes(*length));
    if length > MAX_EXTENSION {
        return Err(HeaderError::TooLong);
    }
    rest.get(..length).ok_or(HeaderError::Truncated)
}

/// The fields of a message whose header was validated.
pub fn fields_between(payload: &[u8], from: usize, to: usize) -> &[u8] {
    // Without an extension the body begins before the fields would.
    payload.get(from..to).unwrap_or(&[])
}

/// The encoding that validated fields give.
pub fn encoding_of(fields: &[u8]) -> Encoding {
    if is_lone_stream(fields) {
        return Encoding::default();
    }
    Fields::new(fields)
        .find_map(|field| match field {
            Ok(Field::Encoding(encoding)) => Some(encoding),
            _ => None,
        })
        .unwrap_or_default()
}

/// What validated fields say of the body: its encoding, and of compression.
pub fn form_of(fields: &[u8]) -> (Encoding, RequestCoding) {
    let mut form = (Encoding::Native, RequestCoding::default());
    for field in Fields::new(fields) {
        match field {
            Ok(Field::Encoding(encoding)) => form.0 = encoding,
            Ok(Field::Compressed(body)) => form.1.compressed = Some(body),
            Ok(Field::Accepts(accepts)) => form.1.accepts = accepts,
            _ => {}
        }
    }
    form
}

/// The position in a stream that validated fields give.
pub fn stream_of(fields: &[u8]) -> Option<StreamPosition> {
    if let Some(position) = lone_stream(fields) {
        return Some(position);
    }
    Fields::new(fields).find_map(|field| match field {
        Ok(Field::Stream(position)) => Some(position),
        _ => None,
    })
}

/// The status that validated fields give. None if it is OK.
pub fn status_of(fields: &[u8]) -> Option<Status> {
    if is_lone_stream(fields) {
        return None;
    }
    let (mut code, mut message, mut not_run) = (Code::Ok, "", false);
    for field in Fields::new(fields) {
        match field {
            Ok(Field::Status(given)) => code = given,
            Ok(Field::Message(given)) => message = given,
            Ok(Field::NotRun) => not_run = true,
            _ => {}
        }
    }
    if code == Code::Ok {
        return None;
    }
    let status = Status::new(code, message.to_owned())
        .with_metadata(MetadataView::of_extension(fields).to_owned());
    Some(if not_run {
        status.with_not_run()
    } else {
        status
    })
}
