//! Where frames go: the interface between the protocol and the layer that puts frames into
//! datagrams.

use std::net::SocketAddr;

use crate::wire::MAX_DATAGRAM;
use crate::{Origin, PeerId};

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkError {
    /// No room now; the protocol offers the frame again at a later [`crate::Protocol::flush`].
    Full,
    /// The peer cannot be reached any more.
    Gone,
}

/// Accepts frames and bundles them into datagrams.
pub trait FrameSink {
    /// Appends one frame, `head` then `body` then `tail`, to the datagram open for `peer`, or to
    /// a new one that starts with `preamble`. Keeps no reference to the parts, except to memory of
    /// the device itself that is not written to.
    fn push(
        &mut self,
        peer: PeerId,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), SinkError>;

    /// Closes the datagram open for `peer`: later frames need another preamble.
    fn seal(&mut self, peer: PeerId);

    /// Sends a datagram to the address of an unknown peer, best effort, and keeps no state.
    fn reply(&mut self, to: SocketAddr, datagram: &[u8]);

    /// Makes a peer of an address that the cookie has proved. `None`: the device has no room.
    fn accept_peer(&mut self, address: SocketAddr) -> Option<PeerId>;

    /// The host or user that a peer belongs to.
    fn origin(&self, peer: PeerId) -> Origin;

    /// The address from which a peer sends. `None`: it has none, and the kernel knows who sends.
    fn address(&self, peer: PeerId) -> Option<SocketAddr>;

    /// `peer` accepts no datagram larger than this, in bytes. The device does not know this limit;
    /// the protocol has it from the peer.
    fn limit_datagram(&mut self, peer: PeerId, bytes: usize);

    /// The largest datagram on the path to `peer`, in bytes.
    fn max_datagram(&self, peer: PeerId) -> usize;
}

/// [`FrameSink::push`] for all frames but whole requests and responses: they share one copy of the
/// code.
#[inline(never)]
pub(crate) fn push_rare<S: FrameSink>(
    sink: &mut S,
    peer: PeerId,
    preamble: &[u8; 8],
    head: &[u8],
    body: &[u8],
    tail: &[u8],
) -> Result<(), SinkError> {
    sink.push(peer, preamble, head, body, tail)
}

/// The largest datagram for `peer`, in bytes: what the path carries, and what one frame can fill.
pub(crate) fn datagram_width<S: FrameSink>(sink: &S, peer: PeerId) -> usize {
    sink.max_datagram(peer).min(MAX_DATAGRAM)
}
