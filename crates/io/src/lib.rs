//! Packet I/O as the endpoint sees it: datagrams in, datagrams out, nothing about what is in them.
//!
//! A *device* is one thread's way to the network: a UDP socket, a set of shared-memory rings, a
//! simulated NIC. It implements [`PacketIo`] and is made of two halves that can be borrowed at the
//! same time, so that a datagram is read in place ([`PacketRx`]) while the answers to it are being
//! assembled ([`PacketTx`]).
//!
//! ```text
//!            rx_burst          datagram(i)                 append, append, ...      flush
//!  network ───────────▶ [0..n) ───────────▶ event loop ──────────────────────▶ open ───────▶ network
//!                       private copies                     one open datagram       datagrams
//!                       or device memory                   for each peer
//! ```
//!
//! The order of calls within one turn of an event loop: [`PacketRx::rx_burst`], then
//! [`PacketRx::datagram`] for each of them interleaved with [`PacketTx::append`], then
//! [`PacketTx::flush`] once. What is appended for one peer between two flushes leaves in as few
//! datagrams as fit (*bundling*); nothing waits longer than the flush.
//!
//! Datagrams may be lost, duplicated, reordered and corrupted; they are never split or merged.

mod clock;
mod error;
mod memory;
mod report;
mod steer;
mod waker;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use clock::{Clock, Mark, MonotonicClock};
pub use error::{Fault, IoError};
pub use memory::{MessageMemory, PacketMemory};
pub use report::DeviceReport;
pub use steer::{MATCH_BYTES, MatchTable, Steered, Steering, WorkerIo};
pub use waker::EventfdWaker;

/// The most datagrams that one [`PacketRx::rx_burst`] returns.
pub const MAX_BURST: usize = 64;

/// A peer endpoint, as one device numbers it: dense, reused only after [`PacketIo::close_peer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

/// Explicit congestion notification bits of the IP header (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ecn {
    /// The sender does not take part, or the device has no such bits.
    #[default]
    NotCapable,
    /// The sender takes part; no queue has marked the datagram.
    Capable,
    /// A queue on the way was congested.
    CongestionExperienced,
}

/// Where a datagram came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A peer that was opened or accepted before.
    Peer(PeerId),
    /// An address that is no peer (yet). It holds no memory here until [`PacketTx::accept_peer`].
    Unknown(SocketAddr),
}

/// One received datagram, readable until the next [`PacketRx::rx_burst`].
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The sender.
    pub source: Source,
    /// What the network said about its queues.
    pub ecn: Ecn,
    /// The payload, in memory that no other process can change.
    pub bytes: &'a [u8],
}

/// What a device can do and hold. Constant for the life of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Scheme of its addresses: `udp`, `shm`, `sim`.
    pub scheme: &'static str,
    /// No datagram is lost, reordered or corrupted while both ends live (shared memory).
    pub reliable: bool,
    /// ECN bits are set on sent datagrams and read from received ones.
    pub ecn: bool,
    /// Bytes that the receive queue holds before the device drops datagrams, all peers together.
    pub rx_queue_bytes: usize,
    /// Datagrams that the receive queue holds before the device drops, all peers together.
    pub rx_queue_datagrams: usize,
    /// The largest datagram payload for any peer, in bytes; a path may allow less.
    pub max_datagram: usize,
}

/// Something that happened to a device outside the flow of datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IoEvent {
    /// The peer's process is known to be gone (its socket hung up, its port is closed).
    /// The peer stays allocated until [`PacketIo::close_peer`].
    PeerGone(PeerId, PeerGone),
}

/// How certain [`IoEvent::PeerGone`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerGone {
    /// The kernel saw the process end or the connection close.
    Certain,
    /// The peer's device did not take this one in.
    Refused(PeerRefusal),
    /// The network said so (ICMP port unreachable); anyone on the path could have said it.
    Suspected,
}

/// Why a device did not take a peer in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRefusal {
    /// It has as many peers as it may.
    Full,
    /// It takes in no process of this user.
    NotPermitted,
    /// It is of another version.
    OtherVersion,
    /// It does not accept what this end brought along.
    Unacceptable,
    /// Whatever has the address does not answer as such a device does.
    Nonsense,
}

/// The right to wake a thread that sleeps in [`PacketIo::wait`], for use by other threads.
pub trait Wake: Send + Sync {
    /// Ends the current or the next wait. Cheap when nobody sleeps; never blocks.
    fn wake(&self);
}

/// A device: packet I/O for one thread.
pub trait PacketIo {
    /// The receiving half.
    type Rx: PacketRx;
    /// The sending half.
    type Tx: PacketTx;

    /// Both halves, borrowed at once.
    fn split(&mut self) -> (&mut Self::Rx, &mut Self::Tx);

    /// What the device can do.
    fn capabilities(&self) -> &Capabilities;

    /// The address that peers reach this device at, in the form of section 2 of the
    /// architecture: `udp://127.0.0.1:9000`, `shm://name`.
    fn local_address(&self) -> String;

    /// Makes a peer of an address (with its scheme). May make system calls, does not wait for
    /// the network. The same address may be given the same peer.
    fn open_peer(&mut self, address: &str) -> Result<PeerId, IoError>;

    /// Forgets a peer. Its datagrams that are not flushed yet may be dropped; what arrives from it
    /// afterwards comes from an unknown address, or makes it a peer again where the kernel vouches for it.
    fn close_peer(&mut self, peer: PeerId);

    /// The largest datagram payload that the path to `peer` takes, in bytes.
    fn max_datagram(&self, peer: PeerId) -> usize;

    /// The next event, if any. Called once per turn of an idle loop and now and then in a busy
    /// one: it may make a system call only if something is likely to be there.
    fn poll_event(&mut self) -> Option<IoEvent>;

    /// Sleeps until a datagram or event may be there, the waker was used, or `timeout` is over.
    /// May return early for no reason. A datagram that arrived before the call ends it at once.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<(), IoError>;

    /// Memory that messages are sent from without a copy. What is made in it is gathered where it is
    /// the last part of a frame, and large enough to be worth it.
    fn memory(&self) -> MessageMemory {
        MessageMemory::default()
    }

    /// A handle for other threads to end a [`PacketIo::wait`].
    fn waker(&self) -> Arc<dyn Wake>;

    /// What the device is, and what it has counted. May make system calls.
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
            "use an xdp:// address, or another dispatch mode",
        ))
    }
}

/// The receiving half of a device.
pub trait PacketRx {
    /// Gives back the datagrams of the last burst and takes the next ones, at most
    /// [`MAX_BURST`]; returns how many. Never blocks.
    fn rx_burst(&mut self) -> Result<usize, IoError>;

    /// Datagram `index` of the current burst.
    ///
    /// # Panics
    /// If `index` is not below what [`PacketRx::rx_burst`] returned.
    fn datagram(&self, index: usize) -> Datagram<'_>;
}

/// Why [`PacketTx::append`] took nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxError {
    /// No room now: the ring or the send queue is full. Try again after a flush.
    Full,
    /// The peer is closed or gone: the frame can never be sent.
    Gone,
}

/// The sending half of a device.
pub trait PacketTx {
    /// Appends `head`, `body` and `tail` (parts of one frame) to the datagram open for `peer`.
    /// If none is open, or it has no room for the whole frame, a new one is begun that starts
    /// with `preamble`; the previous one is closed and leaves at the next flush, or earlier.
    /// The parts are copied, or already sent, when this returns: no reference is kept, but to a
    /// `tail` in the device's own memory ([`PacketIo::memory`]), which nobody can write to and which
    /// is not used again while it is needed.
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

    /// Sends everything appended so far. What the device has no room for stays and is tried
    /// again at the next flush. Errors of single peers come up as [`IoEvent`]s.
    fn flush(&mut self) -> Result<(), IoError>;

    /// Sends one whole datagram to an address that is no peer, best effort.
    fn send_to_unknown(&mut self, to: SocketAddr, datagram: &[u8]);

    /// Makes a peer of an unknown address.
    fn accept_peer(&mut self, address: SocketAddr) -> Result<PeerId, IoError>;

    /// `peer` takes no datagrams of more payload than this, in bytes, so no more is to be bundled:
    /// its interface may have a smaller MTU than any on the way that this host knows of. The smallest
    /// of several counts, until the peer is closed.
    fn limit_datagram(&mut self, peer: PeerId, bytes: usize) {
        let _ = (peer, bytes);
    }

    /// The largest datagram payload that the path to `peer` takes, in bytes: what
    /// [`PacketIo::max_datagram`] says, for who holds only this half (a peer is accepted, and
    /// told its limit, in the middle of a burst). Unless overridden, what every path takes:
    /// IPv6's minimum MTU of 1280 bytes less 80 of headers.
    fn max_datagram(&self, peer: PeerId) -> usize {
        let _ = peer;
        1200
    }
}
