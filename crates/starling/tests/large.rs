//! Messages at the size limit and beyond.

mod common;

use common::{any_addresses, client, payload, serve};
use starling::{Bytes, Code};
use starling_message::Message;
use starling_test_protos::test::Payload;

/// The session protocol's default limit.
const MAX_MESSAGE: usize = 64 << 20;

/// A message of `size` bytes in all.
fn message_of(size: usize) -> Payload {
    let mut request = payload(b"");
    request.set_bytes_bytes(Bytes::from_static(&[0; 4096]));
    let (head, tail) = request.parts();
    let fixed = head.len() + tail.map_or(0, |tail| tail.len()) - 4096;
    let bytes = Bytes::from_iter((0..size - fixed).map(|i| (i * 31 / 7) as u8));
    request.set_bytes_bytes(bytes);
    let (head, tail) = request.parts();
    assert_eq!(head.len() + tail.map_or(0, |tail| tail.len()), size);
    request
}

#[test]
fn a_message_at_the_limit_is_echoed() {
    let request = message_of(MAX_MESSAGE);
    for address in any_addresses() {
        let (server, _) = serve(&address);
        let client = client(server.address());
        let response = client.echo(&request).wait().expect("an echo");
        assert!(response.message().bytes() == request.bytes());
    }
}

#[test]
fn a_message_beyond_the_limit_is_refused_before_it_is_sent() {
    let request = message_of(MAX_MESSAGE + 1);
    for address in any_addresses() {
        let (server, _) = serve(&address);
        let client = client(server.address());
        let status = client.echo(&request).wait().expect_err("too large");
        assert_eq!(status.code(), Code::ResourceExhausted);
        let text = status.message();
        assert!(
            text.contains("67108865") && text.contains("67108864"),
            "{text}"
        );
        client
            .echo(&payload(b"next"))
            .wait()
            .expect("the connection is as before");
    }
}
