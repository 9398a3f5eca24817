//! Packet I/O over kernel UDP sockets: no privileges, no special network card.
//!
//! [`UdpIo`] is a [`starling_io::PacketIo`]. Where the time goes, and what is done about it:
//!
//! | cost | answer |
//! |---|---|
//! | a system call for each datagram received | `recvmmsg` when more than one is likely there, `recvfrom` when not (see the module `rx`) |
//! | a system call for each datagram sent | frames to one peer share datagrams; `sendmmsg` for several, `sendto` for one (see the module `tx`) |
//! | the way through the kernel for each 1500 bytes | GSO and GRO: it is gone once for up to 64 KiB; 64 KiB datagrams where the path takes them |
//! | copying large bodies | the kernel gathers them from where they are |
//! | looking up the route of each datagram | a connected socket for the peer that does most of the talking (see the module `lane`) |
//! | waking other threads | an eventfd is written only if the thread sleeps (see the module `wake`) |
//!
//! All `unsafe` code is in the module `sys`.

#![allow(unsafe_code)]

mod address;
mod control;
mod device;
mod lane;
mod path;
mod rx;
mod shared;
mod staging;
mod sys;
mod tx;
mod wake;

pub use address::UdpAddress;
pub use control::UdpControl;
pub use device::{MAX_PEERS, UdpConfig, UdpIo};
pub use rx::UdpRx;
pub use shared::Directory;
pub use tx::UdpTx;
pub use wake::Waker;
