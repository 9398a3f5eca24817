//! What the tests of the device share.
#![allow(unsafe_code)]
#![allow(dead_code)] // Each test binary uses its part.

pub(crate) mod marker;
pub(crate) mod net;

use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use starling_io::{Ecn, MAX_BURST, PacketIo, PacketRx, Source};
use starling_io_udp::{UdpConfig, UdpIo};

/// What every datagram begins with.
pub(crate) const PREAMBLE: &[u8; 8] = b"preamble";

/// Some frame.
pub(crate) const FRAME: &[u8] = b"some frame";

/// How long a datagram may be on its way before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(20);

/// A received datagram, copied.
pub(crate) struct Copied {
    pub(crate) source: Source,
    pub(crate) ecn: Ecn,
    pub(crate) bytes: Vec<u8>,
}

/// A device on a free port of `host`.
pub(crate) fn bind(host: &str) -> UdpIo {
    bind_with(host, UdpConfig::default())
}

/// The same, with other settings.
pub(crate) fn bind_with(host: &str, config: UdpConfig) -> UdpIo {
    UdpIo::bind(&format!("udp://{host}:0"), config).expect(host)
}

/// Receives one burst, asleep until there is one.
///
/// # Panics
/// If nothing comes for so long that it must be lost.
pub(crate) fn receive_some(device: &mut UdpIo) -> Vec<Copied> {
    let start = Instant::now();
    loop {
        let rx = device.split().0;
        let burst = rx.rx_burst().expect("a healthy socket");
        assert!(burst <= MAX_BURST);
        if burst > 0 {
            let copy = |index| {
                let datagram = rx.datagram(index);
                Copied {
                    source: datagram.source,
                    ecn: datagram.ecn,
                    bytes: datagram.bytes.to_vec(),
                }
            };
            return (0..burst).map(copy).collect();
        }
        assert!(start.elapsed() < PATIENCE, "a datagram is missing");
        device.wait(Some(PATIENCE)).expect("a healthy socket");
    }
}

/// Receives until there are `count` datagrams.
///
/// # Panics
/// If more come, or fewer.
pub(crate) fn receive(device: &mut UdpIo, count: usize) -> Vec<Copied> {
    let mut received = Vec::new();
    while received.len() < count {
        received.extend(receive_some(device));
    }
    assert_eq!(received.len(), count);
    received
}

/// The same, payloads only.
pub(crate) fn receive_payloads(device: &mut UdpIo, count: usize) -> Vec<Vec<u8>> {
    let received = receive(device, count);
    received
        .into_iter()
        .map(|datagram| datagram.bytes)
        .collect()
}

/// Bytes that are text.
pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("text")
}

/// Sets an option of a socket whose value is an `int`.
pub(crate) fn set_option(socket: &impl AsFd, level: i32, name: i32, value: i32) {
    // SAFETY: the pointer is good for the length beside it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}
