//! The transports of a balanced channel: to any backend, and to one.

use std::sync::Arc;
use std::time::Instant;

use starling_endpoint::{LargeBuffers, Status};
use starling_io::MessageMemory;

use super::backend::{Backend, BackendState};
use super::balancer::Balancer;
use super::settings::{Balancing, Source};
use super::stream::StreamTransport;
use crate::address::Address;
use crate::channel_state::ChannelState;
use crate::driver::{Command, DeadlineWaker};
use crate::error::Error;
use crate::plane::{CallHandle, Reply, Transport, Waiting};
use crate::stats::ThreadStats;

/// Any backend.
#[derive(Clone)]
pub(crate) struct BalancedTransport {
    balancer: Arc<Balancer>,
    memory: MessageMemory,
}

impl BalancedTransport {
    pub(crate) fn new(settings: Balancing) -> Result<Self, Error> {
        let first = match &settings.source {
            Source::List(addresses) => addresses.first().cloned(),
            Source::Resolver(_) => None,
        };
        let balancer = Balancer::start(settings)?;
        // Most channels have backends of one kind. Messages in other memory are sent all the same.
        let memory = match first {
            Some(first) => balancer.open(&Address::parse(&first)?)?.memory().clone(),
            None => MessageMemory::default(),
        };
        Ok(Self { balancer, memory })
    }

    pub(super) fn balancer(&self) -> &Balancer {
        &self.balancer
    }

    /// The backends, as they are now.
    pub(crate) fn backends(&self) -> Vec<BackendState> {
        let snapshot = self.balancer.current();
        let backends = snapshot.backends.iter().zip(&snapshot.is_ready);
        backends
            .map(|(backend, is_ready)| backend.report(*is_ready))
            .collect()
    }

    /// A transport to each of the backends, with its address.
    pub(crate) fn each(&self) -> Vec<(String, OneBackend)> {
        let snapshot = self.balancer.current();
        self.balancer.request_backends(&snapshot);
        let backends = snapshot.backends.iter();
        let one = |backend: &Arc<Backend>| OneBackend {
            channel: self.clone(),
            backend: Arc::clone(backend),
        };
        backends
            .map(|it| (it.resolved.address.clone(), one(it)))
            .collect()
    }
}

impl Transport for BalancedTransport {
    fn start(&self, reply: Reply) {
        self.balancer.begin(reply, None);
    }

    fn cancel(&self, call: &CallHandle) {
        match call.0.backend() {
            0 => self.balancer.queue.remove(call),
            id => {
                if let Some(backend) = self.balancer.find(id) {
                    backend.transport.cancel(call);
                }
            }
        }
    }

    fn drive(&self, call: Option<&CallHandle>, waiting: &mut Waiting) -> bool {
        let id = call.map_or(0, |call| call.0.backend());
        if id == 0 {
            // It waits for a backend, which nobody can hasten.
            return false;
        }
        let any = {
            let snapshot = self.balancer.snapshot.read();
            let any = snapshot.backends.first();
            any.filter(|_| snapshot.is_one_loop).cloned()
        };
        // Without the lock: driving may run anything.
        let backend = any.or_else(|| self.balancer.find(id));
        backend.is_some_and(|backend| backend.transport.drive(call, waiting))
    }

    fn for_stream(&self) -> Option<Arc<dyn Transport>> {
        Some(Arc::new(StreamTransport::new(self.clone(), None)))
    }

    fn takes_compressed(&self) -> bool {
        true
    }

    fn wake_at(&self, deadline: Instant, waker: Arc<DeadlineWaker>) {
        let driver = self.balancer.notifier.driver();
        driver.send(Command::WakeAt { deadline, waker });
    }

    fn state(&self) -> ChannelState {
        self.balancer.state()
    }

    fn memory(&self) -> &MessageMemory {
        &self.memory
    }

    fn stats(&self) -> Result<ThreadStats, Status> {
        let first = self.balancer.current().backends.first().cloned();
        let none = || Status::unavailable("the channel has no backends now, so there are no stats");
        first.ok_or_else(none)?.transport.stats()
    }
}

/// One backend, whatever its state. It is kept while this lives.
pub(crate) struct OneBackend {
    channel: BalancedTransport,
    backend: Arc<Backend>,
}

impl Transport for OneBackend {
    fn start(&self, reply: Reply) {
        self.backend.send_only(reply);
    }

    fn cancel(&self, call: &CallHandle) {
        self.backend.transport.cancel(call);
    }

    fn flush(&self) {
        self.backend.transport.flush();
    }

    fn drive(&self, call: Option<&CallHandle>, waiting: &mut Waiting) -> bool {
        self.backend.transport.drive(call, waiting)
    }

    fn for_stream(&self) -> Option<Arc<dyn Transport>> {
        let only = Some(Arc::clone(&self.backend));
        Some(Arc::new(StreamTransport::new(self.channel.clone(), only)))
    }

    fn loop_id(&self) -> usize {
        self.backend.transport.loop_id()
    }

    fn takes_compressed(&self) -> bool {
        true
    }

    fn wake_at(&self, deadline: Instant, waker: Arc<DeadlineWaker>) {
        self.channel.wake_at(deadline, waker);
    }

    fn state(&self) -> ChannelState {
        self.backend.transport.state()
    }

    fn failure(&self) -> Option<Status> {
        self.backend.transport.failure()
    }

    fn memory(&self) -> &MessageMemory {
        self.backend.transport.memory()
    }

    fn large_buffers(&self) -> Option<&LargeBuffers> {
        self.backend.transport.large_buffers()
    }

    fn stats(&self) -> Result<ThreadStats, Status> {
        self.backend.transport.stats()
    }
}
