//! The cost for the dispatch thread of handing a request to a worker and taking it back.
//!
//! Client and server share one thread, the worker has the other core. A wrapper around the pool
//! that ships reads the processor's counter before and after each call of the pool; the cost of a
//! reading is measured just before and subtracted. Only the pool's work counts: choosing the worker
//! (`jbsq`), and the transfer through the caches of two cores and back. Copying the request and
//! sending the answer do not: every handler that does not answer at once needs them.
//!
//! The rate is that of whole calls, with the client's part and the readings of the counter. It
//! includes cache misses that the pool leaves to its caller, such as those of a request that comes
//! back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use starling_endpoint::{
    Dispatch, Idle, Job, ThreadPool, WorkerConfig, WorkerReply, WorkerRequest,
};
use starling_io::{MonotonicClock, PacketIo as _};
use starling_io_shm::{ShmConfig, ShmIo};

use super::caller::Caller;
use super::load::start;
use super::server::ECHO;
use super::settings::Settings;
use crate::benchmark::Context;
use crate::device::{endpoint, failed};
use crate::error::BenchError;
use crate::floor::{BusyWait, Period};
use crate::metric::{Metric, Sample};
use crate::pin::pin_thread;

/// Turns of client and server between two readings of the clock.
const TURNS: usize = 64;

/// Ticks of the counter that the pool took, and the requests that came back.
#[derive(Debug, Default)]
struct Spent {
    ticks: AtomicU64,
    completed: AtomicU64,
}

impl Spent {
    fn so_far(&self) -> (u64, u64) {
        (
            self.ticks.load(Ordering::Relaxed),
            self.completed.load(Ordering::Relaxed),
        )
    }
}

/// A pool whose calls are timed.
struct TimedPool {
    pool: ThreadPool,
    counter: quanta::Clock,
    spent: Arc<Spent>,
}

impl TimedPool {
    fn add_since(&self, begun: u64) {
        let ticks = self.counter.raw().wrapping_sub(begun);
        let before = self.spent.ticks.load(Ordering::Relaxed);
        self.spent.ticks.store(before + ticks, Ordering::Relaxed);
    }
}

impl Dispatch for TimedPool {
    fn submit(&mut self, job: Box<Job>) -> Result<(), Box<Job>> {
        let begun = self.counter.raw();
        let result = self.pool.submit(job);
        self.add_since(begun);
        result
    }

    fn poll(&mut self) -> Option<Box<Job>> {
        let begun = self.counter.raw();
        let job = self.pool.poll();
        // Polls that find nothing are the thread's idle time, and do not count.
        if job.is_some() {
            self.add_since(begun);
            let completed = self.spent.completed.load(Ordering::Relaxed);
            self.spent.completed.store(completed + 1, Ordering::Relaxed);
        }
        job
    }

    fn prefetch(&self) {
        self.pool.prefetch();
    }

    fn in_flight(&self) -> usize {
        self.pool.in_flight()
    }
}

/// The ticks that a reading of the counter adds to an interval between two readings: the median.
fn reading(counter: &quanta::Clock) -> u64 {
    let mut gaps: [u64; 1001] = std::array::from_fn(|_| {
        let begun = counter.raw();
        counter.raw().wrapping_sub(begun)
    });
    gaps.sort_unstable();
    gaps[gaps.len() / 2]
}

/// The dispatch thread's time for each request, with at most `depth` requests at the worker, whose
/// idle policy is `idle`.
pub(super) fn cost(context: &Context, depth: u8, idle: Idle) -> Result<Sample, BenchError> {
    let settings = Settings::one_session();
    let address = format!("shm://starling-bench-dispatch-{}", std::process::id());
    let device = ShmIo::bind(&address, ShmConfig::default()).map_err(failed)?;
    let waker = device.waker();
    let mut server = endpoint(Ok(device), settings.config())?;
    let echo = |request: &mut WorkerRequest, reply: &mut WorkerReply| {
        reply.buffer().extend_from_slice(request.body());
    };
    server.register_worker(ECHO, Arc::new(echo));
    let mut config = WorkerConfig::new(1, 1024);
    (config.depth, config.idle) = (depth, idle);
    // A thread starts on the core of the thread that starts it.
    pin_thread(context.cores.server)?;
    let pool = ThreadPool::new(&config, &MonotonicClock::new(), &waker).map_err(failed);
    pin_thread(context.cores.client)?;
    let spent = Arc::new(Spent::default());
    let counter = quanta::Clock::new();
    let reading = reading(&counter);
    server.set_dispatch(Box::new(TimedPool {
        pool: pool?,
        counter: counter.clone(),
        spent: Arc::clone(&spent),
    }));

    let wait = BusyWait::on(context.cores);
    let mut caller = Caller::<ShmIo>::new(settings, wait, context.network.client())?;
    let session = caller.connect(&address)?;
    start(&mut caller, vec![session], 1)?;
    let mut run = |period: Period| {
        let (ticks, completed) = spent.so_far();
        while !period.is_over() || spent.so_far().1 == completed {
            for _ in 0..TURNS {
                server.poll().map_err(failed)?;
                caller.poll()?;
            }
            caller.failure.take()?;
        }
        let (ticks_now, completed_now) = spent.so_far();
        let requests = completed_now - completed;
        let rate = period.rate_of(requests);
        // Two calls of the pool for each request.
        let ticks = (ticks_now - ticks).saturating_sub(2 * reading * requests);
        let cost = counter.delta_as_nanos(0, ticks) as f64 / requests as f64;
        Ok::<_, BenchError>(vec![(Metric::Cost, cost), (Metric::Rate, rate)])
    };
    run(Period::warm_up(context))?;
    run(Period::measured(context))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_that_find_nothing_do_not_count() {
        let device = ShmIo::client(ShmConfig::default()).expect("a device");
        let config = WorkerConfig::new(1, 1);
        let pool = ThreadPool::new(&config, &MonotonicClock::new(), &device.waker());
        let spent = Arc::new(Spent::default());
        let mut timed = TimedPool {
            pool: pool.expect("a thread"),
            counter: quanta::Clock::new(),
            spent: Arc::clone(&spent),
        };
        assert!(timed.poll().is_none());
        assert_eq!(spent.so_far(), (0, 0));
        assert_eq!(timed.in_flight(), 0);
    }
}
