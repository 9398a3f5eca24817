//! The endpoint behind channels. It belongs to no thread: whoever waits for a call drives it, in a
//! tokio runtime a task of the runtime does, and a keeper thread does what nobody waits for.
//!
//! ```text
//!  callers: encode ─▶ inbox (lock-free) ─▶ the driver: execute, turn ─▶ endpoint ─▶ network
//!  CallCell ◀──────────────────────────────── continuation
//! ```
//!
//! `starling_share` has the inbox and says who drives. Each call holds a permit from before it enters
//! the inbox until it ends, and adds at most one more command. So the channels' capacities bound the
//! inbox.

mod command;
mod deadline_waker;
mod event_loop;
mod measures;
mod open_channel;
#[cfg(feature = "tokio")]
mod tasks;
mod transport;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use starling_endpoint::{EndpointConfig, LargeBuffers, Status};
use starling_io::{MessageMemory, MonotonicClock, Wake, forks};
use starling_share::{SharedLoop, TaskHandle};

use crate::address::Address;
use crate::error::Error;
use crate::plane::{CallHandle, Reply, stopped};
use crate::stats::ThreadStats;
use crate::threads::{self, ThreadRole};
use crate::time::Time;
use crate::wait::{block_on, drive_while_blocked};

pub(crate) use command::{Command, MakeTask};
pub use deadline_waker::DeadlineWaker;
pub(crate) use event_loop::{EventLoop, OpenedLoop};
pub(crate) use transport::DirectTransport;

/// An endpoint that channels share. It ends with the last of them.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    /// The memory for messages of the device.
    pub(crate) memory: MessageMemory,
    /// Those of the endpoint.
    buffers: LargeBuffers,
    next_channel: AtomicU64,
    /// The process that made it; see [`forks`].
    process: u32,
    keeper: Option<JoinHandle<()>>,
    #[cfg(feature = "tokio")]
    tasks: tasks::Tasks,
}

/// The loop with the right to drive it.
pub(crate) type Shared = SharedLoop<Command>;

/// A call that a future waits for.
pub(crate) type Watch = starling_share::Watch<Command>;

/// The drivers that channels share unless they have their own, with an address that each was made to
/// reach. There is one for each device.
static SHARED: Mutex<Vec<(Address, Weak<Driver>)>> = Mutex::new(Vec::new());

impl Driver {
    /// The driver for this address that the channels of the process share.
    pub(crate) fn shared(address: &Address) -> Result<Arc<Self>, Error> {
        // Dropped after the lock is released: the end of a driver runs its callers' wakers.
        let reaching: Vec<_>;
        let mut shared = SHARED.lock();
        shared.retain(|(_, driver)| driver.strong_count() > 0);
        let works =
            |driver: &&Arc<Self>| driver.is_of_this_process() && driver.shared.failure().is_none();
        reaching = (shared.iter())
            .filter(|(own, _)| own.reaches(address))
            .filter_map(|(_, driver)| driver.upgrade())
            .collect();
        if let Some(driver) = reaching.iter().find(works) {
            return Ok(Arc::clone(driver));
        }
        let driver = Arc::new(Self::start(
            address,
            &Time::default(),
            &EndpointConfig::default(),
        )?);
        shared.push((address.clone(), Arc::downgrade(&driver)));
        Ok(driver)
    }

    /// Makes a new endpoint, and starts its keeper.
    pub(crate) fn start(
        address: &Address,
        time: &Time,
        config: &EndpointConfig,
    ) -> Result<Self, Error> {
        // Threads take turns by the machine's time.
        let clock = MonotonicClock::new();
        let its_clock = match time.is_manual() {
            true => time.clock(),
            false => clock.clone(),
        };
        let OpenedLoop {
            event_loop,
            waker,
            #[cfg(feature = "tokio")]
            descriptor,
            memory,
            buffers,
            questions,
        } = (address.device()).event_loop(address, its_clock, time, config)?;
        let shared = Arc::new(SharedLoop::new(event_loop, waker, clock));
        let driven: Arc<dyn Wake> = Arc::<Shared>::clone(&shared);
        time.wake_at_moves(&driven);
        let asked = Arc::downgrade(&shared);
        let process = forks();
        threads::add(ThreadRole::Channels, &questions, move || {
            // A fork must not drive its parent's endpoint.
            if process == forks()
                && let Some(shared) = asked.upgrade()
            {
                shared.drive_once();
            }
        });
        let kept = Arc::clone(&shared);
        let keeper = std::thread::Builder::new()
            .name(format!("starling-{}", address.scheme()))
            .spawn(move || kept.keep())
            .map_err(|error| Error::system("start a thread for channels", error))?;
        Ok(Self {
            shared,
            memory,
            buffers,
            next_channel: AtomicU64::new(0),
            process,
            keeper: Some(keeper),
            #[cfg(feature = "tokio")]
            tasks: tasks::Tasks::new(descriptor),
        })
    }

    /// Whether this process made it, and not one that this process is a fork of.
    #[inline]
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.process == forks()
    }

    /// A number for a new channel.
    pub(crate) fn next_channel(&self) -> u64 {
        self.next_channel.fetch_add(1, Ordering::Relaxed)
    }

    /// Counters of the endpoint.
    pub(crate) fn stats(&self) -> Result<ThreadStats, Status> {
        let report = Arc::new(command::Report::default());
        self.shared.push(Command::Report(Arc::clone(&report)));
        let mut watch = None;
        block_on(std::future::poll_fn(|cx| {
            let stats = report.poll(cx);
            if stats.is_pending() {
                self.drive(None, &mut watch);
            }
            stats
        }))
        .ok_or_else(|| stopped(self.shared.failure()))
    }

    /// Leaves a command, and has it executed soon.
    pub(crate) fn send(&self, command: Command) {
        self.shared.push(command);
        self.flush();
    }

    /// Has the commands that were left executed soon.
    pub(crate) fn flush(&self) {
        if !self.with_task(TaskHandle::wake).unwrap_or(false) {
            self.shared.drive_once();
        }
    }

    /// Runs a task in the event loop. [`Driver::wake`] has to follow a wake-up of it that comes from elsewhere.
    pub(crate) fn spawn(&self, make: MakeTask) {
        self.shared.push(Command::Spawn(make));
        self.wake();
    }

    /// Has the background look after commands and tasks, if nobody else does.
    pub(crate) fn wake(&self) {
        self.shared.call_background();
    }

    /// Begins a call. [`Driver::drive`] has to follow before the caller waits.
    pub(crate) fn start_call(&self, channel: u64, reply: Reply) {
        let mut command = Some(Command::Start { channel, reply });
        // In a thread that waits for its call by itself, there is no use for the task.
        self.with_task(|task| {
            if task.is_active()
                && let Some(Command::Start { reply, .. }) = &command
                && reply.call().0.watch_by(task)
                && let Some(command) = command.take()
            {
                self.shared.submit(command, task);
            }
        });
        if let Some(command) = command {
            self.shared.push(command);
        }
    }

    /// Has the loop driven for a caller that begins to wait: by the caller, if its thread sleeps
    /// until the call is over, else by a task of the caller's runtime or by the background, while
    /// `watch` lives. Returns whether this thread has driven.
    pub(crate) fn drive(&self, call: Option<&CallHandle>, watch: &mut Option<Box<Watch>>) -> bool {
        if drive_while_blocked(&self.shared) {
            return false;
        }
        if call.is_some_and(|call| call.0.is_watched()) {
            return false;
        }
        let by_task = self.with_task(|task| {
            if !watch.as_ref().is_some_and(|watch| watch.is_by(task)) {
                *watch = Some(Box::new(Watch::by_task(task)));
            }
            // After the watch: the task does not drive for a runtime without calls.
            task.wake()
        });
        if by_task == Some(true) {
            return false;
        }
        *watch = Some(Box::new(SharedLoop::watch(&self.shared)));
        self.shared.drive_once();
        true
    }

    /// What `with` makes of the driver task of the runtime that this thread is in.
    #[cfg(feature = "tokio")]
    fn with_task<T>(&self, with: impl FnOnce(&TaskHandle) -> T) -> Option<T> {
        self.tasks.with_this_runtimes(&self.shared, with)
    }

    #[cfg(not(feature = "tokio"))]
    #[allow(clippy::unused_self, reason = "as with the feature")]
    fn with_task<T>(&self, _: impl FnOnce(&TaskHandle) -> T) -> Option<T> {
        None
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Driver(..)")
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if !self.is_of_this_process() {
            // The parent uses the sockets, and the keeper is a thread of its. Nothing may be closed.
            std::mem::forget(Arc::clone(&self.shared));
            std::mem::forget(self.keeper.take());
            return;
        }
        self.shared.stop();
        // A loop may drop the last reference itself, with a caller's waker. The keeper then waits
        // for this very thread.
        if !starling_share::is_driving()
            && let Some(keeper) = self.keeper.take()
            && keeper.thread().id() != std::thread::current().id()
        {
            // The panic hook has reported a panic there already.
            let _ = keeper.join();
        }
        #[cfg(feature = "tokio")]
        self.tasks.end();
    }
}

#[cfg(test)]
mod tests {
    use starling_share::DriverTask;

    use super::*;
    use crate::call_cell::CallCell;
    use crate::plane::Operation;

    #[test]
    fn a_cell_that_is_used_again_finds_the_task_of_another_endpoint() {
        let address = Address::parse("udp://127.0.0.1:9").expect("an address");
        let driver = || Driver::start(&address, &Time::default(), &EndpointConfig::default());
        let [first, second] = [driver(), driver()].map(|driver| driver.expect("a driver"));
        // The tasks have not ended: no executor has dropped them.
        let [(_first_task, first), (_second_task, second)] =
            [&first, &second].map(|driver| DriverTask::new(&driver.shared, None));

        let watched_by = |task: &TaskHandle| {
            let cell = CallCell::new(
                Operation::Connect {
                    wait_for_ready: false,
                },
                None,
            );
            let is_watched = cell.watch_by(task);
            cell.abandon();
            cell.recycle();
            is_watched
        };
        assert!(watched_by(&first) && watched_by(&first));
        watched_by(&second);
        assert!(watched_by(&second), "the cell still has the first task");
    }
}
