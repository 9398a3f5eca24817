//! What runs in the threads that share an endpoint: callers, an executor of tasks, and the keeper. The endpoint is the
//! host's, so the event loop that they drive asks the host for each of its steps.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use starling_io::{Clock, IoError, MonotonicClock, ReactorWait};
use starling_share::{
    Command, DriverTask, EventLoop, Reactor, SharedLoop, SimulatedKeeper, SimulatedThread, Step,
    Waiter, Watch,
};

use super::super::Task;
use crate::threads::Simulation;

/// What a thread asks its host for, or says before it stops running for a while.
pub(super) enum Question {
    /// It sleeps until it is woken.
    Park,
    /// Others may run first.
    Yield,
    /// A caller has nothing to do.
    NextJob,
    /// It will wait for this signal.
    AwaitsSignal(Arc<Call>),
    /// An executor has polled all its tasks, which wait for so many calls. `woken`: one is to be polled again.
    Polled {
        calls: usize,
        woken: bool,
    },
    /// The keeper sleeps until it has something to do.
    KeeperSleeps,
    /// The loop's steps, of a thread that drives.
    Resume,
    Execute(SharedCommand),
    Turn,
    Sleep(Option<Duration>),
    BeginWait,
    Spins,
    IsExpecting,
    NextTimer,
}

/// The host's answer.
#[derive(Default)]
pub(super) enum Answer {
    /// The thread dies, and asks in vain.
    #[default]
    Died,
    Go,
    Job(Option<Job>),
    Step(Step),
    Wait(ReactorWait),
    Is(bool),
    Timer(Option<u64>),
}

/// What a thread is to do.
pub(super) enum Job {
    /// An action that needs the endpoint.
    Act(Task, Style),
    /// To wait for a signal of somebody else.
    AwaitSignal,
}

/// How a thread goes on when it has left a command.
#[derive(Clone, Copy)]
pub(super) enum Style {
    /// It waits, and drives meanwhile.
    Waits,
    /// It waits as the future of an executor without a driver task does.
    Watches,
    /// It executes the command, and waits for nothing.
    Drives,
    /// It does nothing more.
    Leaves,
    /// A task waits, or is dropped after so many polls.
    Task { polls: u32 },
}

/// An action that needs the endpoint.
pub(super) struct SharedCommand {
    pub(super) task: Task,
    pub(super) call: Arc<Call>,
    /// When it was left, by the host's clock.
    pub(super) left_ns: u64,
    /// Until it is executed.
    _counted: Counted,
}

/// Commands that are left and not executed.
#[derive(Default)]
pub(super) struct Commands {
    pub(super) all: AtomicUsize,
    /// Those that somebody is to see at once.
    pub(super) hurried: AtomicUsize,
}

/// A command, as it is counted.
struct Counted {
    commands: Arc<Commands>,
    hurries: usize,
}

impl Counted {
    fn begin(commands: &Arc<Commands>, hurries: bool) -> Self {
        let hurries = usize::from(hurries);
        commands.all.fetch_add(1, Ordering::Relaxed);
        commands.hurried.fetch_add(hurries, Ordering::Relaxed);
        Self {
            commands: Arc::clone(commands),
            hurries,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.commands.all.fetch_sub(1, Ordering::Relaxed);
        (self.commands.hurried).fetch_sub(self.hurries, Ordering::Relaxed);
    }
}

impl Command for SharedCommand {
    fn refuse(self, failure: &str) {
        unreachable!("the loop ends with its process: {failure}");
    }
}

/// What somebody may wait for: a call, or an action that is done at once.
pub(in super::super::super) struct Call {
    waiter: Arc<Waiter>,
    is_over: AtomicBool,
}

impl Call {
    fn new(waiter: &Arc<Waiter>) -> Arc<Self> {
        Arc::new(Self {
            waiter: Arc::clone(waiter),
            is_over: AtomicBool::new(false),
        })
    }

    /// Wakes whoever waits, for no reason.
    pub(super) fn wake(&self) {
        self.waiter.notify();
    }

    pub(in super::super) fn finish(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.waiter.notify();
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Caller>>> = const { RefCell::new(None) };
}

/// A thread of the process.
pub(super) struct Caller {
    simulation: Simulation<Question, Answer>,
    /// Who of the process's threads runs, and which one this is. It still runs while the host does what it asks for.
    running: Arc<AtomicUsize>,
    index: usize,
    is_woken: Arc<AtomicBool>,
    clock: MonotonicClock,
    commands: Arc<Commands>,
}

impl Caller {
    /// This thread, which `running` says to run.
    pub(super) fn begin(
        simulation: Simulation<Question, Answer>,
        running: Arc<AtomicUsize>,
        is_woken: Arc<AtomicBool>,
        clock: MonotonicClock,
        commands: Arc<Commands>,
    ) -> Arc<Self> {
        let caller = Arc::new(Self {
            simulation,
            index: running.load(Ordering::Relaxed),
            running,
            is_woken,
            clock,
            commands,
        });
        CURRENT.set(Some(Arc::clone(&caller)));
        caller
    }

    fn ask(&self, question: Question) -> Answer {
        self.simulation.ask(question)
    }

    fn command(&self, task: Task, call: &Arc<Call>, style: Style) -> SharedCommand {
        // A driver that leaves leaves the others to the keeper, for some milliseconds.
        let hurries = !matches!(style, Style::Leaves | Style::Drives);
        SharedCommand {
            task,
            call: Arc::clone(call),
            left_ns: self.clock.now_ns(),
            _counted: Counted::begin(&self.commands, hurries),
        }
    }
}

impl SimulatedThread for Caller {
    fn is_current(&self) -> bool {
        self.running.load(Ordering::Relaxed) == self.index
    }

    fn park(&self) {
        if !self.is_woken.load(Ordering::Relaxed) {
            self.ask(Question::Park);
        }
        self.is_woken.store(false, Ordering::Relaxed);
    }

    fn unpark(&self) {
        self.is_woken.store(true, Ordering::Relaxed);
    }

    fn yield_now(&self) {
        self.ask(Question::Yield);
    }
}

/// A thread that makes one call after the other.
pub(super) fn run_caller(caller: &Arc<Caller>, shared: &Arc<SharedLoop<SharedCommand>>) {
    let waiter = Waiter::of_simulated(Arc::clone(caller) as Arc<dyn SimulatedThread>);
    let wait = |call: &Call| {
        loop {
            waiter.take_notified();
            if call.is_over() {
                break;
            }
            shared.wait(&waiter);
        }
    };
    while let Answer::Job(Some(job)) = caller.ask(Question::NextJob) {
        let call = Call::new(&waiter);
        let Job::Act(task, style) = job else {
            caller.ask(Question::AwaitsSignal(Arc::clone(&call)));
            wait(&call);
            continue;
        };
        let watch = matches!(style, Style::Watches).then(|| SharedLoop::watch(shared));
        shared.push(caller.command(task, &call, style));
        caller.yield_now();
        match style {
            Style::Waits => wait(&call),
            Style::Watches => {
                shared.drive_once();
                while !call.is_over() {
                    waiter.park();
                    waiter.take_notified();
                }
            }
            Style::Drives => shared.drive_once(),
            Style::Leaves | Style::Task { .. } => {}
        }
        drop(watch);
    }
}

/// A thread with an executor: it polls the driver task, and tasks that each wait for a call.
pub(super) fn run_executor(
    caller: &Arc<Caller>,
    shared: &Arc<SharedLoop<SharedCommand>>,
    descriptor: Option<Arc<Descriptor>>,
) {
    let waiter = Waiter::of_simulated(Arc::clone(caller) as Arc<dyn SimulatedThread>);
    let waker = Waker::from(Arc::clone(&waiter));
    let mut cx = Context::from_waker(&waker);
    let reactor = descriptor.map(|it| Box::new(Registered(it)) as Box<dyn Reactor>);
    let (mut task, handle) = DriverTask::new(shared, reactor);
    let mut calls: Vec<(Arc<Call>, Watch<SharedCommand>, u32)> = Vec::new();
    loop {
        waiter.take_notified();
        if Pin::new(&mut task).poll(&mut cx).is_ready() {
            return;
        }
        calls.retain_mut(|(call, _, polls)| {
            *polls = polls.saturating_sub(1);
            !call.is_over() && *polls > 0
        });
        let question = Question::Polled {
            calls: calls.len(),
            woken: waiter.is_notified(),
        };
        if let Answer::Job(Some(Job::Act(task, style))) = caller.ask(question) {
            let call = Call::new(&waiter);
            let watch = Watch::by_task(&handle);
            shared.submit(caller.command(task, &call, style), &handle);
            if let Style::Task { polls } = style {
                calls.push((call, watch, polls));
            }
        }
    }
}

/// The keeper's thread.
pub(super) fn run_keeper(caller: &Caller, shared: &SharedLoop<SharedCommand>) {
    let mut keeper = SimulatedKeeper::default();
    while let Answer::Go = caller.ask(Question::KeeperSleeps) {
        if !keeper.act(shared) {
            return;
        }
    }
}

/// The device's descriptor, as an executor's reactor has it.
#[derive(Default)]
pub(super) struct Descriptor {
    is_readable: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Descriptor {
    /// Something has arrived.
    pub(super) fn set_readable(&self) {
        self.is_readable.store(true, Ordering::Relaxed);
        let waker = self.waker.lock().take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

struct Registered(Arc<Descriptor>);

impl Reactor for Registered {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.0.is_readable.swap(false, Ordering::Relaxed) {
            return Poll::Ready(());
        }
        *self.0.waker.lock() = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// The host's endpoint: each step is the host's, and a point at which the thread may be stopped.
pub(super) struct LoopOfHost;

impl LoopOfHost {
    fn ask(question: Question) -> Answer {
        let caller = CURRENT.with_borrow(Clone::clone);
        caller
            .expect("only the process's threads drive")
            .ask(question)
    }
}

impl EventLoop for LoopOfHost {
    type Command = SharedCommand;

    fn resume(&mut self) -> Result<(), IoError> {
        Self::ask(Question::Resume);
        Ok(())
    }

    fn execute(&mut self, command: SharedCommand) {
        Self::ask(Question::Execute(command));
    }

    fn turn(&mut self) -> Result<Step, IoError> {
        match Self::ask(Question::Turn) {
            Answer::Step(step) => Ok(step),
            _ => Ok(Step::Idle),
        }
    }

    fn sleep(&mut self, limit: Option<Duration>) -> Result<(), IoError> {
        Self::ask(Question::Sleep(limit));
        Ok(())
    }

    fn begin_wait(&mut self) -> Result<ReactorWait, IoError> {
        match Self::ask(Question::BeginWait) {
            Answer::Wait(wait) => Ok(wait),
            _ => Ok(ReactorWait::Unsupported),
        }
    }

    fn spins(&mut self) -> bool {
        matches!(Self::ask(Question::Spins), Answer::Is(true))
    }

    fn is_expecting(&self) -> bool {
        matches!(Self::ask(Question::IsExpecting), Answer::Is(true))
    }

    fn next_timer_ns(&mut self) -> Option<u64> {
        match Self::ask(Question::NextTimer) {
            Answer::Timer(timer_ns) => timer_ns,
            _ => None,
        }
    }

    /// The process dies with its endpoint.
    fn end(self: Box<Self>, _: Option<&str>) {}
}
