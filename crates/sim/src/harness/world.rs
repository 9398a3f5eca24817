//! One run of a scenario, from the first call to the last check.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use super::endpoints::Endpoints;
use super::failure::KEPT_ENTRIES;
use super::protocols::Protocols;
use super::{CallPlan, Failure, HostFaultKind, MS, Outcomes, Sabotage, Scenario};
use crate::check::{Remains, Violation, frames, no_overflow};
use crate::fabric::{Counters, Fabric, HostId, SharedFabric, Step};

/// Steps after which a run is taken for one that goes on for ever.
const MOST_STEPS: u64 = 4_000_000;

/// What a run without a broken promise was like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Hash over everything that happened.
    pub trace_hash: u64,
    /// How the calls ended.
    pub outcomes: Outcomes,
    /// What the network did.
    pub counters: Counters,
    /// Datagrams that switches marked "congestion experienced".
    pub marked: u64,
    /// Virtual time that passed, ns.
    pub virtual_ns: u64,
}

/// Runs a scenario.
pub fn run(scenario: &Scenario) -> Result<Report, Box<Failure>> {
    run_sabotaged(scenario, None)
}

/// Runs a scenario with a deliberate bug in it.
pub fn run_sabotaged(
    scenario: &Scenario,
    sabotage: Option<Sabotage>,
) -> Result<Report, Box<Failure>> {
    let fabric = Rc::new(RefCell::new(Fabric::new(scenario.fabric.clone())));
    if sabotage == Some(Sabotage::ChecksumIgnored) {
        fabric.borrow_mut().ignore_checksums();
    }
    let result = catch_unwind(AssertUnwindSafe(|| {
        let ids = scenario.lay_out(&mut fabric.borrow_mut());
        if scenario.endpoints {
            let endpoints = Endpoints::new(&fabric, scenario, sabotage, ids);
            return World::new(&fabric, scenario, endpoints).run();
        }
        let protocols = Protocols::new(&fabric, scenario, sabotage, ids);
        World::new(&fabric, scenario, protocols).run()
    }));
    let result = result.unwrap_or_else(|payload| Err(Violation::of_panic(payload)));
    let fabric = fabric.borrow();
    match result {
        Ok(outcomes) => Ok(Report {
            trace_hash: fabric.trace().hash(),
            outcomes,
            counters: fabric.counters().clone(),
            marked: fabric.switch_totals().marked,
            virtual_ns: fabric.now_ns(),
        }),
        Err(violation) => Err(Box::new(Failure {
            scenario: scenario.clone(),
            sabotage,
            violation,
            at_ns: fabric.now_ns(),
            recent: fabric.trace().recent(KEPT_ENTRIES).copied().collect(),
        })),
    }
}

/// A worker of one incarnation of a host, which is busy until then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Busy {
    pub(super) host: HostId,
    pub(super) incarnation: u32,
    pub(super) worker: usize,
    pub(super) until_ns: u64,
}

/// What runs on the hosts of a scenario, with the books that are kept of it.
pub(super) trait Population {
    /// `host` is to make a call when its plan says so.
    fn call(&mut self, host: HostId, plan: CallPlan);

    /// `host` is to close its end of a channel.
    fn close(&mut self, host: HostId, channel: usize, at_ns: u64);

    /// `host` is to ask for a sign of life on a channel, and again if there is none.
    fn probe(&mut self, host: HostId, channel: usize, at_ns: u64);

    /// One turn of `host`. Returns workers that began something.
    fn turn(&mut self, host: HostId) -> Result<Vec<Busy>, Violation>;

    /// A worker's time is over. Returns workers that began something.
    fn finish(&mut self, _: Busy) -> Vec<Busy> {
        Vec::new()
    }

    /// The process on `host` dies.
    fn crash(&mut self, host: HostId);

    /// The process on `host` drains, if it can.
    fn drain(&mut self, host: HostId, at_ns: u64);

    /// Another process takes the place of one that died or drained.
    fn restart(&mut self, host: HostId);

    /// Whether no call is overdue.
    fn check_overdue(&self, now_ns: u64) -> Result<(), Violation>;

    /// Calls that have not ended.
    fn open_calls(&self) -> usize;

    /// Whether every probe has ended.
    fn is_heard(&self) -> bool;

    /// Sessions that `host` serves.
    fn served(&self, host: HostId) -> usize;

    /// Sessions with `host` that its clients know of.
    fn known(&self, host: HostId) -> usize;

    /// What each host still holds.
    fn remains(&self) -> Vec<Remains>;

    /// How the calls ended, all of which have: no buffer of theirs may be missing.
    fn outcomes(&self) -> Result<Outcomes, Violation>;
}

/// What an alarm of the fabric means.
#[derive(Clone, Copy)]
enum Alarm {
    Fault(usize),
    Restart(HostId),
    Stray(usize),
    Worker(Busy),
    /// Looks whether the current phase is over.
    Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Calls and faults, then until the last call has ended.
    Load,
    /// Every channel is asked for a sign of life.
    Probe,
    /// Nothing is asked for; what only a server remembers has until then to be forgotten.
    Keep { until_ns: u64 },
    /// Every session is closed; what is left has until then to go.
    Close { until_ns: u64 },
}

struct World<'a, P> {
    scenario: &'a Scenario,
    fabric: SharedFabric,
    population: P,
    alarms: Vec<Alarm>,
    phase: Phase,
    tick_ns: u64,
}

impl<'a, P: Population> World<'a, P> {
    fn new(fabric: &SharedFabric, scenario: &'a Scenario, population: P) -> Self {
        let mut world = Self {
            scenario,
            fabric: fabric.clone(),
            population,
            alarms: Vec::new(),
            phase: Phase::Load,
            tick_ns: (scenario.heal_ns / 8).max(MS),
        };
        world.plan();
        world
    }

    /// Enters everything that the scenario has decided into agendas and alarms.
    fn plan(&mut self) {
        for call in &self.scenario.calls {
            let client = self.scenario.channels[call.channel].client;
            self.population.call(client, call.clone());
        }
        for (index, channel) in self.scenario.channels.iter().enumerate() {
            if let Some(at_ns) = channel.close_at_ns {
                self.population.close(channel.client, index, at_ns);
            }
        }
        for (index, fault) in self.scenario.host_faults.iter().enumerate() {
            self.alarm(fault.at_ns, Alarm::Fault(index));
        }
        for (index, stray) in self.scenario.strays.iter().enumerate() {
            self.alarm(stray.at_ns, Alarm::Stray(index));
        }
        self.alarm(self.scenario.heal_ns, Alarm::Tick);
    }

    fn run(mut self) -> Result<Outcomes, Violation> {
        for _ in 0..MOST_STEPS {
            let step = self.fabric.borrow_mut().step();
            match step {
                None => unreachable!("there is always a tick until the run ends"),
                Some(Step::Turn(host)) => {
                    // Before anybody reads what should not have been taken.
                    frames(self.fabric.borrow().counters())?;
                    let busy = self.population.turn(host)?;
                    self.await_workers(busy);
                }
                Some(Step::Alarm(word)) => {
                    if self.ring(self.alarms[word as usize])? {
                        return self.end();
                    }
                }
            }
        }
        let text = format!("{MOST_STEPS} steps and no end");
        Err(Violation::new("progress", text))
    }

    fn await_workers(&mut self, busy: Vec<Busy>) {
        for busy in busy {
            self.alarm(busy.until_ns, Alarm::Worker(busy));
        }
    }

    /// True if the run is over.
    fn ring(&mut self, alarm: Alarm) -> Result<bool, Violation> {
        match alarm {
            Alarm::Fault(index) => self.strike(index),
            Alarm::Restart(host) => self.population.restart(host),
            Alarm::Stray(index) => {
                let stray = &self.scenario.strays[index];
                let source = "192.0.2.1:9".parse().expect("an address");
                let mut fabric = self.fabric.borrow_mut();
                fabric.inject(stray.at_ns, source, stray.to, stray.bytes.clone());
            }
            Alarm::Worker(busy) => {
                let busy = self.population.finish(busy);
                self.await_workers(busy);
            }
            Alarm::Tick => return self.tick(),
        }
        Ok(false)
    }

    fn strike(&mut self, index: usize) {
        let fault = &self.scenario.host_faults[index];
        let host = fault.host;
        let now_ns = self.now_ns();
        match fault.kind {
            HostFaultKind::Crash { for_ns } => {
                self.population.crash(host);
                self.alarm(now_ns + for_ns, Alarm::Restart(host));
            }
            HostFaultKind::Drain { for_ns } => {
                self.population.drain(host, now_ns);
                self.alarm(now_ns + for_ns, Alarm::Restart(host));
            }
            kind => kind.befall(&mut self.fabric.borrow_mut(), host),
        }
    }

    /// Checks deadlines, and goes on to the next phase when this one is over.
    fn tick(&mut self) -> Result<bool, Violation> {
        let now_ns = self.now_ns();
        self.population.check_overdue(now_ns)?;
        let quiet = self.population.open_calls() == 0;
        match self.phase {
            Phase::Load if quiet && now_ns > self.scenario.heal_ns => {
                self.population.outcomes()?;
                for (channel, plan) in self.scenario.channels.iter().enumerate() {
                    self.population.probe(plan.client, channel, now_ns);
                }
                self.phase = Phase::Probe;
            }
            Phase::Probe if quiet && self.population.is_heard() => {
                let until_ns = now_ns + 2 * self.scenario.forgetting_ns();
                self.phase = Phase::Keep { until_ns };
            }
            Phase::Keep { until_ns } if now_ns >= until_ns => {
                self.check_acquaintance()?;
                for (channel, plan) in self.scenario.channels.iter().enumerate() {
                    self.population.close(plan.client, channel, now_ns);
                }
                let retention = self.scenario.hosts.iter();
                let retention = retention.map(|config| config.response_retention_ns).max();
                let until_ns = now_ns + 2 * self.scenario.forgetting_ns() + retention.unwrap_or(0);
                self.phase = Phase::Close { until_ns };
            }
            Phase::Close { until_ns } if now_ns >= until_ns => return Ok(true),
            Phase::Load | Phase::Probe | Phase::Keep { .. } | Phase::Close { .. } => {}
        }
        self.alarm(now_ns + self.tick_ns, Alarm::Tick);
        Ok(false)
    }

    /// Servers have no sessions that their clients do not know.
    fn check_acquaintance(&self) -> Result<(), Violation> {
        for host in (0..self.scenario.hosts.len() as u32).map(HostId) {
            let (served, known) = (self.population.served(host), self.population.known(host));
            let unknown = served.saturating_sub(known) as u64;
            let counts = vec![("sessions that no client knows", unknown)];
            Remains {
                host: host.0,
                counts,
            }
            .check()?;
        }
        Ok(())
    }

    fn end(&self) -> Result<Outcomes, Violation> {
        let outcomes = self.population.outcomes()?;
        frames(self.fabric.borrow().counters())?;
        for remains in self.population.remains() {
            remains.check()?;
        }
        if self.scenario.is_faultless() && self.scenario.is_survivable() {
            no_overflow(self.fabric.borrow().counters())?;
        }
        Ok(outcomes)
    }

    fn now_ns(&self) -> u64 {
        self.fabric.borrow().now_ns()
    }

    fn alarm(&mut self, at_ns: u64, alarm: Alarm) {
        self.alarms.push(alarm);
        let word = self.alarms.len() as u64 - 1;
        self.fabric.borrow_mut().alarm(at_ns, word);
    }
}
