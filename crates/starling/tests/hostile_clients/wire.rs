//! How a hostile client's datagrams reach the server: it may send any bytes, and need not read.

use std::io::ErrorKind;
use std::net::UdpSocket;

use starling_io::{PacketIo, PacketRx, PacketTx, PeerId};
use starling_io_shm::{ShmConfig, ShmIo};

use crate::raw::PREAMBLE_BYTES;

/// Largest datagram that a hostile client sends and takes: both devices carry it.
pub(crate) const MAX_DATAGRAM: usize = 60_000;

/// Another host, as far as a server's shares are concerned.
const HOST: &str = "127.0.0.2:0";

/// A way to the server, of one peer.
pub(crate) trait Wire {
    /// Sends a datagram, if there is room.
    fn send(&mut self, datagram: &[u8]);

    /// The datagrams that have come, but not more than there are in a burst.
    fn receive(&mut self, datagrams: &mut Vec<Vec<u8>>);
}

/// Opens a way to a server at this address. Each is another peer.
pub(crate) fn open(address: &str) -> Box<dyn Wire> {
    match address.strip_prefix("udp://") {
        Some(address) => Box::new(Udp::open(address)),
        None => Box::new(Shm::open(address)),
    }
}

struct Udp {
    socket: UdpSocket,
    buffer: Vec<u8>,
}

impl Udp {
    fn open(address: &str) -> Self {
        let socket = UdpSocket::bind(HOST).expect("a free port");
        socket.connect(address).expect("a route");
        socket.set_nonblocking(true).expect("a socket");
        Self {
            socket,
            buffer: vec![0; 1 << 16],
        }
    }
}

impl Wire for Udp {
    fn send(&mut self, datagram: &[u8]) {
        // No room, or nobody there: the datagram is lost.
        let _ = self.socket.send(datagram);
    }

    fn receive(&mut self, datagrams: &mut Vec<Vec<u8>>) {
        for _ in 0..64 {
            match self.socket.recv(&mut self.buffer) {
                Ok(length) => datagrams.push(self.buffer[..length].to_vec()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {}
            }
        }
    }
}

struct Shm {
    io: ShmIo,
    server: PeerId,
}

impl Shm {
    fn open(address: &str) -> Self {
        let mut io = ShmIo::client(ShmConfig::default()).expect("descriptors");
        let server = io.open_peer(address).expect("its server is there");
        Self { io, server }
    }
}

impl Wire for Shm {
    fn send(&mut self, datagram: &[u8]) {
        let Some((preamble, rest)) = datagram.split_first_chunk::<PREAMBLE_BYTES>() else {
            return;
        };
        let (_, tx) = self.io.split();
        let _ = tx.append(self.server, preamble, &[], rest, &[]);
        tx.seal(self.server);
        tx.flush().expect("the device works");
    }

    fn receive(&mut self, datagrams: &mut Vec<Vec<u8>>) {
        while self.io.poll_event().is_some() {}
        let (rx, _) = self.io.split();
        let count = rx.rx_burst().expect("the device works");
        datagrams.extend((0..count).map(|index| rx.datagram(index).bytes.to_vec()));
    }
}
