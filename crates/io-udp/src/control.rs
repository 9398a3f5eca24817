//! The rest of a UDP device beside its two halves: peers by address, events, sleeping.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use starling_io::{
    Capabilities, DeviceReport, EventfdWaker, Fault, HostPort, IoError, IoEvent, PeerGone, PeerId,
    ReactorSet, ReactorWait, Wake,
};

use crate::config::UdpConfig;
use crate::connected::ConnectedSocket;
use crate::open::new_socket;
use crate::rx::{Advice, UdpRx};
use crate::shared::{Directory, Shared};
use crate::sys::addr::RawAddr;
use crate::sys::socket::{self, Failure};
use crate::tx::UdpTx;

/// The most entries of the socket's error queue that one [`UdpControl::poll_event`] reads.
const ERRORS_PER_POLL: usize = 16;

/// A [`UdpIo`](crate::UdpIo) without its halves. Its methods take the halves as arguments: always
/// those of the same device.
pub struct UdpControl {
    pub(crate) shared: Arc<Shared>,
    pub(crate) waker: Arc<EventfdWaker>,
    pub(crate) capabilities: Capabilities,
    pub(crate) local: SocketAddr,
    pub(crate) config: UdpConfig,
    pub(crate) reactor: ReactorSet,
}

impl UdpControl {
    /// The features and limits of the device.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// The peers by address.
    pub fn directory(&self) -> Directory {
        self.shared.directory.clone()
    }

    /// The network namespace of the socket, as the kernel's cookie (Linux 5.14).
    ///
    /// # Errors
    /// If the kernel has no such cookies.
    pub fn namespace(&self) -> io::Result<u64> {
        socket::namespace(self.shared.fd())
    }

    pub(crate) fn local_address(&self) -> String {
        format!("udp://{}", self.local)
    }

    /// As [`starling_io::PacketIo::waker`].
    pub fn waker(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.waker) as Arc<dyn Wake>
    }

    /// As [`starling_io::PacketIo::open_peer`].
    ///
    /// # Errors
    /// If the address is malformed or its name unknown; if nothing can be sent there.
    pub fn open_peer(&mut self, tx: &mut UdpTx, address: &str) -> Result<PeerId, IoError> {
        self.open_first(tx, &HostPort::parse("udp", address)?.resolve()?)
    }

    /// Opens the first of a name's addresses that the kernel has a route to. Whether anybody
    /// listens there shows only when the caller sends.
    fn open_first(&self, tx: &mut UdpTx, found: &[SocketAddr]) -> Result<PeerId, IoError> {
        let reachable =
            |found: &&SocketAddr| RawAddr::new(**found, self.shared.directory.family()).is_some();
        let mut first_error = None;
        for address in found.iter().filter(reachable) {
            match tx.add_peer(*address) {
                Ok(peer) => return Ok(peer),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        first_error.map_or_else(|| tx.add_peer(found[0]), Err)
    }

    /// As [`starling_io::PacketIo::close_peer`].
    pub fn close_peer(&mut self, rx: &mut UdpRx, tx: &mut UdpTx, peer: PeerId) {
        tx.remove_peer(peer);
        if rx
            .connected()
            .is_some_and(|connected| connected.peer == peer)
        {
            rx.set_connected(None);
        }
    }

    /// As [`starling_io::PacketIo::poll_event`].
    pub fn poll_event(&mut self, rx: &mut UdpRx, tx: &mut UdpTx) -> Option<IoEvent> {
        self.maintain_connected(rx, tx);
        if !self.shared.errors_waiting.load(Ordering::Relaxed) {
            return None;
        }
        for _ in 0..ERRORS_PER_POLL {
            let own = socket::take_error(self.shared.fd());
            let error = own.or_else(|nothing| match rx.connected() {
                Some(connected) => socket::take_error(connected.fd()),
                None => Err(nothing),
            });
            let Ok((address, failure)) = error else {
                self.shared.errors_waiting.store(false, Ordering::Relaxed);
                return None;
            };
            let Some(peer) = self.shared.directory.find_raw(&address) else {
                continue;
            };
            match failure {
                Failure::PortUnreachable => {
                    return Some(IoEvent::PeerGone(peer, PeerGone::Suspected));
                }
                Failure::TooLarge => {
                    tx.update_max_datagram(peer);
                }
                Failure::Other => {}
            }
        }
        None
    }

    /// As [`starling_io::PacketIo::report`].
    pub fn report(&self, rx: &UdpRx, tx: &UdpTx) -> DeviceReport {
        DeviceReport {
            mode: None,
            counts: vec![
                ("rx_socket", rx.received()),
                ("tx_socket", tx.sent()),
                ("tx_lost", tx.dropped()),
                ("rx_socket_dropped", rx.dropped()),
            ],
        }
    }

    /// As [`starling_io::PacketIo::wait`], and also until `other` is readable.
    ///
    /// # Errors
    /// If the system is out of memory.
    pub fn wait(
        &mut self,
        rx: &mut UdpRx,
        tx: &UdpTx,
        other: Option<BorrowedFd<'_>>,
        timeout: Option<Duration>,
    ) -> Result<(), IoError> {
        if rx.has_pending() {
            return Ok(());
        }
        let mut interest = PollFlags::IN;
        if tx.is_blocked() {
            interest |= PollFlags::OUT;
        }
        let timeout = timeout.map(|duration| Timespec {
            tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: duration.subsec_nanos().into(),
        });
        let connected = rx.connected().map_or(self.shared.fd(), ConnectedSocket::fd);
        // Without a connected socket the main socket is in the list twice, which is harmless.
        let count = if other.is_some() { 4 } else { 3 };
        let other = other.unwrap_or(self.waker.as_fd());
        let mut fds = [
            PollFd::from_borrowed_fd(self.shared.fd(), interest),
            PollFd::from_borrowed_fd(connected, interest),
            PollFd::from_borrowed_fd(self.waker.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(other, PollFlags::IN),
        ];
        let result = if self.waker.begin_sleep() {
            poll(&mut fds[..count], timeout.as_ref())
        } else {
            Ok(0)
        };
        self.waker.end_sleep();
        let [own, connected, waker] = [&fds[0], &fds[1], &fds[2]].map(PollFd::revents);
        if (own | connected).contains(PollFlags::ERR) {
            self.shared.errors_waiting.store(true, Ordering::Relaxed);
        }
        if own.contains(PollFlags::IN) {
            rx.poll_main_socket();
        }
        if !waker.is_empty() {
            self.waker.drain();
        }
        match result {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(IoError::from_os(
                Fault::Host,
                format!("wait on {}", self.local_address()),
                error.into(),
                "free some memory of this host",
            )),
        }
    }

    /// As [`starling_io::PacketIo::descriptor`].
    pub fn descriptor(&mut self) -> Option<OwnedFd> {
        self.reactor.descriptor().ok()
    }

    /// As [`starling_io::PacketIo::begin_wait`], and the reactor waits for `other`, too.
    pub fn begin_wait(
        &mut self,
        rx: &UdpRx,
        tx: &UdpTx,
        other: Option<BorrowedFd<'_>>,
    ) -> ReactorWait {
        if rx.has_pending() {
            return ReactorWait::Ready;
        }
        if tx.is_blocked() {
            return ReactorWait::Unsupported;
        }
        let waits = match self.waker.begin_sleep() {
            true => self.arm(rx, other),
            false => ReactorWait::Ready,
        };
        if waits != ReactorWait::Begun {
            self.waker.end_sleep();
        }
        waits
    }

    fn arm(&self, rx: &UdpRx, other: Option<BorrowedFd<'_>>) -> ReactorWait {
        let connected = rx.connected().map(ConnectedSocket::fd);
        let own = [self.shared.fd(), self.waker.as_fd()];
        match (self.reactor).arm(own.into_iter().chain(connected).chain(other)) {
            Ok(()) => ReactorWait::Begun,
            Err(_) => ReactorWait::Unsupported,
        }
    }

    /// As [`starling_io::PacketIo::end_wait`].
    pub fn end_wait(&mut self, rx: &mut UdpRx) {
        self.waker.end_sleep();
        self.waker.drain();
        // The reactor does not say which file was readable.
        self.shared.errors_waiting.store(true, Ordering::Relaxed);
        rx.poll_main_socket();
    }

    /// Opens or closes the connected socket if recent traffic suggests it.
    #[inline]
    fn maintain_connected(&mut self, rx: &mut UdpRx, tx: &mut UdpTx) {
        if let Some(advice) = rx.advice() {
            self.apply(rx, tx, advice);
        }
    }

    #[cold]
    fn apply(&mut self, rx: &mut UdpRx, tx: &mut UdpTx, advice: Advice) {
        let connected = match advice {
            Advice::Open(peer) => self.open_connected(tx, peer).map(Arc::new),
            Advice::Close => None,
        };
        tx.set_connected(connected.clone());
        rx.set_connected(connected);
    }

    /// `None` where the kernel or the configuration does not allow it.
    fn open_connected(&self, tx: &UdpTx, peer: PeerId) -> Option<ConnectedSocket> {
        // On a shared port, one more socket would change which socket receives from which sender.
        if self.config.reuse_port {
            return None;
        }
        let address = tx.address_of(peer)?;
        let socket = new_socket(self.local, &self.config).ok()?;
        if self.config.gro && self.shared.wants_control.load(Ordering::Relaxed) {
            let _ = socket::set_int(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1);
        }
        ConnectedSocket::new(socket, &self.shared.socket, self.local, peer, &address).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::UdpIo;

    #[test]
    fn the_first_address_of_a_name_that_has_a_route_is_opened() {
        let device = UdpIo::bind("udp://127.0.0.1:0", UdpConfig::default()).expect("loopback");
        let (_, mut tx, control) = device.into_parts();
        let mut open = |found: &[&str]| {
            let parsed = |text: &&str| text.parse().expect("an address");
            let found: Vec<SocketAddr> = found.iter().map(parsed).collect();
            let peer = control.open_first(&mut tx, &found)?;
            let address = tx.address_of(peer).expect("a peer");
            Ok::<_, IoError>(address.to_std().to_string())
        };
        // No route from an IPv4 socket, none from loopback, and then one.
        let found = ["[::1]:7", "192.0.2.1:7", "127.0.0.1:7", "127.0.0.1:8"];
        assert_eq!(open(&found).expect("the third"), "127.0.0.1:7");
        let error = open(&found[..2]).expect_err("neither");
        assert!(error.to_string().contains("192.0.2.1:7"), "{error}");
        let error = open(&found[..1]).expect_err("not from this socket");
        assert!(error.to_string().contains("udp://[::]:0"), "{error}");
    }
}
