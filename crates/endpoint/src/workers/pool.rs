//! Threads that run jobs, assigned by the policy in [`crate::jbsq`].
//!
//! ```text
//!                ┌─▶ mailbox 0 ─▶ worker 0 ─┐
//!  Jbsq ─ assign ┼─▶ mailbox 1 ─▶ worker 1 ─┼─ drops the job's guard: the slot is returned
//!    ▲           └─▶ mailbox 2 ─▶ worker 2 ─┘                        │
//!    └───────────────────────── poll ◀───────────────────────────────┘
//! ```
//!
//! A mailbox has room for as many jobs as a worker may have ([`starling_handoff`]). So nothing
//! waits for room, and only the operating system takes locks, when a thread sleeps or is woken.
//!
//! A handler may block, even on a request that was assigned to its own worker and waits behind it.
//! So other workers of the group steal such jobs: a worker with nothing to do looks into the
//! group's mailboxes before it sleeps, and a worker that always has jobs does so now and then. When
//! a job is assigned to a worker that may be busy, a sleeping worker is woken to look. A worker
//! that was woken and begins a job wakes the next one if there are more jobs.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use starling_handoff::{Dispatcher, ItemGuard, Mailboxes, Returned, SLOTS, Sleepers, dispatcher};
use starling_io::{Clock, IoError, Wake};

use super::dispatch::{Dispatch, WorkersReport};
use super::idle_policy::{IdlePolicy, Next};
use super::job::Job;
use super::thread::start_thread;
use crate::config::{Idle, WorkerConfig};
use crate::jbsq::{Decision, Jbsq, MAX_DEPTH};

const _: () = assert!(MAX_DEPTH as usize <= SLOTS);

/// A worker that always has jobs of its own tries to steal a job after this many.
const STEAL_INTERVAL: u32 = 64;

/// How long a thread sleeps if the kernel lacks the barrier that makes wake-ups certain.
const UNSURE_SLEEP: Duration = Duration::from_millis(1);

/// Threads that run worker handlers.
pub struct ThreadPool {
    policy: Jbsq<Box<Job>>,
    dispatcher: Dispatcher<Job>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    in_flight: usize,
}

/// The state that all threads of a pool share.
struct Shared {
    sleepers: Sleepers,
    /// Which workers have found their mailbox empty and have taken nothing since.
    idle: Vec<CachePadded<AtomicBool>>,
    /// To wake them.
    threads: OnceLock<Vec<Thread>>,
    stop: AtomicBool,
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadPool")
            .field("threads", &self.threads.len())
            .field("in_flight", &self.in_flight)
            .field("waiting", &self.policy.waiting())
            .finish_non_exhaustive()
    }
}

impl ThreadPool {
    /// `waker` wakes the endpoint's thread, `clock` is the endpoint's clock.
    ///
    /// # Errors
    /// If the settings cannot work, or there cannot be so many threads.
    pub fn new<C: Clock + Clone + Send + 'static>(
        config: &WorkerConfig,
        clock: &C,
        waker: &Arc<dyn Wake>,
    ) -> Result<Self, IoError> {
        config.check()?;
        let count = config.threads;
        let policy = Jbsq::new(config.model, count, config.depth, config.queue);
        let (dispatcher, mailboxes) = dispatcher(count);
        let idle = std::iter::repeat_with(CachePadded::default);
        let shared = Arc::new(Shared {
            sleepers: Sleepers::new(count),
            idle: idle.take(count).collect(),
            threads: OnceLock::new(),
            stop: AtomicBool::new(false),
        });
        let mut pool = Self {
            policy,
            dispatcher,
            shared,
            threads: Vec::with_capacity(count),
            in_flight: 0,
        };
        for index in 0..count {
            let worker = Worker {
                index,
                group: pool.policy.group_of(index),
                mailboxes: mailboxes.clone(),
                shared: Arc::clone(&pool.shared),
                idle: config.idle,
            };
            let (clock, waker) = (clock.clone(), Arc::clone(waker));
            let thread = start_thread(index, move || worker.work(&clock, &*waker))?;
            pool.threads.push(thread);
        }
        let threads = pool.threads.iter().map(|thread| thread.thread().clone());
        pool.shared.threads.get_or_init(|| threads.collect());
        Ok(pool)
    }

    fn assign(&mut self, worker: usize, job: Box<Job>) {
        self.dispatcher.push(worker, job);
        // While all workers are busy, no cache line but the mailbox's is read: each one belongs to
        // another core.
        if self.shared.sleepers.any() {
            self.wake(worker);
        }
    }

    /// Some worker sleeps: this one, or one that may steal from its mailbox.
    #[cold]
    fn wake(&self, worker: usize) {
        if self.shared.sleepers.mark_awake(worker) {
            self.threads[worker].thread().unpark();
        }
        let may_wait =
            self.policy.load(worker) > 1 || !self.shared.idle[worker].load(Ordering::Relaxed);
        if may_wait {
            self.shared.wake_one_of(self.policy.group_of(worker));
        }
    }
}

impl Shared {
    /// Wakes a sleeping worker of a group, to look for jobs. There is a fence between a change of
    /// the mailboxes and this call, and one between a sleeper's announcement and its last look. So
    /// one of the two sees the other.
    fn wake_one_of(&self, group: Range<usize>) {
        let woken = self.sleepers.mark_one_awake(group);
        if let (Some(worker), Some(threads)) = (woken, self.threads.get()) {
            threads[worker].unpark();
        }
    }
}

impl Dispatch for ThreadPool {
    fn submit(&mut self, job: Box<Job>) -> Result<(), Box<Job>> {
        match self.policy.submit(job.flow(), job) {
            Decision::Assigned(worker, job) => self.assign(worker, job),
            Decision::Queued => {}
            Decision::Refused(job) => return Err(job),
        }
        self.in_flight += 1;
        Ok(())
    }

    fn poll(&mut self) -> Option<Box<Job>> {
        let Returned { mailbox, item, .. } = self.dispatcher.poll_returned()?;
        self.in_flight -= 1;
        if let Some(next) = self.policy.complete(mailbox) {
            self.assign(mailbox, next);
        }
        Some(item)
    }

    fn prefetch(&self) {
        self.dispatcher.prefetch();
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn report(&self) -> WorkersReport {
        let workers = 0..self.threads.len();
        WorkersReport {
            in_flight: self.in_flight,
            waiting: self.policy.waiting(),
            with_each: workers
                .map(|worker| self.policy.load(worker).into())
                .collect(),
            claimed: 0,
        }
    }
}

impl Drop for ThreadPool {
    /// Ends the threads. Threads that still run jobs are left to end by themselves: a handler that
    /// never returns must not block the shutdown.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for thread in &self.threads {
            thread.thread().unpark();
        }
        // The rest of a scan that was under way, and a whole one.
        for _ in 0..2 {
            while self.dispatcher.poll_returned().is_some() {
                self.in_flight -= 1;
            }
        }
        if self.in_flight == 0 {
            for thread in self.threads.drain(..) {
                // A worker catches all panics, so the result says nothing.
                let _ = thread.join();
            }
        }
    }
}

/// The view of one thread.
struct Worker {
    index: usize,
    /// The workers of its group.
    group: Range<usize>,
    mailboxes: Mailboxes<Job>,
    shared: Arc<Shared>,
    idle: Idle,
}

impl Worker {
    fn work(&self, clock: &impl Clock, waker: &dyn Wake) {
        let mut policy = IdlePolicy::default();
        // Whether the job that it was woken for may be another one than the job that it finds.
        let mut searched = false;
        // The next slot of its own mailbox.
        let mut next = 0;
        // Jobs of its own since it last looked into other mailboxes, and the mailbox that it stole
        // from last. Idle times in between do not count: they may be too short to look around.
        let (mut own_jobs, mut stole_from) = (0, self.index);
        while !self.shared.stop.load(Ordering::Acquire) {
            let mut taken = None;
            if own_jobs == STEAL_INTERVAL {
                own_jobs = 0;
                taken = self.steal_in_turn(&mut stole_from);
            }
            if taken.is_none() {
                taken = self.mailboxes.take(self.index, next);
                match &taken {
                    Some(job) => {
                        next = job.slot() + 1;
                        own_jobs += 1;
                    }
                    None => self.shared.idle[self.index].store(true, Ordering::Relaxed),
                }
            }
            let Some(job) = taken.or_else(|| self.pause(&mut policy, &mut searched)) else {
                continue;
            };
            self.shared.idle[self.index].store(false, Ordering::Relaxed);
            if std::mem::take(&mut searched) {
                fence(Ordering::SeqCst);
                let mut group = self.group.clone();
                if !group.all(|mailbox| self.mailboxes.is_empty(mailbox)) {
                    self.shared.wake_one_of(self.group.clone());
                }
            }
            run(job, clock, waker);
            policy = IdlePolicy::default();
        }
    }

    /// Waits after its mailbox was empty: spins for a moment, then tries to steal, then sleeps. A
    /// wake-up between the last look and the sleep is not lost: it ends the sleep at once.
    fn pause(&self, policy: &mut IdlePolicy, searched: &mut bool) -> Option<ItemGuard<'_, Job>> {
        let next = policy.wait(self.idle);
        if next == Next::Retry {
            return None;
        }
        *searched = true;
        if next == Next::Steal {
            return self.steal();
        }
        let park = |sure| match sure {
            _ if self.shared.stop.load(Ordering::Acquire) => {}
            true => std::thread::park(),
            false => std::thread::park_timeout(UNSURE_SLEEP),
        };
        let sleepers = &self.shared.sleepers;
        sleepers.sleep(self.index, || self.steal(), park)
    }

    /// Takes a job of the group that is not begun.
    fn steal(&self) -> Option<ItemGuard<'_, Job>> {
        let mut group = self.group.clone();
        group.find_map(|mailbox| self.mailboxes.take(mailbox, 0))
    }

    /// Takes a job of another worker. The workers come in turn, because all but one may be blocked.
    fn steal_in_turn(&self, stole_from: &mut usize) -> Option<ItemGuard<'_, Job>> {
        let Range { start, end } = self.group;
        let behind = *stole_from + 1..end;
        let mut others = behind
            .chain(start..*stole_from + 1)
            .filter(|mailbox| *mailbox != self.index);
        others.find_map(|mailbox| {
            let taken = self.mailboxes.take(mailbox, 0)?;
            *stole_from = mailbox;
            Some(taken)
        })
    }
}

fn run(mut job: ItemGuard<'_, Job>, clock: &impl Clock, waker: &dyn Wake) {
    job.run(clock.now_ns());
    drop(job);
    waker.wake();
}

#[cfg(test)]
mod tests;
