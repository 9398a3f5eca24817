//! Responses that are sent at the end of a turn: what found the sink full, and what clients ask for again.
//!
//! A frame of a few bytes asks for up to 64 fragments, and a client may repeat it. So a slot sends once in a turn
//! what its client asked for in this turn, and a flush sends no more than [`FLUSH_BYTES`] of all of this.

use crate::blocked::Blocked;
use crate::server::Server;
use crate::server::session::ServerSession;
use crate::server::slot::{Large, Phase};
use crate::shared::Shared;
use crate::{FrameSink, SessionId, SinkError};

/// A flush sends so much, and a message or fragment more at most. To copy it takes some 50 us.
const FLUSH_BYTES: usize = 512 << 10;

impl Server {
    /// The response in a slot, or what its client wants of it, is sent by a flush.
    #[cold]
    pub(super) fn send_later(&mut self, shared: &mut Shared, id: SessionId, slot: usize) {
        let session = self.sessions.get_mut(id).expect("checked before");
        shared.ask_flush();
        session.pending |= 1 << slot;
        block(&mut self.blocked, session, id);
    }

    /// Sends what waits, of one peer after the other: of each until it has no room, and of all until
    /// [`FLUSH_BYTES`] are sent; see [`Server::has_rest`]. The next flush begins with the next peer.
    #[cold]
    pub(super) fn send_unsent<S: FrameSink>(&mut self, shared: &mut Shared, sink: &mut S) {
        let mut budget = FLUSH_BYTES;
        self.has_rest = false;
        for _ in 0..self.blocked.peers() {
            if budget == 0 {
                break;
            }
            let Some((peer, mut waiters)) = self.blocked.take_peer() else {
                break;
            };
            while let Some(id) = waiters.pop() {
                if !self.send_unsent_of(shared, id, &mut budget, sink) {
                    break;
                }
            }
            let sessions = &self.sessions;
            (self.blocked).put_back(peer, waiters, |id| sessions.get(id).is_some());
        }
        self.has_rest = budget == 0 && !self.blocked.is_empty();
    }

    /// Sends what waits of one session. False: there was no room for all of it, or `budget` is used up.
    fn send_unsent_of<S: FrameSink>(
        &mut self,
        shared: &mut Shared,
        id: SessionId,
        budget: &mut usize,
        sink: &mut S,
    ) -> bool {
        let Some(session) = self.sessions.get_mut(id) else {
            return true;
        };
        session.blocked = false;
        while session.pending != 0 {
            let index = session.pending.trailing_zeros() as usize;
            match session.send_slot(index, budget, sink) {
                Sent::All => session.pending &= !(1 << index),
                Sent::Some => {}
                Sent::Full => {
                    shared.stats.sink_full += 1;
                    block(&mut self.blocked, session, id);
                    return false;
                }
            }
            if *budget == 0 {
                if session.pending != 0 {
                    block(&mut self.blocked, session, id);
                }
                return false;
            }
        }
        true
    }
}

/// How much of a slot was sent.
enum Sent {
    All,
    /// As much as the budget allows.
    Some,
    /// The sink is full.
    Full,
}

impl ServerSession {
    fn send_slot<S: FrameSink>(&mut self, index: usize, budget: &mut usize, sink: &mut S) -> Sent {
        let slot = &self.slots[index];
        if slot.phase != Phase::Done {
            return Sent::All;
        }
        let Some(&Large::Unsent { base, want }) = slot.cold.large() else {
            *budget = budget.saturating_sub(slot.response_len().min(self.fragment as usize));
            return match self.push_response(index, sink) {
                Err(SinkError::Full) => Sent::Full,
                _ => Sent::All,
            };
        };
        let fragment = self.fragment as usize;
        let now = lowest_bits(want, budget.div_ceil(fragment));
        let left = self.push_fragments(index, base, now, sink);
        let sent = (now.count_ones() - left.count_ones()) as usize;
        *budget = budget.saturating_sub(sent * fragment);
        let want = want & !now | left;
        let unsent = (want != 0).then_some(Large::Unsent { base, want });
        self.slots[index].cold.set_large(unsent);
        match (left, want) {
            (0, 0) => Sent::All,
            (0, _) => Sent::Some,
            _ => Sent::Full,
        }
    }
}

/// The lowest bits that are set, so many of them.
fn lowest_bits(bits: u64, count: usize) -> u64 {
    let mut rest = bits;
    for _ in 0..count.min(64) {
        rest &= rest.wrapping_sub(1);
    }
    bits & !rest
}

fn block(blocked: &mut Blocked, session: &mut ServerSession, id: SessionId) {
    if !session.blocked {
        session.blocked = true;
        blocked.push(session.peer, id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_bits_are_as_many_as_there_are() {
        assert_eq!(lowest_bits(0b1011_0100, 0), 0);
        assert_eq!(lowest_bits(0b1011_0100, 1), 0b100);
        assert_eq!(lowest_bits(0b1011_0100, 3), 0b11_0100);
        assert_eq!(lowest_bits(0b1011_0100, 1000), 0b1011_0100);
        assert_eq!(lowest_bits(u64::MAX, 64), u64::MAX);
    }
}
