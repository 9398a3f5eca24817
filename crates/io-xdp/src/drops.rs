//! What was dropped, by reason.

use crate::frame::Drop;

/// Frames that a device dropped, or the kernel on its way to the device, since it was bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// The frame ended within its headers, or before its IP packet did.
    pub truncated: u64,
    /// Neither IPv4 nor IPv6.
    pub not_ip: u64,
    /// IP options.
    pub options: u64,
    /// Fragments of packets.
    pub fragment: u64,
    /// Another protocol than UDP, or extension headers.
    pub not_udp: u64,
    /// An impossible length in a header.
    pub length: u64,
    /// A wrong checksum of an IPv4 header.
    pub header_checksum: u64,
    /// A wrong UDP checksum, or none where there has to be one.
    pub udp_checksum: u64,
    /// Another address or port.
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

/// The counts of a device itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts([u64; Drop::COUNT]);

impl Counts {
    #[cold]
    pub(crate) fn count(&mut self, reason: Drop) {
        self.0[reason as usize] += 1;
    }

    /// Without what only the kernel knows.
    pub(crate) fn drops(&self) -> Drops {
        let of = |reason: Drop| self.0[reason as usize];
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
            descriptor: of(Drop::Descriptor),
            ring_full: 0,
            kernel: 0,
        }
    }
}
