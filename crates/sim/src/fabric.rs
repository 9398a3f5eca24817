//! The fabric: hosts on a network, and the event queue, in virtual time.
//!
//! ```text
//!  host ──▶ ring ──▶ card (rate, queue) ──▶ rules (faults) ──▶ switches ──▶ receive queue ──▶ host
//!    ▲                                                                                          │
//!    └──────── turn: due at once, at a timer, after a pause, when the thread is free ◀──────────┘
//! ```
//!
//! All events are in one queue, ordered by time and then by insertion. The fabric's own generator
//! is the only source of randomness. So a run depends only on the configuration, the seed and the
//! actions of its user between two [`Fabric::step`]s.
//!
//! The fabric does not know the code that runs on its hosts. `step` says whose turn it is; the user
//! runs that host's event loop once, against its [`SimIo`](crate::SimIo), and steps on. With a
//! [`CpuModel`] the user also reports the turn's work ([`Fabric::end_turn`]): the host's thread is
//! then busy for the cost of that work, and the turn's datagrams leave when that time is over.

mod forwarding;
mod host;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use starling_ethernet::Drop;
use starling_prefetch::prefetch;

pub use crate::faults::{Departure, DepartureHook, Fault, Rule, Treatment};
pub use crate::host_id::HostId;
pub use crate::net::LinkConfig;
pub use host::ReceiveLimits;

pub(crate) use host::Host;

use crate::cpu::{CpuModel, Work};
use crate::event_queue::EventQueue;
use crate::faults::Rules;
use crate::net::{Framing, Network, NodeId, Outage, PacketId, Packets, PortStats, Topology};
use crate::rng::Rng;
use crate::trace::{DropCause, Trace};

/// With fewer hosts than this all their state stays in a cache.
const PREFETCH_MIN_HOSTS: usize = 16;

/// Datagrams of a queue that are prefetched before they are read.
const PREFETCH_DEPTH: usize = 8;

/// A fabric that the devices on it share.
pub type SharedFabric = Arc<Mutex<Fabric>>;

/// The settings that all hosts and links of a fabric share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricConfig {
    /// Seed of the random generator.
    pub seed: u64,
    /// The largest datagram payload, bytes.
    pub max_datagram: usize,
    /// Nodes, switches and cables.
    pub topology: Topology,
    /// Each node's link into the network, in a topology without cables.
    pub link: LinkConfig,
    /// Each host's receive queue.
    pub receive: ReceiveLimits,
    /// Datagrams that a host may have posted and its card not sent yet. Only with a `cpu` that
    /// costs something: otherwise the card's own queue is all there is.
    pub ring: usize,
    /// The cost of a turn.
    pub cpu: CpuModel,
    /// Time from a datagram's arrival at an idle host to the turn that reads it, ns. The same burst
    /// reads the datagrams that arrive in between.
    pub poll_ns: u64,
    /// A host whose process is not running answers datagrams with "port unreachable" (ICMP).
    pub port_unreachable: bool,
    /// Datagrams cross as Ethernet frames of this kind, which devices write and read.
    pub framing: Option<Framing>,
}

impl Default for FabricConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            max_datagram: 1472,
            topology: Topology::mesh(),
            link: LinkConfig::default(),
            receive: ReceiveLimits::default(),
            ring: 512,
            cpu: CpuModel::FREE,
            poll_ns: 300,
            port_unreachable: false,
            framing: None,
        }
    }
}

/// The next action of the fabric's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Run this host's event loop once.
    Turn(HostId),
    /// A timer of [`Fabric::set_timer`] expired; the value is the user's.
    Timer(u64),
}

/// How much happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams that left their sender.
    pub sent: u64,
    /// Datagrams that entered a receive queue.
    pub delivered: u64,
    /// Datagrams that did not, by cause.
    pub dropped: BTreeMap<DropCause, u64>,
    /// Copies that duplication rules made.
    pub duplicated: u64,
    /// Datagrams delivered with flipped bits.
    pub corrupted: u64,
    /// Datagrams delivered to a host drawn at random.
    pub misrouted: u64,
    /// Datagrams that rules held back.
    pub delayed: u64,
    /// How devices handled frames.
    pub frames: FrameCounts,
}

/// How devices handled the frames that arrived, where datagrams cross as frames, and how they
/// should have handled them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameCounts {
    /// Frames that arrived damaged.
    pub damaged: u64,
    /// Frames that were dropped, by reason.
    pub dropped: BTreeMap<Drop, u64>,
    /// Frames that were accepted although they were damaged.
    pub passed: u64,
    /// Frames that were dropped for no reason, or whose sender, marks or length the device read
    /// wrongly.
    pub misread: u64,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrival(PacketId),
    /// The card learns of `count` more datagrams in the ring.
    Doorbell {
        host: HostId,
        count: u32,
    },
    /// The card has room for more of it.
    Room(HostId),
    /// The host's turn may be due.
    Wake(HostId),
    Timer(u64),
    Unreachable {
        sender: HostId,
        peer: HostId,
    },
}

/// Hosts and links in virtual time.
pub struct Fabric {
    config: FabricConfig,
    events: EventQueue<Event>,
    packets: Packets,
    network: Network,
    rng: Rng,
    hosts: Vec<Host>,
    rules: Rules,
    departure_hook: Option<DepartureHook>,
    counters: Counters,
    trace: Trace,
    upcoming_turns: Vec<HostId>,
    ignores_checksums: bool,
}

impl Fabric {
    /// A fabric without hosts at time 0.
    ///
    /// # Panics
    /// If its topology is inconsistent.
    pub fn new(config: FabricConfig) -> Self {
        Self {
            rng: Rng::new(config.seed),
            network: Network::new(&config.topology, config.link),
            config,
            events: EventQueue::default(),
            packets: Packets::default(),
            hosts: Vec::new(),
            rules: Rules::default(),
            departure_hook: None,
            counters: Counters::default(),
            trace: Trace::default(),
            upcoming_turns: Vec::new(),
            ignores_checksums: false,
        }
    }

    /// [`Fabric::new`], for devices to share.
    pub fn shared(config: FabricConfig) -> SharedFabric {
        Arc::new(Mutex::new(Self::new(config)))
    }

    /// Adds a running host on a node of its own: the next one of the topology. It is reached at
    /// `sim://` and its [`Fabric::address`].
    ///
    /// # Panics
    /// If the topology has no node left.
    pub fn add_host(&mut self) -> HostId {
        let next = self.hosts.iter().map(|host| host.node.0 + 1).max();
        let node = NodeId(next.unwrap_or(0));
        if node.0 as usize >= self.network.node_count() {
            self.network.add_node();
        }
        self.add_host_on(node)
    }

    /// Adds a running host, a thread with an endpoint of its own, on `node`. All hosts of a node
    /// share its link.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn add_host_on(&mut self, node: NodeId) -> HostId {
        assert!(
            (node.0 as usize) < self.network.node_count(),
            "there is no {node:?}"
        );
        let id = HostId(u32::try_from(self.hosts.len()).expect("fewer than 2^32 hosts"));
        self.hosts.push(Host::new(node));
        id
    }

    /// How many hosts there are; their numbers are smaller than this.
    pub(crate) fn host_count(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// Whether there is such a node by now.
    pub fn has_node(&self, node: NodeId) -> bool {
        (node.0 as usize) < self.network.node_count()
    }

    /// The node that `host` is on.
    pub fn node_of(&self, host: HostId) -> NodeId {
        self.host(host).node
    }

    /// The configuration of the fabric.
    pub fn config(&self) -> &FabricConfig {
        &self.config
    }

    /// The present, ns.
    pub fn now_ns(&self) -> u64 {
        self.events.now_ns()
    }

    /// The reading of `host`'s monotonic clock, ns: the present, drift and jumps so far, and the
    /// time spent in this turn.
    pub fn host_now_ns(&self, host: HostId) -> u64 {
        let host = self.host(host);
        host.clock.read(self.now_ns() + host.spent_ns)
    }

    /// When `host`'s monotonic clock will read `clock_ns`, in the fabric's time.
    pub fn when(&self, host: HostId, clock_ns: u64) -> u64 {
        self.host(host).clock.when(clock_ns)
    }

    /// The address of `host`'s only socket.
    pub fn address(&self, host: HostId) -> SocketAddr {
        host.address()
    }

    /// The record of the run so far.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Records an event of the application at `host`, now.
    pub fn record(&mut self, host: HostId, text: &'static str, a: u64, b: u64) {
        self.trace.app(self.now_ns(), host, text, a, b);
    }

    /// How much happened so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Datagrams and bytes in `host`'s receive queue now.
    pub fn receive_queue(&self, host: HostId) -> (usize, usize) {
        let host = self.host(host);
        (host.queue.len(), host.queue_bytes)
    }

    /// Adds a fault of the network.
    pub fn add_rule(&mut self, rule: Rule) {
        self.rules.add(rule);
    }

    /// Shows every datagram that leaves from now on to `hook`, before the rules; `None` ends that.
    pub fn set_departure_hook(&mut self, hook: Option<DepartureHook>) {
        self.departure_hook = hook;
    }

    /// `host`'s device accepts `frames` more frames and is full then, until the next such call.
    pub fn limit_frames(&mut self, host: HostId, frames: usize) {
        self.host_mut(host).tx_frames_left = frames;
    }

    /// `host` runs no turn before `until_ns`. Its network card keeps receiving.
    pub fn pause(&mut self, host: HostId, until_ns: u64) {
        let paused = &mut self.host_mut(host).paused_until_ns;
        *paused = (*paused).max(until_ns);
    }

    /// `host`'s process ends at once: its queue and peers are gone, and it gets no turn
    /// until [`Fabric::restart`].
    pub fn crash(&mut self, host: HostId) {
        let state = &mut self.hosts[host.0 as usize];
        for id in state.queue.drain(..).chain(state.ring.drain(..)) {
            let packet = self.packets.take(id);
            self.packets.recycle(packet.bytes.into_memory());
        }
        let clock = state.clock;
        *state = Host::new(state.node);
        state.clock = clock;
        state.running = false;
    }

    /// `host`'s process starts again, without any earlier state.
    pub fn restart(&mut self, host: HostId) {
        self.host_mut(host).running = true;
        self.wake_at(host, self.now_ns());
    }

    /// True unless `host` crashed and was not restarted.
    pub fn is_running(&self, host: HostId) -> bool {
        self.host(host).running
    }

    /// `host`'s monotonic clock jumps ahead: the machine was suspended.
    pub fn jump_clock(&mut self, host: HostId, by_ns: u64) {
        self.host_mut(host).clock.jump(by_ns);
        self.wake_at(host, self.now_ns());
    }

    /// `host`'s monotonic clock gains `ppb` billionths of each second from now on, or loses them.
    ///
    /// # Panics
    /// If it would stand still or go back.
    pub fn drift_clock(&mut self, host: HostId, ppb: i32) {
        assert!(ppb > -1_000_000_000, "a clock does not go back");
        let now_ns = self.now_ns();
        self.host_mut(host).clock.drift(now_ns, ppb);
        self.wake_at(host, now_ns);
    }

    /// `host` gets a turn at `at_ns` of the fabric's time, or earlier, but not in the past, not
    /// while it is paused and not while its thread is busy.
    pub fn wake_at(&mut self, host: HostId, at_ns: u64) {
        let now_ns = self.now_ns();
        let state = self.host_mut(host);
        if !state.running {
            return;
        }
        let at_ns = at_ns.max(state.away_until_ns()).max(now_ns);
        if state.turn_at_ns.is_none_or(|turn_ns| at_ns < turn_ns) {
            state.turn_at_ns = Some(at_ns);
            if state.wake_times.add(at_ns) {
                self.events.push(at_ns, Event::Wake(host));
            }
        }
    }

    /// Something in `host`'s turn took this long: its clock advances, and datagrams flushed from
    /// now on leave no earlier.
    pub fn spend(&mut self, host: HostId, ns: u64) {
        self.host_mut(host).spent_ns += ns;
    }

    /// Ends the turn of `host`; `work` is the user's work in it, without the device's part. The
    /// thread is busy from now on for the cost of both, and the datagrams that were sent leave
    /// then. Returns when the thread is free, ns.
    pub fn end_turn(&mut self, host: HostId, work: Work) -> u64 {
        let now_ns = self.now_ns();
        let cpu = self.config.cpu;
        let state = self.host_mut(host);
        let done = std::mem::take(&mut state.work);
        let spent_ns = std::mem::take(&mut state.spent_ns);
        let free_ns = now_ns + cpu.cost_ns(&done.and(work)) + spent_ns;
        state.busy_until_ns = free_ns;
        state.busy_ns += free_ns - now_ns;
        self.ring_doorbell(host, free_ns);
        free_ns
    }

    /// The card learns at `at_ns` of the datagrams posted to the ring since the last doorbell.
    fn ring_doorbell(&mut self, host: HostId, at_ns: u64) {
        let state = self.host_mut(host);
        let count = std::mem::take(&mut state.unannounced);
        if count > 0 {
            self.events.push(at_ns, Event::Doorbell { host, count });
        }
    }

    /// A device is flushed. If the turn took time already, the card does not wait for its end.
    pub(crate) fn flushed(&mut self, host: HostId) {
        let spent_ns = self.host(host).spent_ns;
        if spent_ns > 0 {
            self.ring_doorbell(host, self.now_ns() + spent_ns);
        }
    }

    /// How long `host`'s thread was busy so far, ns.
    pub fn busy_ns(&self, host: HostId) -> u64 {
        self.host(host).busy_ns
    }

    /// `step` will return [`Step::Timer`] with `token` at `at_ns`.
    pub fn set_timer(&mut self, at_ns: u64, token: u64) {
        self.events.push(at_ns, Event::Timer(token));
    }

    /// A planted bug: devices accept frames whose UDP checksum is wrong.
    pub(crate) fn ignore_checksums(&mut self) {
        self.ignores_checksums = true;
    }

    /// Advances to the next event that concerns the user; `None` if there will be none.
    pub fn step(&mut self) -> Option<Step> {
        loop {
            let (packets, hosts, turns) = (&self.packets, &self.hosts, &mut self.upcoming_turns);
            let event = self.events.pop_with_lookahead(|soon| match *soon {
                Event::Arrival(packet) => packets.prefetch(packet),
                // The state of few hosts stays in a cache.
                _ if hosts.len() < PREFETCH_MIN_HOSTS => {}
                Event::Wake(host) => {
                    prefetch(&hosts[host.0 as usize]);
                    turns.push(host);
                }
                Event::Doorbell { host, .. } => prefetch(&hosts[host.0 as usize].ring),
                _ => {}
            })?;
            if let Some(step) = self.handle(event) {
                return Some(step);
            }
        }
    }

    /// Advances to `now_ns`, or stays in the present if that is later, and handles all events due
    /// by then. No host gets a turn, and timers are dropped.
    pub(crate) fn advance_to(&mut self, now_ns: u64) {
        self.set_timer(now_ns, 0);
        while let Some(Step::Turn(_)) = self.step() {}
        while let Some(event) = self.events.pop_present() {
            self.handle(event);
        }
    }

    /// Handles an event; returns the user's action that follows, if any.
    fn handle(&mut self, event: Event) -> Option<Step> {
        match event {
            Event::Arrival(packet) => self.arrive(packet),
            Event::Doorbell { host, count } => {
                let state = self.host_mut(host);
                // The host may have crashed since, and lost the ring.
                state.posted = (state.posted + count as usize).min(state.ring.len());
                self.post(host);
            }
            Event::Room(host) => {
                self.host_mut(host).waits_for_room = false;
                self.post(host);
            }
            Event::Timer(token) => return Some(Step::Timer(token)),
            Event::Unreachable { sender, peer } => {
                self.host_mut(sender).unreachable(peer.address());
                self.wake_at(sender, self.now_ns() + self.config.poll_ns);
            }
            Event::Wake(host) => return self.take_turn(host).then_some(Step::Turn(host)),
        }
        None
    }

    /// Prefetches the datagrams that `host` reads first.
    pub(crate) fn prefetch_queue(&self, host: HostId) {
        for &packet in self.host(host).queue.iter().take(PREFETCH_DEPTH) {
            self.packets.prefetch(packet);
        }
    }

    /// Takes the hosts whose turn is near and that were not returned before.
    pub(crate) fn take_upcoming_turns(&mut self, hosts: &mut Vec<HostId>) {
        std::mem::swap(&mut self.upcoming_turns, hosts);
        self.upcoming_turns.clear();
    }

    /// A cable of the topology, by its place in the list, carries nothing while it is out.
    ///
    /// # Panics
    /// If there is no such cable.
    pub fn cut_cable(&mut self, cable: usize, outage: Outage) {
        self.network.cut(cable, outage);
    }

    /// Statistics of the link into `host`'s node, which is where the queue of an incast builds.
    pub fn downlink(&self, host: HostId) -> PortStats {
        self.network.downlink(self.host(host).node)
    }

    /// Statistics of all links of switches together.
    pub fn switch_totals(&self) -> PortStats {
        self.network.totals()
    }

    /// Allocates the memory for `datagrams` datagrams on their way and for the distant timers, so that
    /// a run that has no more of them allocates nothing.
    pub(crate) fn reserve(&mut self, datagrams: usize) {
        self.packets.reserve(datagrams, self.config.max_datagram);
        self.events.reserve(8, datagrams);
    }

    /// An empty buffer for a datagram.
    pub(crate) fn buffer(&mut self) -> Vec<u8> {
        self.packets.buffer()
    }

    /// The memory of a datagram that was read.
    pub(crate) fn recycle(&mut self, bytes: Vec<u8>) {
        self.packets.recycle(bytes);
    }

    #[cfg(test)]
    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    pub(crate) fn host(&self, host: HostId) -> &Host {
        &self.hosts[host.0 as usize]
    }

    pub(crate) fn host_mut(&mut self, host: HostId) -> &mut Host {
        &mut self.hosts[host.0 as usize]
    }

    /// True if `host` has a turn now.
    fn take_turn(&mut self, host: HostId) -> bool {
        let now_ns = self.now_ns();
        let state = self.host_mut(host);
        state.wake_times.remove(now_ns);
        let Some(turn_ns) = state.turn_at_ns.filter(|_| state.running) else {
            return false;
        };
        // The host may have been paused since, or its turn came earlier.
        let turn_ns = turn_ns.max(state.away_until_ns());
        if turn_ns > now_ns {
            state.turn_at_ns = Some(turn_ns);
            if state.wake_times.add(turn_ns) {
                self.events.push(turn_ns, Event::Wake(host));
            }
            return false;
        }
        state.turn_at_ns = None;
        true
    }
}

#[cfg(test)]
mod tests;
