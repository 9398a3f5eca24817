//! Helpers of the tests of the device.

// Each test binary uses some of these.
#![allow(dead_code, unreachable_pub)]

pub mod hostile_peer;
pub mod sockets;

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::thread::sleep;
use std::time::{Duration, Instant};

use starling_io::{Fault, IoEvent, PacketIo, PacketRx, PacketTx, PeerId, Source, TxError};
use starling_io_shm::{ShmConfig, ShmIo};

use starling_io_testing::PATIENCE;
pub use starling_io_testing::PREAMBLE;

/// An address that no other test and no other run of this one uses.
pub fn name(test: &str) -> String {
    format!("shm://test-{}-{test}", std::process::id())
}

/// A device, and the datagrams that it has received but the test has not asked for yet.
pub struct Device {
    io: ShmIo,
    received: VecDeque<(PeerId, Vec<u8>)>,
}

impl Device {
    /// Binds to a name, and tries again while it is taken: between its fork and its exec, a
    /// process that another test starts holds copies of all sockets.
    pub fn bind(address: &str, config: &ShmConfig) -> Self {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match ShmIo::bind(address, config.clone()) {
                Ok(io) => return io.into(),
                Err(error) if error.fault == Fault::Host => sleep(Duration::from_millis(10)),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("{address} stays taken");
    }

    pub fn client(config: &ShmConfig) -> Self {
        ShmIo::client(config.clone()).unwrap().into()
    }

    /// Sends one datagram, waiting for room.
    pub fn send(&mut self, peer: PeerId, body: &[u8]) {
        while self.split().1.append(peer, PREAMBLE, &[], body, &[]) == Err(TxError::Full) {
            self.wait(None).unwrap();
        }
        self.split().1.flush().unwrap();
    }

    /// Sends one datagram with a tail, waiting for room.
    pub fn send_tail(&mut self, peer: PeerId, tail: &[u8]) {
        while self.split().1.append(peer, PREAMBLE, &[], &[], tail) == Err(TxError::Full) {
            self.wait(None).unwrap();
        }
        self.split().1.flush().unwrap();
    }

    /// Datagrams whose tail was sent from where it lay in the message heap.
    pub fn gathered(&self) -> u64 {
        self.report().count("tx_gathered").unwrap()
    }

    /// One burst.
    pub fn poll(&mut self) -> usize {
        let (rx, _) = self.io.split();
        let count = rx.rx_burst().unwrap();
        for index in 0..count {
            let datagram = rx.datagram(index);
            let Source::Peer(peer) = datagram.source else {
                panic!("every sender is a peer");
            };
            assert_eq!(&datagram.bytes[..8], PREAMBLE);
            self.received
                .push_back((peer, datagram.bytes[8..].to_vec()));
        }
        count
    }

    /// One burst of any datagrams, which are only counted.
    pub fn count_burst(&mut self) -> usize {
        self.io.split().0.rx_burst().unwrap()
    }

    /// Waits until no more than so many files are open: a device has what came from peers closed by
    /// another thread.
    pub fn wait_for_files(&mut self, count: usize) {
        let start = Instant::now();
        while open_files() > count {
            let open = open_files();
            assert!(start.elapsed() < PATIENCE, "{open} files, not {count}");
            self.wait(Some(Duration::from_millis(1))).unwrap();
        }
    }

    /// The next datagram, without its preamble; waits for it.
    pub fn receive(&mut self) -> (PeerId, Vec<u8>) {
        loop {
            if let Some(received) = self.received.pop_front() {
                return received;
            }
            if self.poll() == 0 {
                self.wait(None).unwrap();
            }
        }
    }

    /// A datagram that arrived while the test waited for something else.
    pub fn take_received(&mut self) -> Option<(PeerId, Vec<u8>)> {
        self.received.pop_front()
    }

    /// The next event. It polls often enough for a busy device to have polled its sockets.
    pub fn event(&mut self) -> Option<IoEvent> {
        (0..1000).find_map(|_| self.poll_event())
    }

    /// Waits for an event. Datagrams before it are kept.
    pub fn wait_for_event(&mut self) -> IoEvent {
        loop {
            while self.poll() != 0 {}
            if let Some(event) = self.event() {
                return event;
            }
            self.wait(None).unwrap();
        }
    }
}

impl From<ShmIo> for Device {
    fn from(io: ShmIo) -> Self {
        Self {
            io,
            received: VecDeque::new(),
        }
    }
}

impl Deref for Device {
    type Target = ShmIo;
    fn deref(&self) -> &ShmIo {
        &self.io
    }
}

impl DerefMut for Device {
    fn deref_mut(&mut self) -> &mut ShmIo {
        &mut self.io
    }
}

/// Open file descriptors of this process.
pub fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
