//! One run of a scenario, from the first call to the last check.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use super::agenda::Task;
use super::failure::KEPT_ENTRIES;
use super::host::Host;
use super::ledger::{Ledger, Outcomes};
use super::{Failure, HostFaultKind, MS, Sabotage, Scenario, endpoints};
use crate::check::{Remains, Violation, no_overflow};
use crate::fabric::{Counters, Fabric, HostId, SharedFabric, Step};
use crate::rng::Rng;

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
    let result = catch_unwind(AssertUnwindSafe(|| {
        if scenario.endpoints {
            return endpoints::run(&fabric, scenario, sabotage);
        }
        let mut world = World::new(&fabric, scenario, sabotage);
        world.run().map(|()| world.ledger.outcomes)
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

/// What an alarm of the fabric means.
#[derive(Clone, Copy)]
enum Alarm {
    Fault(usize),
    Restart(HostId),
    Stray(usize),
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

struct World<'a> {
    scenario: &'a Scenario,
    fabric: SharedFabric,
    hosts: Vec<Host>,
    ledger: Ledger,
    alarms: Vec<Alarm>,
    phase: Phase,
    tick_ns: u64,
}

impl<'a> World<'a> {
    fn new(fabric: &SharedFabric, scenario: &'a Scenario, sabotage: Option<Sabotage>) -> Self {
        let mut rng = Rng::new(scenario.seed);
        let ids = scenario.lay_out(&mut fabric.borrow_mut());
        let hosts = ids
            .iter()
            .map(|&id| Host::new(fabric, id, scenario, rng.fork()))
            .collect();
        let mut world = Self {
            scenario,
            fabric: fabric.clone(),
            hosts,
            ledger: Ledger::new(fabric.clone(), scenario, sabotage),
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
            self.host(client).plan(call.at_ns, Task::Call(call.clone()));
        }
        for (index, channel) in self.scenario.channels.iter().enumerate() {
            if let Some(at_ns) = channel.close_at_ns {
                self.host(channel.client).plan(at_ns, Task::Close(index));
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

    fn run(&mut self) -> Result<(), Violation> {
        for _ in 0..MOST_STEPS {
            let step = self.fabric.borrow_mut().step();
            match step {
                None => unreachable!("there is always a tick until the run ends"),
                Some(Step::Turn(host)) => {
                    self.hosts[host.0 as usize].turn(&mut self.ledger)?;
                }
                Some(Step::Alarm(word)) => {
                    if self.ring(self.alarms[word as usize])? {
                        return self.check_end();
                    }
                }
            }
        }
        Err(Violation::new(
            "progress",
            format!("{MOST_STEPS} steps and no end"),
        ))
    }

    /// True if the run is over.
    fn ring(&mut self, alarm: Alarm) -> Result<bool, Violation> {
        match alarm {
            Alarm::Fault(index) => self.strike(index),
            Alarm::Restart(host) => self.hosts[host.0 as usize].restart(&self.ledger),
            Alarm::Stray(index) => {
                let stray = &self.scenario.strays[index];
                let source = "192.0.2.1:9".parse().expect("an address");
                let mut fabric = self.fabric.borrow_mut();
                fabric.inject(stray.at_ns, source, stray.to, stray.bytes.clone());
            }
            Alarm::Tick => return self.tick(),
        }
        Ok(false)
    }

    fn strike(&mut self, index: usize) {
        let fault = &self.scenario.host_faults[index];
        let host = fault.host;
        let now_ns = self.ledger.now_ns();
        match fault.kind {
            HostFaultKind::Crash { for_ns } | HostFaultKind::Drain { for_ns } => {
                self.hosts[host.0 as usize].crash(&mut self.ledger);
                self.alarm(now_ns + for_ns, Alarm::Restart(host));
            }
            kind => kind.befall(&mut self.fabric.borrow_mut(), host),
        }
    }

    /// Checks deadlines, and goes on to the next phase when this one is over.
    fn tick(&mut self) -> Result<bool, Violation> {
        let now_ns = self.ledger.now_ns();
        self.ledger.calls.check(now_ns)?;
        let quiet = self.ledger.calls.open_count() == 0;
        match self.phase {
            Phase::Load if quiet && now_ns > self.scenario.heal_ns => {
                self.ledger.check_all_ended()?;
                self.probe(now_ns);
                self.phase = Phase::Probe;
            }
            Phase::Probe if quiet && self.hosts.iter().all(|host| host.unheard.is_empty()) => {
                let until_ns = now_ns + 2 * self.scenario.forgetting_ns();
                self.phase = Phase::Keep { until_ns };
            }
            Phase::Keep { until_ns } if now_ns >= until_ns => {
                self.check_acquaintance()?;
                self.close(now_ns);
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

    fn probe(&mut self, now_ns: u64) {
        for (channel, plan) in self.scenario.channels.iter().enumerate() {
            let host = self.host(plan.client);
            host.unheard.insert(channel);
            host.plan(
                now_ns,
                Task::Probe {
                    channel,
                    attempt: 1,
                },
            );
        }
    }

    fn close(&mut self, now_ns: u64) {
        for (channel, plan) in self.scenario.channels.iter().enumerate() {
            self.host(plan.client).plan(now_ns, Task::Close(channel));
        }
    }

    /// Servers have no sessions that their clients do not know.
    fn check_acquaintance(&self) -> Result<(), Violation> {
        for (index, host) in self.hosts.iter().enumerate() {
            let id = HostId(index as u32);
            let known: usize = self.hosts.iter().map(|host| host.sessions_with(id)).sum();
            let counts = vec![(
                "sessions that no client knows",
                host.server_sessions().saturating_sub(known) as u64,
            )];
            Remains { host: id.0, counts }.check()?;
        }
        Ok(())
    }

    fn check_end(&self) -> Result<(), Violation> {
        self.ledger.check_all_ended()?;
        for host in &self.hosts {
            host.remains().check()?;
        }
        if self.scenario.is_faultless() && self.scenario.is_survivable() {
            no_overflow(self.fabric.borrow().counters())?;
        }
        Ok(())
    }

    fn host(&mut self, id: HostId) -> &mut Host {
        &mut self.hosts[id.0 as usize]
    }

    fn alarm(&mut self, at_ns: u64, alarm: Alarm) {
        self.alarms.push(alarm);
        let word = self.alarms.len() as u64 - 1;
        self.fabric.borrow_mut().alarm(at_ns, word);
    }
}
