//! The last random draw of a seed: budgets so small that they are used up, sessions that open and close so
//! often that their places come back, pauses longer than the timing wheel of timers, and servers that leave.
//!
//! It has a separate generator, so the other draws stay unchanged.

use starling_proto::Prefix;

use super::{CallPlan, HostFault, HostFaultKind, MS, RunPlan, SessionClose, US};
use crate::check::content;
use crate::fabric::{Fault, Rule};
use crate::rng::Rng;

/// The largest message of a run with small budgets, bytes. With its buffer it stays below 16 KiB: a server
/// finds room to keep every response of up to so many bytes.
const LARGEST: u64 = 8 << 10;

/// Sessions that must have ended before a place of the table comes back.
const SPARE_PLACES: u64 = 256;

/// How far the wheel of timers reaches, ns.
const WHEEL_NS: u64 = 67_108_864;

impl RunPlan {
    pub(super) fn draw_budgets(&mut self) {
        let mut rng = Rng::new(self.seed ^ 0x62_7564_6765_7473);
        let faulty = !self.is_faultless();
        // Streams have limits of their own. Of all runs, a third.
        if self.streams.is_empty() && rng.chance(375_000) {
            self.tighten(&mut rng, faulty);
            if faulty && rng.chance(700_000) {
                let ppm = rng.range(20_000, 300_000) as u32;
                self.rules
                    .push(Rule::everywhere(0, self.heal_ns, Fault::Loss { ppm }));
            }
        }
        let is_plain = self.fabric.topology.switches.is_empty() && self.nodes.is_empty();
        if self.streams.is_empty() && is_plain && rng.chance(80_000) {
            self.churn(&mut rng, faulty);
        }
        if faulty && rng.chance(100_000) {
            self.pause_for_long(&mut rng);
        }
        if faulty && !self.endpoints && rng.chance(100_000) {
            let at_ns = rng.range(0, self.heal_ns);
            let for_ns = rng.log_range(0, self.heal_ns - at_ns);
            self.host_faults.push(HostFault {
                at_ns,
                host: self.any_host(&mut rng),
                kind: HostFaultKind::Drain { for_ns },
            });
        }
    }

    /// Draws small budgets.
    fn tighten(&mut self, rng: &mut Rng, faulty: bool) {
        self.tight = true;
        self.recalls = rng.chance(500_000);
        let largest = rng.log_range(1 << 10, LARGEST) as u32;
        let [kept, reassembly, credits, sessions, slots] = [(); 5].map(|()| rng.chance(500_000));
        let places = self.channels.len() as u64 * 2;
        for config in &mut self.hosts {
            config.max_message = largest;
            let least = largest as usize + usize::from(Prefix::MAX);
            if kept {
                config.retained_bytes = least + rng.log_range(0, 8 << 10) as usize;
            }
            if reassembly {
                config.reassembly_bytes = least + rng.log_range(0, 8 << 10) as usize;
            }
            if credits {
                config.credits = rng.pick(&[1, 2, 4]);
                let granted = rng.range(places, 2 * places) as usize;
                // A whole endpoint grants as many as its device has places for.
                if !self.endpoints {
                    config.rx_queue_datagrams = granted;
                    config.overcommit = 1;
                }
            }
            if sessions {
                config.max_sessions = rng.range(1, 4) as usize;
                config.max_sessions_per_client = rng.range(1, 4) as usize;
            }
            if slots {
                config.slots = rng.pick(&[1, 2, 3]);
            }
        }
        let cancelled_ppm = rng.pick(&[0, 0, 300_000]);
        for call in &mut self.calls {
            call.request_len = call.request_len.min(largest);
            call.response_len = call.response_len.min(largest);
            if kept && rng.chance(600_000) {
                call.response_len = rng.range(600, u64::from(largest)) as u32;
                call.request_len = call.request_len.max(content::HEADER as u32);
            }
            if reassembly && rng.chance(600_000) {
                call.request_len = rng.range(500, u64::from(largest)) as u32;
            }
            call.tail_len = call.tail_len.min(call.request_len);
            if rng.chance(cancelled_ppm) {
                call.cancel_after_ns = Some(rng.log_range(1, self.heal_ns));
            }
        }
        if cancelled_ppm > 0 && faulty {
            self.delay_copies(rng, 5 * MS);
        }
        if rng.chance(400_000) {
            self.frames_a_turn = Some(rng.log_range(1, 16) as usize);
        }
    }

    /// Lets the clients of one server open and close sessions, so often that places of the tables come back,
    /// while copies of their datagrams are still on their way.
    fn churn(&mut self, rng: &mut Rng, faulty: bool) {
        self.fabric.link.propagation_ns = rng.log_range(100, 2 * US);
        self.fabric.poll_ns = self.fabric.poll_ns.min(2 * US);
        let server = self.channels[rng.below(self.channels.len() as u64) as usize].server;
        let channels: Vec<usize> = (0..self.channels.len())
            .filter(|&channel| self.channels[channel].server == server)
            .collect();
        let period_ns = rng.log_range(40 * US, 200 * US) / channels.len() as u64;
        let cycles = rng.range(SPARE_PLACES + 20, 3 * SPARE_PLACES);
        for cycle in 0..cycles {
            let channel = channels[cycle as usize % channels.len()];
            let begin_ns = cycle * period_ns;
            for _ in 0..rng.log_range(1, 3) {
                let at_ns = begin_ns + rng.range(0, period_ns / 4);
                let (request_len, response_len) = (rng.range(16, 100), rng.range(16, 100));
                self.calls.push(CallPlan::new(
                    at_ns,
                    channel,
                    request_len as u32,
                    response_len as u32,
                ));
            }
            // Mostly just before the channel's next session.
            let lasts_ns = period_ns * channels.len() as u64;
            let at_ns = begin_ns + lasts_ns - rng.log_range(1, lasts_ns / 2);
            self.closes.push(SessionClose { at_ns, channel });
        }
        self.calls.sort_by_key(|call| call.at_ns);
        self.closes.sort_by_key(|close| close.at_ns);
        self.heal_ns = self.heal_ns.max((cycles + 1) * period_ns);
        if faulty {
            self.delay_copies(rng, 40 * MS);
        }
    }

    /// Copies many datagrams; the copies come up to `longest_ns` later.
    fn delay_copies(&mut self, rng: &mut Rng, longest_ns: u64) {
        let ppm = rng.range(20_000, 300_000) as u32;
        let delay_ns = rng.log_range(10 * US, longest_ns);
        let fault = Fault::Duplicate { ppm, delay_ns };
        self.rules.push(Rule::everywhere(0, self.heal_ns, fault));
    }

    /// Pauses a client just after it has made a call, for longer than the wheel of its timers reaches, while
    /// much is lost.
    fn pause_for_long(&mut self, rng: &mut Rng) {
        let call = &self.calls[rng.below(self.calls.len() as u64) as usize];
        let (called_ns, host) = (call.at_ns, self.channels[call.channel].client);
        let at_ns = called_ns + rng.log_range(1, MS);
        let for_ns = rng.range(WHEEL_NS, 5 * WHEEL_NS);
        self.host_faults.push(HostFault {
            at_ns,
            host,
            kind: HostFaultKind::Pause { for_ns },
        });
        let ppm = rng.range(100_000, 500_000) as u32;
        self.rules.push(Rule::everywhere(
            called_ns,
            at_ns + for_ns,
            Fault::Loss { ppm },
        ));
        self.heal_ns = self.heal_ns.max(at_ns + for_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_sound() {
        for seed in 0..2_000 {
            let plan = RunPlan::from_seed(seed);
            for config in &plan.hosts {
                assert_eq!(config.check(), Ok(()), "seed {seed}");
            }
        }
    }
}
