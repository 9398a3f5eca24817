//! Addresses: what a name like `udp://host:port` says about how to get there.

use std::fmt;

use starling_io::IoError;
use starling_io_udp::UdpAddress;

/// Why a text is no address that works here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It has no scheme, or one that does not exist.
    #[error("{0:?} is no Starling address: write udp://HOST:PORT or shm://NAME")]
    Malformed(String),
    /// What follows its scheme cannot be right. The text says why, and what to write.
    #[error("{0}")]
    Unusable(String),
    /// Its plane exists in the design but not in this version.
    #[error(
        "{address}: {scheme}:// is not built into this version yet; use udp://HOST:PORT or shm://NAME"
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
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheme::Udp => "udp",
            Scheme::Shm => "shm",
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
const NOT_YET: [&str; 4] = ["xdp", "rdma", "grpc", "grpcs"];

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
    }

    #[test]
    fn the_rest_is_checked_too() {
        for (text, problem) in [
            ("udp://127.0.0.1", "it has no port; write udp://HOST:PORT"),
            ("udp://:9000", "it has no host"),
            ("udp://host:70000", "its port is no number"),
            ("udp://host:9000/path", "its port is no number"),
            ("shm://", "the name is empty"),
            ("shm://a/b", "a character that names cannot have"),
        ] {
            let error = Address::parse(text).expect_err(text).to_string();
            assert!(error.contains(text) && error.contains(problem), "{error}");
        }
    }

    #[test]
    fn planes_to_come_and_nonsense_say_what_to_write_instead() {
        for text in [
            "xdp://eth0/h:1",
            "rdma://d/h:1",
            "grpc://h:1",
            "grpcs://h:1",
        ] {
            let error = Address::parse(text).expect_err(text).to_string();
            assert!(error.contains("not built into this version yet"), "{error}");
            assert!(error.contains("udp://HOST:PORT or shm://NAME"), "{error}");
        }
        for text in ["", "kv", "127.0.0.1:9000", "http://h:1", "://", "UDP://h:1"] {
            let error = Address::parse(text).expect_err(text).to_string();
            assert!(
                error.contains("write udp://HOST:PORT or shm://NAME"),
                "{error}"
            );
        }
    }
}
