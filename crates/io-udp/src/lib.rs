//! Packet I/O over kernel UDP sockets: no privileges, no special network card.
//!
//! This crate must not know the session protocol.
//!
//! [`UdpIo`] is a [`starling_io::PacketIo`]. Its costs, and what keeps them low:
//!
//! | cost | answer |
//! |---|---|
//! | a system call for each datagram received | `recvmmsg` when several are likely, `recvfrom` when not (module `rx`) |
//! | a system call for each datagram sent | frames to one peer share datagrams; `sendmmsg` for several, `sendto` for one (module `tx`) |
//! | the kernel's network stack for each 1500 bytes | GSO and GRO: once for up to 64 KiB; 64 KiB datagrams where the path takes them |
//! | copying large bodies | the kernel gathers them from where they are |
//! | a route lookup for each datagram | a connected socket for the busiest peer (module `connected`) |
//! | waking other threads | an eventfd is written only if the thread sleeps ([`starling_io::EventfdWaker`]) |
//!
//! The module `named` opens it by its address ([`starling_io::Device`]). All `unsafe` code is in the
//! module `sys`.

#![allow(unsafe_code)]

mod config;
mod connected;
mod control;
mod device;
mod named;
mod open;
mod path;
mod rx;
mod shared;
mod staging;
mod sys;
mod tx;

pub use config::UdpConfig;
pub use control::UdpControl;
pub use device::{MAX_PEERS, UdpIo};
pub use rx::UdpRx;
pub use shared::Directory;
pub use tx::UdpTx;
