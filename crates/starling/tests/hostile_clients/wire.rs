//! How a hostile client's datagrams reach the server: it may send any bytes, and need not read.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};

use rustix::net::{AddressFamily, SocketType};
use starling_io::{PacketIo, PacketRx, PacketTx, PeerId};
use starling_io_shm::{ShmConfig, ShmIo};

use crate::raw::PREAMBLE_BYTES;

/// Largest datagram that a hostile client sends and takes: all devices carry it.
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
    match address.split_once("://") {
        Some(("udp", address)) => Box::new(Udp::open(address)),
        Some(("tcp", address)) => Box::new(Tcp::open(address)),
        _ => Box::new(Shm::open(address)),
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

/// PROTOCOL.md, section 2.1.
struct Tcp {
    stream: TcpStream,
    unsent: Vec<u8>,
    received: Vec<u8>,
}

/// What each end of a connection begins with.
const HELLO: &[u8; 8] = b"\x5aTCP\x01\0\0\0";

/// Bytes that wait for room in the kernel, at most.
const MAX_UNSENT: usize = 1 << 20;

impl Tcp {
    fn open(address: &str) -> Self {
        let server: SocketAddr = address.parse().expect("an IP address");
        let own: SocketAddr = HOST.parse().expect("an IP address");
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None);
        let socket = socket.expect("descriptors");
        rustix::net::bind(&socket, &own).expect("a free port");
        rustix::net::connect(&socket, &server).expect("its server is there");
        let stream = TcpStream::from(socket);
        stream.set_nonblocking(true).expect("a socket");
        Self {
            stream,
            unsent: HELLO.to_vec(),
            // The server's hello, which is skipped.
            received: Vec::new(),
        }
    }
}

impl Wire for Tcp {
    fn send(&mut self, datagram: &[u8]) {
        if datagram.len() >= PREAMBLE_BYTES && self.unsent.len() < MAX_UNSENT {
            self.unsent.extend((datagram.len() as u32).to_le_bytes());
            self.unsent.extend(datagram);
        }
        // No room, or nobody there: what is left waits.
        if let Ok(sent) = self.stream.write(&self.unsent) {
            self.unsent.drain(..sent);
        }
    }

    fn receive(&mut self, datagrams: &mut Vec<Vec<u8>>) {
        let mut buffer = [0; 1 << 16];
        if let Ok(length) = self.stream.read(&mut buffer) {
            self.received.extend(&buffer[..length]);
        }
        let Some(rest) = self.received.strip_prefix(HELLO) else {
            return;
        };
        let mut at = 0;
        while let Some(length) = rest[at..].first_chunk() {
            let start = at + size_of::<u32>();
            let end = start + u32::from_le_bytes(*length) as usize;
            let Some(datagram) = rest.get(start..end) else {
                break;
            };
            datagrams.push(datagram.to_vec());
            at = end;
        }
        self.received.drain(HELLO.len()..HELLO.len() + at);
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
