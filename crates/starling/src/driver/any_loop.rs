//! The event loop behind channels on a device of any kind, as `starling_share` drives it.

use std::sync::Arc;
use std::time::Duration;

use starling_endpoint::EndpointConfig;
use starling_io::{IoError, MessageMemory, MonotonicClock, Wake};
use starling_io_shm::ShmIo;
use starling_io_udp::UdpIo;
use starling_io_xdp::XdpIo;
use starling_share::Step;

use super::command::{Command, refuse};
use super::event_loop::EventLoop;
use crate::address::{Address, Scheme};
use crate::core::Core;
use crate::device::{Device, PerDevice, for_each_device};
use crate::error::Error;

type BoxedLoop<I> = Box<EventLoop<I>>;

/// One branch for each turn, none for each frame.
pub(crate) struct AnyLoop(PerDevice<BoxedLoop<UdpIo>, BoxedLoop<ShmIo>, BoxedLoop<XdpIo>>);

impl AnyLoop {
    pub(super) fn new(
        address: &Address,
        clock: MonotonicClock,
        config: &EndpointConfig,
    ) -> Result<Self, Error> {
        Ok(Self(match address.scheme() {
            Scheme::Udp => PerDevice::Udp(event_loop(address, clock, config)?),
            Scheme::Shm => PerDevice::Shm(event_loop(address, clock, config)?),
            Scheme::Xdp => PerDevice::Xdp(event_loop(address, clock, config)?),
        }))
    }

    pub(super) fn waker(&self) -> Arc<dyn Wake> {
        for_each_device!(&self.0, event_loop => event_loop.waker())
    }

    pub(super) fn memory(&self) -> MessageMemory {
        for_each_device!(&self.0, event_loop => event_loop.memory())
    }
}

fn event_loop<I: Device>(
    address: &Address,
    clock: MonotonicClock,
    config: &EndpointConfig,
) -> Result<BoxedLoop<I>, Error> {
    let io = I::client(address.as_str())?;
    Ok(Box::new(EventLoop::new(Core::new(io, clock, config)?)))
}

impl starling_share::EventLoop for AnyLoop {
    type Command = Command;

    fn resume(&mut self) -> Result<(), IoError> {
        for_each_device!(&mut self.0, event_loop => event_loop.resume())
    }

    fn execute(&mut self, command: Command) {
        for_each_device!(&mut self.0, event_loop => event_loop.execute(command));
    }

    fn turn(&mut self) -> Result<Step, IoError> {
        let busy = for_each_device!(&mut self.0, event_loop => event_loop.turn())?;
        Ok(if busy { Step::Busy } else { Step::Idle })
    }

    fn sleep(&mut self, limit: Option<Duration>) -> Result<(), IoError> {
        for_each_device!(&mut self.0, event_loop => event_loop.sleep(limit))
    }

    fn spin_ns(&self) -> u64 {
        for_each_device!(&self.0, event_loop => event_loop.spin_ns())
    }

    fn is_expecting(&self) -> bool {
        for_each_device!(&self.0, event_loop => event_loop.is_expecting())
    }

    fn next_timer_ns(&mut self) -> Option<u64> {
        for_each_device!(&mut self.0, event_loop => event_loop.next_timer_ns())
    }

    fn end(self, failure: Option<&str>) {
        for_each_device!(self.0, event_loop => (*event_loop).end(failure));
    }

    fn refuse(command: Command, failure: &str) {
        refuse(command, failure);
    }
}
