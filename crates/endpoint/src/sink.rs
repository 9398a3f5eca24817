//! Where the protocol's frames go: into the device's datagrams.

use std::net::SocketAddr;

use starling_io::{PacketTx, TxError};
use starling_proto::{FrameSink, Origin, PeerId, SinkError};

use crate::convert::{io_peer, proto_peer};

/// A device's sending half as the session protocol sees it.
pub(crate) struct Sink<'a, T: PacketTx>(pub(crate) &'a mut T);

impl<T: PacketTx> FrameSink for Sink<'_, T> {
    // The protocol pushes in its two hottest places, and each is worth its own copy.
    #[inline(always)]
    fn push(
        &mut self,
        peer: PeerId,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), SinkError> {
        self.0
            .append(io_peer(peer), preamble, head, body, tail)
            .map_err(|error| match error {
                TxError::Full => SinkError::Full,
                TxError::Gone => SinkError::Gone,
            })
    }

    #[inline]
    fn seal(&mut self, peer: PeerId) {
        self.0.seal(io_peer(peer));
    }

    fn reply(&mut self, to: SocketAddr, datagram: &[u8]) {
        self.0.send_to_unknown(to, datagram);
    }

    fn accept_peer(&mut self, address: SocketAddr) -> Option<PeerId> {
        // The protocol counts peers that it could not accept; such a peer tries again.
        self.0.accept_peer(address).ok().map(proto_peer)
    }

    fn origin(&self, peer: PeerId) -> Origin {
        Origin(self.0.origin(io_peer(peer)).0)
    }

    fn address(&self, peer: PeerId) -> Option<SocketAddr> {
        self.0.address(io_peer(peer))
    }

    fn limit_datagram(&mut self, peer: PeerId, bytes: usize) {
        self.0.limit_datagram(io_peer(peer), bytes);
    }

    #[inline]
    fn max_datagram(&self, peer: PeerId) -> usize {
        self.0.max_datagram(io_peer(peer))
    }
}
