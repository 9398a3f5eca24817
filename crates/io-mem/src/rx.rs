//! The receiving half.

use std::sync::Arc;

use starling_io::{Datagram as Received, Ecn, IoError, MAX_BURST, PacketRx, PeerId, Source};

use crate::peers::SharedPeers;
use crate::port::{Datagram, Port};

/// The receiving half of a [`MemIo`](crate::MemIo).
pub struct MemRx {
    port: Arc<Port>,
    peers: SharedPeers,
    burst: Vec<Datagram>,
    /// The peers that sent the burst.
    sources: Vec<PeerId>,
    pub(crate) received: u64,
}

impl MemRx {
    pub(crate) fn new(port: &Arc<Port>, peers: &SharedPeers) -> Self {
        Self {
            port: Arc::clone(port),
            peers: peers.clone(),
            burst: Vec::with_capacity(MAX_BURST),
            sources: Vec::with_capacity(MAX_BURST),
            received: 0,
        }
    }
}

impl PacketRx for MemRx {
    fn rx_burst(&mut self) -> Result<usize, IoError> {
        if !self.burst.is_empty() {
            let mut peers = self.peers.lock();
            for Datagram { bytes, room, .. } in self.burst.drain(..) {
                drop(room);
                peers.recycle(bytes);
            }
        }
        self.sources.clear();
        self.port.receive(&mut self.burst, MAX_BURST);
        if !self.burst.is_empty() {
            let mut peers = self.peers.lock();
            let of_port = |datagram: &Datagram| peers.of_port(&self.port, &datagram.from);
            self.sources.extend(self.burst.iter().map(of_port));
            self.received += self.burst.len() as u64;
        }
        Ok(self.burst.len())
    }

    fn datagram(&self, index: usize) -> Received<'_> {
        Received {
            source: Source::Peer(self.sources[index]),
            ecn: Ecn::NotCapable,
            bytes: &self.burst[index].bytes,
        }
    }
}
