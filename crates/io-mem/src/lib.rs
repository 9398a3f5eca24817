//! Packet I/O between endpoints of one process: `mem://name`, for tests of services without a network.
//!
//! This crate must not know the session protocol.
//!
//! [`MemIo`] is a [`starling_io::PacketIo`]. It delivers each datagram once, in order, as long as both
//! ends live. A sender has a bounded number of bytes on the way to a receiver. Beyond it, the sender
//! waits. A receiver in another process is not found, also not in a fork of the process.
//!
//! ```text
//!  MemTx ── append: an open datagram for each peer ── flush ──▶ Port of the receiver ──▶ MemRx
//! ```
//!
//! | module | holds |
//! |---|---|
//! | `port` | where a device receives; the table of the names in this process |
//! | `peers` | the devices that a device sends to and hears from |
//! | `device` | [`MemIo`]: opening, events, sleeping |
//! | `rx`, `tx` | its two halves |
//! | `named` | [`starling_io::Device`]: opening it by its address |

#![forbid(unsafe_code)]

mod device;
mod named;
mod peers;
mod port;
mod rx;
mod tx;

pub use device::MemIo;
pub use rx::MemRx;
pub use tx::MemTx;

/// The largest datagram, in bytes.
const MAX_DATAGRAM: usize = 65_536;
/// Bytes on the way from one device to another, at most.
const LINK_BYTES: usize = 1 << 20;
