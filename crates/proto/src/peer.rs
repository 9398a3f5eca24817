//! Peers: the incarnation of each, and whether it is alive.
//!
//! Liveness belongs to peers, not to sessions: a silent peer with ten thousand sessions is pinged
//! once. Clients ping; any frame from the peer's current incarnation is an answer. A server receives
//! its clients' pings, and drops a client that is silent for longer than the client itself would
//! tolerate.

use std::collections::VecDeque;

use crate::holdings::Holder;
use crate::origins::{Origin, OriginId, Origins};
use crate::wire::{PREAMBLE_BYTES, Token, TokenKey};
use crate::{Event, PeerId, SessionId};

/// In one cache line, which each datagram writes.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct Peer {
    /// Its incarnation; [`Token::NONE`] until known.
    pub(crate) token: Token,
    /// How its datagrams for this incarnation of this endpoint begin. [`Peers::vacant_preamble`] while no session
    /// refers to the peer.
    own_preamble: [u8; PREAMBLE_BYTES],
    pub(crate) heard_at: u64,
    pub(crate) pinged_at: u64,
    /// Pings since it was last heard.
    pub(crate) unanswered: u32,
    /// The number of the pong that ends a suspicion. While it is not zero, the peer is suspected to
    /// have dropped this endpoint. Any other frame may have been on its way for long.
    pub(crate) awaited_pong: u64,
    /// The client session that was opened last, as far as it is known.
    pub(crate) newest: SessionId,
    pub(crate) client_sessions: u32,
    pub(crate) server_sessions: u32,
    /// Where it is, while it has server sessions.
    pub(crate) origin: OriginId,
    /// As a server: it has said that it shuts down.
    pub(crate) is_draining: bool,
    /// As a client of this endpoint: it is told to make no new requests.
    pub(crate) must_leave: bool,
    /// As a client of this endpoint, which shuts down: it has said that it makes no new requests.
    pub(crate) has_left: bool,
}

#[derive(Debug)]
pub(crate) struct Peers {
    list: Vec<Peer>,
    /// What peers without sessions have: no sender can know it, so none of their datagrams begins so.
    vacant_preamble: [u8; PREAMBLE_BYTES],
    pub(crate) origins: Origins,
}

/// Which of a peer's counters a session counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

impl Peers {
    pub(crate) fn new(token_key: &TokenKey) -> Self {
        Self {
            list: Vec::new(),
            vacant_preamble: token_key.for_nobody().preamble(),
            origins: Origins::default(),
        }
    }

    pub(crate) fn get(&self, peer: PeerId) -> Option<&Peer> {
        self.list.get(peer.0 as usize)
    }

    pub(crate) fn get_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        self.list.get_mut(peer.0 as usize)
    }

    /// One more than the highest id of a peer that sessions have referred to.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether a session of either kind refers to the peer.
    pub(crate) fn is_referred_to(&self, peer: PeerId) -> bool {
        self.get(peer)
            .is_some_and(|peer| peer.client_sessions + peer.server_sessions > 0)
    }

    /// A session begins to refer to the peer, for which this endpoint's token is `own`.
    pub(crate) fn retain(&mut self, peer: PeerId, role: Role, now: u64, own: Token) -> &mut Peer {
        let index = peer.0 as usize;
        if index >= self.list.len() {
            let nobody = Peer {
                token: Token::NONE,
                own_preamble: self.vacant_preamble,
                heard_at: now,
                pinged_at: now,
                unanswered: 0,
                awaited_pong: 0,
                newest: SessionId::NONE,
                client_sessions: 0,
                server_sessions: 0,
                origin: OriginId::NONE,
                is_draining: false,
                must_leave: false,
                has_left: false,
            };
            self.list.resize(index + 1, nobody);
        }
        let peer = &mut self.list[index];
        if peer.client_sessions + peer.server_sessions == 0 {
            peer.token = Token::NONE;
            peer.own_preamble = own.preamble();
            peer.heard_at = now;
            peer.pinged_at = now;
            peer.unanswered = 0;
            peer.awaited_pong = 0;
            peer.is_draining = false;
            peer.must_leave = false;
            peer.has_left = false;
        }
        match role {
            Role::Client => peer.client_sessions += 1,
            Role::Server => peer.server_sessions += 1,
        }
        peer
    }

    /// The origin of a peer that has a server session from now on.
    pub(crate) fn set_origin(&mut self, peer: PeerId, origin: Origin) {
        let entry = &mut self.list[peer.0 as usize];
        if entry.origin == OriginId::NONE {
            entry.origin = self.origins.retain(origin);
        }
    }

    /// The incarnation of the peer; [`Token::NONE`] if none is known.
    pub(crate) fn token(&self, peer: PeerId) -> Token {
        self.get(peer).map_or(Token::NONE, |peer| peer.token)
    }

    /// A peer as one that holds something.
    pub(crate) fn holder(&self, peer: PeerId) -> Holder {
        let origin = self.get(peer).map_or(OriginId::NONE, |peer| peer.origin);
        Holder { origin, peer }
    }

    /// A session does not refer to the peer any more.
    pub(crate) fn release(&mut self, peer: PeerId, role: Role, events: &mut VecDeque<Event>) {
        let entry = &mut self.list[peer.0 as usize];
        match role {
            Role::Client => entry.client_sessions -= 1,
            Role::Server => entry.server_sessions -= 1,
        }
        if entry.server_sessions == 0 && entry.origin != OriginId::NONE {
            self.origins.release(entry.origin);
            entry.origin = OriginId::NONE;
        }
        if entry.client_sessions + entry.server_sessions == 0 {
            entry.token = Token::NONE;
            entry.own_preamble = self.vacant_preamble;
            events.push_back(Event::PeerReleased { peer });
        }
    }

    /// Whether a datagram that begins like this is from the peer's current incarnation for this one. If it is, the
    /// peer was heard.
    #[inline]
    pub(crate) fn hears(&mut self, peer: PeerId, begin: &[u8; PREAMBLE_BYTES], now: u64) -> bool {
        let Some(peer) = self.list.get_mut(peer.0 as usize) else {
            return false;
        };
        let hears = peer.own_preamble == *begin;
        if hears {
            peer.record_heard(now);
        }
        hears
    }

    /// A datagram arrived from the peer's current incarnation.
    #[inline]
    pub(crate) fn record_heard(&mut self, peer: PeerId, now: u64) {
        if let Some(peer) = self.list.get_mut(peer.0 as usize) {
            peer.record_heard(now);
        }
    }

    /// For how long nothing has been heard of a peer.
    pub(crate) fn silent_ns(&self, peer: PeerId, now: u64) -> u64 {
        let peer = self.list.get(peer.0 as usize);
        peer.map_or(u64::MAX, |peer| now.saturating_sub(peer.heard_at))
    }

    /// This endpoint itself was away for `gap_ns`: silence in that time does not count.
    pub(crate) fn discount_absence(&mut self, gap_ns: u64) {
        for peer in &mut self.list {
            peer.heard_at += gap_ns;
        }
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (PeerId, &mut Peer)> {
        self.list
            .iter_mut()
            .enumerate()
            .filter(|(_, peer)| peer.client_sessions + peer.server_sessions > 0)
            .map(|(index, peer)| (PeerId(index as u32), peer))
    }

    /// The peers from `first` on that have sessions with this endpoint's server.
    pub(crate) fn served_from(&self, first: PeerId) -> impl Iterator<Item = (PeerId, &Peer)> {
        let peers = (first.0..).zip(self.list.iter().skip(first.0 as usize));
        peers
            .filter(|(_, peer)| peer.server_sessions > 0)
            .map(|(index, peer)| (PeerId(index), peer))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list
            .iter()
            .all(|peer| peer.client_sessions + peer.server_sessions == 0)
    }
}

/// Peers that are silent are pinged at points of a grid, of so many for the time after which they are: those at about
/// the same time by one wake-up. Clocks of one host may have the same grid.
const PING_STEPS: u64 = 8;

impl Peer {
    #[inline]
    fn record_heard(&mut self, now: u64) {
        self.heard_at = now;
        self.unanswered = 0;
    }

    /// When it is pinged next, if nothing is heard of it before.
    pub(crate) fn ping_at(&self, keepalive_ns: u64) -> u64 {
        // An unanswered ping may have been lost. Faster pings from then on tell a bad network from a dead peer.
        let pause_ns = match self.unanswered == 0 && self.awaited_pong == 0 {
            true => keepalive_ns,
            false => keepalive_ns / 4,
        };
        let silent_at = match self.awaited_pong {
            0 => self.heard_at.saturating_add(keepalive_ns),
            _ => 0,
        };
        let at_ns = silent_at.max(self.pinged_at.saturating_add(pause_ns));
        match self.unanswered == 0 {
            true => at_ns - at_ns % (keepalive_ns / PING_STEPS).max(1),
            false => at_ns,
        }
    }

    /// The preamble of its datagrams for this endpoint, if a session refers to it.
    pub(crate) fn own_preamble(&self) -> Option<[u8; PREAMBLE_BYTES]> {
        let is_referred_to = self.client_sessions + self.server_sessions > 0;
        is_referred_to.then_some(self.own_preamble)
    }

    /// The peer is incarnation `token` from now on; returns the former incarnation.
    pub(crate) fn become_incarnation(&mut self, token: Token) -> Token {
        if self.token != token {
            self.is_draining = false;
            self.must_leave = false;
            self.has_left = false;
        }
        std::mem::replace(&mut self.token, token)
    }
}
