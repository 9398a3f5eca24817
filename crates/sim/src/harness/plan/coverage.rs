//! The features of a plan by name, to check that random runs leave none out.

use super::{HandlerReads, HostFaultKind, RunPlan, Runs, StreamPlan};
use crate::fabric::{Fault, HostId};
use crate::net::{Framing, Marking};

/// A message that takes more than this counts as large, bytes.
const LARGE: u32 = 1 << 20;

impl RunPlan {
    /// The kinds of topologies, algorithms, faults and calls that it has, with how many of each.
    pub fn coverage(&self) -> Vec<(String, u64)> {
        let mut coverage = vec![(format!("topology: {}", self.fabric.topology.name), 1)];
        let mut add = |name: &str, count: usize| {
            if count > 0 {
                coverage.push((name.to_owned(), count as u64));
            }
        };
        self.cover_faults(&mut add);
        self.cover_network(&mut add);
        self.cover_calls(&mut add);
        let closed = |channel: &&super::ChannelPlan| channel.close_at_ns.is_some();
        let closed = self.channels.iter().filter(closed).count();
        add("sessions: closed under load", closed + self.closes.len());
        add(
            "sessions: whose places come back",
            usize::from(!self.closes.is_empty()),
        );
        let longest = self.host_faults.iter().filter(
            |fault| matches!(fault.kind, HostFaultKind::Pause { for_ns } if for_ns > 67_108_864),
        );
        add("fault: pause longer than the wheel", longest.count());
        let kept = |config: &&starling_proto::Config| config.retained_bytes < 1 << 20;
        let kept = self.hosts.iter().filter(kept).count();
        add("limits: few kept responses", kept);
        add("calls: made again if not sent", usize::from(self.recalls));
        add(
            "limits: frames of a turn",
            self.frames_a_turn.iter().count(),
        );
        coverage
    }

    fn cover_faults(&self, add: &mut dyn FnMut(&str, usize)) {
        for rule in &self.rules {
            let places = u8::from(rule.from.is_some()) + u8::from(rule.to.is_some());
            add(rule_kind(rule.fault, places), 1);
        }
        for fault in &self.host_faults {
            add(host_kind(fault.kind), 1);
        }
        for (_, outage) in &self.outages {
            let flaps = outage.end_ns - outage.start_ns > outage.down_ns + outage.up_ns;
            let name = if flaps { "link flap" } else { "link outage" };
            add(&format!("fault: {name}"), 1);
        }
        add("fault: injected datagram", self.injected.len());
        add("hosts: hostile", self.hostile_hosts as usize);
        for attack in &self.attacks {
            add(attack.attack.name(), 1);
        }
    }

    fn cover_network(&self, add: &mut dyn FnMut(&str, usize)) {
        for config in &self.hosts {
            add(&format!("congestion control: {:?}", config.congestion), 1);
        }
        if let [switch, ..] = &self.fabric.topology.switches[..] {
            let name = match switch.marking {
                Marking::Off => "off",
                Marking::Threshold { .. } => "threshold",
                Marking::Red { .. } => "RED",
            };
            add(&format!("marking: {name}"), 1);
        }
        if let Some(framing) = self.fabric.framing {
            let name = match framing {
                Framing::Ipv4 => "IPv4",
                Framing::Ipv6 => "IPv6",
                Framing::LinkLocal => "IPv6, link-local",
            };
            add(&format!("frames: {name}"), 1);
        }
        let costs = !self.fabric.cpu.is_free();
        add("hosts: whose turns cost time", usize::from(costs));
        let mut nodes = self.nodes.clone();
        nodes.sort_unstable();
        nodes.dedup();
        let shared = nodes.len() < self.nodes.len();
        add("hosts: that share a card", usize::from(shared));
        add("limits: tight", usize::from(self.tight));
    }

    fn cover_calls(&self, add: &mut dyn FnMut(&str, usize)) {
        let calls = |wanted: fn(&super::CallPlan) -> bool| {
            self.calls.iter().filter(|call| wanted(call)).count()
        };
        add("calls", self.calls.len());
        let large = calls(|call| call.request_len >= LARGE);
        add("calls: request of 1 MiB or more", large);
        let large = calls(|call| call.response_len >= LARGE);
        add("calls: response of 1 MiB or more", large);
        let cancelled = calls(|call| call.cancel_after_ns.is_some());
        add("calls: cancelled", cancelled);
        let relayed = calls(|call| call.via.is_some());
        add("calls: answered by way of another", relayed);
        let slow = calls(|call| call.delay_us > 0);
        add("calls: with a slow handler", slow);
        add("hosts: whole endpoints", usize::from(self.endpoints));
        add("hosts: workers that claim", usize::from(self.workers));
        let threads = (0..self.hosts.len() as u32).filter(|&host| self.has_threads(HostId(host)));
        add("hosts: threads that share", threads.count());
        if self.endpoints {
            let timed = calls(|call| call.timeout_ns.is_some());
            add("calls: with a deadline", timed);
            let in_workers = calls(|call| call.runs == Runs::Worker);
            add("calls: in a worker", in_workers);
            let deferred = calls(|call| call.runs == Runs::Deferred);
            add("calls: answered later", deferred);
            self.cover_streams(add);
        }
    }

    fn cover_streams(&self, add: &mut dyn FnMut(&str, usize)) {
        let streams = |wanted: fn(&StreamPlan) -> bool| {
            self.streams.iter().filter(|stream| wanted(stream)).count()
        };
        add("streams", self.streams.len());
        let cancelled = streams(|stream| stream.cancel_after_ns.is_some());
        add("streams: cancelled", cancelled);
        let timed = streams(|stream| stream.timeout_ns.is_some());
        add("streams: with a deadline", timed);
        let early = streams(|stream| stream.handler_reads != HandlerReads::All);
        add("streams: not read to their end", early);
        let large = streams(|stream| stream.up.largest.max(stream.down.largest) > 60_000);
        add("streams: with large items", large);
    }
}

fn rule_kind(fault: Fault, places: u8) -> &'static str {
    match fault {
        Fault::Loss { .. } => "fault: loss",
        Fault::RareLoss { .. } => "fault: rare loss",
        Fault::BurstLoss { .. } => "fault: burst loss",
        Fault::Duplicate { .. } => "fault: duplication",
        Fault::Reorder { .. } => "fault: reordering",
        Fault::Jitter { .. } => "fault: jitter",
        Fault::Corrupt {
            undetected: false, ..
        } => "fault: corruption",
        Fault::Corrupt { .. } => "fault: corruption past all checksums",
        Fault::Mark { .. } => "fault: marking",
        Fault::Partition if places == 0 => "fault: full partition",
        Fault::Partition => "fault: one-way partition",
        Fault::Misroute { .. } => "fault: misrouting",
        Fault::Starve { .. } => "fault: exhausted receive queue",
    }
}

fn host_kind(kind: HostFaultKind) -> &'static str {
    match kind {
        HostFaultKind::Pause { .. } => "fault: pause of a host",
        HostFaultKind::Crash { .. } => "fault: crash and restart",
        HostFaultKind::ClockDrift { .. } => "fault: clock drift",
        HostFaultKind::ClockJump { .. } => "fault: clock jump",
        HostFaultKind::Drain { .. } => "fault: drain and restart",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::Attack;
    use super::*;

    /// A few thousand seeds draw every feature.
    #[test]
    fn every_feature_is_drawn() {
        let mut counts = BTreeMap::new();
        for seed in 0..3_000 {
            for (kind, count) in RunPlan::from_seed(seed).coverage() {
                *counts.entry(kind).or_insert(0) += count;
            }
        }
        for (kind, count) in &counts {
            println!("{kind}: {count}");
        }
        let expected = [
            "topology: mesh",
            "topology: one switch",
            "topology: CX4",
            "topology: fat tree",
            "fault: loss",
            "fault: rare loss",
            "fault: burst loss",
            "fault: duplication",
            "fault: reordering",
            "fault: jitter",
            "fault: corruption",
            "fault: corruption past all checksums",
            "fault: marking",
            "fault: full partition",
            "fault: one-way partition",
            "fault: misrouting",
            "fault: exhausted receive queue",
            "fault: pause of a host",
            "fault: crash and restart",
            "fault: clock drift",
            "fault: clock jump",
            "fault: link flap",
            "fault: link outage",
            "fault: injected datagram",
            "congestion control: Off",
            "congestion control: Timely",
            "congestion control: Dctcp",
            "marking: off",
            "marking: threshold",
            "marking: RED",
            "frames: IPv4",
            "frames: IPv6",
            "frames: IPv6, link-local",
            "hosts: whose turns cost time",
            "hosts: that share a card",
            "limits: tight",
            "limits: few kept responses",
            "calls: made again if not sent",
            "limits: frames of a turn",
            "sessions: whose places come back",
            "fault: pause longer than the wheel",
            "calls: request of 1 MiB or more",
            "calls: response of 1 MiB or more",
            "calls: cancelled",
            "calls: answered by way of another",
            "calls: with a slow handler",
            "sessions: closed under load",
            "hosts: whole endpoints",
            "hosts: workers that claim",
            "hosts: threads that share",
            "calls: with a deadline",
            "calls: in a worker",
            "calls: answered later",
            "streams",
            "streams: cancelled",
            "streams: with a deadline",
            "streams: not read to their end",
            "streams: with large items",
            "fault: drain and restart",
        ];
        for kind in expected.into_iter().chain(Attack::ALL.map(Attack::name)) {
            let count = counts.get(kind).copied().unwrap_or(0);
            assert!(count >= 10, "{kind}: {count} times in 3000 runs");
        }
    }
}
