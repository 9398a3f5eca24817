//! The device: both halves, and everything that is not on the path of a datagram.

mod config;
mod open;
mod workers;

use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use starling_io::{
    Capabilities, DeviceReport, Fault, IoError, IoEvent, MatchTable, MessageMemory, PacketIo,
    PacketTx, PeerId, ReactorWait, Steered, Wake,
};
use starling_io_udp::UdpControl;

use crate::address::XdpAddress;
use crate::drops::{ByKernel, Drops};
use crate::neighbour::check_route;
use crate::rx::XdpRx;
use crate::shared::Shared;
use crate::socket::Mode;
use crate::tx::XdpTx;

pub use config::XdpConfig;

/// How long to sleep at most while frames wait for the kernel to have room.
const RETRY: Duration = Duration::from_millis(1);

/// One queue of an interface as a device for packet I/O.
///
/// A dropped device gives its port back at once. It gives its queue back when the last of its
/// workers ([`PacketIo::steer`]) has ended: while a worker is busy, no other device can have the
/// queue.
///
/// A device fails for good, with an error that names the reason, when its interface is removed,
/// gets another hardware address or a lower MTU: sessions may be in the middle of messages with
/// fragments of the old size. A new device takes the interface as it is then. A device does not use
/// a higher MTU.
pub struct XdpIo {
    rx: XdpRx,
    tx: XdpTx,
    shared: Arc<Shared>,
    control: UdpControl,
    capabilities: Capabilities,
    address: XdpAddress,
    /// Workers have sockets of their own.
    is_steered: bool,
}

impl XdpIo {
    /// How packets get to the network card: the mode in the address, or the best that works.
    pub fn mode(&self) -> Mode {
        self.shared.socket.mode
    }

    /// The address that the device receives at.
    pub fn local_socket_address(&self) -> SocketAddr {
        self.shared.local
    }

    #[cfg(test)]
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn halves(&mut self) -> (&mut XdpRx, &mut XdpTx) {
        (&mut self.rx, &mut self.tx)
    }

    /// The datagrams that the device has dropped so far.
    pub fn drops(&self) -> Drops {
        self.drops_with(self.by_kernel())
    }

    fn drops_with(&self, by_kernel: ByKernel) -> Drops {
        let mut drops = self.rx.counts.drops();
        by_kernel.add_to(&mut drops, self.mode() == Mode::ZeroCopy);
        drops
    }

    /// The kernel's counts of all sockets of the device.
    fn by_kernel(&self) -> ByKernel {
        ByKernel::of(&self.shared.socket.fd).and(self.rx.of_workers())
    }
}

impl fmt::Debug for XdpIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XdpIo")
            .field("address", &self.address.to_string())
            .field("mode", &self.mode())
            .field("max_datagram", &self.shared.largest)
            .field("drops", &self.drops())
            .finish_non_exhaustive()
    }
}

impl PacketIo for XdpIo {
    type Rx = XdpRx;
    type Tx = XdpTx;

    #[inline]
    fn split(&mut self) -> (&mut XdpRx, &mut XdpTx) {
        (&mut self.rx, &mut self.tx)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn local_address(&self) -> String {
        self.address.without_options().to_string()
    }

    fn open_peer(&mut self, address: &str) -> Result<PeerId, IoError> {
        let parsed = XdpAddress::parse(address)?;
        let attempt = || format!("reach {address} from {}", self.address);
        if parsed.interface() != self.shared.interface {
            return Err(IoError::new(
                Fault::Caller,
                attempt(),
                "it is reached by another interface",
                "use an endpoint on that interface",
            ));
        }
        let found = parsed.host().resolve()?;
        let is_v4 = self.shared.local.is_ipv4();
        let choice = found.iter().find(|found| found.is_ipv4() == is_v4);
        let Some(&remote) = choice else {
            return Err(IoError::new(
                Fault::Caller,
                attempt(),
                "it has the other IP version",
                "use an endpoint of that version: a device has one address",
            ));
        };
        let source = Some(self.shared.local.ip());
        let route = self
            .tx
            .netlink
            .route(remote.ip(), source, self.shared.index);
        check_route(route, self.shared.index).map_err(|problem| no_route(attempt(), problem))?;
        let remote = match remote {
            SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => {
                scoped(remote.ip(), remote.port(), self.shared.index)
            }
            _ => remote,
        };
        let id = self
            .control
            .open_peer(&mut self.tx.udp, &format!("udp://{remote}"))?;
        self.tx.add_peer(id, remote, true);
        Ok(id)
    }

    fn close_peer(&mut self, peer: PeerId) {
        self.tx.remove_peer(peer);
        self.control
            .close_peer(&mut self.rx.udp, &mut self.tx.udp, peer);
    }

    #[inline]
    fn max_datagram(&self, peer: PeerId) -> usize {
        self.tx.max_datagram(peer)
    }

    fn memory(&self) -> MessageMemory {
        match self.shared.socket.multi_buffer && self.shared.umem.layout.message_chunks > 0 {
            true => MessageMemory::of_device(Arc::new(self.tx.messages().clone())),
            false => MessageMemory::default(),
        }
    }

    #[inline]
    fn poll_event(&mut self) -> Option<IoEvent> {
        self.control.poll_event(&mut self.rx.udp, &mut self.tx.udp)
    }

    /// # Errors
    /// If the interface was removed or changed, or the system is out of memory.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), IoError> {
        if self.rx.is_ready() {
            return Ok(());
        }
        let timeout = match self.tx.is_blocked() {
            true => Some(timeout.map_or(RETRY, |timeout| timeout.min(RETRY))),
            false => timeout,
        };
        let socket = self.shared.socket.fd.as_fd();
        self.control
            .wait(&mut self.rx.udp, &self.tx.udp, Some(socket), timeout)?;
        self.rx.poll_socket_soon();
        self.shared.check()
    }

    fn descriptor(&mut self) -> Option<OwnedFd> {
        self.control.descriptor()
    }

    fn begin_wait(&mut self) -> Result<ReactorWait, IoError> {
        if self.rx.is_ready() {
            return Ok(ReactorWait::Ready);
        }
        if self.tx.is_blocked() {
            return Ok(ReactorWait::Unsupported);
        }
        let socket = self.shared.socket.fd.as_fd();
        let (rx, tx) = (&self.rx.udp, &self.tx.udp);
        Ok(self.control.begin_wait(rx, tx, Some(socket)))
    }

    /// # Errors
    /// If the interface was removed or changed.
    fn end_wait(&mut self) -> Result<(), IoError> {
        self.control.end_wait(&mut self.rx.udp);
        self.rx.poll_socket_soon();
        self.shared.check()
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.control.waker()
    }

    fn report(&self) -> DeviceReport {
        let by_kernel = self.by_kernel();
        let by_socket = self.control.report(&self.rx.udp, &self.tx.udp);
        let mut counts = vec![
            ("tx_ring", self.tx.sent),
            ("tx_gathered", self.tx.sent_gathered),
        ];
        counts.extend(self.rx.report());
        counts.extend(by_socket.counts);
        counts.extend(self.drops_with(by_kernel).counts());
        counts.push(("rx_invalid_descs", by_kernel.rx_invalid));
        counts.push(("tx_invalid_descs", by_kernel.tx_invalid));
        DeviceReport {
            mode: Some(self.mode().name()),
            counts,
        }
    }

    /// Datagrams that match `table` and fit a chunk go to the workers' own sockets on this queue.
    ///
    /// # Errors
    /// If there are no workers or more than 63, or `depth` is not 1 to 8; if sockets cannot be
    /// made; if the device has workers already.
    fn steer(&mut self, workers: usize, depth: u8, table: &MatchTable) -> Result<Steered, IoError> {
        self.make_workers(workers, depth, table)
    }
}

impl Drop for XdpIo {
    /// Gives the port back to the kernel. Busy workers keep the queue until they have sent their
    /// answers. No other device can have it before that.
    fn drop(&mut self) {
        // The kernel removes the sockets from the program's map when they are closed.
        let _ = self.shared.program.leave(self.shared.queue);
    }
}

/// A socket address, with the interface if the IP address is ambiguous without it.
fn scoped(ip: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddrV6::new(v6, port, 0, interface).into()
        }
        ip => SocketAddr::new(ip, port),
    }
}

fn no_route(attempt: String, problem: String) -> IoError {
    let remedy = "check the address and the routes of this host, or use udp:// (or shm:// within \
                  this host)";
    IoError::new(Fault::Host, attempt, problem, remedy)
}
