//! Conversions between the types of the device, the session protocol and the call. None of the
//! three knows the others; the endpoint knows all.

use starling_call::header::{HeaderSize, MAX_EXTENSION, REQUEST_FIELDS_AT, stream_of_request};
use starling_call::{Status, StreamFlags, Unsent};
use starling_io::PeerRefusal;
use starling_proto::{DeviceRefusal, Msgbuf, PeerId, Prefix, StreamPart};

// A call header fits into the prefix that a receiver accepts beyond the largest message.
const _: () = assert!(REQUEST_FIELDS_AT + MAX_EXTENSION <= Prefix::MAX as usize);

/// A peer, as the device numbers it.
#[inline]
pub(crate) fn io_peer(peer: PeerId) -> starling_io::PeerId {
    starling_io::PeerId(peer.0)
}

/// A peer, as the session protocol numbers it.
#[inline]
pub(crate) fn proto_peer(peer: starling_io::PeerId) -> PeerId {
    PeerId(peer.0)
}

/// Where a datagram came from.
#[inline]
pub(crate) fn proto_source(source: starling_io::Source) -> starling_proto::Source {
    match source {
        starling_io::Source::Peer(peer) => starling_proto::Source::Peer(proto_peer(peer)),
        starling_io::Source::Unknown(address) => starling_proto::Source::Unknown(address),
    }
}

/// Why the device could not reach a peer.
pub(crate) fn device_refusal(why: PeerRefusal) -> DeviceRefusal {
    match why {
        PeerRefusal::Full => DeviceRefusal::Full,
        PeerRefusal::NotPermitted => DeviceRefusal::NotPermitted,
        PeerRefusal::OtherVersion => DeviceRefusal::OtherVersion,
        PeerRefusal::TakesNoTargets => DeviceRefusal::TakesNoTargets,
        PeerRefusal::Unacceptable => DeviceRefusal::Unacceptable,
        PeerRefusal::Nonsense => DeviceRefusal::Nonsense,
    }
}

/// A call header, as the session protocol sees it.
#[inline]
pub(crate) fn prefix_of(header: HeaderSize) -> Prefix {
    Prefix {
        ext: header.extended,
        continues: header.continues_stream,
        len: header.len,
    }
}

/// What a request with an extension is to its stream, if it has one.
pub(crate) fn part_of_stream(request: &[u8]) -> Option<StreamPart> {
    let position = stream_of_request(request)?;
    Some(match position.flags.has(StreamFlags::CANCEL) {
        true => StreamPart::GivenUp,
        false => StreamPart::GoesOn,
    })
}

/// Takes the message of a request that was not sent from the status of its call, for
/// [`Context::call_message`] on another session.
///
/// [`Context::call_message`]: crate::Context::call_message
pub fn unsent_message(status: &mut Status) -> Option<Msgbuf> {
    let Unsent { head, tail } = Unsent::take_from(status)?;
    Some(Msgbuf::from_parts(head, tail))
}

/// A request that was not sent, for its status.
pub(crate) fn unsent(request: Msgbuf) -> Unsent {
    let (head, tail) = request.into_parts();
    Unsent { head, tail }
}
