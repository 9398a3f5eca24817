//! Devices that are opened by an address.

use crate::{IoError, PacketIo};

/// A kind of device that an address names. A device crate implements it; a table above the devices
/// names the kinds that a program has.
///
/// `address` is the whole text of an address, with its scheme.
pub trait Device: PacketIo + Send + Sized + 'static {
    /// The scheme of its addresses: `udp`.
    const SCHEME: &'static str;
    /// The form of its addresses, for error texts: `udp://HOST:PORT`.
    const FORM: &'static str;
    /// The workers that it can steer requests to ([`PacketIo::steer`]). Zero if it cannot.
    const MAX_STEERED_WORKERS: usize = 0;

    /// Checks the form of an address. Nothing is opened or resolved.
    ///
    /// # Errors
    /// With [`Fault::Caller`](crate::Fault::Caller): what is wrong, and what to write.
    fn check(address: &str) -> Result<(), IoError>;

    /// Opens the devices of an address, with the address of each: one for each of `threads`, or fewer
    /// where the address has room for only so many. Peers are divided among them.
    fn bind(address: &str, threads: usize) -> Result<Vec<(String, Self)>, IoError>;

    /// Opens a device that only reaches peers, at addresses like this one.
    fn client(address: &str) -> Result<Self, IoError>;

    /// Whether a device opened by `own` reaches the peers at `wanted`, an address of the same scheme.
    fn reaches(own: &str, wanted: &str) -> bool {
        let _ = (own, wanted);
        true
    }

    /// Whether an address has a host name, which [`Device::resolve`] replaces.
    fn has_host_name(address: &str) -> bool {
        let _ = address;
        false
    }

    /// The addresses that an address with a host name stands for. May wait for the network.
    fn resolve(address: &str) -> Result<Vec<String>, IoError> {
        Ok(vec![address.to_owned()])
    }
}
