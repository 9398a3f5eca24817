//! Attacks by requests: handlers that wait, streams, slow handlers.

use crate::hostile::{Hostile, PEERS, Pace};
use crate::raw::{Raw, SLOTS, amount, answered, bytes_field, message, summary};

/// Has handlers wait in all slots that it gets, and puts a later request in each again and again.
pub(crate) struct Waiting {
    raws: Vec<Raw>,
    next: usize,
}

/// Of a peer: together they have more slots than there may be requests that wait.
const SESSIONS: usize = 600;
/// Requests in a step, at least one of each peer.
const REQUESTS: usize = 64;

impl Waiting {
    pub(crate) fn new(address: &str, peers: u64) -> Self {
        Self {
            raws: Raw::many(address, peers),
            next: 0,
        }
    }
}

impl Hostile for Waiting {
    fn step(&mut self) {
        let message = message("Wait", &[], &bytes_field(1, &[1; 3_000]));
        for raw in &mut self.raws {
            raw.keep_sessions(SESSIONS);
        }
        let of_each = (REQUESTS / self.raws.len()).max(1);
        for _ in 0..of_each {
            self.next += 1;
            for raw in self.raws.iter_mut().filter(|raw| !raw.sessions.is_empty()) {
                let (session, slot) = place(self.next, raw.sessions.len());
                raw.request(session, slot, 0, &message);
            }
        }
        self.raws.iter_mut().for_each(Raw::flush);
    }

    fn did(&self) -> String {
        format!(
            "{} to wait for, {}",
            self.next * self.raws.len(),
            summary(&self.raws)
        )
    }
}

/// The session and slot of a request: each session's turn, then the next slot's.
fn place(number: usize, sessions: usize) -> (usize, u8) {
    (
        number % sessions,
        (number / sessions % SLOTS as usize) as u8,
    )
}

/// Opens streams in both directions and reads nothing.
pub(crate) struct Streams {
    raws: Vec<Raw>,
    next: usize,
    opened: usize,
}

/// Sessions of a peer.
const OF_STREAMS: usize = 100;
/// Streams that a peer opens in a step.
const OPENED: usize = 2;

/// The position in a stream of its first request, and that the client takes as much as can be said.
fn position(id: u64, flags: u8) -> Vec<u8> {
    let numbers = [id, 0, 0, 0].map(u64::to_le_bytes).concat();
    let window = u32::MAX.to_le_bytes();
    [&[4, 38, 0][..], &numbers, &window, &[1, flags]].concat()
}

/// The client's items are in this request or in earlier ones.
const END: u8 = 1;

/// An item of a stream.
fn item(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes()[..], body].concat()
}

impl Streams {
    pub(crate) fn new(address: &str) -> Self {
        Self {
            raws: Raw::many(address, PEERS),
            next: 0,
            opened: 0,
        }
    }
}

impl Hostile for Streams {
    fn step(&mut self) {
        for raw in &mut self.raws {
            raw.keep_sessions(OF_STREAMS);
        }
        for _ in 0..OPENED {
            self.next += 1;
            let id = self.next as u64;
            let read = message("Read", &position(id, END), &item(&amount(30_000)));
            let items = item(&bytes_field(1, &[1; 20_000])).repeat(2);
            let write = message("Write", &position(id, 0), &items);
            let request = match self.next % 2 {
                0 => &read,
                _ => &write,
            };
            let open = |raw: &&mut Raw| raw.sessions.len() >= OF_STREAMS;
            for raw in self.raws.iter_mut().filter(open) {
                let (session, slot) = place(self.next, raw.sessions.len());
                raw.request(session, slot, 0, request);
                self.opened += 1;
            }
        }
        self.raws.iter_mut().for_each(Raw::flush);
    }

    fn did(&self) -> String {
        format!("{} streams, {}", self.opened, summary(&self.raws))
    }
}

/// Sends requests of handlers that hold the thread, many of each peer in one datagram, and the next ones when
/// those are answered: so the thread always has some to run.
pub(crate) struct Slow {
    raws: Vec<Raw>,
    bursts: usize,
    /// Of each peer.
    paces: Vec<Pace>,
}

/// Requests of a peer in a datagram: 30 ms.
const AT_ONCE: usize = 300;

impl Slow {
    pub(crate) fn new(address: &str) -> Self {
        Self {
            raws: Raw::many(address, PEERS),
            bursts: 0,
            paces: (0..PEERS).map(|_| Pace::default()).collect(),
        }
    }
}

impl Hostile for Slow {
    fn step(&mut self) {
        let message = message("Scan", &[], &amount(100));
        for (raw, pace) in self.raws.iter_mut().zip(&mut self.paces) {
            raw.keep_sessions(AT_ONCE / SLOTS as usize + 1);
            let has_slots = raw.sessions.len() * SLOTS as usize >= AT_ONCE;
            let most = AT_ONCE as u64;
            if !has_slots || !pace.allows(most, most, answered(std::slice::from_ref(raw))) {
                continue;
            }
            for request in 0..AT_ONCE {
                let (session, slot) = place(request, raw.sessions.len());
                raw.request(session, slot, 0, &message);
            }
            raw.flush();
            self.bursts += 1;
            pace.sent(most);
        }
    }

    fn did(&self) -> String {
        let scans = self.bursts * AT_ONCE;
        format!("{scans} of 100 us, {}", summary(&self.raws))
    }
}
