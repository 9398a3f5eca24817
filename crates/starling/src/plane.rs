//! The devices that an endpoint can stand on.
//!
//! An endpoint has one device for its life. Everything that touches a datagram is generic over
//! it, so choosing the plane at run time costs one branch for each turn of the loop, and none for
//! each frame. A server with addresses on several planes runs one dispatch thread for each.

use std::rc::Rc;

use starling_endpoint::Handler;
use starling_io::{IoError, PacketIo};
use starling_io_shm::{ShmConfig, ShmIo};
use starling_io_udp::{UdpConfig, UdpIo};
use starling_io_xdp::{XdpConfig, XdpIo};

use crate::hub::Hub;
use crate::registry::Entry;

/// A device that the facade can make.
pub(crate) trait Plane: PacketIo + Send + Sized + 'static {
    /// A device that is reached at `address`. With `share_port`, other devices of this process
    /// may have the same address, and the peers are divided among them.
    fn bind(address: &str, share_port: bool) -> Result<Self, IoError>;

    /// A device that only reaches others, at addresses like this one.
    fn client(address: &str) -> Result<Self, IoError>;

    /// The handler of a method, for an endpoint on such a device.
    fn handler(entry: &dyn Entry, hub: &Rc<Hub>) -> Handler<Self>;
}

impl Plane for UdpIo {
    fn bind(address: &str, share_port: bool) -> Result<Self, IoError> {
        let config = UdpConfig {
            reuse_port: share_port,
            ..UdpConfig::default()
        };
        UdpIo::bind(address, config)
    }

    fn client(_: &str) -> Result<Self, IoError> {
        // Reaches both families, where the host has both.
        UdpIo::bind("udp://[::]:0", UdpConfig::default())
            .or_else(|_| UdpIo::bind("udp://0.0.0.0:0", UdpConfig::default()))
    }

    fn handler(entry: &dyn Entry, hub: &Rc<Hub>) -> Handler<Self> {
        entry.udp(hub)
    }
}

impl Plane for ShmIo {
    fn bind(address: &str, _share_port: bool) -> Result<Self, IoError> {
        ShmIo::bind(address, ShmConfig::default())
    }

    fn client(_: &str) -> Result<Self, IoError> {
        ShmIo::client(ShmConfig::default())
    }

    fn handler(entry: &dyn Entry, hub: &Rc<Hub>) -> Handler<Self> {
        entry.shm(hub)
    }
}

impl Plane for XdpIo {
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

    fn handler(entry: &dyn Entry, hub: &Rc<Hub>) -> Handler<Self> {
        entry.xdp(hub)
    }
}
