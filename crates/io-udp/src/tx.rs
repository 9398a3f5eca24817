//! The sending half: one open datagram for each peer, and as few system calls as can be.
//!
//! What is appended is copied into a slot of the staging memory, whose order of beginning is the
//! order of leaving. A flush sends a lone datagram by `sendto` and more by `sendmmsg`, in which
//! consecutive full datagrams to one peer are a single message that the kernel or the network
//! card takes apart (GSO). When the slots run out the flush comes early.
//!
//! A frame with a large body is not copied: it leaves at once, gathered by the kernel from the
//! open datagram, the frame's parts and nothing else, unless datagrams to the same peer that
//! would have to leave before it cannot.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use starling_io::{Fault, IoError, PacketTx, PeerId, TxError};

use crate::lane::Lane;
use crate::path::Probe;
use crate::shared::Shared;
use crate::staging::{SLOTS, Slot, Staging};
use crate::sys::addr::RawAddr;
use crate::sys::send::{SendBatch, SendScratch, To, send_gathered, send_one};
use crate::sys::socket;

/// Bodies from this size on are gathered by the kernel instead of copied into the datagram. Below
/// it, sharing a system call with other datagrams is worth more than the copy costs (measured on
/// loopback: even at 16 KB, 15% slower at 8 KB, 10% faster at 64 KB).
const GATHER_FROM: usize = 16 << 10;

/// The most datagrams in one GSO message: Linux's `UDP_MAX_SEGMENTS` before it was doubled.
const MAX_SEGMENTS: usize = 64;

/// The most bytes in one GSO message: what fits an IP packet of either version with its headers.
const MAX_SEGMENTED_BYTES: usize = 65_487;

/// No slot.
const NONE: Slot = Slot::MAX;

/// The sending half of a [`UdpIo`](crate::UdpIo).
pub struct UdpTx {
    shared: Arc<Shared>,
    /// Where datagrams to one of the peers leave.
    lane: Option<Arc<Lane>>,
    probe: Probe,
    staging: Staging,
    scratch: SendScratch,
    peers: Vec<TxPeer>,
    /// Numbers of closed peers, to be used again.
    vacant: Vec<u32>,
    max_peers: usize,
    largest: usize,
    interface: u32,
    /// Datagrams that the kernel took so far, and that were given up.
    sent: u64,
    dropped: u64,
    /// GSO may be used: configured, and the kernel has not refused it.
    gso: bool,
    gro: bool,
    ecn: bool,
}

#[derive(Clone, Copy)]
struct TxPeer {
    address: RawAddr,
    max_datagram: u32,
    /// The slot that frames are appended to.
    open: Slot,
    /// Slots in the queue that go to this peer, the open one included.
    queued: u16,
    live: bool,
    /// Several of its full datagrams fit one GSO message.
    segmented: bool,
}

impl TxPeer {
    /// It takes no more than `max_datagram` bytes.
    fn lower(&mut self, max_datagram: usize) {
        self.max_datagram = self.max_datagram.min(max_datagram as u32);
        self.segmented = 2 * self.max_datagram as usize <= MAX_SEGMENTED_BYTES;
    }
}

/// What to do with the oldest datagram after an attempt to send it failed.
enum Verdict {
    /// The kernel has no room: keep it for later.
    Keep,
    /// Try again now.
    Retry,
    /// It can never be sent.
    Drop,
    /// It was lost on the way out, with all that was to leave in one message with it.
    Lost,
}

/// What the sending half takes from the configuration.
pub(crate) struct TxSettings {
    pub(crate) max_peers: usize,
    /// The largest payload for any peer.
    pub(crate) largest: usize,
    /// That of the device's own address, if it is link-local; else zero.
    pub(crate) interface: u32,
    pub(crate) gso: bool,
    pub(crate) gro: bool,
    pub(crate) ecn: bool,
}

impl UdpTx {
    /// The most datagrams in a run, and the most bytes.
    pub const MAX_RUN: (usize, usize) = (MAX_SEGMENTS, MAX_SEGMENTED_BYTES);

    pub(crate) fn new(shared: Arc<Shared>, probe: Probe, settings: &TxSettings) -> Self {
        Self {
            shared,
            lane: None,
            probe,
            staging: Staging::new(),
            scratch: SendScratch::new(SLOTS),
            peers: Vec::new(),
            vacant: Vec::new(),
            max_peers: settings.max_peers,
            largest: settings.largest,
            interface: settings.interface,
            sent: 0,
            dropped: 0,
            gso: settings.gso,
            gro: settings.gro,
            ecn: settings.ecn,
        }
    }

    /// Datagrams wait for the kernel to have room.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.staging.queue().is_empty()
    }

    /// Datagrams that the kernel took, so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Datagrams that the kernel did not send and that were given up, so far.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The peer at `address`, a new one if there is none yet.
    pub(crate) fn add_peer(&mut self, address: SocketAddr) -> Result<PeerId, IoError> {
        let attempt = || format!("make a peer of udp://{address}");
        let refuse =
            |problem: String, remedy| IoError::new(Fault::Caller, attempt(), problem, remedy);
        if address.port() == 0 || address.ip().is_unspecified() {
            let problem = "nothing can be sent there".to_owned();
            return Err(refuse(problem, "use the peer's own address and port"));
        }
        let raw = RawAddr::new(address, self.shared.directory.family()).ok_or_else(|| {
            let problem = "an IPv4 socket cannot reach an IPv6 address".to_owned();
            refuse(problem, "bind this end to udp://[::]:0")
        })?;
        let raw = raw.with_interface(self.interface).ok_or_else(|| {
            let problem = "a link-local address is one of an interface, which it does not say";
            let remedy = "write the interface of this host behind it: udp://[fe80::1%eth0]:9000";
            refuse(problem.to_owned(), remedy)
        })?;
        if let Some(peer) = self.shared.directory.find_raw(&raw) {
            return Ok(peer);
        }
        if self.vacant.is_empty() && self.peers.len() == self.max_peers {
            let problem = format!("there are {} peers already", self.max_peers);
            return Err(refuse(problem, "close some, or use another endpoint"));
        }
        let max_datagram = self.measure(raw)?;
        let peer = TxPeer {
            address: raw,
            max_datagram: max_datagram as u32,
            open: NONE,
            queued: 0,
            live: true,
            segmented: 2 * max_datagram <= MAX_SEGMENTED_BYTES,
        };
        let number = match self.vacant.pop() {
            Some(number) => {
                self.peers[number as usize] = peer;
                number
            }
            None => {
                self.peers.push(peer);
                self.peers.len() as u32 - 1
            }
        };
        self.shared.directory.insert(raw, PeerId(number));
        Ok(PeerId(number))
    }

    /// Forgets a peer, and drops what waits to be sent to it. Not a peer: nothing happens.
    pub(crate) fn remove_peer(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id.0 as usize).filter(|peer| peer.live) else {
            return;
        };
        peer.live = false;
        self.lane = self.lane.take().filter(|lane| lane.peer != id);
        self.shared.directory.remove(&peer.address);
        self.staging.release_all_of(id.0);
        self.vacant.push(id.0);
    }

    /// Where `peer` is, if it is one.
    pub(crate) fn address_of(&self, id: PeerId) -> Option<RawAddr> {
        let peer = self.peers.get(id.0 as usize).filter(|peer| peer.live);
        peer.map(|peer| peer.address)
    }

    /// From now on datagrams to the lane's peer leave by the lane; `None`: as all others do.
    pub(crate) fn set_lane(&mut self, lane: Option<Arc<Lane>>) {
        self.lane = lane;
    }

    /// Asks the kernel again how large a datagram to `peer` may be, and returns that.
    pub(crate) fn remeasure(&mut self, id: PeerId) -> usize {
        let measured = self.measure(self.peers[id.0 as usize].address);
        let peer = &mut self.peers[id.0 as usize];
        // No route: the peer's datagrams are dropped for another reason than their size.
        if let Ok(max_datagram) = measured {
            peer.lower(max_datagram);
        }
        peer.max_datagram as usize
    }

    /// The largest datagram to `address`. On a path where datagrams are merged and marked, all
    /// of them are taken with their control messages from now on.
    fn measure(&self, address: RawAddr) -> Result<usize, IoError> {
        let payload = self.probe.largest_payload(address)?;
        if 2 * payload <= MAX_SEGMENTED_BYTES && (self.gro || self.ecn) {
            let first = !self.shared.wants_control.swap(true, Ordering::Relaxed);
            if first && self.gro {
                // A kernel that does not know it just merges nothing.
                let lane = self.lane.as_ref().map(|lane| lane.fd());
                for fd in [Some(self.shared.fd()), lane].into_iter().flatten() {
                    let _ = socket::set_int(fd, libc::SOL_UDP, libc::UDP_GRO, 1);
                }
            }
        }
        Ok(payload.min(self.largest))
    }

    /// Sends what is queued, oldest first, until nothing is left or the kernel has no room.
    fn send_queued(&mut self) {
        let mut failed = 0;
        while !self.staging.queue().is_empty() {
            match self.send_some() {
                Ok(sent) => {
                    self.release_oldest(sent);
                    self.sent += sent as u64;
                    failed = 0;
                }
                Err(error) => {
                    failed += 1;
                    let oldest = self.staging.queue()[0];
                    let peer = PeerId(self.staging.peer(oldest));
                    let run = self.first_run();
                    let segment = (run > 1).then(|| self.staging.len(oldest));
                    let given_up = match self.judge(&error, failed, segment, peer) {
                        Verdict::Keep => break,
                        Verdict::Retry => continue,
                        Verdict::Drop => 1,
                        Verdict::Lost => run,
                    };
                    self.release_oldest(given_up);
                    self.dropped += given_up as u64;
                    failed = 0;
                }
            }
        }
        // What the kernel had no room for is closed, too: nothing is appended behind its back.
        for &slot in self.staging.queue() {
            self.peers[self.staging.peer(slot) as usize].open = NONE;
        }
    }

    /// One system call's worth of the queue; returns how many datagrams left, at least one.
    #[inline]
    fn send_some(&mut self) -> io::Result<usize> {
        let Self {
            shared,
            lane,
            staging,
            scratch,
            peers,
            gso,
            ..
        } = self;
        let mut queue = staging.queue();
        let (fd, by_lane) = exit(shared, lane, staging.peer(queue[0]));
        if let Some(lane) = &*lane {
            let together = |slot: &&Slot| (staging.peer(**slot) == lane.peer.0) == by_lane;
            queue = &queue[..queue.iter().take_while(together).count()];
        }
        let to = |slot| -> To<'_> {
            let address = &peers[staging.peer(slot) as usize].address;
            (!by_lane).then_some(address)
        };
        if let [slot] = *queue {
            send_one(fd, staging.datagram(slot), to(slot))?;
            return Ok(1);
        }
        let mut batch: SendBatch<'_, '_> = scratch.batch();
        let mut rest = queue;
        while !rest.is_empty() {
            let count = run_length(staging, peers, *gso, rest);
            let (run, behind) = rest.split_at(count);
            let segment = (count > 1).then(|| staging.len(run[0]) as u16);
            batch.push_message(to(run[0]), segment);
            for &slot in run {
                batch.push_datagram(staging.datagram(slot));
            }
            rest = behind;
        }
        let messages = batch.send(fd)?;
        let mut sent = 0;
        for _ in 0..messages {
            sent += run_length(staging, peers, *gso, &queue[sent..]);
        }
        Ok(sent)
    }

    /// Datagrams in the first message that the queue would be sent as.
    fn first_run(&self) -> usize {
        run_length(&self.staging, &self.peers, self.gso, self.staging.queue())
    }

    #[inline]
    fn release_oldest(&mut self, count: usize) {
        let peers = &mut self.peers;
        self.staging.release_oldest(count, |peer, slot| {
            let peer = &mut peers[peer as usize];
            peer.queued -= 1;
            if peer.open == slot {
                peer.open = NONE;
            }
        });
    }

    /// What an error means for a datagram to `peer` whose sending failed `failed` times in a row,
    /// and which began a run of datagrams of `segment` bytes, if it was to leave with others.
    ///
    /// An error may be a late report about an earlier datagram, to anyone: the kernel tells it
    /// once, in place of doing what it was asked to. So whatever is not about room is tried again
    /// once, and only then held against this datagram, which is then lost as if on the network.
    ///
    /// Nothing is kept but what the socket's own buffer has no room for: when there is some again
    /// the socket becomes writable. That the queue of an interface was full (ENOBUFS) or memory
    /// short (ENOMEM) has no end that anybody would be told of. The socket stays writable, and the
    /// peers behind would wait for one whose queue is full; so that is a loss like a switch's.
    #[cold]
    fn judge(
        &mut self,
        error: &io::Error,
        failed: u32,
        segment: Option<usize>,
        peer: PeerId,
    ) -> Verdict {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => Verdict::Keep,
            Some(libc::ENOBUFS | libc::ENOMEM) => Verdict::Lost,
            Some(libc::EINTR) => Verdict::Retry,
            Some(errno @ (libc::EIO | libc::EINVAL)) if segment.is_some() => {
                // Before Linux 6.14 EINVAL also says of a run what EMSGSIZE says of one datagram.
                if errno == libc::EINVAL && segment > Some(self.remeasure(peer)) {
                    return Verdict::Drop;
                }
                // No checksum offload on the device, or a kernel that limits runs otherwise.
                self.gso = false;
                Verdict::Retry
            }
            errno => {
                self.shared.errors_waiting.store(true, Ordering::Relaxed);
                if failed == 1 {
                    return Verdict::Retry;
                }
                if errno == Some(libc::EMSGSIZE) {
                    self.remeasure(peer);
                }
                Verdict::Drop
            }
        }
    }

    /// Sends a frame with a large body at once, without copying it. `Ok(false)` if it has to be
    /// queued after all.
    fn gather(&mut self, id: PeerId, preamble: &[u8; 8], [head, body, tail]: [&[u8]; 3]) -> bool {
        let frame = head.len() + body.len() + tail.len();
        let peer = self.peers[id.0 as usize];
        let is_open = peer.open != NONE;
        let fits = is_open
            && self.staging.len(peer.open) + frame <= peer.max_datagram as usize
            && peer.queued == 1;
        if !fits && peer.queued > 0 {
            self.send_queued();
            if self.peers[id.0 as usize].queued > 0 {
                return false;
            }
        }
        let mut failed = 0;
        loop {
            let start = if fits {
                self.staging.datagram(peer.open)
            } else {
                preamble
            };
            let parts = [start, head, body, tail].map(IoSlice::new);
            let (fd, by_lane) = exit(&self.shared, &self.lane, id.0);
            let to = (!by_lane).then_some(&peer.address);
            let Err(error) = send_gathered(fd, &parts, to) else {
                self.sent += 1;
                break;
            };
            failed += 1;
            match self.judge(&error, failed, None, id) {
                Verdict::Keep => return false,
                Verdict::Retry => {}
                Verdict::Drop | Verdict::Lost => {
                    self.dropped += 1;
                    break;
                }
            }
        }
        if fits {
            self.staging.release(peer.open);
            let peer = &mut self.peers[id.0 as usize];
            peer.open = NONE;
            peer.queued -= 1;
        }
        true
    }

    /// Sends datagrams to a peer that lie elsewhere, by one system call and before whatever is queued:
    /// `parts`, one behind the other, cut into `count` datagrams of `segment` bytes, of which the last
    /// may be shorter; `None`, if it is one. At most [`UdpTx::MAX_RUN`].
    ///
    /// # Errors
    /// As the kernel's, if it sent nothing. [`io::ErrorKind::Unsupported`], if it cuts nothing.
    pub fn send_run<'a>(
        &mut self,
        id: PeerId,
        parts: impl Iterator<Item = &'a [u8]> + Clone,
        count: usize,
        segment: Option<u16>,
    ) -> io::Result<()> {
        let live = |peer: &&TxPeer| peer.live;
        let Some(peer) = self.peers.get(id.0 as usize).filter(live).copied() else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let mut failed = 0;
        loop {
            if segment.is_some() && !self.gso {
                return Err(io::ErrorKind::Unsupported.into());
            }
            let (fd, by_lane) = exit(&self.shared, &self.lane, id.0);
            let mut batch = self.scratch.batch();
            batch.push_message((!by_lane).then_some(&peer.address), segment);
            for part in parts.clone() {
                batch.push_datagram(part);
            }
            let Err(error) = batch.send(fd) else {
                self.sent += count as u64;
                return Ok(());
            };
            failed += 1;
            let segment = segment.map(usize::from);
            if !matches!(self.judge(&error, failed, segment, id), Verdict::Retry) {
                return Err(error);
            }
        }
    }
}

impl Drop for UdpTx {
    /// What was appended is given to the kernel, as far as it has room.
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

/// The socket by which datagrams to a peer leave, and whether that is the lane.
#[inline]
fn exit<'a>(shared: &'a Shared, lane: &'a Option<Arc<Lane>>, peer: u32) -> (BorrowedFd<'a>, bool) {
    match lane {
        Some(lane) if lane.peer.0 == peer => (lane.fd(), true),
        _ => (shared.fd(), false),
    }
}

/// How many of the datagrams at the start of `queue` can leave as one message: all go to one
/// peer, and all but the last have the same size.
#[inline]
fn run_length(staging: &Staging, peers: &[TxPeer], gso: bool, queue: &[Slot]) -> usize {
    let peer = staging.peer(queue[0]);
    if !gso || !peers[peer as usize].segmented {
        return 1;
    }
    let segment = staging.len(queue[0]);
    let mut total = segment;
    let mut count = 1;
    for &slot in &queue[1..queue.len().min(MAX_SEGMENTS)] {
        let len = staging.len(slot);
        if staging.peer(slot) != peer || len > segment || total + len > MAX_SEGMENTED_BYTES {
            break;
        }
        total += len;
        count += 1;
        if len < segment {
            break;
        }
    }
    count
}

impl PacketTx for UdpTx {
    /// # Panics
    /// If the frame and its preamble are larger than any datagram of this device can be.
    #[inline]
    fn append(
        &mut self,
        id: PeerId,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), TxError> {
        let frame = head.len() + body.len() + tail.len();
        assert!(
            preamble.len() + frame <= self.largest,
            "a frame of {frame} bytes fits no datagram of this device"
        );
        let peer = match self.peers.get_mut(id.0 as usize) {
            Some(peer) if peer.live => peer,
            _ => return Err(TxError::Gone),
        };
        if body.len() >= GATHER_FROM {
            if self.gather(id, preamble, [head, body, tail]) {
                return Ok(());
            }
        } else if peer.open != NONE
            && self.staging.len(peer.open) + frame <= peer.max_datagram as usize
        {
            self.staging.push(peer.open, [head, body, tail]);
            return Ok(());
        }
        if self.staging.is_full() {
            self.send_queued();
            if self.staging.is_full() {
                return Err(TxError::Full);
            }
        }
        let slot = self.staging.begin(id.0);
        self.staging.push(slot, [preamble, &[], &[]]);
        self.staging.push(slot, [head, body, tail]);
        let peer = &mut self.peers[id.0 as usize];
        peer.open = slot;
        peer.queued += 1;
        Ok(())
    }

    #[inline]
    fn seal(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.get_mut(id.0 as usize) {
            peer.open = NONE;
        }
    }

    /// Never fails: what the socket has no room for is kept. What can never be sent is lost as on a
    /// network, and so is what the queue of an interface has no room for.
    #[inline]
    fn flush(&mut self) -> Result<(), IoError> {
        if !self.staging.queue().is_empty() {
            self.send_queued();
        }
        Ok(())
    }

    fn send_to_unknown(&mut self, to: SocketAddr, datagram: &[u8]) {
        let Some(to) = RawAddr::new(to, self.shared.directory.family()) else {
            return;
        };
        // Twice, because the first may fail with a late report about another datagram.
        for _ in 0..2 {
            match send_one(self.shared.fd(), datagram, Some(&to)) {
                Ok(()) => {
                    self.sent += 1;
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.shared.errors_waiting.store(true, Ordering::Relaxed),
            }
        }
    }

    fn accept_peer(&mut self, address: SocketAddr) -> Result<PeerId, IoError> {
        self.add_peer(address)
    }

    fn limit_datagram(&mut self, id: PeerId, bytes: usize) {
        if let Some(peer) = self.peers.get_mut(id.0 as usize).filter(|peer| peer.live) {
            peer.lower(bytes);
        }
    }

    /// Zero for a peer that is closed.
    #[inline]
    fn max_datagram(&self, id: PeerId) -> usize {
        let peer = self.peers.get(id.0 as usize).filter(|peer| peer.live);
        peer.map_or(0, |peer| peer.max_datagram as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::addr::Family;
    use socket2::{Domain, Socket, Type};

    /// A half with room for three peers and datagrams of 1000 bytes.
    fn small() -> UdpTx {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket");
        let settings = TxSettings {
            max_peers: 3,
            largest: 1000,
            interface: 0,
            gso: true,
            gro: true,
            ecn: true,
        };
        let probe = Probe::new(([0, 0, 0, 0], 0).into()).expect("a socket");
        let shared = Arc::new(Shared::new(socket, Family::V4));
        UdpTx::new(shared, probe, &settings)
    }

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn a_run_that_its_path_has_become_too_small_for_does_not_end_segmentation() {
        let mut tx = small();
        let peer = tx.accept_peer(address(100)).expect("room");
        // What it was before the path shrank.
        tx.peers[0].max_datagram = 1400;
        let invalid = io::Error::from_raw_os_error(libc::EINVAL);
        let verdict = tx.judge(&invalid, 1, Some(1001), peer);
        assert!(matches!(verdict, Verdict::Drop) && tx.gso);
        assert_eq!(tx.max_datagram(peer), 1000);
        let verdict = tx.judge(&invalid, 1, Some(1000), peer);
        assert!(matches!(verdict, Verdict::Retry) && !tx.gso);
    }

    #[test]
    fn a_run_that_lies_elsewhere_is_cut_into_its_datagrams() {
        let mut tx = small();
        let receiver = std::net::UdpSocket::bind(address(0)).expect("a free port");
        let peer = tx.accept_peer(receiver.local_addr().expect("it is bound"));
        let peer = peer.expect("room");
        let bytes: Vec<u8> = (0..2500_u32).map(|at| (at * 31 / 7) as u8).collect();
        let parts = [&bytes[..300], &bytes[300..1900], &bytes[1900..]];
        let sent = tx.send_run(peer, parts.into_iter(), 3, Some(1000));
        sent.expect("loopback cuts");
        let mut buffer = [0; 2000];
        for expected in bytes.chunks(1000) {
            let len = receiver.recv(&mut buffer).expect("it arrives");
            assert_eq!(&buffer[..len], expected);
        }
        tx.send_run(peer, parts[..1].iter().copied(), 1, None)
            .expect("one is not cut");
        assert_eq!(receiver.recv(&mut buffer).expect("it arrives"), 300);
        assert_eq!(tx.sent, 4);
        tx.gso = false;
        let refused = tx.send_run(peer, parts.into_iter(), 3, Some(1000));
        let refused = refused.expect_err("nobody cuts");
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
        tx.remove_peer(peer);
        let refused = tx.send_run(peer, parts[..1].iter().copied(), 1, None);
        assert_eq!(
            refused.expect_err("gone").kind(),
            io::ErrorKind::NotConnected
        );
    }

    #[test]
    fn only_what_the_socket_has_no_room_for_is_kept() {
        let mut tx = small();
        let peer = tx.accept_peer(address(100)).expect("room");
        let mut judge = |errno| tx.judge(&io::Error::from_raw_os_error(errno), 1, None, peer);
        assert!(matches!(judge(libc::EAGAIN), Verdict::Keep));
        assert!(matches!(judge(libc::ENOBUFS), Verdict::Lost));
        assert!(matches!(judge(libc::ENOMEM), Verdict::Lost));
    }

    #[test]
    fn the_number_of_peers_has_a_bound_and_numbers_are_used_again() {
        let mut tx = small();
        for number in 0..3 {
            let peer = tx.accept_peer(address(100 + number)).expect("room");
            assert_eq!(peer, PeerId(number.into()));
        }
        let error = tx.accept_peer(address(200)).expect_err("the fourth");
        assert!(error.to_string().contains("3 peers already"), "{error}");
        assert_eq!(tx.accept_peer(address(101)).expect("known"), PeerId(1));
        tx.remove_peer(PeerId(1));
        assert_eq!(tx.accept_peer(address(200)).expect("room again"), PeerId(1));
    }
}
