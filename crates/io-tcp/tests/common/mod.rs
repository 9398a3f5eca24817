//! Helpers of the tests of the device.
#![allow(dead_code)] // Each test binary uses its part.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use starling_io::{IoEvent, PacketIo, PacketRx, PacketTx, PeerId, Source, TxError};
use starling_io_tcp::{TcpConfig, TcpIo};
pub(crate) use starling_io_testing::{PATIENCE, PREAMBLE, ReceivedDatagram, receive};

/// What a working end begins with.
pub(crate) const HELLO: &[u8; 8] = b"\x5aTCP\x01\0\0\0";

/// A server on a free port of this host.
pub(crate) fn server(config: &TcpConfig) -> TcpIo {
    TcpIo::bind("tcp://127.0.0.1:0", config.clone()).expect("loopback")
}

pub(crate) fn client() -> TcpIo {
    TcpIo::client(TcpConfig::default()).expect("descriptors")
}

/// Connects to a server. Its kernel accepts, whatever the server does.
pub(crate) fn connect(client: &mut TcpIo, server: &TcpIo) -> PeerId {
    let peer = client.open_peer(&server.local_address()).expect("loopback");
    client.wait(Some(PATIENCE)).expect("a healthy device");
    peer
}

/// Sends one datagram.
pub(crate) fn send(device: &mut TcpIo, peer: PeerId, frame: &[u8]) {
    append(device, peer, frame).expect("room");
    device.split().1.flush().expect("a healthy device");
}

/// Appends a frame with a body.
pub(crate) fn append(device: &mut TcpIo, peer: PeerId, frame: &[u8]) -> Result<(), TxError> {
    device.split().1.append(peer, PREAMBLE, &[], frame, &[])
}

/// Receives one datagram: its sender, and what is behind the preamble.
pub(crate) fn receive_one(device: &mut TcpIo) -> (PeerId, Vec<u8>) {
    let mut received = receive(device, 1);
    let datagram = received.pop().expect("one");
    let Source::Peer(peer) = datagram.source else {
        panic!("a sender that is no peer");
    };
    let frame = datagram.bytes.strip_prefix(PREAMBLE);
    (peer, frame.expect("the preamble").to_vec())
}

/// Receives so many datagrams: what is behind their preambles.
pub(crate) fn receive_frames(device: &mut TcpIo, count: usize) -> Vec<Vec<u8>> {
    let frame = |datagram: ReceivedDatagram| datagram.bytes[PREAMBLE.len()..].to_vec();
    receive(device, count).into_iter().map(frame).collect()
}

/// Drives a device until something is true of it.
pub(crate) fn drive(device: &mut TcpIo, mut done: impl FnMut(&mut TcpIo) -> bool) {
    let begun = Instant::now();
    loop {
        let burst = device.split().0.rx_burst().expect("a healthy device");
        assert_eq!(burst, 0, "nobody sends");
        if done(device) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "it does not happen");
        let soon = Some(Duration::from_millis(10));
        device.wait(soon).expect("a healthy device");
    }
}

/// The next event.
pub(crate) fn event(device: &mut TcpIo) -> IoEvent {
    let mut event = None;
    drive(device, |device| {
        event = device.poll_event();
        event.is_some()
    });
    event.expect("it was awaited")
}

pub(crate) fn count(device: &TcpIo, name: &str) -> u64 {
    device.report().count(name).expect(name)
}

/// The other end of a connection to a server, in the test's hands.
pub(crate) struct Raw(pub(crate) TcpStream);

impl Raw {
    pub(crate) fn connect(server: &TcpIo) -> Self {
        let address = server.local_address();
        let address = address.strip_prefix("tcp://").expect(&address);
        let stream = TcpStream::connect(address).expect("the kernel accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Self(stream)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("room");
    }

    /// Whether the server has closed the connection. Waits for nothing.
    pub(crate) fn is_closed(&mut self) -> bool {
        self.0.set_nonblocking(true).expect("a socket");
        let mut bytes = [0; 4096];
        let result = loop {
            match self.0.read(&mut bytes) {
                Ok(1..) => {}
                other => break other,
            }
        };
        self.0.set_nonblocking(false).expect("a socket");
        result.map_or_else(|error| error.kind() != ErrorKind::WouldBlock, |_| true)
    }
}

/// A datagram behind its length, as it goes over a connection.
pub(crate) fn framed(frame: &[u8]) -> Vec<u8> {
    let length = (PREAMBLE.len() + frame.len()) as u32;
    [&length.to_le_bytes()[..], PREAMBLE, frame].concat()
}
