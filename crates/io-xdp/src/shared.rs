//! The state that the halves and workers of a device share.

use std::net::SocketAddr;
use std::sync::Arc;

use starling_ethernet::Mac;
use starling_io::{Fault, IoError};

use crate::neighbour::{InterfaceChange, InterfaceState, Neighbours};
use crate::program::Program;
use crate::queue_reservation::QueueReservation;
use crate::socket::Socket;
use crate::steering_map::SteeringEntry;
use crate::umem::Umem;

/// Constant for the life of the device.
pub(crate) struct Shared {
    pub(crate) socket: Socket,
    pub(crate) program: Program,
    pub(crate) umem: Arc<Umem>,
    pub(crate) neighbours: Arc<Neighbours>,
    pub(crate) interface_state: Arc<InterfaceState>,
    /// The cookie of the network namespace.
    pub(crate) namespace: u64,
    pub(crate) interface: String,
    pub(crate) index: u32,
    pub(crate) queue: u32,
    pub(crate) mac: Mac,
    pub(crate) local: SocketAddr,
    /// The largest Ethernet frame, in bytes.
    pub(crate) largest_frame: usize,
    /// The largest payload of a datagram, in bytes.
    pub(crate) largest: usize,
    pub(crate) ecn: bool,
    /// Dropped after the socket: a device that finds the queue taken, but by no device of this
    /// process, waits for the kernel.
    pub(crate) _reservation: QueueReservation,
}

impl Shared {
    /// Fails if the interface was removed or changed.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), IoError> {
        if self.interface_state.has_changed() {
            return Err(self.gone());
        }
        Ok(())
    }

    /// The entry by which the program chooses a worker of this queue.
    pub(crate) fn steering_entry(&self) -> &SteeringEntry {
        self.program.steering_entry(self.queue)
    }

    /// The error of a device whose interface was removed or changed.
    #[cold]
    pub(crate) fn gone(&self) -> IoError {
        let (problem, remedy) = match self.interface_state.change() {
            Some(InterfaceChange::Removed) | None => (
                "it was removed",
                "make it again, then a new endpoint on it (a server: start it again); this one \
                 cannot be used any more",
            ),
            Some(InterfaceChange::OtherMac) => (
                "its hardware address was changed",
                "make a new endpoint on it (a server: start it again); this one sends \
                 with the old address",
            ),
            Some(InterfaceChange::SmallerMtu) => (
                "its MTU was lowered",
                "make a new endpoint on it (a server: start it again), or raise the MTU first; \
                 this one sends larger frames",
            ),
        };
        let attempt = format!("use interface {}", self.interface);
        IoError::new(Fault::Host, attempt, problem, remedy)
    }
}
