//! Streams at rest hold requests at the server: others have room beside them, and they go on when they have to.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use starling::{
    CallOptions, Channel, Code, ServerHandle, Status, StreamReceiver, StreamSender, ThreadStats,
    block_on,
};
use starling_endpoint::EndpointConfig;
use starling_test_protos::streams::{Number, StreamsClient};
use starling_test_protos::test::{TestClient, TestServer};

use crate::common::{Gate, LONG, Service as TestService, any_addresses, payload, wait_until};
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
        for (sessions, of_each, streams) in [(1, 32, 31), (3, 2, 5)] {
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

/// Each says something, and hears it again.
fn exchange_all(all: &mut [Echo]) {
    for echo in &mut *all {
        exchange(echo, 2, 0);
    }
    std::thread::scope(|scope| {
        for echoes in all.chunks_mut(8) {
            scope.spawn(|| {
                for echo in echoes {
                    exchange(echo, 20, 3_000);
                }
            });
        }
    });
}

/// Opens streams until one is refused. Returns them, of which each has room for what it sends.
fn open_all(client: &StreamsClient<Channel>) -> Vec<Echo> {
    let mut all = Vec::new();
    loop {
        let (mut there, mut back) = open(client);
        let sent = there.send_wait(&number(7, 0));
        let refused = match sent.and_then(|()| back.wait().map(drop)) {
            Ok(()) => {
                all.push((there, back));
                continue;
            }
            Err(refused) => refused,
        };
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        assert!(!refused.may_have_run(), "{refused}");
        return all;
    }
}

#[test]
fn a_channel_that_gets_no_more_sessions_has_as_many_streams_as_can_go_on() {
    for address in any_addresses() {
        let config = slots(32, |it| it.protocol.max_sessions_per_client = 2);
        let server = serve(&address, config);
        // Two channels of one client, each with one session. The server takes them for one channel with 64 slots.
        let [few, many] = [(); 2].map(|()| {
            let channel = Channel::lazy(server.address()).expect("a channel");
            StreamsClient::new(channel)
        });
        let mut all: Vec<_> = (0..4).map(|_| open(&few)).collect();
        exchange_all(&mut all);
        let beyond = open_all(&many);
        assert!((24..=31).contains(&beyond.len()), "{}", beyond.len());
        all.extend(beyond);
        exchange_all(&mut all);
        drop(all);
        end(server);
    }
}

#[test]
fn streams_whose_sessions_give_way_end_or_go_on() {
    for address in any_addresses() {
        for newcomers in 1..=3 {
            let config = slots(8, |it| it.protocol.max_sessions = 12);
            let server = serve(&address, config);
            // The streams of each fill five sessions, and a sixth has the slot that stays free. It is used least.
            let six = slots(8, |it| it.protocol.group_sessions = 6);
            let clients = [(); 2].map(|()| client(&server, six.clone()));
            let opened =
                |it: &StreamsClient<Channel>| (0..40).filter_map(|_| open_one(it)).collect();
            let mut all: [Vec<_>; 2] = clients.each_ref().map(opened);
            assert_eq!(all.each_ref().map(Vec::len), [40, 40]);
            let newcomers: Vec<_> = (0..newcomers)
                .map(|_| client(&server, EndpointConfig::default()))
                .collect();
            let theirs: Vec<_> = newcomers.iter().map(open_one).collect();
            assert!(theirs.iter().any(Option::is_some));
            for all in &mut all {
                let ends: Vec<Status> = all.iter_mut().filter_map(go_on).collect();
                for end in ends {
                    let code = end.code();
                    let is_one = matches!(code, Code::Unavailable | Code::ResourceExhausted);
                    assert!(is_one && end.may_have_run(), "{end}");
                }
                // The others not only once.
                all.retain_mut(|echo| go_on(echo).is_none());
                assert!(all.iter_mut().filter_map(go_on).count() == 0);
            }
            drop((all, theirs));
            end(server);
        }
    }
}

fn open_one(client: &StreamsClient<Channel>) -> Option<Echo> {
    let mut echo = open(client);
    go_on(&mut echo).is_none().then_some(echo)
}

/// Sends a number and waits for it. Returns how the stream has ended, if it has.
fn go_on((there, back): &mut Echo) -> Option<Status> {
    let sent = there.send_wait(&number(7, 0));
    let back = sent.and_then(|()| back.wait());
    match back {
        Ok(echo) => {
            assert!(echo.is_some(), "its server goes on");
            None
        }
        Err(end) => Some(end),
    }
}

#[test]
fn streams_that_get_no_slot_send_nothing() {
    for address in any_addresses() {
        let server = serve(&address, EndpointConfig::default());
        let config = slots(8, |it| it.protocol.group_sessions = 1);
        let client = client(&server, config);
        let mut all = open_all(&client);
        let before = requests_of(&server);
        for value in 0..200 {
            let (mut there, mut back) = open(&client);
            let _ = there.send_wait(&number(value, 0));
            assert!(back.wait().is_err());
        }
        // Those at rest may ask again.
        let sent = requests_of(&server) - before;
        assert!(sent < 50, "{sent}");
        exchange_all(&mut all);
        drop(all);
        end(server);
    }
}

fn requests_of(server: &ServerHandle) -> u64 {
    let received = |stats: &ThreadStats| stats.protocol.requests_received;
    server.stats().iter().map(received).sum()
}

#[test]
fn the_slots_of_streams_are_those_that_server_and_client_agree_on() {
    // Slots that the server gives, sessions of a group, sessions that the client has places for, streams.
    let cases = [
        (4, 1, 100, 3),
        (16, 1, 100, 15),
        (32, 512, 2, 31),
        (4, 512, 2, 3),
        (1, 40, 100, 39),
    ];
    for address in any_addresses() {
        for (of_each, sessions, places, streams) in cases {
            let server = serve(&address, slots(of_each, |_| {}));
            let config = slots(32, |it| {
                it.protocol.group_sessions = sessions;
                it.protocol.max_sessions = places;
            });
            let client = client(&server, config);
            let mut all = open_all(&client);
            assert_eq!(all.len(), streams);
            exchange_all(&mut all);
            drop(all);
            end(server);
        }
    }
}

#[test]
fn streams_go_on_with_few_credits() {
    for address in any_addresses() {
        for (of_server, of_client) in [(1, 32), (32, 1), (8, 32), (32, 4)] {
            let credits = |credits| slots(32, |it| it.protocol.credits = credits);
            let server = serve(&address, credits(of_server));
            let client = client(&server, credits(of_client));
            let mut all: Vec<_> = (0..60).map(|_| open(&client)).collect();
            exchange_all(&mut all);
            drop(all);
            end(server);
        }
    }
}

#[test]
fn streams_at_rest_go_on_while_their_server_shuts_down() {
    for address in any_addresses() {
        // As many as a session has slots, and fewer, and more.
        for streams in [29, 30, 31, 32, 33, 64] {
            let server = serve(&address, EndpointConfig::default());
            let client = client(&server, EndpointConfig::default());
            let mut all: Vec<_> = (0..streams).map(|_| open(&client)).collect();
            exchange_all(&mut all);
            std::thread::scope(|scope| {
                let ending = scope.spawn(|| server.shutdown(LONG).expect("no device fails"));
                wait_until(|| {
                    let (mut there, mut back) = open(&client);
                    let _ = there.send_wait(&number(7, 0));
                    let refused = back.wait().map(drop);
                    // Not that there are no slots.
                    refused.is_err_and(|status| {
                        assert_eq!(status.code(), Code::Unavailable, "{status}");
                        assert!(!status.may_have_run(), "{status}");
                        true
                    })
                });
                exchange_all(&mut all);
                for (there, mut back) in std::mem::take(&mut all) {
                    there.close();
                    assert!(back.wait().expect("a good end").is_none());
                }
                assert!(ending.join().expect("no panic"), "all have ended");
            });
        }
    }
}

#[test]
fn streams_at_rest_go_on_while_their_server_shuts_down_though_long_calls_run() {
    for address in any_addresses() {
        for (streams, calls) in [(20, 20), (31, 1), (1, 31), (16, 16), (40, 60)] {
            let gate = Arc::new(Gate::default());
            let (server, _) = builder(&address);
            let server = server.add_service(TestServer::new(TestService(Arc::clone(&gate))));
            let server = server.build().expect("a server").spawn().expect("threads");
            let channel = Channel::builder(server.address()).own_endpoint();
            let channel = channel.lazy().expect("a channel");
            let client = StreamsClient::new(channel.clone());
            let mut all: Vec<_> = (0..streams).map(|_| open(&client)).collect();
            let (long, request) = (TestClient::new(channel), payload(b"long"));
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| {
                    let waits = (0..calls).map(|_| long.wait(&request));
                    block_on(join_all(waits))
                });
                wait_until(|| gate.waiting.load(Ordering::SeqCst) == calls);
                exchange_all(&mut all);
                let ending = scope.spawn(|| server.shutdown(LONG).expect("no device fails"));
                wait_until(|| {
                    let (mut there, mut back) = open(&client);
                    let _ = there.send_wait(&number(7, 0));
                    back.wait().is_err()
                });
                exchange_all(&mut all);
                for (there, mut back) in std::mem::take(&mut all) {
                    there.close();
                    assert!(back.wait().expect("a good end").is_none());
                }
                gate.open.store(true, Ordering::SeqCst);
                let waits = waits.join().expect("no panic");
                assert!(waits.iter().all(Result::is_ok), "{waits:?}");
                assert!(ending.join().expect("no panic"), "all have ended");
            });
        }
    }
}
