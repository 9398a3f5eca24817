//! What the halves of a device have in common.

use std::net::SocketAddr;
use std::sync::Arc;

use starling_io::{Fault, IoError};

use crate::frame::Mac;
use crate::neighbour::{Neighbours, Presence};
use crate::program::Program;
use crate::socket::Socket;
use crate::steering::Counts;
use crate::umem::Umem;

/// Nothing here changes while the device lives.
pub(crate) struct Shared {
    pub(crate) socket: Socket,
    pub(crate) program: Program,
    pub(crate) umem: Arc<Umem>,
    pub(crate) neighbours: Arc<Neighbours>,
    pub(crate) presence: Arc<Presence>,
    pub(crate) interface: String,
    pub(crate) index: u32,
    pub(crate) queue: u32,
    pub(crate) mac: Mac,
    pub(crate) local: SocketAddr,
    /// The largest frame, in bytes.
    pub(crate) largest_frame: usize,
    /// The largest payload of a datagram, in bytes.
    pub(crate) largest: usize,
    pub(crate) ecn: bool,
}

impl Shared {
    /// Whether the interface is still there.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), IoError> {
        if self.presence.is_gone() {
            return Err(self.gone());
        }
        Ok(())
    }

    /// What the program goes by when it chooses a worker.
    pub(crate) fn counts(&self) -> &Counts {
        self.program.counts(self.queue)
    }

    /// The error of a device whose interface is not there any more.
    #[cold]
    pub(crate) fn gone(&self) -> IoError {
        IoError::new(
            Fault::Host,
            format!("use interface {}", self.interface),
            "it was removed",
            "make it again, then a new endpoint on it; this one is of no use any more",
        )
    }
}
