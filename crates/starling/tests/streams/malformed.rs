//! A client that sends what is no message.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use starling::{Code, Status};
use starling_endpoint::{
    CallOptions, Endpoint, EndpointConfig, MethodId, Msgbuf, Secrets, StreamPosition,
};
use starling_io::MonotonicClock;
use starling_io_shm::{ShmConfig, ShmIo};
use starling_message::Message;
use starling_stream::{Bundle, ClientStream, DEFAULT_WINDOW};
use starling_test_protos::streams::STREAMS_SERVICE;

use crate::common::{shm_address, wait_until};
use crate::forms;
use crate::service::{end, number};

/// The status that a stream of this method gets whose first message has these items.
fn status_of(server: &str, method: &str, fill: impl FnOnce(&mut Bundle)) -> Option<Status> {
    let secrets = Secrets {
        token_key: [7; 16],
        cookie_key: [7; 16],
    };
    let io = ShmIo::client(ShmConfig::default()).expect("shared memory");
    let config = EndpointConfig::default();
    let mut endpoint =
        Endpoint::new(io, MonotonicClock::new(), config, secrets).expect("an endpoint");
    let session = endpoint.connect(server).expect("a session");
    let mut options = CallOptions {
        stream: Some(StreamPosition::default()),
        ..CallOptions::default()
    };
    let mut stream = ClientStream::new(1, DEFAULT_WINDOW, options.header_len(), false);
    let mut bundle = stream.new_bundle(100);
    fill(&mut bundle);
    stream.push_bundle(bundle).expect("room");
    stream.close();
    let first = stream.poll_request().expect("the stream is not over");
    options.stream = Some(first.position);
    let method = STREAMS_SERVICE
        .methods
        .iter()
        .find(|known| known.path.ends_with(method))
        .expect("the service has it");
    let message = Msgbuf::from_parts(first.body.head, first.body.tail);
    let local = endpoint.local();
    let mut call = pin!(local.call_message(session, MethodId(method.id), &options, message));
    let mut response = None;
    wait_until(|| {
        endpoint.poll().expect("the device works");
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(result) = call.as_mut().poll(&mut cx) {
            response = Some(result.expect("a response of the stream"));
        }
        response.is_some()
    });
    response.and_then(|response| response.stream_status())
}

/// Appends an item of these bytes that says it has `length`.
fn item(bundle: &mut Bundle, bytes: &[u8], length: usize) {
    bundle
        .head
        .extend_from_slice(&(length as u32).to_le_bytes());
    bundle.head.extend_from_slice(bytes);
}

#[test]
fn what_is_no_message_ends_the_stream_of_the_client_that_sent_it() {
    let (server, _client) = forms::serve(&shm_address());
    let number = number(1, 10);
    let bytes = number.parts().0;
    // They take messages one at a time, and as they came.
    for method in ["/Add", "/Echo"] {
        let good = status_of(server.address(), method, |bundle| {
            item(bundle, bytes, bytes.len());
        });
        assert_eq!(good, None);
        let faults: [fn(&mut Bundle, &[u8]); 3] = [
            |bundle, bytes| item(bundle, &bytes[..bytes.len() - 1], bytes.len() - 1),
            |bundle, bytes| item(bundle, bytes, bytes.len() + 1),
            |bundle, _| bundle.head.extend_from_slice(&[1, 0, 0]),
        ];
        for fault in faults {
            let status = status_of(server.address(), method, |bundle| {
                item(bundle, bytes, bytes.len());
                fault(bundle, bytes);
            });
            let status = status.expect("a failure");
            assert_eq!(status.code(), Code::InvalidArgument, "{status}");
            assert!(status.message().contains("broke the stream"), "{status}");
        }
    }
    end(server);
}
