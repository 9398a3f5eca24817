//! Socket addresses in the kernel's form, safe to read for either family.

use std::hash::{Hash, Hasher};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// The family of a socket. An IPv6 socket also reaches IPv4 peers, as `::ffff:a.b.c.d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn of(address: &SocketAddr) -> Self {
        match address {
            SocketAddr::V4(_) => Self::V4,
            SocketAddr::V6(_) => Self::V6,
        }
    }
}

/// `sockaddr_in` and `sockaddr_in6` in one. The fields up to `flow_or_v4` lie at the same offsets
/// in both; in an IPv4 address, the rest is zero.
///
/// ```text
///           0        2      4            8                     24      28
///  in       | family | port | address    | zeros      |
///  in6      | family | port | flow label | address     ...     | scope |
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RawAddr {
    family: u16,
    port_be: u16,
    flow_or_v4: u32,
    v6: [u8; 16],
    scope: u32,
}

const _: () = assert!(size_of::<RawAddr>() == size_of::<libc::sockaddr_in6>());

impl RawAddr {
    /// `address` in the form that a socket of `family` uses; `None` if it cannot reach it.
    pub(crate) fn new(address: SocketAddr, family: Family) -> Option<Self> {
        match (family, address) {
            (Family::V4, SocketAddr::V4(v4)) => Some(Self {
                family: libc::AF_INET as u16,
                port_be: v4.port().to_be(),
                flow_or_v4: u32::from_ne_bytes(v4.ip().octets()),
                ..Self::default()
            }),
            (Family::V4, SocketAddr::V6(v6)) => {
                let v4 = SocketAddrV4::new(v6.ip().to_ipv4_mapped()?, v6.port());
                Self::new(SocketAddr::V4(v4), family)
            }
            (Family::V6, SocketAddr::V4(v4)) => {
                let v6 = SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0);
                Self::new(SocketAddr::V6(v6), family)
            }
            (Family::V6, SocketAddr::V6(v6)) => Some(Self {
                family: libc::AF_INET6 as u16,
                port_be: v6.port().to_be(),
                flow_or_v4: 0,
                v6: v6.ip().octets(),
                // For senders at other addresses the kernel reports no scope.
                scope: match v6.ip().is_unicast_link_local() {
                    true => v6.scope_id(),
                    false => 0,
                },
            }),
        }
    }

    /// The same address; a link-local one without a scope gets `interface`. `None` if that is zero.
    pub(crate) fn with_interface(mut self, interface: u32) -> Option<Self> {
        if self.scope == 0 && Ipv6Addr::from(self.v6).is_unicast_link_local() {
            self.scope = interface;
            return (interface != 0).then_some(self);
        }
        Some(self)
    }

    /// The address in the standard library's form; `::ffff:a.b.c.d` comes out as `a.b.c.d`.
    pub(crate) fn to_std(self) -> SocketAddr {
        let port = u16::from_be(self.port_be);
        if i32::from(self.family) == libc::AF_INET {
            let ip = Ipv4Addr::from(self.flow_or_v4.to_ne_bytes());
            return SocketAddrV4::new(ip, port).into();
        }
        let ip = Ipv6Addr::from(self.v6);
        match ip.to_ipv4_mapped() {
            Some(v4) => SocketAddrV4::new(v4, port).into(),
            None => SocketAddrV6::new(ip, port, 0, self.scope).into(),
        }
    }

    /// The length that the kernel expects, in bytes.
    #[inline]
    pub(crate) fn len(&self) -> libc::socklen_t {
        let len = if i32::from(self.family) == libc::AF_INET {
            size_of::<libc::sockaddr_in>()
        } else {
            size_of::<libc::sockaddr_in6>()
        };
        len as libc::socklen_t
    }
}

impl Hash for RawAddr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Two writes: fewer calls into the hasher than one for each field.
        let first = u64::from(self.port_be) << 32 | u64::from(self.flow_or_v4 ^ self.scope);
        state.write_u64(first);
        state.write_u128(u128::from_ne_bytes(self.v6));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str, family: Family) -> Option<RawAddr> {
        RawAddr::new(text.parse().expect("an address"), family)
    }

    #[test]
    fn addresses_convert_to_the_kernels_form_and_back() {
        for (text, family) in [
            ("10.1.2.3:65535", Family::V4),
            ("10.1.2.3:1", Family::V6),
            ("[2001:db8::7]:9000", Family::V6),
            ("[fe80::1%3]:9000", Family::V6),
        ] {
            let address: SocketAddr = text.parse().expect("an address");
            let raw = raw(text, family).expect("reachable");
            assert_eq!(raw.to_std(), address);
        }
    }

    #[test]
    fn only_link_local_addresses_have_an_interface() {
        let v6 = |text| raw(text, Family::V6).expect("reachable");
        assert_eq!(v6("[2001:db8::7%3]:9000"), v6("[2001:db8::7]:9000"));
        let whose = |text, interface| v6(text).with_interface(interface);
        assert_eq!(whose("[fe80::1]:9000", 3), Some(v6("[fe80::1%3]:9000")));
        assert_eq!(whose("[fe80::1]:9000", 0), None);
        for text in ["[fe80::1%4]:9000", "[2001:db8::7]:9000", "10.0.0.1:9000"] {
            assert_eq!(whose(text, 3), Some(v6(text)));
            assert_eq!(whose(text, 0), Some(v6(text)));
        }
        let v4 = raw("10.0.0.1:9000", Family::V4).expect("reachable");
        assert_eq!(v4.with_interface(0), Some(v4));
    }

    #[test]
    fn an_ipv4_socket_reaches_no_ipv6_address() {
        assert_eq!(raw("[2001:db8::7]:9000", Family::V4), None);
        assert_eq!(
            raw("[::ffff:10.0.0.1]:9000", Family::V4),
            raw("10.0.0.1:9000", Family::V4)
        );
    }
}
