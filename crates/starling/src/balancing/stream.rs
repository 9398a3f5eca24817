//! The calls of a stream on a balanced channel: the first one is given to a backend as any call is, and the
//! others follow it.
//!
//! A stream's client sends one request, the first, until it has a response. So a stream whose first request did
//! not run begins at another backend, and nothing of it is anywhere else.

use std::sync::Arc;
use std::time::Instant;

use starling_endpoint::{LargeBuffers, Metadata, Status, StreamFlags, StreamPosition};
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
    /// The stream is for this backend.
    only: Option<Arc<Backend>>,
    pin: Pin,
}

impl StreamTransport {
    /// Of a stream that is for `only`, or for any backend.
    pub(super) fn new(channel: BalancedTransport, only: Option<Arc<Backend>>) -> Self {
        Self {
            channel,
            only,
            pin: Pin::default(),
        }
    }
}

/// A request's position in its stream. None: it is not known.
fn position_of(reply: &Reply) -> Option<StreamPosition> {
    let position = |call: &mut OutgoingCall| call.message.stream;
    reply.call().0.with_request(position).flatten()
}

impl Transport for StreamTransport {
    fn start(&self, reply: Reply) {
        let position = position_of(&reply);
        if position.is_some_and(|it| it.flags.has(StreamFlags::CANCEL)) {
            self.pin.give_up();
        }
        // The first request may be sent again.
        if position.is_some_and(|position| position.number > 0) {
            // Without a backend the stream was given up before it had one.
            if let Some(backend) = self.pin.backend() {
                backend.transport.start(reply);
            }
            return;
        }
        if let Some(only) = &self.only {
            self.pin.set(only);
            return only.transport.start(reply);
        }
        // If it begins again, the backend before has nothing of it any more.
        self.pin.leave();
        let routing = Routing {
            pin: Some(self.pin.clone()),
            ..Routing::default()
        };
        self.channel
            .balancer()
            .begin(reply, Some(Box::new(routing)));
    }

    fn cancel(&self, call: &CallHandle) {
        match self.pin.backend() {
            Some(backend) => backend.transport.cancel(call),
            None => self.channel.cancel(call),
        }
    }

    fn flush(&self) {
        if let Some(backend) = self.pin.backend() {
            backend.transport.flush();
        }
    }

    fn drive(&self, call: Option<&CallHandle>, waiting: &mut Waiting) -> bool {
        let backend = self.pin.backend();
        backend.is_some_and(|backend| backend.transport.drive(call, waiting))
    }

    fn handle_stream_end(&self, is_ok: bool, trailers: Option<&Metadata>) {
        let trailers = trailers.map(Metadata::view);
        self.pin.handle_end(is_ok, trailers.unwrap_or_default());
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

    fn large_buffers(&self) -> Option<&LargeBuffers> {
        self.channel.large_buffers()
    }

    fn stats(&self) -> Result<ThreadStats, Status> {
        self.channel.stats()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use starling_balance::{LoadBalancing, Resolved};

    use super::*;
    use crate::address::Address;
    use crate::balancing::readiness::Listed;
    use crate::balancing::settings::{Balancing, Source};
    use crate::plane::Operation;

    #[test]
    fn a_stream_that_is_given_up_while_it_begins_again_does_not_wait_on() {
        let nobody = "mem://nobody-has-the-stream";
        let channel = BalancedTransport::new(Balancing {
            name: nobody.into(),
            source: Source::List(vec![nobody.to_owned()]),
            policy: LoadBalancing::pick_first(),
            health: None,
            idle_timeout: None,
            max_age: None,
            own_endpoint: None,
            management: crate::managed::Management::Direct,
        })
        .expect("an address");
        let stream = StreamTransport::new(channel.clone(), None);
        let balancer = channel.balancer();
        let address = Address::parse(nobody).expect("an address");
        let before = Backend::new(
            1,
            &Listed::new(1, Resolved::from(nobody)),
            balancer.open(&address).expect("a transport"),
            &balancer.this,
            Waker::noop(),
            None,
            None,
        );
        stream.pin.set(&before);
        let wait_for_ready = true;
        let call = CallHandle::unattended(Operation::Connect { wait_for_ready });
        stream.start(Reply::new(call.clone()));
        call.0.abandon();
        stream.cancel(&call);
        assert!(balancer.queue.is_empty());
        assert_eq!(before.outstanding(), 0);
    }
}
