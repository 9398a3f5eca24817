//! A watcher that has no request at the server when that shuts down.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use starling::health::{HEALTH_SERVICE, HealthCheckResponse, ServingStatus};
use starling::{Code, Status};
use starling_endpoint::{
    CallOptions, Endpoint, EndpointConfig, MethodId, Msgbuf, OwnedMessage, Secrets, SessionId,
    StreamPosition,
};
use starling_io::MonotonicClock;
use starling_io_shm::{ShmConfig, ShmIo};
use starling_message::{Bytes, Message, Reader};
use starling_stream::{ClientEvent, ClientStream, DEFAULT_WINDOW, Items, StreamResponse};

use crate::common::{server, shm_address, wait_until};
use crate::{NOT_SERVING, SERVING, SHORT, end, request, start};

/// A client that asks for a stream's next message only when it is told to.
struct Client {
    endpoint: Endpoint<ShmIo, MonotonicClock>,
    session: SessionId,
    stream: ClientStream,
}

impl Client {
    fn new(server: &str) -> Self {
        let secrets = Secrets {
            token_key: [7; 16],
            cookie_key: [7; 16],
        };
        let io = ShmIo::client(ShmConfig::default()).expect("shared memory");
        let config = EndpointConfig::default();
        let mut endpoint =
            Endpoint::new(io, MonotonicClock::new(), config, secrets).expect("an endpoint");
        let session = endpoint.connect(server).expect("a session");
        let options = CallOptions {
            stream: Some(StreamPosition::default()),
            ..CallOptions::default()
        };
        let mut stream = ClientStream::new(1, DEFAULT_WINDOW, options.header_len(), false);
        let everything = request("");
        let (head, tail) = everything.parts();
        stream.push(head, tail).expect("room");
        stream.close();
        Self {
            endpoint,
            session,
            stream,
        }
    }

    /// Takes turns for a while.
    fn idle(&mut self, time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time {
            self.endpoint.poll().expect("the device works");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Asks for the next message and takes it in.
    fn ask(&mut self) -> Result<(), Status> {
        let next = self.stream.poll_request().expect("the stream is not over");
        let options = CallOptions {
            stream: Some(next.position),
            ..CallOptions::default()
        };
        let method = (HEALTH_SERVICE.methods.iter())
            .find(|method| method.path.ends_with("/Watch"))
            .expect("health has it");
        let (mut head, tail) = next.body.into_parts();
        if head.is_empty() {
            // A request without items has no room for its header either.
            head.resize(options.header_len(), 0);
        }
        let message = Msgbuf::from_parts(head, tail);
        let local = self.endpoint.local();
        let call = local.call_message(self.session, MethodId(method.id), &options, message);
        let response = self.run(call)?;
        let arrived = StreamResponse {
            position: response.stream().expect("a stream's message"),
            status: response.stream_status(),
            metadata: response.to_metadata(),
            body: Bytes::copy_from_slice(response.body()),
        };
        self.stream.handle_response(Ok(arrived));
        Ok(())
    }

    fn run(
        &mut self,
        call: impl Future<Output = Result<OwnedMessage, Status>>,
    ) -> Result<OwnedMessage, Status> {
        let mut call = pin!(call);
        let begun = Instant::now();
        while begun.elapsed() < SHORT {
            let mut cx = Context::from_waker(Waker::noop());
            if let Poll::Ready(result) = call.as_mut().poll(&mut cx) {
                return result;
            }
            self.idle(Duration::from_millis(1));
        }
        panic!("no response in {SHORT:?}")
    }
}

fn statuses_in(items: &Items) -> Vec<ServingStatus> {
    let status = |item| HealthCheckResponse::view_of(Reader::root(item)).status();
    items.slices().map(status).collect()
}

#[test]
fn a_watcher_that_asks_for_nothing_hears_of_the_end_when_it_asks() {
    let (builder, _) = server(&[&shm_address()]);
    let server = start(builder);
    let health = server.health();
    let mut client = Client::new(server.address());
    client.ask().expect("the server serves");
    let item = client.stream.poll();
    let Some(ClientEvent::Items(items)) = item else {
        panic!("{item:?}");
    };
    assert_eq!(statuses_in(&items), [SERVING]);

    let shutdown = std::thread::spawn(move || end(server));
    wait_until(|| health.status("") == NOT_SERVING && health.watchers() == 0);
    // The handler is over. The server has nothing else to do, and its end has nothing to leave with.
    client.idle(Duration::from_millis(500));
    let mut statuses = Vec::new();
    let last = loop {
        client.ask().expect("the server waits for its streams");
        match std::iter::from_fn(|| client.stream.poll()).find_map(|event| match event {
            ClientEvent::Items(items) => {
                statuses.extend(statuses_in(&items));
                None
            }
            ClientEvent::End(end) => Some(end),
        }) {
            Some(end) => break end.expect_err("a watch ends with an error only"),
            None => assert!(statuses.len() < 2, "{statuses:?}"),
        }
    };
    assert_eq!(statuses, [NOT_SERVING]);
    assert_eq!(last.code(), Code::Unavailable);
    assert!(last.message().contains("shutting down"), "{last}");
    shutdown.join().expect("no panic");
}
