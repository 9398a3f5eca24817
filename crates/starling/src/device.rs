//! The devices of the direct plane: a table with one line for each.
//!
//! An endpoint has one device for its life. Everything that touches a datagram is generic over the
//! device. The choice at run time costs one dynamic call for each turn of a loop and each command, and
//! none for each frame.

use std::marker::PhantomData;

use starling_endpoint::{Endpoint, EndpointConfig};
use starling_io::{IoError, MonotonicClock};
use starling_io_mem::MemIo;
use starling_io_shm::ShmIo;
use starling_io_tcp::TcpIo;
use starling_io_udp::UdpIo;
use starling_io_xdp::XdpIo;

pub(crate) use starling_io::Device;
use starling_message::protobuf::DecodeLimits;

use crate::address::Address;
use crate::core::{AnyCore, Core};
use crate::driver::{EventLoop, OpenedLoop};
use crate::error::Error;
use crate::plane::Listener;
use crate::server::DirectListener;
use crate::time::Time;

/// The endpoint under the facade.
pub(crate) type Raw<I> = Endpoint<I, MonotonicClock>;

/// All devices.
static DEVICES: [&dyn DeviceKind; 5] = [
    &Kind::<UdpIo>::NEW,
    &Kind::<ShmIo>::NEW,
    &Kind::<XdpIo>::NEW,
    &Kind::<TcpIo>::NEW,
    &Kind::<MemIo>::NEW,
];

/// The kind of device whose addresses have this scheme.
pub(crate) fn by_scheme(scheme: &str) -> Option<&'static dyn DeviceKind> {
    DEVICES.into_iter().find(|kind| kind.scheme() == scheme)
}

/// The forms of all addresses: `udp://HOST:PORT, shm://NAME or ...`.
pub(crate) fn forms() -> String {
    let forms = DEVICES.map(|kind| kind.form());
    let (last, others) = forms.split_last().expect("there are devices");
    format!("{} or {last}", others.join(", "))
}

/// A kind of device, and the loops over such a device.
pub(crate) trait DeviceKind: Sync {
    fn scheme(&self) -> &'static str;
    fn form(&self) -> &'static str;
    fn max_steered_workers(&self) -> usize;
    fn check(&self, address: &str) -> Result<(), IoError>;
    fn reaches(&self, own: &str, wanted: &str) -> bool;
    fn has_host_name(&self, address: &str) -> bool;
    fn resolve(&self, address: &str) -> Result<Vec<String>, IoError>;

    /// Opens the devices of a server's address, and checks that the settings suit them.
    fn listen(
        &self,
        address: &Address,
        threads: usize,
        config: &EndpointConfig,
    ) -> Result<Vec<Box<dyn Listener>>, Error>;

    /// An endpoint for the thread that owns it: reachable at the address, or for calls to addresses
    /// like it.
    fn core(
        &self,
        address: &Address,
        is_bound: bool,
        time: &Time,
        config: &EndpointConfig,
        decode: DecodeLimits,
    ) -> Result<Box<dyn AnyCore>, Error>;

    /// A loop behind channels to addresses like this one.
    fn event_loop(
        &self,
        address: &Address,
        clock: MonotonicClock,
        time: &Time,
        config: &EndpointConfig,
    ) -> Result<OpenedLoop, Error>;
}

struct Kind<I>(PhantomData<fn() -> I>);

impl<I> Kind<I> {
    const NEW: Self = Self(PhantomData);
}

impl<I: Device> DeviceKind for Kind<I> {
    fn scheme(&self) -> &'static str {
        I::SCHEME
    }

    fn form(&self) -> &'static str {
        I::FORM
    }

    fn max_steered_workers(&self) -> usize {
        I::MAX_STEERED_WORKERS
    }

    fn check(&self, address: &str) -> Result<(), IoError> {
        I::check(address)
    }

    fn reaches(&self, own: &str, wanted: &str) -> bool {
        I::reaches(own, wanted)
    }

    fn has_host_name(&self, address: &str) -> bool {
        I::has_host_name(address)
    }

    fn resolve(&self, address: &str) -> Result<Vec<String>, IoError> {
        I::resolve(address)
    }

    fn listen(
        &self,
        address: &Address,
        threads: usize,
        config: &EndpointConfig,
    ) -> Result<Vec<Box<dyn Listener>>, Error> {
        let mut listeners: Vec<Box<dyn Listener>> = Vec::new();
        for (own, io) in I::bind(address.as_str(), threads)? {
            config.check(io.capabilities())?;
            listeners.push(Box::new(DirectListener::new(Address::parse(&own)?, io)));
        }
        Ok(listeners)
    }

    fn core(
        &self,
        address: &Address,
        is_bound: bool,
        time: &Time,
        config: &EndpointConfig,
        decode: DecodeLimits,
    ) -> Result<Box<dyn AnyCore>, Error> {
        let io = match is_bound {
            true => I::bind(address.as_str(), 1)?.pop().map(|(_, io)| io),
            false => None,
        };
        let io = io.map_or_else(|| I::client(address.as_str()), Ok)?;
        Ok(Box::new(Core::new(io, time.clock(), time, config, decode)?))
    }

    fn event_loop(
        &self,
        address: &Address,
        clock: MonotonicClock,
        time: &Time,
        config: &EndpointConfig,
    ) -> Result<OpenedLoop, Error> {
        let io = I::client(address.as_str())?;
        // Channels have limits of their own.
        let decode = DecodeLimits::default();
        Ok(EventLoop::open(Core::new(io, clock, time, config, decode)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_distinct_and_begin_their_forms() {
        for (index, kind) in DEVICES.iter().enumerate() {
            assert!(kind.form().starts_with(&format!("{}://", kind.scheme())));
            let same = |other: &&dyn DeviceKind| other.scheme() == kind.scheme();
            assert!(!DEVICES[..index].iter().any(same), "{}", kind.scheme());
        }
    }
}
