//! Requests as the server of a session takes them: in its encoding, and packed by what it has.

use std::time::Instant;

use starling_compress::{Algorithm, AlgorithmSet};
use starling_endpoint::{CallDescriptor, CompressedBody, Encoding, Msgbuf, Status, StreamFlags};
use starling_message::{Bytes, MessageLayout, Reader, protobuf};

use super::stream::{PLAIN, join, split};
use super::{pack, unpack_own};
use crate::compression::Compression;
use crate::plane::OutgoingCall;

/// A request that was fitted.
pub(crate) struct Fitted {
    pub(crate) options: starling_endpoint::CallOptions,
    pub(crate) payload: Msgbuf,
    /// The request in its own form, if the payload is another one now.
    pub(crate) original: Option<Msgbuf>,
}

/// What becomes of a request's body.
struct Change {
    /// To protobuf, from messages with this layout.
    convert: Option<&'static MessageLayout>,
    /// Whether the server takes what is packed.
    takes: bool,
}

/// Fits a request. The call has no payload: that is `payload`, behind the message's headroom.
///
/// # Errors
/// If the request cannot be converted. It is not sent then.
pub(crate) fn fit(
    call: &mut OutgoingCall,
    payload: Msgbuf,
    (encoding, accepts): (Encoding, AlgorithmSet),
    now: impl FnOnce() -> Instant,
) -> Result<Fitted, Status> {
    let OutgoingCall { message, types, .. } = call;
    let mut options = message.header_options(now);
    options.encoding = encoding;
    let change = Change {
        convert: types
            .filter(|_| encoding == Encoding::Protobuf)
            .map(|types| types.request),
        takes: packed_by(message).is_none_or(|algorithm| accepts.has(algorithm)),
    };
    if change.convert.is_none() && change.takes {
        let (mut payload, len) = (payload, options.header_len());
        payload.set_headroom(message.headroom, len);
        message.headroom = len;
        return Ok(Fitted {
            options,
            payload,
            original: None,
        });
    }
    let original = Some(payload.clone());
    let (head, tail) = payload.into_parts();
    let mut body = head[message.headroom..].to_vec();
    let fitted = match &mut options.stream {
        Some(position) => {
            body.extend_from_slice(tail.as_deref().unwrap_or_default());
            let is_coded = position.flags.has(StreamFlags::CODED);
            if is_coded && !change.takes {
                position.flags = position.flags.without(StreamFlags::CODED);
            }
            items(&change, body, is_coded, options.header_len())?
        }
        None => {
            if let Some(packed) = options.coding.compressed.take() {
                let bytes = std::mem::take(&mut body);
                unpack_own(&bytes, packed, &mut body);
                single(&change, &body, None, Some(packed), &mut options)?
            } else {
                single(&change, &body, tail.as_ref(), None, &mut options)?
            }
        }
    };
    Ok(Fitted {
        options,
        payload: Msgbuf::from_vec(fitted),
        original,
    })
}

/// The algorithm that packs a request, if one does: the same for all requests of a stream, whether there is a
/// packed message in them or not.
#[inline]
pub(crate) fn packed_by(message: &CallDescriptor) -> Option<Algorithm> {
    Algorithm::from_number(message.coding.as_ref()?.packed_by()?)
}

/// Fits a single request. `was` is how it was packed.
fn single(
    change: &Change,
    body: &[u8],
    tail: Option<&Bytes>,
    was: Option<CompressedBody>,
    options: &mut starling_endpoint::CallOptions,
) -> Result<Vec<u8>, Status> {
    let mut message = Vec::new();
    match change.convert {
        Some(layout) => {
            protobuf::encode(layout, Reader::in_parts(body, tail), &mut message)
                .map_err(|error| Status::invalid_argument(format!("the request: {error}")))?;
        }
        None => message.extend_from_slice(body),
    }
    let again = was.filter(|_| change.takes);
    let algorithm = again.and_then(|was| Algorithm::from_number(was.algorithm));
    if let Some(algorithm) = algorithm {
        options.coding.compressed = was;
        let room = options.header_len();
        if let Some((packed, body)) = pack(&Compression::again(algorithm), &message, &[], room) {
            options.coding.compressed = Some(body);
            return Ok(packed);
        }
        options.coding.compressed = None;
    }
    let mut out = vec![0; options.header_len()];
    out.extend_from_slice(&message);
    Ok(out)
}

/// Fits the items of a stream's request, behind `room` bytes.
fn items(change: &Change, body: Vec<u8>, is_coded: bool, room: usize) -> Result<Vec<u8>, Status> {
    let mut out = vec![0; room];
    let mut opened = Vec::new();
    for item in starling_stream::Items::new(body.into()) {
        let (packed, message) = match is_coded {
            true => split(&item).expect("this process has coded it"),
            false => (None, &item[..]),
        };
        opened.clear();
        match packed {
            Some(packed) => unpack_own(message, packed, &mut opened),
            None => opened.extend_from_slice(message),
        }
        let again = packed.filter(|_| change.takes);
        let algorithm = again.and_then(|it| Algorithm::from_number(it.algorithm));
        let put = starling_stream::put_item(&mut out, |out| {
            let converted = match change.convert {
                Some(layout) => {
                    let mut converted = Vec::new();
                    protobuf::encode(layout, Reader::root(&opened), &mut converted)?;
                    converted
                }
                None => std::mem::take(&mut opened),
            };
            let compression = algorithm.map(Compression::again);
            match join(compression.as_ref(), &converted, &[]) {
                Some(item) => out.extend_from_slice(&item),
                None => {
                    if is_coded && change.takes {
                        out.push(PLAIN);
                    }
                    out.extend_from_slice(&converted);
                }
            }
            Ok::<_, protobuf::EncodeError>(())
        });
        put.map_err(|error| Status::invalid_argument(format!("an item of the stream: {error}")))?;
    }
    Ok(out)
}
