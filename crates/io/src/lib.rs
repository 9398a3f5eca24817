//! Packet I/O as the endpoint sees it: datagrams in, datagrams out, whatever their content.
//!
//! A *device* connects one event loop to the network, and one thread uses it at a time: a UDP
//! socket, a set of shared-memory rings, a simulated network card. It implements [`PacketIo`] and
//! has two halves that can be borrowed at the same time. So a datagram is read in place
//! ([`PacketRx`]) while the answers to it are being assembled ([`PacketTx`]).
//!
//! ```text
//!            rx_burst          datagram(i)                 append, append, ...      flush
//!  network ───────────▶ [0..n) ───────────▶ event loop ──────────────────────▶ open ───────▶ network
//!                       private copies                     one open datagram       datagrams
//!                       or device memory                   for each peer
//! ```
//!
//! The order of calls within one turn of an event loop: [`PacketRx::rx_burst`], then
//! [`PacketRx::datagram`] for each datagram, interleaved with [`PacketTx::append`], then
//! [`PacketTx::flush`] once. Frames that are appended for one peer between two flushes leave in as
//! few datagrams as fit (*bundling*). Nothing waits longer than the flush.
//!
//! Datagrams may be lost, duplicated, reordered and corrupted. They are never split or merged.
//!
//! A device that an address names implements [`Device`], too: its scheme, and how it is opened.

mod clock;
mod device;
mod error;
mod fork;
mod freed_memory;
mod host_port;
mod peer_info;
mod reactor;
mod report;
mod steer;
mod thread_wait;
mod waker;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

pub use clock::{Clock, ManualTime, Mark, MonotonicClock};
pub use device::Device;
pub use error::{Fault, IoError, IoErrorParts};
pub use fork::forks;
pub use freed_memory::return_freed_memory;
pub use host_port::HostPort;
pub use peer_info::{PeerInfo, PeerProcess};
pub use reactor::ReactorSet;
pub use report::DeviceReport;
pub use starling_msgbuf::{LARGE_BYTES, MessageMemory, PacketMemory, PeerMemory};
pub use steer::{MATCH_BYTES, MatchTable, Steered, Steering, WorkerIo};
pub use thread_wait::ThreadWait;
pub use waker::EventfdWaker;

/// The most datagrams that one [`PacketRx::rx_burst`] returns.
pub const MAX_BURST: usize = 64;

/// A device's number of a peer endpoint: dense, reused only after [`PacketIo::close_peer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// The host or user that a peer belongs to, for shares that are fair: one host has as many peers as it opens
/// ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin(pub u64);

impl Origin {
    /// The host of an address: all of an IPv4 address, and the first half of an IPv6 address, which is one
    /// network. A host is given no less of IPv6 (RFC 6177).
    pub fn of_address(address: SocketAddr) -> Self {
        match address.ip().to_canonical() {
            // No network of IPv6 has these numbers: they are mapped addresses (RFC 4291, 2.5.5.2).
            IpAddr::V4(ip) => Self(0xffff_0000_0000 | u64::from(u32::from(ip))),
            IpAddr::V6(ip) => Self((u128::from(ip) >> 64) as u64),
        }
    }
}

/// Explicit congestion notification bits of the IP header (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// The sender does not take part, or the device has no such bits.
    #[default]
    NotCapable,
    /// The sender takes part; no queue has marked the datagram.
    Capable,
    /// A queue on the path was congested.
    CongestionExperienced,
}

/// Where a datagram came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A peer that was opened or accepted before.
    Peer(PeerId),
    /// An address that is no peer (yet). It takes no memory here before [`PacketTx::accept_peer`].
    Unknown(SocketAddr),
}

/// One received datagram, readable until the next [`PacketRx::rx_burst`].
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The sender.
    pub source: Source,
    /// The mark that the network's queues have set.
    pub ecn: Ecn,
    /// The payload, in memory that no other process can change.
    pub bytes: &'a [u8],
}

/// The features and limits of a device. Constant for the life of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Scheme of its addresses: `udp`, `tcp`, `shm`, `sim`.
    pub scheme: &'static str,
    /// No datagram is lost, reordered or corrupted while both ends live (shared memory, TCP).
    pub reliable: bool,
    /// ECN bits are set on sent datagrams and read from received ones.
    pub ecn: bool,
    /// Bytes that the receive queue holds before the device drops datagrams, for all peers
    /// together.
    pub rx_queue_bytes: usize,
    /// Datagrams that the receive queue holds before the device drops some, for all peers together.
    pub rx_queue_datagrams: usize,
    /// The largest datagram payload for any peer, in bytes. A path may allow less.
    pub max_datagram: usize,
}

/// Something that happened to a device outside the flow of datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IoEvent {
    /// The peer's process is gone: its socket hung up, or its port is closed. The peer stays
    /// allocated until [`PacketIo::close_peer`].
    PeerGone(PeerId, PeerGone),
}

/// How certain [`IoEvent::PeerGone`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerGone {
    /// The kernel saw the process end or the connection close.
    Certain,
    /// The peer's device refused this one.
    Refused(PeerRefusal),
    /// The network reported it (ICMP port unreachable). Anyone on the path can forge that.
    Suspected,
}

/// Why a device refused a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRefusal {
    /// It has as many peers as it may.
    Full,
    /// It accepts no process of this user.
    NotPermitted,
    /// It has another version.
    OtherVersion,
    /// It serves itself, and reaches nobody else for its peers.
    TakesNoTargets,
    /// It does not accept this end's offer.
    Unacceptable,
    /// Something else has the address: it does not answer as such a device does.
    Nonsense,
}

/// The right to wake a thread that sleeps in [`PacketIo::wait`], for use by other threads.
pub trait Wake: Send + Sync {
    /// Ends the current or the next wait. Cheap when no thread sleeps. Never blocks.
    fn wake(&self);

    /// Some number while a thread sleeps by this, with nothing there to end the sleep; another number in each
    /// sleep. Also if nobody is to do anything until it is woken. None: not so, or not known. For tests that
    /// move time by hand.
    fn at_rest(&self) -> Option<u64> {
        None
    }
}

/// Whether a reactor can wait for a device now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReactorWait {
    /// It waits. The owner of the device ends the wait before it uses the device again.
    Begun,
    /// Something may have arrived.
    Ready,
    /// A thread has to wait.
    Unsupported,
}

/// A device: packet I/O for one thread.
pub trait PacketIo {
    /// The receiving half.
    type Rx: PacketRx;
    /// The sending half.
    type Tx: PacketTx;

    /// Both halves, borrowed at once.
    fn split(&mut self) -> (&mut Self::Rx, &mut Self::Tx);

    /// The features and limits of the device.
    fn capabilities(&self) -> &Capabilities;

    /// The address at which peers reach this device, such as `udp://127.0.0.1:9000` or
    /// `shm://name`.
    fn local_address(&self) -> String;

    /// Makes a peer of an address (with its scheme). May make system calls, but does not wait for
    /// the network. A second call with the same address may return the same peer.
    fn open_peer(&mut self, address: &str) -> Result<PeerId, IoError>;

    /// Forgets a peer, and perhaps its datagrams that are not flushed yet. A datagram that
    /// arrives from it afterwards comes from an unknown address, or makes it a peer again where the
    /// kernel confirms the sender.
    fn close_peer(&mut self, peer: PeerId);

    /// The largest datagram payload that the path to `peer` takes, in bytes.
    fn max_datagram(&self, peer: PeerId) -> usize;

    /// The next event, if any. An idle loop calls this each turn, a busy one now and then. So it
    /// may make a system call only if something is likely to be there.
    fn poll_event(&mut self) -> Option<IoEvent>;

    /// Sleeps until a datagram or an event may be there, the waker was used, or `timeout` is over.
    /// May return early for no reason. Returns at once if a datagram arrived before the call.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), IoError>;

    /// A descriptor for an executor's reactor, which watches it in place of a thread that waits. It becomes
    /// readable when a wait would end, between [`PacketIo::begin_wait`] and [`PacketIo::end_wait`]. It may become
    /// readable for no reason, and the reactor has to see each change, as with edge-triggered epoll. None: a
    /// thread has to wait.
    fn descriptor(&mut self) -> Option<OwnedFd> {
        None
    }

    /// A reactor begins to watch the descriptor. To be called after the reactor has found that it is not readable.
    fn begin_wait(&mut self) -> Result<ReactorWait, IoError> {
        Ok(ReactorWait::Unsupported)
    }

    /// The wait is over that began with [`ReactorWait::Begun`].
    fn end_wait(&mut self) -> Result<(), IoError> {
        Ok(())
    }

    /// Memory from which the device sends without a copy. The device gathers a part that was made in
    /// this memory, if it is the last part of a frame and large enough to be worth it.
    fn memory(&self) -> MessageMemory {
        MessageMemory::default()
    }

    /// A handle for other threads to end a [`PacketIo::wait`].
    fn waker(&self) -> Arc<dyn Wake>;

    /// The device's mode and counts. May make system calls.
    fn report(&self) -> DeviceReport {
        DeviceReport::default()
    }

    /// Has the device itself place datagrams that match `table` on `workers` workers, each of which
    /// has at most `depth` at a time. Once for a device.
    ///
    /// # Errors
    /// If it cannot, which most devices cannot.
    fn steer(&mut self, workers: usize, depth: u8, table: &MatchTable) -> Result<Steered, IoError> {
        let _ = (workers, depth, table);
        Err(IoError::new(
            Fault::Caller,
            format!("have {} place datagrams on workers", self.local_address()),
            format!("{} devices cannot do that", self.capabilities().scheme),
            "use an xdp:// address, or another queue model",
        ))
    }
}

/// The receiving half of a device.
pub trait PacketRx {
    /// Gives back the datagrams of the last burst, takes the next ones, at most [`MAX_BURST`], and
    /// returns how many. Never blocks.
    fn rx_burst(&mut self) -> Result<usize, IoError>;

    /// Datagram `index` of the current burst.
    ///
    /// # Panics
    /// If `index` is not below the number that [`PacketRx::rx_burst`] returned.
    fn datagram(&self, index: usize) -> Datagram<'_>;

    /// From now on the device may leave the tails of datagrams in their senders' memory, if `takes` is
    /// true of the bytes in front. [`PacketRx::datagram`] then has only those, and the caller copies the
    /// tail to where it belongs: one copy in place of two.
    fn leave_tails(&mut self, takes: fn(&[u8]) -> bool) {
        let _ = takes;
    }

    /// Bytes of datagram `index` that the device has left in its sender's memory.
    #[inline]
    fn tail_bytes(&self, index: usize) -> usize {
        let _ = index;
        0
    }

    /// Appends the tail of datagram `index`. False if the sender has taken its memory back: the datagram is
    /// lost, and what was appended is worth nothing.
    fn append_tail(&self, index: usize, buffer: &mut Vec<u8>) -> bool {
        let _ = (index, buffer);
        false
    }

    /// Copies the tail of datagram `index` to a slice of its length. False as for
    /// [`PacketRx::append_tail`].
    fn copy_tail(&self, index: usize, into: &mut [u8]) -> bool {
        let _ = (index, into);
        false
    }
}

/// Why [`PacketTx::append`] took nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxError {
    /// No room now: the ring or the send queue is full. Try again after a flush.
    Full,
    /// The peer is closed or gone. The frame can never be sent.
    Gone,
}

/// The sending half of a device.
pub trait PacketTx {
    /// Appends `head`, `body` and `tail` (parts of one frame) to the datagram open for `peer`.
    /// If none is open, or it has no room for the whole frame, the device begins a new one that
    /// starts with `preamble`. The previous one is closed and leaves at the next flush, or earlier.
    ///
    /// When this returns, the parts are copied or sent. The device keeps no reference to them,
    /// except to a `tail` in its own memory ([`PacketIo::memory`]): nobody can write to that, and
    /// the device does not use it for anything else before it is sent.
    ///
    /// `preamble`, `head`, `body` and `tail` together must not exceed the peer's largest datagram.
    fn append(
        &mut self,
        peer: PeerId,
        preamble: &[u8; 8],
        head: &[u8],
        body: &[u8],
        tail: &[u8],
    ) -> Result<(), TxError>;

    /// Closes the datagram open for `peer`, so that the next frame starts a new one.
    fn seal(&mut self, peer: PeerId);

    /// Sends everything appended so far. The device keeps datagrams for which it has no room until the
    /// next flush. Errors of single peers become [`IoEvent`]s.
    fn flush(&mut self) -> Result<(), IoError>;

    /// Sends one whole datagram to an address that is no peer, best effort.
    fn send_to_unknown(&mut self, to: SocketAddr, datagram: &[u8]);

    /// Makes a peer of an unknown address.
    fn accept_peer(&mut self, address: SocketAddr) -> Result<PeerId, IoError>;

    /// The address from which a peer sends, as [`PacketTx::accept_peer`] and unknown senders have it. `None`, the
    /// default: a peer has none, because the kernel knows who sends.
    fn address(&self, peer: PeerId) -> Option<SocketAddr> {
        let _ = peer;
        None
    }

    /// The host or user that a peer belongs to: peers that one party can make at will have the same one, so
    /// that they share what one may have. The default: the host of its address; without one, each peer is of its own.
    fn origin(&self, peer: PeerId) -> Origin {
        let address = self.address(peer);
        address.map_or(Origin(u64::from(peer.0)), Origin::of_address)
    }

    /// What the device knows of a peer. Not for each datagram: it may make system calls.
    fn peer_info(&self, peer: PeerId) -> PeerInfo {
        PeerInfo {
            address: format!("peer:{}", peer.0),
            ..PeerInfo::default()
        }
    }

    /// From now on datagrams to `peer` have at most this payload, in bytes: its interface may have
    /// a smaller MTU than any on the path that this host knows. Of several limits the smallest
    /// counts, until the peer is closed.
    fn limit_datagram(&mut self, peer: PeerId, bytes: usize) {
        let _ = (peer, bytes);
    }

    /// The largest datagram payload that the path to `peer` takes, in bytes, as
    /// [`PacketIo::max_datagram`]: a peer is accepted, and gets its limit, in the middle of a
    /// burst, by code that has only this half. The default fits every path: it is IPv6's minimum MTU
    /// of 1280 bytes less 80 of headers.
    fn max_datagram(&self, peer: PeerId) -> usize {
        let _ = peer;
        1200
    }
}
