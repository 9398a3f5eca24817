//! Packet I/O over shared memory between processes of one host, which find each other by name.
//!
//! Two processes share one piece of memory with four rings in it, two for each direction: one for
//! small datagrams, one for large ones. One core writes a datagram into a ring and another core reads
//! it out: no system call and no lock. A small datagram moves a single cache line between the cores.
//!
//! This crate must not know the session protocol, and must not trust the other process.
//!
//! ```text
//!   process A: ShmIo::client                      process B: ShmIo::bind("shm://kv")
//!  ┌──────────────────────────┐                  ┌──────────────────────────┐
//!  │ ShmTx ── producer ───────┼──▶ rings A → B ──┼──▶ consumer ── ShmRx     │
//!  │ ShmRx ── consumer ◀──────┼─── rings B → A ◀─┼─── producer ── ShmTx     │
//!  │ ShmIo ── connection ◀────┼── Unix socket ───┼──▶ connection ── ShmIo   │
//!  └──────────────────────────┘                  └──────────────────────────┘
//! ```
//!
//! The Unix socket carries the memory in the handshake ([`handshake`]) and a byte to wake a sleeping
//! device ([`sleep`]). It also reports the end of a process, however that ended. The listening socket
//! has an abstract name and the memory has no name, so a killed process leaves nothing behind.
//!
//! | module | holds |
//! |---|---|
//! | [`ring`] | how datagrams cross: the protocol of one ring, and why a hostile peer does no harm |
//! | [`sleep`] | how a sleeping device is woken, with no fence on the sender's fast path |
//! | [`heap`] | messages that peers read where they were made |
//! | [`readers`], [`client_heaps`] | who may read a client's heap; what a server's heaps for its clients may take |
//! | [`map`] | the shared memory itself, and nearly all `unsafe` of this crate |
//! | [`sys`] | system calls, in the form that this crate uses |
//! | [`closer`] | a thread that closes files of peers, which may take long |
//! | [`handshake`], [`pending`] | how two devices connect, and what is refused |
//! | [`users`] | whose processes it talks to |
//! | [`rx`], [`tx`] | the two halves of the device: all peers' consumers, all peers' producers |
//! | [`device`] | [`ShmIo`]: connections to peers, events, sleeping |

#![allow(unsafe_code)]
#![allow(rustdoc::private_intra_doc_links)]

mod address;
mod client_heaps;
mod closer;
mod config;
mod device;
mod handshake;
mod heap;
mod map;
mod named;
mod pending;
mod readers;
mod ring;
mod rx;
mod sleep;
mod sys;
mod tx;
mod users;

pub use address::check_address;
pub use config::ShmConfig;
pub use device::{AcceptQueue, AcceptQueues, PeersBudget, ShmIo};
pub use rx::ShmRx;
pub use tx::ShmTx;
