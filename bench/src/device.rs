//! The devices that Starling is measured over, and how an endpoint is made on one: all that depends
//! on the kind of device.

use rustix::rand::{GetRandomFlags, getrandom};
use starling_endpoint::{Endpoint, EndpointConfig, Secrets};
use starling_io::{Clock, IoError, MonotonicClock, PacketIo};
use starling_io_shm::{ShmConfig, ShmIo};
use starling_io_tcp::{TcpConfig, TcpIo};
use starling_io_udp::{UdpConfig, UdpIo};
use starling_io_xdp::{XdpConfig, XdpIo};

use crate::error::BenchError;

/// The name of Starling in rows and errors.
pub(crate) const SYSTEM: &str = "starling";

/// An endpoint on a device.
pub(crate) type Raw<I> = Endpoint<I, MonotonicClock>;

/// A kind of device that the benchmarks run over.
pub(crate) trait Device: PacketIo + Sized + 'static {
    /// The scheme of its addresses, which names it in rows and arguments.
    const SCHEME: &'static str;

    /// A server's device. Clients reach it at `host`, an address of this network namespace.
    fn server(host: &str) -> Result<Self, IoError>;

    /// A client's device, at `host`.
    fn client(host: &str) -> Result<Self, IoError>;

    /// The client's address for a server that announced `address`.
    fn address_from_client(address: &str) -> String {
        address.to_owned()
    }
}

impl Device for UdpIo {
    const SCHEME: &'static str = "udp";

    fn server(host: &str) -> Result<Self, IoError> {
        UdpIo::bind(&format!("udp://{host}:0"), UdpConfig::default())
    }

    fn client(host: &str) -> Result<Self, IoError> {
        Self::server(host)
    }
}

impl Device for TcpIo {
    const SCHEME: &'static str = "tcp";

    fn server(host: &str) -> Result<Self, IoError> {
        TcpIo::bind(&format!("tcp://{host}:0"), TcpConfig::default())
    }

    fn client(_: &str) -> Result<Self, IoError> {
        TcpIo::client(TcpConfig::default())
    }
}

impl Device for ShmIo {
    const SCHEME: &'static str = "shm";

    fn server(_: &str) -> Result<Self, IoError> {
        let name = format!("shm://starling-bench-{}", std::process::id());
        ShmIo::bind(&name, ShmConfig::default())
    }

    fn client(_: &str) -> Result<Self, IoError> {
        ShmIo::client(ShmConfig::default())
    }
}

impl Device for XdpIo {
    const SCHEME: &'static str = "xdp";

    fn server(host: &str) -> Result<Self, IoError> {
        XdpIo::bind(&format!("xdp://vb/{host}:0"), XdpConfig::default())
    }

    fn client(host: &str) -> Result<Self, IoError> {
        XdpIo::bind(&format!("xdp://va/{host}:0"), XdpConfig::default())
    }

    /// The interface in it is the client's own.
    fn address_from_client(address: &str) -> String {
        address.replace("xdp://vb/", "xdp://va/")
    }
}

/// An endpoint on a new device.
pub(crate) fn endpoint<I: Device>(
    device: Result<I, IoError>,
    config: EndpointConfig,
) -> Result<Raw<I>, BenchError> {
    endpoint_with(device, MonotonicClock::new(), config)
}

/// The same with another clock.
pub(crate) fn endpoint_with<I: Device, C: Clock>(
    device: Result<I, IoError>,
    clock: C,
    config: EndpointConfig,
) -> Result<Endpoint<I, C>, BenchError> {
    let device = device.map_err(failed)?;
    Endpoint::new(device, clock, config, secrets()?).map_err(failed)
}

fn secrets() -> Result<Secrets, BenchError> {
    let mut random = [0; 32];
    // So few bytes come all at once, or not at all.
    getrandom(&mut random, GetRandomFlags::empty())
        .map_err(|error| BenchError::io("reading the system's randomness")(error.into()))?;
    let (token_key, cookie_key) = random.split_at(16);
    Ok(Secrets {
        token_key: token_key.try_into().expect("16 bytes"),
        cookie_key: cookie_key.try_into().expect("16 bytes"),
    })
}

/// An error of Starling as one of the benchmarks.
pub(crate) fn failed(error: impl std::fmt::Display) -> BenchError {
    BenchError::Call {
        system: SYSTEM,
        what: error.to_string(),
    }
}
