//! How much each peer holds of what all share, and which peer gives way when it is used up.
//!
//! ```text
//!  size class          origins in it            peers of an origin     holdings of a peer, oldest first
//!  ┌───────────────┐   ┌──────────┐
//!  │ 1.00 - 1.06 M ├──▶│ origin 3 ├──▶ ..      origin 3 ──▶ peer 7     peer 7 ──▶ entry ◀──▶ entry
//!  │ 1.06 - 1.13 M │   └──────────┘                          ▲ ▼                    │ what it is
//!  │ ...           │                                       peer 2                   ▼
//!  └───────────────┘                                                         a session and slot
//! ```
//!
//! A peer is one endpoint, an origin the host or user that it belongs to: a host that opens a thousand sockets
//! does not get a thousand shares. The origin that holds the most gives way, in it the peer that holds the most, and
//! of what that peer holds, the oldest.
//!
//! All lists are linked through tables, and an origin that holds more or less moves from one size class to
//! another. So each step takes the same time however much is held, and finding a peer looks at [`LOOKS`]
//! peers of an origin at most. Classes are a sixteenth apart: of origins that differ by less than that, any
//! counts as the one that holds the most.

use crate::PeerId;
use crate::origins::OriginId;

/// A position in one of the tables here.
type Index = u32;
/// No position: the end of a list.
const NONE: Index = Index::MAX;

/// Classes of sizes for each power of two: 2 to the power of this.
const CLASS_BITS: u32 = 4;
/// So many that each amount has one.
const CLASSES: usize = ((usize::BITS - CLASS_BITS + 1) << CLASS_BITS) as usize;

/// Peers of an origin that are compared in one search. The next search begins behind them.
const LOOKS: usize = 64;

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
    /// Neighbours in the ring of the origin's peers that hold something.
    previous: Index,
    next: Index,
}

const NO_PEER: PeerTotal = PeerTotal {
    amount: 0,
    oldest: NONE,
    newest: NONE,
    previous: NONE,
    next: NONE,
};

/// What one origin holds.
#[derive(Clone, Debug)]
struct OriginTotal {
    amount: usize,
    /// The peer in the ring at which the next search begins.
    peers: Index,
    /// Neighbours in the list of its class. An origin that holds nothing is in no list.
    previous: Index,
    next: Index,
}

const NO_ORIGIN: OriginTotal = OriginTotal {
    amount: 0,
    peers: NONE,
    previous: NONE,
    next: NONE,
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
    /// The first origin of each class. No memory until something is held.
    classes: Vec<Index>,
    /// A bit for each class that has origins.
    occupied: [u64; CLASSES.div_ceil(64)],
}

impl<T: Copy> Holdings<T> {
    pub(crate) fn new() -> Self {
        Self {
            total: 0,
            entries: Vec::new(),
            free: NONE,
            peers: Vec::new(),
            origins: Vec::new(),
            classes: Vec::new(),
            occupied: [0; CLASSES.div_ceil(64)],
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
        if self.peers[peer.0 as usize].newest == NONE {
            self.enter_ring(origin, peer);
        }
        self.link(index);
        let amount = holding.amount as usize;
        self.total += amount;
        self.peers[peer.0 as usize].amount += amount;
        self.resize(origin, self.origins[origin.0 as usize].amount + amount);
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
        if self.peers[peer.0 as usize].newest == NONE {
            self.leave_ring(origin, peer);
        }
        self.resize(origin, self.origins[origin.0 as usize].amount - amount);
    }

    /// What is oldest becomes what is newest of its peer: another is looked at first the next time.
    pub(crate) fn renew(&mut self, id: HoldingId) {
        self.unlink(id.0);
        self.link(id.0);
    }

    /// The oldest holding of the peer that holds the most. `None`: nothing is held.
    pub(crate) fn oldest_of_largest(&mut self) -> Option<(HoldingId, Holding<T>)> {
        let word = self.occupied.iter().rposition(|word| *word != 0)?;
        let class = word * 64 + self.occupied[word].ilog2() as usize;
        let peer = self.largest_peer(OriginId(self.classes[class]))?;
        Some(self.oldest_of(peer))
    }

    /// The oldest holding of a peer that holds so much more that it gives way to another that wants `amount`: the
    /// other then still holds no more than half of what it held. Looks at the largest origin first, then at
    /// the other peers of the same origin.
    pub(crate) fn gives_way_to(
        &mut self,
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

    /// The peer of an origin that holds the most, of the next few.
    fn largest_peer(&mut self, origin: OriginId) -> Option<PeerId> {
        let first = self.origins.get(origin.0 as usize)?.peers;
        if first == NONE {
            return None;
        }
        let (mut largest, mut peer) = (first, first);
        for _ in 0..LOOKS {
            peer = self.peers[peer as usize].next;
            if peer == first {
                break;
            }
            if self.peers[peer as usize].amount > self.peers[largest as usize].amount {
                largest = peer;
            }
        }
        self.origins[origin.0 as usize].peers = peer;
        Some(PeerId(largest))
    }

    fn make_places(&mut self, origin: OriginId, peer: PeerId) {
        if peer.0 as usize >= self.peers.len() {
            self.peers.resize(peer.0 as usize + 1, NO_PEER);
        }
        if origin.0 as usize >= self.origins.len() {
            self.origins.resize(origin.0 as usize + 1, NO_ORIGIN);
            self.classes.resize(CLASSES, NONE);
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

    /// A peer that held nothing comes into the ring of its origin, behind all others.
    fn enter_ring(&mut self, origin: OriginId, peer: PeerId) {
        let peer = peer.0;
        let ring = &mut self.origins[origin.0 as usize].peers;
        if *ring == NONE {
            *ring = peer;
            (
                self.peers[peer as usize].previous,
                self.peers[peer as usize].next,
            ) = (peer, peer);
            return;
        }
        let next = *ring;
        let previous = std::mem::replace(&mut self.peers[next as usize].previous, peer);
        self.peers[previous as usize].next = peer;
        (
            self.peers[peer as usize].previous,
            self.peers[peer as usize].next,
        ) = (previous, next);
    }

    fn leave_ring(&mut self, origin: OriginId, peer: PeerId) {
        let PeerTotal { previous, next, .. } = self.peers[peer.0 as usize];
        self.peers[previous as usize].next = next;
        self.peers[next as usize].previous = previous;
        let ring = &mut self.origins[origin.0 as usize].peers;
        if *ring == peer.0 {
            *ring = if next == peer.0 { NONE } else { next };
        }
    }

    /// An origin holds so much from now on.
    fn resize(&mut self, origin: OriginId, amount: usize) {
        let origin = origin.0 as usize;
        let before = std::mem::replace(&mut self.origins[origin].amount, amount);
        if class_of(before) == class_of(amount) {
            return;
        }
        if before > 0 {
            self.leave_class(origin, class_of(before));
        }
        if amount > 0 {
            self.enter_class(origin, class_of(amount));
        }
    }

    fn enter_class(&mut self, origin: usize, class: usize) {
        let next = std::mem::replace(&mut self.classes[class], origin as Index);
        if next == NONE {
            self.occupied[class / 64] |= 1 << (class % 64);
        } else {
            self.origins[next as usize].previous = origin as Index;
        }
        self.origins[origin].previous = NONE;
        self.origins[origin].next = next;
    }

    fn leave_class(&mut self, origin: usize, class: usize) {
        let OriginTotal { previous, next, .. } = self.origins[origin];
        match previous {
            NONE => self.classes[class] = next,
            previous => self.origins[previous as usize].next = next,
        }
        if next != NONE {
            self.origins[next as usize].previous = previous;
        } else if previous == NONE {
            self.occupied[class / 64] &= !(1 << (class % 64));
        }
    }
}

/// The class of an amount: the place of its highest bit, and the four bits behind it.
fn class_of(amount: usize) -> usize {
    let shift = (amount | 1).ilog2().saturating_sub(CLASS_BITS);
    ((shift as usize) << CLASS_BITS) + (amount >> shift)
}

#[cfg(test)]
mod tests;
