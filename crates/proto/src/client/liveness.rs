//! Whether servers are alive: pings, and which peers to suspect after this endpoint itself was absent.

use super::Client;
use super::session::{ClientSession, State};
use crate::peer::Peer;
use crate::shared::Shared;
use crate::table::Table;
use crate::wire::{Header, Kind};
use crate::{FrameSink, PeerId, SessionError, SessionId};

impl Client {
    /// This endpoint was away for so long that its peers may have dropped it. Until a peer answers,
    /// a request to it could be lost, and whether it ran would be unknown: so requests wait. Only
    /// the answer to this very ping counts.
    pub(crate) fn suspect_silent_peers<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        sink: &mut S,
    ) {
        let keepalive = shared.config.keepalive_ns;
        // Peers suspected since an earlier absence stay suspected until they answer or end.
        for (id, peer) in shared.peers.iter_mut() {
            let silent = now.saturating_sub(peer.heard_at);
            if peer.client_sessions > 0 && !peer.token.is_none() && silent >= keepalive {
                peer.pinged_at = now;
                peer.unanswered += 1;
                peer.awaited_pong = now.max(1);
                self.push_ping(id, peer, sink);
                if !self.suspected.contains(&id) {
                    self.suspected.push(id);
                    self.has_rare_work = true;
                }
            }
        }
        for place in 0..self.sessions.places() {
            let Some(id) = self.sessions.id_at(place) else {
                continue;
            };
            let session = self.sessions.get_mut(id).expect("just named");
            if session.state == State::Open && self.suspected.contains(&session.peer) {
                session.suspected = true;
                session.ready = false;
            }
        }
    }

    /// This endpoint was away, so it could not hear that servers have its requests.
    #[cold]
    pub(crate) fn discount_absence(&mut self, now: u64, gap_ns: u64) {
        for place in 0..self.sessions.places() {
            let Some(id) = self.sessions.id_at(place) else {
                continue;
            };
            let session = self.sessions.get_mut(id).expect("just named");
            for slot in session.slots.iter_mut() {
                slot.discount_absence(now, gap_ns);
            }
        }
    }

    /// Sends the requests that wait for a peer that has answered. Requests to a peer that is gone
    /// ended with their session.
    #[cold]
    pub(super) fn resume_suspected<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        sink: &mut S,
    ) {
        let before = self.suspected.len();
        let silent = |id: &PeerId| {
            let peer = shared.peers.get(*id);
            peer.is_some_and(|peer| peer.client_sessions > 0 && peer.awaited_pong != 0)
        };
        self.suspected.retain(silent);
        if self.suspected.len() == before {
            return;
        }
        for place in 0..self.sessions.places() {
            let Some(id) = self.sessions.id_at(place) else {
                continue;
            };
            let session = self.sessions.get_mut(id).expect("just named");
            if session.suspected && !self.suspected.contains(&session.peer) {
                session.suspected = false;
                self.send_queued(shared, now, id, sink);
            }
        }
    }

    /// Pings silent peers, and ends the sessions with peers that answer no ping. Returns when the next one is due, if
    /// nothing is heard before.
    pub(crate) fn ping<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        sink: &mut S,
    ) -> u64 {
        let (keepalive, timeout) = (shared.config.keepalive_ns, shared.config.peer_timeout_ns);
        let mut dead = Vec::new();
        let mut next_at = u64::MAX;
        for (id, peer) in shared.peers.iter_mut() {
            // Connecting sessions have a limit of their own.
            if peer.client_sessions == 0 || peer.token.is_none() {
                continue;
            }
            if peer.unanswered >= 2 && now >= peer.heard_at.saturating_add(timeout) {
                dead.push(id);
                continue;
            }
            if now >= peer.ping_at(keepalive) {
                peer.pinged_at = now;
                peer.unanswered += 1;
                self.push_ping(id, peer, sink);
            }
            next_at = next_at.min(peer.ping_at(keepalive));
            if peer.unanswered >= 2 {
                next_at = next_at.min(peer.heard_at.saturating_add(timeout));
            }
        }
        for peer in dead {
            shared.stats.peers_failed += 1;
            self.fail_peer(shared, peer, SessionError::PeerSilent);
        }
        next_at
    }

    pub(super) fn push_ping<S: FrameSink>(&self, id: PeerId, peer: &mut Peer, sink: &mut S) {
        let session = Self::ping_on(&self.sessions, id, peer);
        let mut header = Header::control(Kind::Ping, session);
        header.number = if peer.awaited_pong != 0 {
            peer.awaited_pong
        } else {
            u64::from(peer.unanswered)
        };
        Shared::send_alone(sink, id, peer.token, header, &[]);
    }

    /// The server's number of the session that a ping names: the session opened last among those
    /// that the server must know. `entry` remembers it, because there may be many sessions.
    fn ping_on(sessions: &Table<ClientSession>, peer: PeerId, entry: &mut Peer) -> u32 {
        let preamble = entry.token.preamble();
        let is_known = |session: &&ClientSession| session.is_known_to(peer, preamble);
        let remembered = sessions.get(entry.newest).filter(is_known);
        let newest = remembered.or_else(|| {
            let known = sessions.iter().map(|(_, session)| session).filter(is_known);
            known.max_by_key(|session| session.opened_at)
        });
        entry.newest = newest.map_or(SessionId::NONE, |session| session.id);
        newest.map_or(0, |session| session.remote())
    }
}
