//! Addresses: what a name like `udp://host:port` says about how to get there.

use std::fmt;

use starling_io::IoError;
use starling_io_udp::UdpAddress;
use starling_io_xdp::XdpAddress;

/// Why a text is no address that works here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It has no scheme, or one that does not exist.
    #[error(
        "{0:?} is no Starling address: write udp://HOST:PORT, shm://NAME or xdp://IFNAME/HOST:PORT"
    )]
    Malformed(String),
    /// What follows its scheme cannot be right. The text says why, and what to write.
    #[error("{0}")]
    Unusable(String),
    /// Its plane exists in the design but not in this version.
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

/// How an address is reached.
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

/// An address that is well formed, with a scheme that works here. Whether anybody is reached by it
/// is seen when it is used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    scheme: Scheme,
    text: Box<str>,
}

/// Schemes that are to come.
const NOT_YET: [&str; 3] = ["rdma", "grpc", "grpcs"];

impl Address {
    /// Reads an address. Names are not looked up.
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

    /// How it is reached.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The whole text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// By which device an address is reached: those with the same one can share an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Udp,
    Shm,
    Xdp {
        interface: String,
        is_ipv6: bool,
        queue: Option<u32>,
    },
}

impl Way {
    /// The way to an address, or that of the endpoint that is bound to it.
    pub(crate) fn of(address: &Address) -> Self {
        match address.scheme {
            Scheme::Udp => Self::Udp,
            Scheme::Shm => Self::Shm,
            Scheme::Xdp => {
                let address = XdpAddress::parse(&address.text).expect("it was read before");
                Self::Xdp {
                    is_ipv6: address.host().host().contains(':'),
                    interface: address.interface().to_owned(),
                    queue: address.queue(),
                }
            }
        }
    }

    /// Whether who has this device reaches what is reached that way: any queue of an interface does
    /// unless one is asked for.
    pub(crate) fn leads(&self, wanted: &Self) -> bool {
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
    fn the_scheme_decides() {
        let scheme = |text| Address::parse(text).expect(text).scheme();
        assert_eq!(scheme("udp://127.0.0.1:9000"), Scheme::Udp);
        assert_eq!(scheme("shm://kv"), Scheme::Shm);
        assert_eq!(scheme("xdp://eth0/10.0.0.7:9000"), Scheme::Xdp);
    }

    #[test]
    fn a_device_reaches_what_is_behind_its_interface() {
        let way = |text| Way::of(&Address::parse(text).expect(text));
        assert!(way("udp://h:1").leads(&way("udp://other:2")));
        assert!(!way("udp://h:1").leads(&way("shm://kv")));
        let own = way("xdp://eth0/10.0.0.1:1?queue=2");
        for (text, leads) in [
            ("xdp://eth0/10.0.0.7:9000", true),
            ("xdp://eth0/node-7:9000", true),
            ("xdp://eth0/10.0.0.7:9000?queue=2", true),
            ("xdp://eth0/10.0.0.7:9000?queue=1", false),
            ("xdp://eth1/10.0.0.7:9000", false),
            ("xdp://eth0/[fd00::1]:9000", false),
            ("udp://10.0.0.7:9000", false),
        ] {
            assert_eq!(own.leads(&way(text)), leads, "{text}");
        }
        assert!(way("xdp://eth0/10.0.0.1:1").leads(&way("xdp://eth0/10.0.0.7:1?queue=0")));
    }

    #[test]
    fn the_rest_is_checked_too() {
        for (text, problem) in [
            ("udp://127.0.0.1", "it has no port; write udp://HOST:PORT"),
            ("udp://:9000", "it has no host"),
            ("udp://host:70000", "its port is no number"),
            ("udp://host:9000/path", "its port is no number"),
            ("xdp://10.0.0.7:9000", "it has no interface"),
            ("shm://", "the name is empty"),
            ("shm://a/b", "a character that names cannot have"),
        ] {
            let error = Address::parse(text).expect_err(text).to_string();
            assert!(error.contains(text) && error.contains(problem), "{error}");
        }
    }

    #[test]
    fn planes_to_come_and_nonsense_say_what_to_write_instead() {
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
