//! Who gets a place: peers that connect, up to the limits, and who goes for them.
//!
//! A peer takes a file, its socket, and one more when it shares its message heap. It may do that only if
//! the device has told it so when it connected. A device that has no file to spare for a heap takes the
//! peer without one: that peer's messages are copied through the ring.
//!
//! A peer is *silent* while it has sent nothing since it connected, or since the device's user has closed
//! it. Nobody knows a silent peer, and it may be one that only takes places. When a place is wanted and
//! none is free, the peer that has been silent for longest is evicted.

use rustix::process::{Resource, getrlimit};
use starling_io::PeerId;

use super::ShmIo;
use super::accept_queue::OwnQueue;
use super::connections::{Connection, ConnectionState, PeerHeap};
use crate::config::ShmConfig;
use crate::handshake::{Abilities, Answer};
use crate::map::Side;
use crate::pending::CompletedHandshake;
use crate::sys;
use crate::users::Origin;

/// What became of peers that connected, so far.
#[derive(Default)]
pub(super) struct AdmissionCounts {
    /// Refused for lack of a place.
    pub(super) refused: u64,
    /// Evicted for others.
    pub(super) evicted: u64,
}

/// How many heaps for clients a device makes at most.
const MOST_OWN_HEAPS: usize = 64;

/// How many peers and heaps a device has at most.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub(super) peers: usize,
    /// Heaps of peers.
    pub(super) heaps: usize,
    /// Its own, for its clients.
    pub(super) own_heaps: usize,
}

impl Places {
    /// Those of a device with this configuration. One that accepts peers leaves a quarter of the
    /// process's files to others. Heaps of peers get an eighth of all files, and those that are more than
    /// peers may take. The device's own, which the process asks for, get an eighth of that quarter.
    pub(super) fn new(config: &ShmConfig, accepts: bool) -> Self {
        let takes_heaps = config.max_accepted_heap_bytes != 0;
        let makes_heaps = accepts && config.heap_bytes != 0;
        match getrlimit(Resource::Nofile).current {
            Some(files) if accepts => {
                let files = usize::try_from(files).unwrap_or(usize::MAX);
                let for_heaps = if takes_heaps { files / 8 } else { 0 };
                let own = files - files / 4;
                let peers = config.max_peers.min(own - for_heaps);
                let own_heaps = MOST_OWN_HEAPS.min(files / 32);
                Self {
                    peers,
                    heaps: if takes_heaps { own - peers } else { 0 },
                    own_heaps: if makes_heaps { own_heaps } else { 0 },
                }
            }
            _ => Self {
                peers: config.max_peers,
                heaps: if takes_heaps { config.max_peers } else { 0 },
                own_heaps: if makes_heaps { MOST_OWN_HEAPS } else { 0 },
            },
        }
    }

    /// Those of a device that needs few.
    pub(super) fn an_eighth(self) -> Self {
        Self {
            peers: self.peers.div_ceil(8),
            heaps: self.heaps / 8,
            ..self
        }
    }

    /// Those of several devices together, and the descriptors for them and their peers: what is left of three quarters
    /// when an eighth is for heaps.
    pub(super) fn of_several(self) -> (Self, usize) {
        let limit = getrlimit(Resource::Nofile).current;
        let files = limit.map_or(usize::MAX, |files| {
            usize::try_from(files).unwrap_or(usize::MAX)
        });
        let for_heaps = files / 8;
        let places = Self {
            peers: self.peers,
            heaps: self.heaps.min(for_heaps),
            own_heaps: 0,
        };
        (places, files - files / 4 - for_heaps)
    }

    /// The most heaps of one origin: half of them, so that none keeps all others from sharing theirs.
    fn heaps_of_one(self) -> usize {
        self.heaps.div_ceil(2)
    }
}

/// What peers can take of a process that accepts them: what one of them can, and all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeersBudget {
    /// Places of one process.
    pub places_of_one: usize,
    /// Places.
    pub places: usize,
    /// Descriptors for the places and message heaps of one process, and for heaps that are made for it.
    pub descriptors_of_one: usize,
    /// Descriptors for places, and for message heaps of clients and for them.
    pub descriptors: usize,
}

impl ShmConfig {
    /// What peers can take of a server with this configuration in a process with this one's limit of descriptors.
    pub fn peers_budget(&self) -> PeersBudget {
        let places = Places::new(self, true);
        let places_of_one = self.max_peers_of_one.min(places.peers);
        PeersBudget {
            places_of_one,
            places: places.peers,
            descriptors_of_one: places_of_one
                + places.heaps_of_one().min(places_of_one)
                + places.own_heaps.div_ceil(2),
            descriptors: places.peers + places.heaps.min(places.peers) + places.own_heaps,
        }
    }
}

impl ShmIo {
    /// A connection is removed.
    pub(super) fn forget(&self, connection: &Connection) {
        if connection.side == Side::Acceptor {
            self.forget_peer(connection.origin, connection.heap);
        }
    }

    /// A peer that had connected is gone, or was not taken.
    fn forget_peer(&self, origin: Option<Origin>, heap: PeerHeap) {
        if let Some(queue) = &self.queue {
            queue.forget(origin, heap != PeerHeap::None);
        }
    }

    /// Makes a peer of an accepted connection.
    pub(super) fn accept(&mut self, handshake: CompletedHandshake) {
        let origin = Origin::of(&handshake.socket);
        let Some(number) = self.place_for(origin) else {
            self.counts.refused += 1;
            self.forget_peer(origin, PeerHeap::None);
            // If the peer does not receive the answer, it sees the connection close.
            let _ = sys::send(&handshake.socket, &Answer::Full.encode());
            return;
        };
        let heap = self.heap_for(origin);
        let abilities = Abilities::own(&self.config, heap == PeerHeap::Awaited);
        let theirs = handshake.hello.abilities;
        if abilities.has_membarrier && theirs.has_membarrier {
            handshake.region.use_asymmetric_fences();
        }
        // A peer that cannot receive the answer is already gone, which the next poll finds.
        let _ = sys::send(&handshake.socket, &Answer::Welcome(abilities).encode());
        let inserted = self.insert(
            number,
            Side::Acceptor,
            handshake.socket,
            handshake.region,
            handshake.hello,
            None,
        );
        // If the kernel has no memory to poll another file, the peer sees a hang-up.
        if inserted.is_err() {
            self.forget_peer(origin, heap);
        } else {
            self.tx.set_accepted(number, theirs.max_heap, origin);
            self.set_silent(PeerId(number));
            if let Some(Some(connection)) = self.connections.get_mut(number as usize) {
                connection.origin = origin;
                connection.heap = heap;
            }
        }
    }

    /// The peer counts as silent from now on.
    pub(super) fn set_silent(&mut self, peer: PeerId) {
        self.rx.forget_sent(peer.0);
        self.silences += 1;
        if let Some(Some(connection)) = self.connections.get_mut(peer.0 as usize) {
            connection.silent_since = self.silences;
        }
    }

    /// A number for a peer of this origin; a silent peer goes for it if necessary.
    fn place_for(&mut self, origin: Option<Origin>) -> Option<u32> {
        let is_of_origin = |connection: &Connection| connection.origin == origin;
        // Those that are gone already.
        self.end_drained();
        let connections = self.connections.iter().flatten();
        let held = connections
            .filter(|&connection| is_of_origin(connection))
            .count();
        if origin.is_some() && held >= self.config.max_peers_of_one {
            self.evict(is_of_origin)?;
        }
        if self.free_number().is_none() {
            self.evict(|_| true)?;
        }
        self.free_number()
    }

    /// Whether a new peer of this origin may share its heap.
    pub(super) fn heap_for(&self, origin: Option<Origin>) -> PeerHeap {
        let connections = self.connections.iter().flatten();
        let with_heap = connections.filter(|connection| connection.heap != PeerHeap::None);
        let (mut all, mut of_origin) = (0, 0);
        for connection in with_heap {
            all += 1;
            of_origin += usize::from(origin.is_some() && connection.origin == origin);
        }
        let has_room = all < self.places.heaps && of_origin < self.places.heaps_of_one();
        if has_room && self.queue.as_ref().is_none_or(OwnQueue::take_heap) {
            PeerHeap::Awaited
        } else {
            PeerHeap::None
        }
    }

    /// Ends the connection of the peer that has been silent for longest, among some; `None` if none of
    /// them is silent.
    fn evict(&mut self, may_go: impl Fn(&Connection) -> bool) -> Option<()> {
        let silent = |&(number, connection): &(u32, &Connection)| {
            connection.side == Side::Acceptor
                && connection.state == ConnectionState::Open
                && may_go(connection)
                && !self.rx.has_sent(number)
                && self.rx.is_drained(number)
        };
        let connections = (0u32..).zip(&self.connections);
        let open = connections.filter_map(|(number, place)| Some((number, place.as_ref()?)));
        let longest = open
            .filter(silent)
            .min_by_key(|(_, connection)| connection.silent_since);
        let (number, _) = longest?;
        self.handle_hang_up(number);
        // If it has sent something just now, it goes when that is delivered.
        self.counts.evicted += 1;
        self.end_drained();
        self.connections[number as usize].is_none().then_some(())
    }
}
