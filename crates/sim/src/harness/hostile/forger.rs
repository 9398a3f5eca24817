//! A host off the path: its datagrams have the sources of others. It knows no token but those that it was given
//! itself, and guesses.

use std::net::{Ipv4Addr, SocketAddr};

use super::material::{Cookie, any_frame, connect, session};
use super::{Attack, AttackPlan, Scene};
use crate::fabric::HostId;
use crate::frames::{
    ACCEPT, CANCEL, CHALLENGE, CLOSE, CLOSED, CONNECT, CREDIT, CREDIT_ACK, CREDIT_RETURN, DRAIN,
    DRAIN_ACK, LEAST_TOKEN, PING, PONG, REFUSE, REJECT, REQUEST, REQUEST_FOR_RESPONSE,
    REQUEST_FRAGMENT, RESET, RESPONSE, RESPONSE_FRAGMENT, begin, frame,
};
use crate::rng::Rng;

/// CONNECTs of a flood for each time that the plan counts.
const FLOOD: u32 = 16;

pub(super) struct Forger<'a> {
    plan: &'a AttackPlan,
    scene: Scene,
    rng: Rng,
    /// One that it was given under its own address.
    cookie: Option<Cookie>,
}

impl<'a> Forger<'a> {
    pub(super) fn new(plan: &'a AttackPlan, scene: Scene, cookie: Option<Cookie>) -> Self {
        Self {
            plan,
            scene,
            rng: Rng::new(plan.seed),
            cookie,
        }
    }

    /// The datagrams of the attack, with their sources.
    pub(super) fn datagrams(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        let count = match self.plan.attack {
            Attack::Flood => self.plan.count * FLOOD,
            _ => self.plan.count,
        };
        (0..count).map(|_| self.datagram()).collect()
    }

    fn datagram(&mut self) -> (SocketAddr, Vec<u8>) {
        match self.plan.attack {
            Attack::Flood => (self.nobody(), self.connects()),
            Attack::ForgedConnects => (self.source(), self.connects()),
            Attack::ForgedRequests => {
                let kinds = &[
                    REQUEST,
                    REQUEST,
                    REQUEST_FRAGMENT,
                    REQUEST_FOR_RESPONSE,
                    CANCEL,
                    PING,
                    CREDIT_ACK,
                    DRAIN_ACK,
                ];
                (self.source(), self.frames(kinds))
            }
            Attack::ForgedEnds => {
                let kinds = &[CLOSE, CLOSE, CLOSED, RESET, RESET, REFUSE, REJECT, DRAIN];
                (self.source(), self.frames(kinds))
            }
            Attack::ForgedAnswers => {
                let kinds = &[
                    RESPONSE,
                    RESPONSE_FRAGMENT,
                    CREDIT_RETURN,
                    REJECT,
                    CHALLENGE,
                    ACCEPT,
                    PONG,
                    CREDIT,
                ];
                (self.source(), self.frames(kinds))
            }
            _ => (self.source(), self.malformed()),
        }
    }

    /// The address of an honest host, other than the one that receives the datagram, or of nobody.
    fn source(&mut self) -> SocketAddr {
        if self.rng.chance(250_000) {
            return self.nobody();
        }
        let hosts = u64::from(self.scene.hosts);
        let step = self.rng.range(1, hosts - 1);
        HostId(((u64::from(self.plan.on.0) + step) % hosts) as u32).address()
    }

    /// An address that no host has.
    fn nobody(&mut self) -> SocketAddr {
        let port = self.rng.range(1, 65_535) as u16;
        (Ipv4Addr::new(198, 51, 100, self.rng.below(256) as u8), port).into()
    }

    /// No token, or a guess.
    fn token(&mut self) -> u64 {
        match self.rng.below(4) {
            0 => self.rng.next_u64(),
            1 => self.rng.range(1, 3) * LEAST_TOKEN,
            _ => 0,
        }
    }

    fn connects(&mut self) -> Vec<u8> {
        let mut datagram = begin(0);
        for _ in 0..self.rng.log_range(1, 4) {
            let token = self.rng.next_u64();
            let cookie = self.cookie.filter(|_| self.rng.chance(500_000));
            let payload = connect(&mut self.rng, self.scene, token, cookie);
            datagram.extend(frame(CONNECT, 0, 0, 0, &payload));
        }
        datagram
    }

    /// A datagram of frames of these kinds, as many as fit.
    fn frames(&mut self, kinds: &[u8]) -> Vec<u8> {
        let token = self.token();
        let mut datagram = begin(token);
        for _ in 0..self.rng.log_range(1, 4) {
            let kind = self.rng.pick(kinds);
            let session = session(&mut self.rng);
            let named = self.token();
            let frame = any_frame(&mut self.rng, self.scene, kind, session, named);
            if datagram.len() + frame.len() > self.scene.max_datagram {
                break;
            }
            datagram.extend(frame);
        }
        datagram
    }

    fn malformed(&mut self) -> Vec<u8> {
        let kinds: Vec<u8> = (0..32).collect();
        let mut datagram = self.frames(&kinds);
        let len = datagram.len() as u64;
        match self.rng.below(5) {
            0 => datagram.truncate(self.rng.below(len + 1) as usize),
            // The first byte, the version, and the length of a payload.
            1 => datagram[self.rng.below(2) as usize] = self.rng.next_u64() as u8,
            2 if len > 12 => datagram[11] = self.rng.next_u64() as u8,
            3 => {
                let more = self.rng.range(1, 20) as usize;
                let most = self.scene.max_datagram;
                datagram.resize((datagram.len() + more).min(most), 0x5a);
            }
            _ => (datagram.iter_mut()).for_each(|byte| *byte = self.rng.next_u64() as u8),
        }
        datagram
    }
}
