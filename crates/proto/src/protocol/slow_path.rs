//! The slow path: every frame that is not a request or a response of one packet, which lies in the receive buffer.

use super::{Frames, Protocol};
use crate::incoming::{Body, Incoming};
use crate::shared::Shared;
use crate::tail::FragmentData;
use crate::wire::{
    Frame, Header, Kind, Reset, ResetReason, Token, split_frame, split_frame_with_tail,
};
use crate::{FrameSink, PeerId, SessionError, Source, Tail};

impl Protocol {
    /// Handles the next frame, if [`Protocol::upcoming`] says that it is for this method.
    #[cold]
    pub fn handle_other<'a, S: FrameSink>(
        &mut self,
        now: u64,
        frames: &mut Frames<'a>,
        sink: &mut S,
    ) -> Option<Incoming<'a>> {
        self.shared.ask_flush();
        let Ok((frame, rest)) = split_frame(frames.rest) else {
            self.end_malformed(frames);
            return None;
        };
        frames.rest = rest;
        let tokenless = frames.peer.is_none();
        let source = match frames.peer {
            Some(peer) => Source::Peer(peer),
            None => (self.shared.other_sender).expect("set with the frames"),
        };
        if tokenless && frame.header.kind == Kind::Reset {
            // A reset is alone in its datagram: a forger who guesses tokens has one guess in each.
            frames.rest = &[];
        }
        let kind = frame.header.kind;
        if kind == Kind::Connect {
            self.handle_connect(now, source, frame, sink);
            return None;
        }
        let Source::Peer(peer) = source else {
            self.shared.stats.frames_stale += 1;
            return None;
        };
        if kind == Kind::Reset {
            let former = self.client.handle_reset(&mut self.shared, now, peer, frame);
            if let Some(former) = former {
                self.server.drop_incarnation(&mut self.shared, peer, former);
            }
            return None;
        }
        if tokenless {
            self.shared.stats.frames_stale += 1;
            return None;
        }
        self.handle_frame_of_peer(now, peer, frame, sink)
    }

    /// Handles the only frame of a datagram whose end is in memory of its sender's, by
    /// [`may_leave_tail`](crate::may_leave_tail). The frame's data are copied from there to where they belong.
    #[inline(never)]
    pub fn handle_tailed<'a, S: FrameSink>(
        &mut self,
        now: u64,
        frames: Frames<'a>,
        tail: &dyn Tail,
        sink: &mut S,
    ) -> Option<Incoming<'a>> {
        self.shared.ask_flush();
        let frame = split_frame_with_tail(frames.rest, tail.bytes());
        let (Some(frame), Some(peer)) = (frame, frames.peer) else {
            self.shared.stats.frames_malformed += 1;
            return None;
        };
        match frame.header.kind {
            Kind::RequestFragment => {
                let Self { shared, server, .. } = self;
                server.handle_request_fragment(shared, now, peer, frame, Some(tail), sink)
            }
            Kind::ResponseFragment => {
                self.handle_response_fragment(now, peer, frame, Some(tail), sink)
            }
            _ => self.handle_tailed_message(now, peer, frame, tail, sink),
        }
    }

    /// A message of one packet. It is put together where it can stay, so that nobody has to copy it again.
    fn handle_tailed_message<'a, S: FrameSink>(
        &mut self,
        now: u64,
        peer: PeerId,
        frame: Frame<'a>,
        tail: &dyn Tail,
        sink: &mut S,
    ) -> Option<Incoming<'a>> {
        let (head, tail) = (frame.payload, Some(tail));
        let data = FragmentData { head, tail };
        // First, because what the sender has taken back has not arrived.
        let mut message = self.shared.pool.take_large(data.len());
        let is_whole = data.append_to(message.head_mut());
        let mut incoming = match frame.header.kind {
            _ if !is_whole => None,
            Kind::Request => {
                let Self { shared, server, .. } = self;
                server.handle_request_slow_path(shared, now, peer, frame, sink)
            }
            _ => {
                let answered = self.handle_response(now, peer, frame, sink);
                answered.map(|(session, tag)| Incoming::Response {
                    session,
                    number: frame.header.number,
                    tag,
                    ext: frame.ext(),
                    body: Body::Borrowed(head),
                })
            }
        };
        let unused = match &mut incoming {
            Some(Incoming::Request { body, .. } | Incoming::Response { body, .. }) => {
                std::mem::replace(body, Body::Owned(message))
            }
            _ => Body::Owned(message),
        };
        if let Body::Owned(unused) = unused {
            self.recycle(unused);
        }
        incoming
    }

    fn handle_response_fragment<'a, S: FrameSink>(
        &mut self,
        now: u64,
        peer: PeerId,
        frame: Frame<'a>,
        tail: Option<&dyn Tail>,
        sink: &mut S,
    ) -> Option<Incoming<'a>> {
        let Self {
            shared,
            client,
            server,
            ..
        } = self;
        if let Some(total) = client.begins_response(shared, peer, &frame) {
            server.make_reassembly_room(shared, now, None, total, sink);
        }
        client.handle_response_fragment(shared, now, peer, frame, tail, sink)
    }

    /// Handles a connect. A peer has one incarnation at a time, for the sessions of both roles: they
    /// share its datagrams, and a datagram is for one incarnation. So a connect of a new incarnation
    /// also ends the sessions that this endpoint has open as a client.
    fn handle_connect<S: FrameSink>(
        &mut self,
        now: u64,
        source: Source,
        frame: Frame<'_>,
        sink: &mut S,
    ) {
        let token_of = |shared: &Shared| match source {
            Source::Peer(peer) => shared.peers.token(peer),
            Source::Unknown(_) => Token::NONE,
        };
        let shared = &mut self.shared;
        let before = token_of(shared);
        self.server.handle_connect(shared, now, source, frame, sink);
        shared.is_crowded |= self.server.sessions.is_crowded();
        if let Source::Peer(peer) = source
            && !before.is_none()
            && before != token_of(shared)
        {
            let error = SessionError::PeerRestarted;
            self.client.fail_open(shared, peer, error);
        }
    }

    fn handle_frame_of_peer<'a, S: FrameSink>(
        &mut self,
        now: u64,
        peer: PeerId,
        frame: Frame<'a>,
        sink: &mut S,
    ) -> Option<Incoming<'a>> {
        let Self {
            shared,
            client,
            server,
            ..
        } = self;
        match frame.header.kind {
            Kind::Request => {
                return server.handle_request_slow_path(shared, now, peer, frame, sink);
            }
            Kind::RequestFragment => {
                return server.handle_request_fragment(shared, now, peer, frame, None, sink);
            }
            Kind::ResponseFragment => {
                return self.handle_response_fragment(now, peer, frame, None, sink);
            }
            Kind::Cancel => {
                server.claim(shared, now, peer, &frame);
                return server.handle_cancel(shared, now, peer, frame, sink);
            }
            Kind::CreditReturn => client.handle_credit_return(shared, now, peer, frame, sink),
            Kind::RequestForResponse => {
                server.handle_request_for_response(shared, now, peer, frame, sink);
            }
            Kind::Reject => client.handle_reject(shared, now, peer, frame, sink),
            Kind::Challenge => client.handle_challenge(shared, peer, frame),
            Kind::Accept => client.handle_accept(shared, now, peer, frame, sink),
            Kind::Refuse => client.handle_refuse(shared, peer, frame),
            Kind::Close => server.handle_close(shared, now, peer, frame, sink),
            Kind::Closed => client.handle_closed(shared, peer, frame),
            Kind::Credit => client.handle_credit(shared, now, peer, frame, sink),
            Kind::CreditAck => server.handle_credit_ack(shared, peer, frame),
            Kind::Drain => client.handle_drain(shared, peer, frame),
            Kind::DrainAck => server.handle_drain_ack(shared, peer, frame),
            Kind::Ping => {
                shared.note_keepalive(now);
                answer_ping(shared, now, peer, &frame, sink);
            }
            // The arrival of a pong says that the peer lives. Its number matters only to a peer
            // under suspicion.
            Kind::Pong => {
                shared.note_keepalive(now);
                if let Some(entry) = shared.peers.get_mut(peer)
                    && entry.awaited_pong == frame.header.number
                {
                    entry.awaited_pong = 0;
                }
            }
            Kind::Response | Kind::Connect | Kind::Reset => {
                unreachable!("handled before")
            }
        }
        None
    }
}

/// A peer that this endpoint knows gets a pong, any other the word that it is unknown.
fn answer_ping<S: FrameSink>(
    shared: &mut Shared,
    now: u64,
    peer: PeerId,
    frame: &Frame<'_>,
    sink: &mut S,
) {
    let token = shared.peers.token(peer);
    if token.is_none() {
        // The device still has a place for the peer; this protocol knows nothing of it.
        let reset = Reset {
            token: shared.own_token_for(peer, sink),
            reason: ResetReason::UnknownPeer,
        };
        shared.send_reset_once(now, peer, reset, frame.header.session, sink);
        return;
    }
    let header = Header {
        number: frame.header.number,
        ..Header::control(Kind::Pong, 0)
    };
    shared.answer(
        now,
        (Source::Peer(peer), token.preamble()),
        header,
        &[],
        sink,
    );
}
