//! Credits: how many packets each client may have on the way to this endpoint.
//!
//! eRPC splits its receive queue evenly and for good (NSDI'19, section 4.3.1). Here the places of the
//! queue are shared by demand. A session always has one credit. A session that has more to send
//! gets more. Idle sessions return theirs when others are short. A credit counts as granted until
//! the client confirms its return, or has ignored the demand for long.

use super::Server;
use super::session::ServerSession;
use crate::shared::Shared;
use crate::wire::{Frame, Limit};
use crate::{FrameSink, PeerId, SessionId};

/// Credits can be revoked from a session without traffic for this long.
const IDLE_NS: u64 = 1_000_000;
/// A credit frame that is not acknowledged for this long is sent again.
pub(super) const REPEAT_NS: u64 = 1_000_000;
/// Sessions that are looked at for one demand.
const SEARCH: usize = 64;
/// Of a session with one credit: its place among those with more.
pub(super) const SINGLE_CREDIT: u32 = u32::MAX;

impl Server {
    /// Credits that can be granted in all.
    pub(super) fn credit_limit(shared: &Shared) -> usize {
        shared.config.rx_queue_datagrams * shared.config.overcommit
    }

    fn credits_left(&self, shared: &Shared) -> usize {
        Self::credit_limit(shared).saturating_sub(self.granted)
    }

    /// Credits for a new session that could use `wanted`. `None`: not one credit is left.
    pub(super) fn first_grant(&self, shared: &Shared, wanted: u16) -> Option<u16> {
        let left = self.credits_left(shared);
        // The last quarter is kept for sessions that come later.
        let reserve = Self::credit_limit(shared) / 4;
        let generous = left.saturating_sub(reserve).min(usize::from(wanted)) as u16;
        (left > 0).then_some(generous.max(1))
    }

    /// A session has more to send than its credits allow.
    #[cold]
    pub(super) fn handle_want<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        id: SessionId,
        sink: &mut S,
    ) {
        let left = self.credits_left(shared);
        let session = self.sessions.get_mut(id).expect("the caller has it");
        let missing = usize::from(session.wanted - session.granted.min(session.wanted));
        if session.credit_is_unheard(now) {
            session.repeat_credit(now, sink);
        }
        if missing == 0 || session.revoking {
            return;
        }
        let more = missing.min(left);
        if more > 0 {
            let credits = session.granted + more as u16;
            self.set_credits(shared, id, credits);
            let session = self.sessions.get_mut(id).expect("the caller has it");
            session.push_credit(now, credits, sink);
        }
        if more < missing {
            let idle_since = now.saturating_sub(IDLE_NS);
            self.revoke(shared, now, idle_since, Some(id), missing - more, sink);
        }
    }

    /// A new session finds no credit left: credits are revoked from a session with more than one.
    /// Returns whether the client should ask again: that can help, and no credit is left yet.
    pub(super) fn make_room<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        sink: &mut S,
    ) -> bool {
        let can_help = !self.multi_credit.is_empty();
        if can_help {
            self.revoke(shared, now, now, None, 1, sink);
        }
        can_help && self.credits_left(shared) == 0
    }

    /// Tells sessions to return all credits but one: those without traffic since `idle_since`, and those of
    /// origins that have twice as many credits as that of session `except`, which asks for them.
    fn revoke<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        idle_since: u64,
        except: Option<SessionId>,
        mut missing: usize,
        sink: &mut S,
    ) {
        let of_origin = |shared: &Shared, session: &ServerSession| {
            let origin = shared.peers.holder(session.peer).origin;
            shared.peers.origins.credits(origin)
        };
        missing = missing.saturating_sub(self.reclaim_ignored(shared, now, missing, sink));
        if missing == 0 {
            return;
        }
        let asks = except.and_then(|id| self.sessions.get(id));
        let fair = asks.map_or(usize::MAX, |asks| 2 * of_origin(shared, asks));
        for _ in 0..SEARCH.min(self.multi_credit.len()) {
            self.reclaim_at = (self.reclaim_at + 1) % self.multi_credit.len();
            let id = self.multi_credit[self.reclaim_at];
            let session = self.sessions.get_mut(id).expect("it is among the sessions");
            let gives = session.active_at <= idle_since || of_origin(shared, session) >= fair;
            if Some(id) == except || !gives {
                continue;
            }
            if !session.revoking {
                session.revoking = true;
                session.revoke_repeated = false;
                session.revoked_at = now;
                if !std::mem::replace(&mut session.in_revoked_queue, true) {
                    self.revoked_queue.push_back((now, id));
                }
                session.revoke_number = session.credit_number + 1;
                shared.stats.credits_revoked += u64::from(session.granted - 1);
                session.push_credit(now, 1, sink);
            } else if session.credit_is_unheard(now) {
                session.repeat_credit(now, sink);
            }
            missing = missing.saturating_sub(usize::from(session.granted - 1));
            if missing == 0 {
                break;
            }
        }
    }

    /// Takes credits back from sessions that were told to return them long ago, those of the longest ago first.
    /// Returns how many, about `missing`.
    fn reclaim_ignored<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        now: u64,
        missing: usize,
        sink: &mut S,
    ) -> usize {
        if self.revoked_queue.len() > 2 * shared.config.max_sessions {
            let sessions = &self.sessions;
            (self.revoked_queue).retain(|(_, id)| sessions.get(*id).is_some());
        }
        let (mut taken, mut told, mut place) = (0, 0, 0);
        for _ in 0..SEARCH {
            let Some(&(since, id)) = self.revoked_queue.get(place) else {
                break;
            };
            let Some(session) = self.sessions.get_mut(id).filter(|it| it.revoking) else {
                self.revoked_queue.remove(place);
                if let Some(session) = self.sessions.get_mut(id) {
                    session.in_revoked_queue = false;
                }
                continue;
            };
            if session.revoked_at > since {
                // It has returned credits, and was told again.
                self.revoked_queue.remove(place);
                (self.revoked_queue).push_back((session.revoked_at, id));
                continue;
            }
            let is_old = now - since >= shared.config.keepalive_ns;
            let held = usize::from(session.granted - 1);
            if !session.credit_is_unheard(now) {
                place += 1;
            } else if is_old && session.revoke_repeated {
                // The client was told repeatedly and does not answer, or does not want to. Packets
                // that it sends beyond its credits are no worse than those of any other sender.
                taken += held;
                session.revoking = false;
                session.in_revoked_queue = false;
                self.set_credits(shared, id, 1);
                self.revoked_queue.remove(place);
            } else {
                told += held;
                session.repeat_credit(now, sink);
                if is_old {
                    // What it was told first may be lost, and nobody has asked since. It has as long again.
                    session.revoked_at = now;
                }
                place += 1;
            }
            if !is_old || taken + told >= missing {
                break;
            }
        }
        taken
    }

    /// A client confirms its credits.
    pub(crate) fn handle_credit_ack(
        &mut self,
        shared: &mut Shared,
        peer: PeerId,
        frame: Frame<'_>,
    ) {
        let id = SessionId::from_wire(frame.header.session);
        let session = self
            .sessions
            .get_mut(id)
            .filter(|session| session.peer == peer);
        let number = frame.header.number;
        let session = session.filter(|session| number <= session.credit_number);
        let (Some(session), Some(_)) = (session, Limit::parse(frame.payload)) else {
            shared.stats.frames_stale += 1;
            return;
        };
        session.acked_number = session.acked_number.max(number);
        // All credit frames since then tell it to come down to one, whatever it says that it has.
        if session.revoking && number >= session.revoke_number {
            session.revoking = false;
            self.set_credits(shared, id, 1);
        }
    }

    /// A session has `credits` from now on, which `granted` and its origin's sum count.
    pub(super) fn set_credits(&mut self, shared: &mut Shared, id: SessionId, credits: u16) {
        let session = self.sessions.get_mut(id).expect("the caller has it");
        let origin = shared.peers.holder(session.peer).origin;
        for sum in [&mut self.granted, shared.peers.origins.credits_mut(origin)] {
            *sum = *sum + usize::from(credits) - usize::from(session.granted);
        }
        session.granted = credits;
        match session.multi_credit_at {
            SINGLE_CREDIT if credits > 1 => {
                session.multi_credit_at = self.multi_credit.len() as u32;
                self.multi_credit.push(id);
            }
            at if at != SINGLE_CREDIT && credits <= 1 => {
                session.multi_credit_at = SINGLE_CREDIT;
                self.multi_credit.swap_remove(at as usize);
                if let Some(moved) = self.multi_credit.get(at as usize) {
                    let moved = self.sessions.get_mut(*moved);
                    moved.expect("it is among the sessions").multi_credit_at = at;
                }
            }
            _ => {}
        }
    }
}
