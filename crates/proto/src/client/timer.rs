//! The client side: what happens because time passed.

use super::session::State;
use super::slot::{Large, Phase};
use super::{Client, PACER_TICK_NS, arm, first_timeout_ns, is_full, pace};
use crate::congestion::Ack;
use crate::peer::Peer;
use crate::shared::Shared;
use crate::sink::{datagram_width, push_rare};
use crate::wire::{Connect, Header, Kind};
use crate::{FrameSink, PeerId, SessionError, SessionId, Source};

/// Retries of a request before its silence counts as the server's.
const MIN_RETRIES: u8 = 5;

/// How many timers ahead a session is asked for.
const AHEAD: usize = 8;

impl Client {
    /// Does what is due. Cheap when nothing is.
    #[inline]
    pub(crate) fn flush<S: FrameSink>(&mut self, shared: &mut Shared, now: u64, sink: &mut S) {
        self.timers.expire(now, &mut self.due);
        if !self.due.is_empty() {
            self.handle_timers(shared, now, sink);
        }
        self.pacer.expire(now, &mut self.due);
        if !self.due.is_empty() {
            self.resume_paced(shared, now, sink);
        }
        if !self.blocked.is_empty() {
            self.resume_blocked(shared, now, sink);
        }
        if !self.rfr_queue.is_empty() {
            self.send_rfrs(shared, now, sink);
        }
        if !self.connecting.is_empty() {
            self.send_connects(shared, now, sink);
        }
        if !self.suspected.is_empty() {
            self.resume_suspected(shared, now, sink);
        }
    }

    #[cold]
    fn handle_timers<S: FrameSink>(&mut self, shared: &mut Shared, now: u64, sink: &mut S) {
        let mut due = std::mem::take(&mut self.due);
        for at in 0..due.len() {
            // Of many sessions, those that are due now have not been looked at for long.
            if let Some(&later) = due.get(at + AHEAD) {
                self.sessions.prefetch(later as usize);
            }
            let Some(id) = self.sessions.id_at(due[at] as usize) else {
                continue;
            };
            let session = self.sessions.get_mut(id).expect("just named");
            session.timer_armed = false;
            match session.state {
                State::Connecting => self.handle_connect_timer(shared, now, id),
                State::Closing => self.handle_close_timer(shared, now, id, sink),
                State::Open => self.handle_request_timer(shared, now, id, sink),
            }
        }
        due.clear();
        self.due = due;
    }

    fn handle_connect_timer(&mut self, shared: &mut Shared, now: u64, id: SessionId) {
        let config = &shared.config;
        let session = self.sessions.get_mut(id).expect("the caller has it");
        if now >= session.began_at + config.connect_timeout_ns {
            self.fail_session(shared, id, SessionError::ConnectTimeout);
            return;
        }
        let wait = session
            .rtt
            .timeout_ns(session.retries, config.rto_min_ns, config.rto_max_ns);
        let mut at = session.control_sent_at + wait;
        if now >= at {
            session.retries = session.retries.saturating_add(1);
            session.control_sent_at = now;
            self.connecting.push_back(id);
            at = now + 2 * wait;
        }
        session.timer_armed = true;
        let end = session.began_at + config.connect_timeout_ns;
        self.timers.insert(id.index(), at.min(end));
    }

    fn handle_close_timer<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: SessionId,
        sink: &mut S,
    ) {
        let config = &shared.config;
        let session = self.sessions.get_mut(id).expect("the caller has it");
        // A server that never hears the close drops the session with its peer.
        if now >= session.began_at + config.peer_timeout_ns {
            self.fail_session(shared, id, SessionError::Closed);
            return;
        }
        let wait = session
            .rtt
            .timeout_ns(session.retries, config.rto_min_ns, config.rto_max_ns);
        if now >= session.control_sent_at + wait {
            session.retries = session.retries.saturating_add(1);
            session.control_sent_at = now;
            session.push_close(sink);
        }
        session.timer_armed = true;
        self.timers
            .insert(id.index(), session.control_sent_at + wait);
    }

    fn handle_request_timer<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: SessionId,
        sink: &mut S,
    ) {
        let config = &shared.config;
        let session = self.sessions.get_mut(id).expect("the caller has it");
        let mut busy = session.busy();
        let mut next = None;
        let mut resend = false;
        let mut unconfirmed = false;
        while busy != 0 {
            let index = busy.trailing_zeros() as usize;
            busy &= busy - 1;
            let slot = &session.slots[index];
            // Nothing of it is on its way: it waits for a credit, its time, or the sink.
            let waits =
                (session.pending | session.paced_rfrs) & 1 << index != 0 && slot.credits == 0;
            if !waits {
                let at = slot.active_at + session.timeout_ns(index, config);
                if now >= at {
                    shared.stats.retransmissions += 1;
                    if slot.retries == 0 {
                        session.back_off(now, slot.active_at);
                    }
                    resend |= retransmit(&mut self.rfr_queue, session, index, now, sink);
                    let slot = &session.slots[index];
                    // Long enough for several retries at the longest interval.
                    let patience =
                        config.peer_timeout_ns + u64::from(MIN_RETRIES) * config.rto_max_ns;
                    unconfirmed |=
                        slot.retries >= MIN_RETRIES && now - slot.confirmed_at() >= patience;
                }
            }
            let slot = &session.slots[index];
            let at =
                slot.active_at.max(if waits { now } else { 0 }) + session.timeout_ns(index, config);
            next = Some(next.map_or(at, |next: u64| next.min(at)));
        }
        if let Some(at) = next {
            // One that is asked after now and then must not keep the next one's loss from being
            // seen: what is sent before it is due puts the timer forward.
            session.timer_armed = at <= now + first_timeout_ns(session, config);
            self.timers.insert(id.index(), at);
        }
        if unconfirmed {
            // The peer may well be alive, but this session is out of step with it: nothing that
            // is sent again would ever help.
            self.end(shared, now, id, SessionError::PeerSilent, sink);
            return;
        }
        if resend {
            self.send_pending(shared, now, id, sink);
        }
    }

    #[cold]
    fn resume_paced<S: FrameSink>(&mut self, shared: &mut Shared, now: u64, sink: &mut S) {
        let mut due = std::mem::take(&mut self.due);
        for index in due.drain(..) {
            let Some(id) = self.sessions.id_at(index as usize) else {
                continue;
            };
            let session = self.sessions.get_mut(id).expect("just named");
            session.in_pacer = false;
            let mut rfrs = std::mem::take(&mut session.paced_rfrs);
            while rfrs != 0 {
                self.rfr_queue.push_back((id, rfrs.trailing_zeros() as u8));
                rfrs &= rfrs - 1;
            }
            self.send_pending(shared, now, id, sink);
        }
        self.due = due;
    }

    #[cold]
    fn resume_blocked<S: FrameSink>(&mut self, shared: &mut Shared, now: u64, sink: &mut S) {
        // Each once: a session that finds the sink full again goes to the back.
        for _ in 0..self.blocked.len() {
            let Some(id) = self.blocked.pop_front() else {
                break;
            };
            if let Some(session) = self.sessions.get_mut(id) {
                session.blocked = false;
                self.send_pending(shared, now, id, sink);
            }
        }
    }

    /// Sends the requests for response that are due, one for each slot whatever arrived since.
    #[cold]
    fn send_rfrs<S: FrameSink>(&mut self, shared: &mut Shared, now: u64, sink: &mut S) {
        for _ in 0..self.rfr_queue.len() {
            let Some((id, index)) = self.rfr_queue.pop_front() else {
                break;
            };
            let index = usize::from(index);
            // What the session has to send comes first: a large response would otherwise hold all
            // credits until it is complete. It gets on all the same, see below.
            if self.sessions.get(id).is_some_and(|s| s.pending != 0) {
                self.send_pending(shared, now, id, sink);
            }
            let Some(session) = self.sessions.get_mut(id) else {
                continue;
            };
            let free = session.credits.saturating_sub(session.in_flight);
            let room = session
                .receive_window
                .min(session.control.window())
                .saturating_sub(session.fragments_in_flight);
            let srtt_ns = session.rtt.smoothed_ns();
            let bytes = session.fragment as usize;
            let slot = &mut session.slots[index];
            slot.rfr_due = false;
            let Some(Large::Receive(window)) = slot.cold.large_mut() else {
                continue;
            };
            // With nothing on its way nothing would ever free a credit: one is always allowed.
            let idle = window.outstanding() == 0;
            let credits = u32::from(free.min(room)).max(u32::from(idle));
            let missing = window.find_missing(now, srtt_ns);
            let asked = credits.min(missing);
            let lacks = missing > u32::from(free) && free < room;
            session.want |= lacks && session.credits < session.most_credits;
            if window.take_loss() {
                session.control.handle_ack(Ack {
                    now,
                    rtt_ns: None,
                    packets: 0,
                    marked: false,
                    lost: true,
                });
            }
            let until = now + PACER_TICK_NS;
            let allowed = session.control.burst(now, until, bytes, asked);
            let wanted = window.next_rfr(now, allowed);
            for _ in 0..allowed {
                session.control.record_sent(now, bytes);
            }
            if allowed < asked {
                // The rest has to wait for its time.
                slot.rfr_due = true;
                session.paced_rfrs |= 1 << index;
                let at = session.control.next_send_ns();
                pace(&mut self.pacer, session, at);
            }
            let Some((base, want)) = wanted else {
                continue;
            };
            let sent = session.push_rfr(index, base, want, sink);
            let slot = &mut session.slots[index];
            let Some(Large::Receive(window)) = slot.cold.large_mut() else {
                unreachable!("checked above");
            };
            if sent.is_err() {
                window.record_unsent(want);
                if is_full(sent) {
                    shared.stats.sink_full += 1;
                    if !slot.rfr_due {
                        slot.rfr_due = true;
                        self.rfr_queue.push_back((id, index as u8));
                    }
                }
            }
            let outstanding = window.outstanding() as u16;
            session.set_credits(index, outstanding);
            if !session.timer_armed {
                arm(&mut self.timers, session, now, shared);
            }
        }
    }

    /// Says the connects that are due, those to one peer in as few datagrams as fit.
    #[cold]
    fn send_connects<S: FrameSink>(&mut self, shared: &mut Shared, now: u64, sink: &mut S) {
        let preamble = crate::peer::preamble(0);
        let mut open = None;
        for _ in 0..self.connecting.len() {
            let Some(id) = self.connecting.pop_front() else {
                break;
            };
            let Some(session) = self.sessions.get_mut(id) else {
                continue;
            };
            if session.state != State::Connecting {
                continue;
            }
            session.control_sent_at = now;
            if open != Some(session.peer) {
                if let Some(peer) = open {
                    sink.seal(peer);
                }
                sink.seal(session.peer);
                open = Some(session.peer);
            }
            let body = Connect {
                token: shared.token,
                session: id.to_wire(),
                max_datagram: datagram_width(sink, session.peer) as u32,
                max_message: shared.config.max_message,
                slots: shared.config.slots,
                credits: shared.config.credits,
                cookie_time: session.cookie.0,
                cookie_mac: session.cookie.1,
            }
            .to_bytes();
            let head = Header {
                kind: Kind::Connect,
                flags: 0,
                slot: 0,
                session: 0,
                number: 0,
            }
            .to_bytes(body.len());
            // Repeated by the timer until it is answered.
            let _ = push_rare(sink, session.peer, &preamble, &head, &body, &[]);
        }
        if let Some(peer) = open {
            sink.seal(peer);
        }
    }

    /// This endpoint was away for so long that its peers may have dropped it. Until one answers,
    /// what is sent to it could be lost, and nobody would know whether it ran: so requests wait.
    /// Only the answer to this very ping counts.
    pub(crate) fn suspect_silent_peers<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        sink: &mut S,
    ) {
        let keepalive = shared.config.keepalive_ns;
        // Those of an earlier absence stay until it is known what came of them.
        for (id, peer) in shared.peers.iter_mut() {
            let silent = now.saturating_sub(peer.heard_at);
            if peer.client_sessions > 0 && peer.token != 0 && silent >= keepalive {
                peer.pinged_at = now;
                peer.unanswered += 1;
                peer.awaited_pong = now.max(1);
                self.push_ping(id, peer, sink);
                if !self.suspected.contains(&id) {
                    self.suspected.push(id);
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

    /// Lets the requests go on that wait for a peer that has answered. Those to one that is gone
    /// ended with their session.
    #[cold]
    fn resume_suspected<S: FrameSink>(&mut self, shared: &mut Shared, now: u64, sink: &mut S) {
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

    /// Asks silent peers, and gives up on those that were asked in vain.
    pub(crate) fn ping<S: FrameSink>(&mut self, shared: &mut Shared, now: u64, sink: &mut S) {
        let (keepalive, timeout) = (shared.config.keepalive_ns, shared.config.peer_timeout_ns);
        let mut dead = Vec::new();
        for (id, peer) in shared.peers.iter_mut() {
            // Connecting sessions have a limit of their own.
            if peer.client_sessions == 0 || peer.token == 0 {
                continue;
            }
            let silent = now.saturating_sub(peer.heard_at);
            // An unanswered ping may have been lost, and a few more may be: asking faster from
            // then on tells a bad network from a dead peer.
            let suspected = peer.awaited_pong != 0;
            let pause = if peer.unanswered == 0 && !suspected {
                keepalive
            } else {
                keepalive / 4
            };
            if silent >= timeout && peer.unanswered >= 2 {
                dead.push(id);
            } else if (suspected || silent >= keepalive) && now >= peer.pinged_at + pause {
                peer.pinged_at = now;
                peer.unanswered += 1;
                self.push_ping(id, peer, sink);
            }
        }
        for peer in dead {
            shared.stats.peers_failed += 1;
            self.fail_peer(shared, peer, SessionError::PeerSilent);
        }
    }

    pub(super) fn push_ping<S: FrameSink>(&self, id: PeerId, peer: &mut Peer, sink: &mut S) {
        let session = Self::ping_on(&self.sessions, id, peer);
        let mut header = Header::control(Kind::Ping, session);
        header.number = if peer.awaited_pong != 0 {
            peer.awaited_pong
        } else {
            u64::from(peer.unanswered)
        };
        Shared::send_alone(sink, Source::Peer(id), peer.token, header, &[]);
    }
}

/// Sends again what is outstanding in a slot; returns whether the session has to be outcome.
fn retransmit<S: FrameSink>(
    rfr_queue: &mut std::collections::VecDeque<(SessionId, u8)>,
    session: &mut super::session::ClientSession,
    index: usize,
    now: u64,
    sink: &mut S,
) -> bool {
    let slot = &mut session.slots[index];
    if slot.retries == 0 {
        slot.confirm(slot.active_at);
    }
    slot.retries = slot.retries.saturating_add(1);
    slot.active_at = now;
    match slot.phase {
        Phase::Idle => unreachable!("an idle slot has no timer"),
        Phase::Single => {
            // If the sink is full, the next timeout tries again.
            let _ = session.push_single(index, sink);
            false
        }
        Phase::Sending => {
            let Some(Large::Send { window, timed }) = slot.cold.large_mut() else {
                unreachable!("a slot that sends fragments has a window");
            };
            *timed = None;
            if window.is_complete() {
                // All arrived and no answer: ask with the last fragment.
                let last = window.last();
                let _ = session.push_fragment(index, last, sink);
                return false;
            }
            window.handle_timeout(now);
            session.set_credits(index, 0);
            session.pending |= 1 << index;
            true
        }
        Phase::Receiving => {
            let Some(Large::Receive(window)) = slot.cold.large_mut() else {
                unreachable!("a slot that receives fragments has a window");
            };
            window.handle_timeout(now);
            if !slot.rfr_due {
                slot.rfr_due = true;
                rfr_queue.push_back((session.id, index as u8));
            }
            session.set_credits(index, 0);
            false
        }
    }
}
