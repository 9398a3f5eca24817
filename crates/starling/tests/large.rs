//! The largest messages.

mod common;

use common::{any_addresses, payload, server};
use starling::{Bytes, Channel, Code};
use starling_test_protos::test::TestClient;

/// What the session protocol takes unless configured.
const MAX_MESSAGE: usize = 64 << 20;

#[test]
fn sixty_four_mebibytes_there_and_back() {
    let bytes = Bytes::from_iter((0..MAX_MESSAGE - 64).map(|i| (i * 31 / 7) as u8));
    let mut request = payload(b"");
    request.set_bytes_bytes(bytes.clone());
    for address in any_addresses() {
        let (builder, _) = server(&[&address]);
        let server = builder.build().expect("a server").spawn().expect("threads");
        let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
        let response = client.echo(&request).wait().expect("an echo");
        assert!(response.message().bytes() == bytes);
    }
}

#[test]
fn a_message_beyond_the_limit_is_refused_before_it_is_sent() {
    let mut request = payload(b"");
    request.set_bytes_bytes(Bytes::from(vec![0; MAX_MESSAGE]));
    for address in any_addresses() {
        let (builder, _) = server(&[&address]);
        let server = builder.build().expect("a server").spawn().expect("threads");
        let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
        let status = client.echo(&request).wait().expect_err("too large");
        assert_eq!(status.code(), Code::ResourceExhausted);
        client
            .echo(&payload(b"next"))
            .wait()
            .expect("the connection is as before");
    }
}
