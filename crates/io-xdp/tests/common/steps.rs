//! Steps of tests in which something goes wrong.

use std::process::Command;
use std::time::{Duration, Instant};

use starling_io::{Fault, IoError, PacketIo, PacketRx, PacketTx, PeerId};
use starling_io_xdp::{XdpConfig, XdpIo};
use starling_netns::{Pair, inside};

use super::{PREAMBLE, receive};

/// The time after which a wait fails its test. No other wait takes as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn bind(net: &Pair, address: &str) -> Result<XdpIo, IoError> {
    inside(&net.a, || XdpIo::bind(address, XdpConfig::default()))
}

#[track_caller]
pub(crate) fn assert_says(result: Result<XdpIo, IoError>, fault: Fault, texts: &[&str]) {
    let error = result.expect_err("it cannot be");
    let text = error.to_string();
    assert_eq!(error.fault, fault, "{text}");
    for expected in texts {
        assert!(text.contains(expected), "{expected:?} is not in: {text}");
    }
}

/// Whether the interface `va` has an XDP program.
pub(crate) fn has_program(net: &Pair) -> bool {
    va_shows(net, "prog/xdp")
}

/// Whether `ip` says this of the interface `va`.
pub(crate) fn va_shows(net: &Pair, text: &str) -> bool {
    let output = inside(&net.a, || {
        Command::new("ip").args(["link", "show", "va"]).output()
    });
    String::from_utf8_lossy(&output.expect("iproute2").stdout).contains(text)
}

#[track_caller]
pub(crate) fn wait_until(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Opens peers of each other, and exchanges datagrams.
pub(crate) fn acquaint(a: &mut XdpIo, b: &mut XdpIo) -> (PeerId, PeerId) {
    let address = |of: &XdpIo, name: &str| format!("xdp://{name}/{}", of.local_socket_address());
    let to_b = a.open_peer(&address(b, "va")).expect("a route");
    let to_a = b.open_peer(&address(a, "vb")).expect("a route");
    exchange(a, b, to_b);
    exchange(b, a, to_a);
    (to_b, to_a)
}

pub(crate) fn send(device: &mut XdpIo, to: PeerId, text: &[u8]) {
    let tx = device.split().1;
    tx.append(to, PREAMBLE, text, b"", b"").expect("room");
    tx.seal(to);
    tx.flush().expect("a healthy device");
}

pub(crate) fn exchange(from: &mut XdpIo, to: &mut XdpIo, peer: PeerId) {
    send(from, peer, b"a datagram");
    assert_eq!(receive(to, 1)[0].bytes, b"preamblea datagram");
}

/// Sends until something arrives: a link loses datagrams while it comes up.
pub(crate) fn exchange_until_heard(from: &mut XdpIo, to: &mut XdpIo, peer: PeerId) {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "no datagram arrives");
        send(from, peer, b"again");
        to.wait(Some(Duration::from_millis(20)))
            .expect("a healthy device");
        if to.split().0.rx_burst().expect("a healthy device") > 0 {
            break;
        }
    }
    // Discards the remaining datagrams of the attempts.
    while to.split().0.rx_burst().expect("a healthy device") > 0 {}
}
