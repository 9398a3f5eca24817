//! Attacks on what a server has so many of: sessions, credits, places.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};

use crate::hostile::Hostile;
use crate::raw::{Raw, SLOTS, bytes_field, kind, message, summary};
use crate::sockets::{connect, hello, sealed_memory, send, slow_to_close};

/// Takes all sessions that there are, and holds them by a PING of each peer.
pub(crate) struct Many {
    raws: Vec<Raw>,
    steps: usize,
}

/// More than a server has.
const MANY: usize = 70_000;
const PEERS: u64 = 8;

impl Many {
    pub(crate) fn new(address: &str) -> Self {
        Self {
            raws: Raw::many(address, PEERS),
            steps: 0,
        }
    }
}

impl Hostile for Many {
    fn step(&mut self) {
        self.steps += 1;
        for raw in &mut self.raws {
            raw.keep_sessions(MANY / PEERS as usize);
            if self.steps.is_multiple_of(500) {
                raw.ping();
            }
        }
    }

    fn did(&self) -> String {
        summary(&self.raws)
    }
}

/// Has sessions that want all credits, and confirms that it gives some back, but keeps them.
pub(crate) struct Credits {
    raws: Vec<Raw>,
    next: usize,
}

/// As many as have a credit each.
const WITH_CREDITS: usize = 3_000;

impl Credits {
    pub(crate) fn new(address: &str) -> Self {
        Self {
            raws: Raw::many(address, PEERS),
            next: 0,
        }
    }
}

impl Hostile for Credits {
    fn step(&mut self) {
        let message = message("Echo", &[], &[]);
        for raw in &mut self.raws {
            raw.keep_sessions(WITH_CREDITS / PEERS as usize);
            for _ in 0..raw.sessions.len().min(8) {
                self.next += 1;
                let session = self.next % raw.sessions.len();
                let slot = self.next / raw.sessions.len() % SLOTS as usize;
                raw.request(session, slot as u8, kind::WANT, &message);
            }
            raw.confirm_credits(1024);
            raw.flush();
        }
    }

    fn did(&self) -> String {
        format!("{} that want more, {}", self.next, summary(&self.raws))
    }
}

/// Has thousands of sessions with responses to send, and reads nothing any more.
pub(crate) struct NeverReads {
    raw: Raw,
    steps: usize,
}

/// Sessions before it stops to read.
const UNREAD: usize = 4_000;

impl NeverReads {
    pub(crate) fn new(address: &str) -> Self {
        Self {
            raw: Raw::new(address, 1),
            steps: 0,
        }
    }
}

impl Hostile for NeverReads {
    fn step(&mut self) {
        if self.raw.sessions.len() < UNREAD {
            return self.raw.keep_sessions(UNREAD);
        }
        self.steps += 1;
        let message = message("Echo", &[], &bytes_field(1, &[1; 1_000]));
        for at in 0..32 {
            let at = self.steps * 32 + at;
            let slot = at / UNREAD % SLOTS as usize;
            self.raw.request(at % UNREAD, slot as u8, 0, &message);
        }
        self.raw.flush();
    }

    fn did(&self) -> String {
        format!("{} unread, {}", 32 * self.steps, summary([&self.raw]))
    }
}

/// Takes places and says nothing, half a hello, or nonsense; passes files that take for ever to close.
pub(crate) struct Silent {
    address: String,
    raws: VecDeque<Raw>,
    sockets: VecDeque<OwnedFd>,
    /// Places whose first datagram opens no session.
    nonsense: VecDeque<Raw>,
    /// A socket whose `close` waits, and its other end, which does not read.
    slow: (TcpStream, TcpStream),
    steps: usize,
}

/// Peers at once, and connections of `shm`: more than a process may have places.
const SILENT: usize = 600;
/// Of those with nonsense: each maps rings.
const NONSENSE: usize = 200;

impl Silent {
    pub(crate) fn new(address: &str) -> Self {
        Self {
            address: address.to_owned(),
            raws: VecDeque::new(),
            sockets: VecDeque::new(),
            nonsense: VecDeque::new(),
            slow: slow_to_close(),
            steps: 0,
        }
    }

    fn connect_over_shm(&mut self) {
        let socket = connect(&self.address);
        let memory = sealed_memory();
        match self.steps % 4 {
            // A place.
            0 => send(&socket, &hello(), &[memory.as_fd()]),
            // A file that is no memory.
            1 => send(&socket, &hello(), &[self.slow.0.as_fd()]),
            // No hello.
            2 => send(&socket, b"GET / HTTP/1.1\r\n\r\n", &[]),
            _ => {}
        }
        self.sockets.push_back(socket);
    }
}

impl Hostile for Silent {
    fn step(&mut self) {
        self.steps += 1;
        if self.address.starts_with("shm") {
            self.connect_over_shm();
            if self.steps.is_multiple_of(4) {
                let mut raw = Raw::new(&self.address, self.steps as u64);
                raw.datagram(b"nonsense, and more of it");
                self.nonsense.push_back(raw);
            }
        } else {
            // A peer with a session that is heard of once.
            self.raws
                .push_back(Raw::new(&self.address, self.steps as u64));
        }
        for raw in &mut self.raws {
            raw.keep_sessions(1);
        }
        if self.sockets.len() > SILENT {
            self.sockets.pop_front();
        }
        if self.nonsense.len() > NONSENSE {
            self.nonsense.pop_front();
        }
        if self.raws.len() > SILENT {
            self.raws.pop_front();
        }
    }

    fn did(&self) -> String {
        format!("{} connections, {}", self.steps, summary(&self.raws))
    }
}
