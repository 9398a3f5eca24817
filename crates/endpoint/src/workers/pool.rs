//! Threads that run jobs, given to them as [`jbsq`](super::jbsq) says.
//!
//! ```text
//!              ┌─▶ seat 0 ─▶ worker 0 ─┐
//!  Jbsq ─ give ┼─▶ seat 1 ─▶ worker 1 ─┼─ drops what it ran: back in its seat ─▶ poll ─▶ Jbsq
//!              └─▶ seat 2 ─▶ worker 2 ─┘
//! ```
//!
//! A seat has room for as many jobs as a worker may have ([`starling_handoff`]), so nothing waits
//! for room, and no lock is taken but by the operating system when a thread sleeps or is woken.
//!
//! A handler may block, even on a request that was given to its own thread and waits behind it. So
//! a worker with nothing to do looks into its companions' seats before it sleeps, and one that always
//! has something does now and then. Whenever something
//! is given to a worker that may be at work, one that sleeps is woken to look; and who was woken
//! and begins something, while there is more, wakes the next.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use crossbeam_utils::CachePadded;
use starling_handoff::{Dispatcher, ItemGuard, Mailboxes, Returned, SLOTS, Sleepers, dispatcher};
use starling_io::{Clock, IoError, Wake};

use super::dispatch::Dispatch;
use super::idle_policy::{IdlePolicy, Next};
use super::job::Job;
use super::memory::MAX_BYTES;
use super::thread::start_thread;
use crate::config::{Idle, WorkerConfig};
use crate::jbsq::{Jbsq, MAX_DEPTH, Placed};

const _: () = assert!(MAX_DEPTH as usize <= SLOTS);

/// A worker that always has jobs of its own looks for what others do not get to after so many.
const LOOK_EVERY: u32 = 64;

/// How long a thread sleeps where the kernel does not let it be sure that it will be woken.
const UNSURE_SLEEP: Duration = Duration::from_millis(1);

/// Threads that run worker handlers.
pub struct ThreadPool {
    policy: Jbsq<Box<Job>>,
    desk: Dispatcher<Job>,
    /// Memory of the request in each slot of each seat, so that no job is looked at for it: its
    /// lines come from another core.
    bytes: Vec<[usize; SLOTS]>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    in_flight: usize,
    in_flight_bytes: usize,
}

/// What all of its threads see.
struct Shared {
    sleepers: Sleepers,
    /// Which workers have found their seat empty and have taken nothing since.
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
    /// `waker` is that of the endpoint's device, `clock` reads as the endpoint's does.
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
        let policy = Jbsq::new(config.mode, count, config.depth, config.queue);
        let (desk, seats) = dispatcher(count);
        let idle = std::iter::repeat_with(CachePadded::default);
        let shared = Arc::new(Shared {
            sleepers: Sleepers::new(count),
            idle: idle.take(count).collect(),
            threads: OnceLock::new(),
            stop: AtomicBool::new(false),
        });
        let mut pool = Self {
            policy,
            desk,
            bytes: vec![[0; SLOTS]; count],
            shared,
            threads: Vec::with_capacity(count),
            in_flight: 0,
            in_flight_bytes: 0,
        };
        for index in 0..count {
            let worker = Worker {
                index,
                companions: pool.policy.companions(index),
                seats: seats.clone(),
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

    fn give(&mut self, worker: usize, job: Box<Job>) {
        let bytes = job.request_bytes;
        let slot = self.desk.push(worker, job);
        self.bytes[worker][slot] = bytes;
        // While all work, no line is looked at but the seat's: each is another core's.
        if self.shared.sleepers.any() {
            self.wake(worker);
        }
    }

    /// Somebody sleeps: the worker itself, or one that may look into its seat.
    #[cold]
    fn wake(&self, worker: usize) {
        if self.shared.sleepers.mark_awake(worker) {
            self.threads[worker].thread().unpark();
        }
        let may_wait =
            self.policy.load(worker) > 1 || !self.shared.idle[worker].load(Ordering::Relaxed);
        if may_wait {
            self.shared.wake_one_of(self.policy.companions(worker));
        }
    }
}

impl Shared {
    /// Has a worker that sleeps look at what was given to its group. Between a change of the
    /// seats and this stands a fence, as between a sleeper's word that it sleeps and its last
    /// look: one of the two sees the other.
    fn wake_one_of(&self, group: Range<usize>) {
        let called = self.sleepers.mark_one_awake(group);
        if let (Some(worker), Some(threads)) = (called, self.threads.get()) {
            threads[worker].unpark();
        }
    }
}

impl Dispatch for ThreadPool {
    fn submit(&mut self, job: Box<Job>) -> Result<(), Box<Job>> {
        let bytes = self.in_flight_bytes + job.request_bytes;
        if self.in_flight > 0 && bytes > MAX_BYTES {
            return Err(job);
        }
        match self.policy.submit(job.flow(), job) {
            Placed::Given(worker, job) => self.give(worker, job),
            Placed::Waits => {}
            Placed::Refused(job) => return Err(job),
        }
        self.in_flight += 1;
        self.in_flight_bytes = bytes;
        Ok(())
    }

    fn poll(&mut self) -> Option<Box<Job>> {
        let Returned {
            mailbox: seat,
            slot,
            item,
        } = self.desk.poll_returned()?;
        self.in_flight -= 1;
        self.in_flight_bytes -= self.bytes[seat][slot];
        if let Some(next) = self.policy.complete(seat) {
            self.give(seat, next);
        }
        Some(item)
    }

    fn prefetch(&self) {
        self.desk.prefetch();
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }
}

impl Drop for ThreadPool {
    /// Ends the threads. If jobs are still running their threads are left to end by themselves:
    /// a handler that never returns must not hold up who shuts down.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for thread in &self.threads {
            thread.thread().unpark();
        }
        // A look that was under way, and a whole one.
        for _ in 0..2 {
            while self.desk.poll_returned().is_some() {
                self.in_flight -= 1;
            }
        }
        if self.in_flight == 0 {
            for thread in self.threads.drain(..) {
                // A worker's panics were caught; there is nothing to learn from the result.
                let _ = thread.join();
            }
        }
    }
}

/// One thread's view.
struct Worker {
    index: usize,
    companions: Range<usize>,
    seats: Mailboxes<Job>,
    shared: Arc<Shared>,
    idle: Idle,
}

impl Worker {
    fn work(&self, clock: &impl Clock, waker: &dyn Wake) {
        let mut idle_policy = IdlePolicy::default();
        // Whether it may have been woken for something else than what it finds.
        let mut searched = false;
        // The slot of its seat that comes next.
        let mut next = 0;
        // Jobs of its seat since it looked at other seats, and whose seat that was. That there was
        // nothing in between makes no difference: it may not have been for long enough to look.
        let (mut own_jobs, mut looked_at) = (0, self.index);
        while !self.shared.stop.load(Ordering::Acquire) {
            let mut taken = None;
            if own_jobs == LOOK_EVERY {
                own_jobs = 0;
                taken = self.relieve(&mut looked_at);
            }
            if taken.is_none() {
                taken = self.seats.take(self.index, next);
                match &taken {
                    Some(job) => {
                        next = job.slot() + 1;
                        own_jobs += 1;
                    }
                    None => self.shared.idle[self.index].store(true, Ordering::Relaxed),
                }
            }
            let Some(job) = taken.or_else(|| self.pause(&mut idle_policy, &mut searched)) else {
                continue;
            };
            self.shared.idle[self.index].store(false, Ordering::Relaxed);
            if std::mem::take(&mut searched) {
                fence(Ordering::SeqCst);
                if !self
                    .companions
                    .clone()
                    .all(|seat| self.seats.is_empty(seat))
                {
                    self.shared.wake_one_of(self.companions.clone());
                }
            }
            run(job, clock, waker);
            idle_policy = IdlePolicy::default();
        }
    }

    /// There was nothing: looks on for a moment, then for what others do not get to, then sleeps.
    /// To be told of a job between the look and the sleep is not lost: it ends the sleep at once.
    fn pause(
        &self,
        idle_policy: &mut IdlePolicy,
        searched: &mut bool,
    ) -> Option<ItemGuard<'_, Job>> {
        let next = idle_policy.wait(self.idle);
        if next == Next::Look {
            return None;
        }
        *searched = true;
        if next == Next::LookAround {
            return self.rescue();
        }
        let park = |sure| match sure {
            _ if self.shared.stop.load(Ordering::Acquire) => {}
            true => std::thread::park(),
            false => std::thread::park_timeout(UNSURE_SLEEP),
        };
        let sleepers = &self.shared.sleepers;
        sleepers.sleep(self.index, || self.rescue(), park)
    }

    /// What was given to one of the group and is not begun.
    fn rescue(&self) -> Option<ItemGuard<'_, Job>> {
        let mut seats = self.companions.clone();
        seats.find_map(|seat| self.seats.take(seat, 0))
    }

    /// The same of another one, each in its turn: all but one may be at work.
    fn relieve(&self, looked_at: &mut usize) -> Option<ItemGuard<'_, Job>> {
        let Range { start, end } = self.companions;
        let behind = *looked_at + 1..end;
        let mut others = behind
            .chain(start..*looked_at + 1)
            .filter(|seat| *seat != self.index);
        others.find_map(|seat| {
            let taken = self.seats.take(seat, 0)?;
            *looked_at = seat;
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
mod tests {
    use std::sync::{Barrier, Mutex, mpsc};

    use starling_call::MethodId;
    use starling_io::PeerId;
    use starling_proto::{Msgbuf, RequestId};

    use super::*;
    use crate::admission::Timing;
    use crate::payload::{Payload, PayloadBytes};
    use crate::server::{Answer, RequestInfo};
    use crate::workers::job::WorkerHandler;

    #[derive(Clone)]
    struct Stopped;

    impl Clock for Stopped {
        fn now_ns(&self) -> u64 {
            0
        }
    }

    struct Bell(Mutex<mpsc::Sender<()>>);

    impl Wake for Bell {
        fn wake(&self) {
            // The test may be over.
            let _ = self.0.lock().expect("no panic").send(());
        }
    }

    fn start(config: &WorkerConfig) -> (ThreadPool, mpsc::Receiver<()>) {
        let (bell, rung) = mpsc::channel();
        let bell: Arc<dyn Wake> = Arc::new(Bell(Mutex::new(bell)));
        (
            ThreadPool::new(config, &Stopped, &bell).expect("threads"),
            rung,
        )
    }

    /// The rest of a look that is under way, then a whole one.
    fn look(pool: &mut ThreadPool) -> Option<Box<Job>> {
        pool.poll().or_else(|| pool.poll())
    }

    fn job(bytes: usize, handler: WorkerHandler) -> Box<Job> {
        job_of(1, bytes, handler)
    }

    fn job_of(peer: u32, bytes: usize, handler: WorkerHandler) -> Box<Job> {
        // Zeros that nobody touches take no memory.
        let mut message = Msgbuf::from_vec(vec![0; bytes]);
        let payload = Payload {
            bytes: PayloadBytes::Reassembled(&mut message),
            fields_at: 0,
            body_at: 0,
        };
        let info = RequestInfo {
            method: MethodId(1),
            peer: PeerId(peer),
            timing: Timing::without_deadline(0),
        };
        let message = payload.into_owned(Msgbuf::new());
        let mut job = Job::empty();
        job.fill(RequestId::NONE, handler, message, info, Answer::default());
        job
    }

    #[test]
    fn the_memory_of_waiting_requests_has_a_bound() {
        let (mut pool, rung) = start(&WorkerConfig::new(1, 100));
        let gate = Arc::new(Barrier::new(2));
        let job = |bytes: usize| {
            let gate = Arc::clone(&gate);
            job(
                bytes,
                Arc::new(move |request, _| {
                    request.take();
                    gate.wait();
                }),
            )
        };
        for _ in 0..4 {
            assert!(pool.submit(job(MAX_BYTES / 4)).is_ok());
        }
        assert!(pool.submit(job(1)).is_err());
        gate.wait();
        rung.recv().unwrap();
        assert!(look(&mut pool).is_some());
        assert!(pool.submit(job(MAX_BYTES / 4)).is_ok());
        for _ in 0..4 {
            gate.wait();
            rung.recv().unwrap();
            assert!(look(&mut pool).is_some());
        }
    }

    /// Two jobs are given to each worker; the first of worker 0 ends only when all others have
    /// run, that behind it included.
    #[test]
    fn what_waits_behind_a_blocked_handler_is_run_by_another_worker() {
        for idle in [Idle::default(), Idle::Block] {
            let mut config = WorkerConfig::new(2, 8);
            config.idle = idle;
            let (mut pool, rung) = start(&config);
            let (begun, begins) = mpsc::channel();
            let (ran, runs) = mpsc::channel::<()>();
            let runs = Mutex::new(runs);
            let waits: WorkerHandler = Arc::new(move |_, _| {
                begun.send(()).expect("the test waits");
                let runs = runs.lock().expect("no panic");
                (0..5).for_each(|_| runs.recv().expect("the others run"));
            });
            assert!(pool.submit(job(1, waits)).is_ok());
            begins.recv().expect("it begins");
            let runs: WorkerHandler = Arc::new(move |_, _| ran.send(()).expect("it waits"));
            for _ in 0..5 {
                assert!(pool.submit(job(1, Arc::clone(&runs))).is_ok());
            }
            let mut done = 0;
            while done < 6 {
                rung.recv().expect("something was run");
                while look(&mut pool).is_some() {
                    done += 1;
                }
            }
            assert_eq!(pool.in_flight(), 0);
        }
    }

    /// The dispatcher has not heard yet that the other one is done, so both seem to have one.
    #[test]
    fn a_worker_that_sleeps_is_woken_for_what_waits_behind_a_blocked_one() {
        for idle in [Idle::default(), Idle::Block] {
            let mut config = WorkerConfig::new(2, 8);
            config.idle = idle;
            let (mut pool, rung) = start(&config);
            let gate = Arc::new(Barrier::new(2));
            let (begun, begins) = mpsc::channel();
            let its_gate = Arc::clone(&gate);
            let blocks: WorkerHandler = Arc::new(move |_, _| {
                begun.send(()).expect("the test waits");
                its_gate.wait();
            });
            assert!(pool.submit(job(1, blocks)).is_ok());
            begins.recv().expect("it begins");
            assert!(pool.submit(job(1, Arc::new(|_, _| ()))).is_ok());
            rung.recv().expect("it was run");
            while !pool.shared.sleepers.any() {
                std::thread::yield_now();
            }
            assert!(pool.submit(job(1, Arc::new(|_, _| ()))).is_ok());
            assert_eq!(pool.policy.load(0), 2, "it waits behind the blocked one");
            let patience = std::time::Duration::from_secs(20);
            let run = rung.recv_timeout(patience);
            gate.wait();
            run.expect("it was run while the handler was blocked");
        }
    }

    /// The other worker has its next job before it is done with one, so it never has nothing to do.
    #[test]
    fn what_waits_behind_a_blocked_handler_is_run_although_all_others_are_busy() {
        let (mut pool, rung) = start(&WorkerConfig::new(2, 8));
        let (begun, begins) = mpsc::channel();
        let blocks = || -> (mpsc::Sender<()>, WorkerHandler) {
            let (open, gate) = mpsc::channel();
            let (begun, gate) = (begun.clone(), Mutex::new(gate));
            let handler = move |_: &mut _, _: &mut _| {
                // The test may be over.
                let _ = begun.send(());
                let _ = gate.lock().expect("no panic").recv();
            };
            (open, Arc::new(handler))
        };
        let (_stays_shut, blocked) = blocks();
        let (open, busy) = blocks();
        for handler in [blocked, Arc::clone(&busy)] {
            assert!(pool.submit(job(1, handler)).is_ok());
            begins.recv().expect("it begins");
        }
        let (ran, runs) = mpsc::channel();
        let behind: WorkerHandler = Arc::new(move |_, _| ran.send(()).expect("the test waits"));
        assert!(pool.submit(job(1, behind)).is_ok());
        assert_eq!(pool.policy.load(0), 2, "it is behind the blocked one");
        let mut is_run = false;
        for _ in 0..3 * LOOK_EVERY {
            assert!(pool.submit(job(1, Arc::clone(&busy))).is_ok());
            open.send(()).expect("one waits");
            while look(&mut pool).is_none() {
                rung.recv().expect("it is run");
            }
            is_run = runs.try_recv().is_ok();
            if is_run {
                break;
            }
        }
        assert!(is_run);
    }

    #[test]
    fn an_idle_worker_gets_its_flows_however_much_waits_for_another() {
        let mut config = WorkerConfig::new(2, 1);
        config.mode = crate::jbsq::Mode::Partitioned;
        let (mut pool, _) = start(&config);
        let (_open, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let blocks: WorkerHandler = Arc::new(move |_, _| {
            let _ = gate.lock().expect("no panic").recv();
        });
        let mut taken = 0;
        while pool.submit(job_of(1, 1, Arc::clone(&blocks))).is_ok() {
            taken += 1;
        }
        let (ran, runs) = mpsc::channel();
        let handler: WorkerHandler = Arc::new(move |_, _| ran.send(()).expect("the test waits"));
        let mut flows = 2..20;
        let is_taken = flows.any(|peer| pool.submit(job_of(peer, 1, Arc::clone(&handler))).is_ok());
        assert!(is_taken, "some are the other worker's");
        runs.recv().expect("it is run");
        assert_eq!(taken, 2, "one runs, and one may wait");
    }

    /// Far more jobs than there is room for, from handlers that panic now and then.
    #[test]
    fn every_job_comes_back_once_in_every_mode() {
        use crate::jbsq::Mode;
        use crate::workers::job::JobEnd;

        for (mode, depth) in [
            (Mode::SingleQueue, 1),
            (Mode::SingleQueue, 2),
            (Mode::Grouped(2), 3),
            (Mode::Partitioned, 8),
        ] {
            let mut config = WorkerConfig::new(4, 16);
            (config.mode, config.depth) = (mode, depth);
            let (mut pool, rung) = start(&config);
            let handler: WorkerHandler = Arc::new(|request, reply| {
                assert!(!request.body().len().is_multiple_of(7), "as planned");
                reply.buffer().push(request.body().len() as u8);
            });
            let (mut sent, mut back, mut panics) = (0, vec![0_u32; 200], 0);
            while back.iter().sum::<u32>() < 200 {
                if sent < 200 && pool.in_flight() < 17 {
                    let job = job(sent + 1, Arc::clone(&handler));
                    assert!(
                        pool.submit(job).is_ok(),
                        "at least one runs and 16 may wait"
                    );
                    sent += 1;
                    continue;
                }
                rung.recv().expect("a job was run");
                while let Some(mut job) = look(&mut pool) {
                    back[job.request_bytes - 1] += 1;
                    let (_, answer, end) = job.take_parts();
                    match end {
                        JobEnd::Panicked => panics += 1,
                        JobEnd::Answered => {
                            assert_eq!(answer.message.head(), [job.request_bytes as u8]);
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
            assert!(back.iter().all(|times| *times == 1));
            assert_eq!(panics, 200 / 7);
        }
    }
}
