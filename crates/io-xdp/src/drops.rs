//! Datagrams that a device dropped, by reason.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use rustix::net::sockopt;
use starling_ethernet::Drop;

/// Ethernet frames that the device, or the kernel on the way to it, dropped since the device was
/// bound.
///
/// Frames that the XDP program leaves to the kernel never get to the device. They do not count
/// here: frames without IP such as ARP, other protocols than UDP, IP options and extension headers,
/// fragments, and frames for another address or port. Those counts stay zero unless the kernel
/// hands over frames that the program did not choose.
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
    /// A wrong UDP checksum, or none where one is required.
    pub udp_checksum: u64,
    /// Another address or port; left to the kernel.
    pub not_ours: u64,
    /// A sender to whom no answer can go.
    pub source: u64,
    /// Memory that does not belong to the device: a defect of a driver.
    pub descriptor: u64,
    /// The kernel had no room: the device did not receive fast enough.
    pub ring_full: u64,
    /// Another reason of the kernel, such as the size.
    pub kernel: u64,
}

impl Drops {
    /// All counts, with their names in reports.
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

/// The counts of the device itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    frames: [u64; Drop::COUNT],
    /// Frames in memory that does not belong to the device.
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

    /// The counts without those of the kernel.
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

/// The kernel's counts of the sockets of a device and its workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ByKernel {
    dropped: u64,
    ring_full: u64,
    /// Of the fill ring, which all sockets of a queue share.
    fill_empty: u64,
    /// Invalid descriptors in the rings of the sockets.
    pub(crate) rx_invalid: u64,
    pub(crate) tx_invalid: u64,
}

impl ByKernel {
    pub(crate) fn of(socket: &OwnedFd) -> Self {
        // No kernel with AF_XDP refuses. A device without these counts is better than none.
        sockopt::xdp_statistics(socket).map_or(Self::default(), |kernel| Self {
            dropped: kernel.rx_dropped,
            ring_full: kernel.rx_ring_full.unwrap_or(0),
            fill_empty: kernel.rx_fill_ring_empty_descs.unwrap_or(0),
            rx_invalid: kernel.rx_invalid_descs,
            tx_invalid: kernel.tx_invalid_descs,
        })
    }

    /// The sum with the counts of another socket of the queue.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            dropped: self.dropped + other.dropped,
            ring_full: self.ring_full + other.ring_full,
            fill_empty: self.fill_empty,
            rx_invalid: self.rx_invalid + other.rx_invalid,
            tx_invalid: self.tx_invalid + other.tx_invalid,
        }
    }

    /// Outside of zero-copy mode the kernel counts a frame for which the fill ring has no chunk as
    /// dropped, too.
    pub(crate) fn add_to(self, drops: &mut Drops, is_zero_copy: bool) {
        let counted = if is_zero_copy { 0 } else { self.fill_empty };
        drops.ring_full = self.ring_full + self.fill_empty;
        drops.kernel = self.dropped.saturating_sub(counted);
    }
}

/// The sockets of workers, for their counts.
#[derive(Default)]
pub(crate) struct WorkerSockets {
    sockets: OnceLock<Vec<Weak<OwnedFd>>>,
    /// Of workers that have ended.
    ended: Mutex<ByKernel>,
}

impl WorkerSockets {
    /// Enters the sockets of all workers.
    pub(crate) fn set(&self, sockets: impl Iterator<Item = Weak<OwnedFd>>) {
        let set = self.sockets.set(sockets.collect());
        assert!(set.is_ok(), "a device has workers once");
    }

    /// A worker ends, and its socket with it: keeps its counts.
    pub(crate) fn end(&self, socket: &OwnedFd) {
        let mut ended = self.ended();
        *ended = ended.and(ByKernel::of(socket));
    }

    fn ended(&self) -> MutexGuard<'_, ByKernel> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel's counts of all workers, including those that have ended.
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
