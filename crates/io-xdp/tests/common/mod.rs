//! What the tests of the device share.
#![allow(dead_code)] // Each test binary uses its part.

use std::ops::Deref;
use std::time::{Duration, Instant};

use starling_io::{Ecn, IoError, MAX_BURST, PacketIo, PacketRx, Source};
use starling_io_xdp::{XdpConfig, XdpIo};
use starling_netns::{Pair, Shape, inside};

/// What every datagram begins with.
pub(crate) const PREAMBLE: &[u8; 8] = b"preamble";

/// How long a datagram may be on its way before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(20);

/// Two namespaces in which devices work: `a` has `va`, `b` has `vb`.
pub(crate) struct Net(Pair);

impl Deref for Net {
    type Target = Pair;

    fn deref(&self) -> &Pair {
        &self.0
    }
}

impl Net {
    /// `None`, having said so, where it cannot be made.
    pub(crate) fn new(test: &str) -> Option<Self> {
        Self::with_shape(test, Shape::default())
    }

    /// The same with other interfaces.
    pub(crate) fn with_shape(test: &str, shape: Shape) -> Option<Self> {
        let made = Pair::with_shape(shape).and_then(|pair| {
            let bind = || XdpIo::bind("xdp://va/0.0.0.0:0", XdpConfig::default());
            match inside(&pair.a, bind) {
                Ok(_) => Ok(Self(pair)),
                Err(error) if is_lacking(&error) => Err(error.to_string()),
                Err(error) => panic!("{error}"),
            }
        });
        if let Err(problem) = &made {
            println!("skipped: {test} needs root, `ip` of iproute2 and AF_XDP ({problem})");
        }
        made.ok()
    }

    /// A device in `a`.
    pub(crate) fn at_a(&self, address: &str) -> XdpIo {
        inside(&self.a, || XdpIo::bind(address, XdpConfig::default())).expect(address)
    }

    /// A device in `b`.
    pub(crate) fn at_b(&self, address: &str) -> XdpIo {
        inside(&self.b, || XdpIo::bind(address, XdpConfig::default())).expect(address)
    }
}

/// Whether an error says that the kernel has no AF_XDP, or lets nobody use it.
fn is_lacking(error: &IoError) -> bool {
    let lacking = [libc::EPERM, libc::EAFNOSUPPORT, libc::ENOSYS];
    let errno = error.source.as_ref().and_then(std::io::Error::raw_os_error);
    errno.is_some_and(|errno| lacking.contains(&errno))
}

/// A received datagram, copied.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) source: Source,
    pub(crate) ecn: Ecn,
    pub(crate) bytes: Vec<u8>,
}

/// Receives one burst, asleep until there is one.
///
/// # Panics
/// If nothing comes for so long that it must be lost.
pub(crate) fn receive_some<I: PacketIo>(device: &mut I) -> Vec<Copied> {
    let start = Instant::now();
    loop {
        let rx = device.split().0;
        let burst = rx.rx_burst().expect("a healthy device");
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
        device.wait(Some(PATIENCE)).expect("a healthy device");
    }
}

/// Receives until there are `count` datagrams.
///
/// # Panics
/// If more come, or fewer.
pub(crate) fn receive<I: PacketIo>(device: &mut I, count: usize) -> Vec<Copied> {
    let mut received = Vec::new();
    while received.len() < count {
        received.extend(receive_some(device));
    }
    assert_eq!(received.len(), count);
    received
}
