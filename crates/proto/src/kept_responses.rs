//! Which responses a server keeps, for which client, and how much memory they take.
//!
//! ```text
//!  size class          peers in it                  responses of a peer, oldest first
//!  ┌───────────────┐   ┌────────┐    ┌────────┐
//!  │ 1.00 - 1.06 M ├──▶│ peer 7 │◀──▶│ peer 2 │     peer 7 ──▶ entry ◀──▶ entry ◀──▶ entry
//!  │ 1.06 - 1.13 M │   └────────┘    └────────┘                  │ session and slot
//!  │ ...           │                                             ▼
//!  └───────────────┘                                           Slot
//! ```
//!
//! One budget holds for all of them. If a response does not fit, the client that holds the most loses its
//! oldest one. All lists are linked through tables, and a peer that holds more or less moves from one
//! size class to another, so each step here takes the same time however much is kept. Classes are a
//! sixteenth apart: of peers that differ by less than that, any counts as the one that holds the most.
//!
//! Only responses in memory of their own are here. One of up to 512 bytes lies in memory that its slot
//! keeps anyway and never comes here, so a small call pays nothing for this.

use crate::{PeerId, SessionId};

/// A position in one of the tables here.
type Index = u32;
/// No position: the end of a list.
const NONE: Index = Index::MAX;

/// Classes of sizes for each power of two: 2 to the power of this.
const CLASS_BITS: u32 = 4;
/// So many that each number of bytes has one.
const CLASSES: usize = ((usize::BITS - CLASS_BITS + 1) << CLASS_BITS) as usize;

/// Names a kept response, until it is removed. The default names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptId(Index);

impl Default for KeptId {
    fn default() -> Self {
        Self(NONE)
    }
}

/// The whereabouts of a kept response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) peer: PeerId,
    pub(crate) session: SessionId,
    pub(crate) slot: u8,
    /// The memory that it takes.
    pub(crate) bytes: u32,
}

#[derive(Debug)]
struct Entry {
    kept: Kept,
    /// The next older and the next newer response of the peer; of a free entry, the next free one.
    older: Index,
    newer: Index,
}

/// The responses that are kept for one peer.
#[derive(Clone, Debug)]
struct Holder {
    bytes: usize,
    oldest: Index,
    newest: Index,
    /// Neighbours in the list of its class. A holder of nothing is in no list.
    previous: Index,
    next: Index,
}

const NOTHING: Holder = Holder {
    bytes: 0,
    oldest: NONE,
    newest: NONE,
    previous: NONE,
    next: NONE,
};

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct KeptResponses {
    bytes: usize,
    entries: Vec<Entry>,
    /// The first free entry.
    free: Index,
    /// By peer.
    holders: Vec<Holder>,
    /// The first holder of each class. No memory until the first response is kept.
    classes: Vec<Index>,
    /// A bit for each class that has holders.
    occupied: [u64; CLASSES.div_ceil(64)],
}

impl KeptResponses {
    pub(crate) fn new() -> Self {
        Self {
            bytes: 0,
            entries: Vec::new(),
            free: NONE,
            holders: Vec::new(),
            classes: Vec::new(),
            occupied: [0; CLASSES.div_ceil(64)],
        }
    }

    /// Memory of all of them.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// A response is kept from now on. It is the newest one of its peer.
    pub(crate) fn insert(&mut self, kept: Kept) -> KeptId {
        let peer = kept.peer.0 as usize;
        if peer >= self.holders.len() {
            self.holders.resize(peer + 1, NOTHING);
            self.classes.resize(CLASSES, NONE);
        }
        let older = self.holders[peer].newest;
        let entry = Entry {
            kept,
            older,
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
        match older {
            NONE => self.holders[peer].oldest = index,
            older => self.entries[older as usize].newer = index,
        }
        self.holders[peer].newest = index;
        self.bytes += kept.bytes as usize;
        self.resize(peer, self.holders[peer].bytes + kept.bytes as usize);
        KeptId(index)
    }

    /// A response is not kept any more. Does nothing if `id` names none.
    pub(crate) fn remove(&mut self, id: KeptId) {
        let KeptId(index) = id;
        if index == NONE {
            return;
        }
        let Entry { kept, older, newer } = self.entries[index as usize];
        let peer = kept.peer.0 as usize;
        match older {
            NONE => self.holders[peer].oldest = newer,
            older => self.entries[older as usize].newer = newer,
        }
        match newer {
            NONE => self.holders[peer].newest = older,
            newer => self.entries[newer as usize].older = older,
        }
        self.entries[index as usize].newer = self.free;
        self.free = index;
        self.bytes -= kept.bytes as usize;
        self.resize(peer, self.holders[peer].bytes - kept.bytes as usize);
    }

    /// The oldest response of the peer that holds the most. `None`: nothing is kept.
    pub(crate) fn oldest_of_largest(&self) -> Option<Kept> {
        let word = self.occupied.iter().rposition(|word| *word != 0)?;
        let class = word * 64 + self.occupied[word].ilog2() as usize;
        let holder = &self.holders[self.classes[class] as usize];
        Some(self.entries[holder.oldest as usize].kept)
    }

    /// A peer holds so many bytes from now on.
    fn resize(&mut self, peer: usize, bytes: usize) {
        let before = std::mem::replace(&mut self.holders[peer].bytes, bytes);
        if class_of(before) == class_of(bytes) {
            return;
        }
        if before > 0 {
            self.leave(peer, class_of(before));
        }
        if bytes > 0 {
            self.enter(peer, class_of(bytes));
        }
    }

    fn enter(&mut self, peer: usize, class: usize) {
        let next = std::mem::replace(&mut self.classes[class], peer as Index);
        if next == NONE {
            self.occupied[class / 64] |= 1 << (class % 64);
        } else {
            self.holders[next as usize].previous = peer as Index;
        }
        self.holders[peer].previous = NONE;
        self.holders[peer].next = next;
    }

    fn leave(&mut self, peer: usize, class: usize) {
        let Holder { previous, next, .. } = self.holders[peer];
        match previous {
            NONE => self.classes[class] = next,
            previous => self.holders[previous as usize].next = next,
        }
        if next != NONE {
            self.holders[next as usize].previous = previous;
        } else if previous == NONE {
            self.occupied[class / 64] &= !(1 << (class % 64));
        }
    }
}

/// The class of a number of bytes: the place of its highest bit, and the four bits behind it.
fn class_of(bytes: usize) -> usize {
    let shift = (bytes | 1).ilog2().saturating_sub(CLASS_BITS);
    ((shift as usize) << CLASS_BITS) + (bytes >> shift)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn kept(peer: u32, slot: u8, bytes: u32) -> Kept {
        Kept {
            peer: PeerId(peer),
            session: SessionId::NONE,
            slot,
            bytes,
        }
    }

    #[test]
    fn classes_ascend_without_gaps_and_are_a_sixteenth_apart() {
        for bytes in 1..100_000_usize {
            let step = class_of(bytes) - class_of(bytes - 1);
            assert!(step <= 1, "{bytes}");
            if step == 0 && bytes > 32 {
                let first = (1..=bytes)
                    .rev()
                    .find(|less| class_of(*less) != class_of(bytes));
                assert!(bytes - first.unwrap() <= bytes / 16 + 1, "{bytes}");
            }
        }
        assert!(class_of(usize::MAX) < CLASSES);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Keep(Kept),
        /// Removes one of those that are kept.
        Remove(prop::sample::Index),
        Evict,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..5_u32, any::<u8>(), 1..100_000_u32)
                .prop_map(|(peer, slot, bytes)| Step::Keep(kept(peer, slot, bytes))),
            any::<prop::sample::Index>().prop_map(Step::Remove),
            Just(Step::Evict),
        ]
    }

    proptest! {
        #[test]
        fn the_peer_that_holds_the_most_loses_its_oldest(steps in prop::collection::vec(step(), 0..300)) {
            let mut responses = KeptResponses::new();
            // All that is kept, oldest first.
            let mut model: Vec<(KeptId, Kept)> = Vec::new();
            for step in steps {
                match step {
                    Step::Keep(kept) => model.push((responses.insert(kept), kept)),
                    Step::Remove(_) if model.is_empty() => responses.remove(KeptId::default()),
                    Step::Remove(which) => {
                        let (id, _) = model.remove(which.index(model.len()));
                        responses.remove(id);
                    }
                    Step::Evict => {
                        let mut held = BTreeMap::<u32, usize>::new();
                        for (_, kept) in &model {
                            *held.entry(kept.peer.0).or_default() += kept.bytes as usize;
                        }
                        let most = held.values().max().copied();
                        let Some(victim) = responses.oldest_of_largest() else {
                            prop_assert_eq!(most, None);
                            continue;
                        };
                        let (holds, most) = (held[&victim.peer.0], most.unwrap());
                        prop_assert!(holds + most / 16 >= most, "{} of {}", holds, most);
                        let oldest = model.iter().position(|(_, kept)| kept.peer == victim.peer);
                        let (id, oldest) = model.remove(oldest.unwrap());
                        prop_assert_eq!(victim, oldest);
                        responses.remove(id);
                    }
                }
                let sum: usize = model.iter().map(|(_, kept)| kept.bytes as usize).sum();
                prop_assert_eq!(responses.bytes(), sum);
                prop_assert_eq!(responses.oldest_of_largest().is_none(), model.is_empty());
            }
        }
    }

    #[test]
    fn entries_are_used_again() {
        let mut responses = KeptResponses::new();
        for round in 0..100 {
            let ids: Vec<_> = (0..10)
                .map(|slot| responses.insert(kept(round % 3, slot, 600)))
                .collect();
            for id in ids {
                responses.remove(id);
            }
        }
        assert_eq!((responses.entries.len(), responses.bytes()), (10, 0));
    }
}
