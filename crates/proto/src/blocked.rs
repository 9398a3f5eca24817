//! Sessions that found the sink full, by peer.
//!
//! A device's room is a peer's, or all peers have it together. So if one session of a peer finds no room, the
//! peer's others find none either: a flush tries each peer once, however many sessions wait behind it.

use std::collections::{HashMap, VecDeque};

use crate::{PeerId, SessionId};

/// Sessions of one peer that are looked through for ended ones, at least.
const FEW: usize = 64;

/// The sessions of one peer that wait, in the order in which they are tried.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    sessions: VecDeque<SessionId>,
    /// With so many, those that have ended are dropped.
    prune_at: usize,
}

impl Waiters {
    /// The next session to try.
    pub(crate) fn pop(&mut self) -> Option<SessionId> {
        self.sessions.pop_front()
    }
}

/// The sessions that wait for room.
#[derive(Debug, Default)]
pub(crate) struct Blocked {
    /// Each peer with sessions that wait, in the order in which peers are tried.
    peers: VecDeque<PeerId>,
    by_peer: HashMap<PeerId, Waiters>,
    /// Memory for the next peer that waits.
    spare: Waiters,
}

impl Blocked {
    /// A session waits that did not.
    pub(crate) fn push(&mut self, peer: PeerId, session: SessionId) {
        let (peers, spare) = (&mut self.peers, &mut self.spare);
        let waiters = self.by_peer.entry(peer).or_insert_with(|| {
            peers.push_back(peer);
            std::mem::take(spare)
        });
        waiters.sessions.push_back(session);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// Sessions that wait, and some that have ended while they did.
    pub(crate) fn len(&self) -> usize {
        let waiters = self.by_peer.values();
        waiters.map(|waiters| waiters.sessions.len()).sum()
    }

    /// Peers to try in this flush: so many times [`Blocked::take_peer`].
    pub(crate) fn peers(&self) -> usize {
        self.peers.len()
    }

    /// The sessions of the next peer. Those that are left go back by [`Blocked::put_back`].
    pub(crate) fn take_peer(&mut self) -> Option<(PeerId, Waiters)> {
        let peer = self.peers.pop_front()?;
        Some((peer, self.by_peer.remove(&peer)?))
    }

    /// What is left of a peer's sessions after one of them found no room. They stay in their order; sessions
    /// that came to wait meanwhile are before them.
    pub(crate) fn put_back(
        &mut self,
        peer: PeerId,
        mut left: Waiters,
        is_there: impl Fn(SessionId) -> bool,
    ) {
        if left.sessions.len() >= left.prune_at.max(FEW) {
            left.sessions.retain(|session| is_there(*session));
            left.prune_at = 2 * left.sessions.len();
        }
        if left.sessions.is_empty() {
            left.prune_at = 0;
            self.spare = left;
            return;
        }
        match self.by_peer.get_mut(&peer) {
            Some(waiters) => {
                waiters.sessions.append(&mut left.sessions);
                waiters.prune_at = left.prune_at;
            }
            None => {
                self.by_peer.insert(peer, left);
                self.peers.push_back(peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u32) -> SessionId {
        SessionId::from_wire(index)
    }

    /// The sessions of the next peer, all of them.
    fn next(blocked: &mut Blocked) -> Vec<SessionId> {
        let (peer, mut waiters) = blocked.take_peer().expect("a peer waits");
        let all = std::iter::from_fn(|| waiters.pop()).collect();
        blocked.put_back(peer, waiters, |_| true);
        all
    }

    #[test]
    fn peers_take_turns_and_their_sessions_keep_their_order() {
        let mut blocked = Blocked::default();
        for (peer, session) in [(1, 10), (2, 20), (1, 11), (2, 21), (1, 12)] {
            blocked.push(PeerId(peer), id(session));
        }
        assert_eq!((blocked.peers(), blocked.len()), (2, 5));
        let (peer, mut waiters) = blocked.take_peer().expect("a peer waits");
        assert_eq!((peer, waiters.pop()), (PeerId(1), Some(id(10))));
        // It finds no room again.
        blocked.push(PeerId(1), id(10));
        blocked.put_back(peer, waiters, |_| true);
        assert_eq!(next(&mut blocked), [id(20), id(21)]);
        assert_eq!(next(&mut blocked), [id(10), id(11), id(12)]);
        assert!(blocked.is_empty());
    }

    #[test]
    fn a_peer_whose_sessions_come_and_go_takes_no_more_memory() {
        let mut blocked = Blocked::default();
        for session in 0..100_000 {
            blocked.push(PeerId(1), id(session));
            let (peer, mut waiters) = blocked.take_peer().expect("a peer waits");
            let first = waiters.pop().expect("a session");
            blocked.push(peer, first);
            // The last eight of them have not ended.
            blocked.put_back(peer, waiters, |other| {
                other.to_wire() + 8 > session && other != first
            });
            assert_eq!(blocked.peers(), 1);
            assert!(blocked.len() <= FEW + 1, "{session}");
        }
    }
}
