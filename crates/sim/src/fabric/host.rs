//! The fabric's state of one host: its queues, its peer table, its clock and whether it runs.
//! The fabric does not know the code that runs on it.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use starling_io::{IoEvent, PeerGone, PeerId};

use crate::cpu::Work;
use crate::host_id::HostId;
use crate::net::{NodeId, PacketId};

/// How much a receive queue holds before the host drops datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveLimits {
    /// Datagrams.
    pub datagrams: usize,
    /// Bytes of payload.
    pub bytes: usize,
}

impl Default for ReceiveLimits {
    fn default() -> Self {
        Self {
            datagrams: 4096,
            bytes: 4 << 20,
        }
    }
}

/// Stands for no peer.
const NO_PEER: PeerId = PeerId(u32::MAX);

/// The addresses that a host's device has numbers for.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    /// The peers that are hosts, by host number.
    hosts: Vec<PeerId>,
    unknown: BTreeMap<SocketAddr, PeerId>,
    addresses: Vec<Option<SocketAddr>>,
    free: Vec<PeerId>,
}

impl Peers {
    /// The number of `address`, a new one if it has none.
    pub(crate) fn open(&mut self, address: SocketAddr) -> PeerId {
        if let Some(peer) = self.number(address) {
            return peer;
        }
        let peer = self.free.pop().unwrap_or_else(|| {
            self.addresses.push(None);
            PeerId(self.addresses.len() as u32 - 1)
        });
        self.addresses[peer.0 as usize] = Some(address);
        match HostId::of_address(address) {
            Some(host) => {
                let index = host.0 as usize;
                if index >= self.hosts.len() {
                    self.hosts.resize(index + 1, NO_PEER);
                }
                self.hosts[index] = peer;
            }
            None => {
                self.unknown.insert(address, peer);
            }
        }
        peer
    }

    /// Frees the number; returns the address it had.
    pub(crate) fn close(&mut self, peer: PeerId) -> Option<SocketAddr> {
        let address = self.addresses.get_mut(peer.0 as usize)?.take()?;
        match HostId::of_address(address) {
            Some(host) => self.hosts[host.0 as usize] = NO_PEER,
            None => {
                self.unknown.remove(&address);
            }
        }
        self.free.push(peer);
        Some(address)
    }

    pub(crate) fn number(&self, address: SocketAddr) -> Option<PeerId> {
        match HostId::of_address(address) {
            Some(host) => self.of_host(host),
            None => self.unknown.get(&address).copied(),
        }
    }

    /// The number of a host of the fabric.
    #[inline]
    pub(crate) fn of_host(&self, host: HostId) -> Option<PeerId> {
        let peer = *self.hosts.get(host.0 as usize)?;
        (peer != NO_PEER).then_some(peer)
    }

    pub(crate) fn len(&self) -> usize {
        self.addresses.len() - self.free.len()
    }
}

/// A monotonic clock that runs a little fast or slow, and jumps ahead now and then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HostClock {
    /// The start of the current drift, in the fabric's time, and the clock's reading then.
    since_ns: u64,
    read_ns: u64,
    /// Billionths of a second that it gains in each.
    drift_ppb: i32,
}

impl HostClock {
    /// Its reading.
    pub(crate) fn read(&self, now_ns: u64) -> u64 {
        let passed_ns = now_ns - self.since_ns;
        let gained_ns = i128::from(passed_ns) * i128::from(self.drift_ppb) / 1_000_000_000;
        self.read_ns + (i128::from(passed_ns) + gained_ns) as u64
    }

    /// When it will read `clock_ns`, or a little later.
    pub(crate) fn when(&self, clock_ns: u64) -> u64 {
        let ahead_ns = clock_ns.saturating_sub(self.read_ns);
        if self.drift_ppb == 0 {
            return self.since_ns.saturating_add(ahead_ns);
        }
        let pace = 1_000_000_000 + i128::from(self.drift_ppb);
        let passed_ns = (i128::from(ahead_ns) * 1_000_000_000).div_euclid(pace) + 1;
        let passed_ns = u64::try_from(passed_ns).unwrap_or(u64::MAX);
        self.since_ns.saturating_add(passed_ns)
    }

    pub(crate) fn jump(&mut self, by_ns: u64) {
        self.read_ns += by_ns;
    }

    pub(crate) fn drift(&mut self, now_ns: u64, ppb: i32) {
        self.read_ns = self.read(now_ns);
        self.since_ns = now_ns;
        self.drift_ppb = ppb;
    }
}

/// The wake events of a host that are in the event queue: the next one and a later one. Without
/// them a host that datagrams wake again and again would leave one more event for its timer in each
/// turn.
#[derive(Debug, Default)]
pub(crate) struct WakeTimes {
    times_ns: [Option<u64>; 2],
}

impl WakeTimes {
    /// The host wants to wake at `at_ns` or earlier. True if that needs a new event.
    pub(crate) fn add(&mut self, at_ns: u64) -> bool {
        let [next, later] = &mut self.times_ns;
        if next.is_some_and(|next_ns| next_ns <= at_ns) {
            return false;
        }
        let former = next.replace(at_ns);
        if later.is_none() {
            *later = former;
        }
        true
    }

    /// The wake event at `now_ns` was handled.
    pub(crate) fn remove(&mut self, now_ns: u64) {
        let [next, later] = &mut self.times_ns;
        if *later == Some(now_ns) {
            *later = None;
        }
        if *next == Some(now_ns) {
            *next = later.take();
        }
    }
}

/// The fabric's state of one host.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) node: NodeId,
    pub(crate) running: bool,
    pub(crate) paused_until_ns: u64,
    /// The work of the last turn takes until then.
    pub(crate) busy_until_ns: u64,
    pub(crate) busy_ns: u64,
    /// The device's work in this turn.
    pub(crate) work: Work,
    /// Frames that the device accepts before it is full.
    pub(crate) tx_frames_left: usize,
    /// Time that passed in this turn, as its user reports.
    pub(crate) spent_ns: u64,
    pub(crate) turn_at_ns: Option<u64>,
    pub(crate) wake_times: WakeTimes,
    pub(crate) clock: HostClock,
    pub(crate) queue: VecDeque<PacketId>,
    pub(crate) queue_bytes: usize,
    /// Datagrams that the card has not taken yet, in order.
    pub(crate) ring: VecDeque<PacketId>,
    /// How many of them the card knows of.
    pub(crate) posted: usize,
    /// How many it does not know of yet.
    pub(crate) unannounced: u32,
    pub(crate) waits_for_room: bool,
    /// A turn found the ring full.
    pub(crate) starved: bool,
    pub(crate) peers: Peers,
    pub(crate) events: VecDeque<IoEvent>,
}

impl Host {
    pub(crate) fn new(node: NodeId) -> Self {
        Self {
            node,
            running: true,
            paused_until_ns: 0,
            busy_until_ns: 0,
            busy_ns: 0,
            work: Work::default(),
            tx_frames_left: usize::MAX,
            spent_ns: 0,
            turn_at_ns: None,
            wake_times: WakeTimes::default(),
            clock: HostClock::default(),
            queue: VecDeque::new(),
            queue_bytes: 0,
            ring: VecDeque::new(),
            posted: 0,
            unannounced: 0,
            waits_for_room: false,
            starved: false,
            peers: Peers::default(),
            events: VecDeque::new(),
        }
    }

    /// The time before which it runs no turn.
    pub(crate) fn away_until_ns(&self) -> u64 {
        self.paused_until_ns.max(self.busy_until_ns)
    }

    /// The network reports that no process listens at `address`.
    pub(crate) fn unreachable(&mut self, address: SocketAddr) {
        if let Some(peer) = self.peers.number(address) {
            let event = IoEvent::PeerGone(peer, PeerGone::Suspected);
            if !self.events.contains(&event) {
                self.events.push_back(event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_drift_and_jump_and_never_go_back() {
        let mut clock = HostClock::default();
        assert_eq!((clock.read(500), clock.when(500)), (500, 500));
        clock.drift(1_000_000, 200_000);
        assert_eq!(clock.read(1_000_000), 1_000_000);
        assert_eq!(clock.read(2_000_000), 2_000_200);
        clock.jump(5_000);
        assert_eq!(clock.read(2_000_000), 2_005_200);
        clock.drift(2_000_000, -200_000);
        assert_eq!(clock.read(2_000_000), 2_005_200);
        assert_eq!(clock.read(3_000_000), 3_005_000);
        for clock_ns in [2_005_200, 2_500_000, 9_999_999] {
            let at_ns = clock.when(clock_ns);
            assert!(clock.read(at_ns) >= clock_ns);
            assert!(clock.read(at_ns) <= clock_ns + 2);
        }
    }

    #[test]
    fn a_timer_has_one_wake_event_however_often_others_come_first() {
        let mut wake_times = WakeTimes::default();
        assert!(wake_times.add(1_000));
        for now_ns in [10, 20, 30] {
            assert!(wake_times.add(now_ns));
            assert!(!wake_times.add(now_ns + 1));
            wake_times.remove(now_ns);
            assert!(!wake_times.add(1_000), "the first call added the event");
        }
        wake_times.remove(1_000);
        assert!(wake_times.add(1_000));
    }

    #[test]
    fn peer_numbers_are_dense_and_reused_only_after_close() {
        let mut peers = Peers::default();
        let (a, b) = (HostId(1).address(), HostId(2).address());
        assert_eq!(peers.open(a), PeerId(0));
        assert_eq!(peers.open(b), PeerId(1));
        assert_eq!(peers.open(a), PeerId(0));
        assert_eq!(peers.close(PeerId(0)), Some(a));
        assert_eq!(peers.close(PeerId(0)), None);
        assert_eq!(peers.number(a), None);
        assert_eq!(peers.close(PeerId(9)), None);
        assert_eq!(peers.open(a), PeerId(0));
        assert_eq!(peers.len(), 2);
    }
}
