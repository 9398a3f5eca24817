//! The sending half of a simulated device as the protocol's frame sink, with a hook on its frames.

use std::net::SocketAddr;

use starling_io::{PacketTx, TxError};
use starling_proto::{FrameSink, Origin, PeerId, SinkError};

use super::SimTx;

/// The parts of a frame, in order: the datagram's preamble, then the frame's own parts.
pub(crate) type FrameParts<'a> = [&'a [u8]; 4];

/// A hook on every frame that a protocol sends.
pub(crate) trait FrameHook {
    /// Called before a frame is sent. `Some`: the frame is not sent, and this is the result.
    fn before(&mut self, peer: PeerId, parts: FrameParts<'_>) -> Option<Result<(), SinkError>>;

    /// The frame with this head was sent.
    fn sent(&mut self, peer: PeerId, head: &[u8]) {
        let _ = (peer, head);
    }
}

pub(crate) struct SimSink<'a, H> {
    pub(crate) tx: &'a mut SimTx,
    pub(crate) hook: H,
}

impl<H: FrameHook> FrameSink for SimSink<'_, H> {
    fn push(
        &mut self,
        peer: PeerId,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), SinkError> {
        if let Some(result) = self.hook.before(peer, [preamble, head, body, tail]) {
            return result;
        }
        self.tx
            .append(starling_io::PeerId(peer.0), preamble, head, body, tail)
            .map_err(|error| match error {
                TxError::Full => SinkError::Full,
                TxError::Gone => SinkError::Gone,
            })?;
        self.hook.sent(peer, head);
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

    fn origin(&self, peer: PeerId) -> Origin {
        Origin(self.tx.origin(starling_io::PeerId(peer.0)).0)
    }

    fn address(&self, peer: PeerId) -> Option<SocketAddr> {
        self.tx.address(starling_io::PeerId(peer.0))
    }

    fn limit_datagram(&mut self, peer: PeerId, bytes: usize) {
        self.tx.limit_datagram(starling_io::PeerId(peer.0), bytes);
    }

    fn max_datagram(&self, peer: PeerId) -> usize {
        self.tx.max_datagram(starling_io::PeerId(peer.0))
    }
}
