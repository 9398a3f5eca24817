//! One thread's endpoint on one kind of device, with the connections that its event loop polls.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use starling_endpoint::{EndpointConfig, Idle, Secrets, Stats, Turn, WorkerConfig};
use starling_io::{DeviceReport, IoError, MonotonicClock, Wake};
use starling_message::protobuf::DecodeLimits;

use crate::address::Address;
use crate::budgets::Budgets;
use crate::channel_factory::ChannelFactory;
use crate::connection::PollQueue;
use crate::connections::{Connections, SessionChanges};
use crate::device::{Device, Raw};
use crate::error::Error;
use crate::executor::Executor;
use crate::health::Health;
use crate::interceptor::Interceptors;
use crate::metrics::TurnEnds;
use crate::plane::DecodedRequests;
use crate::registry::Registry;
use crate::server::serve_on;
use crate::stats::ThreadStats;
use crate::streaming::{StreamThreads, Streams};
use crate::threads::{self, Questions, ThreadRole};
use crate::time::Time;
use crate::wait::{InTurn, Runs};

/// What clients have an endpoint hold that is counted outside of it.
pub(crate) struct Served {
    pub(crate) streams: Arc<Streams>,
    pub(crate) stream_threads: Arc<StreamThreads>,
    pub(crate) decoded: DecodedRequests,
    pub(crate) health: Health,
    pub(crate) budgets: Budgets,
}

pub(crate) struct Core<I: Device> {
    pub(crate) raw: Raw<I>,
    pub(crate) executor: Arc<Executor>,
    pub(crate) connections: Arc<Connections>,
    pub(crate) config: EndpointConfig,
    /// Of an endpoint that serves.
    pub(crate) served: Option<Served>,
    /// What others want to know.
    pub(crate) questions: Arc<Questions>,
    /// If metrics are enabled.
    turn_ends: Option<TurnEnds>,
    /// Calls may be counted at the end of the next turn.
    counts_later: bool,
    /// There are calls of the turn before.
    has_uncounted: bool,
    queue: Arc<PollQueue>,
    is_opening: bool,
    /// Client sessions of the endpoint that had ended, or begun to drain, when the connections were last polled.
    ended_seen: u64,
    /// The version of the protocol's session groups then.
    grown_seen: u64,
    woken: Arc<Woken>,
}

impl<I: Device> Core<I> {
    pub(crate) fn new(
        io: I,
        clock: MonotonicClock,
        time: &Time,
        config: &EndpointConfig,
        decode: DecodeLimits,
    ) -> Result<Self, Error> {
        let (secrets, seed) = secrets()?;
        let mut config = config.clone();
        if time.is_manual() {
            // By a clock that stands still, the time to spin is never over.
            config.idle = Idle::Block;
        }
        let raw = Raw::new(io, clock.clone(), config.clone(), secrets)?;
        let turn_ends = TurnEnds::of_endpoint();
        let turns = turn_ends.as_ref().map(|ends| Arc::clone(&ends.turns));
        let executor = Executor::new(
            raw.local(),
            raw.large_buffers(),
            clock,
            time.clone(),
            seed,
            turns,
            decode,
        );
        let queue = Arc::new(PollQueue::default());
        let connections = Connections::new(&executor, &queue, &config.protocol);
        let woken = Arc::new(Woken {
            flag: AtomicBool::new(false),
            device: raw.waker(),
        });
        Ok(Self {
            raw,
            executor,
            connections,
            config,
            served: None,
            questions: Arc::default(),
            turn_ends,
            counts_later: false,
            has_uncounted: false,
            queue,
            is_opening: false,
            ended_seen: 0,
            grown_seen: 0,
            woken,
        })
    }

    /// One turn of the endpoint, and then of its connections.
    #[inline]
    pub(crate) fn turn(&mut self) -> Result<Turn, IoError> {
        self.executor.begin_turn();
        let in_turn = InTurn::begin(&self.executor);
        let turn = self.raw.poll();
        drop(in_turn);
        self.end_turn();
        let mut turn = turn?;
        if self.questions.is_pending() {
            self.answer_questions();
        }
        if let Some(served) = &self.served
            && served.streams.is_sweep_due()
        {
            self.sweep_streams();
        }
        if self.poll_connections() {
            // Another turn flushes what the connections sent, before the thread may sleep.
            turn.events += 1;
        }
        Ok(turn)
    }

    /// From now on, the calls of a turn are counted when the next one has sent what it had to, with those of that one:
    /// a caller that makes one call after the other does not wait for it. For an endpoint that does not serve.
    /// [`Core::count_left`] has to come before a sleep, and whoever reads the counts has a turn taken.
    pub(crate) fn count_later(&mut self) {
        self.counts_later = true;
    }

    /// Counts the calls of a turn that has ended, if they are measured.
    #[inline]
    fn end_turn(&mut self) {
        let Some(ends) = &mut self.turn_ends else {
            return;
        };
        if !ends.are_due() {
            return;
        }
        self.has_uncounted = self.counts_later && !self.has_uncounted;
        if !self.has_uncounted {
            ends.end(|| self.executor.now_ns().saturating_sub(self.raw.turn_ns()));
        }
    }

    /// Counts the calls that the last turn has left to the next one.
    #[inline]
    pub(crate) fn count_left(&mut self) {
        if self.has_uncounted {
            self.end_turn();
        }
    }

    #[cold]
    fn answer_questions(&mut self) {
        let questions = Arc::clone(&self.questions);
        questions.answer(|wanted| self.report(wanted));
    }

    #[cold]
    fn sweep_streams(&self) {
        if let Some(served) = &self.served {
            let raw = &self.raw;
            (served.streams).sweep(|within_ns| raw.backlogged(within_ns));
        }
    }

    /// Polls the connections if one of them is queued or a session has ended. Returns whether
    /// anything changed.
    #[inline]
    fn poll_connections(&mut self) -> bool {
        // Not the protocol's count of sessions: the protocol drops a session before the endpoint
        // hears of it.
        let stats = self.raw.stats();
        let ended = stats.sessions_ended + stats.sessions_draining;
        let grown = self.raw.protocol().group_version();
        if ended == self.ended_seen && grown == self.grown_seen && self.queue.is_empty() {
            self.is_opening = false;
            return false;
        }
        let changes = SessionChanges {
            have_ended: ended != std::mem::replace(&mut self.ended_seen, ended),
            have_grown: grown != std::mem::replace(&mut self.grown_seen, grown),
        };
        let changed = (self.connections).poll(&self.queue, &mut self.raw, changes);
        self.is_opening = !self.queue.is_empty();
        changed
    }

    /// Whether a connection opened when the last turn ended.
    pub(crate) fn is_opening(&self) -> bool {
        self.is_opening
    }

    /// Adds the endpoint to those of the process that may be asked what they have.
    pub(crate) fn be_known(&self, role: ThreadRole) {
        let waker = self.raw.waker();
        threads::add(role, &self.questions, move || waker.wake());
    }

    /// Waits as the endpoint does, unless a connection has to be polled.
    pub(crate) fn wait(&mut self, limit: Option<Duration>) -> Result<(), IoError> {
        if self.queue.has_new() {
            return Ok(());
        }
        self.raw.wait(limit)
    }

    /// Counters of the endpoint and its device.
    pub(crate) fn stats(&self) -> ThreadStats {
        ThreadStats {
            address: self.raw.local_address(),
            endpoint: *self.raw.stats(),
            protocol: *self.raw.protocol().stats(),
            device: self.raw.io().report(),
        }
    }

    /// Runs until `future` is ready.
    fn block_on(&mut self, mut future: Pin<&mut dyn Future<Output = ()>>) -> Result<(), IoError> {
        let _runs = Runs::begin(&self.executor);
        let waker = Waker::from(Arc::clone(&self.woken));
        let mut cx = Context::from_waker(&waker);
        self.woken.flag.store(true, Ordering::Relaxed);
        loop {
            if self.woken.flag.load(Ordering::Acquire) {
                self.woken.flag.store(false, Ordering::Relaxed);
                self.raw.share_turn_time();
                self.executor.begin_turn();
                // The poll that follows sees what a wake between the load and the store announces.
                if future.as_mut().poll(&mut cx).is_ready() {
                    self.end_turn();
                    return Ok(());
                }
                self.poll_connections();
                self.turn()?;
            } else if self.turn()?.is_idle() && !self.woken.flag.load(Ordering::Acquire) {
                self.raw.wait(None)?;
            }
        }
    }

    /// From now on time passes by itself: nobody has to move it for the end.
    pub(crate) fn let_time_pass(&mut self) {
        if let Some(clock) = self.executor.time.running_clock() {
            self.raw.set_clock(clock);
        }
    }

    /// Finishes the work in progress, at most for `timeout`. True if all of it was finished.
    pub(crate) fn drain(&mut self, timeout: Duration) -> Result<bool, IoError> {
        self.let_time_pass();
        let begun = std::time::Instant::now();
        self.raw.start_drain();
        while !self.is_drained() {
            let left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                break;
            }
            // A turn in which only a future ran counts as idle, and that may have ended a stream.
            if self.turn()?.is_idle() && !self.is_drained() {
                self.raw.wait(Some(left))?;
            }
        }
        self.raw.drain(timeout.saturating_sub(begun.elapsed()))
    }

    /// A stream may have its end left to send while the client has no request here that it could answer.
    fn is_drained(&self) -> bool {
        let served = self.served.as_ref();
        self.raw.is_drained() && served.is_none_or(|served| served.streams.is_empty())
    }
}

/// The core of an endpoint whose device is chosen at run time. One dynamic call for each turn.
pub(crate) trait AnyCore: Send {
    fn channels(&self, own: Address, interceptors: Interceptors) -> Arc<ChannelFactory>;
    fn serve(
        &mut self,
        registry: &Registry,
        channels: &Arc<ChannelFactory>,
        workers: &WorkerConfig,
    ) -> Result<(), Error>;
    fn turn(&mut self) -> Result<Turn, IoError>;
    fn wait(&mut self, limit: Option<Duration>) -> Result<(), IoError>;
    fn run_until(&mut self, done: &mut dyn FnMut() -> bool) -> Result<(), IoError>;
    fn block_on(&mut self, future: Pin<&mut dyn Future<Output = ()>>) -> Result<(), IoError>;
    fn drain(&mut self, timeout: Duration) -> Result<bool, IoError>;
    fn waker(&self) -> Arc<dyn Wake>;
    fn local_address(&self) -> String;
    fn be_known(&self, role: ThreadRole);
    fn endpoint_stats(&self) -> Stats;
    fn report(&self) -> DeviceReport;
    /// The `Core` of its device.
    fn as_any(&mut self) -> &mut dyn Any;
}

impl<I: Device> AnyCore for Core<I> {
    fn channels(&self, own: Address, interceptors: Interceptors) -> Arc<ChannelFactory> {
        ChannelFactory::new(self, own, interceptors)
    }

    fn serve(
        &mut self,
        registry: &Registry,
        channels: &Arc<ChannelFactory>,
        workers: &WorkerConfig,
    ) -> Result<(), Error> {
        serve_on(self, registry, channels, workers)
    }

    #[inline]
    fn turn(&mut self) -> Result<Turn, IoError> {
        self.turn()
    }

    fn wait(&mut self, limit: Option<Duration>) -> Result<(), IoError> {
        self.wait(limit)
    }

    fn run_until(&mut self, done: &mut dyn FnMut() -> bool) -> Result<(), IoError> {
        loop {
            let turn = self.turn()?;
            if done() {
                return Ok(());
            }
            if turn.is_idle() {
                self.wait(None)?;
            }
        }
    }

    fn block_on(&mut self, future: Pin<&mut dyn Future<Output = ()>>) -> Result<(), IoError> {
        self.block_on(future)
    }

    fn drain(&mut self, timeout: Duration) -> Result<bool, IoError> {
        self.drain(timeout)
    }

    fn waker(&self) -> Arc<dyn Wake> {
        self.raw.waker()
    }

    fn local_address(&self) -> String {
        self.raw.local_address()
    }

    fn be_known(&self, role: ThreadRole) {
        self.be_known(role);
    }

    fn endpoint_stats(&self) -> Stats {
        *self.raw.stats()
    }

    fn report(&self) -> DeviceReport {
        self.raw.io().report()
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }
}

/// The waker of the future in [`Core::block_on`].
struct Woken {
    flag: AtomicBool,
    device: Arc<dyn Wake>,
}

impl std::task::Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.flag.swap(true, Ordering::AcqRel) {
            self.device.wake();
        }
    }
}

/// Fresh secrets and a seed from the operating system's randomness.
fn secrets() -> Result<(Secrets, u64), Error> {
    let mut bytes = [0u8; 40];
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::system("read the system's randomness", error)),
        }
    }
    let (token_key, rest) = bytes.split_at(16);
    let (cookie_key, seed) = rest.split_at(16);
    let secrets = Secrets {
        token_key: token_key.try_into().expect("16 bytes"),
        cookie_key: cookie_key.try_into().expect("16 bytes"),
    };
    Ok((
        secrets,
        u64::from_le_bytes(seed.try_into().expect("8 bytes")),
    ))
}
