//! Hosts whose threads share an endpoint, as the threads of a process share the one behind its channels. The code that
//! shares it ([`starling_share`]) runs unchanged: callers that wait, tasks, calls that nobody waits for, the keeper.
//!
//! ```text
//!  turn of the host:  due tasks become jobs ─▶ one thread runs to its next question ─▶ the answer, a little later
//!                                                                   │
//!            NextJob, Park, Sleep in the device: until there is something; Turn, Execute: the host does it
//! ```
//!
//! Which thread runs is drawn, and some are stopped for a while wherever they are, also while they drive. Nobody may
//! wait for a call while no thread runs, will run or sleeps in the device: then a hand-over was lost, which in a real
//! process the keeper would hide.

mod caller;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use starling_io::{ManualTime, PacketIo, ReactorWait};
use starling_share::{SharedLoop, SimulatedKeeper, Step};

use super::super::super::CallPlan;
use super::super::super::host_set::{BusyWorker, PlannedTask};
use super::{Host, Process, Task};
use crate::check::{Tag, Violation};
use crate::io::SimIo;
use crate::rng::Rng;
use crate::threads::{Pause, Thread};

pub(in super::super) use caller::Call;
use caller::{
    Answer, Caller, Commands, Descriptor, Job, LoopOfHost, Question, SharedCommand, Style,
};

/// What a thread does between two questions takes so long at most, ns.
const STRIDE_NS: u64 = 300;
/// A driver takes a turn first if the last one is so long ago, ns.
const STALE_NS: u64 = 20_000;
/// No thread is stopped for longer, ns.
const LONGEST_STOP_NS: u64 = 2_000_000;

/// A signal comes this long after a thread begins to wait for it, at most, ns.
const LONGEST_SIGNAL_NS: u64 = 100_000_000;
/// A command is executed so long after it was left, at most, ns: the keeper looks after 5 ms, and threads are stopped.
const LATEST_NS: u64 = 20_000_000;

/// No thread.
const NOBODY: usize = usize::MAX;

/// The threads of a process, and what they share.
pub(in super::super) struct Threads {
    shared: Arc<SharedLoop<SharedCommand>>,
    /// The host's time, for the shared loop.
    time: Arc<ManualTime>,
    time_ns: u64,
    members: Vec<Member>,
    /// How many of them are executors.
    executors: usize,
    /// Who ran last.
    last: usize,
    /// Who runs; [`NOBODY`] between the turns of the host.
    running: Arc<AtomicUsize>,
    jobs: VecDeque<Job>,
    jobs_of_executors: VecDeque<Job>,
    descriptors: Vec<Arc<Descriptor>>,
    commands: Arc<Commands>,
    /// What the reactors know to have arrived.
    seen_arrivals: usize,
    reactors_wait: bool,
    rng: Rng,
    /// How often a thread goes on when others could, and how often one is stopped, ppm.
    goes_on_ppm: u32,
    stop_ppm: u32,
    longest_stop_ns: u64,
    /// How often one is woken for no reason, ppm of turns.
    wake_ppm: u32,
}

struct Member {
    thread: Thread<Question, Answer>,
    is_woken: Arc<AtomicBool>,
    waits: Waits,
    /// It does not run before.
    stopped_until_ns: u64,
    /// It waits for this, and for no call.
    signal: Option<Arc<Call>>,
}

/// What a thread waits for.
enum Waits {
    /// Nothing: it has not run yet.
    Begin,
    /// Nothing: this is the host's answer.
    Go(Answer),
    /// A wake. It waits for a call, unless it is the keeper or an executor.
    Wake,
    /// A caller waits for something to do.
    Job,
    /// An executor waits for a wake or a job; its tasks for so many calls.
    WakeOrJob(usize),
    /// The keeper waits for its timer, or a call.
    KeeperDue,
    /// It sleeps in the device.
    Device,
    /// It has ended.
    End,
}

impl Threads {
    /// Of an endpoint whose device this is, at this time of the host.
    pub(in super::super) fn start(io: &SimIo, now_ns: u64, mut rng: Rng) -> Self {
        let time = ManualTime::new();
        time.advance(Duration::from_nanos(now_ns));
        let shared = SharedLoop::new(Box::new(LoopOfHost), io.waker(), time.clock());
        let mut threads = Self {
            shared: Arc::new(shared),
            time,
            time_ns: now_ns,
            members: Vec::new(),
            executors: 0,
            last: 0,
            running: Arc::new(AtomicUsize::new(NOBODY)),
            jobs: VecDeque::new(),
            jobs_of_executors: VecDeque::new(),
            descriptors: Vec::new(),
            commands: Arc::default(),
            seen_arrivals: 0,
            reactors_wait: false,
            goes_on_ppm: rng.pick(&[0, 500_000, 950_000]),
            stop_ppm: rng.pick(&[0, 1_000, 20_000]),
            longest_stop_ns: rng.log_range(1_000, LONGEST_STOP_NS),
            wake_ppm: rng.pick(&[1_000, 50_000]),
            rng,
        };
        let shared = Arc::clone(&threads.shared);
        threads.add(move |caller| caller::run_keeper(&caller, &shared));
        for _ in 0..threads.rng.log_range(1, 12) {
            let shared = Arc::clone(&threads.shared);
            threads.add(move |caller| caller::run_caller(&caller, &shared));
        }
        threads.executors = threads.rng.pick(&[0, 1, 2]);
        for _ in 0..threads.executors {
            let has_reactor = threads.rng.chance(700_000);
            let descriptor = has_reactor.then(Arc::<Descriptor>::default);
            threads.descriptors.extend(descriptor.clone());
            let shared = Arc::clone(&threads.shared);
            threads.add(move |caller| caller::run_executor(&caller, &shared, descriptor));
        }
        threads
    }

    fn add(&mut self, body: impl FnOnce(Arc<Caller>) + Send + 'static) {
        let is_woken = Arc::<AtomicBool>::default();
        let (its, clock) = (Arc::clone(&is_woken), self.time.clock());
        let (commands, running) = (Arc::clone(&self.commands), Arc::clone(&self.running));
        let thread = Thread::new(move |simulation| {
            body(Caller::begin(simulation, running, its, clock, commands));
        });
        self.members.push(Member {
            thread,
            is_woken,
            waits: Waits::Begin,
            stopped_until_ns: 0,
            signal: None,
        });
    }

    /// A task of the plan is due.
    fn add_job(&mut self, task: Task) {
        let is_call = matches!(
            task,
            Task::Planned(PlannedTask::Call(_) | PlannedTask::Probe { .. })
        );
        let rng = &mut self.rng;
        let style = match rng.below(12) {
            _ if !is_call => rng.pick(&[Style::Drives, Style::Leaves]),
            0 => Style::Watches,
            1 => Style::Drives,
            2 => Style::Leaves,
            3 if self.executors > 0 => Style::Task {
                polls: rng.log_range(1, 30) as u32,
            },
            4..8 if self.executors > 0 => Style::Task { polls: u32::MAX },
            _ => Style::Waits,
        };
        if is_call && self.rng.chance(100_000) {
            self.jobs.push_back(Job::AwaitSignal);
        }
        match style {
            Style::Task { .. } => self.jobs_of_executors.push_back(Job::Act(task, style)),
            _ => self.jobs.push_back(Job::Act(task, style)),
        }
    }

    /// Commands that nobody has executed.
    pub(super) fn left(&self) -> usize {
        self.commands.all.load(Ordering::Relaxed)
    }

    /// How many callers and executors have not done all that they were to do, but for signals to come.
    pub(super) fn waiting(&self) -> usize {
        let is_done = |member: &Member| {
            let waits = &member.waits;
            matches!(waits, Waits::Begin | Waits::Job | Waits::WakeOrJob(0))
                || member.signal.is_some()
        };
        // The keeper comes first.
        self.members[1..].iter().filter(|it| !is_done(it)).count()
    }

    /// Whether this member may run now, in the host's time and the fabric's.
    fn is_ready(&self, member: &Member, io: &SimIo) -> bool {
        let is_woken = member.is_woken.load(Ordering::Relaxed);
        match member.waits {
            Waits::Begin | Waits::Go(_) => true,
            Waits::Wake => is_woken,
            Waits::Job => !self.jobs.is_empty(),
            Waits::WakeOrJob(_) => is_woken || !self.jobs_of_executors.is_empty(),
            Waits::KeeperDue => self
                .keeper_due_ns()
                .is_some_and(|at_ns| at_ns <= self.time_ns),
            Waits::Device => io.ends_wait(),
            Waits::End => false,
        }
    }

    fn keeper_due_ns(&self) -> Option<u64> {
        SimulatedKeeper::due_ns(&self.shared)
    }

    /// Who runs now.
    fn pick(&mut self, io: &SimIo, now_ns: u64) -> Option<usize> {
        let may_run = |index: &usize| {
            let member = &self.members[*index];
            member.stopped_until_ns <= now_ns && self.is_ready(member, io)
        };
        let ready: Vec<usize> = (0..self.members.len()).filter(may_run).collect();
        if ready.is_empty() {
            return None;
        }
        if !ready.contains(&self.last) || !self.rng.chance(self.goes_on_ppm) {
            self.last = self.rng.pick(&ready);
        }
        Some(self.last)
    }

    /// Has a member run to its next question.
    fn run(&mut self, index: usize) -> Pause<Question> {
        let member = &mut self.members[index];
        let answer = match std::mem::replace(&mut member.waits, Waits::End) {
            Waits::Go(answer) => answer,
            Waits::Job => Answer::Job(self.jobs.pop_front()),
            Waits::WakeOrJob(_) => Answer::Job(self.jobs_of_executors.pop_front()),
            _ => Answer::Go,
        };
        if matches!(answer, Answer::Job(_)) {
            member.is_woken.store(false, Ordering::Relaxed);
        }
        self.running.store(index, Ordering::Relaxed);
        member.thread.resume(answer)
    }

    /// The time has moved on, and something may have arrived.
    fn look(&mut self, io: &SimIo, now_ns: u64) {
        // A clock that jumps does so for all.
        let passed_ns = now_ns.saturating_sub(std::mem::replace(&mut self.time_ns, now_ns));
        self.time.advance(Duration::from_nanos(passed_ns));
        let arrivals = io.arrivals();
        if arrivals > 0 && arrivals != self.seen_arrivals {
            self.descriptors.iter().for_each(|it| it.set_readable());
        }
        self.seen_arrivals = arrivals;
    }

    /// Wakes a thread that waits for a signal for no reason, now and then.
    fn wake_some(&mut self) {
        if self.rng.chance(self.wake_ppm) {
            let index = self.rng.below(self.members.len() as u64) as usize;
            if let Some(signal) = &self.members[index].signal {
                signal.wake();
            }
        }
    }

    /// When the host is to have its next turn, if that is known, not before `free_ns`. `when`: the time at which the
    /// host's clock reads so much.
    fn next_ns(&self, io: &SimIo, free_ns: u64, when: impl Fn(u64) -> u64) -> Option<u64> {
        let next_ns = |member: &Member| match member.waits {
            _ if self.is_ready(member, io) => Some(member.stopped_until_ns),
            Waits::Device => Some(io.wait_ends_ns()),
            Waits::KeeperDue => self.keeper_due_ns().map(&when),
            _ => None,
        };
        let at_ns = self.members.iter().filter_map(next_ns).min()?;
        Some(at_ns.max(free_ns))
    }

    /// How long the next stride takes, and how long the thread is stopped after it, ns.
    fn draw_times(&mut self) -> (u64, u64) {
        let stride_ns = self.rng.range(20, STRIDE_NS);
        let stops = self.rng.chance(self.stop_ppm);
        let stop_ns = if stops {
            self.rng.range(1, self.longest_stop_ns)
        } else {
            0
        };
        (stride_ns, stop_ns)
    }

    /// Nobody waits for a call while nobody will see its answer.
    fn check(&self, io: &SimIo) -> Result<(), Violation> {
        for (index, member) in self.members.iter().enumerate() {
            let is_over = |signal: &Arc<Call>| signal.is_over();
            if member.signal.as_ref().is_some_and(is_over) && !self.is_ready(member, io) {
                let text = format!("thread {index} sleeps on when it is signalled");
                return Err(Violation::new("hand-overs", text));
            }
        }
        if self.members.iter().any(|it| self.is_ready(it, io)) {
            return Ok(());
        }
        if self.commands.hurried.load(Ordering::Relaxed) > 0 {
            let text = "a command is left, and no thread is about to see it";
            return Err(Violation::new("hand-overs", text.to_owned()));
        }
        let sleeps = |it: &Member| matches!(it.waits, Waits::Device);
        if self.members.iter().any(sleeps) {
            return Ok(());
        }
        for (index, member) in self.members.iter().enumerate() {
            let waits = match member.waits {
                Waits::Wake => member.signal.is_none(),
                Waits::WakeOrJob(calls) => calls > 0 && !self.reactors_wait,
                _ => false,
            };
            if waits {
                let text = format!("thread {index} waits for a call, and no thread for the device");
                return Err(Violation::new("hand-overs", text));
            }
        }
        Ok(())
    }
}

impl Host {
    /// A turn of a host whose threads share its endpoint: one of them runs for a while.
    pub(super) fn turn_in_threads(&mut self) -> Result<Vec<BusyWorker>, Violation> {
        let now_ns = self.fabric.lock().now_ns();
        while let Some(entry) = self.schedule.first_entry() {
            if entry.key().0 > now_ns {
                break;
            }
            match entry.remove() {
                Task::Signal(call) => call.finish(),
                task => self.members().add_job(task),
            }
        }
        let clock_ns = self.fabric.lock().host_now_ns(self.id);
        let Process {
            endpoint, threads, ..
        } = self.process();
        let threads = threads.as_mut().expect("a host with threads");
        threads.look(endpoint.io(), clock_ns);
        threads.wake_some();
        let mut free_ns = now_ns;
        if let Some(index) = threads.pick(endpoint.io(), now_ns) {
            let (stride_ns, stop_ns) = threads.draw_times();
            free_ns += stride_ns;
            let pause = threads.run(index);
            let waits = match pause {
                Pause::Asks(Question::AwaitsSignal(call)) => {
                    threads.members[index].signal = Some(Arc::clone(&call));
                    let at_ns = now_ns + threads.rng.log_range(100, LONGEST_SIGNAL_NS);
                    self.plan(at_ns, Task::Signal(call));
                    Waits::Go(Answer::Go)
                }
                Pause::Asks(question) => self.answer(question, now_ns, &mut free_ns)?,
                Pause::Ended(None) => Waits::End,
                Pause::Ended(Some(violation)) => return Err(violation),
            };
            let threads = self.members();
            threads.running.store(NOBODY, Ordering::Relaxed);
            let member = &mut threads.members[index];
            if matches!(waits, Waits::Job) {
                member.signal = None;
            }
            member.waits = waits;
            member.stopped_until_ns = free_ns + stop_ns;
        }
        let process = self.process.as_ref().expect("within a turn");
        let (endpoint, threads) = (&process.endpoint, process.threads.as_ref());
        let threads = threads.expect("a host with threads");
        threads.check(endpoint.io())?;
        let when = |clock_ns| self.fabric.lock().when(self.id, clock_ns);
        if let Some(at_ns) = threads.next_ns(endpoint.io(), free_ns, when) {
            self.fabric.lock().wake_at(self.id, at_ns);
        }
        self.wake_for_tasks(free_ns);
        Ok(self.busy())
    }

    fn members(&mut self) -> &mut Threads {
        self.process()
            .threads
            .as_mut()
            .expect("a host with threads")
    }

    /// Does what a thread asks for. Returns what it waits for.
    fn answer(
        &mut self,
        question: Question,
        now_ns: u64,
        free_ns: &mut u64,
    ) -> Result<Waits, Violation> {
        Ok(Waits::Go(match question {
            Question::Park => return Ok(Waits::Wake),
            Question::NextJob => return Ok(Waits::Job),
            Question::Polled { woken: true, .. } => {
                Answer::Job(self.members().jobs_of_executors.pop_front())
            }
            Question::Polled { calls, .. } => return Ok(Waits::WakeOrJob(calls)),
            Question::KeeperSleeps => return Ok(Waits::KeeperDue),
            Question::Yield | Question::AwaitsSignal(_) => Answer::Go,
            Question::Execute(command) => {
                self.execute(command, now_ns)?;
                Answer::Go
            }
            Question::Resume => {
                self.end_reactors_wait();
                if self.process().endpoint.since_last_turn_ns() >= STALE_NS {
                    self.turn_for_thread(now_ns, free_ns)?;
                }
                Answer::Go
            }
            Question::Turn => {
                self.end_reactors_wait();
                Answer::Step(self.turn_for_thread(now_ns, free_ns)?)
            }
            Question::Sleep(limit) => {
                self.end_reactors_wait();
                if self.wait(limit) {
                    return Ok(Waits::Device);
                }
                Answer::Go
            }
            Question::BeginWait => {
                self.end_reactors_wait();
                let wait = self.process().endpoint.begin_wait();
                let wait = wait.expect("the device has no errors");
                self.members().reactors_wait = wait == ReactorWait::Begun;
                Answer::Wait(wait)
            }
            Question::Spins => Answer::Is(self.process().endpoint.spins()),
            Question::IsExpecting => Answer::Is(self.process().endpoint.calls_outstanding() > 0),
            Question::NextTimer => Answer::Timer(self.process().endpoint.next_timer_ns()),
        }))
    }

    fn end_reactors_wait(&mut self) {
        if std::mem::take(&mut self.members().reactors_wait) {
            let ended = self.process().endpoint.end_wait();
            ended.expect("the device has no errors");
        }
    }

    /// A turn of the endpoint, by a thread that drives.
    fn turn_for_thread(&mut self, now_ns: u64, free_ns: &mut u64) -> Result<Step, Violation> {
        let turn = self.poll(now_ns)?;
        *free_ns = turn.free_ns;
        let step = match turn.is_idle {
            true => Step::Idle,
            false => Step::Busy,
        };
        self.check(turn.over)?;
        let Process {
            endpoint, threads, ..
        } = self.process();
        if let Some(threads) = threads {
            threads.seen_arrivals = endpoint.io().arrivals();
        }
        Ok(step)
    }

    /// Does what a thread has left a command for.
    fn execute(&mut self, command: SharedCommand, now_ns: u64) -> Result<(), Violation> {
        let SharedCommand {
            task,
            call,
            left_ns,
            ..
        } = command;
        let waited_ns = self.members().time_ns.saturating_sub(left_ns);
        if waited_ns > LATEST_NS && self.is_steady {
            let text = format!("a command is executed {waited_ns} ns after it was left");
            return Err(Violation::new("hand-overs", text));
        }
        let tag: Option<Tag> = match task {
            Task::Planned(PlannedTask::Call(plan)) => self.call(&plan, None, now_ns)?,
            Task::Planned(PlannedTask::Probe { channel, attempt }) => {
                let plan = CallPlan::short(now_ns, channel);
                self.call(&plan, Some(attempt), now_ns)?
            }
            task => {
                self.work(task, now_ns)?;
                None
            }
        };
        match tag {
            Some(tag) => {
                self.process().waiting.insert(tag, call);
            }
            None => call.finish(),
        }
        Ok(())
    }
}
