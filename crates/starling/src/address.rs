//! Addresses such as `udp://host:port`: the scheme names the device, the rest names the peer.

use std::fmt;
use std::hash::{Hash, Hasher};

use starling_io::IoError;

use crate::device::{DeviceKind, by_scheme, forms};

/// Why a text is not an address that this version can use.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It has no scheme, or one that does not exist.
    #[error("{address:?} is not a Starling address: write {forms}")]
    Malformed {
        /// The text.
        address: String,
        /// The forms of addresses.
        forms: String,
    },
    /// The part after the scheme is wrong. The text says why, and what to write.
    #[error("{0}")]
    Unusable(String),
    /// This version does not have its scheme yet.
    #[error("{address}: {scheme}:// is not built into this version yet; use {forms}")]
    NotBuiltIn {
        /// The address.
        address: String,
        /// Its scheme.
        scheme: &'static str,
        /// The forms of addresses.
        forms: String,
    },
}

/// The same text as `Display`: what `main` prints if it returns the error.
impl fmt::Debug for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An address that is well formed, with a scheme that this version has. Whether a peer answers at it
/// shows when it is used.
#[derive(Clone)]
pub struct Address {
    device: &'static dyn DeviceKind,
    text: Box<str>,
}

impl PartialEq for Address {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Address {}

impl Hash for Address {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

/// Schemes of later versions.
const NOT_YET: [&str; 3] = ["rdma", "grpc", "grpcs"];

impl Address {
    /// Parses an address. Host names are not resolved.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let malformed = || AddressError::Malformed {
            address: text.to_owned(),
            forms: forms(),
        };
        let (scheme, _) = text.split_once("://").ok_or_else(malformed)?;
        let Some(device) = by_scheme(scheme) else {
            let known = NOT_YET.into_iter().find(|known| *known == scheme);
            return Err(
                known.map_or_else(malformed, |scheme| AddressError::NotBuiltIn {
                    address: text.to_owned(),
                    scheme,
                    forms: forms(),
                }),
            );
        };
        let unusable = |error: IoError| AddressError::Unusable(error.to_string());
        device.check(text).map_err(unusable)?;
        Ok(Self {
            device,
            text: text.into(),
        })
    }

    /// Its scheme: how the peer is reached, such as `udp`.
    pub fn scheme(&self) -> &'static str {
        self.device.scheme()
    }

    /// The whole text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The kind of device that has such addresses.
    pub(crate) fn device(&self) -> &'static dyn DeviceKind {
        self.device
    }

    /// Whether the device that is bound to this address, or was made to reach it, reaches another one.
    /// Any queue of an interface does, unless the other address names one.
    pub(crate) fn reaches(&self, wanted: &Self) -> bool {
        self.scheme() == wanted.scheme() && self.device.reaches(&self.text, &wanted.text)
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
        assert_eq!(scheme("udp://127.0.0.1:9000"), "udp");
        assert_eq!(scheme("shm://kv"), "shm");
        assert_eq!(scheme("xdp://eth0/10.0.0.7:9000"), "xdp");
    }

    #[test]
    fn a_device_reaches_the_addresses_of_its_interface() {
        let key = |text| Address::parse(text).expect(text);
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

    const FORMS: &str =
        "udp://HOST:PORT, shm://NAME, xdp://IFNAME/HOST:PORT, tcp://HOST:PORT or mem://NAME";

    #[test]
    fn an_unknown_or_later_scheme_is_refused_with_what_to_write_instead() {
        for text in ["rdma://d/h:1", "grpc://h:1", "grpcs://h:1"] {
            let error = Address::parse(text).expect_err(text).to_string();
            assert!(error.contains("not built into this version yet"), "{error}");
            assert!(error.contains(FORMS), "{error}");
        }
        for text in ["", "kv", "127.0.0.1:9000", "http://h:1", "://", "UDP://h:1"] {
            let error = Address::parse(text).expect_err(text).to_string();
            assert!(error.contains(&format!("write {FORMS}")), "{error}");
        }
    }
}
