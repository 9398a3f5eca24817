//! What happens in a run, drawn from a seed and then fixed: a list of calls, a list of faults, the
//! limits of every host. Because everything is an entry of a list, a failing scenario is
//! shrunk by leaving entries out.

use std::fmt;

use starling_proto::{Config, Congestion, Factors, Prefix};

use super::{MS, US};
use crate::cpu::CpuModel;
use crate::fabric::{FabricConfig, Fault, HostId, LinkConfig, ReceiveLimits, Rule};
use crate::net::{Marking, Outage, SwitchConfig, Topology};
use crate::rng::Rng;

/// Bytes that all messages of one run may have together: keeps a run in the milliseconds.
const BYTES_BUDGET: u64 = 1 << 20;

/// A switch's buffer that all messages of a run together do not fill.
const ROOMY_BYTES: u64 = 12_000_000;

/// Channels of a run.
const MOST_CHANNELS: u64 = 12;

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallPlan {
    /// When it is issued, ns.
    pub at_ns: u64,
    /// On which channel, by index.
    pub channel: usize,
    /// Length of the request, bytes.
    pub request_len: u32,
    /// Length of the response, bytes, if the request is long enough to ask for it.
    pub response_len: u32,
    /// How long the handler takes, us.
    pub delay_us: u32,
    /// The caller gives up after this time.
    pub cancel_after_ns: Option<u64>,
    /// Bytes of the request that are a segment by reference.
    pub tail_len: u32,
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

/// A fault of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFault {
    /// When it happens, ns.
    pub at_ns: u64,
    /// To whom.
    pub host: HostId,
    /// What.
    pub kind: HostFaultKind,
}

/// What may happen to a host.
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
        /// How far.
        by_ns: u64,
    },
}

/// A datagram of noise from an address that nobody has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrayPlan {
    /// When it arrives, ns.
    pub at_ns: u64,
    /// Where.
    pub to: HostId,
    /// What it says.
    pub bytes: Vec<u8>,
}

/// Everything that is decided before a run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where it was drawn from.
    pub seed: u64,
    /// The fabric, with the seed of its dice.
    pub fabric: FabricConfig,
    /// The configuration of each host, by number.
    pub hosts: Vec<Config>,
    /// Who talks to whom.
    pub channels: Vec<ChannelPlan>,
    /// The calls, by time.
    pub calls: Vec<CallPlan>,
    /// Faults of the network. All end by `heal_ns`.
    pub rules: Vec<Rule>,
    /// Faults of hosts. All end by `heal_ns`.
    pub host_faults: Vec<HostFault>,
    /// Cables, by number, that are out for a time or flap.
    pub outages: Vec<(usize, Outage)>,
    /// Noise.
    pub strays: Vec<StrayPlan>,
    /// When all faults are over, ns.
    pub heal_ns: u64,
    /// The servers take fewer sessions, messages or bytes than they may be asked for, so that
    /// errors about limits are in order.
    pub tight: bool,
}

impl Scenario {
    /// The scenario that `seed` stands for.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let heal_ns = rng.log_range(MS, 200 * MS);
        let tight = rng.chance(150_000);
        let mut fabric = draw_fabric(&mut rng);
        let host_count = rng.pick(&[2, 2, 2, 3, 4]);
        let liveness = Liveness::draw(&mut rng);
        let hosts: Vec<Config> = (0..host_count)
            .map(|_| draw_config(&mut rng, &fabric, &liveness, tight))
            .collect();
        // Dice of their own: a seed from before there were switches is the run that it was.
        let outages = draw_network(&mut Rng::new(!seed), &mut fabric, host_count, heal_ns);
        let channels = draw_channels(&mut rng, host_count, heal_ns);
        let calls = draw_calls(&mut rng, &hosts, &channels, &fabric, heal_ns);
        let mut scenario = Self {
            seed,
            fabric,
            hosts,
            channels,
            calls,
            rules: Vec::new(),
            host_faults: Vec::new(),
            outages,
            strays: Vec::new(),
            heal_ns,
            tight,
        };
        // One run in eight is without faults: it has to be perfect.
        if !rng.chance(125_000) {
            scenario.draw_faults(&mut rng);
        }
        scenario
    }

    /// A scenario of `hosts` hosts in which nothing happens yet, to be filled by hand: fast links,
    /// default limits, patient hosts.
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
            rules: Vec::new(),
            host_faults: Vec::new(),
            outages: Vec::new(),
            strays: Vec::new(),
            heal_ns: MS,
            tight: false,
        }
    }

    /// Whether nothing goes wrong by itself.
    pub fn is_faultless(&self) -> bool {
        self.rules.is_empty()
            && self.host_faults.is_empty()
            && self.outages.is_empty()
            && self.strays.is_empty()
    }

    /// Whether no call has a reason to fail: ample limits, a network that is never slow enough to
    /// look dead and loses at most a tenth, and hosts that try long enough.
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

    /// Whether flipped bits may reach the protocol. It has no checksum of its own, so nothing can
    /// then be promised about what messages say and how often they run.
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
    /// take, ns. Generous: a hang lasts for ever, so the bound only has to be finite and hold.
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
        // At 10 Mb/s, and a retransmission timeout for every call.
        let transfer_ns =
            bytes * 800 + self.calls.len() as u64 * slowest(|config| config.rto_max_ns);
        4 * detection_ns + 2 * handlers_ns + transfer_ns + 100 * MS
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

    fn draw_faults(&mut self, rng: &mut Rng) {
        let heal_ns = self.heal_ns;
        // How bad everything is in this run, up to 30%.
        let worst_ppm = rng.log_range(100, 300_000) as u32;
        let long_ns = heal_ns / 2;
        for _ in 0..rng.log_range(0, 6) {
            let ppm = rng.range(1, u64::from(worst_ppm)) as u32;
            let delay_ns = rng.log_range(US, long_ns);
            let fault = match rng.below(12) {
                0..=2 => Fault::Loss { ppm },
                3 => Fault::BurstLoss {
                    enter_ppm: ppm / 10,
                    leave_ppm: rng.range(10_000, 300_000) as u32,
                    good_ppm: rng.pick(&[0, 0, ppm / 10]),
                    bad_ppm: rng.pick(&[1_000_000, 1_000_000, 500_000]),
                },
                4 => Fault::Duplicate { ppm, delay_ns },
                5 => Fault::Reorder {
                    ppm,
                    delay_ns: delay_ns.min(MS),
                },
                6 => Fault::Jitter {
                    max_ns: rng.log_range(100, 100 * US),
                },
                7 => Fault::Corrupt {
                    ppm,
                    undetected: rng.chance(200_000),
                },
                8 => Fault::Mark { ppm },
                9 => Fault::Misroute { ppm },
                10 => Fault::Starve {
                    datagrams: rng.log_range(0, 256) as usize,
                },
                _ => Fault::Partition,
            };
            let rule = self.place(rng, fault);
            self.rules.push(rule);
        }
        if rng.chance(300_000) {
            for _ in 0..rng.range(1, 4) {
                let fault = self.draw_host_fault(rng);
                self.host_faults.push(fault);
            }
        }
        if rng.chance(200_000) {
            for _ in 0..rng.range(1, 20) {
                let stray = self.draw_stray(rng);
                self.strays.push(stray);
            }
        }
    }

    /// Puts a fault somewhere: everywhere or between two hosts, always or for a while.
    fn place(&self, rng: &mut Rng, fault: Fault) -> Rule {
        let mut rule = Rule::everywhere(0, self.heal_ns, fault);
        let total = matches!(fault, Fault::Partition | Fault::Starve { .. });
        if total || rng.chance(300_000) {
            let start_ns = rng.range(0, self.heal_ns);
            let most_ns = self.heal_ns - start_ns;
            rule.start_ns = start_ns;
            rule.end_ns = start_ns + rng.log_range(0, most_ns);
        }
        if rng.chance(300_000) {
            rule.from = Some(self.any_host(rng));
        }
        if rng.chance(300_000) {
            rule.to = Some(self.any_host(rng));
        }
        rule
    }

    fn draw_host_fault(&self, rng: &mut Rng) -> HostFault {
        let at_ns = rng.range(0, self.heal_ns);
        let for_ns = rng.log_range(0, self.heal_ns - at_ns);
        let kind = match rng.below(6) {
            0 | 1 => HostFaultKind::Pause { for_ns },
            2 | 3 => HostFaultKind::Crash { for_ns },
            // Far more than quartz does, in either direction.
            4 => HostFaultKind::ClockDrift {
                ppb: rng.range(0, 2_000_000) as i32 - 1_000_000,
            },
            _ => HostFaultKind::ClockJump {
                by_ns: rng.log_range(US, 10_000 * MS),
            },
        };
        HostFault {
            at_ns,
            host: self.any_host(rng),
            kind,
        }
    }

    fn draw_stray(&self, rng: &mut Rng) -> StrayPlan {
        let len = rng.log_range(0, 200.min(self.fabric.max_datagram as u64));
        let mut bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        if rng.chance(700_000) {
            // Something that gets past the first look: magic, version, no token, a kind.
            let start = [0x5a, 1, 0, 0, 0, 0, 0, 0, rng.range(1, 19) as u8, 0];
            let kept = start.len().min(bytes.len());
            bytes[..kept].copy_from_slice(&start[..kept]);
        }
        StrayPlan {
            at_ns: rng.range(0, self.heal_ns),
            to: self.any_host(rng),
            bytes,
        }
    }

    fn any_host(&self, rng: &mut Rng) -> HostId {
        HostId(rng.below(self.hosts.len() as u64) as u32)
    }
}

fn draw_fabric(rng: &mut Rng) -> FabricConfig {
    let starved = rng.chance(150_000);
    FabricConfig {
        seed: rng.next_u64(),
        max_datagram: rng.pick(&[512, 1200, 1472, 1472, 4096, 8972, 65_507]),
        link: LinkConfig {
            // The slowest and the fullest together stay below the shortest `rto_max_ns`: beyond
            // it everything would be sent again before it can have arrived.
            rate_bps: rng.pick(&[1, 10, 25, 100]) * 1_000_000_000,
            propagation_ns: rng.log_range(100, 200 * US),
            queue_bytes: rng.log_range(10_000, 1 << 20),
        },
        receive: ReceiveLimits {
            // Never so few that there is no credit for a session of each channel.
            datagrams: if starved {
                rng.range(2 * MOST_CHANNELS, 128) as usize
            } else {
                4096
            },
            bytes: if starved { 128 << 10 } else { 16 << 20 },
        },
        poll_ns: rng.log_range(50, 20 * US),
        port_unreachable: rng.chance(300_000),
        ..FabricConfig::default()
    }
}

/// Puts a switch between the hosts of some runs, with a buffer that may be small and cables that
/// may be out, and lets turns cost something in some. Returns the outages.
fn draw_network(
    rng: &mut Rng,
    fabric: &mut FabricConfig,
    host_count: u64,
    heal_ns: u64,
) -> Vec<(usize, Outage)> {
    if rng.chance(250_000) {
        fabric.cpu = rng.pick(&[CpuModel::POLLED, CpuModel::KERNEL_UDP]);
        fabric.ring = rng.log_range(4, 512) as usize;
    }
    if !rng.chance(300_000) {
        return Vec::new();
    }
    let small_bytes = rng.log_range(20_000, 1 << 20);
    let switch = SwitchConfig {
        buffer_bytes: rng.pick(&[ROOMY_BYTES, small_bytes]),
        alpha_log2: rng.pick(&[-2, 0, 1, 3]),
        latency_ns: rng.log_range(100, 2_000),
        cut_through: rng.chance(500_000),
        marking: rng.pick(&[Marking::Off, Marking::Threshold { bytes: 10_000 }]),
    };
    fabric.topology = Topology::one_switch(host_count as u32, fabric.link, switch);
    if !rng.chance(300_000) {
        return Vec::new();
    }
    let start_ns = rng.range(0, heal_ns);
    let down_ns = rng.log_range(1, heal_ns);
    let outage = Outage {
        start_ns,
        end_ns: rng.range(start_ns, heal_ns),
        down_ns,
        up_ns: rng.log_range(0, 10 * down_ns),
    };
    vec![(rng.below(host_count) as usize, outage)]
}

/// When a peer counts as dead. The same for all hosts of a run: the protocol does not negotiate it.
struct Liveness {
    patient: bool,
    peer_timeout_ns: u64,
    keepalive_ns: u64,
}

impl Liveness {
    fn draw(rng: &mut Rng) -> Self {
        // Half of the runs try long enough for any call to get through a lossy network.
        let patient = rng.chance(500_000);
        let peer_timeout_ns = if patient {
            rng.range(800 * MS, 2_000 * MS)
        } else {
            rng.log_range(50 * MS, 800 * MS)
        };
        let share = if patient { 8 } else { 4 };
        Self {
            patient,
            peer_timeout_ns,
            keepalive_ns: rng.range(MS, peer_timeout_ns / share),
        }
    }
}

fn draw_config(rng: &mut Rng, fabric: &FabricConfig, liveness: &Liveness, tight: bool) -> Config {
    let &Liveness {
        patient,
        peer_timeout_ns,
        keepalive_ns,
    } = liveness;
    let on = |rng: &mut Rng| !rng.chance(200_000);
    let max_message = if tight { 32 << 10 } else { 1 << 20 };
    Config {
        slots: rng.pick(&[1, 2, 3, 8, 8, 8, 64]),
        credits: rng.pick(&[1, 2, 8, 32, 32, 64]),
        max_message,
        max_queued: if tight {
            rng.range(0, 8) as usize
        } else {
            4096
        },
        max_sessions: if tight { rng.range(1, 3) as usize } else { 256 },
        reassembly_bytes: if tight {
            max_message as usize + usize::from(Prefix::MAX)
        } else {
            64 << 20
        },
        rx_queue_datagrams: fabric.receive.datagrams,
        rx_queue_bytes: fabric.receive.bytes,
        overcommit: rng.pick(&[1, 8, 8]),
        rto_min_ns: rng.log_range(5 * US, 5 * MS),
        rto_max_ns: rng.log_range(20 * MS, if patient { 40 * MS } else { 100 * MS }),
        peer_timeout_ns,
        keepalive_ns,
        connect_timeout_ns: if patient {
            peer_timeout_ns
        } else {
            rng.log_range(20 * MS, 500 * MS)
        },
        response_retention_ns: 20 * peer_timeout_ns,
        congestion: if rng.chance(500_000) {
            Congestion::Timely
        } else {
            Congestion::Off
        },
        link_rate_bps: fabric.link.rate_bps,
        factors: Factors {
            timely_bypass: on(rng),
            pacing_bypass: on(rng),
            preallocated_responses: on(rng),
            zero_copy_requests: on(rng),
        },
        ..Config::default()
    }
}

fn draw_channels(rng: &mut Rng, host_count: u64, heal_ns: u64) -> Vec<ChannelPlan> {
    let any = |rng: &mut Rng| rng.below(host_count) as u32;
    (0..rng.log_range(1, MOST_CHANNELS))
        .map(|_| {
            let client = any(rng);
            // Anybody but the client; mostly the last host.
            let other = (client + 1 + rng.below(host_count - 1) as u32) % host_count as u32;
            let last = host_count as u32 - 1;
            let server = if client != last && rng.chance(700_000) {
                last
            } else {
                other
            };
            ChannelPlan {
                client: HostId(client),
                server: HostId(server),
                close_at_ns: rng.chance(200_000).then(|| rng.range(0, heal_ns)),
            }
        })
        .collect()
}

fn draw_calls(
    rng: &mut Rng,
    hosts: &[Config],
    channels: &[ChannelPlan],
    fabric: &FabricConfig,
    heal_ns: u64,
) -> Vec<CallPlan> {
    let mut left = BYTES_BUDGET;
    let mut draw_len = |rng: &mut Rng, max_message: u32| -> u32 {
        let several = 300 * fabric.max_datagram as u64;
        let len = match rng.below(20) {
            0..=13 => rng.log_range(0, 300),
            14..=16 => rng.range(0, 3 * fabric.max_datagram as u64),
            17 | 18 => rng.log_range(0, several),
            // Just around the limit of one packet, with and without the header of a fragment.
            _ => (fabric.max_datagram as u64 + 8).saturating_sub(rng.below(64)),
        };
        let len = len.min(u64::from(max_message)).min(left);
        left -= len;
        len as u32
    };
    let count = rng.log_range(1, 300);
    // Bunched or spread, so that both queues and idle sessions come up.
    let span_ns = rng.log_range(1, heal_ns);
    let longest_us = rng.log_range(1, heal_ns / US) as u32;
    let mut calls: Vec<CallPlan> = (0..count)
        .map(|_| {
            let channel = rng.below(channels.len() as u64) as usize;
            let plan = &channels[channel];
            let limit = |host: HostId| hosts[host.0 as usize].max_message;
            // Neither end sends or takes more than its own limit.
            let limit = limit(plan.server).min(limit(plan.client));
            let request_len = draw_len(rng, limit);
            let tail_len = if rng.chance(200_000) {
                rng.range(0, u64::from(request_len)) as u32
            } else {
                0
            };
            CallPlan {
                at_ns: rng.range(0, span_ns),
                channel,
                request_len,
                response_len: draw_len(rng, limit),
                delay_us: if rng.chance(500_000) {
                    0
                } else {
                    rng.log_range(1, u64::from(longest_us)) as u32
                },
                cancel_after_ns: rng.chance(50_000).then(|| rng.log_range(1, heal_ns)),
                tail_len,
            }
        })
        .collect();
    calls.sort_by_key(|call| call.at_ns);
    calls
}

impl fmt::Display for Scenario {
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
            if self.tight { ", tight limits" } else { "" },
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
            writeln!(f, "  {switch:?}")?;
        }
        if !self.fabric.cpu.is_free() {
            writeln!(f, "  rings of {}, {:?}", self.fabric.ring, self.fabric.cpu)?;
        }
        for (cable, outage) in &self.outages {
            writeln!(f, "  cable {cable}: {outage:?}")?;
        }
        if !self.strays.is_empty() {
            writeln!(f, "  {} stray datagrams", self.strays.len())?;
        }
        const SHOWN: usize = 12;
        for call in self.calls.iter().take(SHOWN) {
            writeln!(f, "  {call:?}")?;
        }
        if self.calls.len() > SHOWN {
            writeln!(f, "  and {} more calls", self.calls.len() - SHOWN)?;
        }
        Ok(())
    }
}
