//! Features of interfaces for AF_XDP, found without touching them. (Opening a device puts a program
//! on its interface, and some drivers restart the link for that.)

use std::io;

use crate::channels;
use crate::frame_size::{ETHERNET, IPV4_UDP, max_frame};
use crate::kernel::{KernelVersion, LARGE_FRAMES_KERNEL};
use crate::netlink::{Link, Netlink};
use crate::program::{self, Occupant};
use crate::socket::Mode;
use crate::umem::UmemLayout;

/// The family of generic netlink that tells an interface's XDP features (Linux 6.3).
const FAMILY: &str = "netdev";

/// `enum netdev_xdp_act`, linux/netdev.h.
const ACT_BASIC: u64 = 1;
const ACT_REDIRECT: u64 = 2;
const ACT_XSK_ZEROCOPY: u64 = 8;
const ACT_RX_SG: u64 = 32;

/// An interface of this thread's network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// It is up.
    pub is_up: bool,
    /// It has hardware addresses of six bytes and is no loopback: it can have a device.
    pub is_ethernet: bool,
    /// The largest IP packet, in bytes.
    pub mtu: usize,
    /// Queues that are on in both directions, each of which can have one device.
    pub queues: u32,
    /// The XDP program on it.
    pub program: Option<Occupant>,
    /// VLANs that this host has on it. If the card strips the tags, the XDP program cannot tell
    /// their datagrams from others, and gives those for a device's address and port to the device.
    pub vlans: usize,
    /// The features of its driver. None: the kernel does not say, because it is older than 6.3.
    pub features: Option<Features>,
}

/// The features of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Programs run in the driver, and can hand packets to sockets.
    pub driver: bool,
    /// The card reads and writes packet memory itself.
    pub zero_copy: bool,
    /// Frames may be longer than a page.
    pub multi_buffer: bool,
}

impl Interface {
    /// The best mode that a device gets here. None: the kernel does not say.
    pub fn mode(&self) -> Option<Mode> {
        self.features.map(|features| match features {
            Features {
                driver: true,
                zero_copy: true,
                ..
            } => Mode::ZeroCopy,
            Features { driver: true, .. } => Mode::Driver,
            _ => Mode::Generic,
        })
    }

    /// The largest payload of a datagram over IPv4 that a device here receives by its ring, in
    /// bytes. Frames above a page come in several parts. That needs a kernel of
    /// [`LARGE_FRAMES_KERNEL`] or later (`None` counts as such) and, unless the mode is generic, a
    /// driver that can do it.
    pub fn max_datagram(&self, kernel: Option<KernelVersion>) -> usize {
        let whole = max_frame(self.mtu);
        let by_kernel = kernel.is_none_or(|kernel| kernel >= LARGE_FRAMES_KERNEL);
        let by_driver = (self.features).is_none_or(|driver| !driver.driver || driver.multi_buffer);
        let frame = match by_kernel && by_driver {
            true => whole,
            false => whole.min(UmemLayout::new(whole, 0, 0).rx_room()),
        };
        frame.saturating_sub(ETHERNET + IPV4_UDP)
    }
}

impl Features {
    fn of_bits(bits: u64) -> Self {
        let has = |wanted| bits & wanted == wanted;
        Self {
            driver: has(ACT_BASIC | ACT_REDIRECT),
            zero_copy: has(ACT_XSK_ZEROCOPY),
            multi_buffer: has(ACT_RX_SG),
        }
    }
}

/// The most descriptors that a frame can have in zero-copy mode. `None` if the interface has no
/// such mode as far as the kernel says.
pub(crate) fn zero_copy(interface: u32) -> Option<u32> {
    let mut netlink = Netlink::generic().ok()?;
    let family = netlink.family(FAMILY).ok()?;
    let bits = netlink.xdp_features(family, interface).ok()??;
    let parts = netlink.zero_copy_parts(family, interface).ok()?;
    // A kernel that does not say cannot do frames of several descriptors.
    (Features::of_bits(bits).zero_copy).then_some(parts.unwrap_or(1))
}

/// The interfaces of this thread's network namespace, in the kernel's order.
///
/// # Errors
/// If netlink does not work at all. Facts that only some kernels tell are left out instead.
pub fn interfaces() -> io::Result<Vec<Interface>> {
    let links = Netlink::new(0)?.links()?;
    let mut generic = Netlink::generic().and_then(|mut netlink| {
        let family = netlink.family(FAMILY)?;
        Ok((netlink, family))
    });
    let vlans: Vec<u32> = links.iter().filter_map(|(_, link)| link.vlan_of).collect();
    let queues = |name: &str, link: &Link| channels::queues(name).unwrap_or(link.queues);
    let interface = |(name, link): (String, Link)| Interface {
        queues: queues(&name, &link).usable(),
        name,
        is_up: link.is_up,
        is_ethernet: link.is_ethernet,
        mtu: link.mtu,
        program: link.program.map(program::occupant),
        vlans: vlans.iter().filter(|lower| **lower == link.index).count(),
        features: (generic.as_mut().ok())
            .and_then(|(netlink, family)| netlink.xdp_features(*family, link.index).ok()?)
            .map(Features::of_bits),
    };
    Ok(links.into_iter().map(interface).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_is_there_and_is_no_ethernet() {
        let interfaces = interfaces().expect("netlink");
        let lo = interfaces.iter().find(|interface| interface.name == "lo");
        let lo = lo.expect("every host has it");
        assert!(!lo.is_ethernet && lo.mtu > 0 && lo.queues >= 1, "{lo:?}");
        assert_eq!((lo.program.as_ref(), lo.vlans), (None, 0));
    }

    fn interface(mtu: usize, bits: u64) -> Interface {
        Interface {
            name: "eth0".into(),
            is_up: true,
            is_ethernet: true,
            mtu,
            queues: 1,
            program: None,
            vlans: 0,
            features: Some(Features::of_bits(bits)),
        }
    }

    #[test]
    fn the_mode_follows_from_the_driver() {
        let mode = |bits| interface(1500, bits).mode().expect("features are known");
        assert_eq!(mode(0), Mode::Generic);
        assert_eq!(mode(ACT_BASIC), Mode::Generic, "it cannot redirect");
        assert_eq!(mode(ACT_BASIC | ACT_REDIRECT), Mode::Driver);
        assert_eq!(mode(0xf), Mode::ZeroCopy);
    }

    #[test]
    fn the_largest_datagram_follows_from_mtu_driver_and_kernel() {
        let driver = ACT_BASIC | ACT_REDIRECT;
        let largest = |mtu, bits, kernel| interface(mtu, bits).max_datagram(kernel);
        let (old, new) = (Some(KernelVersion(6, 5)), Some(LARGE_FRAMES_KERNEL));
        for kernel in [old, new, None] {
            assert_eq!(largest(1500, driver, kernel), 1472);
        }
        assert_eq!(largest(9000, driver | ACT_RX_SG, new), 8972);
        assert_eq!(largest(9000, driver | ACT_RX_SG, None), 8972);
        // 256 bytes of a chunk of a page stay free.
        assert_eq!(largest(9000, driver, new), 3840 - 14 - 28);
        assert_eq!(largest(9000, driver | ACT_RX_SG, old), 3840 - 14 - 28);
        assert_eq!(
            largest(9000, 0, new),
            8972,
            "in generic mode the kernel does it"
        );
        assert_eq!(
            largest(65_535, driver | ACT_RX_SG, new),
            15 * 3840 - 14 - 28
        );
        assert_eq!(largest(0, driver, new), 0);
    }
}
