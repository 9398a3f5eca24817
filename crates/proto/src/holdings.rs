//! How much each peer holds of what all share, and which peer gives way when it is used up.
//!
//! ```text
//!  origins, the largest on top     peers of an origin, likewise       holdings of a peer, oldest first
//!            origin 3 ─────────────────────▶ peer 7 ─────────────────▶ entry ◀──▶ entry ◀──▶ entry
//!           ╱        ╲                      ╱      ╲                     │ what it is
//!     origin 1      origin 2            peer 2    peer 5                 ▼
//!                                                                a session and slot
//! ```
//!
//! A peer is one endpoint, an origin the host or user that it belongs to: a host that opens a thousand sockets
//! does not get a thousand shares. The origin that holds the most gives way, in it the peer that holds the most, and
//! of what that peer holds, the oldest.
//!
//! Lists are linked through tables, and rankings are binary heaps ([`ranking`]). So a step takes a time that grows
//! with the logarithm of the peers, however much is held.

mod ranking;

use crate::PeerId;
use crate::origins::OriginId;
use ranking::{Ranked, Ranking};

/// A position in one of the tables here.
type Index = u32;
/// No position: the end of a list.
const NONE: Index = Index::MAX;

/// Names a holding, until it is removed. The default names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HoldingId(Index);

impl Default for HoldingId {
    fn default() -> Self {
        Self(NONE)
    }
}

/// A peer that holds something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) origin: OriginId,
    pub(crate) peer: PeerId,
}

/// Something that a peer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holding<T> {
    pub(crate) holder: Holder,
    pub(crate) amount: u32,
    pub(crate) what: T,
}

#[derive(Debug)]
struct Entry<T> {
    holding: Holding<T>,
    /// The next older and the next newer one of the peer; of a free entry, the next free one.
    older: Index,
    newer: Index,
}

/// What one peer holds.
#[derive(Clone, Debug)]
struct PeerTotal {
    amount: usize,
    oldest: Index,
    newest: Index,
    /// In the ranking of its origin's peers.
    place: Index,
}

impl Ranked for PeerTotal {
    fn amount(&self) -> usize {
        self.amount
    }

    fn place(&mut self) -> &mut Index {
        &mut self.place
    }
}

const NO_PEER: PeerTotal = PeerTotal {
    amount: 0,
    oldest: NONE,
    newest: NONE,
    place: NONE,
};

/// What one origin holds.
#[derive(Debug)]
struct OriginTotal {
    amount: usize,
    peers: Ranking,
    place: Index,
}

impl Ranked for OriginTotal {
    fn amount(&self) -> usize {
        self.amount
    }

    fn place(&mut self) -> &mut Index {
        &mut self.place
    }
}

const NO_ORIGIN: OriginTotal = OriginTotal {
    amount: 0,
    peers: Ranking::EMPTY,
    place: NONE,
};

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Holdings<T> {
    total: usize,
    entries: Vec<Entry<T>>,
    /// The first free entry.
    free: Index,
    peers: Vec<PeerTotal>,
    origins: Vec<OriginTotal>,
    largest: Ranking,
}

impl<T: Copy> Holdings<T> {
    pub(crate) fn new() -> Self {
        Self {
            total: 0,
            entries: Vec::new(),
            free: NONE,
            peers: Vec::new(),
            origins: Vec::new(),
            largest: Ranking::EMPTY,
        }
    }

    /// What all hold together.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// A peer holds this from now on. It is its newest.
    pub(crate) fn insert(&mut self, holding: Holding<T>) -> HoldingId {
        let Holder { origin, peer } = holding.holder;
        self.make_places(origin, peer);
        let entry = Entry {
            holding,
            older: NONE,
            newer: NONE,
        };
        let index = match self.free {
            NONE => {
                self.entries.push(entry);
                (self.entries.len() - 1) as Index
            }
            free => {
                self.free = self.entries[free as usize].newer;
                self.entries[free as usize] = entry;
                free
            }
        };
        self.link(index);
        let amount = holding.amount as usize;
        self.total += amount;
        self.peers[peer.0 as usize].amount += amount;
        self.origins[origin.0 as usize].amount += amount;
        self.rank(holding.holder);
        HoldingId(index)
    }

    /// A peer does not hold this any more. Does nothing if `id` names none.
    pub(crate) fn remove(&mut self, id: HoldingId) {
        let HoldingId(index) = id;
        if index == NONE {
            return;
        }
        let holding = self.entries[index as usize].holding;
        let Holder { origin, peer } = holding.holder;
        self.unlink(index);
        self.entries[index as usize].newer = self.free;
        self.free = index;
        let amount = holding.amount as usize;
        self.total -= amount;
        self.peers[peer.0 as usize].amount -= amount;
        self.origins[origin.0 as usize].amount -= amount;
        self.rank(holding.holder);
    }

    /// What is oldest becomes what is newest of its peer: another is looked at first the next time.
    pub(crate) fn renew(&mut self, id: HoldingId) {
        self.unlink(id.0);
        self.link(id.0);
    }

    /// The oldest holding of the peer that holds the most. `None`: nothing is held.
    pub(crate) fn oldest_of_largest(&self) -> Option<(HoldingId, Holding<T>)> {
        let origin = OriginId(self.largest.first()?);
        Some(self.oldest_of(self.largest_peer(origin)?))
    }

    /// The oldest holding of a peer that holds so much more that it gives way to another that wants `amount`: the
    /// other then still holds no more than half of what it held. Looks at the largest origin first, then at
    /// the other peers of the same origin.
    pub(crate) fn gives_way_to(
        &self,
        wants: Option<Holder>,
        amount: usize,
    ) -> Option<(HoldingId, Holding<T>)> {
        let (id, oldest) = self.oldest_of_largest()?;
        let largest = oldest.holder.origin;
        let held = wants.map_or(0, |wants| self.of_origin(wants.origin));
        if wants.is_none_or(|wants| wants.origin != largest)
            && (held + amount) * 2 <= self.of_origin(largest)
        {
            return Some((id, oldest));
        }
        let wants = wants?;
        let neighbour = match wants.origin == largest {
            true => oldest.holder.peer,
            false => self.largest_peer(wants.origin)?,
        };
        let held = self.of_peer(wants.peer);
        ((held + amount) * 2 <= self.of_peer(neighbour)).then(|| self.oldest_of(neighbour))
    }

    /// Whether a peer holds as much as another that wants `more` would have then: of two origins, whether they do.
    pub(crate) fn holds_as_much(&self, peer: Holder, wants: Option<Holder>, more: usize) -> bool {
        match wants {
            Some(wants) if wants.origin == peer.origin => {
                self.of_peer(peer.peer) >= self.of_peer(wants.peer) + more
            }
            _ => {
                let held = wants.map_or(0, |wants| self.of_origin(wants.origin));
                self.of_origin(peer.origin) >= held + more
            }
        }
    }

    fn of_origin(&self, origin: OriginId) -> usize {
        let total = self.origins.get(origin.0 as usize);
        total.map_or(0, |total| total.amount)
    }

    fn of_peer(&self, peer: PeerId) -> usize {
        let total = self.peers.get(peer.0 as usize);
        total.map_or(0, |total| total.amount)
    }

    /// The oldest holding of a peer that has one.
    fn oldest_of(&self, peer: PeerId) -> (HoldingId, Holding<T>) {
        let oldest = self.peers[peer.0 as usize].oldest;
        (HoldingId(oldest), self.entries[oldest as usize].holding)
    }

    /// The peer of an origin that holds the most.
    fn largest_peer(&self, origin: OriginId) -> Option<PeerId> {
        let origin = self.origins.get(origin.0 as usize)?;
        origin.peers.first().map(PeerId)
    }

    fn make_places(&mut self, origin: OriginId, peer: PeerId) {
        if peer.0 as usize >= self.peers.len() {
            self.peers.resize(peer.0 as usize + 1, NO_PEER);
        }
        if origin.0 as usize >= self.origins.len() {
            (self.origins).resize_with(origin.0 as usize + 1, || NO_ORIGIN);
        }
    }

    /// Puts an entry behind the newest one of its peer.
    fn link(&mut self, index: Index) {
        let peer = self.entries[index as usize].holding.holder.peer.0 as usize;
        let older = std::mem::replace(&mut self.peers[peer].newest, index);
        match older {
            NONE => self.peers[peer].oldest = index,
            older => self.entries[older as usize].newer = index,
        }
        self.entries[index as usize].older = older;
        self.entries[index as usize].newer = NONE;
    }

    fn unlink(&mut self, index: Index) {
        let Entry {
            ref holding,
            older,
            newer,
        } = self.entries[index as usize];
        let peer = holding.holder.peer.0 as usize;
        match older {
            NONE => self.peers[peer].oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
        match newer {
            NONE => self.peers[peer].newest = older,
            newer => self.entries[newer as usize].older = older,
        }
    }

    /// A peer and its origin hold more or less than before.
    fn rank(&mut self, holder: Holder) {
        let (origin, peer) = (holder.origin.0, holder.peer.0);
        let peers = &mut self.origins[origin as usize].peers;
        match self.peers[peer as usize].newest {
            NONE => peers.remove(&mut self.peers, peer),
            _ => peers.update(&mut self.peers, peer),
        }
        match peers.first() {
            None => self.largest.remove(&mut self.origins, origin),
            Some(_) => self.largest.update(&mut self.origins, origin),
        }
    }
}

#[cfg(test)]
mod tests;
