//! Packet I/O over AF_XDP: UDP datagrams past the kernel's network stack, on any interface.
//!
//! This crate must not know the session protocol.
//!
//! [`XdpIo`] is a [`starling_io::PacketIo`]. It sends plain UDP over IPv4 or IPv6, so the other end
//! may be a kernel's socket. The device builds and reads Ethernet frames in memory that it shares
//! with the kernel. An XDP program picks out the datagrams for the device's own address and port.
//! The rest of the host's network works as if the device were not there.
//!
//! ```text
//!                    ┌ for the device's address, port and queue ─▶ rx ring ──────────▶ XdpRx
//!   interface ─▶ XDP ┤                                                                   ▲
//!       ▲            └ everything else ─▶ kernel ─▶ the kernel's socket of the same port ┘
//!       │
//!       ├──────────────── tx ring ◀──────────────── next hop's hardware address known ┐
//!       └─── kernel ◀─── the kernel's socket ◀───── not (yet) ────────────────────────┴─ XdpTx
//!                                    ▲──── runs of large ones, where the kernel copies ──┘
//! ```
//!
//! [`starling_ethernet`] reads and makes the Ethernet frames.
//!
//! | module | what |
//! |---|---|
//! | `ring`, `umem`, `socket` | the memory and the rings shared with the kernel |
//! | `frame_size` | how large Ethernet frames can be |
//! | `program`, `bpf` | the XDP program `bpf/steer.bpf.c`, on an interface as long as any process uses it |
//! | `neighbour`, `netlink` | next hops, kept up to date by a thread that no sender waits for |
//! | `rx`, `tx`, `device` | the device |
//! | `named` | [`starling_io::Device`]: opening it by its address |
//! | `tx/ring_or_socket` | whether a datagram leaves by the ring or by the kernel's socket |
//! | `memory` | messages in packet memory, which are sent from where they lie |
//! | `chunk_accounting` | a check that no chunk of the memory is lost |
//! | `peer_cache` | from addresses to peers |
//! | `queue_reservation` | which queues devices of this process have |
//! | `port_group` | devices of one process that share a port |
//! | `steering`, `steering_map` | which worker gets which datagram, by counts shared with the program |
//! | `worker`, `exchange` | workers with sockets of their own, and what goes between them and the device |
//! | `inspect` | what interfaces can do, without a device |
//! | `kernel` | which kernels a device works on |
//! | `reflect` | the floor that benchmarks compare a device with |
//!
//! An interface's queue can have one device. The network card decides by which queue a packet
//! arrives. The program passes a packet that arrives by another queue on to the kernel, and it
//! reaches the device by the kernel's socket: slower, not lost. If devices of one process share a
//! port, their sockets share it, too. Then a datagram may reach another device than the one that
//! knows its sender; that device forwards it.

#![allow(unsafe_code)]

mod address;
mod bpf;
mod channels;
mod chunk_accounting;
mod device;
mod drops;
mod exchange;
mod frame_size;
mod inspect;
mod kernel;
mod memory;
mod named;
mod neighbour;
mod netlink;
mod peer_cache;
mod port_group;
mod program;
mod queue_reservation;
mod reflect;
mod ring;
mod rx;
mod shared;
mod socket;
mod steering;
mod steering_map;
#[cfg(test)]
mod testing;
mod tx;
mod umem;
mod worker;

pub use address::XdpAddress;
pub use device::{XdpConfig, XdpIo};
pub use drops::Drops;
pub use inspect::{Features, Interface, interfaces};
pub use kernel::{KernelVersion, LARGE_FRAMES_KERNEL, OLDEST_KERNEL};
pub use program::Occupant;
pub use reflect::Reflector;
pub use rx::XdpRx;
pub use socket::Mode;
pub use steering::MAX_WORKERS;
pub use tx::XdpTx;
