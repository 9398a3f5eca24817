//! The plan of a run: the calls, the faults and the limits of every host. A seed draws it, or a test
//! writes it. Because all of these are entries of lists, the plan of a failing run is shrunk by
//! leaving entries out.

mod base_draw;
mod budget_draw;
mod coverage;
mod endpoint_draw;
mod hostile_draw;
mod stream_draw;
mod subset;
mod thread_draw;
mod topology_draw;

use std::fmt;

use starling_proto::Config;

use super::{MS, US};
use crate::check::content::{self, Expected};
use crate::fabric::{Fabric, FabricConfig, Fault, HostId, Rule};
use crate::net::{NodeId, Outage, SwitchConfig};

pub use hostile_draw::{Attack, AttackPlan, Position};
pub(super) use hostile_draw::{MAX_DELAY_US, MAX_RESPONSE};
pub use stream_draw::{FlowPlan, HandlerReads, StreamPlan};
pub use subset::Subset;

/// A switch's buffer that all messages of a run together do not fill.
const ROOMY_BYTES: u64 = 12_000_000;

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallPlan {
    /// When it is issued, ns.
    pub at_ns: u64,
    /// The index of its channel.
    pub channel: usize,
    /// Length of the request, bytes.
    pub request_len: u32,
    /// Length of the response, bytes, if the request is long enough to ask for it.
    pub response_len: u32,
    /// How long the handler takes, us.
    pub delay_us: u32,
    /// The caller gives up after this time.
    pub cancel_after_ns: Option<u64>,
    /// Bytes of the request's tail, which is held by reference.
    pub tail_len: u32,
    /// The handler answers when a call of its own on this channel has ended.
    pub via: Option<usize>,
    /// The call's deadline, this long after it is made. Only with whole endpoints.
    pub timeout_ns: Option<u64>,
    /// Where its handler runs. Only with whole endpoints.
    pub runs: Runs,
}

impl CallPlan {
    /// A call whose handler answers at once, in the event loop's thread.
    pub fn new(at_ns: u64, channel: usize, request_len: u32, response_len: u32) -> Self {
        Self {
            at_ns,
            channel,
            request_len,
            response_len,
            delay_us: 0,
            cancel_after_ns: None,
            tail_len: 0,
            via: None,
            timeout_ns: None,
            runs: Runs::Inline,
        }
    }

    /// A call with a tiny request and response: a probe of a channel, or a handler's own call.
    pub(super) fn short(at_ns: u64, channel: usize) -> Self {
        Self::new(at_ns, channel, 32, 32)
    }
}

/// Where a handler runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Runs {
    /// In the event loop's thread, at once.
    #[default]
    Inline,
    /// In a worker.
    Worker,
    /// In the event loop's thread, with the answer given later.
    Deferred,
}

/// A client's relation to a server: a session, and another one when that one ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelPlan {
    /// The client.
    pub client: HostId,
    /// The server.
    pub server: HostId,
    /// When its session is closed, if it is then open; a later call opens a new one.
    pub close_at_ns: Option<u64>,
}

/// The session of a channel is closed, if it is then open; a later call opens a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionClose {
    /// When, ns.
    pub at_ns: u64,
    /// The index of the channel.
    pub channel: usize,
}

/// A fault of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFault {
    /// When it happens, ns.
    pub at_ns: u64,
    /// The host that it happens to.
    pub host: HostId,
    /// The fault.
    pub kind: HostFaultKind,
}

/// A fault of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostFaultKind {
    /// It runs no turn for a time.
    Pause {
        /// How long.
        for_ns: u64,
    },
    /// Its process dies and another one is started.
    Crash {
        /// How long it is down.
        for_ns: u64,
    },
    /// Its clock runs fast or slow from now on.
    ClockDrift {
        /// Billionths of a second that it gains in each.
        ppb: i32,
    },
    /// Its clock jumps ahead.
    ClockJump {
        /// The length of the jump, ns.
        by_ns: u64,
    },
    /// It begins to shut down, and another process takes its place. A bare protocol is shut down at once.
    Drain {
        /// The time until the other process starts.
        for_ns: u64,
    },
}

impl HostFaultKind {
    /// Applies the fault to `host`, as far as the fabric can.
    pub(super) fn apply_to(self, fabric: &mut Fabric, host: HostId) {
        match self {
            Self::Pause { for_ns } => {
                fabric.record(host, "pauses: ns", for_ns, 0);
                fabric.pause(host, fabric.now_ns() + for_ns);
            }
            Self::ClockDrift { ppb } => {
                let gains = ppb.max(0).unsigned_abs();
                let loses = ppb.min(0).unsigned_abs();
                let text = "clock drifts: ppb gained, lost";
                fabric.record(host, text, gains.into(), loses.into());
                fabric.drift_clock(host, ppb);
            }
            Self::ClockJump { by_ns } => {
                fabric.record(host, "clock jumps: ns", by_ns, 0);
                fabric.jump_clock(host, by_ns);
            }
            Self::Crash { .. } | Self::Drain { .. } => {
                unreachable!("a matter of the process, not of the fabric")
            }
        }
    }
}

/// A datagram of random bytes from an address that no host has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InjectedDatagram {
    /// When it arrives, ns.
    pub at_ns: u64,
    /// The receiving host.
    pub to: HostId,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Everything that is decided before a run.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// The seed that it was drawn from.
    pub seed: u64,
    /// The fabric, with the seed of its generator.
    pub fabric: FabricConfig,
    /// The configuration of each host, by number.
    pub hosts: Vec<Config>,
    /// The pairs of client and server.
    pub channels: Vec<ChannelPlan>,
    /// The calls, by time.
    pub calls: Vec<CallPlan>,
    /// The streams, by time. Only with whole endpoints.
    pub streams: Vec<StreamPlan>,
    /// Sessions that are closed under load, beside those of `channels`.
    pub closes: Vec<SessionClose>,
    /// Faults of the network. All end by `heal_ns`.
    pub rules: Vec<Rule>,
    /// Faults of hosts. All end by `heal_ns`.
    pub host_faults: Vec<HostFault>,
    /// Cables, by number, that are out for a time or flap.
    pub outages: Vec<(usize, Outage)>,
    /// Datagrams from outside the fabric.
    pub injected: Vec<InjectedDatagram>,
    /// What hostile hosts do. All of it is over by `heal_ns`.
    pub attacks: Vec<AttackPlan>,
    /// Hosts beside `hosts` that run no endpoint, but the attacks of peers.
    pub hostile_hosts: u32,
    /// When all faults are over, ns.
    pub heal_ns: u64,
    /// The servers' limits on sessions, messages or bytes are below what clients may ask for, so
    /// errors about limits are allowed.
    pub tight: bool,
    /// A call that was not sent when its session ended is made again, once. Only without whole endpoints.
    pub recalls: bool,
    /// Frames that a device takes in a turn before it is full, until the run heals. Only without whole endpoints.
    pub frames_a_turn: Option<usize>,
    /// The node of each host; empty: each has one of its own.
    pub nodes: Vec<NodeId>,
    /// The hosts run whole endpoints, not the protocol alone.
    pub endpoints: bool,
    /// The endpoints of hosts that serve nobody are shared by threads. Only with whole endpoints.
    pub threads: bool,
    /// Workers of servers claim requests beside the protocol. Only without whole endpoints.
    pub workers: bool,
    /// The entries that shrinking has left, if not all.
    pub subset: Option<Subset>,
}

/// The longest delay and the largest response that the calls of a plan ask for.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResponseLimits {
    delay_us: u32,
    response_len: u32,
}

impl ResponseLimits {
    /// A request's instructions, cut to these limits: bits flipped past all checksums must not make
    /// a handler outlive the run, or a response longer than may be sent.
    pub(super) fn of(self, expected: Expected) -> Expected {
        Expected {
            delay_us: expected.delay_us.min(self.delay_us),
            response_len: expected.response_len.min(self.response_len),
            ..expected
        }
    }
}

impl RunPlan {
    /// A plan for `hosts` hosts without calls or faults, which a test fills in: fast links, default
    /// limits, long timeouts.
    pub fn plain(hosts: usize) -> Self {
        let config = Config {
            peer_timeout_ns: 500 * MS,
            keepalive_ns: 50 * MS,
            connect_timeout_ns: 500 * MS,
            rto_max_ns: 20 * MS,
            ..Config::default()
        };
        Self {
            seed: 0,
            fabric: FabricConfig::default(),
            hosts: vec![config; hosts],
            channels: Vec::new(),
            calls: Vec::new(),
            streams: Vec::new(),
            closes: Vec::new(),
            rules: Vec::new(),
            host_faults: Vec::new(),
            outages: Vec::new(),
            injected: Vec::new(),
            attacks: Vec::new(),
            hostile_hosts: 0,
            heal_ns: MS,
            tight: false,
            recalls: false,
            frames_a_turn: None,
            nodes: Vec::new(),
            endpoints: false,
            threads: false,
            workers: false,
            subset: None,
        }
    }

    /// What runs on its hosts, in words.
    fn features(&self) -> String {
        let features = [
            (self.endpoints, ", whole endpoints"),
            (self.threads, ", threads that share those of clients"),
            (self.workers, ", workers that claim requests"),
            (self.tight, ", tight limits"),
        ];
        let drawn = features.into_iter().filter(|(is_drawn, _)| *is_drawn);
        drawn.map(|(_, text)| text).collect()
    }

    /// Whether threads share this host's endpoint.
    pub(super) fn has_threads(&self, host: HostId) -> bool {
        let serves = self.channels.iter().any(|channel| channel.server == host);
        self.threads && self.endpoints && !serves
    }

    /// Puts the hosts on their nodes, and the network's faults into the network. Hostile hosts come last; they
    /// share nodes where there are no others.
    pub(super) fn add_hosts(&self, fabric: &mut Fabric) -> Vec<HostId> {
        let mut ids = Vec::new();
        for index in 0..self.hosts.len() {
            let node = self.nodes.get(index).copied();
            ids.push(match node.filter(|&node| fabric.has_node(node)) {
                Some(node) => fabric.add_host_on(node),
                None => fabric.add_host(),
            });
        }
        for index in 0..self.hostile_hosts as usize {
            match self.fabric.topology.nodes {
                None => fabric.add_host(),
                Some(_) => fabric.add_host_on(fabric.node_of(ids[index % ids.len()])),
            };
        }
        for &(cable, outage) in &self.outages {
            fabric.cut_cable(cable, outage);
        }
        for &rule in &self.rules {
            fabric.add_rule(rule);
        }
        ids
    }

    /// Whether the server of each channel is a hostile host.
    pub(super) fn hostile_channels(&self) -> Vec<bool> {
        let hosts = self.hosts.len() as u32;
        let is_hostile = |channel: &ChannelPlan| channel.server.0 >= hosts;
        self.channels.iter().map(is_hostile).collect()
    }

    /// Whether honest hosts may be told that others were restarted, and drop their sessions. A host on the path that
    /// sends what it has heard in other names provokes RESETs with the tokens in it, and a host that has those can
    /// end sessions.
    pub(super) fn may_be_reset(&self) -> bool {
        let reflects = |attack: &AttackPlan| attack.attack == Attack::Reflections;
        self.attacks.iter().any(reflects)
    }

    /// The most that a call asks for.
    pub(super) fn most(&self) -> ResponseLimits {
        let delays = self.calls.iter().map(|call| call.delay_us);
        let lengths = self.calls.iter().map(|call| call.response_len);
        // Probes are calls, too.
        let probe = CallPlan::short(0, 0).response_len;
        ResponseLimits {
            delay_us: delays.max().unwrap_or(0),
            response_len: lengths.fold(probe.max(content::LONGEST_SHORT), u32::max),
        }
    }

    /// Whether the plan has no faults.
    pub fn is_faultless(&self) -> bool {
        self.rules.is_empty()
            && self.host_faults.is_empty()
            && self.outages.is_empty()
            && self.injected.is_empty()
            && self.attacks.is_empty()
    }

    /// Whether no call has a reason to fail: ample limits, a network that is never slow enough to
    /// look dead and loses at most a tenth, and hosts that try long enough. What hostile hosts do is no
    /// reason: their shares are bounded, and nothing of theirs ends anything of another host's.
    pub fn is_survivable(&self) -> bool {
        let patient = |config: &Config| {
            let tries_ns = 20 * config.rto_max_ns;
            config.peer_timeout_ns >= tries_ns.max(8 * config.keepalive_ns)
                && config.connect_timeout_ns >= tries_ns
        };
        let mild = |rule: &Rule| match rule.fault {
            Fault::Loss { ppm } => ppm <= 100_000,
            Fault::Corrupt { ppm, undetected } => ppm <= 100_000 && !undetected,
            // A reset that reaches a third party ends sessions.
            Fault::BurstLoss { .. }
            | Fault::Misroute { .. }
            | Fault::Partition
            | Fault::Starve { .. } => false,
            _ => true,
        };
        let roomy = |switch: &SwitchConfig| switch.buffer_bytes >= ROOMY_BYTES;
        !self.tight
            && self.host_faults.is_empty()
            && self.outages.is_empty()
            && self.fabric.topology.switches.iter().all(roomy)
            && self.rules.iter().all(mild)
            && self.rules.len() <= 3
            && self.fabric.receive.datagrams >= 4096
            && (self.hosts.iter().all(patient)
                || self.is_faultless() && self.fabric.link.rate_bps >= 25_000_000_000)
    }

    /// Whether flipped bits may reach the protocol. It has no checksum of its own, so it can then
    /// promise nothing about the content of messages and how often they run.
    pub fn corrupts(&self) -> bool {
        self.rules.iter().any(|rule| {
            matches!(
                rule.fault,
                Fault::Corrupt {
                    undetected: true,
                    ..
                }
            )
        })
    }

    /// How long after the faults have healed (or after it is issued, if that is later) a call may
    /// take, ns. Generous: a hang never ends, so the bound only has to be finite and hold.
    pub fn bound_ns(&self) -> u64 {
        let slowest = |time: fn(&Config) -> u64| self.hosts.iter().map(time).max().unwrap_or(0);
        let detection_ns = slowest(|config| config.peer_timeout_ns)
            + slowest(|config| config.keepalive_ns)
            + slowest(|config| config.connect_timeout_ns)
            + 8 * slowest(|config| config.rto_max_ns);
        let handlers_ns: u64 = self
            .calls
            .iter()
            .map(|call| u64::from(call.delay_us) * US)
            .sum();
        let bytes: u64 = self
            .calls
            .iter()
            .map(|call| u64::from(call.request_len) + u64::from(call.response_len))
            .sum();
        let bytes = bytes + self.streams.iter().map(StreamPlan::bytes).sum::<u64>();
        let calls = self.calls.len() as u64;
        let calls = calls + self.streams.iter().map(StreamPlan::most_calls).sum::<u64>();
        let attacks = || self.attacks.iter();
        let handlers_ns = handlers_ns + attacks().map(AttackPlan::handlers_ns).sum::<u64>();
        let bytes = bytes + attacks().map(AttackPlan::bytes).sum::<u64>();
        // A call may have to wait for a stream's request to make room.
        let users_ns: u64 = self.streams.iter().map(StreamPlan::users_ns).sum();
        // Assumes 10 Mb/s, and one retransmission timeout for every call.
        let transfer_ns = bytes * 800 + calls * slowest(|config| config.rto_max_ns);
        // With a single credit, each packet of a message takes a round trip.
        let data = self.fabric.max_datagram as u64 - 32;
        let packets = bytes / data + 2 * calls;
        let hops = match self.fabric.topology.switches.len() {
            0 => 1,
            1 => 2,
            _ => 6,
        };
        let way_ns = hops * (self.fabric.link.propagation_ns + 2 * US) + 2 * self.fabric.poll_ns;
        let round_trip_ns = 2 * (way_ns + 2 * US);
        // `way_ns` counts the mean wait for a turn. A quarter more covers longer waits.
        let transfer_ns = transfer_ns + packets * round_trip_ns / 4 * 5;
        let bound_ns = 4 * detection_ns + 2 * handlers_ns + users_ns + transfer_ns + 100 * MS;
        // A call that waits for another one may take as long again.
        let nests = self.calls.iter().any(|call| call.via.is_some());
        bound_ns * (1 + u64::from(nests))
    }

    /// How long a session may be remembered by a server after its client has died or cannot be
    /// heard, ns.
    pub fn forgetting_ns(&self) -> u64 {
        let longest = self
            .hosts
            .iter()
            .map(|config| 2 * config.peer_timeout_ns + config.keepalive_ns + config.rto_max_ns);
        longest.max().unwrap_or(0) + 200 * MS
    }
}

impl fmt::Display for RunPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: {} hosts, {} channels, {} calls, datagrams of {}, heals at {} us{}",
            self.seed,
            self.hosts.len(),
            self.channels.len(),
            self.calls.len(),
            self.fabric.max_datagram,
            self.heal_ns / US,
            self.features(),
        )?;
        let link = self.fabric.link;
        writeln!(
            f,
            "  links of {} Mb/s, {} ns, {} bytes; receive queues of {:?}; a turn after {} ns",
            link.rate_bps / 1_000_000,
            link.propagation_ns,
            link.queue_bytes,
            self.fabric.receive,
            self.fabric.poll_ns,
        )?;
        for config in &self.hosts {
            writeln!(f, "  {config:?}")?;
        }
        for channel in &self.channels {
            writeln!(f, "  {channel:?}")?;
        }
        for rule in &self.rules {
            writeln!(f, "  {rule:?}")?;
        }
        for fault in &self.host_faults {
            writeln!(f, "  {fault:?}")?;
        }
        if let [switch, ..] = &self.fabric.topology.switches[..] {
            writeln!(f, "  {}: {switch:?}", self.fabric.topology.name)?;
        }
        if let Some(framing) = self.fabric.framing {
            writeln!(f, "  in frames: {framing:?}")?;
        }
        if !self.nodes.is_empty() {
            writeln!(f, "  nodes {:?}", self.nodes)?;
        }
        if !self.fabric.cpu.is_free() {
            writeln!(f, "  rings of {}, {:?}", self.fabric.ring, self.fabric.cpu)?;
        }
        for (cable, outage) in &self.outages {
            writeln!(f, "  cable {cable}: {outage:?}")?;
        }
        if !self.injected.is_empty() {
            writeln!(f, "  {} injected datagrams", self.injected.len())?;
        }
        const SHOWN: usize = 12;
        if !self.attacks.is_empty() {
            writeln!(f, "  {} hostile hosts beside them", self.hostile_hosts)?;
        }
        for attack in &self.attacks {
            writeln!(f, "  {attack:?}")?;
        }
        for call in self.calls.iter().take(SHOWN) {
            writeln!(f, "  {call:?}")?;
        }
        if self.calls.len() > SHOWN {
            writeln!(f, "  and {} more calls", self.calls.len() - SHOWN)?;
        }
        for stream in &self.streams {
            writeln!(f, "  {stream:?}")?;
        }
        Ok(())
    }
}
