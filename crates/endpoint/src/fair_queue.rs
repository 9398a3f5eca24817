//! A queue in which peers take turns by the time that they use, and so do the hosts that they belong to.
//!
//! Start-time fair queueing (Goyal, Vin and Cheng, IEEE/ACM ToN 5(5), 1997), one level for hosts and one for
//! the peers of each host. What an item costs is known when it was handled, and is added to what its peer and
//! its host have used. The next item is of the host that has used least, and there of the peer that has used
//! least. A peer that comes back counts as one that has used a little less than the one that was served last,
//! and no less: the time that it left to others is not owed to it.
//!
//! ```text
//!            used  0    10   20   30   40
//!  host A          ████████████████▌        peers: a ████████   b ████████▌
//!  host B          ████████▌                        c ████████▌       ◀── c is next
//! ```

mod level;

use std::collections::{HashMap, VecDeque};

use level::Level;
use starling_io::Origin;
use starling_proto::PeerId;

/// So many items of a peer may wait in memory that is kept for the next ones.
const FEW_ITEMS: usize = 8;

/// The share of a peer. It outlives the peer while items of it wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShareId(u32);

#[derive(Debug)]
struct PeerShare<T> {
    origin: u32,
    /// The peer is gone, and its number may be another one's.
    is_gone: bool,
    used_ns: u64,
    /// What its items cost since it began anew: a moving average.
    cost_ns: u64,
    /// The times that time was shared, when it began anew.
    begun: u64,
    items: VecDeque<T>,
}

#[derive(Debug)]
struct OriginShare {
    origin: Origin,
    used_ns: u64,
    peers: Level,
    /// The times that time was shared, when its peers began anew.
    begun: u64,
    /// Shares of its peers.
    known: u32,
    /// It is in [`FairQueue::indebted`].
    is_indebted: bool,
}

impl OriginShare {
    fn of(origin: Origin) -> Self {
        Self {
            origin,
            used_ns: 0,
            peers: Level::default(),
            begun: 0,
            known: 0,
            is_indebted: false,
        }
    }
}

impl<T> PeerShare<T> {
    fn of(origin: u32) -> Self {
        Self {
            origin,
            is_gone: false,
            used_ns: 0,
            cost_ns: 0,
            begun: 0,
            items: VecDeque::new(),
        }
    }
}

/// Items that wait for their peer's turn.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    hosts: Level,
    /// The times that time was shared.
    begun: u64,
    origins: Vec<OriginShare>,
    unused_origins: Vec<u32>,
    by_origin: HashMap<Origin, u32>,
    /// Hosts whose last peer has gone while others waited. What they have used counts if they come back.
    indebted: Vec<u32>,
    shares: Vec<Option<Box<PeerShare<T>>>>,
    unused_shares: Vec<u32>,
    /// Indexed by peer.
    by_peer: Vec<Option<ShareId>>,
    items: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            hosts: Level::default(),
            begun: 0,
            origins: Vec::new(),
            unused_origins: Vec::new(),
            by_origin: HashMap::new(),
            indebted: Vec::new(),
            shares: Vec::new(),
            unused_shares: Vec::new(),
            by_peer: Vec::new(),
            items: 0,
        }
    }
}

impl<T> FairQueue<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// Nothing waits: no host took time from others, and all begin anew.
    pub(crate) fn forget_debts(&mut self) {
        self.hosts.forget_debts();
        while let Some(origin) = self.indebted.pop() {
            let host = &mut self.origins[origin as usize];
            host.is_indebted = false;
            if host.known == 0 {
                self.release_origin(origin);
            }
        }
    }

    /// Time is not shared any more, and nothing waits. When it is again, all begin anew. Peers keep their shares:
    /// those who share time again and again need no more memory for it.
    pub(crate) fn end(&mut self) {
        debug_assert!(self.is_empty(), "the items would be lost");
        self.forget_debts();
        self.begun += 1;
    }

    /// Whether the next item of a peer is to be handled at once: nothing of the peer waits, and it has used
    /// little, also with what its items usually cost. Otherwise the item is for [`FairQueue::push`].
    pub(crate) fn admits(&self, id: ShareId) -> bool {
        let Some(Some(share)) = self.shares.get(id.0 as usize) else {
            return false;
        };
        let (used_ns, cost_ns) = (share.used_ns, share.cost_ns);
        let of_host = &self.origins[share.origin as usize];
        share.items.is_empty()
            && (of_host.peers.waiting.is_empty() || of_host.peers.admits(used_ns, cost_ns))
            && self.hosts.admits(of_host.used_ns, cost_ns)
    }

    /// A peer has used so much time.
    pub(crate) fn charge(&mut self, id: ShareId, spent_ns: u64) {
        let Some(Some(share)) = self.shares.get_mut(id.0 as usize) else {
            return;
        };
        let host = &mut self.origins[share.origin as usize];
        share.used_ns = host.peers.charged(share.used_ns, spent_ns);
        if host.peers.waiting.is_empty() {
            // It took nothing from others of the host.
            host.peers.used_ns = host.peers.used_ns.max(share.used_ns);
        }
        host.used_ns = self.hosts.charged(host.used_ns, spent_ns);
        self.release(id);
    }

    /// An item of the peer has cost so much.
    pub(crate) fn record_cost(&mut self, id: ShareId, cost_ns: u64) {
        if let Some(Some(share)) = self.shares.get_mut(id.0 as usize) {
            share.cost_ns = match share.cost_ns {
                0 => cost_ns,
                mean_ns => mean_ns - mean_ns / 8 + cost_ns / 8,
            };
        }
    }

    /// Puts an item behind those of its peer.
    pub(crate) fn push(&mut self, peer: PeerId, origin: impl FnOnce() -> Origin, item: T) {
        let id = self.share(peer, origin);
        let share = self.shares[id.0 as usize].as_mut();
        let share = share.expect("a peer's share is there");
        self.items += 1;
        share.items.push_back(item);
        if share.items.len() > 1 {
            return;
        }
        let (used_ns, origin) = (share.used_ns, share.origin);
        let host = &mut self.origins[origin as usize];
        host.peers.push(id.0, used_ns);
        if host.peers.waiting.len() == 1 {
            self.hosts.push(origin, host.used_ns);
        }
    }

    /// Removes the next item of the peer whose turn it is. To be followed by [`FairQueue::charge`].
    pub(crate) fn pop(&mut self) -> Option<(ShareId, T)> {
        let Self {
            hosts,
            origins,
            shares,
            items,
            ..
        } = self;
        let origin = hosts.pop(|origin| origins[origin as usize].used_ns)?;
        let host = &mut origins[origin as usize];
        let of_peer = |id: u32| {
            shares[id as usize]
                .as_ref()
                .map_or(0, |share| share.used_ns)
        };
        let id = host.peers.pop(of_peer)?;
        let share = shares[id as usize].as_mut()?;
        let item = share.items.pop_front()?;
        *items -= 1;
        // What this item costs is charged by when their next turns are looked for.
        match share.items.is_empty() {
            true => share.items.shrink_to(FEW_ITEMS),
            false => host.peers.push(id, share.used_ns),
        }
        if !host.peers.waiting.is_empty() {
            hosts.push(origin, host.used_ns);
        }
        Some((ShareId(id), item))
    }

    /// The device forgets a peer, and may use its number for another one. Items of it that wait keep their turns.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        let place = self.by_peer.get_mut(peer.0 as usize);
        let Some(id) = place.and_then(Option::take) else {
            return;
        };
        if let Some(Some(share)) = self.shares.get_mut(id.0 as usize) {
            share.is_gone = true;
        }
        self.release(id);
    }

    /// Frees the share of a peer that is gone, unless items of it wait.
    fn release(&mut self, id: ShareId) {
        let place = &mut self.shares[id.0 as usize];
        let Some(share) = place.take_if(|share| share.is_gone && share.items.is_empty()) else {
            return;
        };
        self.unused_shares.push(id.0);
        let host = &mut self.origins[share.origin as usize];
        host.known -= 1;
        if host.known > 0 || host.is_indebted {
            return;
        }
        // A host that is not known counts as one that has used so much.
        if host.used_ns > self.hosts.counted(0) {
            host.is_indebted = true;
            self.indebted.push(share.origin);
        } else {
            self.release_origin(share.origin);
        }
    }

    /// Frees the share of a host that has no peers.
    fn release_origin(&mut self, origin: u32) {
        let host = &self.origins[origin as usize];
        self.by_origin.remove(&host.origin);
        self.unused_origins.push(origin);
    }

    /// The share of a peer, if it has one.
    pub(crate) fn find(&self, peer: PeerId) -> Option<ShareId> {
        *self.by_peer.get(peer.0 as usize)?
    }

    /// The share of a peer.
    pub(crate) fn share(&mut self, peer: PeerId, origin: impl FnOnce() -> Origin) -> ShareId {
        if let Some(id) = self.find(peer) {
            self.begin_anew(id);
            return id;
        }
        let (origins, unused) = (&mut self.origins, &mut self.unused_origins);
        let host = origin();
        let origin = *self.by_origin.entry(host).or_insert_with(|| {
            let fresh = OriginShare::of(host);
            match unused.pop() {
                Some(origin) => {
                    origins[origin as usize] = fresh;
                    origin
                }
                None => {
                    origins.push(fresh);
                    (origins.len() - 1) as u32
                }
            }
        });
        origins[origin as usize].known += 1;
        let id = self.unused_shares.pop().unwrap_or_else(|| {
            self.shares.push(None);
            (self.shares.len() - 1) as u32
        });
        self.shares[id as usize] = Some(Box::new(PeerShare::of(origin)));
        let index = peer.0 as usize;
        if index >= self.by_peer.len() {
            self.by_peer.resize(index + 1, None);
        }
        self.by_peer[index] = Some(ShareId(id));
        self.begin_anew(ShareId(id));
        ShareId(id)
    }

    /// A peer begins anew, and so do those of its host among themselves, if they were not seen since time was last
    /// shared.
    fn begin_anew(&mut self, id: ShareId) {
        let Some(Some(share)) = self.shares.get_mut(id.0 as usize) else {
            return;
        };
        if std::mem::replace(&mut share.begun, self.begun) != self.begun {
            share.cost_ns = 0;
        }
        let host = &mut self.origins[share.origin as usize];
        if std::mem::replace(&mut host.begun, self.begun) != self.begun {
            host.peers.forget_debts();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::level::OWED_NS;
    use super::*;

    const US: u64 = 1_000;
    /// Any peer that is gone.
    const GONE: u32 = u32::MAX;

    /// Ten peers of each host.
    fn origin_of(peer: u32) -> Origin {
        Origin(u64::from(peer / 10))
    }

    fn push(queue: &mut FairQueue<u64>, peer: u32, cost_ns: u64) {
        queue.push(PeerId(peer), || origin_of(peer), cost_ns);
    }

    fn share_of(queue: &mut FairQueue<u64>, peer: u32) -> ShareId {
        queue.share(PeerId(peer), || origin_of(peer))
    }

    fn admits(queue: &mut FairQueue<u64>, peer: u32) -> bool {
        let id = share_of(queue, peer);
        queue.admits(id)
    }

    fn charge(queue: &mut FairQueue<u64>, peer: u32, spent_ns: u64) {
        let id = share_of(queue, peer);
        queue.charge(id, spent_ns);
    }

    /// Handles items until so much time has passed. Returns what each peer has had.
    fn serve(queue: &mut FairQueue<u64>, for_ns: u64) -> HashMap<u32, u64> {
        let (mut had, mut passed_ns) = (HashMap::new(), 0);
        while passed_ns < for_ns
            && let Some((id, cost_ns)) = queue.pop()
        {
            let peer = queue.by_peer.iter().position(|it| *it == Some(id));
            *had.entry(peer.map_or(GONE, |peer| peer as u32))
                .or_default() += cost_ns;
            queue.charge(id, cost_ns);
            passed_ns += cost_ns;
        }
        had
    }

    #[test]
    fn peers_have_equal_times_whatever_their_items_cost() {
        let mut queue = FairQueue::default();
        for _ in 0..1000 {
            push(&mut queue, 0, 100 * US);
            push(&mut queue, 1, 7 * US);
        }
        let had = serve(&mut queue, 10_000 * US);
        assert!(had[&0].abs_diff(had[&1]) <= 107 * US, "{had:?}");
        let rest = serve(&mut queue, u64::MAX);
        assert_eq!(had[&0] + rest[&0], 100_000 * US);
        assert_eq!(had[&1] + rest[&1], 7_000 * US);
        assert!(queue.is_empty());
    }

    #[test]
    fn hosts_have_equal_times_however_many_peers_they_have() {
        let mut queue = FairQueue::default();
        for _ in 0..1000 {
            (0..10).for_each(|peer| push(&mut queue, peer, 10 * US));
            push(&mut queue, 10, 10 * US);
        }
        let had = serve(&mut queue, 8_000 * US);
        assert!(had[&10].abs_diff(4_000 * US) <= 20 * US, "{had:?}");
        for peer in 0..10 {
            assert!(had[&peer].abs_diff(400 * US) <= 20 * US, "{had:?}");
        }
    }

    #[test]
    fn a_peer_that_asks_for_little_is_served_at_once_and_a_greedy_one_in_its_turn() {
        let mut queue = FairQueue::default();
        assert!(admits(&mut queue, 0));
        charge(&mut queue, 0, OWED_NS);
        assert!(
            admits(&mut queue, 0),
            "nobody knows what the next one costs"
        );
        let id = share_of(&mut queue, 0);
        queue.record_cost(id, 8 * US);
        assert!(!admits(&mut queue, 0));
        assert!(admits(&mut queue, 1) && admits(&mut queue, 10));
        charge(&mut queue, 0, 1);
        assert!(!admits(&mut queue, 1), "the host has used it");
        assert!(admits(&mut queue, 10));
        // What waits has its order, also for one that may be served.
        push(&mut queue, 10, US);
        assert!(!admits(&mut queue, 10));
        serve(&mut queue, u64::MAX);
        // When all that waited is served, whoever has used more than others may go on.
        assert!(!admits(&mut queue, 0));
        queue.forget_debts();
        assert!(queue.is_empty() && admits(&mut queue, 0));
    }

    #[test]
    fn time_that_a_peer_did_not_use_is_not_owed_to_it() {
        let mut queue = FairQueue::default();
        (0..1000).for_each(|_| push(&mut queue, 0, 10 * US));
        serve(&mut queue, 5_000 * US);
        (0..1000).for_each(|_| push(&mut queue, 10, 10 * US));
        let had = serve(&mut queue, 2_000 * US);
        assert!(had[&0].abs_diff(had[&10]) <= 20 * US, "{had:?}");
    }

    #[test]
    fn time_that_nobody_else_wanted_is_not_held_against_a_peer() {
        let mut queue = FairQueue::default();
        // One host alone, then two of its peers and another host.
        for round in 0..1000 {
            let admitted = admits(&mut queue, 0);
            assert!(admitted || round > 0);
            if !admitted {
                push(&mut queue, 0, 10 * US);
                assert_eq!(queue.pop(), Some((share_of(&mut queue, 0), 10 * US)));
            }
            charge(&mut queue, 0, 10 * US);
        }
        for _ in 0..1000 {
            for peer in [0, 1, 10] {
                push(&mut queue, peer, 10 * US);
            }
        }
        let had = serve(&mut queue, 4_000 * US);
        assert!(had[&0].abs_diff(1_000 * US) <= 2 * OWED_NS, "{had:?}");
        assert!(had[&10].abs_diff(2_000 * US) <= 2 * OWED_NS, "{had:?}");
    }

    #[test]
    fn who_shares_time_again_has_no_debts_and_little_memory_is_kept_for_it() {
        let mut queue = FairQueue::default();
        (0..100).for_each(|_| push(&mut queue, 0, 10 * US));
        let share = share_of(&mut queue, 0);
        serve(&mut queue, u64::MAX);
        // Another peer of the host is served last, which has used much less.
        push(&mut queue, 1, 30 * US);
        push(&mut queue, 1, US);
        push(&mut queue, 0, 1_000 * US);
        serve(&mut queue, u64::MAX);
        queue.end();
        queue.record_cost(share, 1_000 * US);
        assert_eq!(share_of(&mut queue, 0), share, "a peer keeps its share");
        assert!(admits(&mut queue, 0), "and what was slow may be fast now");
        let kept = queue.shares[0].as_ref().map(|share| share.items.capacity());
        assert!(matches!(kept, Some(1..=FEW_ITEMS)), "{kept:?}");
        for _ in 0..100 {
            (0..2).for_each(|peer| push(&mut queue, peer, 10 * US));
        }
        let had = serve(&mut queue, 500 * US);
        assert!(had[&0].abs_diff(had[&1]) <= 2 * OWED_NS, "{had:?}");
    }

    /// Its only client closes its sessions and connects again, by another port, after each item.
    #[test]
    fn a_host_that_comes_back_owes_the_time_that_it_used() {
        let mut queue = FairQueue::default();
        (0..2000).for_each(|_| push(&mut queue, 0, 10 * US));
        let mut of_host_1 = 0;
        for round in 0..1000 {
            let peer = 10 + round % 10;
            if admits(&mut queue, peer) {
                charge(&mut queue, peer, 10_000 * US);
                of_host_1 += 10_000 * US;
            }
            queue.forget(PeerId(peer));
            serve(&mut queue, 10 * US);
        }
        assert!(of_host_1 <= 20_000 * US, "{of_host_1} ns beside 10 ms");
        serve(&mut queue, u64::MAX);
        queue.end();
        assert!(queue.indebted.is_empty() && queue.by_origin.len() == 1);
        assert_eq!(queue.unused_origins.len() + 1, queue.origins.len());
    }

    /// A peer goes while items of it wait, and a peer of another host gets its number.
    #[test]
    fn a_number_that_is_used_again_has_the_turns_of_its_new_host() {
        let mut queue = FairQueue::default();
        for _ in 0..1000 {
            (0..10).for_each(|peer| push(&mut queue, peer, 10 * US));
        }
        queue.forget(PeerId(3));
        (0..2000).for_each(|_| queue.push(PeerId(3), || Origin(77), 10 * US));
        let had = serve(&mut queue, 8_000 * US);
        assert!(had[&3].abs_diff(4_000 * US) <= 20 * US, "{had:?}");
        for peer in [0, 1, 9, GONE] {
            assert!(had[&peer].abs_diff(400 * US) <= 20 * US, "{had:?}");
        }
        // All of the former's are handled, and its share ends with them.
        let rest = serve(&mut queue, u64::MAX);
        assert_eq!(had[&GONE] + rest[&GONE], 10_000 * US);
        assert!(queue.is_empty() && queue.unused_shares.len() == 1);
        (0..10).for_each(|peer| queue.forget(PeerId(peer)));
        queue.end();
        assert!(queue.by_origin.is_empty() && queue.unused_shares.len() == queue.shares.len());
    }
}
