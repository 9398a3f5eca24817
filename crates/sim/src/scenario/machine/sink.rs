//! The frame sink of a simulated process.

use std::net::SocketAddr;

use starling_io::{PacketTx, TxError};
use starling_proto::{FrameSink, PeerId, SinkError};

use crate::io::SimTx;
use crate::scenario::capture::Capture;

/// The device's sending half as the protocol's sink, with the capture on it.
pub(super) struct CapturingSink<'a> {
    pub(super) now_ns: u64,
    pub(super) tx: &'a mut SimTx,
    pub(super) capture: Option<&'a mut Capture>,
}

impl FrameSink for CapturingSink<'_> {
    fn push(
        &mut self,
        peer: PeerId,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), SinkError> {
        let peer_io = starling_io::PeerId(peer.0);
        let now_ns = self.now_ns;
        if self
            .capture
            .as_mut()
            .is_some_and(|it| it.holds(now_ns, peer.0))
        {
            return Err(SinkError::Full);
        }
        self.tx
            .append(peer_io, preamble, head, body, tail)
            .map_err(|error| match error {
                TxError::Full => SinkError::Full,
                TxError::Gone => SinkError::Gone,
            })?;
        if let Some(capture) = &mut self.capture {
            capture.sent(self.now_ns, peer.0, head);
        }
        Ok(())
    }

    fn seal(&mut self, peer: PeerId) {
        self.tx.seal(starling_io::PeerId(peer.0));
    }

    fn reply(&mut self, to: SocketAddr, datagram: &[u8]) {
        self.tx.send_to_unknown(to, datagram);
    }

    fn accept_peer(&mut self, address: SocketAddr) -> Option<PeerId> {
        self.tx.accept_peer(address).ok().map(|peer| PeerId(peer.0))
    }

    fn limit_datagram(&mut self, peer: PeerId, bytes: usize) {
        self.tx.limit_datagram(starling_io::PeerId(peer.0), bytes);
    }

    fn max_datagram(&self, peer: PeerId) -> usize {
        self.tx.max_datagram(starling_io::PeerId(peer.0))
    }
}
