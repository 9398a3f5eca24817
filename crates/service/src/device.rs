//! The devices of the service's own links: a table with one line for each.

use std::fmt;

use starling_endpoint::EndpointConfig;
use starling_io::{Device, IoError, MonotonicClock};
use starling_io_shm::ShmIo;
use starling_io_tcp::TcpIo;
use starling_io_udp::UdpIo;
use starling_io_xdp::XdpIo;

use crate::adapter::AdapterSettings;
use crate::error::ServiceError;
use crate::link::{EndpointLink, Link};

type Opened = Result<Box<dyn Link>, ServiceError>;
type OpenClient = fn(&str, &MonotonicClock, &EndpointConfig, &AdapterSettings) -> Opened;

/// A device by which an application may call.
trait AdapterDevice: Device {
    /// One with these settings, that reaches addresses like this one.
    fn adapter(address: &str, settings: &AdapterSettings) -> Result<Self, IoError>;
}

impl AdapterDevice for UdpIo {
    fn adapter(_: &str, settings: &AdapterSettings) -> Result<Self, IoError> {
        Self::client(settings.udp())
    }
}

impl AdapterDevice for ShmIo {
    /// The address has all settings of the device.
    fn adapter(address: &str, _: &AdapterSettings) -> Result<Self, IoError> {
        <Self as Device>::client(address)
    }
}

impl AdapterDevice for XdpIo {
    fn adapter(address: &str, settings: &AdapterSettings) -> Result<Self, IoError> {
        Self::client(address, settings.xdp())
    }
}

impl AdapterDevice for TcpIo {
    fn adapter(_: &str, settings: &AdapterSettings) -> Result<Self, IoError> {
        Self::client(settings.tcp())
    }
}

/// A kind of device, as functions over addresses.
#[derive(Clone, Copy)]
pub(crate) struct DeviceKind {
    scheme: &'static str,
    check: fn(&str) -> Result<(), IoError>,
    client: OpenClient,
    bind: fn(&str, &MonotonicClock, &EndpointConfig) -> Opened,
    reaches: fn(&str, &str) -> bool,
    has_host_name: fn(&str) -> bool,
    resolve: fn(&str) -> Result<Vec<String>, IoError>,
}

static KINDS: [DeviceKind; 4] = [
    kind::<UdpIo>(),
    kind::<ShmIo>(),
    kind::<XdpIo>(),
    kind::<TcpIo>(),
];

const fn kind<I: AdapterDevice>() -> DeviceKind {
    DeviceKind {
        scheme: I::SCHEME,
        check: I::check,
        client: |address, clock, config, settings| {
            let io = I::adapter(address, settings)?;
            open(io, clock, &settings.endpoint(config))
        },
        bind: |address, clock, config| {
            let mut bound = I::bind(address, 1)?;
            let (_, io) = bound.pop().expect("one for each thread");
            open(io, clock, config)
        },
        reaches: I::reaches,
        has_host_name: I::has_host_name,
        resolve: I::resolve,
    }
}

fn open<I: Device>(io: I, clock: &MonotonicClock, config: &EndpointConfig) -> Opened {
    Ok(Box::new(EndpointLink::new(io, clock.clone(), config)?))
}

impl fmt::Debug for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.scheme)
    }
}

impl DeviceKind {
    /// The kind of device that has such addresses.
    ///
    /// # Errors
    /// If there is none, or the address is malformed.
    pub(crate) fn of(address: &str) -> Result<Self, ServiceError> {
        let scheme = address.split_once("://").map_or("", |(scheme, _)| scheme);
        let Some(kind) = Self::named(scheme) else {
            return Err(ServiceError::UnknownDevice {
                address: address.to_owned(),
            });
        };
        (kind.check)(address)?;
        Ok(kind)
    }

    /// The kind with this scheme, if there is one.
    pub(crate) fn named(scheme: &str) -> Option<Self> {
        KINDS.iter().find(|kind| kind.scheme == scheme).copied()
    }

    pub(crate) fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// A link that calls addresses like this one.
    pub(crate) fn client(
        &self,
        address: &str,
        clock: &MonotonicClock,
        config: &EndpointConfig,
        settings: &AdapterSettings,
    ) -> Opened {
        (self.client)(address, clock, config, settings)
    }

    /// A link that is reached at this address.
    pub(crate) fn bind(
        &self,
        address: &str,
        clock: &MonotonicClock,
        config: &EndpointConfig,
    ) -> Opened {
        (self.bind)(address, clock, config)
    }

    /// Whether a link that was made to call one address calls the other.
    pub(crate) fn reaches(&self, own: &str, wanted: &str) -> bool {
        (self.reaches)(own, wanted)
    }

    /// Whether the address has to be resolved, which may take long.
    pub(crate) fn has_host_name(&self, address: &str) -> bool {
        (self.has_host_name)(address)
    }

    pub(crate) fn resolve(&self, address: &str) -> Result<Vec<String>, IoError> {
        (self.resolve)(address)
    }
}
