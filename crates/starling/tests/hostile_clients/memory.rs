//! Attacks on what a server holds for its clients: large requests, kept responses, decoded messages.

use starling_compress::{Algorithm, compress};

use crate::hostile::{Hostile, Pace};
use crate::raw::{Raw, SLOTS, amount, answered, bytes_field, message, summary};

/// Begins requests of 64 MiB in all slots, and goes on with each just often enough not to be given up for
/// one that is silent.
pub(crate) struct Begun {
    raws: Vec<Raw>,
    /// By peer and slot: the request's number, and how many fragments were sent.
    sent: Vec<[(u64, u32); SLOTS as usize]>,
    steps: u32,
    begun: u64,
}

/// Steps between two fragments of a request.
const TRICKLE: u32 = 64;

impl Begun {
    pub(crate) fn new(address: &str, peers: u64) -> Self {
        Self {
            raws: Raw::many(address, peers),
            sent: vec![[(0, 0); SLOTS as usize]; peers as usize],
            steps: 0,
            begun: 0,
        }
    }
}

impl Hostile for Begun {
    fn step(&mut self) {
        self.steps += 1;
        for (raw, sent) in self.raws.iter_mut().zip(&mut self.sent) {
            raw.keep_sessions(1);
            for (_, slot) in raw.rejected.drain(..) {
                // The next one begins.
                sent[usize::from(slot)].1 = 0;
            }
            if raw.sessions.is_empty() {
                continue;
            }
            for slot in
                (0..SLOTS as u32).filter(|slot| (self.steps + 2 * slot).is_multiple_of(TRICKLE))
            {
                let (number, fragments) = &mut sent[slot as usize];
                if *fragments == 0 {
                    // Unique in the session, and above the slot's last one.
                    *number += 1;
                    self.begun += 1;
                }
                raw.fragment(0, slot as u8, *number, *fragments);
                *fragments += 1;
            }
            raw.flush();
        }
    }

    fn did(&self) -> String {
        format!("{} begun of 64 MiB, {}", self.begun, summary(&self.raws))
    }
}

/// Asks for responses of 1 MiB in all slots but one of each session and never takes more than their first
/// fragment. A small request in the last slot says each 100 ms that the session is in use.
pub(crate) struct Unread {
    raws: Vec<Raw>,
    next: usize,
    asked: u64,
    steps: usize,
    pace: Pace,
}

const SESSIONS: usize = 8;
/// Responses asked for in a step, and at once.
const RESPONSES: u64 = 2;
const AT_ONCE: u64 = 16;

impl Unread {
    pub(crate) fn new(address: &str, peers: u64) -> Self {
        Self {
            raws: Raw::many(address, peers),
            next: 0,
            asked: 0,
            steps: 0,
            pace: Pace::default(),
        }
    }
}

impl Hostile for Unread {
    fn step(&mut self) {
        for raw in &mut self.raws {
            raw.keep_sessions(SESSIONS);
        }
        let large = message("Fetch", &[], &amount(1 << 20));
        let small = message("Echo", &[], &[]);
        let is_allowed = (self.pace).allows(RESPONSES, AT_ONCE, answered(&self.raws));
        let responses = match is_allowed {
            true => RESPONSES,
            false => 0,
        };
        for _ in 0..responses {
            self.next += 1;
            let peers = self.raws.len();
            let raw = &mut self.raws[self.next % peers];
            let at = self.next / peers;
            let (session, slot) = (at % SESSIONS, at / SESSIONS % (SLOTS as usize - 1));
            if session < raw.sessions.len() {
                self.asked += 1;
                self.pace.sent(1);
                raw.request(session, slot as u8, 0, &large);
                raw.flush();
            }
        }
        self.steps += 1;
        if self.steps.is_multiple_of(100) {
            for raw in &mut self.raws {
                for session in 0..raw.sessions.len() {
                    raw.request(session, SLOTS as u8 - 1, 0, &small);
                    self.pace.sent(1);
                }
                raw.flush();
            }
        }
    }

    fn did(&self) -> String {
        format!("{} of 1 MiB asked for, {}", self.asked, summary(&self.raws))
    }
}

/// Sends messages that become many times as large: numbers in protobuf, and what is compressed. Handlers that
/// wait keep them.
pub(crate) struct Multiply {
    raws: Vec<Raw>,
    messages: Vec<Vec<u8>>,
    steps: usize,
    next: usize,
}

/// Steps from one message to the next: to unpack and decode them is most of a server's work then.
const PACE: usize = 16;

/// Numbers in a message: 8 bytes in memory for each byte that comes.
const NUMBERS: usize = 50_000;
/// What a message has when it is decompressed: as much as a server takes by default.
const PLAIN: usize = 4 << 20;

impl Multiply {
    pub(crate) fn new(address: &str, peers: u64) -> Self {
        let numbers = bytes_field(2, &[1; NUMBERS]);
        let mut messages = ["Echo", "Wait"]
            .map(|method| message(method, &[], &numbers))
            .to_vec();
        let plain = bytes_field(1, &vec![1; PLAIN - 5]);
        for algorithm in Algorithm::ALL {
            let mut packed = Vec::new();
            assert!(compress(algorithm, None, &plain, &mut packed));
            let length = (plain.len() as u32).to_le_bytes();
            let field = [&[7, 5, 0, algorithm.number()][..], &length].concat();
            messages.push(message("Wait", &field, &packed));
        }
        Self {
            raws: Raw::many(address, peers),
            messages,
            steps: 0,
            next: 0,
        }
    }
}

impl Hostile for Multiply {
    fn step(&mut self) {
        for raw in &mut self.raws {
            raw.keep_sessions(SESSIONS);
        }
        self.steps += 1;
        if !self.steps.is_multiple_of(PACE) {
            return;
        }
        self.next += 1;
        let peers = self.raws.len();
        let raw = &mut self.raws[self.next % peers];
        let at = self.next / peers;
        let (session, slot) = (at % SESSIONS, at / SESSIONS % SLOTS as usize);
        if session < raw.sessions.len() {
            let message = &self.messages[at % self.messages.len()];
            raw.request(session, slot as u8, 0, message);
            raw.flush();
        }
    }

    fn did(&self) -> String {
        format!("{} that multiply, {}", self.next, summary(&self.raws))
    }
}
