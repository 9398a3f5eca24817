//! The first random draw of a seed: limits, links, calls, faults.

use starling_proto::{Config, Congestion, Factors, Prefix};

use super::{
    CallPlan, ChannelPlan, HostFault, HostFaultKind, InjectedDatagram, MS, ROOMY_BYTES, RunPlan,
    Runs, US,
};
use crate::cpu::CpuModel;
use crate::fabric::{FabricConfig, Fault, HostId, LinkConfig, ReceiveLimits, Rule};
use crate::net::{Framing, Marking, Outage, SwitchConfig, Topology};
use crate::rng::Rng;

/// Bytes that all messages of one run may have together, so that a run takes milliseconds.
const BYTES_BUDGET: u64 = 1 << 20;

/// The most channels of a run.
pub(super) const MAX_CHANNELS: u64 = 12;

impl RunPlan {
    /// The plan that `seed` stands for.
    pub fn from_seed(seed: u64) -> Self {
        let mut plan = Self::from_seed_before_threads(seed);
        plan.draw_threads();
        plan
    }

    /// The plan that `seed` stood for before threads shared endpoints.
    pub fn from_seed_before_threads(seed: u64) -> Self {
        let mut plan = Self::from_seed_before_hostile_hosts(seed);
        plan.draw_attacks();
        plan
    }

    /// The plan that `seed` stood for before there were hostile hosts.
    pub fn from_seed_before_hostile_hosts(seed: u64) -> Self {
        let mut plan = Self::from_seed_before_budgets(seed);
        plan.draw_budgets();
        plan
    }

    /// The plan that `seed` stood for before there were small budgets, places that come back, and long pauses.
    pub fn from_seed_before_budgets(seed: u64) -> Self {
        let mut plan = Self::from_seed_before_broadening(seed);
        plan.broaden();
        plan.draw_endpoints();
        // A separate generator leaves the other draws unchanged.
        let claims = Rng::new(seed ^ 0x0063_6c61_696d).chance(300_000);
        plan.workers = claims && !plan.endpoints;
        plan.draw_frames(&mut Rng::new(seed ^ 0x66_7261_6d65));
        plan.draw_streams();
        plan
    }

    /// The plan that `seed` stood for before there were whole endpoints.
    pub fn from_seed_before_endpoints(seed: u64) -> Self {
        let mut plan = Self::from_seed_before_broadening(seed);
        plan.broaden();
        plan
    }

    /// The plan that `seed` stood for before there were racks, large messages and calls from
    /// handlers. Seeds in older regression tests keep their runs.
    pub fn from_seed_before_broadening(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let heal_ns = rng.log_range(MS, 200 * MS);
        let tight = rng.chance(150_000);
        let mut fabric = draw_fabric(&mut rng);
        let host_count = rng.pick(&[2, 2, 2, 3, 4]);
        let liveness = Liveness::draw(&mut rng);
        let hosts: Vec<Config> = (0..host_count)
            .map(|_| draw_config(&mut rng, &fabric, &liveness, tight))
            .collect();
        // A separate generator leaves the runs of seeds from before switches unchanged.
        let outages = draw_network(&mut Rng::new(!seed), &mut fabric, host_count, heal_ns);
        let channels = draw_channels(&mut rng, host_count, heal_ns);
        let calls = draw_calls(&mut rng, &hosts, &channels, &fabric, heal_ns);
        let mut plan = Self {
            seed,
            fabric,
            hosts,
            channels,
            calls,
            streams: Vec::new(),
            closes: Vec::new(),
            rules: Vec::new(),
            host_faults: Vec::new(),
            outages,
            injected: Vec::new(),
            attacks: Vec::new(),
            hostile_hosts: 0,
            heal_ns,
            tight,
            recalls: false,
            frames_a_turn: None,
            nodes: Vec::new(),
            endpoints: false,
            threads: false,
            workers: false,
            subset: None,
        };
        // One run in eight has no faults, and must be perfect.
        if !rng.chance(125_000) {
            plan.draw_faults(&mut rng);
        }
        plan
    }

    /// Lets datagrams cross as frames in a third of the runs, which alone changes nothing. In some
    /// of these runs many frames are damaged.
    fn draw_frames(&mut self, rng: &mut Rng) {
        if !rng.chance(333_333) {
            return;
        }
        self.fabric.framing = Some(rng.pick(&Framing::ALL));
        if !self.is_faultless() && rng.chance(250_000) {
            let ppm = rng.log_range(10_000, 200_000) as u32;
            let undetected = false;
            // This rule comes last, so that the rules of a subset keep their places.
            let rule = self.place(rng, Fault::Corrupt { ppm, undetected });
            self.rules.push(rule);
        }
    }

    fn draw_faults(&mut self, rng: &mut Rng) {
        let heal_ns = self.heal_ns;
        // The highest fault rate of this run, up to 30%.
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
                let datagram = self.draw_injected(rng);
                self.injected.push(datagram);
            }
        }
    }

    /// Puts a fault somewhere: everywhere or between two hosts, always or for a while.
    pub(super) fn place(&self, rng: &mut Rng, fault: Fault) -> Rule {
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

    fn draw_injected(&self, rng: &mut Rng) -> InjectedDatagram {
        let len = rng.log_range(0, 200.min(self.fabric.max_datagram as u64));
        let mut bytes: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        if rng.chance(700_000) {
            // A prefix that passes the first check: magic, version, no token, a kind.
            let start = [0x5a, 3, 0, 0, 0, 0, 0, 0, rng.range(1, 19) as u8, 0];
            let kept = start.len().min(bytes.len());
            bytes[..kept].copy_from_slice(&start[..kept]);
        }
        InjectedDatagram {
            at_ns: rng.range(0, self.heal_ns),
            to: self.any_host(rng),
            bytes,
        }
    }

    pub(super) fn any_host(&self, rng: &mut Rng) -> HostId {
        HostId(rng.below(self.hosts.len() as u64) as u32)
    }
}

fn draw_fabric(rng: &mut Rng) -> FabricConfig {
    let starved = rng.chance(150_000);
    FabricConfig {
        seed: rng.next_u64(),
        max_datagram: rng.pick(&[512, 1200, 1472, 1472, 4096, 8972, 65_507]),
        link: LinkConfig {
            // The slowest rate with the longest queue stays below the shortest `rto_max_ns`. Above
            // it, every packet would be sent again before it can have arrived.
            rate_bps: rng.pick(&[1, 10, 25, 100]) * 1_000_000_000,
            propagation_ns: rng.log_range(100, 200 * US),
            queue_bytes: rng.log_range(10_000, 1 << 20),
        },
        receive: ReceiveLimits {
            // Always enough for one credit for a session of each channel.
            datagrams: if starved {
                rng.range(2 * MAX_CHANNELS, 128) as usize
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
        congestion: rng.pick(&[
            Congestion::Timely,
            Congestion::Dctcp,
            Congestion::Off,
            Congestion::Off,
        ]),
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
    (0..rng.log_range(1, MAX_CHANNELS))
        .map(|_| {
            let client = any(rng);
            // Any host but the client, mostly the last one.
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
    // Calls are bunched or spread, so that both queues and idle sessions occur.
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
                via: None,
                timeout_ns: None,
                runs: Runs::Inline,
            }
        })
        .collect();
    calls.sort_by_key(|call| call.at_ns);
    calls
}
