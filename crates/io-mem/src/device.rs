//! The device: opening, events, sleeping.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use starling_io::{
    Capabilities, DeviceReport, Fault, IoError, IoEvent, PacketIo, PeerGone, PeerId, Wake,
};

use crate::peers::SharedPeers;
use crate::port::Port;
use crate::{LINK_BYTES, MAX_DATAGRAM, MemRx, MemTx};

/// Devices of one process that reach another at once, for the size of its receive queue: each has room of
/// its own.
const LINKS: usize = 1 << 16;
/// The size of a small datagram, for the same.
const MIN_DATAGRAM: usize = 64;
/// The longest name, in bytes.
const MAX_NAME: usize = 80;

/// A device that reaches the other devices of its process.
pub struct MemIo {
    port: Arc<Port>,
    capabilities: Capabilities,
    peers: SharedPeers,
    rx: MemRx,
    tx: MemTx,
    /// [`Port::closings`] when the device last looked for peers that are gone.
    closings_seen: u64,
    events: VecDeque<IoEvent>,
}

/// The name in an address.
///
/// # Errors
/// With [`Fault::Caller`]: what is wrong, and what to write.
pub(crate) fn name_in(address: &str) -> Result<&str, IoError> {
    let malformed = |problem: &str| {
        IoError::new(
            Fault::Caller,
            format!("parse {address:?}"),
            problem,
            "write mem://name, with a name of 1 to 80 letters, digits, dots, dashes and underscores",
        )
    };
    let name = address.strip_prefix("mem://");
    let name = name.ok_or_else(|| malformed("its scheme is not mem"))?;
    let is_known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if name.is_empty() {
        return Err(malformed("the name is empty"));
    }
    if name.len() > MAX_NAME {
        return Err(malformed("the name is too long"));
    }
    if !name.chars().all(is_known) {
        return Err(malformed("the name has a character that is not allowed"));
    }
    Ok(name)
}

impl MemIo {
    /// A device that the other devices of this process reach at `address`.
    ///
    /// # Errors
    /// If the address is malformed, or another device of this process has it.
    pub fn bind(address: &str) -> Result<Self, IoError> {
        let name = name_in(address)?;
        let port = Port::open(Some(name.to_owned())).ok_or_else(|| {
            IoError::new(
                Fault::Host,
                format!("bind {address}"),
                "a server of this process has that name",
                "choose another name, or stop that server first",
            )
        })?;
        Ok(Self::on(port))
    }

    /// A device that only reaches others.
    pub fn client() -> Self {
        Self::on(Port::open(None).expect("a port without a name is always free"))
    }

    fn on(port: Arc<Port>) -> Self {
        let peers = SharedPeers::default();
        Self {
            capabilities: Capabilities {
                scheme: "mem",
                reliable: true,
                ecn: false,
                rx_queue_bytes: LINK_BYTES * LINKS,
                rx_queue_datagrams: LINK_BYTES / MIN_DATAGRAM * LINKS,
                max_datagram: MAX_DATAGRAM,
            },
            rx: MemRx::new(&port, &peers),
            tx: MemTx::new(&port, &peers),
            closings_seen: Port::closings(),
            events: VecDeque::new(),
            peers,
            port,
        }
    }

    /// Finds peers whose devices are closed.
    #[cold]
    fn find_gone(&mut self) {
        for (index, peer) in &mut self.peers.lock().slab {
            if !peer.is_reported_gone && peer.port.is_closed() {
                peer.is_reported_gone = true;
                let peer = PeerId(index as u32);
                self.events
                    .push_back(IoEvent::PeerGone(peer, PeerGone::Certain));
            }
        }
    }
}

impl Drop for MemIo {
    fn drop(&mut self) {
        self.port.close();
    }
}

impl PacketIo for MemIo {
    type Rx = MemRx;
    type Tx = MemTx;

    fn split(&mut self) -> (&mut MemRx, &mut MemTx) {
        (&mut self.rx, &mut self.tx)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_address(&self) -> String {
        match &self.port.name {
            Some(name) => format!("mem://{name}"),
            None => format!("mem://client-{}", self.port.id),
        }
    }

    fn open_peer(&mut self, address: &str) -> Result<PeerId, IoError> {
        let name = name_in(address)?;
        let port = Port::named(name).ok_or_else(|| {
            IoError::new(
                Fault::Peer,
                format!("connect to {address}"),
                "no server of this process has that name",
                "start the server first; for one of another process, use shm://name",
            )
        })?;
        Ok(self.peers.lock().of_port(&self.port, &port))
    }

    fn close_peer(&mut self, peer: PeerId) {
        self.peers.lock().remove(peer);
    }

    fn max_datagram(&self, _peer: PeerId) -> usize {
        MAX_DATAGRAM
    }

    fn poll_event(&mut self) -> Option<IoEvent> {
        let closings = Port::closings();
        if closings != self.closings_seen {
            self.closings_seen = closings;
            self.find_gone();
        }
        self.events.pop_front()
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), IoError> {
        if self.closings_seen == Port::closings() {
            self.port.wait(timeout);
        }
        Ok(())
    }

    fn waker(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.port) as Arc<dyn Wake>
    }

    fn report(&self) -> DeviceReport {
        DeviceReport {
            counts: vec![("rx_queue", self.rx.received), ("tx_queue", self.tx.sent)],
            ..DeviceReport::default()
        }
    }
}
