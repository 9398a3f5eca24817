//! Hosts on a fabric, and the loop that runs them.

use std::collections::BTreeMap;

use starling_prefetch::prefetch;
use starling_proto::{Config, RequestError, Stats};

use super::machine::{Application, Call, Machine};
pub(super) use super::monitor::LARGEST;
use super::monitor::{BOUND_NS, HEAD, Monitor, enforce};
use super::{MS, US};
use crate::check::Violation;
use crate::fabric::{Fabric, FabricConfig, HostId, SharedFabric, Step};
use crate::net::NodeId;
use crate::rng::Rng;

/// The timer that ends [`Cluster::run`]. Applications use words below [`OPEN`].
const END: u64 = 1 << 63;
/// A timer that opens the sessions of a host: the host in the low half, the channel above it.
const OPEN: u64 = 1 << 62;

/// How long calls may take to end by themselves before they are cancelled.
const PATIENCE_NS: u64 = 2 * MS;
/// Attempts of a probe at the end: the first may only detect that a session is dead.
const MAX_PROBES: u32 = 4;
/// Channels that are probed at the end, at most.
const MAX_ASKED: usize = 20_000;

/// An application that makes no calls.
struct IdleApplication;

impl Application for IdleApplication {
    fn ended(
        &mut self,
        _: HostId,
        _: u64,
        _: Result<&[u8], RequestError>,
        _: u64,
        _: &mut Vec<Call>,
    ) {
    }
}

/// Hosts with the protocol on them.
pub(super) struct Cluster {
    pub(super) fabric: SharedFabric,
    pub(super) machines: Vec<Machine>,
    pub(super) rng: Rng,
    /// The intervals of the applications' periodic timers, ns.
    intervals: BTreeMap<u64, u64>,
    monitor: Monitor,
}

impl Cluster {
    pub(super) fn new(config: FabricConfig) -> Self {
        let rng = Rng::new(config.seed ^ 0x636c_7573_7465_7221);
        Self {
            fabric: Fabric::shared(config),
            machines: Vec::new(),
            rng,
            intervals: BTreeMap::new(),
            monitor: Monitor::new(),
        }
    }

    /// A host on the next free node.
    pub(super) fn add(&mut self, config: &Config) -> HostId {
        let id = self.fabric.lock().add_host();
        self.start(id, config)
    }

    /// Another host, as a thread on `node`.
    pub(super) fn add_on(&mut self, node: NodeId, config: &Config) -> HostId {
        let id = self.fabric.lock().add_host_on(node);
        self.start(id, config)
    }

    fn start(&mut self, id: HostId, config: &Config) -> HostId {
        let rng = self.rng.fork();
        let machine = Machine::new(&self.fabric, id, config.clone(), rng);
        self.machines.push(machine);
        id
    }

    pub(super) fn machine(&mut self, host: HostId) -> &mut Machine {
        &mut self.machines[host.0 as usize]
    }

    /// `client` opens a session to `server` at `at_ns`.
    pub(super) fn open(&mut self, client: HostId, server: HostId, at_ns: u64) {
        let channel = self.machine(client).plan_open(server);
        self.open_at(client, channel, at_ns);
    }

    /// Every host opens the sessions of all its channels, one at a time, in an order of its own:
    /// one each `pause_ns`, or a little more.
    pub(super) fn open_spread(&mut self, pause_ns: u64) {
        for index in 0..self.machines.len() {
            let host = self.machines[index].id;
            let count = self.machines[index].channel_count();
            let first = self.rng.below(count as u64) as usize;
            for step in 0..count {
                let at_ns = step as u64 * pause_ns + self.rng.below(pause_ns);
                self.open_at(host, (first + step) % count, at_ns);
            }
        }
    }

    fn open_at(&mut self, host: HostId, channel: usize, at_ns: u64) {
        let word = OPEN | (channel as u64) << 32 | u64::from(host.0);
        self.fabric.lock().set_timer(at_ns, word);
    }

    /// The application is given `word` at `start_ns` and again every `interval_ns`.
    pub(super) fn repeat(&mut self, word: u64, start_ns: u64, interval_ns: u64) {
        self.intervals.insert(word, interval_ns);
        self.fabric.lock().set_timer(start_ns, word);
    }

    /// `host`'s process ends at once, and with it the calls that it made.
    pub(super) fn crash(&mut self, host: HostId) {
        self.machine(host).crash();
        self.monitor.abandon(host);
        self.fabric.lock().crash(host);
    }

    /// Takes `host`'s core away until `until_ns`: from now on, or from the middle of its next turn.
    /// The datagrams of that turn then leave afterwards.
    pub(super) fn take_core(&mut self, host: HostId, until_ns: u64, amid: bool) {
        if amid {
            let now_ns = self.now_ns();
            self.machine(host).away_ns += until_ns - now_ns;
            self.fabric.lock().wake_at(host, now_ns);
        } else {
            self.fabric.lock().pause(host, until_ns);
        }
    }

    /// Another process takes its place.
    pub(super) fn restart(&mut self, host: HostId) {
        self.fabric.lock().restart(host);
        self.machine(host).start();
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.fabric.lock().now_ns()
    }

    /// Counters of all hosts together.
    pub(super) fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for machine in &self.machines {
            let stats = machine.stats();
            sum.retransmissions += stats.retransmissions;
            sum.requests_sent += stats.requests_sent;
            sum.responses_received += stats.responses_received;
            sum.requests_received += stats.requests_received;
            sum.duplicates += stats.duplicates;
            sum.peers_failed += stats.peers_failed;
        }
        sum
    }

    /// Runs until `until_ns`, or until the application has seen enough.
    pub(super) fn run<A: Application + ?Sized>(&mut self, app: &mut A, until_ns: u64) {
        self.fabric.lock().set_timer(until_ns, END | until_ns);
        let mut prefetch = Vec::new();
        loop {
            let step = self.fabric.lock().step();
            match step.expect("the end is a timer") {
                Step::Turn(host) => {
                    self.prefetch(&mut prefetch);
                    self.machines[host.0 as usize].turn(app, &mut self.monitor);
                    if app.is_done() {
                        return;
                    }
                }
                // An earlier run may have ended before its timer.
                Step::Timer(word) if word & END != 0 => {
                    if word == END | until_ns {
                        return;
                    }
                }
                Step::Timer(word) => self.ring(app, word),
            }
        }
    }

    /// Prefetches the memory of the hosts that have a turn soon.
    fn prefetch(&self, hosts: &mut Vec<HostId>) {
        self.fabric.lock().take_upcoming_turns(hosts);
        for host in hosts.drain(..) {
            self.fabric.lock().prefetch_queue(host);
            prefetch(&self.machines[host.0 as usize]);
        }
    }

    /// The end of a scenario: calls end or are cancelled, every channel gets an answer, all
    /// sessions are closed, and nothing is left anywhere.
    pub(super) fn settle(&mut self) {
        self.intervals.clear();
        for machine in &mut self.machines {
            machine.wanted.clear();
        }
        self.run(&mut IdleApplication, self.now_ns() + PATIENCE_NS);
        enforce(self.monitor.check(self.now_ns()));
        self.wake(|machine| machine.cancels = true);
        self.run(&mut IdleApplication, self.now_ns() + US);
        let mut asked: Vec<(HostId, u64)> = self.channels();
        for _ in 0..MAX_PROBES {
            self.monitor.failed.clear();
            for (host, channel) in std::mem::take(&mut asked) {
                self.machine(host).wanted.push(Call {
                    channel: channel as usize,
                    tag: channel,
                    len: HEAD,
                });
            }
            self.wake(|_| ());
            let until_ns = self.now_ns() + BOUND_NS;
            while self.monitor.open_count() > 0 && self.now_ns() < until_ns {
                self.run(&mut IdleApplication, self.now_ns() + MS);
            }
            enforce(self.monitor.check(self.now_ns()));
            asked = std::mem::take(&mut self.monitor.failed);
            if asked.is_empty() {
                break;
            }
        }
        if let Some((host, channel)) = asked.first() {
            let text = format!("{host:?} got no answer on its channel {channel} at the end");
            enforce(Err(Violation::new("nothing stays stuck", text)));
        }
        self.wake(|machine| machine.closes = true);
        let until_ns = self.now_ns() + BOUND_NS;
        let mut left = Ok(());
        while self.now_ns() < until_ns {
            self.run(&mut IdleApplication, self.now_ns() + 10 * MS);
            left = self
                .machines
                .iter()
                .try_for_each(|it| it.leftovers().check());
            if left.is_ok() {
                break;
            }
        }
        enforce(left);
    }

    /// The channels to probe: all, or a sample of very many.
    fn channels(&self) -> Vec<(HostId, u64)> {
        let counts = self.machines.iter().map(Machine::channel_count);
        let stride = counts.sum::<usize>() / MAX_ASKED + 1;
        let running = self.machines.iter().filter(|machine| machine.is_running());
        let all = running.flat_map(|machine| {
            let channels = 0..machine.channel_count() as u64;
            channels.map(|channel| (machine.id, channel))
        });
        all.step_by(stride).collect()
    }

    /// Changes all machines, and gives each a turn.
    fn wake(&mut self, change: impl Fn(&mut Machine)) {
        let now_ns = self.now_ns();
        for machine in self.machines.iter_mut().filter(|it| it.is_running()) {
            change(machine);
            self.fabric.lock().wake_at(machine.id, now_ns);
        }
    }

    fn ring<A: Application + ?Sized>(&mut self, app: &mut A, word: u64) {
        let now_ns = self.now_ns();
        if word & OPEN != 0 {
            let host = HostId(word as u32);
            let channel = ((word & !OPEN) >> 32) as usize;
            let machine = self.machine(host);
            if machine.is_running() {
                machine.opening.push(channel);
                self.fabric.lock().wake_at(host, now_ns);
            }
            return;
        }
        if let Some(interval_ns) = self.intervals.get(&word) {
            self.fabric.lock().set_timer(now_ns + interval_ns, word);
        }
        let mut calls = Vec::new();
        app.handle_timer(word, now_ns, &mut calls);
        for (host, call) in calls {
            let machine = self.machine(host);
            if machine.is_running() {
                machine.wanted.push(call);
                self.fabric.lock().wake_at(host, now_ns);
            }
        }
    }
}
