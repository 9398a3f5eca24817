//! Helpers of the tests of the device.
#![allow(unsafe_code)]
#![allow(dead_code, unused_imports)] // Each test binary uses its part.

pub(crate) mod marker;
pub(crate) mod net;

use std::os::fd::{AsFd, AsRawFd};

pub(crate) use starling_io_testing::{PREAMBLE, ReceivedDatagram, receive, receive_burst};
use starling_io_udp::{UdpConfig, UdpIo};

/// A frame.
pub(crate) const FRAME: &[u8] = b"some frame";

/// A device on a free port of `host`.
pub(crate) fn bind(host: &str) -> UdpIo {
    bind_with(host, UdpConfig::default())
}

/// The same, with other settings.
pub(crate) fn bind_with(host: &str, config: UdpConfig) -> UdpIo {
    UdpIo::bind(&format!("udp://{host}:0"), config).expect(host)
}

/// The same, payloads only.
pub(crate) fn receive_payloads(device: &mut UdpIo, count: usize) -> Vec<Vec<u8>> {
    let received = receive(device, count);
    received
        .into_iter()
        .map(|datagram| datagram.bytes)
        .collect()
}

/// Bytes as text.
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
