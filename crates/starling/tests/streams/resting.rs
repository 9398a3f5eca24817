//! Streams at rest hold requests at the server: others have room beside them, and they go on when they have to.

use std::time::Duration;

use starling::{CallOptions, Channel, Code, StreamReceiver, StreamSender};
use starling_endpoint::EndpointConfig;
use starling_test_protos::streams::{Number, StreamsClient};

use crate::common::{any_addresses, wait_until};
use crate::service::{builder, end, number};

type Echo = (StreamSender<Number>, StreamReceiver<Number>);

/// A stream that ends with an error if it stands still.
fn open(client: &StreamsClient<Channel>) -> Echo {
    client.echo_with(&CallOptions::default().timeout(Duration::from_secs(60)))
}

/// So many numbers there, and then back.
fn exchange((there, back): &mut Echo, numbers: u64, padding: usize) {
    for value in 0..numbers {
        there.send_wait(&number(value, padding)).expect("room");
    }
    for value in 0..numbers {
        let echo = back.wait().expect("no end").expect("a number");
        assert_eq!(echo.message().value(), value);
    }
}

#[test]
fn streams_at_rest_leave_slots_for_what_comes_next() {
    for address in any_addresses() {
        for (sessions, slots, streams) in [(1, 32, 24), (2, 32, 48), (1, 2, 1), (1, 7, 6)] {
            let mut config = EndpointConfig::default();
            config.protocol.max_sessions_per_client = sessions;
            config.protocol.slots = slots;
            let (server, _) = builder(&address);
            let server = server.config(config).build().expect("a server");
            let server = server.spawn().expect("threads");
            let channel = Channel::builder(server.address()).own_endpoint();
            let client = StreamsClient::new(channel.lazy().expect("a channel"));
            let mut all: Vec<Echo> = Vec::new();
            for _ in 0..streams {
                let mut echo = open(&client);
                // More than leaves at once: the client hears that items wait for its requests.
                exchange(&mut echo, 12, 30_000);
                all.push(echo);
            }
            let mut beyond = open(&client);
            let refused = beyond.1.wait().expect_err("there are as many as may be");
            assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
            for echo in &mut all {
                exchange(echo, 3, 0);
            }
            drop((all, beyond));
            end(server);
        }
    }
}

#[test]
fn one_slot_is_too_few_for_a_stream() {
    let mut config = EndpointConfig::default();
    config.protocol.max_sessions_per_client = 1;
    config.protocol.slots = 1;
    let (server, _) = builder("mem://streams-one-slot");
    let server = server.config(config).build().expect("a server");
    let server = server.spawn().expect("threads");
    let client = StreamsClient::new(Channel::lazy(server.address()).expect("a channel"));
    let refused = open(&client).1.wait().expect_err("it would stand still");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    end(server);
}

#[test]
fn streams_that_have_begun_go_on_though_no_further_request_may_wait() {
    for address in any_addresses() {
        for (requests, bytes, padding) in [(100, 512 << 20, 0), (1 << 16, 3 << 20, 300_000)] {
            let mut config = EndpointConfig::default();
            config.protocol.max_message = 1 << 20;
            config.max_waiting = requests;
            config.max_waiting_bytes = bytes;
            let (server, _) = builder(&address);
            let server = server.config(config).build().expect("a server");
            let server = server.spawn().expect("threads");
            let clients = [(); 2].map(|()| {
                let channel = Channel::builder(server.address()).own_endpoint();
                StreamsClient::new(channel.lazy().expect("a channel"))
            });
            let mut all: Vec<Echo> = Vec::new();
            for (client, streams) in clients.iter().zip([40, 29]) {
                for _ in 0..streams {
                    let mut echo = open(client);
                    exchange(&mut echo, 1, padding);
                    all.push(echo);
                }
            }
            for echo in &mut all {
                exchange(echo, 2, padding);
            }
            drop(all);
            end(server);
        }
    }
}

#[test]
fn a_client_with_few_slots_has_as_many_streams_as_leave_some() {
    for address in any_addresses() {
        for (sessions, slots, streams) in [(1, 32, 24), (3, 2, 5)] {
            let (server, _) = builder(&address);
            let server = server.build().expect("a server").spawn().expect("threads");
            let mut config = EndpointConfig::default();
            config.protocol.group_sessions = sessions;
            config.protocol.slots = slots;
            let channel = Channel::builder(server.address()).endpoint_config(config);
            let client = StreamsClient::new(channel.lazy().expect("a channel"));
            let mut all: Vec<Echo> = Vec::new();
            for _ in 0..streams {
                let mut echo = open(&client);
                exchange(&mut echo, 12, 30_000);
                all.push(echo);
            }
            let refused = open(&client)
                .1
                .wait()
                .expect_err("it has as many as it may");
            assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
            assert!(!refused.may_have_run(), "{refused}");
            for echo in &mut all {
                exchange(echo, 3, 0);
            }
            // One that is over makes room.
            let (there, mut back) = all.pop().expect("the last one");
            there.close();
            assert!(back.wait().expect("a good end").is_none());
            drop(back);
            wait_until(|| {
                let (mut there, mut back) = open(&client);
                let _ = there.send_wait(&number(7, 0));
                back.wait().is_ok_and(|echo| echo.is_some())
            });
            drop(all);
            end(server);
        }
    }
}
