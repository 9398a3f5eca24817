//! Streams at rest hold requests at the server: others have room beside them, and they go on when they have to.

use std::time::Duration;

use starling::{CallOptions, Channel, Code, ServerHandle, StreamReceiver, StreamSender};
use starling_endpoint::EndpointConfig;
use starling_test_protos::streams::{Number, StreamsClient};

use crate::common::{any_addresses, wait_until};
use crate::service::{builder, end, number};

type Echo = (StreamSender<Number>, StreamReceiver<Number>);

fn serve(address: &str, config: EndpointConfig) -> ServerHandle {
    let (server, _) = builder(address);
    let server = server.config(config).build().expect("a server");
    server.spawn().expect("threads")
}

/// A client with an endpoint of its own.
fn client(server: &ServerHandle, config: EndpointConfig) -> StreamsClient<Channel> {
    let channel = Channel::builder(server.address()).endpoint_config(config);
    StreamsClient::new(channel.lazy().expect("a channel"))
}

/// So many slots in each of so many sessions, of which this sets the number.
fn slots(slots: u16, sessions: impl FnOnce(&mut EndpointConfig)) -> EndpointConfig {
    let mut config = EndpointConfig::default();
    config.protocol.slots = slots;
    sessions(&mut config);
    config
}

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

/// Opens as many streams as there may be, each of which rests after a burst. One more is refused, and they all go on.
fn fill(client: &StreamsClient<Channel>, streams: usize) -> Vec<Echo> {
    let mut all = Vec::new();
    for _ in 0..streams {
        let mut echo = open(client);
        // More than leaves at once: the client hears that items wait for its requests.
        exchange(&mut echo, 12, 30_000);
        all.push(echo);
    }
    let (_, mut beyond) = open(client);
    let refused = beyond.wait();
    let refused = refused.expect_err("there are as many as may be");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(!refused.may_have_run(), "{refused}");
    for echo in &mut all {
        exchange(echo, 3, 0);
    }
    all
}

#[test]
fn streams_at_rest_leave_slots_for_what_comes_next() {
    for address in any_addresses() {
        for (sessions, of_each, streams) in [(1, 32, 24), (2, 32, 48), (1, 2, 1), (1, 7, 6)] {
            let config = slots(of_each, |it| it.protocol.max_sessions_per_client = sessions);
            let server = serve(&address, config);
            drop(fill(&client(&server, EndpointConfig::default()), streams));
            end(server);
        }
    }
}

#[test]
fn one_slot_is_too_few_for_a_stream() {
    let config = slots(1, |it| it.protocol.max_sessions_per_client = 1);
    let server = serve("mem://streams-one-slot", config);
    drop(fill(&client(&server, EndpointConfig::default()), 0));
    end(server);
}

#[test]
fn a_client_with_few_slots_has_as_many_streams_as_leave_some() {
    for address in any_addresses() {
        for (sessions, of_each, streams) in [(1, 32, 24), (3, 2, 5)] {
            let server = serve(&address, EndpointConfig::default());
            let config = slots(of_each, |it| it.protocol.group_sessions = sessions);
            let client = client(&server, config);
            let mut all = fill(&client, streams);
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

#[test]
fn the_watch_of_a_servers_health_leaves_a_client_with_few_slots_some_too() {
    for address in any_addresses() {
        let server = serve(&address, EndpointConfig::default());
        let config = slots(3, |it| it.protocol.group_sessions = 1);
        let channel = Channel::balanced([server.address()]).endpoint_config(config);
        let channel = channel.lazy().expect("a channel");
        let client = StreamsClient::new(channel.clone());
        drop(fill(&client, 1));
        assert!(channel.backends()[0].takes_calls());
        drop((client, channel));
        end(server);
    }
}

#[test]
fn streams_that_have_begun_go_on_though_no_further_request_may_wait() {
    for address in any_addresses() {
        for (requests, bytes, padding) in [(100, 512 << 20, 0), (1 << 16, 3 << 20, 300_000)] {
            let mut config = EndpointConfig::default();
            config.protocol.max_message = 1 << 20;
            config.max_waiting = requests;
            config.max_waiting_bytes = bytes;
            let server = serve(&address, config);
            let clients = [(); 2].map(|()| client(&server, EndpointConfig::default()));
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
