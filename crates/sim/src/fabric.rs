//! The fabric: hosts, links and the queue of what happens next, in virtual time.
//!
//! ```text
//!  host ──▶ link (rate, queue) ──▶ rules (faults) ──▶ checksum ──▶ receive queue (bounded) ──▶ host
//!    ▲                                                                   │
//!    └───────────────── turn: due at once, at a timer, after a pause ◀───┘
//! ```
//!
//! Everything that happens is an entry of one heap, ordered by (time, sequence number); the only
//! dice are the fabric's own generator. So a run depends on nothing but the configuration, the
//! seed and what its user does between two [`Fabric::step`]s.
//!
//! The fabric knows nothing about what runs on its hosts. `step` says whose turn it is; the user
//! runs that host's event loop once, against its [`SimIo`](crate::SimIo), and steps on.

mod fault;
mod host;
mod link;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::rc::Rc;

use starling_io::Ecn;

pub use fault::{Fault, Rule};
pub use host::{HostId, ReceiveLimits};
pub use link::LinkConfig;

pub(crate) use host::{Host, Received};

use crate::rng::Rng;
use crate::trace::{DropCause, Trace};
use fault::{Corruption, Rules, checksum, flip_bits};
use link::Link;

/// Bytes that each datagram occupies on a link beyond its payload: Ethernet's preamble, header,
/// checksum and gap, IPv4 and UDP headers.
const OVERHEAD_BYTES: u64 = 24 + 14 + 20 + 8;

/// A fabric that the devices on it share.
pub type SharedFabric = Rc<RefCell<Fabric>>;

/// What all hosts and links of a fabric have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricConfig {
    /// Starts the dice.
    pub seed: u64,
    /// The largest datagram payload, bytes.
    pub max_datagram: usize,
    /// Each host's link into the network.
    pub link: LinkConfig,
    /// Each host's receive queue.
    pub receive: ReceiveLimits,
    /// From a datagram's arrival at an idle host to the turn that reads it, ns. What else
    /// arrives in between is read in the same burst.
    pub poll_ns: u64,
    /// A host whose process is not running answers datagrams with "port unreachable" (ICMP).
    pub port_unreachable: bool,
}

impl Default for FabricConfig {
    fn default() -> Self {
        Self {
            seed: 0,
            max_datagram: 1472,
            link: LinkConfig::default(),
            receive: ReceiveLimits::default(),
            poll_ns: 300,
            port_unreachable: false,
        }
    }
}

/// What the user has to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Run this host's event loop once.
    Turn(HostId),
    /// A time set with [`Fabric::alarm`] has come; the word is the user's own.
    Alarm(u64),
}

/// How much happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams that entered a receive queue.
    pub delivered: u64,
    /// Datagrams that did not, by cause.
    pub dropped: BTreeMap<DropCause, u64>,
    /// Copies that duplication rules made.
    pub duplicated: u64,
    /// Datagrams delivered with flipped bits.
    pub corrupted: u64,
}

struct Packet {
    from: Option<HostId>,
    source: SocketAddr,
    to: HostId,
    ecn: Ecn,
    checksum: u16,
    bytes: Vec<u8>,
}

enum Happening {
    Arrival(Packet),
    Turn(HostId),
    Alarm(u64),
    Unreachable { sender: HostId, peer: SocketAddr },
}

struct Entry {
    at_ns: u64,
    sequence: u64,
    happening: Happening,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at_ns, self.sequence).cmp(&(other.at_ns, other.sequence))
    }
}

/// Hosts and links in virtual time.
pub struct Fabric {
    config: FabricConfig,
    now_ns: u64,
    sequence: u64,
    heap: BinaryHeap<Reverse<Entry>>,
    rng: Rng,
    hosts: Vec<Host>,
    links: Vec<Link>,
    rules: Rules,
    counters: Counters,
    trace: Trace,
}

impl Fabric {
    /// A fabric without hosts at time 0.
    pub fn new(config: FabricConfig) -> Self {
        Self {
            rng: Rng::new(config.seed),
            config,
            now_ns: 0,
            sequence: 0,
            heap: BinaryHeap::new(),
            hosts: Vec::new(),
            links: Vec::new(),
            rules: Rules::default(),
            counters: Counters::default(),
            trace: Trace::default(),
        }
    }

    /// Adds a running host. It is reached at `sim://` and its [`Fabric::address`].
    pub fn add_host(&mut self) -> HostId {
        let id = HostId(u32::try_from(self.hosts.len()).expect("fewer than 2^32 hosts"));
        self.hosts.push(Host::new());
        self.links.push(Link::new(self.config.link));
        id
    }

    /// What the fabric was made with.
    pub fn config(&self) -> &FabricConfig {
        &self.config
    }

    /// The present, ns.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// What `host`'s monotonic clock reads, ns: the present and the jumps so far.
    pub fn host_now_ns(&self, host: HostId) -> u64 {
        self.now_ns + self.host(host).clock_ahead_ns
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
    pub fn note(&mut self, host: HostId, text: &'static str, a: u64, b: u64) {
        self.trace.app(self.now_ns, host, text, a, b);
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

    /// `host` runs no turn before `until_ns`. Its network card keeps receiving.
    pub fn pause(&mut self, host: HostId, until_ns: u64) {
        let paused = &mut self.host_mut(host).paused_until_ns;
        *paused = (*paused).max(until_ns);
    }

    /// `host`'s process ends at once: its queue and peers are gone, and it gets no turn
    /// until [`Fabric::restart`].
    pub fn crash(&mut self, host: HostId) {
        let ahead_ns = self.host(host).clock_ahead_ns;
        *self.host_mut(host) = Host::new();
        let state = self.host_mut(host);
        state.clock_ahead_ns = ahead_ns;
        state.running = false;
    }

    /// `host`'s process starts again, with nothing left of its former self.
    pub fn restart(&mut self, host: HostId) {
        self.host_mut(host).running = true;
        self.wake_at(host, self.now_ns);
    }

    /// True unless `host` crashed and was not restarted.
    pub fn is_running(&self, host: HostId) -> bool {
        self.host(host).running
    }

    /// `host`'s monotonic clock jumps ahead: the machine was suspended.
    pub fn jump_clock(&mut self, host: HostId, by_ns: u64) {
        self.host_mut(host).clock_ahead_ns += by_ns;
        self.wake_at(host, self.now_ns);
    }

    /// `host` gets a turn at `at_ns` of the fabric's time, or earlier, but not in the past and
    /// not while it is paused.
    pub fn wake_at(&mut self, host: HostId, at_ns: u64) {
        let now_ns = self.now_ns;
        let state = self.host_mut(host);
        if !state.running {
            return;
        }
        let at_ns = at_ns.max(state.paused_until_ns).max(now_ns);
        if state.turn_at_ns.is_none_or(|turn_ns| at_ns < turn_ns) {
            state.turn_at_ns = Some(at_ns);
            self.push(at_ns, Happening::Turn(host));
        }
    }

    /// `step` will return [`Step::Alarm`] with `word` at `at_ns`.
    pub fn alarm(&mut self, at_ns: u64, word: u64) {
        self.push(at_ns.max(self.now_ns), Happening::Alarm(word));
    }

    /// A datagram of somebody outside arrives at `to` at `at_ns`, through no link and no rule.
    pub fn inject(&mut self, at_ns: u64, source: SocketAddr, to: HostId, bytes: Vec<u8>) {
        let packet = Packet {
            from: None,
            source,
            to,
            ecn: Ecn::NotCapable,
            checksum: checksum(&bytes),
            bytes,
        };
        self.push(at_ns.max(self.now_ns), Happening::Arrival(packet));
    }

    /// Goes on to the next thing that its user has to do with; `None` if there is none, ever.
    pub fn step(&mut self) -> Option<Step> {
        while let Some(Reverse(entry)) = self.heap.pop() {
            debug_assert!(entry.at_ns >= self.now_ns, "time went back");
            self.now_ns = entry.at_ns;
            match entry.happening {
                Happening::Arrival(packet) => self.arrive(packet),
                Happening::Alarm(word) => return Some(Step::Alarm(word)),
                Happening::Unreachable { sender, peer } => {
                    self.host_mut(sender).unreachable(peer);
                    self.wake_at(sender, self.now_ns + self.config.poll_ns);
                }
                Happening::Turn(host) => {
                    if self.take_turn(host) {
                        return Some(Step::Turn(host));
                    }
                }
            }
        }
        None
    }

    /// Sends a datagram from `from` to whoever has the address `to`; gives it back if the link's
    /// queue is full.
    pub(crate) fn send(
        &mut self,
        from: HostId,
        to: SocketAddr,
        ecn: Ecn,
        bytes: Vec<u8>,
    ) -> Result<(), Vec<u8>> {
        assert!(
            bytes.len() <= self.config.max_datagram,
            "a datagram of {} bytes was sent where {} fit",
            bytes.len(),
            self.config.max_datagram
        );
        let now_ns = self.now_ns;
        let size = bytes.len() as u64 + OVERHEAD_BYTES;
        let Some(arrival_ns) = self.links[from.0 as usize].transmit(now_ns, size) else {
            return Err(bytes);
        };
        let receiver = HostId::of_address(to).filter(|to| (to.0 as usize) < self.hosts.len());
        let Some(to) = receiver else {
            self.drop_packet(DropCause::NoHost, Some(from), None, &bytes);
            return Ok(());
        };
        let fate = self.rules.judge(&mut self.rng, now_ns, Some(from), to);
        if let Some(cause) = fate.dropped {
            self.drop_packet(cause, Some(from), Some(to), &bytes);
            return Ok(());
        }
        let mut packet = Packet {
            from: Some(from),
            source: from.address(),
            to,
            ecn: if fate.marked {
                Ecn::CongestionExperienced
            } else {
                ecn
            },
            checksum: checksum(&bytes),
            bytes,
        };
        let arrival_ns = arrival_ns + fate.delay_ns;
        for extra_ns in fate.copies {
            self.counters.duplicated += 1;
            let copy = Packet {
                bytes: packet.bytes.clone(),
                ..packet
            };
            self.push(arrival_ns + extra_ns, Happening::Arrival(copy));
        }
        match fate.corruption {
            Corruption::None => {}
            // One bit, which the checksum always finds: nothing above a kernel survives the
            // one corruption in thousands that it would not find, and the rule for that is below.
            Corruption::OnTheWire => flip_bits(&mut self.rng, &mut packet.bytes, 1),
            Corruption::InASwitch => {
                let count = self.rng.range(1, 4);
                flip_bits(&mut self.rng, &mut packet.bytes, count);
                packet.checksum = checksum(&packet.bytes);
                self.counters.corrupted += 1;
            }
        }
        self.push(arrival_ns, Happening::Arrival(packet));
        Ok(())
    }

    /// When `host`'s link will have room for a datagram of `len` bytes.
    pub(crate) fn link_room_at_ns(&self, host: HostId, len: usize) -> u64 {
        self.links[host.0 as usize].room_at_ns(len as u64 + OVERHEAD_BYTES)
    }

    pub(crate) fn host(&self, host: HostId) -> &Host {
        &self.hosts[host.0 as usize]
    }

    pub(crate) fn host_mut(&mut self, host: HostId) -> &mut Host {
        &mut self.hosts[host.0 as usize]
    }

    fn arrive(&mut self, packet: Packet) {
        let Packet { from, to, .. } = packet;
        if checksum(&packet.bytes) != packet.checksum {
            return self.drop_packet(DropCause::Checksum, from, Some(to), &packet.bytes);
        }
        if !self.host(to).running {
            if let (true, Some(sender)) = (self.config.port_unreachable, from) {
                let at_ns = self.now_ns + self.config.link.propagation_ns;
                let peer = to.address();
                self.push(at_ns, Happening::Unreachable { sender, peer });
            }
            return self.drop_packet(DropCause::HostDown, from, Some(to), &packet.bytes);
        }
        let limits = self.config.receive;
        let host = self.host(to);
        if host.queue.len() >= limits.datagrams
            || host.queue_bytes + packet.bytes.len() > limits.bytes
        {
            return self.drop_packet(DropCause::QueueFull, from, Some(to), &packet.bytes);
        }
        self.counters.delivered += 1;
        self.trace.delivered(self.now_ns, from, to, &packet.bytes);
        self.host_mut(to).enqueue(Received {
            source: packet.source,
            ecn: packet.ecn,
            bytes: packet.bytes,
        });
        self.wake_at(to, self.now_ns + self.config.poll_ns);
    }

    /// True if the turn that was scheduled for now is still wanted.
    fn take_turn(&mut self, host: HostId) -> bool {
        let now_ns = self.now_ns;
        let state = self.host_mut(host);
        if state.turn_at_ns != Some(now_ns) || !state.running {
            return false;
        }
        state.turn_at_ns = None;
        if state.paused_until_ns > now_ns {
            let until_ns = state.paused_until_ns;
            self.wake_at(host, until_ns);
            return false;
        }
        true
    }

    fn drop_packet(
        &mut self,
        cause: DropCause,
        from: Option<HostId>,
        to: Option<HostId>,
        bytes: &[u8],
    ) {
        *self.counters.dropped.entry(cause).or_default() += 1;
        self.trace.dropped(self.now_ns, cause, from, to, bytes);
    }

    fn push(&mut self, at_ns: u64, happening: Happening) {
        self.sequence += 1;
        self.heap.push(Reverse(Entry {
            at_ns,
            sequence: self.sequence,
            happening,
        }));
    }
}

#[cfg(test)]
mod tests;
