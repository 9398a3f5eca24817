//! Addresses such as `udp://host:port`: the scheme names the device, the rest names the peer.

use std::fmt;

use starling_io::IoError;
use starling_io_udp::UdpAddress;
use starling_io_xdp::XdpAddress;

/// Why a text is not an address that this version can use.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It has no scheme, or one that does not exist.
    #[error(
        "{0:?} is not a Starling address: write udp://HOST:PORT, shm://NAME or xdp://IFNAME/HOST:PORT"
    )]
    Malformed(String),
    /// The part after the scheme is wrong. The text says why, and what to write.
    #[error("{0}")]
    Unusable(String),
    /// This version does not have its scheme yet.
    #[error(
        "{address}: {scheme}:// is not built into this version yet; use udp://HOST:PORT, shm://NAME or \
         xdp://IFNAME/HOST:PORT"
    )]
    NotBuiltIn {
        /// The address.
        address: String,
        /// Its scheme.
        scheme: &'static str,
    },
}

/// The same text as `Display`: what `main` prints if it returns the error.
impl fmt::Debug for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The scheme of an address: how the peer is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// `udp://host:port`: kernel UDP, to any host.
    Udp,
    /// `shm://name`: shared memory, to a process of this host.
    Shm,
    /// `xdp://ifname/host:port`: UDP past the kernel's network stack, to any host.
    Xdp,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheme::Udp => "udp",
            Scheme::Shm => "shm",
            Scheme::Xdp => "xdp",
        })
    }
}

/// An address that is well formed, with a scheme that this version has. Whether a peer answers at it
/// shows when it is used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    scheme: Scheme,
    text: Box<str>,
}

/// Schemes of later versions.
const NOT_YET: [&str; 3] = ["rdma", "grpc", "grpcs"];

impl Address {
    /// Parses an address. Host names are not resolved.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let malformed = || AddressError::Malformed(text.to_owned());
        let (scheme, _) = text.split_once("://").ok_or_else(malformed)?;
        let unusable = |error: IoError| AddressError::Unusable(error.to_string());
        let scheme = match scheme {
            "udp" => {
                UdpAddress::parse(text).map_err(unusable)?;
                Scheme::Udp
            }
            "shm" => {
                starling_io_shm::check_address(text).map_err(unusable)?;
                Scheme::Shm
            }
            "xdp" => {
                XdpAddress::parse(text).map_err(unusable)?;
                Scheme::Xdp
            }
            other => {
                let known = NOT_YET.into_iter().find(|known| *known == other);
                return Err(
                    known.map_or_else(malformed, |scheme| AddressError::NotBuiltIn {
                        address: text.to_owned(),
                        scheme,
                    }),
                );
            }
        };
        Ok(Self {
            scheme,
            text: text.into(),
        })
    }

    /// Its scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The whole text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// The device that reaches an address. Addresses with the same key can share an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceKey {
    Udp,
    Shm,
    Xdp {
        interface: String,
        is_ipv6: bool,
        queue: Option<u32>,
    },
}

impl DeviceKey {
    /// The key of the device that reaches an address, or that is bound to it.
    pub(crate) fn of(address: &Address) -> Self {
        match address.scheme {
            Scheme::Udp => Self::Udp,
            Scheme::Shm => Self::Shm,
            Scheme::Xdp => {
                let address = XdpAddress::parse(&address.text).expect("it was parsed before");
                Self::Xdp {
                    is_ipv6: address.host().host().contains(':'),
                    interface: address.interface().to_owned(),
                    queue: address.queue(),
                }
            }
        }
    }

    /// Whether this device reaches the peers of another key. Any queue of an interface does, unless
    /// the other key names one.
    pub(crate) fn reaches(&self, wanted: &Self) -> bool {
        match (self, wanted) {
            (Self::Xdp { queue: own, .. }, Self::Xdp { queue, .. }) => {
                let mut like = self.clone();
                if let Self::Xdp { queue: own, .. } = &mut like {
                    *own = *queue;
                }
                like == *wanted && queue.is_none_or(|queue| queue == own.unwrap_or(0))
            }
            _ => self == wanted,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_the_scheme_that_it_begins_with() {
        let scheme = |text| Address::parse(text).expect(text).scheme();
        assert_eq!(scheme("udp://127.0.0.1:9000"), Scheme::Udp);
        assert_eq!(scheme("shm://kv"), Scheme::Shm);
        assert_eq!(scheme("xdp://eth0/10.0.0.7:9000"), Scheme::Xdp);
    }

    #[test]
    fn a_device_reaches_the_addresses_of_its_interface() {
        let key = |text| DeviceKey::of(&Address::parse(text).expect(text));
        assert!(key("udp://h:1").reaches(&key("udp://other:2")));
        assert!(!key("udp://h:1").reaches(&key("shm://kv")));
        let own = key("xdp://eth0/10.0.0.1:1?queue=2");
        for (text, reaches) in [
            ("xdp://eth0/10.0.0.7:9000", true),
            ("xdp://eth0/node-7:9000", true),
            ("xdp://eth0/10.0.0.7:9000?queue=2", true),
            ("xdp://eth0/10.0.0.7:9000?queue=1", false),
            ("xdp://eth1/10.0.0.7:9000", false),
            ("xdp://eth0/[fd00::1]:9000", false),
            ("udp://10.0.0.7:9000", false),
        ] {
            assert_eq!(own.reaches(&key(text)), reaches, "{text}");
        }
        assert!(key("xdp://eth0/10.0.0.1:1").reaches(&key("xdp://eth0/10.0.0.7:1?queue=0")));
    }

    #[test]
    fn an_address_with_a_wrong_rest_is_refused_with_the_reason() {
        for (text, problem) in [
            ("udp://127.0.0.1", "it has no port; write udp://HOST:PORT"),
            ("udp://:9000", "it has no host"),
            ("udp://host:70000", "its port is not a number"),
            ("udp://host:9000/path", "its port is not a number"),
            ("xdp://10.0.0.7:9000", "it has no interface"),
            ("shm://", "the name is empty"),
            ("shm://a/b", "the name has a character that is not allowed"),
        ] {
            let error = Address::parse(text).expect_err(text).to_string();
            assert!(error.contains(text) && error.contains(problem), "{error}");
        }
    }

    #[test]
    fn an_unknown_or_later_scheme_is_refused_with_what_to_write_instead() {
        for text in ["rdma://d/h:1", "grpc://h:1", "grpcs://h:1"] {
            let error = Address::parse(text).expect_err(text).to_string();
            assert!(error.contains("not built into this version yet"), "{error}");
            assert!(
                error.contains("udp://HOST:PORT, shm://NAME or xdp://IFNAME/HOST:PORT"),
                "{error}"
            );
        }
        for text in ["", "kv", "127.0.0.1:9000", "http://h:1", "://", "UDP://h:1"] {
            let error = Address::parse(text).expect_err(text).to_string();
            assert!(
                error.contains("write udp://HOST:PORT, shm://NAME or xdp://IFNAME/HOST:PORT"),
                "{error}"
            );
        }
    }
}
