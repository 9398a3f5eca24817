//! Streams through a service that gets few sessions with their server. Their callers know nothing of that.

#[path = "../../starling/tests/common/mod.rs"]
mod common;
mod mesh;

use std::time::Duration;

use common::far_addresses;
use mesh::Mesh;
use starling::{
    CallOptions, Channel, Code, EndpointConfig, Server, Status, StreamReceiver, StreamSender,
};
use starling_sample_services::api::bench::{EchoClient, Payload};
use starling_sample_services::echo;

type Exchange = (StreamSender<Payload>, StreamReceiver<Payload>);

/// Sends an item and waits for it. Returns how the stream has ended, if it has.
fn go_on((there, back): &mut Exchange) -> Option<Status> {
    let item = Payload::new().with_data(b"item");
    match there.send_wait(&item).and_then(|()| back.wait()) {
        Ok(item) => {
            assert!(item.is_some(), "its server goes on");
            None
        }
        Err(end) => Some(end),
    }
}

fn begin(client: &EchoClient<Channel>) -> Result<Exchange, Status> {
    let options = CallOptions::with_timeout(Duration::from_secs(60));
    let mut stream = client.exchange_with(&options);
    match go_on(&mut stream) {
        None => Ok(stream),
        Some(end) => Err(end),
    }
}

#[test]
fn streams_that_get_no_slot_with_their_server_end_and_the_others_go_on() {
    let mesh = Mesh::start();
    for address in far_addresses() {
        let mut config = EndpointConfig::default();
        config.protocol.slots = 8;
        config.protocol.max_sessions = 2;
        let server = Server::builder().bind(&address).expect("a free address");
        let server = server.add_service(echo::server()).config(config).build();
        let server = server.expect("a server").spawn().expect("threads");
        // Each has a session with the server, and no more.
        let clients = [(); 2].map(|()| {
            let channel = Channel::builder(server.address()).own_endpoint();
            let channel = channel.managed_by(&mesh.name);
            EchoClient::new(channel.lazy().expect("an address"))
        });
        for client in &clients {
            assert!(go_on(&mut client.exchange()).is_none());
        }
        let (mut all, mut refused) = (Vec::new(), Vec::new());
        for _ in 0..11 {
            match begin(&clients[0]) {
                Ok(stream) => all.push(stream),
                Err(end) => refused.push(end),
            }
        }
        assert!(!refused.is_empty() && all.len() >= 4, "{}", all.len());
        for end in refused {
            assert_eq!(end.code(), Code::ResourceExhausted, "{end}");
            assert!(!end.may_have_run(), "{end}");
        }
        all.retain_mut(|stream| match go_on(stream) {
            None => true,
            Some(end) => {
                assert_eq!(end.code(), Code::ResourceExhausted, "{end}");
                assert!(end.may_have_run(), "{end}");
                false
            }
        });
        assert!(!all.is_empty());
        assert!(all.iter_mut().filter_map(go_on).count() == 0);
    }
}
