//! The server of a hostile host: it accepts sessions, and what it sends in them has the right token, session, slot and
//! number, and otherwise no sense.

use std::collections::BTreeMap;

use super::Scene;
use super::material::{any_frame, payload};
use crate::fabric::HostId;
use crate::frames::{
    ACCEPT, CHALLENGE, CLOSE, CLOSED, CONNECT, CREDIT, CREDIT_RETURN, DRAIN, Frame, PING, PONG,
    REFUSE, REJECT, RESET, RESPONSE, RESPONSE_FRAGMENT, begin, frame, u32_at, u64_at,
};
use crate::rng::Rng;

/// Where the payload of a CONNECT has slots and credits.
const LIMITS_AT: usize = 20;

pub(super) struct Server {
    scene: Scene,
    rng: Rng,
    clients: BTreeMap<HostId, Client>,
}

#[derive(Default)]
struct Client {
    /// The client's token for this host.
    token: u64,
    /// The client's ids of its sessions; the place is the server's id.
    sessions: Vec<u32>,
    was_answered: bool,
}

impl Server {
    pub(super) fn new(id: HostId, scene: Scene) -> Self {
        Self {
            scene,
            rng: Rng::new(scene.heal_ns ^ u64::from(id.0)),
            clients: BTreeMap::new(),
        }
    }

    /// Answers this client from now on.
    pub(super) fn serve(&mut self, client: HostId) {
        self.clients.entry(client).or_default();
    }

    /// Whether a client gets its first answer.
    pub(super) fn begins(&mut self, client: HostId) -> bool {
        let client = self.clients.get_mut(&client);
        client.is_some_and(|client| !std::mem::replace(&mut client.was_answered, true))
    }

    /// The datagrams that answer a frame. `own` is this host's token for the client, `token` the frame's.
    pub(super) fn answers(
        &mut self,
        from: HostId,
        own: u64,
        token: Option<u64>,
        frame: &Frame<'_>,
    ) -> Vec<Vec<u8>> {
        let Some(client) = self.clients.get_mut(&from) else {
            return Vec::new();
        };
        let frames = match (frame.kind, token) {
            (CONNECT, Some(0)) => client.connect(frame, own, self.scene, &mut self.rng),
            (kind, Some(token)) if token == own && is_clients(kind) => {
                client.answer(frame, own, self.scene, &mut self.rng)
            }
            _ => Vec::new(),
        };
        let known = client.token;
        let datagram = |frame: Vec<u8>| {
            // RESETs of incarnations come under no token.
            let is_of_all = frame[0] == RESET && frame[1] != 0;
            [begin(if is_of_all { 0 } else { known }), frame].concat()
        };
        frames.into_iter().map(datagram).collect()
    }
}

/// Whether clients send frames of this kind in their sessions.
fn is_clients(kind: u8) -> bool {
    matches!(kind, 1 | 3 | 6 | 7 | 13 | 16 | 19 | 21)
}

impl Client {
    fn connect(&mut self, asks: &Frame<'_>, own: u64, scene: Scene, rng: &mut Rng) -> Vec<Vec<u8>> {
        let (Some(token), Some(session)) = (u64_at(asks.payload, 0), u32_at(asks.payload, 8))
        else {
            return Vec::new();
        };
        let Some(limits) = u32_at(asks.payload, LIMITS_AT) else {
            return Vec::new();
        };
        self.token = token;
        let kind = match rng.below(20) {
            0 => REFUSE,
            1 => CHALLENGE,
            2 => return vec![any_frame(rng, scene, ACCEPT, session, own)],
            _ => {
                let id = self.open(session);
                return vec![accept(session, id, own, limits, scene, rng)];
            }
        };
        vec![frame(kind, 0, session, 0, &payload(rng, scene, kind, own))]
    }

    /// The server's id of a session.
    fn open(&mut self, session: u32) -> u32 {
        let known = self.sessions.iter().position(|it| *it == session);
        let place = known.unwrap_or_else(|| {
            self.sessions.push(session);
            self.sessions.len() - 1
        });
        place as u32
    }

    fn answer(&self, asks: &Frame<'_>, own: u64, scene: Scene, rng: &mut Rng) -> Vec<Vec<u8>> {
        let Some(&session) = self.sessions.get(asks.session as usize) else {
            return Vec::new();
        };
        let (slot, number) = (asks.slot, asks.number);
        match (asks.kind, rng.below(16)) {
            (PING, 0..=12) => return vec![frame(PONG, 0, 0, number, &[])],
            (CLOSE, 0..=12) => return vec![frame(CLOSED, 0, number as u32, 0, &[])],
            (_, 0..=2) => return Vec::new(),
            (_, 3..=6) => {
                let body = vec![0x77; rng.log_range(0, 300) as usize];
                return vec![frame(RESPONSE, slot, session, number, &body)];
            }
            _ => {}
        }
        let answer = |rng: &mut Rng| {
            let kind = rng.pick(&[
                RESPONSE_FRAGMENT,
                RESPONSE_FRAGMENT,
                CREDIT_RETURN,
                CREDIT_RETURN,
                CREDIT,
                REJECT,
                RESPONSE,
                DRAIN,
                CLOSED,
                PONG,
                RESET,
            ]);
            let (slot, number) = match kind {
                // The reason is where others have the slot.
                RESET => (rng.below(4) as u8, own),
                DRAIN => (slot, own),
                CREDIT => (slot, rng.log_range(0, 100)),
                _ => (slot, number),
            };
            // A server's RESET names its own session.
            let named = if kind == RESET { asks.session } else { session };
            frame(kind, slot, named, number, &payload(rng, scene, kind, own))
        };
        (0..rng.log_range(1, 8)).map(|_| answer(rng)).collect()
    }
}

/// An ACCEPT that a client believes.
fn accept(session: u32, id: u32, own: u64, limits: u32, scene: Scene, rng: &mut Rng) -> Vec<u8> {
    let slots = rng.range(1, u64::from(limits as u16).max(1)) as u32;
    let credits = rng.range(1, u64::from(limits >> 16).max(1)) as u32;
    let max_message = rng.log_range(512, 1 << 21) as u32;
    let max_datagram = rng.range(512, scene.max_datagram as u64) as u32;
    let window = rng.log_range(1, 2_000) as u32;
    let words = [id, max_datagram, max_message, slots | credits << 16, window];
    let mut payload = own.to_le_bytes().to_vec();
    payload.extend(words.into_iter().flat_map(u32::to_le_bytes));
    frame(ACCEPT, 0, session, 0, &payload)
}
