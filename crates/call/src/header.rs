//! The call header: the bytes before the body in the payload of a request or a response.
//!
//! The session protocol below carries a payload of bytes and one bit, `ext`, which is set if an
//! *extension* precedes the body. A plain call has no extension and a header of four bytes; a plain
//! response has no header. All integers are little-endian; nothing is aligned.
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
//! | 1 | request | u64 | microseconds that the caller still waits when it makes the call: relative, so the hosts' clocks need not agree; time in queues and on the way is not subtracted |
//! | 128 | request | u32 | the caller's clock when it makes the call, in microseconds since any time, modulo 2^32: from the differences to its own clock the server computes how long a request was in queues |
//! | 2 | request | u8 | encoding of both bodies: 0 native layout (the default), 1 protobuf |
//! | 3 | both | u8 k; k bytes; n-1-k bytes | metadata: key of `a-z 0-9 - _ .`, value of any bytes |
//! | 4 | both | 4 × u64, u32, 2 × u8 | position in a stream: id, number, received, taken, window, hold, flags; PROTOCOL.md 9.5 |
//! | 5 | response | u8 | status code, 0 to 16; OK if absent |
//! | 6 | response | UTF-8 | status message, at most 1024 bytes |
//! | 7 | both | u8, u32 | compression of the body: algorithm, and its bytes when decompressed; never with tag 4, whose items are compressed one by one |
//! | 129 | response | empty | the request was refused before any of its handler ran |
//! | 130 | request | u8, and more | algorithms that the caller takes in the response: bit n is algorithm n |
//!
//! In a response with a stream position, fields 5 and 6 are the end of the stream, not of this call, and a
//! body may follow them.
//!
//! A known field other than metadata occurs at most once. A receiver skips an unknown field with a
//! tag of 128 or more, and refuses the message for an unknown field with a lower tag. The metadata
//! fields of a message have at most 8192 bytes together (with their tags and lengths), all fields
//! at most 12288.
//!
//! No input is trusted: any bytes give a header or a typed error.

mod extension;
mod request;
mod response;
#[cfg(test)]
mod tests;

pub use self::extension::{HeaderSize, encoding_of, fields_between, form_of, status_of, stream_of};
pub use self::request::{
    DeadlineStamp, REQUEST_BODY_AT, REQUEST_FIELDS_AT, RequestExtension, method_of, set_sent,
    split_method, stream_of_request,
};
pub use self::response::{
    RESPONSE_FIELDS_AT, ResponseHeader, ResponseParts, STREAM_RESPONSE_LEN, put_stream_response,
};
pub use crate::field::{HeaderError, MAX_EXTENSION, MAX_METADATA, MAX_STATUS_MESSAGE};
