//! Helpers for tests of devices: receiving with a limit, and copies of received datagrams.

use std::time::{Duration, Instant};

use starling_io::{Ecn, MAX_BURST, PacketIo, PacketRx, Source};

/// The preamble of every datagram in these tests.
pub const PREAMBLE: &[u8; 8] = b"preamble";

/// A datagram that takes longer than this to arrive counts as lost. Only a failing test waits.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A copy of a received datagram.
#[derive(Debug)]
pub struct ReceivedDatagram {
    /// The sender.
    pub source: Source,
    /// The ECN bits that it arrived with.
    pub ecn: Ecn,
    /// The payload, with its preamble.
    pub bytes: Vec<u8>,
}

/// Receives one burst, asleep until there is one.
///
/// # Panics
/// If nothing arrives within [`PATIENCE`].
pub fn receive_burst<I: PacketIo>(device: &mut I) -> Vec<ReceivedDatagram> {
    let start = Instant::now();
    loop {
        let rx = device.split().0;
        let burst = rx.rx_burst().expect("a healthy device");
        assert!(burst <= MAX_BURST);
        if burst > 0 {
            let copy = |index| {
                let datagram = rx.datagram(index);
                ReceivedDatagram {
                    source: datagram.source,
                    ecn: datagram.ecn,
                    bytes: datagram.bytes.to_vec(),
                }
            };
            return (0..burst).map(copy).collect();
        }
        assert!(start.elapsed() < PATIENCE, "a datagram is missing");
        device.wait(Some(PATIENCE)).expect("a healthy device");
    }
}

/// Receives until there are `count` datagrams.
///
/// # Panics
/// If more arrive, or fewer within [`PATIENCE`] of each other.
pub fn receive<I: PacketIo>(device: &mut I, count: usize) -> Vec<ReceivedDatagram> {
    let mut received = Vec::new();
    while received.len() < count {
        received.extend(receive_burst(device));
    }
    assert_eq!(received.len(), count);
    received
}
