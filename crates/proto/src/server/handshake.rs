//! How sessions open at the server (connect, challenge, accept, refuse), and how a client closes one.

use super::Server;
use super::session::ServerSession;
use crate::holdings::{Holder, Holding};
use crate::msgbuf_pool::KEPT_BYTES;
use crate::origins::OriginId;
use crate::peer::Role;
use crate::shared::Shared;
use crate::sink::{datagram_width, push_rare};
use crate::slots::Slots;
use crate::table::Place;
use crate::wire::{
    Accept, Challenge, Connect, FRAGMENT_BYTES, Frame, HEADER_BYTES, Header, Kind, MIN_DATAGRAM,
    PREAMBLE_BYTES, Refuse, Reset, ResetReason, Token,
};
use crate::{Event, FrameSink, PeerId, Refusal, SessionId, SinkError, Source};

impl Server {
    /// A client wants a session. No state is kept before the cookie proves the address.
    pub(crate) fn handle_connect<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        source: Source,
        frame: Frame<'_>,
        sink: &mut S,
    ) {
        let parsed = Connect::parse(frame.payload);
        let Some((connect, token)) =
            parsed.and_then(|(connect, _)| Some((connect, Token::from_wire(connect.token)?)))
        else {
            shared.stats.frames_malformed += 1;
            return;
        };
        let cookie = (connect.cookie_time, connect.cookie_mac);
        let present = match source {
            Source::Peer(peer) => shared.peers.token(peer),
            Source::Unknown(_) => Token::NONE,
        };
        let session = connect.session;
        let proven = shared.config.reliable
            || shared
                .cookie_key
                .verify(now, source, present, token, session, cookie);
        if !proven {
            shared.stats.challenges += 1;
            let challenge = Challenge {
                cookie_time: now,
                cookie_mac: shared.cookie_key.mac(now, source, present, token, session),
            };
            let header = Header::control(Kind::Challenge, connect.session);
            let (to, body) = ((source, token.preamble()), challenge.to_bytes());
            shared.answer(now, to, header, &body, sink);
            return;
        }
        let peer = match source {
            Source::Peer(peer) => Some(peer),
            // It may be a peer already: several datagrams of one burst may come from an unknown
            // peer, and all of them still say so.
            Source::Unknown(address) => sink.accept_peer(address),
        };
        let incumbent = peer.map_or(Token::NONE, |peer| shared.peers.token(peer));
        if matches!(source, Source::Unknown(_)) && !incumbent.is_none() && incumbent != token {
            // The cookie proves nothing about the incarnation that is known: it may be a cookie of a
            // former one. An honest client asks again, as a peer.
            shared.stats.frames_stale += 1;
            return;
        }
        let admitted = self.find_or_admit(shared, now, peer, (&connect, token), sink);
        if let (Source::Unknown(_), Some(peer)) = (source, peer)
            && !shared.peers.is_referred_to(peer)
        {
            shared.events.push_back(Event::PeerReleased { peer });
        }
        match admitted {
            Ok(Some(id)) => {
                let accept = self.accept(shared, id, sink);
                self.send_accept(shared, id, accept, sink);
            }
            // The client asks again; a credit is free then.
            Ok(None) => {}
            Err(refusal) => {
                shared.stats.sessions_refused += 1;
                let (code, detail) = refusal.to_wire();
                let header = Header::control(Kind::Refuse, connect.session);
                let body = Refuse { code, detail }.to_bytes();
                let to = (source, token.preamble());
                shared.answer(now, to, header, &body, sink);
            }
        }
    }

    /// The session that the connect is about: an existing or a new one. `None`: not yet.
    fn find_or_admit<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        peer: Option<PeerId>,
        (connect, token): (&Connect, Token),
        sink: &mut S,
    ) -> Result<Option<SessionId>, Refusal> {
        let limit = shared.config.max_sessions as u32;
        let Some(peer) = peer else {
            // The device has no room: a peer goes when its last session has ended.
            let wants = Holder {
                origin: OriginId::NONE,
                peer: PeerId(u32::MAX),
            };
            // Once a turn, at whose end places get free.
            let may_evict = !self.draining && self.evicted_at != now;
            self.evicted_at = now;
            return match may_evict && self.make_session_room(shared, wants) {
                true => Ok(None),
                false => Err(Refusal::SessionLimit { limit }),
            };
        };
        let key = (peer, token, connect.session);
        if let Some(id) = self.by_client.get(&key) {
            return Ok(Some(*id));
        }
        let client = shared.peers.get(peer);
        let client = client.filter(|client| client.token == token);
        let most = shared.config.max_sessions_per_client;
        if client.is_some_and(|client| client.server_sessions as usize >= most) {
            let limit = most as u32;
            return Err(Refusal::ClientLimit { limit });
        }
        let wants = Holder {
            origin: shared.peers.origins.find(sink.origin(peer)),
            peer,
        };
        if !self.draining
            && !self.sessions.is_full()
            && self.first_grant(shared, 1).is_none()
            && self.make_room(shared, now, sink)
        {
            return Ok(None);
        }
        self.admit(shared, now, wants, (connect, token), sink)
            .map(Some)
    }

    /// Whether a session can be what the connect asks for; returns the bytes of its datagrams.
    fn check_connect<S: FrameSink>(
        &self,
        peer: PeerId,
        connect: &Connect,
        sink: &S,
    ) -> Result<usize, Refusal> {
        if self.draining {
            return Err(Refusal::ShuttingDown);
        }
        // A device that has removed the peer reports a width of zero.
        let width = datagram_width(sink, peer).min(connect.max_datagram as usize);
        if width < MIN_DATAGRAM {
            let bytes = width as u32;
            return Err(Refusal::NarrowPath { bytes });
        }
        if (connect.max_message as usize) < MIN_DATAGRAM
            || connect.slots == 0
            || connect.credits == 0
        {
            return Err(Refusal::Malformed);
        }
        Ok(width)
    }

    fn admit<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        wants: Holder,
        (connect, token): (&Connect, Token),
        sink: &mut S,
    ) -> Result<SessionId, Refusal> {
        let peer = wants.peer;
        let width = self.check_connect(peer, connect, sink)?;
        let former = shared.peers.token(peer);
        if !former.is_none() && former != token {
            // The client was restarted: the sessions of its former incarnation end.
            self.drop_peer(shared, peer);
        }
        if self.sessions.is_full() || self.first_grant(shared, 1).is_none() {
            self.make_session_room(shared, wants);
        }
        let limit = shared.config.max_sessions as u32;
        if self.sessions.is_full() {
            return Err(Refusal::SessionLimit { limit });
        }
        let wanted = connect.credits.min(shared.config.credits);
        let granted = self
            .first_grant(shared, wanted)
            .ok_or(Refusal::CreditLimit {
                limit: Self::credit_limit(shared) as u32,
            })?;
        let fragment = (width - (PREAMBLE_BYTES + HEADER_BYTES + FRAGMENT_BYTES)) as u32;
        let max_message = connect.max_message.min(shared.config.max_message);
        let slots = connect.slots.min(shared.config.slots);
        let place = self.opened;
        self.opened = place.wrapping_add(1);
        let id = self
            .sessions
            .insert(|handle| ServerSession {
                handle,
                peer,
                remote: connect.session,
                token,
                fragment,
                small_buffer: match shared.config.factors.preallocated_responses {
                    true => fragment.min(max_message).min(KEPT_BYTES as u32),
                    false => 0,
                },
                max_message,
                wanted,
                active_at: now,
                place,
                idle_checked_at: now,
                slots: Slots::new(slots),
                ..ServerSession::vacant()
            })
            .expect("the table is not full");
        shared.stats.places_reused += u64::from(id.is_reused());
        sink.limit_datagram(peer, width);
        let before = self.by_client.insert((peer, token, connect.session), id);
        assert_eq!(before, None, "a client's session was opened twice");
        let own = shared.own_token_for(peer, sink);
        let entry = shared.peers.retain(peer, Role::Server, now, own);
        entry.heard_at = now;
        if entry.become_incarnation(token) != token {
            sink.seal(peer);
        }
        shared.peers.set_origin(peer, sink.origin(peer));
        self.open_claims(shared, id);
        self.set_credits(shared, id, granted);
        let session = self.sessions.get_mut(id).expect("just opened");
        session.holding = shared.served.insert(Holding {
            holder: shared.peers.holder(peer),
            amount: 1,
            what: id,
        });
        shared.note_held();
        Ok(id)
    }

    pub(super) fn accept<S: FrameSink>(&self, shared: &Shared, id: SessionId, sink: &S) -> Accept {
        let session = self.sessions.get(id).expect("the caller has it");
        let max_datagram =
            session.fragment + (PREAMBLE_BYTES + HEADER_BYTES + FRAGMENT_BYTES) as u32;
        // Half of the queue for one session's fragments: large messages of two sessions fit.
        let window = (shared.config.rx_queue_bytes / 2 / max_datagram as usize).clamp(1, 1024);
        Accept {
            token: shared.own_token_for(session.peer, sink).to_wire(),
            session: id.to_wire(),
            max_datagram,
            max_message: shared.config.max_message,
            slots: session.slots.count() as u16,
            credits: session.granted,
            window: window as u32,
        }
    }

    pub(super) fn send_accept<S: FrameSink>(
        &self,
        shared: &mut Shared,
        id: SessionId,
        accept: Accept,
        sink: &mut S,
    ) {
        let session = self.sessions.get(id).expect("the caller has it");
        let body = accept.to_bytes();
        let head = Header::control(Kind::Accept, session.remote).to_bytes(body.len());
        // A client that does not receive it asks again.
        if sink
            .push(session.peer, &session.preamble(), &head, &body, &[])
            .is_err()
        {
            shared.stats.sink_full += 1;
        }
    }

    /// The client closes a session.
    pub(crate) fn handle_close<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        peer: PeerId,
        frame: Frame<'_>,
        sink: &mut S,
    ) {
        let id = SessionId::from_wire(frame.header.session);
        let remote = frame.header.number as u32;
        let known = self
            .sessions
            .get(id)
            .is_some_and(|session| session.peer == peer && session.remote == remote);
        let token = shared.peers.token(peer);
        if known {
            self.drop_session(shared, id);
        }
        if !token.is_none() {
            let header = Header::control(Kind::Closed, remote);
            let to = (Source::Peer(peer), token.preamble());
            shared.answer(now, to, header, &[], sink);
        }
    }

    /// Tells all clients that this endpoint is shut down, as far as the device has room. Returns
    /// whether all were told. A client that does not receive it notices the silence.
    pub(crate) fn announce_shutdown<S: FrameSink>(
        &mut self,
        shared: &Shared,
        sink: &mut S,
    ) -> bool {
        for (peer, _) in shared.peers.served_from(PeerId(self.announced_to)) {
            if announce_shutdown_to(shared, peer, sink) == Err(SinkError::Full) {
                return false;
            }
            self.announced_to = peer.0 + 1;
        }
        true
    }

    /// Tells one client that all its sessions here are over. One that does not hear it learns it when it uses a
    /// session again.
    pub(crate) fn announce_end<S: FrameSink>(&self, shared: &Shared, peer: PeerId, sink: &mut S) {
        let _ = announce_shutdown_to(shared, peer, sink);
    }

    /// Answers a frame for an unknown session.
    #[cold]
    pub(super) fn reset<S: FrameSink>(
        &self,
        shared: &mut Shared,
        now: u64,
        peer: PeerId,
        frame: &Frame<'_>,
        sink: &mut S,
    ) {
        shared.stats.frames_stale += 1;
        let reset = Reset {
            token: shared.own_token_for(peer, sink),
            reason: ResetReason::UnknownSession,
        };
        let header = reset.to_header(frame.header.session);
        let token = shared.peers.token(peer);
        let to = (Source::Peer(peer), token.preamble());
        if !token.is_none() {
            shared.answer(now, to, header, &[], sink);
        } else {
            shared.send_reset_once(now, peer, reset, frame.header.session, sink);
        }
    }
}

/// Tells a client that all its sessions here are over.
fn announce_shutdown_to<S: FrameSink>(
    shared: &Shared,
    peer: PeerId,
    sink: &mut S,
) -> Result<(), SinkError> {
    let reset = Reset {
        token: shared.own_token_for(peer, sink),
        reason: ResetReason::ShutDown,
    };
    let head = reset.to_header(0).to_bytes(0);
    sink.seal(peer);
    push_rare(sink, peer, &Token::NONE.preamble(), &head, &[], &[])?;
    sink.seal(peer);
    Ok(())
}
