//! The direct plane's client side: a channel on the endpoint that a process's channels share.

use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use starling_endpoint::{LargeBuffers, Status};
use starling_io::{MessageMemory, PeerMemory};

use super::{Command, DeadlineWaker, Driver};
use crate::address::Address;
use crate::channel_state::{ChannelState, StateCell};
use crate::health::HealthCell;
use crate::plane::{CallHandle, Reply, Transport, Waiting};
use crate::stats::ThreadStats;

pub(crate) struct DirectTransport {
    driver: Arc<Driver>,
    /// The channel's number in the event loop.
    channel: u64,
    state: Arc<StateCell>,
    peer_memory: PeerMemory,
}

impl DirectTransport {
    pub(crate) fn new(driver: Arc<Driver>, address: Address) -> Self {
        let state = Arc::new(StateCell::new(ChannelState::Idle));
        let channel = driver.next_channel();
        let peer_memory = driver.memory.of_peer(address.as_str());
        driver.send(Command::Open {
            channel,
            address,
            state: Arc::clone(&state),
        });
        Self {
            driver,
            channel,
            state,
            peer_memory,
        }
    }
}

impl Transport for DirectTransport {
    fn start(&self, reply: Reply) {
        self.driver.start_call(self.channel, reply);
    }

    fn cancel(&self, call: &CallHandle) {
        self.driver.send(Command::Cancel(call.clone()));
    }

    fn flush(&self) {
        self.driver.flush();
    }

    fn drive(&self, call: Option<&CallHandle>, waiting: &mut Waiting) -> bool {
        self.driver.drive(call, &mut waiting.watch)
    }

    fn takes_compressed(&self) -> bool {
        true
    }

    fn loop_id(&self) -> usize {
        Arc::as_ptr(&self.driver).addr()
    }

    fn wake_at(&self, deadline: Instant, waker: Arc<DeadlineWaker>) {
        self.driver.send(Command::WakeAt { deadline, waker });
    }

    fn state(&self) -> ChannelState {
        self.state.state()
    }

    fn watch_state(&self, waker: Waker) {
        self.state.watch(waker);
    }

    fn failure(&self) -> Option<Status> {
        self.state.failure()
    }

    fn watch_health(&self, service: &str, health: Arc<HealthCell>) {
        self.driver.send(Command::WatchHealth {
            channel: self.channel,
            service: service.into(),
            health,
        });
    }

    fn memory(&self) -> &MessageMemory {
        &self.driver.memory
    }

    fn peer_memory(&self) -> Option<&PeerMemory> {
        Some(&self.peer_memory)
    }

    fn large_buffers(&self) -> Option<&LargeBuffers> {
        Some(&self.driver.buffers)
    }

    fn stats(&self) -> Result<ThreadStats, Status> {
        self.driver.stats()
    }
}

impl Drop for DirectTransport {
    fn drop(&mut self) {
        if self.driver.is_of_this_process() {
            let channel = self.channel;
            self.driver.send(Command::Close { channel });
        }
    }
}
