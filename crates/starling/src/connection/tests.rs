//! One attempt to connect, over the loopback interface.

use starling_endpoint::EndpointConfig;
use starling_io::MonotonicClock;
use starling_io_udp::{UdpConfig, UdpIo};
use starling_message::protobuf::DecodeLimits;

use super::*;
use crate::core::Core;
use crate::time::Time;

fn core(address: &str) -> (Core<UdpIo>, u16) {
    let io = UdpIo::bind(address, UdpConfig::default()).expect("loopback");
    let port = io.local_socket_address().port();
    let core = Core::new(
        io,
        MonotonicClock::new(),
        &Time::default(),
        &EndpointConfig::default(),
        DecodeLimits::default(),
    );
    (core.expect("a sound configuration"), port)
}

/// Connects to a name that stands for these targets. Returns the phase that the attempt ends in.
fn attempt(server: &mut Core<UdpIo>, name: &str, targets: &[String]) -> Phase {
    let (mut client, _) = core("udp://[::]:0");
    let address = Address::parse(name).expect("well formed");
    let connection = client.connections.open(address);
    connection.connect_to(targets.to_vec());
    let begun = std::time::Instant::now();
    loop {
        client.turn().expect("a device");
        server.turn().expect("a device");
        let phase = connection.state.lock().phase.clone();
        match phase {
            Phase::Wanted | Phase::Opening(_) => {}
            end => return end,
        }
        assert!(begun.elapsed().as_secs() < 60, "the attempt does not end");
    }
}

#[test]
fn a_target_that_the_network_refuses_is_followed_by_the_next() {
    let (mut server, port) = core("udp://127.0.0.1:0");
    let name = format!("udp://kv:{port}");
    let refused = format!("udp://[::1]:{port}");
    let impossible = "udp://0.0.0.0:1".to_owned();
    let works = format!("udp://127.0.0.1:{port}");

    let targets = [refused.clone(), impossible.clone(), works];
    let end = attempt(&mut server, &name, &targets);
    assert!(matches!(end, Phase::Open(_)), "{end:?}");

    let targets = [refused, impossible];
    let Phase::Down { error, .. } = attempt(&mut server, &name, &targets) else {
        panic!("nobody is there");
    };
    assert_eq!(error.code(), Code::Unavailable);
    for tried in targets.iter().chain([&name]) {
        assert!(error.message().contains(tried), "{error}");
    }
}
