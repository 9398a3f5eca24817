//! The steps of a turn.

use starling_io::{Ecn, IoEvent, PacketIo, PacketRx, PacketTx, PeerGone};
use starling_prefetch::prefetch;
use starling_proto::{
    Body, Event, Frames, Incoming, Msgbuf, PeerId, Prefix, Protocol, SessionId, Source, Upcoming,
};

use super::sink::CapturingSink;
use super::{
    Application, COPIED_BYTES, Call, Channel, MIN_TURN_NS, PREFETCH_MIN_HOSTS, Process, Turn,
};
use crate::cpu::Work;
use crate::fabric::{HostId, SharedFabric};
use crate::scenario::capture::Capture;
use crate::scenario::monitor::{self, Direction, enforce};

impl Process {
    pub(super) fn take_events<A: Application + ?Sized>(
        &mut self,
        turn: &mut Turn<'_, A>,
        capture: &mut Option<Capture>,
    ) {
        if self.protocol.is_overdue(turn.now_ns) {
            let mut sink = CapturingSink::new(turn.now_ns, self.io.split().1, capture.as_mut());
            self.protocol.handle_overdue(turn.now_ns, &mut sink);
        }
        while let Some(IoEvent::PeerGone(peer, certainty)) = self.io.poll_event() {
            let mut sink = CapturingSink::new(turn.now_ns, self.io.split().1, capture.as_mut());
            let certain = certainty == PeerGone::Certain;
            self.protocol
                .handle_peer_gone(turn.now_ns, PeerId(peer.0), certain, &mut sink);
        }
    }

    /// Prefetches the memory that calls will need.
    pub(super) fn prefetch(&mut self, calls: &[Call], channels: &[Channel]) {
        let tx = self.io.split().1;
        for call in calls {
            prefetch(&channels[call.channel]);
        }
        for call in calls {
            let channel = &channels[call.channel];
            if let Some(session) = channel.session {
                self.protocol.prefetch_cold_session(session);
                tx.prefetch(channel.peer);
            }
        }
    }

    pub(super) fn receive<A: Application + ?Sized>(
        &mut self,
        turn: &mut Turn<'_, A>,
        capture: &mut Option<Capture>,
    ) {
        let Self {
            io,
            protocol,
            channel_of,
            answer,
            ..
        } = self;
        let (rx, tx) = io.split();
        let count = rx.rx_burst().expect("the device has no errors");
        // The state of few sessions stays in a cache.
        let asked = if channel_of.len() > PREFETCH_MIN_HOSTS {
            count
        } else {
            0
        };
        for index in 0..asked {
            let datagram = rx.datagram(index);
            if let starling_io::Source::Peer(peer) = datagram.source {
                tx.prefetch(peer);
            }
            protocol.prefetch_cold(datagram.bytes);
            turn.monitor.prefetch(datagram.bytes);
        }
        for index in 0..count {
            let datagram = rx.datagram(index);
            let source = match datagram.source {
                starling_io::Source::Peer(peer) => Source::Peer(PeerId(peer.0)),
                starling_io::Source::Unknown(address) => Source::Unknown(address),
            };
            if let (Some(capture), Source::Peer(peer)) = (capture.as_mut(), source) {
                capture.read(turn.now_ns, peer.0, datagram.bytes);
            }
            let now = turn.now_ns;
            let mut sink = CapturingSink::new(now, &mut *tx, capture.as_mut());
            let marked = datagram.ecn == Ecn::CongestionExperienced;
            let opened = protocol.handle_datagram(now, source, marked, datagram.bytes, &mut sink);
            if let Ok(mut frames) = opened {
                handle_frames(protocol, turn, answer, &mut frames, &mut sink);
            }
        }
        rx.release();
    }

    /// The channel's session, a new one if it has none.
    pub(super) fn session<A: Application + ?Sized>(
        &mut self,
        turn: &mut Turn<'_, A>,
        channel: &mut Channel,
        index: usize,
        capture: &mut Option<Capture>,
    ) -> Option<SessionId> {
        if channel.session.is_none() {
            let address = format!("sim://{}", channel.server.address());
            let peer = self.io.open_peer(&address).expect("a fabric's address");
            let mut sink = CapturingSink::new(turn.now_ns, self.io.split().1, capture.as_mut());
            let opened = self
                .protocol
                .connect(turn.now_ns, PeerId(peer.0), &mut sink);
            let session = opened.ok()?;
            channel.session = Some(session);
            channel.peer = peer;
            self.channel_of.insert(session, index);
        }
        channel.session
    }

    pub(super) fn call<A: Application + ?Sized>(
        &mut self,
        turn: &mut Turn<'_, A>,
        channels: &mut [Channel],
        call: Call,
        capture: &mut Option<Capture>,
    ) {
        let channel = &mut channels[call.channel];
        let session = self.session(turn, channel, call.channel, capture);
        let session = session.expect("scenarios stay within the limit of sessions");
        let mut sink = CapturingSink::new(turn.now_ns, self.io.split().1, capture.as_mut());
        let now = turn.now_ns;
        let serial = turn.monitor.issued(turn.host, call.tag, now);
        let head = monitor::head(call.tag, serial, call.len);
        let tag = u128::from(call.tag) | u128::from(serial) << 64;
        let taken = if call.len > COPIED_BYTES {
            let tail = turn
                .monitor
                .shared_rest(Direction::Request, serial, call.len);
            let message = Msgbuf::from_parts(head.to_vec(), Some(tail));
            self.protocol
                .request(now, session, message, Prefix::NONE, tag, &mut sink)
                .map_err(|not_made| not_made.reason)
        } else {
            let rest = turn.monitor.rest(Direction::Request, serial, call.len);
            self.protocol
                .request_with(now, session, tag, &mut sink, |buffer| {
                    buffer.extend_from_slice(&head);
                    buffer.extend_from_slice(rest);
                    Prefix::NONE
                })
        };
        match taken {
            Ok(number) => turn.monitor.taken(serial, session, number),
            Err(reason) => panic!("scenarios stay within the limits of a session: {reason}"),
        }
        turn.work.handlers += 1;
    }

    /// Gives up on all calls.
    pub(super) fn cancel_all<A: Application + ?Sized>(&mut self, turn: &mut Turn<'_, A>) {
        for (session, number) in turn.monitor.open_calls(turn.host) {
            let tx = self.io.split().1;
            let mut sink = CapturingSink::new(turn.now_ns, tx, None);
            let cancelled = self
                .protocol
                .cancel(turn.now_ns, session, number, &mut sink);
            let cancelled = cancelled.expect("the protocol has every call that is open");
            self.protocol.recycle(cancelled.request);
            let serial = (cancelled.tag >> 64) as u64;
            enforce(turn.monitor.ended(turn.host, serial, None, turn.now_ns));
        }
    }

    pub(super) fn close_all(&mut self, now_ns: u64, channels: &mut [Channel]) {
        for session in channels.iter_mut().filter_map(|it| it.session.take()) {
            let mut sink = CapturingSink::new(now_ns, self.io.split().1, None);
            self.protocol.close(now_ns, session, &mut sink);
        }
    }

    pub(super) fn drain<A: Application + ?Sized>(
        &mut self,
        turn: &mut Turn<'_, A>,
        channels: &mut [Channel],
    ) {
        while let Some(event) = self.protocol.poll_event() {
            match event {
                Event::Connected { session } => {
                    if let Some(&channel) = self.channel_of.get(&session) {
                        let (host, now_ns) = (turn.host, turn.now_ns);
                        turn.app.connected(host, channel, now_ns, &mut turn.calls);
                    }
                }
                // No host of a scenario shuts down.
                Event::SessionDraining { .. } | Event::Standstill { .. } => {}
                Event::SessionEnded { session, .. } => {
                    if let Some(channel) = self.channel_of.remove(&session) {
                        channels[channel].session = None;
                    }
                }
                Event::RequestFailed {
                    tag,
                    request,
                    error,
                    ..
                } => {
                    self.protocol.recycle(request);
                    turn.ended(tag, Err(error));
                }
                // Requests are answered in the turn that they arrive in.
                Event::RequestAbandoned { .. } => {}
                Event::PeerReleased { peer } => {
                    if !self.protocol.refers_to(peer) {
                        self.io.close_peer(starling_io::PeerId(peer.0));
                    }
                }
            }
        }
    }

    pub(super) fn flush(&mut self, now_ns: u64, capture: &mut Option<Capture>) {
        let tx = self.io.split().1;
        let mut sink = CapturingSink::new(now_ns, &mut *tx, capture.as_mut());
        self.protocol.flush(now_ns, &mut sink);
        tx.flush().expect("the device has no errors");
    }

    /// Ends the turn and asks for the next one.
    pub(super) fn schedule(&mut self, host: HostId, fabric: &SharedFabric, work: Work, busy: bool) {
        let mut fabric = fabric.lock();
        let free_ns = fabric.end_turn(host, work);
        let next_ns = free_ns.max(fabric.now_ns() + MIN_TURN_NS);
        if busy || fabric.receive_queue(host).0 > 0 {
            fabric.wake_at(host, next_ns);
        } else if let Some(at_ns) = self.protocol.poll_timeout() {
            let at_ns = fabric.when(host, at_ns);
            fabric.wake_at(host, at_ns.max(next_ns));
        }
    }
}

/// Handles the frames of one datagram.
fn handle_frames<A: Application + ?Sized>(
    protocol: &mut Protocol,
    turn: &mut Turn<'_, A>,
    answer: &mut Msgbuf,
    frames: &mut Frames<'_>,
    sink: &mut CapturingSink<'_>,
) {
    let now = turn.now_ns;
    while let Some(upcoming) = protocol.upcoming(frames) {
        turn.work.rx_frames += 1;
        match upcoming {
            Upcoming::Requests(peer) => {
                let request = protocol.poll_request(frames);
                let id = request.and_then(|frame| {
                    let id = protocol.handle_request(now, peer, frame, sink)?;
                    Some((id, frame.payload()))
                });
                if let Some((id, body)) = id {
                    turn.serve(protocol, answer, id, body, sink);
                }
            }
            Upcoming::Responses(peer) => {
                let response = protocol.poll_response(frames);
                let tag = response.and_then(|frame| {
                    let (_, tag) = protocol.handle_response(now, peer, frame, sink)?;
                    Some((tag, frame.payload()))
                });
                if let Some((tag, body)) = tag {
                    turn.ended(tag, Ok(body));
                }
            }
            Upcoming::Other => {
                let body = match protocol.handle_other(now, frames, sink) {
                    Some(Incoming::Request { id, body, .. }) => {
                        turn.serve(protocol, answer, id, body.bytes(), sink);
                        body
                    }
                    Some(Incoming::Response { tag, body, .. }) => {
                        turn.ended(tag, Ok(body.bytes()));
                        body
                    }
                    Some(Incoming::Cancelled { .. }) | None => continue,
                };
                if let Body::Owned(buffer) = body {
                    protocol.recycle(buffer);
                }
            }
        }
    }
}
