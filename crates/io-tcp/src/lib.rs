//! Packet I/O over TCP connections, for networks that pass nothing else.
//!
//! This crate must not know the session protocol, and must not trust the other end.
//!
//! [`TcpIo`] is a [`starling_io::PacketIo`]. It has one connection for each peer: the end that opens the peer
//! connects, the end that is bound accepts. Datagrams follow each other in the stream, each behind its length
//! ([`frame`]). So no datagram is lost, repeated or reordered while both ends live.
//!
//! ```text
//!  TcpTx ── append: copied behind what waits ── flush: one system call a peer ──▶ kernel ──▶ network
//!                   (large frames: gathered at once from where they lie)
//!  network ──▶ kernel ──▶ one read, many datagrams ── TcpRx: read in place
//!                                                     └ the end that is cut waits beside its connection
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`frame`] | what goes over a connection, and what is refused |
//! | [`rx`], [`tx`] | the two halves of the device |
//! | [`outgoing`] | what waits to be sent to one peer |
//! | [`device`] | [`TcpIo`]: events, sleeping; beside it who gets a place, and how connections begin and end |
//! | [`poller`], [`sockets`] | system calls, in the form that this crate uses |
//! | [`named`] | [`starling_io::Device`]: opening it by its address |

#![forbid(unsafe_code)]
#![allow(rustdoc::private_intra_doc_links)]

mod config;
mod device;
mod frame;
mod named;
mod outgoing;
mod poller;
mod rx;
mod sockets;
mod tx;

pub use config::{PeersBudget, TcpConfig};
pub use device::TcpIo;
pub use rx::TcpRx;
pub use tx::TcpTx;
