//! A client that sends what is no message.

use starling::{Code, Status};
use starling_message::Message;
use starling_stream::Bundle;

use crate::common::shm_address;
use crate::forms;
use crate::raw::Raw;
use crate::service::{end, number};

/// The status that a stream of this method gets whose only message has these items.
fn status_of(server: &str, method: &str, fill: impl FnOnce(&mut Bundle)) -> Option<Status> {
    let response = Raw::new(server).open(method, true, fill);
    response.stream_status()
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
