//! Where frames go: the seam between the protocol and whoever puts frames into datagrams.

use std::net::SocketAddr;

use crate::PeerId;
use crate::wire::MAX_DATAGRAM;

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SinkError {
    /// No room now; the protocol offers the frame again at a later [`crate::Protocol::flush`].
    Full,
    /// The peer cannot be reached any more.
    Gone,
}

/// Takes frames and bundles them into datagrams.
pub trait FrameSink {
    /// Appends one frame, `head` then `body` then `tail`, to the datagram open for `peer`, or to
    /// a new one that starts with `preamble`. Keeps no reference to the parts, but to memory of the
    /// device's own that nobody writes to.
    fn push(
        &mut self,
        peer: PeerId,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), SinkError>;

    /// Closes the datagram open for `peer`: later frames belong under another preamble.
    fn seal(&mut self, peer: PeerId);

    /// Sends a datagram to an address that is no peer, best effort, keeping nothing.
    fn reply(&mut self, to: SocketAddr, datagram: &[u8]);

    /// Makes a peer of an address that has proved to be its own. `None` if there is no room.
    fn accept_peer(&mut self, address: SocketAddr) -> Option<PeerId>;

    /// `peer` takes no datagram larger than this, in bytes. What it does not say to the device it says
    /// to the protocol.
    fn limit_datagram(&mut self, peer: PeerId, bytes: usize);

    /// The largest datagram on the path to `peer`, in bytes.
    fn max_datagram(&self, peer: PeerId) -> usize;
}

/// [`FrameSink::push`] for all frames but whole requests and responses: one copy of it serves
/// them all.
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

/// The largest datagram for `peer`, in bytes: what the path carries, as far as a frame can fill it.
pub(crate) fn datagram_width<S: FrameSink>(sink: &S, peer: PeerId) -> usize {
    sink.max_datagram(peer).min(MAX_DATAGRAM)
}
