//! What was dropped, by reason.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use rustix::net::sockopt;
use starling_ethernet::Drop;

/// Frames that a device dropped, or the kernel on its way to the device, since it was bound.
///
/// What the XDP program leaves to the kernel is not among them, for it never gets to the device:
/// frames without IP, such as ARP, other protocols than UDP, IP options and extension headers,
/// fragments, and what is for another address or port. The counts of those stay zero unless the
/// kernel hands over what the program did not choose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// The frame ended within its headers, or before its IP packet did.
    pub truncated: u64,
    /// Neither IPv4 nor IPv6; left to the kernel, as above.
    pub not_ip: u64,
    /// IP options; left to the kernel.
    pub options: u64,
    /// Fragments of packets; left to the kernel.
    pub fragment: u64,
    /// Another protocol than UDP, or extension headers; left to the kernel.
    pub not_udp: u64,
    /// An impossible length in a header.
    pub length: u64,
    /// A wrong checksum of an IPv4 header.
    pub header_checksum: u64,
    /// A wrong UDP checksum, or none where there has to be one.
    pub udp_checksum: u64,
    /// Another address or port; left to the kernel.
    pub not_ours: u64,
    /// A sender that cannot be answered.
    pub source: u64,
    /// Memory that is none of the device's: a defect of a driver.
    pub descriptor: u64,
    /// The kernel had no room: the device did not receive fast enough.
    pub ring_full: u64,
    /// The kernel dropped it for another reason, such as its size.
    pub kernel: u64,
}

impl Drops {
    /// All of them, by the names that reports have for them.
    pub(crate) fn counts(self) -> [(&'static str, u64); 13] {
        macro_rules! named {
            ($($field:ident),*) => {{
                let Self { $($field),* } = self;
                [$((concat!("dropped_", stringify!($field)), $field)),*]
            }};
        }
        named!(
            truncated,
            not_ip,
            options,
            fragment,
            not_udp,
            length,
            header_checksum,
            udp_checksum,
            not_ours,
            source,
            descriptor,
            ring_full,
            kernel
        )
    }
}

/// The counts of a device itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    frames: [u64; Drop::COUNT],
    /// Frames that were in no memory of ours.
    descriptors: u64,
}

impl Counts {
    #[cold]
    pub(crate) fn count(&mut self, reason: Drop) {
        self.frames[reason as usize] += 1;
    }

    #[cold]
    pub(crate) fn count_descriptor(&mut self) {
        self.descriptors += 1;
    }

    /// Without what only the kernel knows.
    pub(crate) fn drops(&self) -> Drops {
        let of = |reason: Drop| self.frames[reason as usize];
        Drops {
            truncated: of(Drop::Truncated),
            not_ip: of(Drop::NotIp),
            options: of(Drop::Options),
            fragment: of(Drop::Fragment),
            not_udp: of(Drop::NotUdp),
            length: of(Drop::Length),
            header_checksum: of(Drop::HeaderChecksum),
            udp_checksum: of(Drop::UdpChecksum),
            not_ours: of(Drop::NotOurs),
            source: of(Drop::Source),
            descriptor: self.descriptors,
            ring_full: 0,
            kernel: 0,
        }
    }
}

/// What the kernel counts for the sockets of a device and its workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ByKernel {
    dropped: u64,
    ring_full: u64,
    /// Of the fill ring, which all sockets of a queue have in common.
    fill_empty: u64,
    /// What was described wrongly in the rings of one socket.
    pub(crate) rx_invalid: u64,
    pub(crate) tx_invalid: u64,
}

impl ByKernel {
    pub(crate) fn of(socket: &OwnedFd) -> Self {
        // No kernel with AF_XDP refuses; a device without the figures is better than none.
        sockopt::xdp_statistics(socket).map_or(Self::default(), |kernel| Self {
            dropped: kernel.rx_dropped,
            ring_full: kernel.rx_ring_full.unwrap_or(0),
            fill_empty: kernel.rx_fill_ring_empty_descs.unwrap_or(0),
            rx_invalid: kernel.rx_invalid_descs,
            tx_invalid: kernel.tx_invalid_descs,
        })
    }

    /// With those of another socket of the queue.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            dropped: self.dropped + other.dropped,
            ring_full: self.ring_full + other.ring_full,
            fill_empty: self.fill_empty,
            rx_invalid: self.rx_invalid + other.rx_invalid,
            tx_invalid: self.tx_invalid + other.tx_invalid,
        }
    }

    /// Unless the card itself receives, the kernel counts a frame that it has no memory for as
    /// dropped, too.
    pub(crate) fn add_to(self, drops: &mut Drops, is_zero_copy: bool) {
        let counted = if is_zero_copy { 0 } else { self.fill_empty };
        drops.ring_full = self.ring_full + self.fill_empty;
        drops.kernel = self.dropped.saturating_sub(counted);
    }
}

/// The sockets of workers, for what is dropped there.
#[derive(Default)]
pub(crate) struct WorkerSockets {
    sockets: OnceLock<Vec<Weak<OwnedFd>>>,
    /// Of workers that have ended.
    ended: Mutex<ByKernel>,
}

impl WorkerSockets {
    /// From now on there are these.
    pub(crate) fn set(&self, sockets: impl Iterator<Item = Weak<OwnedFd>>) {
        let set = self.sockets.set(sockets.collect());
        assert!(set.is_ok(), "a device has workers once");
    }

    /// A worker ends, and its socket with it.
    pub(crate) fn end(&self, socket: &OwnedFd) {
        let mut ended = self.ended();
        *ended = ended.and(ByKernel::of(socket));
    }

    fn ended(&self) -> MutexGuard<'_, ByKernel> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the kernel counts for all workers, those that have ended included.
    pub(crate) fn counts(&self) -> ByKernel {
        let ended = *self.ended();
        let living = self.sockets.get().into_iter().flatten();
        living
            .filter_map(Weak::upgrade)
            .fold(ended, |sum, socket: Arc<OwnedFd>| {
                sum.and(ByKernel::of(&socket))
            })
    }
}
