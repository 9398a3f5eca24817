//! Packet I/O over AF_XDP: UDP datagrams past the kernel's network stack, on any interface.
//!
//! [`XdpIo`] is a [`starling_io::PacketIo`]. What it sends is plain UDP over IPv4 or IPv6, so the
//! other end may as well be a kernel's socket. Frames are built and read in memory that is shared
//! with the kernel; an XDP program picks out the datagrams for the device's own address and port,
//! and the host's network goes on as if it were not there.
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
//! Reading and making frames is [`starling_ethernet`]'s part.
//!
//! | module | what |
//! |---|---|
//! | `ring`, `umem`, `socket` | the memory and the rings shared with the kernel |
//! | `program`, `bpf` | the XDP program `bpf/steer.bpf.c`, on an interface as long as any process uses it |
//! | `neighbour`, `netlink` | next hops, kept up to date by a thread that who sends never waits for |
//! | `rx`, `tx`, `device` | the device |
//! | `memory` | messages in packet memory, which are sent from where they lie |
//! | `chunks` | whether all memory is somewhere at the end |
//! | `taken` | which queues devices of this process have |
//! | `siblings` | devices of one process that share a port |
//! | `steering`, `steering_map` | which worker gets which datagram, by counts shared with the program |
//! | `worker`, `exchange` | workers with sockets of their own, and what goes between them and the device |
//! | `inspect` | what interfaces can do, without a device |
//! | `kernel` | which kernels a device works on |
//! | `reflect` | what the device is measured by |
//!
//! An interface's queue can have one device. The network card decides by which queue a packet
//! comes; what comes by another one than the device's is passed on to the kernel and reaches the
//! device by its socket: slower, not lost. Where devices of one process share a port, the sockets'
//! share it, too, and a datagram may reach another device than the one that knows its sender; it is
//! given to that one, once it does.

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
