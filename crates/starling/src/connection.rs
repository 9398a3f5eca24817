//! A connection to one address: its session, when it connects again, and how each method's messages
//! are encoded.
//!
//! ```text
//!                                       failed: the next target
//!                                     ┌────────────────┐
//!        a call          resolved     ▼    connecting  │   connected
//!   Idle ───────▶ Resolving ─────▶ Wanted ────────▶ Opening ─────────▶ Open ──┐
//!    ▲             ▲     │            │                │                      │
//!    │      a call │     ▼ failed     ▼ the last failed▼                      │
//!    │             └───────────── Down ────────────────┘                      │ session ended
//!    └────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A session with a managed service is for another server: it is open when the service says that it has reached that
//! (`starling.control.Target/Reach`).
//!
//! A server that shuts down says so while the session is open. The session then carries on the streams that have
//! begun, and takes no new calls.
//!
//! A host name stands for several addresses, the targets. A target that refuses or does not answer is
//! followed by the next one.
//!
//! After the n-th failure in a row, attempts pause for 2^n times 10 ms, at most 2 s, give or take a
//! quarter. The jitter keeps the clients of a restarted server from connecting all at once.
//!
//! Before the first call of a method in a session, the connection asks the server for its version of
//! the method (`starling.reflection.Reflection/Bind`). If both versions are equal, messages go in the
//! native layout. If they differ and are compatible by protobuf's rules, messages go in protobuf. Else
//! the client refuses calls of that method, naming the field.

mod opening;
mod poll_queue;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use starling_compress::AlgorithmSet;
use starling_endpoint::{Code, Encoding, OpenError, SessionId, SessionState, Status};
use starling_message::MethodDescriptor;

use crate::address::Address;
use crate::binding::{self, IdHasher};
use crate::channel_state::{ChannelState, StateCell};
use crate::coding::packed_by;
use crate::executor::Executor;
use crate::lookup;
use crate::managed::has_target;
use crate::metrics::{ClientMetrics, SharedRecorders};
use crate::plane::OutgoingCall;
use crate::streaming::StreamSlots;

pub(crate) use opening::Patience;
pub(crate) use poll_queue::PollQueue;

/// The pause after the first failure.
const BACKOFF_MIN_NS: u64 = 10_000_000;
/// The longest pause.
const BACKOFF_MAX_NS: u64 = 2_000_000_000;
/// The pause before a server that answers but refuses a Bind call is asked again.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
enum Phase {
    Idle,
    /// A thread resolves the host's name.
    Resolving,
    /// The event loop is to open a session.
    Wanted,
    Opening(SessionId),
    /// The session is with a service, which is asked whether it has one with the server.
    Reaching(SessionId),
    Open(SessionId),
    /// The last attempt failed. There is no other before `until_ns`.
    Down {
        until_ns: u64,
        error: Status,
    },
}

/// How messages of a method are encoded in the current session.
#[derive(Clone, Debug)]
enum Binding {
    Requested,
    Bound(Encoding),
    /// The schemas do not match.
    Refused(Status),
    /// The Bind call failed. The next call asks again.
    Failed(Status),
}

struct State {
    phase: Phase,
    /// A call failed as if the session had ended.
    suspected: bool,
    /// The session is open, and its server shuts down.
    draining: bool,
    failures: u32,
    /// Where to open a session: at the first now, at the others if that fails.
    targets: VecDeque<String>,
    /// Why the earlier targets failed.
    failed_targets: Vec<String>,
    bindings: HashMap<u32, Binding, IdHasher>,
    /// The algorithms that the server has, if it has said so in this session.
    accepts: Option<AlgorithmSet>,
    waiters: Vec<Waker>,
    /// Where other threads read the state.
    published: Option<Arc<StateCell>>,
    /// What bounds the streams of its session.
    stream_slots: Arc<StreamSlots>,
}

pub(crate) struct Connection {
    address: Address,
    executor: Arc<Executor>,
    /// Weak, because the queue owns the connections in it.
    queue: Weak<PollQueue>,
    /// Of its calls, if they are measured.
    pub(crate) metrics: Option<Arc<ClientMetrics>>,
    /// Of its streams.
    pub(crate) recorders: SharedRecorders,
    state: Mutex<State>,
    /// Counts the changes of phase, suspicion and bindings, before each, with the lock.
    version: AtomicU64,
}

impl Connection {
    pub(crate) fn new(
        address: Address,
        executor: Arc<Executor>,
        queue: Weak<PollQueue>,
        metrics: Option<Arc<ClientMetrics>>,
        stream_slots: Arc<StreamSlots>,
    ) -> Self {
        Self {
            metrics,
            recorders: SharedRecorders::default(),
            address,
            executor,
            queue,
            state: Mutex::new(State {
                phase: Phase::Idle,
                suspected: false,
                draining: false,
                failures: 0,
                targets: VecDeque::new(),
                failed_targets: Vec::new(),
                bindings: HashMap::default(),
                accepts: None,
                waiters: Vec::new(),
                published: None,
                stream_slots,
            }),
            version: AtomicU64::new(1),
        }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Where it stands.
    pub(crate) fn state(&self) -> ChannelState {
        self.state.lock().publish().0
    }

    /// Publishes its state to other threads from now on.
    pub(crate) fn publish_to(&self, cell: Arc<StateCell>) {
        self.state.lock().published = Some(cell);
    }

    // ---- for callers ----

    /// Another number after each change of what [`Connection::ready`] returns.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The state, to change it.
    fn change(&self) -> MutexGuard<'_, State> {
        let state = self.state.lock();
        self.version.fetch_add(1, Ordering::AcqRel);
        state
    }

    /// The session and the encoding, if a call of this method can be made now. `continues`: it is one of a
    /// stream that has begun.
    #[inline]
    pub(crate) fn ready(&self, method: u32, continues: bool) -> Option<(SessionId, Encoding)> {
        let state = self.state.lock();
        match (&state.phase, state.bindings.get(&method)) {
            (Phase::Open(session), Some(Binding::Bound(encoding)))
                if state.is_usable(continues) =>
            {
                Some((*session, *encoding))
            }
            _ => None,
        }
    }

    /// The algorithms that the server has. None if it has not said so in this session.
    pub(crate) fn accepts(&self) -> Option<AlgorithmSet> {
        self.state.lock().accepts
    }

    /// Whether the server takes the request as it is packed.
    #[inline]
    pub(crate) fn takes(&self, call: &OutgoingCall) -> bool {
        match packed_by(&call.message) {
            None => true,
            Some(algorithm) => self.accepts().is_some_and(|accepts| accepts.has(algorithm)),
        }
    }

    /// Takes in that a call failed. If the session may have ended, the event loop checks it before
    /// the next call.
    pub(crate) fn suspect(self: &Arc<Self>, code: Code) {
        if code != Code::Unavailable {
            return;
        }
        let mut state = self.change();
        if matches!(state.phase, Phase::Open(_)) && !state.suspected {
            state.suspected = true;
            self.enqueue();
        }
    }

    /// Has the event loop poll this connection. Has no effect after the end of the endpoint.
    fn enqueue(self: &Arc<Self>) {
        if let Some(queue) = self.queue.upgrade() {
            queue.push(self);
        }
    }

    /// Waits until a call of this method can be made. A method whose types are not known here goes in
    /// protobuf. `continues`: it is one of a stream that has begun.
    pub(crate) async fn prepare(
        self: &Arc<Self>,
        method: Option<&'static MethodDescriptor>,
        patience: Patience,
        continues: bool,
    ) -> Result<(SessionId, Encoding), Status> {
        let mut lost = false;
        loop {
            let session = self.open_for(patience, continues).await?;
            let Some(method) = method else {
                return Ok((session, Encoding::Protobuf));
            };
            match self.bind(session, method).await {
                Ok(encoding) if self.session() == Some(session) => return Ok((session, encoding)),
                Ok(_) => {}
                // The session ended before any of the call was sent: another session may do.
                Err(status) if !lost && status.code() == Code::Unavailable => {
                    self.suspect(status.code());
                    lost = true;
                }
                Err(status)
                    if patience == Patience::Endless && status.code() == Code::Unavailable =>
                {
                    self.suspect(status.code());
                    self.executor.local.sleep(REFUSED_PAUSE).await;
                }
                Err(status) => return Err(status),
            }
        }
    }

    async fn bind(
        self: &Arc<Self>,
        session: SessionId,
        method: &'static MethodDescriptor,
    ) -> Result<Encoding, Status> {
        let mut requested = false;
        loop {
            let (binding, version) = {
                let state = self.state.lock();
                if !matches!(state.phase, Phase::Open(open) if open == session) {
                    return Err(self.down_status(&state));
                }
                (state.bindings.get(&method.id).cloned(), self.version())
            };
            match binding {
                Some(Binding::Bound(encoding)) => return Ok(encoding),
                Some(Binding::Refused(status)) => return Err(status),
                Some(Binding::Failed(status)) if requested => return Err(status),
                Some(Binding::Requested) => {
                    requested = true;
                    self.wait_for_change(version).await;
                }
                Some(Binding::Failed(_)) | None => self.request_binding(session, method),
            }
        }
    }

    /// Asks the server for its version of a method. It is a task of its own: other calls may wait for
    /// the answer, too, when this one is given up.
    fn request_binding(self: &Arc<Self>, session: SessionId, method: &'static MethodDescriptor) {
        let mut state = self.change();
        state.bindings.insert(method.id, Binding::Requested);
        drop(state);
        let local = &self.executor.local;
        let (connection, answer) = (
            Arc::downgrade(self),
            binding::request(local, session, method),
        );
        local.spawn(async move {
            let answer = answer.await;
            let Some(connection) = connection.upgrade() else {
                return;
            };
            let mut accepts = None;
            let binding = match answer {
                Ok(bound) => {
                    accepts = Some(bound.accepts);
                    Binding::Bound(bound.encoding)
                }
                Err(status) if status.code() == Code::FailedPrecondition => {
                    Binding::Refused(status)
                }
                Err(status) => Binding::Failed(status),
            };
            connection.handle_binding(session, method.id, binding, accepts);
        });
    }

    fn handle_binding(
        &self,
        session: SessionId,
        method: u32,
        binding: Binding,
        accepts: Option<AlgorithmSet>,
    ) {
        let mut state = self.change();
        if matches!(state.phase, Phase::Open(open) if open == session)
            && let Entry::Occupied(mut entry) = state.bindings.entry(method)
        {
            entry.insert(binding);
            state.accepts = accepts.or(state.accepts);
        }
        drop(state);
        self.notify();
    }

    #[cold]
    fn draining(&self) -> Status {
        Status::unavailable(format!(
            "{}: the server is shutting down; the call did not run, call elsewhere",
            self.address
        ))
        .with_not_run()
    }

    fn down_status(&self, state: &State) -> Status {
        match &state.phase {
            Phase::Down { error, .. } => error.clone(),
            _ => Status::unavailable(format!(
                "{}: the session ended before the call was sent; it did not run, try again",
                self.address
            )),
        }
    }

    // ---- for the event loop ----

    /// Its session, open or opening.
    pub(crate) fn session(&self) -> Option<SessionId> {
        match self.state.lock().phase {
            Phase::Opening(session) | Phase::Reaching(session) | Phase::Open(session) => {
                Some(session)
            }
            _ => None,
        }
    }

    /// Where to open a session, if it wants one.
    pub(crate) fn target(&self) -> Option<String> {
        let state = self.state.lock();
        let target = state.targets.front();
        target
            .filter(|_| matches!(state.phase, Phase::Wanted))
            .cloned()
    }

    /// Takes in whether the endpoint could begin to open a session.
    pub(crate) fn handle_connect(&self, result: Result<SessionId, OpenError>) {
        match result {
            Ok(session) => {
                let mut state = self.change();
                state.phase = Phase::Opening(session);
                state.forget_server();
                state.stream_slots = state.stream_slots.of_next_session();
            }
            Err(error) => self.fail_target(error.into()),
        }
        self.notify();
    }

    /// What bounds the streams of its session.
    pub(crate) fn stream_slots(&self) -> Arc<StreamSlots> {
        Arc::clone(&self.state.lock().stream_slots)
    }

    /// Whether it has to hear the state of its session.
    pub(crate) fn awaits_state(&self) -> bool {
        let state = self.state.lock();
        state.suspected || !matches!(state.phase, Phase::Open(_))
    }

    /// Takes in how many slots its session has, because a stream had to wait for one. `is_full`: it gets no more.
    pub(crate) fn handle_slots(&self, slots: usize, is_full: bool) {
        self.stream_slots().answer(slots, is_full);
        drop(self.change());
        self.notify();
    }

    /// Takes in the state of its session.
    pub(crate) fn handle_state(self: &Arc<Self>, session_state: Option<SessionState>) {
        let mut state = self.change();
        state.suspected = false;
        state.draining = session_state == Some(SessionState::Draining);
        let mut failure = None;
        match (session_state, &state.phase) {
            (Some(SessionState::Connecting), _) => return,
            (Some(SessionState::Connected | SessionState::Draining), Phase::Opening(session)) => {
                let session = *session;
                match has_target(&self.address) {
                    true => {
                        state.phase = Phase::Reaching(session);
                        self.ask_whether_reached(session);
                    }
                    false => {
                        state.phase = Phase::Open(session);
                        state.failures = 0;
                    }
                }
            }
            (Some(SessionState::Connected | SessionState::Draining), _) => {}
            (Some(SessionState::Ended(error)), Phase::Opening(_) | Phase::Reaching(_)) => {
                let target = state.targets.front();
                let target = target.map_or(self.address.as_str(), String::as_str);
                failure = Some(format!("connect {target}: {error}"));
            }
            (Some(SessionState::Ended(_)) | None, _) => {
                state.phase = Phase::Idle;
                state.forget_server();
            }
        }
        drop(state);
        if let Some(text) = failure {
            self.fail_target(Status::unavailable(text));
        }
        self.notify();
    }

    /// No session opens at the target: tries the next one, or fails the attempt.
    fn fail_target(&self, error: Status) {
        let mut state = self.change();
        state.targets.pop_front();
        state.failed_targets.push(error.message().to_owned());
        if !state.targets.is_empty() {
            state.phase = Phase::Wanted;
            return;
        }
        let failed = std::mem::take(&mut state.failed_targets);
        drop(state);
        let error = match lookup::is_needed(&self.address) {
            false => error,
            true => {
                let text = format!("connect {}: {}", self.address, failed.join("; "));
                Status::new(error.code(), text)
            }
        };
        self.fail(error);
    }

    fn fail(&self, error: Status) {
        let mut state = self.change();
        let pause_ns = (BACKOFF_MIN_NS << state.failures.min(16)).min(BACKOFF_MAX_NS);
        let jitter_ns = self.executor.random() % (pause_ns / 2);
        state.failures += 1;
        state.phase = Phase::Down {
            until_ns: self.executor.now_ns() + pause_ns * 3 / 4 + jitter_ns,
            error,
        };
    }

    // ---- waiting ----

    /// Publishes the state, and wakes the futures that wait for a change.
    fn notify(&self) {
        let mut state = self.state.lock();
        let waiters = std::mem::take(&mut state.waiters);
        let published = state.published.clone();
        let (now, failure) = state.publish();
        drop(state);
        if let Some(published) = published {
            published.set(now, failure.as_ref());
        }
        waiters.into_iter().for_each(Waker::wake);
    }

    /// Waits for a change after this version.
    async fn wait_for_change(&self, version: u64) {
        std::future::poll_fn(|cx| {
            let mut state = self.state.lock();
            if self.version() != version {
                return Poll::Ready(());
            }
            if !state.waiters.iter().any(|kept| kept.will_wake(cx.waker())) {
                state.waiters.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }
}

impl State {
    /// What was true of the server in the last session need not be in the next one.
    fn forget_server(&mut self) {
        self.bindings.clear();
        self.accepts = None;
    }

    /// Whether an open session takes a call.
    fn is_usable(&self, continues: bool) -> bool {
        !self.suspected && (!self.draining || continues)
    }

    /// The state for other threads, and why the last attempt failed.
    fn publish(&self) -> (ChannelState, Option<Status>) {
        match &self.phase {
            Phase::Idle => (ChannelState::Idle, None),
            Phase::Resolving | Phase::Wanted | Phase::Opening(_) | Phase::Reaching(_) => {
                (ChannelState::Connecting, None)
            }
            Phase::Open(_) if !self.draining => (ChannelState::Ready, None),
            Phase::Open(_) => (ChannelState::TransientFailure, None),
            Phase::Down { error, .. } => (ChannelState::TransientFailure, Some(error.clone())),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(session) = self.session() {
            self.executor.local.close(session);
        }
    }
}

#[cfg(test)]
mod tests;
