//! The second random draw of a seed: racks and trees, many clients of one server, several hosts on
//! a node, messages of megabytes, calls from handlers, callers without patience, virtual machines.
//!
//! It has a separate generator, so the first draw stays unchanged.

use starling_proto::{Config, Congestion};

use super::base_draw::MAX_CHANNELS;
use super::{CallPlan, ChannelPlan, HostFault, HostFaultKind, MS, ROOMY_BYTES, RunPlan, US};
use crate::check::content;
use crate::fabric::{Fault, HostId, LinkConfig, Rule};
use crate::net::{Marking, NodeId, Outage, SwitchConfig, Topology};
use crate::rng::Rng;

/// The largest message, bytes.
const LARGEST: u32 = 8 << 20;

/// The most large messages of a run.
const MAX_LARGE: u64 = 4;

impl RunPlan {
    pub(super) fn broaden(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0x62_726f_6164_656e);
        let faulty = !self.is_faultless();
        if rng.chance(100_000) {
            self.crowd(&mut rng);
        }
        if self.fabric.topology.switches.is_empty() {
            if rng.chance(400_000) {
                self.build(&mut rng);
            }
            if rng.chance(150_000) {
                self.share_nodes(&mut rng);
            }
        }
        if faulty {
            self.break_more(&mut rng);
        }
        if !self.tight && rng.chance(60_000) {
            self.enlarge(&mut rng);
        }
        if rng.chance(150_000) {
            self.nest(&mut rng);
        }
        if rng.chance(80_000) {
            for call in &mut self.calls {
                if rng.chance(500_000) {
                    call.cancel_after_ns = Some(rng.log_range(1, self.heal_ns));
                }
            }
        }
        for config in &mut self.hosts {
            config.congestion = rng.pick(&[
                config.congestion,
                Congestion::Off,
                Congestion::Timely,
                Congestion::Dctcp,
            ]);
        }
        for config in &mut self.hosts {
            config.group_sessions = rng.pick(&[1, 2, 512]);
        }
    }

    /// Adds more clients, all of the first host.
    fn crowd(&mut self, rng: &mut Rng) {
        let config = self.hosts[0].clone();
        let room = (2 * MAX_CHANNELS).saturating_sub(self.channels.len() as u64);
        for _ in 0..rng.range(2, room.min(8)) {
            let client = HostId(self.hosts.len() as u32);
            self.hosts.push(Config {
                slots: rng.pick(&[1, 8, 64]),
                credits: rng.pick(&[1, 8, 32]),
                ..config.clone()
            });
            let channel = self.channels.len();
            self.channels.push(ChannelPlan {
                client,
                server: HostId(0),
                close_at_ns: None,
            });
            for _ in 0..rng.log_range(1, 30) {
                let at_ns = rng.range(0, self.heal_ns);
                let longest = config.max_message.min(64 << 10).into();
                let request_len = rng.log_range(0, longest) as u32;
                let response_len = rng.log_range(0, 300) as u32;
                let call = CallPlan::new(at_ns, channel, request_len, response_len);
                self.calls.push(call);
            }
        }
        self.calls.sort_by_key(|call| call.at_ns);
        if let [switch, ..] = self.fabric.topology.switches[..] {
            // The cables of earlier hosts keep their numbers.
            let hosts = self.hosts.len() as u32;
            self.fabric.topology = Topology::one_switch(hosts, self.fabric.link, switch);
        }
    }

    /// Adds switches where there were none.
    fn build(&mut self, rng: &mut Rng) {
        let hosts = self.hosts.len() as u32;
        let small_bytes = rng.log_range(20_000, 1 << 20);
        let switch = SwitchConfig {
            buffer_bytes: rng.pick(&[ROOMY_BYTES, small_bytes]),
            alpha_log2: rng.pick(&[-2, 0, 1, 3]),
            marking: rng.pick(&[
                Marking::Off,
                Marking::Threshold { bytes: 60_000 },
                Marking::Red {
                    from_bytes: 5_000,
                    to_bytes: 200_000,
                    most_ppm: 10_000,
                },
            ]),
            ..SwitchConfig::default()
        };
        self.fabric.topology = match rng.below(3) {
            0 => {
                // This topology fixes its own links.
                self.fabric.link = LinkConfig::default();
                for config in &mut self.hosts {
                    config.link_rate_bps = self.fabric.link.rate_bps;
                }
                Topology::cx4_with(hosts, switch)
            }
            1 => {
                // Any two hosts may share a rack, a pod, or neither.
                let tree = Topology::fat_tree(4, self.fabric.link, switch);
                let count = u64::from(tree.nodes.unwrap_or(1));
                let mut free: Vec<u32> = (0..count as u32).collect();
                for _ in 0..hosts {
                    let index = rng.below(free.len() as u64) as usize;
                    self.nodes.push(NodeId(free.swap_remove(index)));
                }
                tree
            }
            _ => Topology::one_switch(hosts, self.fabric.link, switch),
        };
    }

    /// Makes some hosts threads of one node.
    fn share_nodes(&mut self, rng: &mut Rng) {
        if self.nodes.is_empty() {
            self.nodes = (0..self.hosts.len() as u32).map(NodeId).collect();
        }
        for index in 1..self.nodes.len() {
            if rng.chance(500_000) {
                self.nodes[index] = self.nodes[rng.below(index as u64) as usize];
            }
        }
    }

    fn break_more(&mut self, rng: &mut Rng) {
        let cables = self.fabric.topology.cables.len() as u64;
        if cables > 0 && rng.chance(300_000) {
            for _ in 0..rng.range(1, 4) {
                let start_ns = rng.range(0, self.heal_ns);
                let down_ns = rng.log_range(1, self.heal_ns);
                let outage = Outage {
                    start_ns,
                    end_ns: rng.range(start_ns, self.heal_ns),
                    down_ns,
                    up_ns: rng.log_range(0, 10 * down_ns),
                };
                let cable = rng.below(cables) as usize;
                self.outages.push((cable, outage));
            }
        }
        if rng.chance(80_000) {
            self.isolate(rng);
        }
        if rng.chance(50_000) {
            let one_in = rng.log_range(10, 100_000);
            let rule = self.place(rng, Fault::RareLoss { one_in });
            self.rules.push(rule);
        }
        if rng.chance(50_000) {
            // A virtual machine that loses its core again and again.
            let host = self.any_host(rng);
            for _ in 0..rng.range(2, 10) {
                self.host_faults.push(HostFault {
                    at_ns: rng.range(0, self.heal_ns),
                    host,
                    kind: HostFaultKind::Pause {
                        for_ns: rng.range(100 * US, 20 * MS),
                    },
                });
            }
        }
    }

    /// Isolates a host for a while, in both directions.
    fn isolate(&mut self, rng: &mut Rng) {
        let host = Some(self.any_host(rng));
        let start_ns = rng.range(0, self.heal_ns);
        let end_ns = rng.range(start_ns, self.heal_ns);
        let rule = Rule::everywhere(start_ns, end_ns, Fault::Partition);
        self.rules.push(Rule { from: host, ..rule });
        self.rules.push(Rule { to: host, ..rule });
    }

    /// Adds a few messages of megabytes, mostly in one direction, where links are fast enough.
    fn enlarge(&mut self, rng: &mut Rng) {
        let wide = self.fabric.max_datagram >= 1200 && self.fabric.link.rate_bps >= 10_000_000_000;
        if !wide || self.calls.is_empty() {
            return;
        }
        for config in &mut self.hosts {
            config.max_message = LARGEST;
        }
        for _ in 0..rng.range(1, MAX_LARGE) {
            let index = rng.below(self.calls.len() as u64) as usize;
            let call = &mut self.calls[index];
            let len = rng.log_range(1 << 20, LARGEST.into()) as u32;
            match rng.below(5) {
                0 | 1 => call.request_len = len.max(call.tail_len),
                2 | 3 => {
                    call.response_len = len;
                    call.request_len = call.request_len.max(content::HEADER as u32);
                }
                _ => {
                    call.request_len = len.max(call.tail_len);
                    call.response_len = len;
                }
            }
        }
    }

    /// Lets some handlers make a call of their own before they answer. The called host answers
    /// without further calls, so no calls wait for each other in a circle.
    fn nest(&mut self, rng: &mut Rng) {
        let ends: Vec<bool> = self.channels.iter().map(|_| rng.chance(500_000)).collect();
        for call in &mut self.calls {
            // A shorter request has no unique key.
            let named = call.request_len as usize >= content::HEADER;
            if ends[call.channel] || !named || !rng.chance(500_000) {
                continue;
            }
            let server = self.channels[call.channel].server;
            let onward: Vec<usize> = (0..ends.len())
                .filter(|&index| ends[index] && self.channels[index].client == server)
                .collect();
            if !onward.is_empty() {
                call.via = Some(rng.pick(&onward));
            }
        }
    }
}
