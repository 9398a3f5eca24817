//! The network between the nodes: links, switches, routes.
//!
//! ```text
//!  node ─ link ─▶ switch: route ─ room in the buffer? ─ mark? ─ link ─▶ switch ... ─▶ node
//! ```
//!
//! This module knows nothing of hosts, protocols or fault rules. The fabric moves packets with it.

mod ethernet;
mod link;
mod packet;
mod payload;
mod switch;
mod topology;

use starling_io::Ecn;

pub use ethernet::Framing;
pub use link::LinkConfig;
pub use switch::{Marking, SwitchConfig};
pub use topology::{Cable, End, NodeId, Topology};

pub(crate) use packet::{Origin, Packet, PacketId, Packets};
pub(crate) use payload::Payload;

use crate::rng::{Rng, mix};
use crate::trace::DropCause;
use link::{ArrivalTimes, Link};
use switch::SharedBuffer;

/// Bytes that each datagram occupies on a link beyond its payload: Ethernet's preamble, header,
/// checksum and gap, IPv4 and UDP headers.
pub(crate) const OVERHEAD_BYTES: u64 = 24 + 14 + 20 + 8;

/// Statistics of one direction of a cable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Bytes sent, headers and gaps included.
    pub bytes: u64,
    /// The most bytes that waited in front of it.
    pub most_queued: u64,
    /// Packets that the switch's buffer had no room for.
    pub dropped: u64,
    /// Packets marked "congestion experienced".
    pub marked: u64,
}

/// When a cable carries nothing: once, or, if it flaps, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// When it begins, ns.
    pub start_ns: u64,
    /// When it is over for good.
    pub end_ns: u64,
    /// How long the cable is down each time. Not 0.
    pub down_ns: u64,
    /// How long it is up in between.
    pub up_ns: u64,
}

impl Outage {
    /// Down all the time.
    pub fn once(start_ns: u64, end_ns: u64) -> Self {
        Self {
            start_ns,
            end_ns,
            down_ns: end_ns - start_ns,
            up_ns: 0,
        }
    }

    fn is_down(&self, now_ns: u64) -> bool {
        (self.start_ns..self.end_ns).contains(&now_ns)
            && (now_ns - self.start_ns) % (self.down_ns + self.up_ns) < self.down_ns
    }
}

/// The sending end of a link.
#[derive(Debug)]
struct Port {
    link: Link,
    to: End,
    outages: Vec<Outage>,
    stats: PortStats,
}

impl Port {
    fn new(config: LinkConfig, to: End) -> Self {
        Self {
            link: Link::new(config),
            to,
            outages: Vec::new(),
            stats: PortStats::default(),
        }
    }

    fn is_down(&self, now_ns: u64) -> bool {
        self.outages.iter().any(|outage| outage.is_down(now_ns))
    }

    fn send(&mut self, now_ns: u64, tail_ns: u64, size: u64) -> ArrivalTimes {
        let forwarding = self.link.take(now_ns, tail_ns, size);
        self.stats.bytes += size;
        self.stats.most_queued = self.stats.most_queued.max(self.link.queued_bytes(now_ns));
        forwarding
    }
}

#[derive(Debug)]
struct Switch {
    config: SwitchConfig,
    buffer: SharedBuffer,
    ports: Vec<u32>,
    /// For each node, the ports on the shortest ways to it: a range of `choices`.
    routes: Vec<(u32, u32)>,
    choices: Vec<u32>,
}

/// Links and switches, with the packets in them.
#[derive(Debug)]
pub(crate) struct Network {
    ports: Vec<Port>,
    switches: Vec<Switch>,
    /// The port of each node.
    nodes: Vec<u32>,
    /// Cables of the topology, by their two ports.
    cables: Vec<[u32; 2]>,
    /// The link of each node that is added; `None`: no node can be added.
    more: Option<LinkConfig>,
}

/// The next arrival of a packet: its place, when its event is due, and when its last bit is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    pub(crate) to: End,
    pub(crate) due_ns: u64,
    pub(crate) tail_ns: u64,
}

impl Network {
    /// # Panics
    /// If the topology has a node without a cable, or one that cannot be reached.
    pub(crate) fn new(topology: &Topology, mesh_link: LinkConfig) -> Self {
        let mut network = Self {
            ports: Vec::new(),
            switches: topology
                .switches
                .iter()
                .map(|config| Switch {
                    config: *config,
                    buffer: SharedBuffer::new(config),
                    ports: Vec::new(),
                    routes: Vec::new(),
                    choices: Vec::new(),
                })
                .collect(),
            nodes: vec![u32::MAX; topology.nodes.unwrap_or(0) as usize],
            cables: Vec::new(),
            more: topology.nodes.is_none().then_some(mesh_link),
        };
        for cable in &topology.cables {
            let [a, b] = cable.ends;
            let ports = [(a, b), (b, a)].map(|(from, to)| network.connect(from, to, cable.link));
            network.cables.push(ports);
        }
        assert!(
            network.nodes.iter().all(|&port| port != u32::MAX),
            "a node of {} has no cable",
            topology.name
        );
        network.find_routes(topology);
        network
    }

    fn connect(&mut self, from: End, to: End, link: LinkConfig) -> u32 {
        let port = self.ports.len() as u32;
        self.ports.push(Port::new(link, to));
        match from {
            End::Node(node) => self.nodes[node.0 as usize] = port,
            End::Switch(switch) => self.switches[switch as usize].ports.push(port),
            End::Core => unreachable!("no cable starts in the core"),
        }
        port
    }

    fn find_routes(&mut self, topology: &Topology) {
        for node in (0..topology.nodes.unwrap_or(0)).map(NodeId) {
            let far = topology.distances(node);
            for (index, switch) in self.switches.iter_mut().enumerate() {
                let first = switch.choices.len() as u32;
                for &port in &switch.ports {
                    let leads = match self.ports[port as usize].to {
                        End::Node(end) => end == node,
                        End::Switch(next) => far[next as usize] < far[index],
                        End::Core => false,
                    };
                    if leads {
                        switch.choices.push(port);
                    }
                }
                let count = switch.choices.len() as u32 - first;
                assert!(
                    count > 0,
                    "no path from switch {index} to {node:?} in {}",
                    topology.name
                );
                switch.routes.push((first, count));
            }
        }
    }

    /// Adds a node to a mesh.
    ///
    /// # Panics
    /// If the topology has all its nodes.
    pub(crate) fn add_node(&mut self) -> NodeId {
        let link = self
            .more
            .expect("a topology with cables has all its nodes from the start");
        let node = NodeId(self.nodes.len() as u32);
        self.nodes.push(self.ports.len() as u32);
        self.ports.push(Port::new(link, End::Core));
        node
    }

    pub(crate) fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// Whether the node's card takes a datagram of `len` bytes now.
    pub(crate) fn has_room(&self, node: NodeId, now_ns: u64, len: usize) -> bool {
        self.uplink(node)
            .link
            .has_room(now_ns, len as u64 + OVERHEAD_BYTES)
    }

    /// When the node's card will take a datagram of `len` bytes.
    pub(crate) fn room_at_ns(&self, node: NodeId, len: usize) -> u64 {
        self.uplink(node)
            .link
            .room_at_ns(len as u64 + OVERHEAD_BYTES)
    }

    /// A datagram of `len` bytes leaves a node; `None` if the cable is out.
    pub(crate) fn leave(&mut self, node: NodeId, now_ns: u64, len: usize) -> Option<Move> {
        let port = self.nodes[node.0 as usize];
        self.go(port, now_ns, now_ns, len as u64 + OVERHEAD_BYTES)
    }

    /// A packet that is at a switch goes on towards `node`.
    pub(crate) fn forward(
        &mut self,
        switch: u32,
        node: NodeId,
        now_ns: u64,
        packet: &mut Packet,
        rng: &mut Rng,
    ) -> Result<Move, DropCause> {
        let Self {
            ports, switches, ..
        } = self;
        let this = &mut switches[switch as usize];
        let (first, count) = this.routes[node.0 as usize];
        let candidates = &this.choices[first as usize..][..count as usize];
        let port = if let [only] = candidates {
            *only
        } else {
            // The hash covers the address pair and the switch. Without the switch, all switches
            // would choose alike.
            let from = packet.origin.host().map_or(u32::MAX, |host| host.0);
            let pair = u64::from(from) << 32 | u64::from(packet.to.0);
            let hash = mix(pair ^ u64::from(switch + 1) << 56);
            choose(ports, candidates, hash, now_ns)
        };
        let size = u64::from(packet.len) + OVERHEAD_BYTES;
        let queued = ports[port as usize].link.queued_bytes(now_ns);
        let all = || {
            let waiting = this
                .ports
                .iter()
                .map(|&port| ports[port as usize].link.queued_bytes(now_ns));
            waiting.sum()
        };
        if !this.buffer.admit(queued, size, all) {
            ports[port as usize].stats.dropped += 1;
            return Err(DropCause::SwitchFull);
        }
        if packet.ecn == Ecn::Capable && this.config.marking.marks(queued, rng) {
            packet.mark();
            ports[port as usize].stats.marked += 1;
        }
        let tail_ns = packet.tail_ns;
        self.go(port, now_ns, tail_ns, size)
            .ok_or(DropCause::LinkDown)
    }

    fn go(&mut self, port: u32, now_ns: u64, tail_ns: u64, size: u64) -> Option<Move> {
        let port = &mut self.ports[port as usize];
        if port.is_down(now_ns) {
            return None;
        }
        let forwarding = port.send(now_ns, tail_ns, size);
        let (mut due_ns, mut tail_ns) = (forwarding.tail_ns, forwarding.tail_ns);
        if let End::Switch(next) = port.to {
            let config = &self.switches[next as usize].config;
            if config.cut_through {
                due_ns = forwarding.head_ns;
            }
            due_ns += config.latency_ns;
            tail_ns += config.latency_ns;
        }
        Some(Move {
            to: port.to,
            due_ns,
            tail_ns,
        })
    }

    /// Takes a cable out for a time, in both directions.
    pub(crate) fn cut(&mut self, cable: usize, outage: Outage) {
        for port in self.cables[cable] {
            self.ports[port as usize].outages.push(outage);
        }
    }

    /// Statistics of the link into `node`, which is where the queue of an incast builds.
    pub(crate) fn downlink(&self, node: NodeId) -> PortStats {
        let port = self.ports.iter().find(|port| port.to == End::Node(node));
        port.map_or(PortStats::default(), |port| port.stats)
    }

    /// Statistics of all links of switches: sums of bytes and packets, and the longest queue.
    pub(crate) fn totals(&self) -> PortStats {
        let mut sum = PortStats::default();
        for switch in &self.switches {
            for &port in &switch.ports {
                let stats = &self.ports[port as usize].stats;
                sum.bytes += stats.bytes;
                sum.dropped += stats.dropped;
                sum.marked += stats.marked;
                sum.most_queued = sum.most_queued.max(stats.most_queued);
            }
        }
        sum
    }

    fn uplink(&self, node: NodeId) -> &Port {
        &self.ports[self.nodes[node.0 as usize] as usize]
    }
}

/// The port that a flow's hash selects. A switch sees at once that one of its cables is out, and
/// spreads the flows of that cable over the others; other flows stay where they are. It knows
/// nothing of cables further on: packets for them are lost, as before a routing protocol has
/// noticed.
fn choose(ports: &[Port], candidates: &[u32], hash: u64, now_ns: u64) -> u32 {
    let at = |count: usize| (hash % count as u64) as usize;
    let first = candidates[at(candidates.len())];
    if !ports[first as usize].is_down(now_ns) {
        return first;
    }
    let is_up = |port: &&u32| !ports[**port as usize].is_down(now_ns);
    let up = candidates.iter().filter(is_up).count();
    match up {
        0 => first,
        _ => *candidates
            .iter()
            .filter(is_up)
            .nth(at(up))
            .expect("counted"),
    }
}

#[cfg(test)]
mod tests;
