//! The calls of a stream on a balanced channel: the first one is given to a backend as any call is, and the
//! others follow it.
//!
//! A stream's client sends one request, the first, until it has a response. So a stream whose first request did
//! not run begins at another backend, and nothing of it is anywhere else.

use std::sync::Arc;
use std::time::Instant;

use starling_endpoint::Status;
use starling_io::MessageMemory;

use super::backend::Backend;
use super::placement::{Pin, Routing};
use super::transport::BalancedTransport;
use crate::channel_state::ChannelState;
use crate::driver::DeadlineWaker;
use crate::plane::{CallHandle, OutgoingCall, Reply, Transport, Waiting};
use crate::stats::ThreadStats;

pub(super) struct StreamTransport {
    channel: BalancedTransport,
    /// Where the stream is. It counts as outstanding there as long as it lives.
    pin: Pin,
}

impl StreamTransport {
    pub(super) fn new(channel: BalancedTransport) -> Self {
        Self {
            channel,
            pin: Pin::default(),
        }
    }

    fn backend(&self) -> Option<Arc<Backend>> {
        let pin = self.pin.lock();
        pin.as_ref().map(|attempt| Arc::clone(attempt.backend()))
    }
}

/// Whether it is the first request, which may be sent again.
fn begins_stream(reply: &Reply) -> bool {
    let is_first = |call: &mut OutgoingCall| {
        let position = call.message.stream;
        position.is_none_or(|position| position.number == 0)
    };
    reply.call().0.with_request(is_first).unwrap_or(true)
}

impl Transport for StreamTransport {
    fn start(&self, reply: Reply) {
        if !begins_stream(&reply) {
            // Without a backend the stream was given up before it had one.
            if let Some(backend) = self.backend() {
                backend.transport.start(reply);
            }
            return;
        }
        let routing = Routing {
            pin: Some(Arc::clone(&self.pin)),
            ..Routing::default()
        };
        self.channel
            .balancer()
            .begin(reply, Some(Box::new(routing)));
    }

    fn cancel(&self, call: &CallHandle) {
        match self.backend() {
            Some(backend) => backend.transport.cancel(call),
            None => self.channel.cancel(call),
        }
    }

    fn flush(&self) {
        if let Some(backend) = self.backend() {
            backend.transport.flush();
        }
    }

    fn drive(&self, call: Option<&CallHandle>, waiting: &mut Waiting) -> bool {
        let backend = self.backend();
        backend.is_some_and(|backend| backend.transport.drive(call, waiting))
    }

    fn takes_compressed(&self) -> bool {
        true
    }

    fn wake_at(&self, deadline: Instant, waker: Arc<DeadlineWaker>) {
        self.channel.wake_at(deadline, waker);
    }

    fn state(&self) -> ChannelState {
        self.channel.state()
    }

    fn memory(&self) -> &MessageMemory {
        self.channel.memory()
    }

    fn stats(&self) -> Result<ThreadStats, Status> {
        self.channel.stats()
    }
}
