//! The devices, and how an endpoint is made on one.

use rustix::rand::{GetRandomFlags, getrandom};
use starling_endpoint::{Endpoint, EndpointConfig, Secrets};
use starling_io::{Clock, IoError, MonotonicClock, PacketIo};
use starling_io_shm::{ShmConfig, ShmIo};
use starling_io_udp::{UdpConfig, UdpIo};
use starling_io_xdp::{XdpConfig, XdpIo};

use super::SYSTEM;
use crate::error::BenchError;

/// An endpoint on a device.
pub(crate) type Raw<I> = Endpoint<I, MonotonicClock>;

/// A kind of device that takes part.
pub(crate) trait Plane: PacketIo + Sized + 'static {
    /// Its name in rows.
    const NAME: &'static str;

    /// A device that clients can reach at `host`, an address of this namespace.
    fn server(host: &str) -> Result<Self, IoError>;

    /// A device for a client that has `host`.
    fn client(host: &str) -> Result<Self, IoError>;

    /// What a client calls a server by that announced this address.
    fn from_client(address: &str) -> String {
        address.to_owned()
    }
}

impl Plane for UdpIo {
    const NAME: &'static str = "udp";

    fn server(host: &str) -> Result<Self, IoError> {
        UdpIo::bind(&format!("udp://{host}:0"), UdpConfig::default())
    }

    fn client(host: &str) -> Result<Self, IoError> {
        Self::server(host)
    }
}

impl Plane for ShmIo {
    const NAME: &'static str = "shm";

    fn server(_: &str) -> Result<Self, IoError> {
        let name = format!("shm://starling-bench-{}", std::process::id());
        ShmIo::bind(&name, ShmConfig::default())
    }

    fn client(_: &str) -> Result<Self, IoError> {
        ShmIo::client(ShmConfig::default())
    }
}

impl Plane for XdpIo {
    const NAME: &'static str = "xdp";

    fn server(host: &str) -> Result<Self, IoError> {
        XdpIo::bind(&format!("xdp://vb/{host}:0"), XdpConfig::default())
    }

    fn client(host: &str) -> Result<Self, IoError> {
        XdpIo::bind(&format!("xdp://va/{host}:0"), XdpConfig::default())
    }

    /// By its own interface.
    fn from_client(address: &str) -> String {
        address.replace("xdp://vb/", "xdp://va/")
    }
}

/// An endpoint on a device that was just made.
pub(crate) fn endpoint<I: Plane>(
    device: Result<I, IoError>,
    config: EndpointConfig,
) -> Result<Raw<I>, BenchError> {
    endpoint_with(device, MonotonicClock::new(), config)
}

/// The same with a clock of one's own.
pub(crate) fn endpoint_with<I: Plane, C: Clock>(
    device: Result<I, IoError>,
    clock: C,
    config: EndpointConfig,
) -> Result<Endpoint<I, C>, BenchError> {
    let device = device.map_err(failed)?;
    Endpoint::new(device, clock, config, secrets()?).map_err(failed)
}

fn secrets() -> Result<Secrets, BenchError> {
    let mut random = [0; 20];
    // So few bytes come all at once, or not at all.
    getrandom(&mut random, GetRandomFlags::empty())
        .map_err(|error| BenchError::io("reading the system's randomness")(error.into()))?;
    let (token, cookie_key) = random.split_at(4);
    Ok(Secrets {
        token: u32::from_le_bytes(token.try_into().expect("4 bytes")),
        cookie_key: cookie_key.try_into().expect("16 bytes"),
    })
}

/// An error of Starling's as one of the benchmarks.
pub(crate) fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Call {
        system: SYSTEM,
        what: error.to_string(),
    }
}
