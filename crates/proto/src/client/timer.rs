//! The client's timers: connects and closes that are repeated, and what continues at a flush.

use super::Client;
use super::session::State;
use crate::shared::Shared;
use crate::sink::{datagram_width, push_rare};
use crate::wire::{Connect, Header, Kind, Token};
use crate::{FrameSink, SessionError, SessionId};

/// How many timers ahead a session is prefetched.
const AHEAD: usize = 8;

impl Client {
    /// Does what is due.
    pub(crate) fn flush<S: FrameSink>(&mut self, shared: &mut Shared, now: u64, sink: &mut S) {
        self.timers.expire(now, &mut self.due);
        if !self.due.is_empty() {
            self.handle_timers(shared, now, sink);
        }
        self.pacer.expire(now, &mut self.due);
        if !self.due.is_empty() {
            self.resume_paced(shared, now, sink);
        }
        if now >= self.groups.due_at() {
            self.maintain_groups(shared, now, sink);
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
        if self.has_rare_work {
            self.do_rare_work(shared, now, sink);
        }
    }

    /// What a flush rarely has to do.
    #[cold]
    fn do_rare_work<S: FrameSink>(&mut self, shared: &mut Shared, now: u64, sink: &mut S) {
        if !self.suspected.is_empty() {
            self.resume_suspected(shared, now, sink);
        }
        self.acknowledge_drains(sink);
        self.has_rare_work = !self.suspected.is_empty();
    }

    #[cold]
    fn handle_timers<S: FrameSink>(&mut self, shared: &mut Shared, now: u64, sink: &mut S) {
        let mut due = std::mem::take(&mut self.due);
        for at in 0..due.len() {
            // With many sessions, those that are due now have left the caches.
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
        self.timers
            .insert(id.index(), at.min(end), shared.last_turn);
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
        // A server that never receives the close drops the session when its client falls silent.
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
        let at = session.control_sent_at + wait;
        self.timers.insert(id.index(), at, shared.last_turn);
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
        for _ in 0..self.blocked.peers() {
            let Some((peer, mut waiters)) = self.blocked.take_peer() else {
                break;
            };
            while let Some(id) = waiters.pop() {
                let Some(session) = self.sessions.get_mut(id) else {
                    continue;
                };
                session.blocked = false;
                self.send_pending(shared, now, id, sink);
                if self.sessions.get(id).is_some_and(|session| session.blocked) {
                    break;
                }
            }
            let sessions = &self.sessions;
            (self.blocked).put_back(peer, waiters, |id| sessions.get(id).is_some());
        }
    }

    /// Sends the connects that are due, those to one peer in as few datagrams as fit.
    #[cold]
    fn send_connects<S: FrameSink>(&mut self, shared: &mut Shared, now: u64, sink: &mut S) {
        let preamble = Token::NONE.preamble();
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
                token: shared.own_token_for(session.peer, sink).to_wire(),
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
            // The timer repeats it until it is answered.
            let _ = push_rare(sink, session.peer, &preamble, &head, &body, &[]);
        }
        if let Some(peer) = open {
            sink.seal(peer);
        }
    }
}
