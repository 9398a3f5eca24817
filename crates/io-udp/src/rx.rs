//! The receiving half: which system call to receive with, and the sender of each datagram.
//!
//! A lightly loaded server and every waiting client receive one datagram at a time, and there the
//! system call's time is latency. Under load, each call must return many. So the last calls predict
//! the next:
//!
//! ```text
//!              nothing                          nothing, or one
//!             ┌───────┐                        ┌───────────────┐
//!             ▼       │   one, twice in a row  ▼               │
//!          single ────┴──────────────────▶ recvmmsg ───────────┘ (back to single)
//!                                              │ ▲
//!                                              └─┘ two or more
//! ```
//!
//! A *single* is `recvfrom` where possible. That call reports neither ECN bits nor the boundaries
//! between datagrams that GRO merged. Neither matters while all peers are on paths with an MTU of
//! 64 KiB, which are loopback: GRO is off there, and no switch marks. One single in
//! [`SAMPLE_EVERY`] is still taken by `recvmsg` for its ECN bits, because a queueing discipline on
//! loopback may mark. After a mark, all singles are for a while. As soon as a peer is behind a
//! smaller MTU, `recvmsg` takes every single and GRO is on, for good.
//!
//! Beside a [connected socket](crate::connected), all this applies to that socket, and the main
//! socket is polled now and then.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use starling_io::{Datagram, Ecn, Fault, IoError, MAX_BURST, PacketRx, PeerId, Source};

use crate::connected::{
    ConnectedSocket, DRAIN_BURSTS, INITIAL_RUN, MAIN_SOCKET_INTERVAL, OTHERS_LIMIT, OTHERS_WINDOW,
    RUN_GROWTH,
};
use crate::shared::{Directory, Shared};
use crate::sys::addr::RawAddr;
use crate::sys::recv::{Received, RecvBatch};
use crate::sys::socket;

/// On loopback, one single in so many is received with its ECN bits.
const SAMPLE_EVERY: u32 = 16;

/// On loopback, so many singles after a congestion mark are received with their ECN bits.
const AFTER_MARK: u32 = 1024;

/// The receiving half of a [`UdpIo`](crate::UdpIo).
pub struct UdpRx {
    shared: Arc<Shared>,
    directory: Directory,
    batch: RecvBatch,
    /// Slots of `batch` that the last call filled. Those from `next_slot` on are not delivered
    /// yet, the first of them from `next_start` on.
    filled: usize,
    next_slot: usize,
    next_start: usize,
    burst: [Location; MAX_BURST],
    burst_len: usize,
    ecn: bool,
    /// The last call found something.
    found: bool,
    /// The next call is `recvmmsg`.
    many: bool,
    /// Singles until the next one with ECN bits.
    until_sample: u32,
    /// Singles left that are all received with their ECN bits.
    after_mark: u32,
    /// The last lookup of a sender.
    last: Cell<SenderLookup>,
    /// Datagrams received so far.
    total: u64,
    /// Datagrams that the kernel dropped on connected sockets that are closed.
    dropped: u64,
    /// The length of a run from one peer that opens a connected socket.
    long_run: u64,
    connected: Option<Arc<ConnectedSocket>>,
    /// Bursts until the main socket is polled, beside a connected one.
    until_main_socket: u32,
    /// Datagrams from other peers beside the connected socket, and its bursts since that count
    /// started at zero.
    others: u32,
    connected_bursts: u32,
    /// A closing connected socket, and the most bursts still to be received from it.
    draining: Option<(Arc<ConnectedSocket>, u32)>,
}

/// A change that recent traffic suggests.
pub(crate) enum Advice {
    /// A connected socket for this peer.
    Open(PeerId),
    /// No connected socket.
    Close,
}

/// Where a datagram of the burst lies.
#[derive(Clone, Copy)]
struct Location {
    slot: u16,
    ecn: Ecn,
    start: u32,
    len: u32,
}

/// The directory's answer for `address` when it had `version`.
#[derive(Clone, Copy)]
struct SenderLookup {
    address: RawAddr,
    version: u32,
    peer: Option<PeerId>,
    /// Datagrams received before the first of this run.
    since: u64,
}

/// The system calls to receive with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReceiveCall {
    Recvfrom,
    Recvmsg,
    Recvmmsg,
}

impl UdpRx {
    pub(crate) fn new(shared: Arc<Shared>, ecn: bool) -> Self {
        let nowhere = Location {
            slot: 0,
            ecn: Ecn::NotCapable,
            start: 0,
            len: 0,
        };
        // No datagram comes from the zero address, so this entry never matches.
        let no_sender = SenderLookup {
            address: RawAddr::default(),
            version: 0,
            peer: None,
            since: 0,
        };
        Self {
            directory: shared.directory.clone(),
            shared,
            batch: RecvBatch::new(),
            filled: 0,
            next_slot: 0,
            next_start: 0,
            burst: [nowhere; MAX_BURST],
            burst_len: 0,
            ecn,
            found: false,
            many: false,
            until_sample: SAMPLE_EVERY,
            after_mark: 0,
            last: Cell::new(no_sender),
            total: 0,
            dropped: 0,
            long_run: INITIAL_RUN,
            connected: None,
            until_main_socket: 0,
            others: 0,
            connected_bursts: 0,
            draining: None,
        }
    }

    /// Whether a caller must receive again before it sleeps: datagrams are already in the slots, or
    /// may be in a closing connected socket, which no sleep polls.
    pub fn has_pending(&self) -> bool {
        self.next_slot < self.filled || self.draining.is_some()
    }

    /// Datagrams received so far.
    pub(crate) fn received(&self) -> u64 {
        self.total
    }

    /// Datagrams that the kernel has dropped at the sockets so far.
    pub(crate) fn dropped(&self) -> u64 {
        let connected = self
            .connected()
            .map_or(0, |connected| socket::dropped(connected.fd()));
        self.dropped + connected + socket::dropped(self.shared.fd())
    }

    #[inline]
    fn next_call(&self) -> ReceiveCall {
        if self.many {
            ReceiveCall::Recvmmsg
        } else if self.shared.wants_control.load(Ordering::Relaxed)
            || (self.ecn && (self.until_sample == 0 || self.after_mark > 0))
        {
            ReceiveCall::Recvmsg
        } else {
            ReceiveCall::Recvfrom
        }
    }

    /// Prepares the choice of the next call, after `call` received `received` datagrams.
    #[inline]
    fn predict(&mut self, call: ReceiveCall, received: usize) {
        let next_too = received == 1 && call != ReceiveCall::Recvmmsg && self.found;
        self.many = received > 1 || next_too;
        self.found = received > 0;
        if received == 1 {
            match call {
                ReceiveCall::Recvfrom => self.until_sample = self.until_sample.saturating_sub(1),
                ReceiveCall::Recvmsg if self.after_mark > 0 => self.after_mark -= 1,
                ReceiveCall::Recvmsg => self.until_sample = SAMPLE_EVERY,
                ReceiveCall::Recvmmsg => {}
            }
        }
    }

    /// Delivers datagrams from the slots, up to the size of a burst.
    #[inline]
    fn fill_burst(&mut self) {
        while self.next_slot < self.filled && self.burst_len < MAX_BURST {
            let slot = self.next_slot;
            let Received { len, segment, ecn } = self.batch.received(slot);
            if ecn == Ecn::CongestionExperienced {
                self.after_mark = AFTER_MARK;
            }
            // At least once: a datagram may be empty.
            loop {
                let start = self.next_start;
                let end = (start + segment).min(len);
                self.burst[self.burst_len] = Location {
                    slot: slot as u16,
                    ecn,
                    start: start as u32,
                    len: (end - start) as u32,
                };
                self.burst_len += 1;
                self.next_start = end;
                if end == len {
                    self.next_slot += 1;
                    self.next_start = 0;
                    break;
                }
                if self.burst_len == MAX_BURST {
                    break;
                }
            }
        }
    }
}

impl PacketRx for UdpRx {
    /// The rest of a merged run that did not fit into the last burst is delivered before anything
    /// new is received.
    ///
    /// # Errors
    /// Only if the socket is unusable. Errors about peers are reported as events.
    #[inline]
    fn rx_burst(&mut self) -> Result<usize, IoError> {
        self.burst_len = 0;
        if self.next_slot < self.filled {
            self.fill_burst();
            self.total += self.burst_len as u64;
            return Ok(self.burst_len);
        }
        let elsewhere =
            self.draining.is_some() || (self.connected.is_some() && self.until_main_socket == 0);
        if elsewhere {
            self.receive_elsewhere()?;
        }
        // A reactor does not say which of the sockets has something: its owner may wait again after one burst.
        if !elsewhere || self.filled == 0 {
            let call = self.next_call();
            let fd = match &self.connected {
                Some(connected) => connected.fd(),
                None => self.shared.fd(),
            };
            let received = receive(&mut self.batch, &self.shared, fd, call)?;
            self.predict(call, received);
            self.filled = received;
            self.until_main_socket = self.until_main_socket.saturating_sub(1);
            self.connected_bursts += u32::from(received > 0);
        }
        self.next_slot = 0;
        self.next_start = 0;
        self.fill_burst();
        self.total += self.burst_len as u64;
        Ok(self.burst_len)
    }

    #[inline]
    fn datagram(&self, index: usize) -> Datagram<'_> {
        assert!(
            index < self.burst_len,
            "datagram {index} of {}",
            self.burst_len
        );
        let place = self.burst[index];
        let slot = usize::from(place.slot);
        let address = self.batch.name(slot);
        let version = self.directory.version();
        let mut last = self.last.get();
        if last.address != *address || last.version != version {
            last = SenderLookup {
                address: *address,
                version,
                peer: self.directory.find_raw(address),
                since: self.total,
            };
            self.last.set(last);
        }
        let source = match last.peer {
            Some(peer) => Source::Peer(peer),
            None => Source::Unknown(address.to_std()),
        };
        Datagram {
            source,
            ecn: place.ecn,
            bytes: self
                .batch
                .bytes(slot, place.start as usize, place.len as usize),
        }
    }
}

impl UdpRx {
    /// Receives from the less usual socket: a closing connected one, or the main socket beside a
    /// connected one.
    #[cold]
    fn receive_elsewhere(&mut self) -> Result<(), IoError> {
        if let Some((connected, left)) = self.draining.take() {
            self.filled = receive(
                &mut self.batch,
                &self.shared,
                connected.fd(),
                ReceiveCall::Recvmmsg,
            )?;
            if self.filled > 0 && left > 0 {
                self.draining = Some((connected, left - 1));
            }
            return Ok(());
        }
        let call = match self.shared.wants_control.load(Ordering::Relaxed) {
            true => ReceiveCall::Recvmsg,
            false => ReceiveCall::Recvfrom,
        };
        self.filled = receive(&mut self.batch, &self.shared, self.shared.fd(), call)?;
        if self.connected_bursts >= OTHERS_WINDOW {
            self.connected_bursts = 0;
            self.others = 0;
        }
        if self.filled == 0 {
            self.until_main_socket = MAIN_SOCKET_INTERVAL;
        }
        self.others += self.filled as u32;
        Ok(())
    }

    /// Whether recent traffic suggests to open or close a connected socket.
    #[inline]
    pub(crate) fn advice(&self) -> Option<Advice> {
        if self.connected.is_some() {
            return (self.others >= OTHERS_LIMIT).then_some(Advice::Close);
        }
        let last = self.last.get();
        if self.total - last.since < self.long_run || last.version != self.directory.version() {
            return None;
        }
        last.peer.map(Advice::Open)
    }

    /// The connected socket.
    pub(crate) fn connected(&self) -> Option<&ConnectedSocket> {
        self.connected.as_deref()
    }

    /// Sets the connected socket to receive from. `None` if it could not be opened or is to be
    /// closed; then the next one takes a longer run.
    pub(crate) fn set_connected(&mut self, connected: Option<Arc<ConnectedSocket>>) {
        if connected.is_none() {
            self.long_run = self.long_run.saturating_mul(RUN_GROWTH);
        }
        self.until_main_socket = 0;
        self.others = 0;
        self.connected_bursts = 0;
        if let Some(given_up) = std::mem::replace(&mut self.connected, connected) {
            self.dropped += socket::dropped(given_up.fd());
            self.draining = Some((given_up, DRAIN_BURSTS));
        }
        let mut last = self.last.get();
        last.since = self.total;
        self.last.set(last);
    }

    /// The main socket has something: it is polled next.
    pub(crate) fn poll_main_socket(&mut self) {
        self.until_main_socket = 0;
    }
}

/// Receives from `fd`. Returns zero if there is nothing, or if the error is a report that an
/// earlier datagram did not arrive.
#[inline]
fn receive(
    batch: &mut RecvBatch,
    shared: &Shared,
    fd: BorrowedFd<'_>,
    call: ReceiveCall,
) -> Result<usize, IoError> {
    let result = match call {
        ReceiveCall::Recvfrom => batch.recvfrom(fd).map(|()| 1),
        ReceiveCall::Recvmsg => batch.recvmsg(fd).map(|()| 1),
        ReceiveCall::Recvmmsg => batch.recvmmsg(fd),
    };
    result.or_else(|error| match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR) => Ok(0),
        Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::EINVAL) => {
            let remedy = "this is a bug of Starling: report it";
            Err(IoError::from_os(Fault::Host, "receive", error, remedy))
        }
        _ => {
            shared.errors_waiting.store(true, Ordering::Relaxed);
            Ok(0)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::addr::Family;
    use crate::sys::send::SendScratch;
    use socket2::{Domain, SockAddr, Socket, Type};
    use std::net::{Ipv4Addr, SocketAddr};
    use std::os::fd::AsFd;

    fn socket() -> Socket {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        socket.bind(&SockAddr::from(any_port)).expect("loopback");
        socket
    }

    #[test]
    fn merged_datagrams_are_delivered_over_as_many_bursts_as_they_need() {
        let receiver = socket();
        socket::set_int(receiver.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1).expect("Linux 5.0");
        let address = receiver.local_addr().expect("bound").as_socket();
        let to = RawAddr::new(address.expect("IP"), Family::V4).expect("IPv4");

        // Four messages of 40 datagrams: ten bytes each, and the last of a message only seven.
        let datagram = [1; 10];
        let mut scratch = SendScratch::new(160);
        let mut batch = scratch.batch();
        for _ in 0..4 {
            batch.push_message(Some(&to), Some(10));
            for _ in 0..39 {
                batch.push_datagram(&datagram);
            }
            batch.push_datagram(&datagram[..7]);
        }
        assert_eq!(batch.send(socket().as_fd()).expect("loopback"), 4);

        let shared = Arc::new(Shared::new(receiver, Family::V4));
        shared.wants_control.store(true, Ordering::Relaxed);
        let mut rx = UdpRx::new(shared, true);
        let mut bursts = Vec::new();
        let mut lens = Vec::new();
        loop {
            let burst = rx.rx_burst().expect("a healthy socket");
            if burst == 0 {
                break;
            }
            bursts.push(burst);
            lens.extend((0..burst).map(|index| rx.datagram(index).bytes.len()));
        }
        assert_eq!(
            bursts,
            [40, 40, MAX_BURST, 16],
            "two messages alone, then two at once"
        );
        let mut expected = [10; 40];
        expected[39] = 7;
        assert_eq!(lens, expected.repeat(4));
    }

    #[test]
    #[should_panic(expected = "datagram 0 of 0")]
    fn asking_for_a_datagram_beyond_the_burst_panics() {
        let rx = UdpRx::new(Arc::new(Shared::new(socket(), Family::V4)), true);
        let _ = rx.datagram(0);
    }
}
