//! Channels for the thread that owns an endpoint.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use starling_io::MessageMemory;

use crate::address::Address;
use crate::channel::Channel;
use crate::connections::Connections;
use crate::core::Core;
use crate::device::Device;
use crate::error::Error;
use crate::executor::Executor;
use crate::interceptor::Interceptors;
use crate::local::LocalChannel;

/// Makes the [`LocalChannel`]s of one endpoint.
pub(crate) struct ChannelFactory {
    pub(crate) executor: Arc<Executor>,
    /// The device's memory for messages.
    pub(crate) memory: MessageMemory,
    /// The address that its device is bound to, or was made to reach.
    own: Address,
    connections: Arc<Connections>,
    /// Around the calls of all its channels.
    interceptors: Interceptors,
    /// Channels to addresses that the endpoint's device does not reach. Each stays for the life of
    /// the endpoint.
    elsewhere: Mutex<HashMap<Address, Channel>>,
}

impl ChannelFactory {
    pub(crate) fn new<I: Device>(
        core: &Core<I>,
        own: Address,
        interceptors: Interceptors,
    ) -> Arc<Self> {
        Arc::new(Self {
            executor: Arc::clone(&core.executor),
            memory: core.raw.memory(),
            own,
            connections: Arc::clone(&core.connections),
            interceptors,
            elsewhere: Mutex::default(),
        })
    }

    /// The address that the device is bound to, or was made to reach.
    pub(crate) fn own(&self) -> &Address {
        &self.own
    }

    /// A channel to an address. All channels to one address share a connection.
    pub(crate) fn channel(&self, address: &str) -> Result<LocalChannel, Error> {
        let address = Address::parse(address)?;
        if self.own.reaches(&address) {
            let connection = self.connections.shared(address);
            let interceptors = self.interceptors.clone();
            return Ok(LocalChannel::new(connection, &self.executor, interceptors));
        }
        let channel = self.elsewhere(address)?;
        Ok(LocalChannel::elsewhere(channel, &self.executor))
    }

    fn elsewhere(&self, address: Address) -> Result<Channel, Error> {
        let mut elsewhere = self.elsewhere.lock();
        if let Some(channel) = elsewhere.get(&address) {
            return Ok(channel.clone());
        }
        let channel = Channel::builder(address.as_str())
            .time(&self.executor.time)
            .decode_limits(self.executor.decode);
        let channel = channel.lazy()?.with_interceptors(&self.interceptors);
        elsewhere.insert(address, channel.clone());
        Ok(channel)
    }
}
