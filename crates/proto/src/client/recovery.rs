//! Loss recovery: what is sent again when an answer does not come, and which parts of a response
//! are asked for.
//!
//! A client repeats requests; a server sends no response again of its own. A lost response is asked for again here:
//!
//! ```text
//!  timeout of a slot ──▶ handle_request_timer ──▶ retransmit
//!                                                   │ request of one packet: the request again;
//!                                                   │   the server answers with its stored response
//!                                                   │ request of several: the lost fragments, or
//!                                                   │   the last one if all arrived
//!                                                   └ response of several: a request for response
//!  flush, a slot has an RFR due ──▶ send_rfrs: the fragments that are missing (eRPC's RFR)
//! ```

use super::session::ClientSession;
use super::slot::{Large, Phase};
use super::{Client, PACER_TICK_NS, arm, first_timeout_ns, is_full, pace};
use crate::congestion::Ack;
use crate::shared::Shared;
use crate::wire::flags;
use crate::{FrameSink, SessionError, SessionId};

/// Retries of a request before its silence counts as the server's silence.
const MIN_RETRIES: u8 = 5;

/// Requests that their servers are known to execute are asked for at so many times in the longest
/// retransmission timeout.
const ASKS_APART: u64 = 4;

impl Client {
    /// Sends again what had no answer in time, and puts the session's timer to its next slot.
    pub(super) fn handle_request_timer<S: FrameSink>(
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
        let mut asked = false;
        while busy != 0 {
            let index = busy.trailing_zeros() as usize;
            busy &= busy - 1;
            let slot = &session.slots[index];
            // No packet of it is on its way: it waits for a credit, its pacing time, or the sink.
            let waits =
                (session.pending | session.paced_rfrs) & 1 << index != 0 && slot.credits == 0;
            if !waits {
                let at = slot.active_at + session.timeout_ns(index, config);
                if now >= at && asked && slot.is_confirmed() {
                    // The answer to the one that was asked for says whether this one is executed.
                    let at = now + first_timeout_ns(session, config);
                    next = Some(next.map_or(at, |next: u64| next.min(at)));
                    continue;
                }
                if now >= at {
                    asked |= slot.executing;
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
            let mut at =
                slot.active_at.max(if waits { now } else { 0 }) + session.timeout_ns(index, config);
            if slot.is_confirmed() {
                // Sessions ask together, in few turns: with thousands of them, turns are what asking costs.
                at = at.next_multiple_of((config.rto_max_ns / ASKS_APART).max(1));
            }
            next = Some(next.map_or(at, |next: u64| next.min(at)));
        }
        if let Some(at) = next {
            // A long-running request has a long timeout. It must not delay the detection of another
            // request's loss: a request that is sent earlier than that moves the timer forward.
            session.timer_armed = at <= now + first_timeout_ns(session, config);
            self.timers.insert(id.index(), at, shared.last_turn);
        }
        if unconfirmed {
            // The peer may be alive, but the two ends of this session disagree: no retry would help.
            self.end(shared, now, id, SessionError::PeerSilent, sink);
            return;
        }
        if resend {
            self.send_pending(shared, now, id, sink);
        }
    }

    /// Asks for responses that the server has sent and that have not come.
    #[cold]
    pub(super) fn ask_again<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: SessionId,
        mut slots: u64,
        sink: &mut S,
    ) {
        let session = self.sessions.get_mut(id).expect("the caller has it");
        while slots != 0 {
            let index = slots.trailing_zeros() as usize;
            slots &= slots - 1;
            shared.stats.retransmissions += 1;
            // Nothing of a request that is executed is left to send, so the session has nothing pending.
            retransmit(&mut self.rfr_queue, session, index, now, sink);
        }
    }

    /// Sends the requests for response (RFR) that are due: one for each slot, however much arrived.
    /// An RFR names the fragments that are missing, those taken for lost included.
    #[cold]
    pub(super) fn send_rfrs<S: FrameSink>(&mut self, shared: &mut Shared, now: u64, sink: &mut S) {
        for _ in 0..self.rfr_queue.len() {
            let Some((id, index)) = self.rfr_queue.pop_front() else {
                break;
            };
            let index = usize::from(index);
            // Pending requests come first: a large response would otherwise hold all credits until
            // it is complete. The response still makes progress, see below.
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
            // With nothing on its way no arrival would free a credit: one is always allowed.
            let idle = window.outstanding() == 0;
            let missing = window.find_missing(now, srtt_ns);
            let asked = missing.min(u32::from(free.min(room)).max(u32::from(idle)));
            if missing > u32::from(free) && free < room && session.credits < session.most_credits {
                session.start = session.start.with(flags::WANT);
            }
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
                // The rest waits for its pacing time.
                slot.rfr_due = true;
                session.paced_rfrs |= 1 << index;
                let at = session.control.next_send_ns();
                pace(&mut self.pacer, session, at, shared.last_turn);
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
}

/// Sends again what is outstanding in a slot. Returns whether the session has pending packets now.
fn retransmit<S: FrameSink>(
    rfr_queue: &mut std::collections::VecDeque<(SessionId, u8)>,
    session: &mut ClientSession,
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
                // All fragments arrived and there is no answer: the last one is sent again.
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
