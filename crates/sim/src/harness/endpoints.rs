//! Random runs of whole endpoints: the event loop that ships, with handlers inline, in workers and
//! deferred, calls with deadlines, cancellation, and endpoints that drain, under the faults that
//! the protocol's own runs have.
//!
//! What is watched is what users are promised: a handler runs at most once and not after its
//! deadline, every call ends once and in time, and with a reason if it fails; answers are right;
//! an endpoint without work sleeps; nothing is left in the end.

mod books;
mod host;

use super::{HostFaultKind, MS, Outcomes, Sabotage, Scenario};
use crate::check::{Violation, no_overflow};
use crate::fabric::{HostId, SharedFabric, Step};
use crate::rng::Rng;
use books::{Books, SharedBooks};
use host::{Host, Task};

/// Steps after which a run is taken for one that goes on for ever.
const MOST_STEPS: u64 = 4_000_000;

/// Runs a scenario on whole endpoints.
pub(super) fn run(
    fabric: &SharedFabric,
    scenario: &Scenario,
    sabotage: Option<Sabotage>,
) -> Result<Outcomes, Violation> {
    let mut world = World::new(fabric, scenario, sabotage);
    world.run()?;
    let outcomes = world.books.borrow().outcomes;
    Ok(outcomes)
}

/// What an alarm of the fabric means.
#[derive(Clone, Copy)]
enum Alarm {
    Fault(usize),
    Restart(HostId),
    Stray(usize),
    /// A worker of that incarnation of a host is done.
    Worker(HostId, u32, usize),
    /// Looks whether the current phase is over.
    Tick,
}

/// As in the protocol's own runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Load,
    Probe,
    Close { until_ns: u64 },
}

struct World<'a> {
    scenario: &'a Scenario,
    fabric: SharedFabric,
    hosts: Vec<Host>,
    books: SharedBooks,
    alarms: Vec<Alarm>,
    phase: Phase,
    tick_ns: u64,
}

impl<'a> World<'a> {
    fn new(fabric: &SharedFabric, scenario: &'a Scenario, sabotage: Option<Sabotage>) -> Self {
        let mut rng = Rng::new(scenario.seed ^ 0x656e_6470_6f69_6e74);
        let books = Books::new(fabric, scenario, sabotage);
        let ids = scenario.lay_out(&mut fabric.borrow_mut());
        let hosts = ids
            .into_iter()
            .map(|id| Host::new(fabric, &books, id, scenario, rng.fork()))
            .collect();
        let mut world = Self {
            scenario,
            fabric: fabric.clone(),
            hosts,
            books,
            alarms: Vec::new(),
            phase: Phase::Load,
            tick_ns: (scenario.heal_ns / 8).max(MS),
        };
        world.plan();
        world
    }

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
                    let begun = self.host(host).turn()?;
                    self.await_workers(host, begun);
                }
                Some(Step::Alarm(word)) => {
                    if self.ring(self.alarms[word as usize])? {
                        return self.check_end();
                    }
                }
            }
        }
        let text = format!("{MOST_STEPS} steps and no end");
        Err(Violation::new("progress", text))
    }

    fn await_workers(&mut self, host: HostId, begun: Vec<(usize, u64)>) {
        let incarnation = self.host(host).incarnation;
        for (worker, done_ns) in begun {
            self.alarm(done_ns, Alarm::Worker(host, incarnation, worker));
        }
    }

    /// True if the run is over.
    fn ring(&mut self, alarm: Alarm) -> Result<bool, Violation> {
        match alarm {
            Alarm::Fault(index) => self.strike(index),
            Alarm::Restart(host) => {
                // One that drains is still there.
                self.host(host).crash();
                self.host(host).restart();
            }
            Alarm::Stray(index) => {
                let stray = &self.scenario.strays[index];
                let source = "192.0.2.1:9".parse().expect("an address");
                let mut fabric = self.fabric.borrow_mut();
                fabric.inject(stray.at_ns, source, stray.to, stray.bytes.clone());
            }
            Alarm::Worker(host, incarnation, worker) => {
                if self.host(host).incarnation == incarnation {
                    let begun = self.host(host).finish(worker);
                    self.await_workers(host, begun);
                }
            }
            Alarm::Tick => return self.tick(),
        }
        Ok(false)
    }

    fn strike(&mut self, index: usize) {
        let fault = &self.scenario.host_faults[index];
        let (host, now_ns) = (fault.host, self.books.borrow().now_ns());
        match fault.kind {
            HostFaultKind::Crash { for_ns } => {
                self.host(host).crash();
                self.alarm(now_ns + for_ns, Alarm::Restart(host));
            }
            HostFaultKind::Drain { for_ns } => {
                self.host(host).plan(now_ns, Task::Drain);
                self.alarm(now_ns + for_ns, Alarm::Restart(host));
            }
            kind => kind.befall(&mut self.fabric.borrow_mut(), host),
        }
    }

    fn tick(&mut self) -> Result<bool, Violation> {
        let now_ns = self.books.borrow().now_ns();
        self.books.borrow().calls.check(now_ns)?;
        let quiet = self.books.borrow().calls.open_count() == 0;
        match self.phase {
            Phase::Load if quiet && now_ns > self.scenario.heal_ns => {
                for (channel, plan) in self.scenario.channels.iter().enumerate() {
                    let host = self.host(plan.client);
                    host.unheard.insert(channel);
                    let attempt = 1;
                    host.plan(now_ns, Task::Probe { channel, attempt });
                }
                self.phase = Phase::Probe;
            }
            Phase::Probe if quiet && self.hosts.iter().all(|host| host.unheard.is_empty()) => {
                for (channel, plan) in self.scenario.channels.iter().enumerate() {
                    self.host(plan.client).plan(now_ns, Task::Close(channel));
                }
                let retention = self.scenario.hosts.iter();
                let retention = retention.map(|config| config.response_retention_ns).max();
                let until_ns = now_ns + 2 * self.scenario.forgetting_ns() + retention.unwrap_or(0);
                self.phase = Phase::Close { until_ns };
            }
            Phase::Close { until_ns } if now_ns >= until_ns => return Ok(true),
            Phase::Load | Phase::Probe | Phase::Close { .. } => {}
        }
        self.alarm(now_ns + self.tick_ns, Alarm::Tick);
        Ok(false)
    }

    fn check_end(&self) -> Result<(), Violation> {
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
