//! Channels to several servers: which one gets a call, what happens when one is gone, and calls that are made more
//! than once.

#[path = "../common/mod.rs"]
mod common;
mod fan_out;
mod health;
mod hedging;
mod lifetime;
mod policies;
mod resolvers;
mod retries;
mod script;
#[path = "../streams/service.rs"]
#[allow(dead_code, reason = "the tests of streams use all of it")]
mod stream_service;
mod streams;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{Gate, another_address, any_addresses, payload, serve, shm_address, wait_until};
use starling::{Channel, ChannelState, ServerHandle};
use starling_test_protos::test::TestClient;

type Client = TestClient<Channel>;
type Servers = Vec<(ServerHandle, Arc<Gate>)>;

/// Servers at such addresses.
fn servers(addresses: &[String]) -> Servers {
    addresses.iter().map(|address| serve(address)).collect()
}

/// Two servers on the device of this address.
fn two_servers(address: &str) -> Servers {
    servers(&[address.to_owned(), another_address(address, 1)])
}

fn addresses_of(servers: &[(ServerHandle, Arc<Gate>)]) -> Vec<String> {
    let servers = servers.iter();
    servers
        .map(|(server, _)| server.address().to_owned())
        .collect()
}

/// How often each server ran `echo`.
fn runs(servers: &[(ServerHandle, Arc<Gate>)]) -> Vec<u64> {
    let runs = |(_, gate): &(ServerHandle, Arc<Gate>)| gate.runs.load(Ordering::SeqCst);
    servers.iter().map(runs).collect()
}

/// Of so many calls, how many each server gets.
fn shares(client: &Client, servers: &[(ServerHandle, Arc<Gate>)], calls: usize) -> Vec<u64> {
    let before = runs(servers);
    for _ in 0..calls {
        client.echo(&payload(b"")).wait().expect("a server");
    }
    let after = runs(servers).into_iter();
    after
        .zip(before)
        .map(|(after, before)| after - before)
        .collect()
}

/// Waits until so many servers take calls.
fn until_ready(channel: &Channel, servers: usize) {
    wait_until(|| {
        let backends = channel.backends();
        backends.iter().filter(|it| it.takes_calls()).count() == servers
    });
}

/// Ends a server that has no calls.
fn end_server(server: ServerHandle) {
    let finished = server.shutdown(common::LONG).expect("no device fails");
    assert!(finished, "a call was left behind");
}

/// Waits until calls are divided so.
fn until_shares(client: &Client, servers: &[(ServerHandle, Arc<Gate>)], expected: &[u64]) {
    let calls = expected.iter().sum::<u64>() as usize;
    wait_until(|| shares(client, servers, calls) == expected);
}

#[test]
fn calls_go_round_all_servers() {
    for address in any_addresses() {
        let addresses: Vec<String> = (0..3)
            .map(|number| another_address(&address, number))
            .collect();
        let servers = servers(&addresses);
        let channel = Channel::balanced(addresses_of(&servers))
            .lazy()
            .expect("a channel");
        assert_eq!(channel.state(), ChannelState::Idle);
        let client = TestClient::new(channel.clone());
        until_shares(&client, &servers, &[10, 10, 10]);
        assert_eq!(shares(&client, &servers, 30), [10, 10, 10], "{address}");
        assert_eq!(channel.state(), ChannelState::Ready);
    }
}

#[test]
fn a_server_that_is_gone_gets_no_calls_and_one_that_comes_back_does() {
    let mut servers = servers(&[shm_address(), shm_address(), shm_address()]);
    let addresses = addresses_of(&servers);
    let channel = Channel::balanced(addresses.clone())
        .lazy()
        .expect("a channel");
    let client = TestClient::new(channel.clone());
    until_shares(&client, &servers, &[1, 1, 1]);
    let (first, _) = servers.remove(0);
    end_server(first);
    assert_eq!(shares(&client, &servers, 20).iter().sum::<u64>(), 20);
    until_shares(&client, &servers, &[10, 10]);
    servers.insert(0, serve(&addresses[0]));
    until_shares(&client, &servers, &[10, 10, 10]);
}
