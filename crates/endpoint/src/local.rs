//! Futures on an endpoint: calls, sleeps, spawned tasks, all polled by the endpoint's event loop.
//!
//! A future lives longer than any borrow of the endpoint. So it leaves commands in a queue, and the
//! event loop leaves results in a table and wakes the task. Both are in [`Shared`], behind one
//! mutex, which is contended only if a handle is used in a thread that does not run the endpoint.
//! The raw API does not use it.
//!
//! ```text
//!  task ── commands ──▶ Shared ──▶ event loop ──▶ protocol
//!    ▲                    │
//!    └── waker ◀── results, sleeps ◀── completions, time
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use starling_call::{CallOptions, MethodId, OwnedMessage, Status};
use starling_proto::{Msgbuf, PeerId, Prefix, SessionId};

use crate::client::CallId;
use crate::convert::prefix_of;
use crate::server::{Abandoned, DeferredReply};
use crate::slab::Slab;
use crate::sleep_state::SleepState;
use crate::timers::Timers;

/// Futures of each kind (calls, sleeps, tasks) that one endpoint may have at once.
pub(crate) const MAX_FUTURES: usize = 1 << 24;
/// Buffers that are kept for the next calls, at most.
const SPARE_BUFFERS: usize = 64;

pub(crate) type LocalFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A future to start, and the peer whose request it serves, if it serves one.
pub(crate) type Spawned = (LocalFuture, Option<PeerId>);

/// A request of a future to the event loop.
pub(crate) enum Command {
    Call {
        key: u64,
        session: SessionId,
        message: Msgbuf,
        prefix: Prefix,
        timeout: Option<Duration>,
    },
    Cancel(CallId),
    Close(SessionId),
    Complete(DeferredReply, Result<(), Status>),
}

enum CallState {
    /// Not over. The call's id is present once the command was executed.
    Waiting(Option<CallId>, Option<Waker>),
    Over(Result<OwnedMessage, Status>),
}

#[derive(Default)]
struct Sleeper {
    /// Its end is in `sleeps`.
    armed: bool,
    over: bool,
    waker: Option<Waker>,
}

struct State {
    commands: VecDeque<Command>,
    spawned: Vec<Spawned>,
    calls: Slab<CallState>,
    sleepers: Slab<Sleeper>,
    sleeps: Timers,
    /// Keys and durations of sleeps that begin when the event loop takes them in.
    begun: Vec<(u64, u64)>,
    spare: Vec<Msgbuf>,
    closed: bool,
}

/// The state that the futures of an endpoint share with its event loop.
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Whether there are commands or spawned futures.
    busy: AtomicBool,
    /// When the next sleep ends.
    alarm_ns: AtomicU64,
    /// The time of the turn in which futures were last polled.
    turn_ns: AtomicU64,
    /// The endpoint's own: identifies the deferred replies that came from it.
    abandoned: Arc<Abandoned>,
    sleep: Arc<SleepState>,
}

impl Shared {
    pub(crate) fn new(abandoned: Arc<Abandoned>, sleep: Arc<SleepState>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                commands: VecDeque::new(),
                spawned: Vec::new(),
                calls: Slab::new(MAX_FUTURES),
                sleepers: Slab::new(MAX_FUTURES),
                sleeps: Timers::default(),
                begun: Vec::new(),
                spare: Vec::new(),
                closed: false,
            }),
            busy: AtomicBool::new(false),
            alarm_ns: AtomicU64::new(u64::MAX),
            turn_ns: AtomicU64::new(0),
            abandoned,
            sleep,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Has the event loop look for commands and spawned futures. The caller holds the lock under
    /// which the event loop finds that there are none.
    fn set_busy(&self) {
        if !self.busy.load(Ordering::Relaxed) {
            self.busy.store(true, Ordering::SeqCst);
            self.sleep.leave_work();
        }
    }

    /// Futures are polled next, in a turn of this time.
    #[inline]
    pub(crate) fn set_turn(&self, now_ns: u64) {
        self.turn_ns.store(now_ns, Ordering::Relaxed);
    }

    /// When the next sleep ends, at the earliest.
    pub(crate) fn alarm_ns(&self) -> u64 {
        self.alarm_ns.load(Ordering::Relaxed)
    }

    /// Whether [`Shared::take_spawned`] or [`Shared::poll_command`] would return something.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::SeqCst)
    }

    pub(crate) fn take_spawned(&self) -> Vec<Spawned> {
        std::mem::take(&mut self.lock().spawned)
    }

    pub(crate) fn poll_command(&self) -> Option<Command> {
        let mut state = self.lock();
        let command = state.commands.pop_front();
        if command.is_none() {
            let busy = !state.spawned.is_empty() || !state.begun.is_empty();
            self.busy.store(busy, Ordering::Relaxed);
        }
        command
    }

    fn push(&self, command: Command) {
        let mut state = self.lock();
        if state.closed {
            // The borrow ends before the command is dropped: a deferred reply has a destructor.
            drop(state);
            return;
        }
        state.commands.push_back(command);
        self.set_busy();
    }

    /// Whether the call's future still exists.
    pub(crate) fn has_call(&self, key: u64) -> bool {
        self.lock().calls.get(key).is_some()
    }

    /// Sets the call of a waiting future, so that dropping the future cancels the call.
    pub(crate) fn set_call(&self, key: u64, call: CallId) {
        if let Some(CallState::Waiting(id, _)) = self.lock().calls.get_mut(key) {
            *id = Some(call);
        }
    }

    /// Hands the end of a call to its future, if the future still exists.
    pub(crate) fn finish(&self, key: u64, result: Result<OwnedMessage, Status>) {
        let mut state = self.lock();
        let Some(call) = state.calls.get_mut(key) else {
            return;
        };
        let before = std::mem::replace(call, CallState::Over(result));
        drop(state);
        if let CallState::Waiting(_, Some(waker)) = before {
            waker.wake();
        }
    }

    /// Keeps a buffer for a later call. Gives it back if there are enough.
    pub(crate) fn keep(&self, mut message: Msgbuf) -> Option<Msgbuf> {
        let mut state = self.lock();
        if state.spare.len() >= SPARE_BUFFERS {
            return Some(message);
        }
        message.clear();
        state.spare.push(message);
        None
    }

    /// Begins the sleeps that were first polled since the last call.
    pub(crate) fn arm_sleepers(&self, now_ns: u64) {
        let State {
            begun,
            sleeps,
            sleepers,
            ..
        } = &mut *self.lock();
        for (key, ns) in begun.drain(..) {
            let Some(sleeper) = sleepers.get_mut(key) else {
                continue;
            };
            sleeper.armed = true;
            sleeps.arm(now_ns.saturating_add(ns), key, |key| {
                sleepers.get(key).is_some_and(|sleeper| !sleeper.over)
            });
            self.alarm_ns.store(sleeps.earliest_ns(), Ordering::Relaxed);
        }
    }

    /// Wakes the tasks whose sleep is over; returns how many.
    pub(crate) fn wake_sleepers(&self, now_ns: u64) -> usize {
        // Without the lock: most turns of an endpoint with requests that wait come here.
        if self.alarm_ns() > now_ns {
            return 0;
        }
        let mut woken = 0;
        loop {
            let mut state = self.lock();
            let Some(key) = state.sleeps.pop_due(now_ns) else {
                self.alarm_ns
                    .store(state.sleeps.earliest_ns(), Ordering::Relaxed);
                return woken;
            };
            let Some(sleeper) = state.sleepers.get_mut(key) else {
                continue;
            };
            sleeper.over = true;
            let waker = sleeper.waker.take();
            state.sleeps.disarm();
            drop(state);
            woken += 1;
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// When the next sleep ends.
    pub(crate) fn next_sleep(&self) -> Option<u64> {
        let State {
            sleeps, sleepers, ..
        } = &mut *self.lock();
        sleeps.next(|key| sleepers.get(key).is_some_and(|sleeper| !sleeper.over))
    }

    /// Ends all calls, because the endpoint is dropped.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let spawned = std::mem::take(&mut state.spawned);
        let commands = std::mem::take(&mut state.commands);
        let wakers: Vec<Waker> = state
            .calls
            .values_mut()
            .filter_map(|call| {
                let over = CallState::Over(Err(closed()));
                match call {
                    CallState::Waiting(..) => match std::mem::replace(call, over) {
                        CallState::Waiting(_, waker) => waker,
                        CallState::Over(_) => None,
                    },
                    CallState::Over(_) => None,
                }
            })
            .collect();
        drop(state);
        // Without the borrow: their destructors may call back.
        drop(spawned);
        drop(commands);
        wakers.into_iter().for_each(Waker::wake);
    }
}

fn closed() -> Status {
    Status::cancelled("the endpoint was dropped")
}

/// A handle to use an endpoint from futures. Cheap to clone. In a thread that does not run the
/// endpoint it wakes the one that does.
#[derive(Clone)]
pub struct LocalHandle {
    shared: Arc<Shared>,
}

impl fmt::Debug for LocalHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalHandle(..)")
    }
}

impl LocalHandle {
    pub(crate) fn of(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
        }
    }

    /// The time of the turn in which futures were last polled, in nanoseconds of the endpoint's clock.
    #[inline]
    pub fn turn_ns(&self) -> u64 {
        self.shared.turn_ns.load(Ordering::Relaxed)
    }

    /// Makes a call whose body `build` appends to its buffer. The call begins whether or not the
    /// future is polled, so several calls can be outstanding. Dropping the future cancels the call.
    pub fn call(
        &self,
        session: SessionId,
        method: MethodId,
        options: &CallOptions,
        build: impl FnOnce(&mut Vec<u8>),
    ) -> LocalCall {
        let spare = self.shared.lock().spare.pop();
        let mut message = spare.unwrap_or_default();
        let head = message.head_mut();
        // The event loop writes the time of the call when it issues the call.
        let prefix = prefix_of(options.put_header(method, head, 0));
        build(head);
        assert!(
            head.len() >= usize::from(prefix.len),
            "`build` may only append"
        );
        self.issue(session, message, prefix, options.timeout)
    }

    /// Makes a call with a message built elsewhere, whose first [`CallOptions::header_len`] bytes
    /// are room for the call header.
    ///
    /// # Panics
    /// If the message is shorter than that.
    pub fn call_message(
        &self,
        session: SessionId,
        method: MethodId,
        options: &CallOptions,
        mut message: Msgbuf,
    ) -> LocalCall {
        let mut header = Vec::with_capacity(options.header_len());
        let prefix = prefix_of(options.put_header(method, &mut header, 0));
        message.head_mut()[..header.len()].copy_from_slice(&header);
        self.issue(session, message, prefix, options.timeout)
    }

    fn issue(
        &self,
        session: SessionId,
        message: Msgbuf,
        prefix: Prefix,
        timeout: Option<Duration>,
    ) -> LocalCall {
        let mut state = self.shared.lock();
        let call = if state.closed {
            CallState::Over(Err(closed()))
        } else {
            CallState::Waiting(None, None)
        };
        let key = state
            .calls
            .insert(call)
            .unwrap_or_else(|_| panic!("{MAX_FUTURES} calls in futures at once"));
        drop(state);
        self.shared.push(Command::Call {
            key,
            session,
            message,
            prefix,
            timeout,
        });
        LocalCall {
            shared: Arc::clone(&self.shared),
            key,
        }
    }

    /// Runs a future on this endpoint, whenever the endpoint is polled. The future is
    /// dropped with the endpoint. If it panics, it is dropped and the endpoint stays usable. While
    /// there are 2^24 such futures, a further one begins when one of them has ended.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.spawn_with(future, None);
    }

    /// The same for a future that serves a request of a peer.
    pub(crate) fn spawn_with(
        &self,
        future: impl Future<Output = ()> + Send + 'static,
        peer: Option<PeerId>,
    ) {
        let mut state = self.shared.lock();
        if state.closed {
            drop(state);
            drop(future);
            return;
        }
        state.spawned.push((Box::pin(future), peer));
        self.shared.set_busy();
    }

    /// A future that is ready `duration` after it was first polled, by the endpoint's clock.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep {
            shared: Arc::clone(&self.shared),
            duration,
            key: None,
        }
    }

    /// Answers a deferred request with what `build` appends to the response's buffer.
    ///
    /// # Panics
    /// If the request arrived at another endpoint.
    pub fn complete(&self, mut reply: DeferredReply, build: impl FnOnce(&mut Vec<u8>)) {
        build(reply.buffer());
        self.complete_with(reply, Ok(()));
    }

    /// Answers a deferred request with what is in its buffer, or with a status.
    ///
    /// # Panics
    /// If the request arrived at another endpoint.
    pub fn complete_with(&self, reply: DeferredReply, result: Result<(), Status>) {
        // Checked here, so that the panic names the caller.
        reply.assert_of(&self.shared.abandoned);
        self.shared.push(Command::Complete(reply, result));
    }

    /// Closes a session. The calls outstanding on it end with CANCELLED.
    pub fn close(&self, session: SessionId) {
        self.shared.push(Command::Close(session));
    }
}

/// A call, as a future. Dropping it cancels the call.
#[must_use = "dropping the future cancels the call"]
pub struct LocalCall {
    shared: Arc<Shared>,
    key: u64,
}

impl fmt::Debug for LocalCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalCall(..)")
    }
}

impl Future for LocalCall {
    type Output = Result<OwnedMessage, Status>;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let mut state = self.shared.lock();
        match state.calls.get_mut(self.key) {
            Some(CallState::Waiting(_, waker)) => {
                keep_waker(waker, cx.waker());
                Poll::Pending
            }
            Some(CallState::Over(_)) => match state.calls.remove(self.key) {
                Some(CallState::Over(result)) => Poll::Ready(result),
                _ => unreachable!("it was over"),
            },
            None => panic!("polled after it was ready"),
        }
    }
}

impl Drop for LocalCall {
    fn drop(&mut self) {
        let call = self.shared.lock().calls.remove(self.key);
        // A call without an id is still a command, which finds that its future is gone.
        if let Some(CallState::Waiting(Some(call), _)) = call {
            self.shared.push(Command::Cancel(call));
        }
    }
}

/// A sleep, as a future.
#[must_use = "futures do nothing unless polled"]
pub struct Sleep {
    shared: Arc<Shared>,
    duration: Duration,
    key: Option<u64>,
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep")
            .field("duration", &self.duration)
            .finish_non_exhaustive()
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let shared = Arc::clone(&self.shared);
        let State {
            begun, sleepers, ..
        } = &mut *shared.lock();
        let ns = u64::try_from(self.duration.as_nanos()).unwrap_or(u64::MAX);
        let key = *self.key.get_or_insert_with(|| {
            let key = sleepers
                .insert(Sleeper::default())
                .unwrap_or_else(|_| panic!("{MAX_FUTURES} sleeps at once"));
            begun.push((key, ns));
            shared.set_busy();
            key
        });
        match sleepers.get_mut(key) {
            Some(Sleeper {
                over: false, waker, ..
            }) => {
                keep_waker(waker, cx.waker());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            let mut state = self.shared.lock();
            let sleeper = state.sleepers.remove(key);
            if sleeper.is_some_and(|s| s.armed && !s.over) {
                state.sleeps.disarm();
            }
        }
    }
}

fn keep_waker(kept: &mut Option<Waker>, waker: &Waker) {
    match kept {
        Some(kept) => kept.clone_from(waker),
        None => *kept = Some(waker.clone()),
    }
}
