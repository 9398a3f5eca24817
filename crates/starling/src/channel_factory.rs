//! Channels for the thread that owns an endpoint.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use starling_io::MessageMemory;

use crate::address::{Address, DeviceKey};
use crate::channel::Channel;
use crate::connections::Connections;
use crate::core::Core;
use crate::device::Device;
use crate::error::Error;
use crate::executor::Executor;
use crate::local::LocalChannel;

/// Makes the [`LocalChannel`]s of one endpoint.
pub(crate) struct ChannelFactory {
    pub(crate) executor: Rc<Executor>,
    /// The device's memory for messages.
    pub(crate) memory: MessageMemory,
    device: DeviceKey,
    connections: Rc<Connections>,
    /// Channels to addresses that the endpoint's device does not reach. Each stays for the life of
    /// the endpoint.
    elsewhere: RefCell<HashMap<Address, Channel>>,
}

impl ChannelFactory {
    pub(crate) fn new<I: Device>(core: &Core<I>, device: DeviceKey) -> Rc<Self> {
        Rc::new(Self {
            executor: Rc::clone(&core.executor),
            memory: core.raw.memory(),
            device,
            connections: Rc::clone(&core.connections),
            elsewhere: RefCell::default(),
        })
    }

    /// A channel to an address. All channels to one address share a connection.
    pub(crate) fn channel(&self, address: &str) -> Result<LocalChannel, Error> {
        let address = Address::parse(address)?;
        if self.device.reaches(&DeviceKey::of(&address)) {
            let connection = self.connections.shared(address);
            return Ok(LocalChannel::new(connection, &self.executor));
        }
        let channel = self.elsewhere(address)?;
        Ok(LocalChannel::elsewhere(channel, &self.executor))
    }

    fn elsewhere(&self, address: Address) -> Result<Channel, Error> {
        let mut elsewhere = self.elsewhere.borrow_mut();
        if let Some(channel) = elsewhere.get(&address) {
            return Ok(channel.clone());
        }
        let channel = Channel::lazy(address.as_str())?;
        elsewhere.insert(address, channel.clone());
        Ok(channel)
    }
}
