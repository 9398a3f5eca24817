//! The receiving half: which system call to receive with, and who sent what.
//!
//! One datagram at a time is what a lightly loaded server and every waiting client see, and there
//! the price of the system call is latency; under load many must come with each call. So the
//! last calls predict the next:
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
//! A *single* is `recvfrom` if it can be: that call tells neither ECN bits nor the boundaries
//! between datagrams that GRO merged. Neither matters as long as all peers are on paths of 64 KiB
//! MTU, which are loopback: GRO is off, no switch marks. There one datagram in
//! [`SAMPLE_EVERY`] is taken by `recvmsg` to see its ECN bits, so that marks by a queueing
//! discipline on loopback do not stay unseen, and after a mark all are for a while. As soon as a
//! peer is behind a smaller MTU, `recvmsg` takes every single and GRO is on, for good.
//!
//! With a [`lane`](crate::lane) all this is about the lane's socket, and the device's own is asked
//! now and then.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use starling_io::{Datagram, Ecn, Fault, IoError, MAX_BURST, PacketRx, PeerId, Source};

use crate::lane::{
    FIRST_RUN, LAST_BURSTS, Lane, OTHERS_EVERY, OTHERS_LIMIT, OTHERS_WINDOW, RUN_GROWTH,
};
use crate::shared::{Directory, Shared};
use crate::sys::addr::RawAddr;
use crate::sys::recv::{Received, RecvBatch};
use crate::sys::socket;

/// On loopback, every how many singles one is taken with its ECN bits.
const SAMPLE_EVERY: u32 = 16;

/// On loopback, how many singles are taken with their ECN bits after a congestion mark.
const AFTER_MARK: u32 = 1024;

/// The receiving half of a [`UdpIo`](crate::UdpIo).
pub struct UdpRx {
    shared: Arc<Shared>,
    directory: Directory,
    batch: RecvBatch,
    /// Slots of `batch` that the last call filled; those from `next_slot` on are yet to be given
    /// out, the first of them from `next_start` on.
    filled: usize,
    next_slot: usize,
    next_start: usize,
    burst: [Place; MAX_BURST],
    burst_len: usize,
    ecn: bool,
    /// The last call found something.
    found: bool,
    /// The next call is `recvmmsg`.
    many: bool,
    /// Singles until one is taken with its ECN bits.
    until_sample: u32,
    /// Singles left that are all taken with their ECN bits.
    after_mark: u32,
    /// The last look-up of a sender.
    last: Cell<LookUp>,
    /// Datagrams received so far.
    total: u64,
    /// What the kernel dropped of lanes that were given up.
    dropped: u64,
    /// A run of datagrams from one peer that is so long is reason for a lane.
    long_run: u64,
    lane: Option<Arc<Lane>>,
    /// Bursts until the device's own socket is asked, beside a lane.
    until_others: u32,
    /// Datagrams from others beside the lane, and the bursts from the lane since they were
    /// counted anew.
    others: u32,
    lane_bursts: u32,
    /// A lane that is given up, and how many bursts more are taken from it at most.
    last_bursts: Option<(Arc<Lane>, u32)>,
}

/// What would be better than how it is.
pub(crate) enum Advice {
    /// A lane for this peer.
    Open(PeerId),
    /// No lane.
    Close,
}

/// Where a datagram of the burst lies.
#[derive(Clone, Copy)]
struct Place {
    slot: u16,
    ecn: Ecn,
    start: u32,
    len: u32,
}

/// What `address` was when the table of peers had `version`.
#[derive(Clone, Copy)]
struct LookUp {
    address: RawAddr,
    version: u32,
    peer: Option<PeerId>,
    /// Datagrams received before the first of this run.
    since: u64,
}

/// The ways to receive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Plain,
    One,
    Many,
}

impl UdpRx {
    pub(crate) fn new(shared: Arc<Shared>, ecn: bool) -> Self {
        let nowhere = Place {
            slot: 0,
            ecn: Ecn::NotCapable,
            start: 0,
            len: 0,
        };
        // No datagram comes from the zero address, so this entry is never hit.
        let nobody = LookUp {
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
            last: Cell::new(nobody),
            total: 0,
            dropped: 0,
            long_run: FIRST_RUN,
            lane: None,
            until_others: 0,
            others: 0,
            lane_bursts: 0,
            last_bursts: None,
        }
    }

    /// The next burst is not to be waited for: datagrams that the kernel has given already are in
    /// it, or what is in a lane that was given up, which no sleep hears of.
    pub fn has_leftovers(&self) -> bool {
        self.next_slot < self.filled || self.last_bursts.is_some()
    }

    /// Datagrams received so far.
    pub(crate) fn received(&self) -> u64 {
        self.total
    }

    /// Datagrams that the kernel did not give to the sockets so far.
    pub(crate) fn dropped(&self) -> u64 {
        let lane = self.lane().map_or(0, |lane| socket::dropped(lane.fd()));
        self.dropped + lane + socket::dropped(self.shared.fd())
    }

    #[inline]
    fn way(&self) -> Way {
        if self.many {
            Way::Many
        } else if self.shared.wants_control.load(Ordering::Relaxed)
            || (self.ecn && (self.until_sample == 0 || self.after_mark > 0))
        {
            Way::One
        } else {
            Way::Plain
        }
    }

    /// Prepares the choice of the next way, after this one found `received` datagrams.
    #[inline]
    fn learn(&mut self, way: Way, received: usize) {
        let next_too = received == 1 && way != Way::Many && self.found;
        self.many = received > 1 || next_too;
        self.found = received > 0;
        if received == 1 {
            match way {
                Way::Plain => self.until_sample = self.until_sample.saturating_sub(1),
                Way::One if self.after_mark > 0 => self.after_mark -= 1,
                Way::One => self.until_sample = SAMPLE_EVERY,
                Way::Many => {}
            }
        }
    }

    /// Gives out datagrams that are in the slots, as many as a burst may have.
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
                self.burst[self.burst_len] = Place {
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
    /// What of a merged run of datagrams did not fit into the last burst comes before anything
    /// new is received.
    ///
    /// # Errors
    /// Only if the socket is unusable. Errors about peers come up as events.
    #[inline]
    fn rx_burst(&mut self) -> Result<usize, IoError> {
        self.burst_len = 0;
        if self.next_slot < self.filled {
            self.fill_burst();
            self.total += self.burst_len as u64;
            return Ok(self.burst_len);
        }
        if self.last_bursts.is_some() || (self.lane.is_some() && self.until_others == 0) {
            self.receive_aside()?;
        } else {
            let way = self.way();
            let fd = match &self.lane {
                Some(lane) => lane.fd(),
                None => self.shared.fd(),
            };
            let received = receive(&mut self.batch, &self.shared, fd, way)?;
            self.learn(way, received);
            self.filled = received;
            self.until_others = self.until_others.saturating_sub(1);
            self.lane_bursts += u32::from(received > 0);
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
            last = LookUp {
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
    /// Receives from the socket that is not the usual one: a lane that is given up, or the
    /// device's own beside a lane.
    #[cold]
    fn receive_aside(&mut self) -> Result<(), IoError> {
        if let Some((lane, left)) = self.last_bursts.take() {
            self.filled = receive(&mut self.batch, &self.shared, lane.fd(), Way::Many)?;
            if self.filled > 0 && left > 0 {
                self.last_bursts = Some((lane, left - 1));
            }
            return Ok(());
        }
        let way = match self.shared.wants_control.load(Ordering::Relaxed) {
            true => Way::One,
            false => Way::Plain,
        };
        self.filled = receive(&mut self.batch, &self.shared, self.shared.fd(), way)?;
        if self.lane_bursts >= OTHERS_WINDOW {
            self.lane_bursts = 0;
            self.others = 0;
        }
        if self.filled == 0 {
            self.until_others = OTHERS_EVERY;
        }
        self.others += self.filled as u32;
        Ok(())
    }

    /// Whether the traffic of late asks for a lane, or for none.
    #[inline]
    pub(crate) fn advice(&self) -> Option<Advice> {
        if self.lane.is_some() {
            return (self.others >= OTHERS_LIMIT).then_some(Advice::Close);
        }
        let last = self.last.get();
        if self.total - last.since < self.long_run || last.version != self.directory.version() {
            return None;
        }
        last.peer.map(Advice::Open)
    }

    /// The lane's peer.
    pub(crate) fn lane(&self) -> Option<&Lane> {
        self.lane.as_deref()
    }

    /// From now on datagrams come by this lane, too. If there is none, because one could not be
    /// opened or is to be given up, it takes a longer run until it is time for the next.
    pub(crate) fn set_lane(&mut self, lane: Option<Arc<Lane>>) {
        if lane.is_none() {
            self.long_run = self.long_run.saturating_mul(RUN_GROWTH);
        }
        self.until_others = 0;
        self.others = 0;
        self.lane_bursts = 0;
        if let Some(given_up) = std::mem::replace(&mut self.lane, lane) {
            self.dropped += socket::dropped(given_up.fd());
            self.last_bursts = Some((given_up, LAST_BURSTS));
        }
        let mut last = self.last.get();
        last.since = self.total;
        self.last.set(last);
    }

    /// The device's own socket has something: it is asked next.
    pub(crate) fn ask_others(&mut self) {
        self.until_others = 0;
    }
}

/// Receives from `fd`. Zero datagrams, if the error is no more than that none is there or that one
/// sent earlier did not arrive.
#[inline]
fn receive(
    batch: &mut RecvBatch,
    shared: &Shared,
    fd: BorrowedFd<'_>,
    way: Way,
) -> Result<usize, IoError> {
    let result = match way {
        Way::Plain => batch.recv_plain(fd).map(|()| 1),
        Way::One => batch.recv_one(fd).map(|()| 1),
        Way::Many => batch.recv_many(fd),
    };
    result.or_else(|error| match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR) => Ok(0),
        Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT | libc::EINVAL) => {
            let remedy = "this is a defect of the device: report it";
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
    fn merged_datagrams_come_apart_over_as_many_bursts_as_it_takes() {
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
    fn a_datagram_beyond_the_burst_is_a_defect() {
        let rx = UdpRx::new(Arc::new(Shared::new(socket(), Family::V4)), true);
        let _ = rx.datagram(0);
    }
}
