//! Ethernet frames by hand: making, sending and receiving them byte by byte.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use starling_netns::inside;

/// Hardware addresses, an Ethernet type, and the headers of a datagram of eight bytes from
/// 10.77.0.1:1000 to the device's port at 10.77.0.2; its checksum is left out, which IPv4 allows.
pub(crate) const GOOD: [u8; 50] = [
    2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00, // Ethernet
    0x45, 0, 0, 36, 0, 0, 0, 0, 64, 17, 0x66, 0x2d, 10, 77, 0, 1, 10, 77, 0, 2, // IPv4
    3, 232, 0x23, 0x28, 0, 16, 0, 0, // UDP: port 9000
    b'g', b'o', b'o', b'd', b' ', b'o', b'n', b'e',
];

/// The sender's hardware address of all frames made here. No interface has it.
const FROM: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// IPv6 addresses of `va` and `vb`.
const ENDS_V6: [u8; 32] = [
    0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, //
    0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2,
];

/// The sum of the bytes as words (RFC 1071). IP and UDP send its complement.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2);
    let word = |word: &[u8]| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
    let sum: u32 = words.map(word).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// A frame of any kind to `vb`.
pub(crate) fn ethernet(kind: u16, body: &[u8]) -> Vec<u8> {
    [&GOOD[..6], &FROM, &kind.to_be_bytes(), body].concat()
}

/// An IPv4 packet from `va` to `vb`; `options` are whole words, and `fragment` is the half word of
/// flags and offset.
pub(crate) fn ipv4(options: &[u8], fragment: u16, protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut header = [&GOOD[14..34], options].concat();
    header[0] = 0x40 | (header.len() / 4) as u8;
    let total = (header.len() + body.len()) as u16;
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[6..8].copy_from_slice(&fragment.to_be_bytes());
    header[9] = protocol;
    let mut frame = ethernet(0x0800, &[&header, body].concat());
    check_header(&mut frame);
    frame
}

/// Corrects the header checksum of an IPv4 packet.
pub(crate) fn check_header(frame: &mut [u8]) {
    let end = 14 + usize::from(frame[14] & 0x0f) * 4;
    frame[24..26].fill(0);
    let checksum = !sum(&frame[14..end]);
    frame[24..26].copy_from_slice(&checksum.to_be_bytes());
}

/// An IPv6 packet from `va` to `vb`.
pub(crate) fn ipv6(next: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u16).to_be_bytes();
    let header = [0x60, 0, 0, 0, length[0], length[1], next, 64];
    ethernet(0x86dd, &[&header[..], &ENDS_V6, body].concat())
}

/// A datagram from port 1000, for IPv4 without a checksum.
pub(crate) fn udp(port: u16, payload: &[u8], checksum: Option<u16>) -> Vec<u8> {
    let mut datagram = [&GOOD[34..42], payload].concat();
    datagram[2..4].copy_from_slice(&port.to_be_bytes());
    let length = (8 + payload.len()) as u16;
    datagram[4..6].copy_from_slice(&length.to_be_bytes());
    datagram[6..8].copy_from_slice(&checksum.unwrap_or(0).to_be_bytes());
    datagram
}

/// The same for IPv6, with its checksum.
pub(crate) fn udp_v6(port: u16, payload: &[u8]) -> Vec<u8> {
    let without = udp(port, payload, None);
    let pseudo = [&ENDS_V6[..], &[0, 17], &without[4..6], &without].concat();
    udp(port, payload, Some(!sum(&pseudo)))
}

/// A packet socket on an interface, for frames of that kind.
fn packet_socket(namespace: &File, interface: &CStr, kind: libc::c_int) -> OwnedFd {
    let open = || {
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) };
        assert!(fd >= 0, "{}", io::Error::last_os_error());
        // SAFETY: it was just made.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: the name ends with a zero.
        let index = unsafe { libc::if_nametoindex(interface.as_ptr()) };
        // SAFETY: all zeros are an address.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (kind as u16).to_be();
        address.sll_ifindex = index as i32;
        // SAFETY: the pointer is valid for the length beside it.
        let bound = unsafe {
            let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len)
        };
        assert_eq!(bound, 0, "{}", io::Error::last_os_error());
        fd
    };
    inside(namespace, open)
}

/// Sends frames as they are, from `va`.
pub(crate) struct Sender(OwnedFd);

impl Sender {
    pub(crate) fn new(namespace: &File) -> Self {
        Self(packet_socket(namespace, c"va", 0))
    }

    /// False: the kernel does not take such a frame.
    pub(crate) fn send(&self, frame: &[u8]) -> bool {
        send(&self.0, frame, SendFlags::empty()).is_ok()
    }
}

/// Receives the frames that arrive at `vb` and that its XDP program, if any, leaves to the kernel.
pub(crate) struct Tap(OwnedFd);

impl Tap {
    pub(crate) fn new(namespace: &File) -> Self {
        Self(packet_socket(namespace, c"vb", libc::ETH_P_ALL))
    }

    /// The next frame that `is_wanted`. It passes over others.
    ///
    /// # Panics
    /// If none comes for so long that it must be lost.
    pub(crate) fn next(&self, is_wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let begun = Instant::now();
        let mut buffer = [0; 2048];
        loop {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is not seen");
            let pause = Timespec {
                tv_sec: 0,
                tv_nsec: 20_000_000,
            };
            let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
            poll(&mut fds, Some(&pause)).expect("a packet socket");
            if let Ok((len, _)) = recv(&self.0, &mut buffer[..], RecvFlags::DONTWAIT)
                && is_wanted(&buffer[..len])
            {
                return buffer[..len].to_vec();
            }
        }
    }

    /// The next frame that a [`Sender`] was given.
    pub(crate) fn next_sent(&self) -> Vec<u8> {
        self.next(|frame| frame.get(6..12) == Some(&FROM))
    }
}
