//! Attacks by datagrams: what asks for answers, and what means nothing.

use crate::hostile::Hostile;
use crate::raw::{PREAMBLE_BYTES, Raw, SLOTS, amount, kind, message, preamble, summary};

/// Asks for as many answers as it can: bundles of frames that are answered each, from peers and from those
/// that never become one; and one request, over and over.
pub(crate) struct Amplify {
    known: Raw,
    unknown: Vec<Raw>,
    steps: usize,
    sent: usize,
}

const UNKNOWN: u64 = 16;
/// Frames of each kind in a datagram.
const FRAMES: usize = 25;

impl Amplify {
    pub(crate) fn new(address: &str) -> Self {
        Self {
            known: Raw::new(address, 1_000),
            unknown: Raw::many(address, UNKNOWN),
            steps: 0,
            sent: 0,
        }
    }

    /// The same request again, which has been answered: its response is kept.
    fn repeat(&mut self) {
        let message = message("Fetch", &[], &amount(400));
        if self.known.sessions[0].number == 0 {
            self.known.request(0, 0, 0, &message);
        }
        let (server, session) = (self.known.server, self.known.sessions[0]);
        let request = kind::REQUEST | kind::EXT;
        for _ in 0..2 * FRAMES {
            self.known
                .frame(server, request, 0, session.id, session.number, &[&message]);
        }
        self.known.flush();
    }
}

impl Hostile for Amplify {
    fn step(&mut self) {
        self.steps += 1;
        self.known.keep_sessions(1);
        if !self.known.sessions.is_empty() {
            self.repeat();
        }
        let connect = [
            &(5u64 << 16).to_le_bytes()[..],
            &[0; 4],
            &[0, 4, 0, 0, 0, 0, 1, 0, 8, 0, 8, 0],
            &[0; 16],
        ]
        .concat();
        let at = self.steps % UNKNOWN as usize;
        let (known, unknown) = (self.known.server, &mut self.unknown[at]);
        for _ in 0..FRAMES {
            unknown.frame(0, kind::CONNECT, 0, 0, 0, &[&connect]);
        }
        // Under no token, under one that is not its own, and under one that nobody has.
        for token in [0, known, 77 << 16] {
            for kind in [kind::PING, kind::RESET, kind::CLOSE, kind::REQUEST] {
                for number in 0..FRAMES as u64 {
                    unknown.frame(token, kind, 0, 0, number, &[]);
                }
                unknown.flush();
                self.sent += FRAMES;
            }
        }
        unknown.receive();
        for number in 0..FRAMES as u64 {
            self.known.frame(known, kind::PING, 0, 0, number, &[]);
            self.known.frame(known, kind::CLOSE, 0, 7, number, &[]);
        }
        self.known.flush();
        self.sent += 5 * FRAMES;
    }

    fn did(&self) -> String {
        let known = summary([&self.known]);
        format!(
            "{} frames, {known}; unknown {}",
            self.sent,
            summary(&self.unknown)
        )
    }
}

/// Sends what means nothing: any bytes, and frames of all kinds with any fields.
pub(crate) struct Garbage {
    raws: Vec<Raw>,
    random: u64,
    sent: usize,
}

const PEERS: u64 = 4;
/// Datagrams of each kind of garbage in a step.
const DATAGRAMS: usize = 8;

impl Garbage {
    pub(crate) fn new(address: &str) -> Self {
        Self {
            raws: Raw::many(address, PEERS),
            random: 0x9e37_79b9_7f4a_7c15,
            sent: 0,
        }
    }

    /// Pseudorandom: the same in each run.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn noise(&mut self, length: usize) -> Vec<u8> {
        let words = (0..length / 8).flat_map(|_| self.random().to_le_bytes());
        words.collect()
    }

    /// Frames that a session of its may have, but for some field.
    fn frames(&mut self, at: usize) {
        for _ in 0..FRAMES {
            let random = self.random();
            let length = (random >> 8) as usize % 64;
            let noise = self.noise(length);
            // Small numbers are valid.
            let mut small = |below: u64| match self.random() % 4 {
                0 => self.random(),
                _ => self.random() % below,
            };
            let (slot, number) = (small(SLOTS) as u8, small(100));
            let payload: Vec<u8> = match small(2) {
                0 => noise,
                _ => noise.iter().map(|byte| byte % 4).collect(),
            };
            let session = small(4) as u32;
            let raw = &mut self.raws[at];
            let id = match raw.sessions.first() {
                Some(own) if session == 0 => own.id,
                _ => session,
            };
            let token = if random.is_multiple_of(16) {
                0
            } else {
                raw.server
            };
            raw.frame(token, random as u8, slot, id, number, &[&payload]);
        }
        self.raws[at].flush();
    }
}

impl Hostile for Garbage {
    fn step(&mut self) {
        for at in 0..self.raws.len() {
            self.raws[at].keep_sessions(2);
            for _ in 0..DATAGRAMS {
                let length = self.random() as usize % 1_400;
                let mut bytes = self.noise(length);
                if self.random().is_multiple_of(2) && bytes.len() >= PREAMBLE_BYTES {
                    bytes[..PREAMBLE_BYTES].copy_from_slice(&preamble(self.raws[at].server));
                }
                self.raws[at].datagram(&bytes);
                self.frames(at);
                self.sent += 2;
            }
        }
    }

    fn did(&self) -> String {
        format!("{} datagrams, {}", self.sent, summary(&self.raws))
    }
}
