//! Channels that become idle, and connections that become old.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use starling::{Channel, ChannelState, FailurePercentage, LoadBalancing, OutlierDetection};
use starling_test_protos::test::TestClient;

use crate::common::{LONG, any_addresses, payload, serve, shm_address, wait_until};
use crate::script::{MILLI, serve_script, unavailable};
use crate::{addresses_of, end_server, two_servers, until_ready, until_shares};

/// Sessions of a channel with an endpoint of its own that have ended so far.
fn ended(channel: &Channel) -> u64 {
    let stats = channel.stats().expect("it runs");
    stats.endpoint.sessions_ended
}

#[test]
fn an_idle_channel_closes_its_connections_and_opens_them_with_its_next_call() {
    for address in any_addresses() {
        let (server, _gate) = serve(&address);
        let builder = Channel::builder(server.address()).idle_timeout(50 * MILLI);
        let channel = builder.own_endpoint().lazy().expect("a channel");
        assert_eq!(channel.state(), ChannelState::Idle);
        let client = TestClient::new(channel.clone());
        for round in 0..3 {
            client.echo(&payload(b"")).wait().expect("a server");
            wait_until(|| ended(&channel) == round);
            wait_until(|| channel.state() == ChannelState::Idle);
            assert!(channel.backends().is_empty());
        }
        end_server(server);
    }
}

#[test]
fn a_channel_is_not_idle_while_it_has_a_call() {
    let (server, gate) = serve(&shm_address());
    let builder = Channel::balanced([server.address()]).idle_timeout(20 * MILLI);
    let channel = builder.lazy().expect("a channel");
    let client = TestClient::new(channel.clone());
    let call = client.wait(&payload(b"long"));
    wait_until(|| gate.waiting.load(Ordering::SeqCst) == 1);
    for _ in 0..10 {
        std::thread::sleep(10 * MILLI);
        assert_eq!(channel.state(), ChannelState::Ready);
    }
    gate.open.store(true, Ordering::SeqCst);
    call.wait().expect("an answer");
    wait_until(|| channel.state() == ChannelState::Idle);
}

#[test]
fn old_connections_are_replaced_and_no_call_fails() {
    for address in any_addresses() {
        let servers = two_servers(&address);
        let builder = Channel::balanced(addresses_of(&servers)).max_connection_age(30 * MILLI);
        let channel = builder.own_endpoint().lazy().expect("a channel");
        let client = TestClient::new(channel.clone());
        // A call that is longer than a connection's age stays where it is.
        let long = client.wait(&payload(b"long"));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    wait_until(|| {
                        client.echo(&payload(b"")).wait().expect("a server");
                        ended(&channel) >= 10
                    });
                });
            }
        });
        for (_, gate) in &servers {
            gate.open.store(true, Ordering::SeqCst);
        }
        assert_eq!(long.wait().expect("an answer").message().bytes(), b"long");
        until_ready(&channel, 2);
        until_shares(&client, &servers, &[5, 5]);
        drop((client, channel));
        for (server, _) in servers {
            end_server(server);
        }
    }
}

#[test]
fn a_server_that_is_ejected_stays_so_over_its_connections() {
    let scripted: Vec<_> = (0..2).map(|_| serve_script(&shm_address())).collect();
    scripted[1].2.fail_always(Some(unavailable()));
    let addresses: Vec<_> = scripted
        .iter()
        .map(|it| it.0.address().to_owned())
        .collect();
    // More than come while a connection stands.
    let criterion = FailurePercentage {
        minimum_hosts: 2,
        request_volume: 200,
        ..FailurePercentage::default()
    };
    let detection = OutlierDetection::default()
        .interval(300 * MILLI)
        .ejection_time(LONG, LONG)
        .by_failure_percentage(criterion);
    let policy = LoadBalancing::round_robin().outlier_detection(detection);
    let builder = Channel::balanced(addresses).max_connection_age(Duration::ZERO);
    let channel = builder.load_balancing(policy).lazy().expect("a channel");
    let client = TestClient::new(channel.clone());
    let is_ejected = || channel.backends()[1].is_ejected;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let begun = Instant::now();
                while channel.backends().len() < 2 || !is_ejected() {
                    // Each second one fails.
                    let _ = client.echo(&payload(b"")).wait();
                    assert!(begun.elapsed() < LONG, "it is never ejected");
                }
            });
        }
    });
    for _ in 0..100 {
        std::thread::sleep(MILLI);
        assert!(is_ejected());
    }
}

#[test]
fn an_old_connection_stays_while_it_cannot_be_replaced() {
    let (server, gate) = serve(&shm_address());
    let builder =
        Channel::balanced([server.address()]).max_connection_age(Duration::from_millis(5));
    let channel = builder.lazy().expect("a channel");
    let client = TestClient::new(channel);
    client.echo(&payload(b"")).wait().expect("a server");
    // A server that drains takes no new connections, and keeps those that it has.
    let call = client.wait(&payload(b"long"));
    wait_until(|| gate.waiting.load(Ordering::SeqCst) == 1);
    let ending = std::thread::spawn(move || server.shutdown(crate::common::LONG));
    std::thread::sleep(50 * MILLI);
    gate.open.store(true, Ordering::SeqCst);
    call.wait().expect("it was there before");
    let finished = ending.join().expect("no panic").expect("no device fails");
    assert!(finished, "a call was left behind");
}
