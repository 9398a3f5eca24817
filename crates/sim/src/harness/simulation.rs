//! One run, from the first call to the last check.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::endpoints::Endpoints;
use super::failure::KEPT_ENTRIES;
use super::host_set::{BusyWorker, HostSet};
use super::hostile::Hostile;
use super::protocols::Protocols;
use super::{Branches, Failure, HostFaultKind, MS, Outcomes, PlantedBug, RunPlan, SessionClose};
use crate::check::{Leftovers, Violation, frames, no_overflow};
use crate::fabric::{Counters, Fabric, HostId, SharedFabric, Step};

/// Steps after which a run counts as endless.
const MAX_STEPS: u64 = 4_000_000;

/// The figures of a run that broke no promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Hash over everything that happened.
    pub trace_hash: u64,
    /// How the calls ended.
    pub outcomes: Outcomes,
    /// The branches that it took.
    pub branches: Branches,
    /// The fabric's counters.
    pub counters: Counters,
    /// Datagrams that switches marked "congestion experienced".
    pub marked: u64,
    /// Virtual time that passed, ns.
    pub virtual_ns: u64,
}

/// Makes the run of a plan.
pub fn run(plan: &RunPlan) -> Result<Report, Box<Failure>> {
    run_with_bug(plan, None)
}

/// Makes the run of a plan with a planted bug.
pub fn run_with_bug(
    plan: &RunPlan,
    planted_bug: Option<PlantedBug>,
) -> Result<Report, Box<Failure>> {
    let fabric = Fabric::shared(plan.fabric.clone());
    if planted_bug == Some(PlantedBug::ChecksumIgnored) {
        fabric.lock().ignore_checksums();
    }
    let result = catch_unwind(AssertUnwindSafe(|| {
        let ids = plan.add_hosts(&mut fabric.lock());
        if plan.endpoints {
            let endpoints = Endpoints::new(&fabric, plan, planted_bug, ids);
            return Simulation::new(&fabric, plan, endpoints).run();
        }
        let protocols = Protocols::new(&fabric, plan, planted_bug, ids);
        Simulation::new(&fabric, plan, protocols).run()
    }));
    let result = result.unwrap_or_else(|payload| Err(Violation::of_panic(payload)));
    let fabric = fabric.lock();
    match result {
        Ok((outcomes, branches)) => Ok(Report {
            trace_hash: fabric.trace().hash(),
            outcomes,
            branches,
            counters: fabric.counters().clone(),
            marked: fabric.switch_totals().marked,
            virtual_ns: fabric.now_ns(),
        }),
        Err(violation) => Err(Box::new(Failure {
            plan: plan.clone(),
            planted_bug,
            violation,
            at_ns: fabric.now_ns(),
            recent: fabric.trace().recent(KEPT_ENTRIES).copied().collect(),
        })),
    }
}

/// The purpose of a timer of the fabric.
#[derive(Clone, Copy)]
enum Timer {
    Fault(usize),
    Restart(HostId),
    Inject(usize),
    Attack(usize),
    Worker(BusyWorker),
    /// Checks whether the current phase is over.
    Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Calls and faults, until the last call has ended.
    Load,
    /// Every channel makes a short call.
    Probe,
    /// No calls. Servers must forget by `until_ns` the sessions that only they remember.
    Keep { until_ns: u64 },
    /// Every session is closed. Everything left must be gone by `until_ns`.
    Close { until_ns: u64 },
}

struct Simulation<'a, P> {
    plan: &'a RunPlan,
    fabric: SharedFabric,
    host_set: P,
    hostile: Hostile,
    timers: Vec<Timer>,
    phase: Phase,
    tick_ns: u64,
}

impl<'a, P: HostSet> Simulation<'a, P> {
    fn new(fabric: &SharedFabric, plan: &'a RunPlan, host_set: P) -> Self {
        let mut simulation = Self {
            plan,
            fabric: fabric.clone(),
            host_set,
            hostile: Hostile::new(fabric, plan),
            timers: Vec::new(),
            phase: Phase::Load,
            tick_ns: (plan.heal_ns / 8).max(MS),
        };
        simulation.enter_plan();
        simulation
    }

    /// Enters everything that the plan holds into schedules and timers.
    fn enter_plan(&mut self) {
        for call in &self.plan.calls {
            let client = self.plan.channels[call.channel].client;
            self.host_set.call(client, call.clone());
        }
        for stream in &self.plan.streams {
            let client = self.plan.channels[stream.channel].client;
            self.host_set.stream(client, stream.clone());
        }
        for (index, channel) in self.plan.channels.iter().enumerate() {
            if let Some(at_ns) = channel.close_at_ns {
                self.host_set.close(channel.client, index, at_ns);
            }
        }
        for &SessionClose { at_ns, channel } in &self.plan.closes {
            let client = self.plan.channels[channel].client;
            self.host_set.close(client, channel, at_ns);
        }
        for (index, fault) in self.plan.host_faults.iter().enumerate() {
            self.set_timer(fault.at_ns, Timer::Fault(index));
        }
        for (index, datagram) in self.plan.injected.iter().enumerate() {
            self.set_timer(datagram.at_ns, Timer::Inject(index));
        }
        for (index, attack) in self.plan.attacks.iter().enumerate() {
            self.set_timer(attack.at_ns, Timer::Attack(index));
        }
        self.set_timer(self.plan.heal_ns, Timer::Tick);
    }

    fn run(mut self) -> Result<(Outcomes, Branches), Violation> {
        for _ in 0..MAX_STEPS {
            let step = self.fabric.lock().step();
            match step {
                None => unreachable!("there is always a tick until the run ends"),
                Some(Step::Turn(host)) if self.hostile.has(host) => {
                    self.hostile.turn(host);
                    self.expect_hostile();
                }
                Some(Step::Turn(host)) => {
                    // This check comes before a handler reads a frame that should have been
                    // dropped.
                    frames(self.fabric.lock().counters())?;
                    let busy = self.host_set.turn(host)?;
                    self.await_workers(busy);
                }
                Some(Step::Timer(word)) => {
                    if self.handle_timer(self.timers[word as usize])? {
                        return self.end();
                    }
                }
            }
        }
        let text = format!("the run did not end within {MAX_STEPS} steps");
        Err(Violation::new("progress", text))
    }

    /// Requests of hostile hosts are on their way.
    fn expect_hostile(&mut self) {
        for request in self.hostile.take_requests() {
            self.host_set.expect_hostile(&request);
        }
    }

    fn await_workers(&mut self, busy: Vec<BusyWorker>) {
        for busy in busy {
            self.set_timer(busy.until_ns, Timer::Worker(busy));
        }
    }

    /// Handles a timer. True if the run is over.
    fn handle_timer(&mut self, timer: Timer) -> Result<bool, Violation> {
        match timer {
            Timer::Fault(index) => self.strike(index),
            Timer::Restart(host) => self.host_set.restart(host),
            Timer::Inject(index) => {
                let datagram = &self.plan.injected[index];
                let source = "192.0.2.1:9".parse().expect("an address");
                let mut fabric = self.fabric.lock();
                fabric.inject(datagram.at_ns, source, datagram.to, datagram.bytes.clone());
            }
            Timer::Attack(index) => {
                self.hostile.strike(&self.plan.attacks[index]);
                self.expect_hostile();
            }
            Timer::Worker(busy) => {
                let busy = self.host_set.finish(busy);
                self.await_workers(busy);
            }
            Timer::Tick => return self.tick(),
        }
        Ok(false)
    }

    fn strike(&mut self, index: usize) {
        let fault = &self.plan.host_faults[index];
        let host = fault.host;
        let now_ns = self.now_ns();
        match fault.kind {
            HostFaultKind::Crash { for_ns } => {
                self.host_set.crash(host);
                self.set_timer(now_ns + for_ns, Timer::Restart(host));
            }
            HostFaultKind::Drain { for_ns } => {
                self.host_set.drain(host, now_ns);
                self.set_timer(now_ns + for_ns, Timer::Restart(host));
            }
            kind => kind.apply_to(&mut self.fabric.lock(), host),
        }
    }

    /// Checks deadlines, and begins the next phase when this one is over. True if the run is over.
    fn tick(&mut self) -> Result<bool, Violation> {
        let now_ns = self.now_ns();
        self.host_set.check_overdue(now_ns)?;
        let quiet = self.host_set.open_calls() == 0;
        match self.phase {
            Phase::Load if quiet && now_ns > self.plan.heal_ns => {
                self.host_set.outcomes()?;
                for (channel, plan) in self.plan.channels.iter().enumerate() {
                    if !self.hostile.has(plan.server) {
                        self.host_set.probe(plan.client, channel, now_ns);
                    }
                }
                self.phase = Phase::Probe;
            }
            Phase::Probe if quiet && self.host_set.all_probes_ended() => {
                let until_ns = now_ns + 2 * self.plan.forgetting_ns();
                self.phase = Phase::Keep { until_ns };
            }
            Phase::Keep { until_ns } if now_ns >= until_ns => {
                self.check_sessions_known()?;
                for (channel, plan) in self.plan.channels.iter().enumerate() {
                    self.host_set.close(plan.client, channel, now_ns);
                }
                let retention = self.plan.hosts.iter();
                let retention = retention.map(|config| config.response_retention_ns).max();
                let until_ns = now_ns + 2 * self.plan.forgetting_ns() + retention.unwrap_or(0);
                self.phase = Phase::Close { until_ns };
            }
            Phase::Close { until_ns } if now_ns >= until_ns => return Ok(true),
            Phase::Load | Phase::Probe | Phase::Keep { .. } | Phase::Close { .. } => {}
        }
        self.set_timer(now_ns + self.tick_ns, Timer::Tick);
        Ok(false)
    }

    /// Fails if a server has sessions that no client knows.
    fn check_sessions_known(&self) -> Result<(), Violation> {
        for host in (0..self.plan.hosts.len() as u32).map(HostId) {
            let (served, known) = (self.host_set.served(host), self.host_set.known(host));
            let unknown = served.saturating_sub(known) as u64;
            let counts = vec![("sessions that no client knows", unknown)];
            Leftovers {
                host: host.0,
                counts,
            }
            .check()?;
        }
        Ok(())
    }

    fn end(&self) -> Result<(Outcomes, Branches), Violation> {
        let outcomes = self.host_set.outcomes()?;
        frames(self.fabric.lock().counters())?;
        for leftovers in self.host_set.leftovers() {
            leftovers.check()?;
        }
        if self.plan.is_faultless() && self.plan.is_survivable() {
            no_overflow(self.fabric.lock().counters())?;
        }
        let mut branches = self.host_set.branches();
        branches.add_outcomes(&outcomes);
        branches.add(self.hostile.branches());
        Ok((outcomes, branches))
    }

    fn now_ns(&self) -> u64 {
        self.fabric.lock().now_ns()
    }

    fn set_timer(&mut self, at_ns: u64, timer: Timer) {
        self.timers.push(timer);
        let word = self.timers.len() as u64 - 1;
        self.fabric.lock().set_timer(at_ns, word);
    }
}
