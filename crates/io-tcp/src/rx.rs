//! The receiving half: large reads into one buffer, and the datagrams in it, read in place.
//!
//! ```text
//!  buffer  │ datagrams of A ... │ what is left of A's, for later bursts │ room
//!          └ this burst         └ rest: nothing else is read before it
//! ```
//!
//! A read takes what one connection has, up to [`READ_BYTES`], and connections with something to read take turns.
//! The beginning of a datagram at the end of a read waits beside its connection, and is put in front of the next
//! read.

use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::RecvFlags;
use starling_io::{Datagram, Ecn, Fault, IoError, MAX_BURST, PacketRx, PeerId, Source};

use crate::frame::{Decoder, Defect, MAX_FRAME_BYTES};
use crate::poller::{Poller, Ready};

/// The most bytes of one read. It bounds what one peer has before others get their turn.
const READ_BYTES: usize = 128 << 10;

/// Of a peer whose last read had more datagrams than this, less is read: each burst has a bounded number of them.
const MANY: usize = 4 * MAX_BURST;
const FEW_BYTES: usize = 8 << 10;

/// Room for a full read, and behind it for another one behind the beginning of a datagram.
const BUFFER_BYTES: usize = READ_BYTES + 2 * MAX_FRAME_BYTES;

/// A connection is read from only if so much room is left, so that any datagram that it has begun fits.
const ROOM_BYTES: usize = 2 * MAX_FRAME_BYTES;

/// The most connections with room to send that are remembered. The set reports the others again.
const MAX_WRITABLE: usize = 64;

/// Key of the listening socket. Keys of connections are peers' numbers.
pub(crate) const LISTENER_KEY: u64 = 1 << 62;
/// Key of the timer.
pub(crate) const TIMER_KEY: u64 = LISTENER_KEY + 1;

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It never began, the peer has closed it, or the network has.
    HungUp,
    /// The peer has sent something that ends it.
    Defect(Defect),
}

/// What the device has to do beside receiving.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    /// Connections wait to be accepted.
    pub(crate) is_connecting: bool,
    /// The timer has rung.
    pub(crate) has_rung: bool,
    /// Peers that can be sent to again.
    pub(crate) writable: Vec<u32>,
    /// Peers whose connection is over. All their datagrams are delivered.
    pub(crate) ended: Vec<(u32, End)>,
}

impl Notices {
    fn is_empty(&self) -> bool {
        !self.is_connecting && !self.has_rung && self.writable.is_empty() && self.ended.is_empty()
    }
}

struct RxPeer {
    socket: Arc<OwnedFd>,
    decoder: Decoder,
    /// The beginning of a datagram.
    partial: Vec<u8>,
    /// A datagram of it was received.
    has_sent: bool,
    /// Bytes of the next read, and datagrams in the last one.
    read_bytes: usize,
    datagrams: usize,
}

/// Bytes of the buffer that hold datagrams for later bursts, up to its end.
struct Rest {
    peer: u32,
    at: usize,
}

/// The receiving half of a [`TcpIo`](crate::TcpIo).
pub struct TcpRx {
    poller: Arc<Poller>,
    /// By peer number.
    peers: Vec<Option<RxPeer>>,
    /// Peers with something to read.
    ready: VecDeque<u32>,
    buffer: Box<[u8]>,
    /// So many bytes of the buffer are in use.
    end: usize,
    rest: Option<Rest>,
    burst: Vec<(PeerId, Range<usize>)>,
    notices: Notices,
    received: u64,
}

impl TcpRx {
    pub(crate) fn new(poller: &Arc<Poller>) -> Self {
        Self {
            poller: Arc::clone(poller),
            peers: Vec::new(),
            ready: VecDeque::new(),
            // The kernel hands out zeroed memory of this size untouched.
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            end: 0,
            rest: None,
            burst: Vec::with_capacity(MAX_BURST),
            notices: Notices::default(),
            received: 0,
        }
    }

    pub(crate) fn insert(&mut self, number: u32, socket: Arc<OwnedFd>) {
        let index = number as usize;
        if self.peers.len() <= index {
            self.peers.resize_with(index + 1, || None);
        }
        assert!(
            self.peers[index].is_none(),
            "peer {number} is there already"
        );
        self.peers[index] = Some(RxPeer {
            socket,
            decoder: Decoder::default(),
            partial: Vec::new(),
            has_sent: false,
            read_bytes: READ_BYTES,
            datagrams: 0,
        });
    }

    /// Removes a peer. Its datagrams of the current burst stay readable, others are dropped.
    pub(crate) fn remove(&mut self, number: u32) {
        self.peers[number as usize] = None;
        self.rest.take_if(|rest| rest.peer == number);
        self.ready.retain(|&other| other != number);
        self.notices.writable.retain(|&other| other != number);
        self.notices.ended.retain(|&(other, _)| other != number);
    }

    /// Whether a datagram of the peer was received.
    pub(crate) fn has_sent(&self, number: u32) -> bool {
        matches!(&self.peers[number as usize], Some(peer) if peer.has_sent)
    }

    /// From now on the peer counts as one that has never sent.
    pub(crate) fn forget_sent(&mut self, number: u32) {
        if let Some(peer) = &mut self.peers[number as usize] {
            peer.has_sent = false;
        }
    }

    /// Whether the next burst has something to look at without asking the kernel.
    pub(crate) fn has_pending(&self) -> bool {
        self.rest.is_some() || !self.ready.is_empty()
    }

    /// What the device has to do, if there is anything.
    #[inline]
    pub(crate) fn notices(&mut self) -> Option<&mut Notices> {
        (!self.notices.is_empty()).then_some(&mut self.notices)
    }

    /// Memory for what nobody reads. Nothing is received any more.
    pub(crate) fn scratch(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    /// Datagrams received so far.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Asks the kernel which files are ready.
    pub(crate) fn look(&mut self) -> rustix::io::Result<()> {
        if !self.ready.is_empty() {
            return Ok(());
        }
        let Self {
            poller,
            ready,
            notices,
            ..
        } = self;
        poller.look(|report: Ready| match report.key {
            LISTENER_KEY => notices.is_connecting = true,
            TIMER_KEY => notices.has_rung = true,
            number => {
                let number = number as u32;
                if report.readable {
                    ready.push_back(number);
                }
                let writable = &mut notices.writable;
                if report.writable && writable.len() < MAX_WRITABLE && !writable.contains(&number) {
                    writable.push(number);
                }
            }
        })
    }

    /// Reads what one connection has.
    fn read(&mut self, number: u32) {
        let Some(Some(peer)) = self.peers.get_mut(number as usize) else {
            return;
        };
        let start = self.end;
        let from = start + peer.partial.len();
        peer.read_bytes = match std::mem::take(&mut peer.datagrams) > MANY {
            true => FEW_BYTES,
            false => READ_BYTES.min(2 * peer.read_bytes),
        };
        let until = self.buffer.len().min(from + peer.read_bytes);
        let room = &mut self.buffer[from..until];
        match rustix::net::recv(&*peer.socket, room, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => self.end(number, End::HungUp),
            Ok((_, count)) => {
                let partial = std::mem::take(&mut peer.partial);
                self.buffer[start..from].copy_from_slice(&partial);
                self.end = from + count;
                self.rest = Some(Rest {
                    peer: number,
                    at: start,
                });
                self.take_rest();
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.end(number, End::HungUp),
        }
    }

    /// Finds datagrams in the bytes that were read, as many as the burst takes.
    fn take_rest(&mut self) {
        let Some(Rest { peer: number, at }) = self.rest.take() else {
            return;
        };
        let Some(Some(peer)) = self.peers.get_mut(number as usize) else {
            return;
        };
        let (bytes, mut at) = (&self.buffer[..self.end], at);
        while self.burst.len() < MAX_BURST {
            match peer.decoder.next(bytes, &mut at) {
                Ok(Some(datagram)) => {
                    peer.has_sent = true;
                    peer.datagrams += 1;
                    self.burst.push((PeerId(number), datagram));
                }
                Ok(None) => {
                    peer.partial.extend_from_slice(&bytes[at..]);
                    return;
                }
                Err(defect) => {
                    self.end(number, End::Defect(defect));
                    return;
                }
            }
        }
        self.rest = Some(Rest { peer: number, at });
    }

    /// Nothing more comes from the peer.
    fn end(&mut self, number: u32, why: End) {
        if let Some(Some(peer)) = self.peers.get(number as usize) {
            // It would be reported until the device has closed it.
            self.poller.remove(&*peer.socket);
            self.notices.ended.push((number, why));
        }
    }
}

impl PacketRx for TcpRx {
    fn rx_burst(&mut self) -> Result<usize, IoError> {
        self.burst.clear();
        match self.rest {
            Some(_) => self.take_rest(),
            None => self.end = 0,
        }
        if self.burst.len() < MAX_BURST {
            self.look().map_err(|error| {
                let remedy = "this is a bug of Starling: report it";
                IoError::from_os(Fault::Host, "receive", error.into(), remedy)
            })?;
        }
        while self.burst.len() < MAX_BURST
            && self.rest.is_none()
            && self.buffer.len() - self.end >= ROOM_BYTES
            && let Some(number) = self.ready.pop_front()
        {
            self.read(number);
        }
        self.received += self.burst.len() as u64;
        Ok(self.burst.len())
    }

    #[inline]
    fn datagram(&self, index: usize) -> Datagram<'_> {
        let (peer, range) = &self.burst[index];
        Datagram {
            source: Source::Peer(*peer),
            ecn: Ecn::NotCapable,
            bytes: &self.buffer[range.clone()],
        }
    }
}
