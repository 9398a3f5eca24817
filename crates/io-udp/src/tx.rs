//! The sending half: one open datagram for each peer, and as few system calls as possible.
//!
//! Frames are copied into slots of the staging memory. Datagrams leave in the order in which they
//! were begun. A flush sends a single datagram by `sendto` and several by `sendmmsg`. There,
//! consecutive full datagrams to one peer are one message, which the kernel or the network card
//! segments (GSO). When the slots run out, the flush comes early.
//!
//! A frame with a large body is not copied. The kernel gathers the open datagram and the frame's
//! parts at once, unless earlier datagrams to the same peer cannot leave yet.

mod outcome;
mod peers;

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use starling_io::{IoError, PacketTx, PeerId, PeerInfo, TxError};

use self::outcome::SendOutcome;
use self::peers::TxPeer;
use crate::connected::ConnectedSocket;
use crate::path::Probe;
use crate::shared::Shared;
use crate::staging::{SLOTS, Slot, Staging};
use crate::sys::addr::RawAddr;
use crate::sys::send::{SendBatch, SendScratch, To, send_gathered, send_one};

/// The kernel gathers bodies of this size and more instead of a copy into the datagram. Below it,
/// sharing a system call with other datagrams saves more than the copy costs (measured on loopback:
/// equal at 16 KB, 15% slower at 8 KB, 10% faster at 64 KB).
const GATHER_FROM: usize = 16 << 10;

/// The most datagrams in one GSO message: Linux's `UDP_MAX_SEGMENTS` before it was doubled.
const MAX_SEGMENTS: usize = 64;

/// The most bytes in one GSO message: as many as fit an IP packet of either version with its headers.
const MAX_SEGMENTED_BYTES: usize = 65_487;

/// No slot.
const NONE: Slot = Slot::MAX;

/// The sending half of a [`UdpIo`](crate::UdpIo).
pub struct UdpTx {
    shared: Arc<Shared>,
    /// The connected socket: datagrams to its peer leave by it.
    connected: Option<Arc<ConnectedSocket>>,
    probe: Probe,
    staging: Staging,
    scratch: SendScratch,
    /// By peer number. A plain vector, not a `slab`: the send path reads one flag of an entry that it
    /// needs anyway, and a closed peer's entry stays valid until its number is reused.
    peers: Vec<TxPeer>,
    /// Numbers of closed peers, to be reused.
    free_ids: Vec<u32>,
    max_peers: usize,
    largest: usize,
    interface: u32,
    /// Datagrams that the kernel took so far, and that were dropped.
    sent: u64,
    dropped: u64,
    /// GSO is configured, and the kernel has not refused it.
    gso: bool,
    gro: bool,
    ecn: bool,
}

/// The sending half's part of the configuration.
pub(crate) struct TxSettings {
    pub(crate) max_peers: usize,
    /// The largest payload for any peer.
    pub(crate) largest: usize,
    /// The interface of the device's own address if that is link-local, else zero.
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
            connected: None,
            probe,
            staging: Staging::new(),
            scratch: SendScratch::new(SLOTS),
            peers: Vec::new(),
            free_ids: Vec::new(),
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

    /// Whether datagrams wait for room in the kernel.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.staging.queue().is_empty()
    }

    /// Datagrams that the kernel took so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Datagrams that were dropped because the kernel did not send them, so far.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Sends queued datagrams, oldest first, until none is left or the kernel has no room.
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
                    let given_up = match self.classify_error(&error, failed, segment, peer) {
                        SendOutcome::Keep => break,
                        SendOutcome::Retry => continue,
                        SendOutcome::DropDatagram => 1,
                        SendOutcome::DropMessage => run,
                    };
                    self.release_oldest(given_up);
                    self.dropped += given_up as u64;
                    failed = 0;
                }
            }
        }
        // A datagram that the kernel had no room for is closed, so its size is final.
        for &slot in self.staging.queue() {
            self.peers[self.staging.peer(slot) as usize].open = NONE;
        }
    }

    /// Sends as much of the queue as one system call takes. Returns the number of datagrams that
    /// left, at least one.
    #[inline]
    fn send_some(&mut self) -> io::Result<usize> {
        let Self {
            shared,
            connected,
            staging,
            scratch,
            peers,
            gso,
            ..
        } = self;
        let mut queue = staging.queue();
        let (fd, by_connected) = socket_to(shared, connected, staging.peer(queue[0]));
        if let Some(connected) = &*connected {
            let together =
                |slot: &&Slot| (staging.peer(**slot) == connected.peer.0) == by_connected;
            queue = &queue[..queue.iter().take_while(together).count()];
        }
        let to = |slot| -> To<'_> {
            let address = &peers[staging.peer(slot) as usize].address;
            (!by_connected).then_some(address)
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

    /// Datagrams in the first message of the queue.
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

    /// Sends a frame with a large body at once, without copying it. False if it must be queued
    /// instead.
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
            let (fd, by_connected) = socket_to(&self.shared, &self.connected, id.0);
            let to = (!by_connected).then_some(&peer.address);
            let Err(error) = send_gathered(fd, &parts, to) else {
                self.sent += 1;
                break;
            };
            failed += 1;
            match self.classify_error(&error, failed, None, id) {
                SendOutcome::Keep => return false,
                SendOutcome::Retry => {}
                SendOutcome::DropDatagram | SendOutcome::DropMessage => {
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

    /// Sends datagrams whose bytes lie elsewhere to a peer, by one system call and before queued
    /// ones. `parts` follow each other and are cut into `count` datagrams of `segment` bytes; the
    /// last may be shorter. `segment` is `None` for a single datagram. [`UdpTx::MAX_RUN`] is the
    /// limit.
    ///
    /// # Errors
    /// The kernel's, if it sent nothing; [`io::ErrorKind::Unsupported`] if it does not segment;
    /// [`io::ErrorKind::NotConnected`] if `id` is not a peer.
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
            let (fd, by_connected) = socket_to(&self.shared, &self.connected, id.0);
            let mut batch = self.scratch.batch();
            batch.push_message((!by_connected).then_some(&peer.address), segment);
            for part in parts.clone() {
                batch.push_datagram(part);
            }
            let Err(error) = batch.send(fd) else {
                self.sent += count as u64;
                return Ok(());
            };
            failed += 1;
            let segment = segment.map(usize::from);
            if !matches!(
                self.classify_error(&error, failed, segment, id),
                SendOutcome::Retry
            ) {
                return Err(error);
            }
        }
    }
}

impl Drop for UdpTx {
    /// Gives appended frames to the kernel, as far as it has room.
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

/// The socket by which datagrams to a peer leave, and whether that is the connected one.
#[inline]
fn socket_to<'a>(
    shared: &'a Shared,
    connected: &'a Option<Arc<ConnectedSocket>>,
    peer: u32,
) -> (BorrowedFd<'a>, bool) {
    match connected {
        Some(connected) if connected.peer.0 == peer => (connected.fd(), true),
        _ => (shared.fd(), false),
    }
}

/// How many datagrams at the start of `queue` can leave as one message: all go to one peer, and
/// all but the last have the same size.
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
    /// If the frame and its preamble exceed the largest datagram of this device.
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
            "a frame of {frame} bytes exceeds the largest datagram of this device"
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

    /// Never fails. Datagrams that the socket has no room for stay queued. Those that can never be
    /// sent, or that an interface's full queue refused, are lost as on a network.
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
        // Twice, because the first call may fail with a late report about another datagram.
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

    fn address(&self, id: PeerId) -> Option<SocketAddr> {
        self.address_of(id).map(RawAddr::to_std)
    }

    fn peer_info(&self, id: PeerId) -> PeerInfo {
        let address = self.address(id);
        address.map_or_else(PeerInfo::default, |address| {
            PeerInfo::of_address("udp://", address)
        })
    }

    fn limit_datagram(&mut self, id: PeerId, bytes: usize) {
        if let Some(peer) = self.peers.get_mut(id.0 as usize).filter(|peer| peer.live) {
            peer.lower(bytes);
        }
    }

    /// Zero for a closed peer.
    #[inline]
    fn max_datagram(&self, id: PeerId) -> usize {
        let peer = self.peers.get(id.0 as usize).filter(|peer| peer.live);
        peer.map_or(0, |peer| peer.max_datagram as usize)
    }
}

#[cfg(test)]
mod tests;
