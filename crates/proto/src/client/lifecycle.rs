//! The client side: opening, closing and losing sessions.

use super::Client;
use super::session::{ClientSession, Queued, State};
use crate::shared::Shared;
use crate::sink::datagram_width;
use crate::wire::{
    Accept, Challenge, Frame, Header, Kind, MIN_DATAGRAM, PREAMBLE_BYTES, Refuse, Reset,
    ResetReason, Token,
};
use crate::{Config, Event, FrameSink, PeerId, Refusal, SessionError, SessionId, Source};

/// Session places that resets may have searched in one turn: some 100 us of work.
const SEARCHED: usize = 1 << 14;

impl Client {
    fn find_connecting(&self, peer: PeerId, frame: &Frame<'_>) -> Option<SessionId> {
        let id = SessionId::from_wire(frame.header.session);
        let session = self.sessions.get(id)?;
        (session.peer == peer && session.state == State::Connecting).then_some(id)
    }

    /// The server wants proof of this endpoint's address: the connect is sent again with the cookie.
    pub(crate) fn handle_challenge(&mut self, shared: &mut Shared, peer: PeerId, frame: Frame<'_>) {
        let found = self
            .find_connecting(peer, &frame)
            .zip(Challenge::parse(frame.payload));
        let Some((id, (challenge, _))) = found else {
            shared.stats.frames_stale += 1;
            return;
        };
        let session = self.sessions.get_mut(id).expect("just found");
        let cookie = (challenge.cookie_time, challenge.cookie_mac);
        // A duplicate of the same challenge must not cause another connect.
        if session.cookie != cookie {
            session.cookie = cookie;
            self.connecting.push_back(id);
        }
    }

    pub(crate) fn handle_accept<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        peer: PeerId,
        frame: Frame<'_>,
        sink: &mut S,
    ) {
        let Some((accept, _)) = Accept::parse(frame.payload) else {
            shared.stats.frames_malformed += 1;
            return;
        };
        let Some(id) = self.find_connecting(peer, &frame) else {
            let id = SessionId::from_wire(frame.header.session);
            if self.sessions.get(id).is_none()
                && let Some(token) = Token::from_wire(accept.token)
            {
                // The server opened it after this side gave up: the server must drop it.
                let header = Header {
                    kind: Kind::Close,
                    flags: 0,
                    slot: 0,
                    session: accept.session,
                    number: u64::from(frame.header.session),
                };
                let to = (Source::Peer(peer), token.preamble());
                shared.answer(now, to, header, &[], sink);
            }
            shared.stats.frames_stale += 1;
            return;
        };
        let width = datagram_width(sink, peer) as u32;
        let token = Token::from_wire(accept.token);
        let Some(token) = token.filter(|_| is_sound(&accept, width, &shared.config)) else {
            shared.stats.frames_malformed += 1;
            return;
        };
        if !self.learn_token(shared, now, peer, token, sink) {
            shared.stats.frames_stale += 1;
            return;
        }
        let session = self.sessions.get_mut(id).expect("just found");
        sink.limit_datagram(peer, accept.max_datagram as usize);
        session.open(now, &accept, token, &shared.config);
        if self.suspected.contains(&peer) {
            // This accept may be older than the absence for which the peer is suspected.
            session.suspected = true;
            session.ready = false;
        }
        let mut is_draining = false;
        if let Some(entry) = shared.peers.get_mut(peer) {
            entry.newest = id;
            is_draining = entry.is_draining;
        }
        if !session.is_member() {
            shared.events.push_back(Event::Connected { session: id });
        }
        if is_draining {
            // This accept has overtaken, or was overtaken by, the word that the server shuts down.
            session.begin_draining(shared);
        }
        if session.is_member() {
            return self.handle_member_open(shared, now, id, sink);
        }
        self.fail_too_large(shared, id);
        self.send_queued(shared, now, id, sink);
        let session = self.sessions.get_mut(id).expect("just found");
        if !session.queue.is_empty() && shared.config.group_sessions > 1 {
            self.groups.watch(now, session);
        }
    }

    /// Ends the queued requests that are too large for the server: its limit was not known before.
    fn fail_too_large(&mut self, shared: &mut Shared, id: SessionId) {
        let session = self.sessions.get_mut(id).expect("the caller has it");
        let max = session.max_message as usize;
        let too_large = |q: &Queued| q.prefix.body_len(q.message.len()) > max;
        while let Some(at) = session.queue.iter().position(too_large) {
            let queued = session.queue.remove(at).expect("its position was found");
            shared.events.push_back(Event::RequestFailed {
                session: id,
                number: queued.number,
                tag: queued.tag,
                request: queued.message,
                error: crate::Rejection::TooLarge.into(),
                may_have_run: false,
            });
        }
    }

    /// An accept says that the peer is incarnation `token`. Returns whether that is believed. If
    /// another incarnation is known, this accept may be a late one of an earlier incarnation. Then
    /// the known incarnation is pinged. The present one answers with a pong or with a reset; after
    /// a reset the connect is sent again.
    fn learn_token<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        peer: PeerId,
        token: Token,
        sink: &mut S,
    ) -> bool {
        let entry = shared
            .peers
            .get_mut(peer)
            .expect("a session refers to the peer");
        if !entry.token.is_none() && entry.token != token {
            entry.pinged_at = now;
            self.push_ping(peer, entry, sink);
            return false;
        }
        if entry.become_incarnation(token) != token {
            sink.seal(peer);
        }
        entry.heard_at = now;
        entry.unanswered = 0;
        true
    }

    pub(crate) fn handle_refuse(&mut self, shared: &mut Shared, peer: PeerId, frame: Frame<'_>) {
        let found = self
            .find_connecting(peer, &frame)
            .zip(Refuse::parse(frame.payload));
        let Some((id, (refuse, _))) = found else {
            shared.stats.frames_stale += 1;
            return;
        };
        let refusal = Refusal::from_wire(refuse.code, refuse.detail);
        self.note_refusal(id);
        self.fail_session(shared, id, refusal.into());
    }

    /// The peer does not know one of this endpoint's sessions, or any of them. If the peer was
    /// restarted, returns the token of its former incarnation.
    pub(crate) fn handle_reset(
        &mut self,
        shared: &mut Shared,
        now: u64,
        peer: PeerId,
        frame: Frame<'_>,
    ) -> Option<Token> {
        // Resets can be forged by anyone who can forge the peer's address, so their cost has a
        // bound. A peer repeats a reset that is dropped here.
        if !self.may_search(now) {
            shared.stats.frames_stale += 1;
            return None;
        }
        shared.stats.resets_searched += 1;
        let Some(reset) = Reset::from_header(&frame.header) else {
            shared.stats.frames_malformed += 1;
            return None;
        };
        // Only a receiver of this endpoint's datagrams knows the token that they carry. Each session
        // has its own token: a restarted peer may have opened sessions to this endpoint, and be
        // known by its new token, while this endpoint's sessions are with its former incarnation.
        let named = reset.token.preamble();
        let error = match reset.reason {
            ResetReason::UnknownSession | ResetReason::UnknownPeer => SessionError::PeerDropped,
            ResetReason::Restarted => SessionError::PeerRestarted,
            ResetReason::ShutDown => SessionError::PeerLeft,
        };
        // The peer had forgotten this endpoint when the datagram arrived that the reset answers.
        // That datagram was on the session that the reset names. Sessions opened since are valid.
        let until = match reset.reason {
            ResetReason::UnknownSession => None,
            ResetReason::UnknownPeer => match self.named(peer, named, frame.header.session) {
                Some(session) => Some(session.opened_at),
                None => {
                    shared.stats.frames_stale += 1;
                    return None;
                }
            },
            ResetReason::Restarted | ResetReason::ShutDown => Some(u64::MAX),
        };
        if let Some(entry) = shared.peers.get_mut(peer)
            && reset.reason.ends_incarnation()
            && entry.token == reset.token
        {
            entry.token = Token::NONE;
            entry.is_draining = false;
        }
        let mut known = false;
        for place in 0..self.sessions.places() {
            let Some(id) = self.sessions.id_at(place) else {
                continue;
            };
            let session = self.sessions.get(id).expect("just named");
            let meant = session.is_known_to(peer, named)
                && match until {
                    None => session.remote() == frame.header.session,
                    Some(until) => session.opened_at <= until,
                };
            if meant {
                known = true;
                *match reset.reason {
                    ResetReason::UnknownSession => &mut shared.stats.sessions_unknown,
                    ResetReason::UnknownPeer => &mut shared.stats.sessions_forgotten,
                    ResetReason::Restarted => &mut shared.stats.sessions_restarted,
                    ResetReason::ShutDown => &mut shared.stats.sessions_shut_down,
                } += 1;
                self.fail_session(shared, id, error);
            }
        }
        if !known {
            shared.stats.frames_stale += 1;
        }
        reset.reason.ends_incarnation().then_some(reset.token)
    }

    /// The session with `peer` that has the number `remote` at the server.
    fn named(
        &self,
        peer: PeerId,
        preamble: [u8; PREAMBLE_BYTES],
        remote: u32,
    ) -> Option<&ClientSession> {
        let known = |session: &ClientSession| {
            session.remote() == remote && session.is_known_to(peer, preamble)
        };
        let mut sessions = self.sessions.iter().map(|(_, session)| session);
        sessions.find(|session| known(session))
    }

    /// Whether all sessions may be searched once more in this turn.
    fn may_search(&mut self, now: u64) -> bool {
        if self.searched.0 != now {
            self.searched = (now, 0);
        }
        let may = self.searched.1 < SEARCHED;
        self.searched.1 += 1 + self.sessions.places();
        may
    }

    /// Ends the sessions with a peer that were open.
    pub(crate) fn fail_open(&mut self, shared: &mut Shared, peer: PeerId, error: SessionError) {
        for place in 0..self.sessions.places() {
            let Some(id) = self.sessions.id_at(place) else {
                continue;
            };
            let session = self.sessions.get(id).expect("just named");
            if session.peer == peer && session.state != State::Connecting {
                self.fail_session(shared, id, error);
            }
        }
    }

    /// Ends all sessions with a peer.
    pub(crate) fn fail_peer(&mut self, shared: &mut Shared, peer: PeerId, error: SessionError) {
        for place in 0..self.sessions.places() {
            let Some(id) = self.sessions.id_at(place) else {
                continue;
            };
            if self.sessions.get(id).expect("just named").peer == peer {
                self.fail_session(shared, id, error);
            }
        }
    }

    /// The network suspects that nothing listens there. Sessions that are still connecting end at
    /// once; the peer of an open session is pinged first.
    pub(crate) fn fail_connecting(&mut self, shared: &mut Shared, peer: PeerId) {
        for place in 0..self.sessions.places() {
            let Some(id) = self.sessions.id_at(place) else {
                continue;
            };
            let session = self.sessions.get(id).expect("just named");
            if session.peer == peer && session.state == State::Connecting {
                self.fail_session(shared, id, SessionError::Unreachable);
            }
        }
    }

    pub(crate) fn close<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: SessionId,
        sink: &mut S,
    ) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        match session.state {
            State::Closing => {}
            State::Connecting => self.fail_session(shared, id, SessionError::Closed),
            State::Open => self.end(shared, now, id, SessionError::Closed, sink),
        }
    }

    /// Ends an open session on this side, and sends the close until the server confirms it.
    pub(super) fn end<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: SessionId,
        error: SessionError,
        sink: &mut S,
    ) {
        self.fail_requests(shared, id, error);
        self.disband(shared, id, error);
        let session = self.sessions.get_mut(id).expect("the caller has it");
        if session.is_member() {
            self.groups.leave(session);
        } else {
            let ended = Event::SessionEnded { session: id, error };
            shared.events.push_back(ended);
        }
        session.state = State::Closing;
        session.ready = false;
        session.began_at = now;
        session.control_sent_at = now;
        session.retries = 0;
        session.push_close(sink);
        if !session.timer_armed {
            super::arm(&mut self.timers, session, now, shared);
        }
    }

    /// The server confirms that it has dropped the session.
    pub(crate) fn handle_closed(&mut self, shared: &mut Shared, peer: PeerId, frame: Frame<'_>) {
        let id = SessionId::from_wire(frame.header.session);
        let closing = self
            .sessions
            .get(id)
            .is_some_and(|session| session.peer == peer && session.state == State::Closing);
        if closing {
            self.fail_session(shared, id, SessionError::Closed);
        } else {
            shared.stats.frames_stale += 1;
        }
    }
}

/// Whether a server grants no more than this side asked for, and what a session needs.
fn is_sound(accept: &Accept, width: u32, asked: &Config) -> bool {
    (MIN_DATAGRAM as u32..=width).contains(&accept.max_datagram)
        && (1..=asked.slots).contains(&accept.slots)
        && (1..=asked.credits).contains(&accept.credits)
        && accept.max_message as usize >= MIN_DATAGRAM
        && accept.window >= 1
}
