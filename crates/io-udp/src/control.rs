//! What a UDP device has beside its halves: peers by address, events, sleep.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use starling_io::{Capabilities, DeviceReport, Fault, IoError, IoEvent, PeerGone, PeerId, Wake};

use crate::address::UdpAddress;
use crate::device::{UdpConfig, new_socket};
use crate::lane::Lane;
use crate::rx::{Advice, UdpRx};
use crate::shared::{Directory, Shared};
use crate::sys::addr::RawAddr;
use crate::sys::socket::{self, Failure};
use crate::tx::UdpTx;
use crate::wake::Waker;

/// The most entries of the socket's error queue that one [`UdpControl::poll_event`] looks at.
const ERRORS_PER_POLL: usize = 16;

/// A [`UdpIo`](crate::UdpIo) without its halves, which its methods are given: always those that
/// it was made with.
pub struct UdpControl {
    pub(crate) shared: Arc<Shared>,
    pub(crate) waker: Arc<Waker>,
    pub(crate) capabilities: Capabilities,
    pub(crate) local: SocketAddr,
    pub(crate) config: UdpConfig,
}

impl UdpControl {
    /// What the device can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Who is a peer.
    pub fn directory(&self) -> Directory {
        self.shared.directory.clone()
    }

    /// The network namespace of the socket, by the number that the kernel gives it (Linux 5.14).
    ///
    /// # Errors
    /// If the kernel has no such numbers.
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
        self.open_first(tx, &UdpAddress::parse(address)?.resolve()?)
    }

    /// The first of a name's addresses that the kernel knows a way to. Whether somebody listens
    /// there is seen by who sends.
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
        if rx.lane().is_some_and(|lane| lane.peer == peer) {
            rx.set_lane(None);
        }
    }

    /// As [`starling_io::PacketIo::poll_event`].
    pub fn poll_event(&mut self, rx: &mut UdpRx, tx: &mut UdpTx) -> Option<IoEvent> {
        self.tend_lane(rx, tx);
        if !self.shared.errors_waiting.load(Ordering::Relaxed) {
            return None;
        }
        for _ in 0..ERRORS_PER_POLL {
            let own = socket::take_error(self.shared.fd());
            let error = own.or_else(|nothing| match rx.lane() {
                Some(lane) => socket::take_error(lane.fd()),
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
                    tx.remeasure(peer);
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
        if rx.has_leftovers() {
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
        let lane = rx.lane().map_or(self.shared.fd(), Lane::fd);
        // Without a lane the device's own socket stands there twice, which is harmless.
        let count = if other.is_some() { 4 } else { 3 };
        let other = other.unwrap_or(self.waker.as_fd());
        let mut fds = [
            PollFd::from_borrowed_fd(self.shared.fd(), interest),
            PollFd::from_borrowed_fd(lane, interest),
            PollFd::from_borrowed_fd(self.waker.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(other, PollFlags::IN),
        ];
        let result = if self.waker.begin_sleep() {
            poll(&mut fds[..count], timeout.as_ref())
        } else {
            Ok(0)
        };
        self.waker.end_sleep();
        let [own, lane, waker] = [&fds[0], &fds[1], &fds[2]].map(PollFd::revents);
        if (own | lane).contains(PollFlags::ERR) {
            self.shared.errors_waiting.store(true, Ordering::Relaxed);
        }
        if own.contains(PollFlags::IN) {
            rx.ask_others();
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

    /// Opens or gives up a lane, if the traffic of late asks for it.
    #[inline]
    fn tend_lane(&mut self, rx: &mut UdpRx, tx: &mut UdpTx) {
        if let Some(advice) = rx.advice() {
            self.follow(rx, tx, advice);
        }
    }

    #[cold]
    fn follow(&mut self, rx: &mut UdpRx, tx: &mut UdpTx, advice: Advice) {
        let lane = match advice {
            Advice::Open(peer) => self.open_lane(tx, peer).map(Arc::new),
            Advice::Close => None,
        };
        tx.set_lane(lane.clone());
        rx.set_lane(lane);
    }

    /// `None` where the kernel or the configuration has something against it.
    fn open_lane(&self, tx: &UdpTx, peer: PeerId) -> Option<Lane> {
        // With the port shared already, a socket more would change who hears which sender.
        if self.config.reuse_port {
            return None;
        }
        let address = tx.address_of(peer)?;
        let socket = new_socket(self.local, &self.config).ok()?;
        if self.config.gro && self.shared.wants_control.load(Ordering::Relaxed) {
            let _ = socket::set_int(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1);
        }
        Lane::new(socket, &self.shared.socket, self.local, peer, &address).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::UdpIo;

    #[test]
    fn of_a_names_addresses_the_first_with_a_way_is_taken() {
        let device = UdpIo::bind("udp://127.0.0.1:0", UdpConfig::default()).expect("loopback");
        let (_, mut tx, control) = device.into_parts();
        let mut open = |found: &[&str]| {
            let parsed = |text: &&str| text.parse().expect("an address");
            let found: Vec<SocketAddr> = found.iter().map(parsed).collect();
            let peer = control.open_first(&mut tx, &found)?;
            let address = tx.address_of(peer).expect("a peer");
            Ok::<_, IoError>(address.to_std().to_string())
        };
        // Not from an IPv4 socket, not from loopback, and at last one.
        let found = ["[::1]:7", "192.0.2.1:7", "127.0.0.1:7", "127.0.0.1:8"];
        assert_eq!(open(&found).expect("the third"), "127.0.0.1:7");
        let error = open(&found[..2]).expect_err("neither");
        assert!(error.to_string().contains("192.0.2.1:7"), "{error}");
        let error = open(&found[..1]).expect_err("not from this socket");
        assert!(error.to_string().contains("udp://[::]:0"), "{error}");
    }
}
