//! The stats of servers and channels: counts of calls, of datagrams, and of those that devices dropped.

mod common;

use std::net::SocketAddr;

use common::{LONG, any_addresses, payload, serve, server, wait_until, xdp};
use rustix::net::{AddressFamily, Protocol, SendFlags, SocketFlags, SocketType};
use rustix::net::{sendto, socket_with};
use starling::{Address, Channel, ServerHandle, ThreadStats};
use starling_netns::{IPV4, Pair, Shape, inside, run};
use starling_test_protos::test::TestClient;

const CALLS: u64 = 50;

/// Makes calls, one after the other: a datagram each way for each.
fn call(client: &TestClient<Channel>) {
    for _ in 0..CALLS {
        client.echo(&payload(b"a few")).wait().expect("an echo");
    }
}

fn count(stats: &ThreadStats, name: &str) -> u64 {
    stats
        .device
        .count(name)
        .unwrap_or_else(|| panic!("no {name} in {:?}", stats.device))
}

/// The stats of a server with one thread.
fn only(server: &ServerHandle) -> ThreadStats {
    let [stats] = server.stats().try_into().expect("one thread");
    stats
}

#[test]
fn servers_and_channels_count_what_they_did() {
    for address in any_addresses() {
        let (server, _) = serve(&address);
        let before = only(&server);
        assert_eq!(before.address, server.address());
        assert_eq!(before.endpoint.requests, 0);
        assert_eq!(before.device.mode, None, "there is only one mode");
        let channel = Channel::builder(server.address()).own_endpoint().lazy();
        let channel = channel.expect("a channel");
        call(&TestClient::new(channel.clone()));

        let after = only(&server);
        // The client has made a Bind call, too.
        assert!(after.endpoint.requests > CALLS);
        assert_eq!(after.endpoint.responses, after.endpoint.requests);
        let received = match Address::parse(&address).expect("an address").scheme() {
            "udp" | "tcp" => "rx_socket",
            "mem" => "rx_queue",
            _ => "rx_ring",
        };
        assert_eq!(count(&after, received), after.endpoint.datagrams);
        let caller = channel.stats().expect("its thread runs");
        assert_eq!(caller.endpoint.completions, caller.endpoint.calls);
        assert!(caller.endpoint.calls >= CALLS);
        assert_eq!(count(&caller, received), caller.endpoint.datagrams);
        if address.starts_with("udp") {
            // The datagrams that the client has sent since then are keepalives.
            assert!((CALLS..=count(&caller, "tx_socket")).contains(&count(&after, received)));
            assert_eq!(count(&caller, "tx_lost"), 0);
        }
    }
}

#[test]
fn every_thread_reports_its_stats_also_after_it_has_ended() {
    let (builder, _) = server(&[]);
    let builder = builder.threads(3).bind("udp://127.0.0.1:0");
    let server = builder.expect("a free port").build().expect("a server");
    let mut server = server.spawn().expect("threads");
    let client = TestClient::new(Channel::lazy(server.address()).expect("a channel"));
    call(&client);
    let requests = |server: &ServerHandle| {
        let stats = server.stats();
        assert_eq!(stats.len(), 3);
        assert!(stats.iter().all(|stats| stats.address == server.address()));
        stats
            .iter()
            .map(|stats| stats.endpoint.requests)
            .sum::<u64>()
    };
    let before = requests(&server);
    assert!(before > CALLS);
    assert!(server.finish(LONG).expect("healthy devices"));
    assert!(!server.is_serving());
    assert_eq!(requests(&server), before);
}

/// A server on the interface in `b`, and its port.
fn serve_in_b(pair: &Pair) -> (ServerHandle, u16) {
    let server = inside(&pair.b, || serve("xdp://vb/0.0.0.0:0").0);
    let (_, port) = server.address().rsplit_once(':').expect("a port");
    let port = port.parse().expect("a port");
    (server, port)
}

#[test]
fn dropped_datagrams_are_counted_by_reason() {
    let Some(pair) = xdp::pair("dropped_datagrams_are_counted_by_reason", Shape::default()) else {
        return;
    };
    let (server, port) = serve_in_b(&pair);
    assert_eq!(only(&server).device.mode, Some("driver"));

    // From port 1000, with a wrong checksum.
    let mut datagram = [0; 16];
    datagram[..2].copy_from_slice(&1000_u16.to_be_bytes());
    datagram[2..4].copy_from_slice(&port.to_be_bytes());
    datagram[5] = 16;
    datagram[6..8].copy_from_slice(&[1, 1]);
    inside(&pair.a, || {
        let (family, kind) = (AddressFamily::INET, SocketType::RAW);
        let udp = Protocol::from_raw(17.try_into().expect("not zero"));
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, Some(udp));
        let socket = socket.expect("root");
        let to = SocketAddr::new(IPV4[1].parse().expect("an address"), 0);
        for _ in 0..7 {
            sendto(&socket, &datagram, SendFlags::empty(), &to).expect("a route");
        }
    });
    wait_until(|| count(&only(&server), "dropped_udp_checksum") == 7);

    // Valid UDP that is not Starling's.
    inside(&pair.a, || {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").expect("a free port");
        for _ in 0..5 {
            let sent = socket.send_to(b"hello, is anybody there?", (IPV4[1], port));
            sent.expect("a route");
        }
    });
    wait_until(|| only(&server).endpoint.bad_datagrams == 5);
    let stats = only(&server);
    assert_eq!(count(&stats, "rx_ring"), 5);
    let dropped = stats.device.counts.iter();
    let dropped = dropped.filter(|(name, _)| name.starts_with("dropped_"));
    assert_eq!(dropped.map(|(_, count)| count).sum::<u64>(), 7);
}

#[test]
fn the_slow_path_and_the_ring_are_counted_apart() {
    let Some(pair) = xdp::pair(
        "the_slow_path_and_the_ring_are_counted_apart",
        Shape::default(),
    ) else {
        return;
    };
    let (server, port) = serve_in_b(&pair);
    let channel = |namespace| {
        let address = format!("udp://{}:{port}", IPV4[1]);
        let channel = inside(namespace, || {
            Channel::builder(&address).own_endpoint().lazy()
        });
        TestClient::new(channel.expect("a channel"))
    };
    // Datagrams that this host sends to itself do not pass the XDP program.
    run(&pair.b, "ip link set lo up").expect("every namespace has it");
    let own = channel(&pair.b);
    call(&own);
    let slow = only(&server);
    assert_eq!(count(&slow, "rx_ring"), 0);
    assert_eq!(count(&slow, "rx_socket"), slow.endpoint.datagrams);
    assert!(count(&slow, "tx_socket") > CALLS);
    assert_eq!(count(&slow, "tx_ring"), 0);
    drop(own);

    let other = channel(&pair.a);
    // The first answers leave by the socket, until the next hop is known.
    wait_until(|| {
        call(&other);
        count(&only(&server), "tx_ring") >= CALLS
    });
    let fast = only(&server);
    let by_both = count(&fast, "rx_ring") + count(&fast, "rx_socket");
    assert_eq!(by_both, fast.endpoint.datagrams);
    assert!(count(&fast, "rx_ring") > CALLS);
}

#[test]
fn a_thread_that_has_failed_still_reports_its_last_stats() {
    let Some(pair) = xdp::pair(
        "a_thread_that_has_failed_still_reports_its_last_stats",
        Shape::default(),
    ) else {
        return;
    };
    let (server, port) = serve_in_b(&pair);
    let address = format!("udp://{}:{port}", IPV4[1]);
    let channel = inside(&pair.a, || Channel::builder(&address).own_endpoint().lazy());
    call(&TestClient::new(channel.expect("a channel")));
    run(&pair.b, "ip link del vb").expect("it is there");
    wait_until(|| !server.is_serving());
    assert!(only(&server).endpoint.requests > CALLS);
    assert!(server.wait().is_err());
}
