//! The number of a simulated host, and the address that belongs to it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The port of every host's only socket.
const PORT: u16 = 4000;

/// Stands for an address that no host has.
pub(crate) const NO_HOST: HostId = HostId(u32::MAX);

/// A host of a fabric: a thread with an endpoint, and a socket of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub u32);

impl HostId {
    /// The host's socket: 10.x.y.z with the number in x, y, z.
    pub(crate) fn address(self) -> SocketAddr {
        let [top, a, b, c] = self.0.to_be_bytes();
        assert_eq!(top, 0, "a fabric has room for 2^24 hosts");
        SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, a, b, c)), PORT)
    }

    /// The host with this socket, if the address is of this form.
    pub(crate) fn of_address(address: SocketAddr) -> Option<Self> {
        match address.ip() {
            IpAddr::V4(ip) if address.port() == PORT && ip.octets()[0] == 10 => {
                let [_, a, b, c] = ip.octets();
                Some(Self(u32::from_be_bytes([0, a, b, c])))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_host_numbers_convert_both_ways() {
        for number in [0, 1, 255, 256, 70_000, (1 << 24) - 1] {
            let host = HostId(number);
            assert_eq!(HostId::of_address(host.address()), Some(host));
        }
        let other_port = "10.0.0.1:4001".parse().unwrap();
        assert_eq!(HostId::of_address(other_port), None);
        assert_eq!(HostId::of_address("192.0.2.1:4000".parse().unwrap()), None);
    }
}
