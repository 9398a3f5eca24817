//! Requests that workers claimed ([`crate::Claims`]): the server's state becomes what it would be if
//! the server had received and answered them itself.

use std::sync::Arc;

use super::session::ServerSession;
use super::slot::Phase;
use super::{Server, displace, stale};
use crate::claims::{Claim, Claims, SessionInfo};
use crate::peer::Peer;
use crate::shared::Shared;
use crate::table::SPARE;
use crate::wire::Frame;
use crate::{Event, Msgbuf, PeerId, Prefix, RequestId, RequestNumber, RespondReason, SessionId};

impl Server {
    /// From now on workers may claim requests of the sessions at the first `places` places.
    pub(crate) fn share_claims(&mut self, shared: &mut Shared, places: usize) -> Arc<Claims> {
        shared.fast_path = false;
        let places = places.min(shared.config.max_sessions.saturating_add(SPARE));
        let claims = Arc::new(Claims::new(places, shared.config.slots));
        for (_, session) in self.sessions.iter() {
            claims.open(&session.info(shared), session.numbers());
        }
        self.claims = Some(Arc::clone(&claims));
        claims
    }

    /// A session begins: workers may claim its requests.
    pub(super) fn open_claims(&self, shared: &Shared, id: SessionId) {
        if let Some(claims) = &self.claims {
            let session = self.sessions.get(id).expect("just opened");
            claims.open(&session.info(shared), session.numbers());
        }
    }

    /// A session is over. An event tells of requests that a worker runs and has not reported yet.
    pub(super) fn close_claims(&self, shared: &mut Shared, id: SessionId, session: &ServerSession) {
        let Some(claims) = &self.claims else {
            return;
        };
        claims.close(id, |index, number| {
            if number > session.slots.get(index).map_or(0, |slot| slot.number) {
                let id = RequestId::new(session.handle, index as u8, number);
                shared.events.push_back(Event::RequestAbandoned { id });
            }
        });
    }

    /// Claims the request of a frame for the dispatcher. If a worker has claimed it or a later one,
    /// the slot's number says so afterwards.
    pub(crate) fn claim(&mut self, shared: &mut Shared, now: u64, peer: PeerId, frame: &Frame<'_>) {
        let Some(claims) = &self.claims else {
            return;
        };
        let (id, index) = (frame.session(), usize::from(frame.header.slot));
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if session.peer == peer && session.slots.enter(index).is_some() {
            let before = claims.raise(id, index, frame.header.number);
            session.record_claim(shared, now, index, before);
        }
    }

    /// Records a request that a worker claimed: it is being executed. False: no client waits for it.
    pub(crate) fn handle_claimed_request(
        &mut self,
        shared: &mut Shared,
        now: u64,
        claim: &Claim,
    ) -> bool {
        shared.stats.requests_received += 1;
        let id = claim.id();
        let Some(session) = self.sessions.get_exact_mut(id) else {
            return false;
        };
        shared.peers.record_heard(claim.peer(), now);
        session.active_at = session.active_at.max(now);
        let index = usize::from(id.slot());
        if session.slots.enter(index).is_none() {
            return false;
        }
        session.record_claim(shared, now, index, id.number);
        let slot = &mut session.slots[index];
        let is_wanted = slot.number == id.number && slot.phase == Phase::Executing;
        if is_wanted {
            // Also if a copy without a mark reached the dispatcher first.
            slot.flags |= claim.flags();
        }
        is_wanted
    }

    /// Records the response that a worker sent: `message`, for which its claim gave a head. It is
    /// kept like a response of this endpoint itself.
    pub(crate) fn handle_claimed_response(
        &mut self,
        shared: &mut Shared,
        now: u64,
        claim: &Claim,
        message: &mut Msgbuf,
    ) -> Result<(), RespondReason> {
        debug_assert!(claim.response_head(message).is_some(), "it was sent");
        if !self.handle_claimed_request(shared, now, claim) {
            return Err(stale(shared));
        }
        let session = self.sessions.get_mut(claim.id().session());
        let slot = &mut session.expect("adopted").slots[usize::from(claim.id().slot())];
        slot.phase = Phase::Done;
        // The flags are those that the worker sent, so a repetition is the same frame.
        slot.flags = slot.flags_of_answer(now, Prefix::NONE.ext);
        slot.store(message);
        shared.stats.responses_sent += 1;
        Ok(())
    }
}

impl ServerSession {
    fn info(&self, shared: &Shared) -> SessionInfo {
        let peer = shared.peers.get(self.peer).and_then(Peer::own_preamble);
        SessionInfo {
            handle: self.handle,
            peer: self.peer,
            remote: self.remote,
            token: self.token,
            own_preamble: peer.expect("a session refers to the peer"),
            small_buffer: self.small_buffer,
        }
    }

    /// The highest request number of each slot.
    fn numbers(&self) -> impl Iterator<Item = RequestNumber> {
        let number = |index| self.slots.get(index).map_or(0, |slot| slot.number);
        (0..self.slots.count()).map(number)
    }

    /// Request `number` in a slot was claimed. If it is above the slot's number, a worker has it.
    fn record_claim(&mut self, shared: &mut Shared, now: u64, index: usize, number: RequestNumber) {
        let slot = &mut self.slots[index];
        if number <= slot.number {
            return;
        }
        if slot.phase == Phase::Executing {
            let last = RequestId::new(self.handle, index as u8, slot.number);
            displace(shared, last);
        }
        slot.recycle(shared);
        slot.number = number;
        slot.phase = Phase::Executing;
        // It came before this turn, in which its client may use the slot again.
        slot.arrived_at = now.saturating_sub(1);
        slot.fragments = 0;
        slot.flags = 0;
    }
}
