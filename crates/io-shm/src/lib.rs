//! Packet I/O over shared memory between processes of one host, that find each other by name.
//!
//! Two processes share one piece of memory with two rings in it, one for each direction. A
//! datagram is written into a ring by one core and read out by another: no system call, no lock,
//! and for a small one a single cache line crosses between the cores.
//!
//! ```text
//!   process A: ShmIo::client                      process B: ShmIo::bind("shm://kv")
//!  ┌──────────────────────────┐                  ┌──────────────────────────┐
//!  │ ShmTx ── producer ───────┼──▶ ring A → B ───┼──▶ consumer ── ShmRx     │
//!  │ ShmRx ── consumer ◀──────┼─── ring B → A ◀──┼─── producer ── ShmTx     │
//!  │ ShmIo ── link    ◀───────┼── Unix socket ───┼──▶ link     ── ShmIo     │
//!  └──────────────────────────┘                  └──────────────────────────┘
//! ```
//!
//! The Unix socket carries the memory when two devices meet ([`handshake`]), a byte when one of
//! them sleeps and has to be woken ([`sleep`]), and the news of a process's end, which the kernel
//! delivers however it ended. The listening socket has an abstract name and the memory has no name
//! at all, so nothing is left behind by a process that is killed.
//!
//! | module | holds |
//! |---|---|
//! | [`ring`] | how datagrams cross: the protocol of one ring, and why a hostile peer does no harm |
//! | [`sleep`] | how a sleeping device is woken, with no fence on the sender's fast path |
//! | [`map`] | the shared memory itself, and nearly all `unsafe` of this crate |
//! | [`sys`] | system calls, as the rest of the crate wants them |
//! | [`handshake`], [`lobby`] | how two devices meet, and what is refused |
//! | [`rx`], [`tx`] | the two halves of the device: all peers' consumers, all peers' producers |
//! | [`device`] | [`ShmIo`]: links to peers, events, sleeping |

#![allow(unsafe_code)]
#![allow(rustdoc::private_intra_doc_links)]

mod config;
mod device;
mod handshake;
mod lobby;
#[cfg(all(loom, test))]
mod loom_model;
mod map;
mod ring;
mod rx;
mod sleep;
mod sys;
mod tx;

pub use config::ShmConfig;
pub use device::ShmIo;
pub use handshake::check_address;
pub use rx::ShmRx;
pub use tx::ShmTx;
