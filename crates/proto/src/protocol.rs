//! The protocol of one endpoint: datagrams and requests go in, frames and events come out.

mod absence;
mod claimed;
mod datagram;
mod groups;
mod inspect;
mod memory;
mod slow_path;

use std::collections::{HashSet, VecDeque};

use crate::absences::Absences;
use crate::answers::Answers;
use crate::client::Client;
use crate::cookie::CookieKey;
use crate::high_water::HighWater;
use crate::holdings::Holdings;
use crate::incoming::{Body, Incoming};
use crate::msgbuf_pool::{FRESH_BYTES, Pool};
use crate::peer::Peers;
use crate::server::Server;
use crate::shared::Shared;
use crate::wire::{Frame, Kind, PREAMBLE_BYTES, TokenKey, split_frame, split_frame_of};
use crate::{
    Cancelled, Config, ConfigError, ConnectError, DeviceRefusal, Event, FrameSink, NotMadeReason,
    PeerId, Prefix, RequestId, RequestNotMade, RequestNumber, RespondReason, Secrets, SessionError,
    SessionId, Stats, Tag,
};
use starling_msgbuf::Msgbuf;

/// The shortest interval at which silent peers and idle sessions are checked. The longest is the keepalive's.
const TICK_NS: u64 = 50_000_000;

/// The frames of one datagram that are not read yet.
#[derive(Clone, Copy, Debug)]
pub struct Frames<'a> {
    /// The sender, if it is a peer and the datagram is for this incarnation. Otherwise only session
    /// management is read, and the sender is in the protocol.
    peer: Option<PeerId>,
    rest: &'a [u8],
}

impl Frames<'_> {
    /// No frames.
    pub const NONE: Self = Self {
        peer: None,
        rest: &[],
    };

    /// The sender, if it is a peer and the datagram is for this incarnation.
    pub fn sender(&self) -> Option<PeerId> {
        self.peer
    }

    /// Whether all frames are read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

/// Which methods handle the next frames of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upcoming {
    /// Requests of one packet, from this peer: [`Protocol::poll_request`] and
    /// [`Protocol::handle_request`].
    Requests(PeerId),
    /// Responses of one packet, from this peer: [`Protocol::poll_response`] and
    /// [`Protocol::handle_response`].
    Responses(PeerId),
    /// Any other frame: [`Protocol::handle_other`].
    Other,
}

/// The protocol state of one endpoint. See the crate's documentation for the order of calls.
pub struct Protocol {
    shared: Shared,
    client: Client,
    server: Server,
    next_tick: u64,
    overdue_at: u64,
}

impl Protocol {
    /// The state of an endpoint that starts now.
    ///
    /// # Errors
    /// The configuration cannot work.
    pub fn new(config: Config, secrets: Secrets, now: u64) -> Result<Self, ConfigError> {
        config.check()?;
        let fast_path = config.factors.zero_copy_requests;
        let token_key = TokenKey::new(secrets.token_key);
        Ok(Self {
            overdue_at: now + TICK_NS + config.keepalive_ns,
            client: Client::new(config.max_sessions, now),
            server: Server::new(config.max_sessions),
            shared: Shared {
                config,
                cookie_key: CookieKey::new(secrets.cookie_key),
                peers: Peers::new(&token_key),
                token_key,
                pool: Pool::new(),
                scratch: Msgbuf::from_vec(Vec::with_capacity(FRESH_BYTES)),
                events: VecDeque::new(),
                stats: Stats::default(),
                answers: Answers::new(),
                reset_at: None,
                keepalive_at: 0,
                flush_at: 0,
                absences: Absences::default(),
                last_turn: now,
                requests_at: 0,
                requests_until: 0,
                reassembling_responses: 0,
                receiving: Holdings::new(),
                kept: Holdings::new(),
                served: Holdings::new(),
                held_most: HighWater::default(),
                fast_path,
                mark: 0,
                other_sender: None,
                is_crowded: false,
            },
            next_tick: now + TICK_NS,
        })
    }

    /// Begins to open a session to `peer`. [`Event::Connected`] or [`Event::SessionEnded`]
    /// follows. Requests can be made at once; they are sent when the session is open.
    pub fn connect<S: FrameSink>(
        &mut self,
        now: u64,
        peer: PeerId,
        sink: &mut S,
    ) -> Result<SessionId, ConnectError> {
        self.shared.ask_flush();
        let session = self.client.connect(&mut self.shared, now, peer, sink)?;
        self.shared.is_crowded |= self.client.sessions.is_crowded();
        Ok(session)
    }

    /// Sends a request, or queues it behind those that are outstanding. The request ends with
    /// [`Incoming::Response`], and its buffer is used again, or with [`Event::RequestFailed`],
    /// which returns the buffer.
    #[inline]
    #[allow(
        clippy::too_many_arguments,
        reason = "one call per request: no struct to fill"
    )]
    pub fn request<S: FrameSink>(
        &mut self,
        now: u64,
        session: SessionId,
        message: Msgbuf,
        prefix: Prefix,
        tag: Tag,
        sink: &mut S,
    ) -> Result<RequestNumber, RequestNotMade> {
        self.shared.ask_flush();
        self.client
            .request(&mut self.shared, now, session, message, prefix, tag, sink)
    }

    /// As [`Protocol::request`], with a message that `build` appends to an empty buffer. The
    /// message is sent from that buffer, so no buffer changes hands. `build` returns the part of
    /// the message that is not body.
    #[inline]
    pub fn request_with<S: FrameSink>(
        &mut self,
        now: u64,
        session: SessionId,
        tag: Tag,
        sink: &mut S,
        build: impl FnOnce(&mut Vec<u8>) -> Prefix,
    ) -> Result<RequestNumber, NotMadeReason> {
        self.client
            .request_with(&mut self.shared, now, session, tag, sink, build)
    }

    /// Cancels a request: neither a response nor an event will follow. `None`: the request has
    /// ended already.
    pub fn cancel<S: FrameSink>(
        &mut self,
        now: u64,
        session: SessionId,
        number: RequestNumber,
        sink: &mut S,
    ) -> Option<Cancelled> {
        self.shared.ask_flush();
        self.client
            .cancel(&mut self.shared, now, session, number, sink)
    }

    /// Closes a session. Its requests fail, then [`Event::SessionEnded`] follows.
    pub fn close<S: FrameSink>(&mut self, now: u64, session: SessionId, sink: &mut S) {
        self.shared.ask_flush();
        self.client.close(&mut self.shared, now, session, sink);
    }

    /// Whether there are so many sessions that they may be in no cache, so that
    /// [`Protocol::prefetch`] helps.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.shared.is_crowded
    }

    /// Prefetches more of each session, and however few sessions there are. A simulation calls
    /// this: it drives many endpoints in turn, and nothing of any of them stays in a cache.
    #[inline]
    pub fn prefetch_cold(&self, datagram: &[u8]) {
        let mut rest = datagram.get(PREAMBLE_BYTES..).unwrap_or_default();
        while let Ok((frame, after)) = split_frame(rest) {
            let index = frame.session().index();
            match frame.header.kind {
                Kind::Request => self.server.sessions.prefetch_lines(index, 2),
                Kind::Response => self.client.sessions.prefetch_lines(index, 3),
                _ => {}
            }
            rest = after;
        }
    }

    /// Prefetches a session of this endpoint before a request is made on it, as
    /// [`Protocol::prefetch_cold`] does before a datagram is handled.
    #[inline]
    pub fn prefetch_cold_session(&self, session: SessionId) {
        self.client.sessions.prefetch_lines(session.index(), 3);
    }

    /// Prefetches the sessions that a datagram's frames name. Any bytes will do. To be called one
    /// datagram before [`Protocol::handle_datagram`]: the frames' cache misses overlap then.
    pub fn prefetch(&self, datagram: &[u8]) {
        let mut rest = datagram.get(PREAMBLE_BYTES..).unwrap_or_default();
        while let Ok((frame, after)) = split_frame(rest) {
            match frame.header.kind {
                Kind::Request => self.server.sessions.prefetch(frame.session().index()),
                Kind::Response => self.client.sessions.prefetch(frame.session().index()),
                _ => {}
            }
            rest = after;
        }
    }

    /// The incarnation of a peer: another number after the peer was restarted. Zero: unknown.
    pub fn incarnation(&self, peer: PeerId) -> u64 {
        let token = self.shared.peers.token(peer);
        if token.is_none() { 0 } else { token.to_wire() }
    }

    /// The clients whose requests may have to wait there: a message of several packets was on its way between one and
    /// this server since then, or each of its slots was used. A look through all sessions.
    pub fn backlogged(&self, since: u64) -> HashSet<PeerId> {
        self.server.backlogged(since)
    }

    /// Handles the frames of a datagram until one of them needs the caller. `None`: all frames are
    /// handled.
    ///
    /// This method is [`Protocol::upcoming`] and the `poll_*` and `handle_*` methods in one. It is
    /// simpler to use, and slower, because every outcome goes through one type.
    #[inline]
    pub fn poll_incoming<'a, S: FrameSink>(
        &mut self,
        now: u64,
        frames: &mut Frames<'a>,
        sink: &mut S,
    ) -> Option<Incoming<'a>> {
        loop {
            let incoming = match self.upcoming(frames)? {
                Upcoming::Requests(peer) => self.poll_request(frames).and_then(|frame| {
                    let id = self.handle_request(now, peer, frame, sink)?;
                    Some(Incoming::Request {
                        id,
                        peer,
                        ext: frame.ext(),
                        body: Body::Borrowed(frame.payload),
                    })
                }),
                Upcoming::Responses(peer) => self.poll_response(frames).and_then(|frame| {
                    let (session, tag) = self.handle_response(now, peer, frame, sink)?;
                    Some(Incoming::Response {
                        session,
                        number: frame.header.number,
                        tag,
                        ext: frame.ext(),
                        body: Body::Borrowed(frame.payload),
                    })
                }),
                Upcoming::Other => self.handle_other(now, frames, sink),
            };
            if incoming.is_some() {
                return incoming;
            }
        }
    }

    /// Whether requests of one packet may be [`Upcoming::Requests`]. Otherwise they are [`Upcoming::Other`], which
    /// is slower and the same.
    pub fn set_fast_path(&mut self, is_on: bool) {
        let is_possible =
            self.shared.config.factors.zero_copy_requests && self.server.has_fast_path();
        self.shared.fast_path = is_on && is_possible;
    }

    /// Which methods handle the next frame of a datagram. `None`: all frames are handled.
    #[inline]
    pub fn upcoming(&self, frames: &Frames<'_>) -> Option<Upcoming> {
        let first = frames.rest.first()?;
        Some(match frames.peer {
            Some(peer) if Kind::Request.is_of(*first) && self.shared.fast_path => {
                Upcoming::Requests(peer)
            }
            Some(peer) if Kind::Response.is_of(*first) => Upcoming::Responses(peer),
            _ => Upcoming::Other,
        })
    }

    /// The next frame of a datagram, if it is a request of one packet. It is for
    /// [`Protocol::handle_request`], if [`Protocol::upcoming`] said so and named its sender.
    #[inline]
    pub fn poll_request<'a>(&mut self, frames: &mut Frames<'a>) -> Option<Frame<'a>> {
        self.next_of(Kind::Request, frames)
    }

    /// The next frame of a datagram, if it is a response of one packet. It is for
    /// [`Protocol::handle_response`], if [`Protocol::upcoming`] said so and named its sender.
    #[inline]
    pub fn poll_response<'a>(&mut self, frames: &mut Frames<'a>) -> Option<Frame<'a>> {
        self.next_of(Kind::Response, frames)
    }

    #[inline(always)]
    fn next_of<'a>(&mut self, kind: Kind, frames: &mut Frames<'a>) -> Option<Frame<'a>> {
        let Some((frame, rest)) = split_frame_of(kind, frames.rest) else {
            if !frames.rest.is_empty() {
                self.end_malformed(frames);
            }
            return None;
        };
        frames.rest = rest;
        Some(frame)
    }

    /// If the next frame is malformed, the rest of the datagram is dropped.
    #[inline(never)]
    fn end_malformed(&mut self, frames: &mut Frames<'_>) {
        if split_frame(frames.rest).is_err() {
            frames.rest = &[];
            self.shared.stats.frames_malformed += 1;
        }
    }

    /// Handles a request of one packet. `Some`: the caller runs it, once, and answers with
    /// [`Protocol::respond`]. The message is the frame's payload.
    #[inline]
    pub fn handle_request<S: FrameSink>(
        &mut self,
        now: u64,
        peer: PeerId,
        frame: Frame<'_>,
        sink: &mut S,
    ) -> Option<RequestId> {
        self.server
            .handle_request(&mut self.shared, now, peer, frame, sink)
    }

    /// Handles a response of one packet. `Some`: it answers this endpoint's request with that tag, on
    /// that session. The message is the frame's payload.
    #[inline]
    pub fn handle_response<S: FrameSink>(
        &mut self,
        now: u64,
        peer: PeerId,
        frame: Frame<'_>,
        sink: &mut S,
    ) -> Option<(SessionId, Tag)> {
        self.client
            .handle_response(&mut self.shared, now, peer, frame, sink)
    }

    /// Answers a request. `message` is exchanged for an empty buffer, which has memory already if
    /// the slot was used before: write the next answer into it, or [`Protocol::recycle`] it.
    ///
    /// # Errors
    /// No client waits for the answer any more, or the client takes no message of this size: then a
    /// smaller answer must be given. `message` is unchanged.
    #[inline]
    pub fn respond<S: FrameSink>(
        &mut self,
        now: u64,
        id: RequestId,
        message: &mut Msgbuf,
        prefix: Prefix,
        sink: &mut S,
    ) -> Result<(), RespondReason> {
        self.server
            .respond(&mut self.shared, now, id, message, prefix, sink)
    }

    /// Whether the client still waits for the answer to `id`.
    pub fn is_wanted(&self, id: RequestId) -> bool {
        self.server.is_wanted(id)
    }

    /// The end of a turn: sends the frames that were held back, and handles the timers that are
    /// due.
    #[inline]
    pub fn flush<S: FrameSink>(&mut self, now: u64, sink: &mut S) {
        if now >= self.shared.flush_at {
            self.flush_all(now, sink);
        } else {
            debug_assert!(now < self.next_flush_at(), "nobody asked for the flush");
        }
        self.shared.last_turn = now;
        if self.shared.stats.requests_received != self.shared.requests_until {
            self.shared.requests_until = self.shared.stats.requests_received;
            self.shared.requests_at = now;
        }
    }

    #[inline(never)]
    fn flush_all<S: FrameSink>(&mut self, now: u64, sink: &mut S) {
        self.server.flush(&mut self.shared, now, sink);
        if now >= self.next_tick {
            self.tick(now, sink);
        }
        self.client.flush(&mut self.shared, now, sink);
        self.shared.flush_at = self.next_flush_at();
    }

    /// When the next flush has something to do, if nothing more comes.
    fn next_flush_at(&self) -> u64 {
        if self.client.has_waiting() || self.server.has_waiting(&self.shared) {
            return 0;
        }
        let kept_until = self.server.poll_timer().unwrap_or(u64::MAX);
        self.next_tick.min(self.client.due_at()).min(kept_until)
    }

    /// When [`Protocol::flush`] must be called next, even if nothing arrives. `None`: never.
    pub fn poll_timeout(&self) -> Option<u64> {
        if self.has_unsent() {
            return Some(self.shared.last_turn);
        }
        self.poll_timer()
    }

    /// Whether frames wait that the last [`Protocol::flush`] found no room for, or that came since.
    /// No event says when a full device has room again.
    pub fn has_unsent(&self) -> bool {
        self.client.has_unsent() || self.server.has_unsent()
    }

    /// Whether the last [`Protocol::flush`] sent as much as one may, and the next one should come at once.
    pub fn has_rest(&self) -> bool {
        self.server.has_rest()
    }

    /// As [`Protocol::poll_timeout`], without regard to frames that wait for room.
    pub fn poll_timer(&self) -> Option<u64> {
        let tick = (!self.shared.peers.is_empty()).then_some(self.next_tick);
        let timers = [tick, self.client.poll_timer(), self.server.poll_timer()];
        timers.into_iter().flatten().min()
    }

    /// Whether [`Protocol::poll_event`] would return something.
    #[inline]
    pub fn has_event(&self) -> bool {
        !self.shared.events.is_empty()
    }

    /// The next event, if any.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
    }

    /// The device reports that a peer is gone. `certain`: the kernel saw it end; otherwise the
    /// network only suspects it.
    pub fn handle_peer_gone<S: FrameSink>(
        &mut self,
        now: u64,
        peer: PeerId,
        certain: bool,
        sink: &mut S,
    ) {
        self.shared.ask_flush();
        if certain {
            self.client
                .fail_peer(&mut self.shared, peer, SessionError::Unreachable);
            self.server.drop_peer(&mut self.shared, peer);
            return;
        }
        self.client.fail_connecting(&mut self.shared, peer);
        if let Some(entry) = self.shared.peers.get_mut(peer) {
            // The next tick pings the peer; soon after, a silent peer counts as dead.
            let early = self.shared.config.keepalive_ns;
            entry.pinged_at = entry.pinged_at.min(now.saturating_sub(early));
            entry.heard_at = entry
                .heard_at
                .min(now.saturating_sub(self.shared.config.peer_timeout_ns.saturating_sub(early)));
        }
        self.next_tick = self.next_tick.min(now);
        sink.seal(peer);
    }

    /// The device reports that a peer refused this endpoint: the sessions with the peer end.
    pub fn handle_peer_refused(&mut self, peer: PeerId, why: DeviceRefusal) {
        self.shared.ask_flush();
        self.client.fail_peer(&mut self.shared, peer, why.into());
        self.server.drop_peer(&mut self.shared, peer);
    }

    /// Tells the clients that have to make no new requests here at once, before anything that is sent from now on: a
    /// client that gets a refusal first could make the request here again.
    pub fn announce_drain<S: FrameSink>(&mut self, sink: &mut S) {
        self.server.announce_drain(&mut self.shared, sink);
    }

    /// Tells one client to make no new requests here, as [`Protocol::drain`] does all. Its requests that come
    /// nevertheless are the caller's to refuse.
    pub fn drain_peer(&mut self, peer: PeerId) {
        if let Some(entry) = self.shared.peers.get_mut(peer) {
            entry.must_leave = true;
            self.server.drains_some = true;
            self.shared.ask_flush();
            self.next_tick = self.next_tick.min(self.shared.last_turn);
        }
    }

    /// Ends the sessions that a peer has with this endpoint's server, and tells the peer. If that is lost, it learns it
    /// when it uses one again.
    pub fn end_sessions_of<S: FrameSink>(&mut self, peer: PeerId, sink: &mut S) {
        self.shared.ask_flush();
        self.server.announce_end(&self.shared, peer, sink);
        self.server.drop_peer(&mut self.shared, peer);
    }

    /// Begins to shut down: refuses new sessions, and tells the clients from the next flush on that they are to
    /// make no new requests. Open sessions go on. The caller refuses new requests with [`Protocol::refuse`].
    pub fn drain(&mut self) {
        self.server.draining = true;
        self.shared.fast_path = false;
        self.shared.ask_flush();
        self.next_tick = self.next_tick.min(self.shared.last_turn);
    }

    /// Whether all clients have said, after [`Protocol::drain`], that they have no request outstanding here and
    /// make no new ones.
    pub fn is_left(&self) -> bool {
        self.server.is_left(&self.shared)
    }

    /// The same of one client, after [`Protocol::drain_peer`]; or it has no session any more.
    pub fn has_left(&self, peer: PeerId) -> bool {
        let entry = self.shared.peers.get(peer);
        entry.is_none_or(|entry| entry.server_sessions == 0 || entry.has_left)
    }

    /// Refuses a request that was handed over, because this endpoint shuts down. The client learns that it did
    /// not run. False: no client waits for it any more.
    pub fn refuse<S: FrameSink>(&mut self, id: RequestId, sink: &mut S) -> bool {
        self.server.refuse(&mut self.shared, id, sink)
    }

    /// Whether a client may still want a response, or more of one. For an endpoint that is about to
    /// end. A client that sent nothing for `quiet_ns` has what it wants. Walks all sessions.
    pub fn has_undelivered(&self, quiet_ns: u64) -> bool {
        self.server
            .has_undelivered(&self.shared, self.shared.last_turn, quiet_ns)
    }

    /// Tells all clients that this endpoint is shut down, so that they need not find out by its
    /// silence. The last thing that an endpoint does. False: the device has no room for all frames
    /// now; call again.
    pub fn announce_shutdown<S: FrameSink>(&mut self, sink: &mut S) -> bool {
        self.server.announce_shutdown(&self.shared, sink)
    }

    /// An empty buffer that may have memory already.
    #[inline]
    pub fn buffer(&mut self) -> Msgbuf {
        self.shared.pool.take()
    }

    /// Takes back a buffer that is free.
    #[inline]
    pub fn recycle(&mut self, message: Msgbuf) {
        self.shared.pool.put(message);
    }
}
