//! The frame sink of a simulated host: the device's sending half, as an endpoint would wrap it.

use std::collections::HashSet;
use std::net::SocketAddr;

use starling_io::{PacketTx, TxError};
use starling_proto::{FrameSink, PeerId, SinkError};

use crate::io::SimTx;
use crate::rng::mix;

/// Digests of the frames that a planted bug has let pass once.
pub(super) type Sent = HashSet<u64>;

pub(super) struct Sink<'a> {
    tx: &'a mut SimTx,
    /// Throws away whatever a client sends for the second time.
    lose_repeated: Option<&'a mut Sent>,
}

impl<'a> Sink<'a> {
    pub(super) fn new(tx: &'a mut SimTx, lose_repeated: Option<&'a mut Sent>) -> Self {
        Self { tx, lose_repeated }
    }
}

impl FrameSink for Sink<'_> {
    fn push(
        &mut self,
        peer: PeerId,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), SinkError> {
        if let Some(sent) = &mut self.lose_repeated {
            // Without the first byte's flags, which may differ from copy to copy.
            let mut digest = u64::from(head[0] & 0x1f) ^ u64::from(peer.0) << 32;
            for byte in preamble.iter().chain(&head[1..]).chain(body).chain(tail) {
                digest = mix(digest.wrapping_add(u64::from(*byte) + 1));
            }
            if is_request(head) && !sent.insert(digest) {
                return Ok(());
            }
        }
        self.tx
            .append(starling_io::PeerId(peer.0), preamble, head, body, tail)
            .map_err(|error| match error {
                TxError::Full => SinkError::Full,
                TxError::Gone => SinkError::Gone,
            })
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

/// A frame that carries a request or a part of one.
fn is_request(head: &[u8]) -> bool {
    matches!(head[0] & 0x1f, 1 | 3)
}
