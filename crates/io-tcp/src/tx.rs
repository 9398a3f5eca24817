//! The sending half: what waits for each peer, and as few system calls as possible.
//!
//! Frames are copied behind what waits for their peer. A flush gives all of it to the kernel by one system call. A
//! frame with a large body is not copied: the kernel gathers what waits and the frame's parts at once.
//!
//! A peer that reads slowly is *blocked* from when the kernel has no more room for it until the kernel reports
//! some. Up to [`MAX_WAITING`] bytes wait for it meanwhile; then the device is full for that peer, and for no other.

use std::io::IoSlice;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use starling_io::{Fault, IoError, Origin, PacketTx, PeerId, PeerInfo, TxError};

use crate::frame::{Code, LENGTH_BYTES, hello};
use crate::outgoing::Outgoing;
use crate::poller::{Interest, Poller};
use crate::sockets;

/// The kernel gathers bodies of this size and more instead of a copy, as in `io-udp`.
const GATHER_FROM: usize = 16 << 10;

/// So much of what waits for one peer is sent before the flush.
const SEND_FROM: usize = 64 << 10;

/// The most bytes that wait for a blocked peer.
const MAX_WAITING: usize = 128 << 10;

/// Buffers without a user that are kept.
const MAX_SPARE: usize = 8;

struct TxPeer {
    socket: Arc<OwnedFd>,
    address: SocketAddr,
    outgoing: Outgoing,
    max_datagram: usize,
    /// The kernel has no room, or the connection is not there yet.
    is_blocked: bool,
    /// The kernel reports when it has some.
    is_watched: bool,
    /// It is in the list of those to flush.
    is_begun: bool,
    /// The connection is over; the receiving half learns it, too.
    is_broken: bool,
}

/// The sending half of a [`TcpIo`](crate::TcpIo).
pub struct TcpTx {
    poller: Arc<Poller>,
    /// By peer number.
    peers: Vec<Option<TxPeer>>,
    /// Peers with something to send.
    begun: Vec<u32>,
    spare: Vec<Vec<u8>>,
    max_datagram: usize,
    sent: u64,
}

impl TcpTx {
    pub(crate) fn new(poller: &Arc<Poller>, max_datagram: usize) -> Self {
        Self {
            poller: Arc::clone(poller),
            peers: Vec::new(),
            begun: Vec::new(),
            spare: Vec::new(),
            max_datagram,
            sent: 0,
        }
    }

    /// A connection to `address`. One that is not there yet becomes writable when it is.
    pub(crate) fn insert(
        &mut self,
        number: u32,
        socket: Arc<OwnedFd>,
        address: SocketAddr,
        is_connected: bool,
    ) {
        let index = number as usize;
        if self.peers.len() <= index {
            self.peers.resize_with(index + 1, || None);
        }
        let mut outgoing = Outgoing::default();
        outgoing.extend(&hello(Code::Welcome));
        self.peers[index] = Some(TxPeer {
            socket,
            address,
            outgoing,
            max_datagram: self.max_datagram,
            is_blocked: !is_connected,
            is_watched: !is_connected,
            is_begun: false,
            is_broken: false,
        });
    }

    pub(crate) fn remove(&mut self, number: u32) {
        if let Some(peer) = self.peers[number as usize].take() {
            recycle(&mut self.spare, peer.outgoing);
        }
    }

    /// The peer can be sent to again.
    pub(crate) fn handle_writable(&mut self, number: u32) {
        let Some(Some(peer)) = self.peers.get_mut(number as usize) else {
            return;
        };
        peer.is_blocked = false;
        peer.write(number, &self.poller, &mut self.spare);
        if !peer.is_blocked && mem::take(&mut peer.is_watched) {
            self.poller
                .modify(&*peer.socket, number.into(), Interest::Read);
        }
    }

    /// Gives the kernel what waits for the peer, also if it has to take more than it would otherwise. Then nothing
    /// more is to be sent.
    pub(crate) fn finish(&mut self, number: u32) {
        if let Some(Some(peer)) = self.peers.get_mut(number as usize)
            && !peer.outgoing.is_empty()
        {
            sockets::make_room(&peer.socket);
            peer.is_blocked = false;
            peer.write(number, &self.poller, &mut self.spare);
        }
    }

    /// Datagrams that peers were sent so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// The live peer of this number.
    fn peer(&self, id: PeerId) -> Option<&TxPeer> {
        self.peers.get(id.0 as usize)?.as_ref()
    }
}

/// Keeps memory for a later datagram.
fn recycle(spare: &mut Vec<Vec<u8>>, mut outgoing: Outgoing) {
    let memory = outgoing.release();
    if spare.len() < MAX_SPARE && memory.capacity() > 0 {
        spare.push(memory);
    }
}

impl TxPeer {
    /// Sends what waits, as far as the kernel has room.
    fn write(&mut self, number: u32, poller: &Poller, spare: &mut Vec<Vec<u8>>) {
        self.outgoing.seal();
        while !self.outgoing.is_empty() && !self.is_blocked && !self.is_broken {
            let result = sockets::send(&self.socket, self.outgoing.unsent());
            self.handle_sent(result, number, poller);
        }
        if self.outgoing.is_empty() {
            recycle(spare, mem::take(&mut self.outgoing));
        }
    }

    /// Takes in what became of an attempt to send all that waits. Returns how many bytes the kernel has of what came
    /// behind it.
    fn handle_sent(
        &mut self,
        result: rustix::io::Result<usize>,
        number: u32,
        poller: &Poller,
    ) -> usize {
        match result {
            Ok(count) => {
                let waited = self.outgoing.len();
                self.outgoing.take(count.min(waited));
                if count < waited {
                    self.block(number, poller);
                }
                count.saturating_sub(waited)
            }
            Err(Errno::INTR) => 0,
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                self.block(number, poller);
                0
            }
            Err(_) => {
                self.is_broken = true;
                self.outgoing = Outgoing::default();
                0
            }
        }
    }

    fn block(&mut self, number: u32, poller: &Poller) {
        self.is_blocked = true;
        if !mem::replace(&mut self.is_watched, true) {
            poller.modify(&*self.socket, number.into(), Interest::ReadAndWrite);
        }
    }

    /// Makes room in the open datagram for a frame of so many bytes, or opens another one. Returns whether it has.
    fn announce(&mut self, preamble: &[u8; 8], frame: usize) -> bool {
        let fits = self.outgoing.has_room(frame, self.max_datagram);
        if fits {
            self.outgoing.grow(frame);
        } else {
            self.outgoing.begin(preamble.len() + frame);
            self.outgoing.extend(preamble);
        }
        !fits
    }

    /// Sends what waits and behind it the parts of a frame that was announced, without a copy of what the kernel has
    /// room for.
    fn gather(&mut self, parts: [&[u8]; 3], number: u32, poller: &Poller) {
        let [head, body, tail] = parts;
        let all = [self.outgoing.unsent(), head, body, tail].map(IoSlice::new);
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let mut control = SendAncillaryBuffer::default();
        let result = rustix::net::sendmsg(&*self.socket, &all, &mut control, flags);
        let mut taken = self.handle_sent(result, number, poller);
        if self.is_broken {
            return;
        }
        for part in parts {
            let of_part = taken.min(part.len());
            taken -= of_part;
            self.outgoing.extend(&part[of_part..]);
        }
        self.outgoing.seal();
    }
}

impl PacketTx for TcpTx {
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
            preamble.len() + frame <= self.max_datagram,
            "a frame of {frame} bytes exceeds the largest datagram of this device"
        );
        let peer = match self.peers.get_mut(id.0 as usize) {
            Some(Some(peer)) if !peer.is_broken => peer,
            _ => return Err(TxError::Gone),
        };
        let added = LENGTH_BYTES + preamble.len() + frame;
        if peer.is_blocked && peer.outgoing.len() + added > MAX_WAITING {
            // There may be room by now: a busy loop looks for the report of that only now and then.
            peer.is_blocked = false;
            peer.write(id.0, &self.poller, &mut self.spare);
            if peer.is_blocked && peer.outgoing.len() + added > MAX_WAITING {
                return Err(TxError::Full);
            }
        }
        let spare = &mut self.spare;
        peer.outgoing.provide(|| spare.pop().unwrap_or_default());
        self.sent += u64::from(peer.announce(preamble, frame));
        if body.len() + tail.len() >= GATHER_FROM && !peer.is_blocked {
            peer.gather([head, body, tail], id.0, &self.poller);
        } else {
            for part in [head, body, tail] {
                peer.outgoing.extend(part);
            }
            if peer.outgoing.len() >= SEND_FROM && !peer.is_blocked {
                peer.write(id.0, &self.poller, &mut self.spare);
            }
        }
        if !mem::replace(&mut peer.is_begun, true) {
            self.begun.push(id.0);
        }
        Ok(())
    }

    #[inline]
    fn seal(&mut self, id: PeerId) {
        if let Some(Some(peer)) = self.peers.get_mut(id.0 as usize) {
            peer.outgoing.seal();
        }
    }

    /// Never fails. What the kernel has no room for waits.
    #[inline]
    fn flush(&mut self) -> Result<(), IoError> {
        while let Some(number) = self.begun.pop() {
            if let Some(Some(peer)) = self.peers.get_mut(number as usize)
                && mem::take(&mut peer.is_begun)
            {
                peer.write(number, &self.poller, &mut self.spare);
            }
        }
        Ok(())
    }

    /// There are no unknown senders: each has connected.
    fn send_to_unknown(&mut self, _to: SocketAddr, _datagram: &[u8]) {}

    fn accept_peer(&mut self, address: SocketAddr) -> Result<PeerId, IoError> {
        Err(IoError::new(
            Fault::Caller,
            format!("make a peer of {address}"),
            "a peer of this device connects before it sends",
            "this is a bug of the caller: its peers are known when they send",
        ))
    }

    fn origin(&self, id: PeerId) -> Origin {
        let peer = self.peer(id);
        peer.map_or(Origin(id.0.into()), |peer| Origin::of_address(peer.address))
    }

    fn peer_info(&self, id: PeerId) -> PeerInfo {
        let peer = self.peer(id);
        peer.map_or_else(PeerInfo::default, |peer| {
            let address = SocketAddr::new(peer.address.ip().to_canonical(), peer.address.port());
            PeerInfo::of_address("tcp://", address)
        })
    }

    fn limit_datagram(&mut self, id: PeerId, bytes: usize) {
        if let Some(Some(peer)) = self.peers.get_mut(id.0 as usize) {
            peer.max_datagram = peer.max_datagram.min(bytes);
        }
    }

    /// Zero for a closed peer.
    #[inline]
    fn max_datagram(&self, id: PeerId) -> usize {
        self.peer(id).map_or(0, |peer| peer.max_datagram)
    }
}
