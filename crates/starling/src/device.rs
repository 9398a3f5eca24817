//! The devices that an endpoint can use.
//!
//! An endpoint has one device for its life. Everything that touches a datagram is generic over the
//! device. The choice at run time costs one branch for each turn of the loop, and none for each
//! frame. A server with addresses of several schemes runs one dispatch thread for each.

use starling_endpoint::Endpoint;
use starling_io::{IoError, MonotonicClock, PacketIo};
use starling_io_shm::{ShmConfig, ShmIo};
use starling_io_udp::{UdpConfig, UdpIo};
use starling_io_xdp::{XdpConfig, XdpIo};

/// The endpoint under the facade.
pub(crate) type Raw<I> = Endpoint<I, MonotonicClock>;

/// A device that the facade can open.
pub(crate) trait Device: PacketIo + Send + Sized + 'static {
    /// Opens a device that peers reach at `address`. With `share_port`, other devices of this
    /// process may have the same address, and the peers are divided among them.
    fn bind(address: &str, share_port: bool) -> Result<Self, IoError>;

    /// Opens a device that only reaches peers, at addresses like this one.
    fn client(address: &str) -> Result<Self, IoError>;
}

impl Device for UdpIo {
    fn bind(address: &str, share_port: bool) -> Result<Self, IoError> {
        let config = UdpConfig {
            reuse_port: share_port,
            ..UdpConfig::default()
        };
        UdpIo::bind(address, config)
    }

    fn client(_: &str) -> Result<Self, IoError> {
        // An IPv6 socket reaches both families where the host has both.
        UdpIo::bind("udp://[::]:0", UdpConfig::default())
            .or_else(|_| UdpIo::bind("udp://0.0.0.0:0", UdpConfig::default()))
    }
}

impl Device for ShmIo {
    fn bind(address: &str, _share_port: bool) -> Result<Self, IoError> {
        ShmIo::bind(address, ShmConfig::default())
    }

    fn client(_: &str) -> Result<Self, IoError> {
        ShmIo::client(ShmConfig::default())
    }
}

impl Device for XdpIo {
    fn bind(address: &str, share_port: bool) -> Result<Self, IoError> {
        let config = XdpConfig {
            reuse_port: share_port,
            ..XdpConfig::default()
        };
        XdpIo::bind(address, config)
    }

    fn client(address: &str) -> Result<Self, IoError> {
        XdpIo::client(address, XdpConfig::default())
    }
}

/// One of the devices, or what stands on one of them: chosen at run time by an address's scheme.
pub(crate) enum PerDevice<U, S, X> {
    Udp(U),
    Shm(S),
    Xdp(X),
}

/// A device of any kind.
pub(crate) type AnyDevice = PerDevice<Box<UdpIo>, Box<ShmIo>, Box<XdpIo>>;

/// Evaluates the same expression for each kind of device.
macro_rules! for_each_device {
    ($value:expr, $inner:ident => $body:expr) => {
        match $value {
            $crate::device::PerDevice::Udp($inner) => $body,
            $crate::device::PerDevice::Shm($inner) => $body,
            $crate::device::PerDevice::Xdp($inner) => $body,
        }
    };
}
pub(crate) use for_each_device;
