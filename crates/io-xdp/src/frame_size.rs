//! How large Ethernet frames can be.

/// Bytes of the Ethernet header.
pub(crate) const ETHERNET: usize = 14;
/// Bytes of IPv4 and UDP headers.
pub(crate) const IPV4_UDP: usize = 28;
/// Bytes of IPv6 and UDP headers.
pub(crate) const IPV6_UDP: usize = 48;

/// The largest Ethernet frame of a device, in bytes: 15 full chunks of the receiver's.
const MAX_FRAME: usize = 15 * 3840;

/// The largest Ethernet frame that a device uses on an interface with this MTU, in bytes.
pub(crate) fn max_frame(mtu: usize) -> usize {
    (mtu + ETHERNET).min(MAX_FRAME)
}
