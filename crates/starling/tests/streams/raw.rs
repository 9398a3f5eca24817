//! A client without the library's streams, which does no more than it is told.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use starling_endpoint::{
    CallOptions, Endpoint, EndpointConfig, MethodId, Msgbuf, OwnedMessage, Secrets, SessionId,
    StreamFlags, StreamPosition,
};
use starling_io::{MonotonicClock, PacketIo};
use starling_io_shm::{ShmConfig, ShmIo};
use starling_stream::{Bundle, ClientStream, DEFAULT_WINDOW};
use starling_test_protos::streams::STREAMS_SERVICE;

use crate::common::wait_until;

pub(crate) struct Raw<I: PacketIo> {
    endpoint: Endpoint<I, MonotonicClock>,
    session: SessionId,
}

impl Raw<ShmIo> {
    pub(crate) fn new(server: &str) -> Self {
        let io = ShmIo::client(ShmConfig::default()).expect("shared memory");
        Self::over(io, 7, server)
    }
}

impl<I: PacketIo> Raw<I> {
    /// A client on this device, one of several incarnations.
    pub(crate) fn over(io: I, incarnation: u8, server: &str) -> Self {
        let secrets = Secrets {
            token_key: [incarnation; 16],
            cookie_key: [incarnation; 16],
        };
        let config = EndpointConfig::default();
        let mut endpoint =
            Endpoint::new(io, MonotonicClock::new(), config, secrets).expect("an endpoint");
        let session = endpoint.connect(server).expect("a session");
        Self { endpoint, session }
    }

    /// Opens a stream of this method by a message with these items, perhaps its only one. Returns the first
    /// response, which is asked for.
    pub(crate) fn open(
        &mut self,
        method: &str,
        is_only: bool,
        fill: impl FnOnce(&mut Bundle),
    ) -> OwnedMessage {
        let mut options = CallOptions {
            stream: Some(StreamPosition::default()),
            ..CallOptions::default()
        };
        let mut stream = ClientStream::new(1, DEFAULT_WINDOW, options.header_len(), false);
        let mut bundle = stream.new_bundle(100);
        fill(&mut bundle);
        stream.push_bundle(bundle).expect("room");
        if is_only {
            stream.close();
        }
        let mut first = stream.poll_request().expect("the stream is not over");
        first.position.flags = first.position.flags.with_if(!is_only, StreamFlags::ANSWER);
        options.stream = Some(first.position);
        let mut methods = STREAMS_SERVICE.methods.iter();
        let method = methods.find(|known| known.path.ends_with(method));
        let method = MethodId(method.expect("the service has it").id);
        let (head, tail) = first.body.into_parts();
        let message = Msgbuf::from_parts(head, tail);
        let local = self.endpoint.local();
        let mut call = pin!(local.call_message(self.session, method, &options, message));
        let mut response = None;
        wait_until(|| {
            self.endpoint.poll().expect("the device works");
            let mut cx = Context::from_waker(Waker::noop());
            if let Poll::Ready(result) = call.as_mut().poll(&mut cx) {
                response = Some(result.expect("a response of the stream"));
            }
            response.is_some()
        });
        response.expect("it has come")
    }
}
