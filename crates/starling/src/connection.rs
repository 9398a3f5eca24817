//! A connection to one address: its session, when to try again, and how each method's messages
//! are encoded.
//!
//! ```text
//!                                      failed: on with the next target
//!                                     ┌────────────────┐
//!         a call           found      ▼     begun      │      opened
//!   Idle ───────▶ Resolving ─────▶ Wanted ────────▶ Opening ─────────▶ Open ──┐
//!    ▲             ▲     │            │                │                      │
//!    │      a call │     ▼ failed     ▼ the last failed▼                      │
//!    │             └───────────── Down ────────────────┘                      │ session ended
//!    └────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A host name stands for several addresses. Whether the server listens at one shows when the
//! network refuses or nothing answers, so the next is tried then, too.
//!
//! After the n-th failure in a row, attempts pause for 2^n times 10 ms, at most 2 s, give or take a
//! quarter, so that the clients of a restarted server do not all come at once.
//!
//! Before the first call of a method in a session the server is asked for its version of the
//! method (`starling.reflection.Reflection/Bind`). Equal: messages go in the native layout. Different
//! but compatible by protobuf's rules: they go in protobuf. Else calls of that method are refused
//! here, naming the field.

use std::cell::{Ref, RefCell};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use starling_endpoint::{Code, Encoding, LocalHandle, OpenError, SessionId, SessionState, Status};
use starling_message::MethodDescriptor;

use crate::address::Address;
use crate::binding::{self, IdHasher};
use crate::channel::StateCell;
use crate::hub::Hub;
use crate::lookup;

/// The first pause after a failure.
const BACKOFF_MIN_NS: u64 = 10_000_000;
/// The longest pause.
const BACKOFF_MAX_NS: u64 = 2_000_000_000;
/// Pause before a server that is there and refuses to be bound is asked again.
const REFUSED_PAUSE: std::time::Duration = std::time::Duration::from_millis(50);

#[derive(Clone, Debug)]
enum Phase {
    Idle,
    /// A thread looks up the host's name.
    Resolving,
    /// The loop is to begin a session.
    Wanted,
    Opening(SessionId),
    Open(SessionId),
    /// Not to be tried before `until_ns`.
    Down {
        until_ns: u64,
        error: Status,
    },
}

/// What is known of a method in the current session.
#[derive(Clone, Debug)]
enum Binding {
    Asking,
    Bound(Encoding),
    /// The schemas do not match.
    Refused(Status),
    /// It could not be found out. Ask again.
    Failed(Status),
}

struct State {
    phase: Phase,
    /// A call failed as if the session were over.
    doubted: bool,
    failures: u32,
    /// Where to begin a session: the first of them now, the others if that fails.
    targets: VecDeque<String>,
    /// What became of the targets before.
    failed_targets: Vec<String>,
    bindings: HashMap<u32, Binding, IdHasher>,
    /// Counts every change, for who waits for one.
    version: u64,
    waiters: Vec<Waker>,
    /// Where to show the state to other threads.
    shown: Option<Arc<StateCell>>,
}

pub(crate) struct Connection {
    address: Address,
    local: LocalHandle,
    state: RefCell<State>,
}

impl Connection {
    pub(crate) fn new(address: Address, local: LocalHandle) -> Self {
        Self {
            address,
            local,
            state: RefCell::new(State {
                phase: Phase::Idle,
                doubted: false,
                failures: 0,
                targets: VecDeque::new(),
                failed_targets: Vec::new(),
                bindings: HashMap::default(),
                version: 0,
                waiters: Vec::new(),
                shown: None,
            }),
        }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Has its state shown to other threads.
    pub(crate) fn show_in(&self, cell: Arc<StateCell>) {
        self.state.borrow_mut().shown = Some(cell);
    }

    // ---- for callers ----

    /// The session and the encoding, if a call of this method can be made at once.
    #[inline]
    pub(crate) fn ready(&self, method: u32) -> Option<(SessionId, Encoding)> {
        let state = self.state.borrow();
        match (&state.phase, state.bindings.get(&method)) {
            (Phase::Open(session), Some(Binding::Bound(encoding))) if !state.doubted => {
                Some((*session, *encoding))
            }
            _ => None,
        }
    }

    /// A call failed: if that could mean that the session is over, have it checked before the
    /// next one.
    pub(crate) fn doubt(self: &Rc<Self>, hub: &Hub, code: Code) {
        if code != Code::Unavailable {
            return;
        }
        let mut state = self.state.borrow_mut();
        if matches!(state.phase, Phase::Open(_)) && !state.doubted {
            state.doubted = true;
            hub.want(self);
        }
    }

    /// Waits until a call of this method can be made. With `wait_for_ready`, however long that takes.
    pub(crate) async fn prepare(
        self: &Rc<Self>,
        hub: &Rc<Hub>,
        method: &'static MethodDescriptor,
        wait_for_ready: bool,
    ) -> Result<(SessionId, Encoding), Status> {
        let mut lost = false;
        loop {
            let session = self.open(hub, wait_for_ready).await?;
            match self.bind(hub, session, method).await {
                Ok(encoding) if self.session() == Some(session) => return Ok((session, encoding)),
                Ok(_) => {}
                // The session ended before anything of the call was sent: another one may do.
                Err(status) if !lost && status.code() == Code::Unavailable => {
                    self.doubt(hub, status.code());
                    lost = true;
                }
                Err(status) if wait_for_ready && status.code() == Code::Unavailable => {
                    self.doubt(hub, status.code());
                    hub.local.sleep(REFUSED_PAUSE).await;
                }
                Err(status) => return Err(status),
            }
        }
    }

    /// Waits for an open session.
    pub(crate) async fn open(
        self: &Rc<Self>,
        hub: &Rc<Hub>,
        wait_for_ready: bool,
    ) -> Result<SessionId, Status> {
        let mut tried = false;
        loop {
            let (phase, doubted, version) = {
                let state = self.state.borrow();
                (state.phase.clone(), state.doubted, state.version)
            };
            match phase {
                Phase::Open(session) if !doubted => return Ok(session),
                Phase::Open(_) | Phase::Resolving | Phase::Wanted | Phase::Opening(_) => {
                    tried = true;
                    self.changed(version).await;
                }
                Phase::Down { error, .. } if tried && !wait_for_ready => return Err(error),
                Phase::Down { until_ns, error } if hub.now_ns() < until_ns => {
                    if !wait_for_ready {
                        return Err(error);
                    }
                    let pause = until_ns.saturating_sub(hub.now_ns());
                    hub.local
                        .sleep(std::time::Duration::from_nanos(pause))
                        .await;
                }
                Phase::Idle | Phase::Down { .. } => self.begin(hub),
            }
        }
    }

    /// Begins an attempt. Not a part of the call that is waiting for it, as with [`Self::ask`].
    fn begin(self: &Rc<Self>, hub: &Rc<Hub>) {
        if !lookup::is_needed(&self.address) {
            return self.begin_at(hub, vec![self.address.to_string()]);
        }
        self.state.borrow_mut().phase = Phase::Resolving;
        self.tell();
        let (connection, its_hub) = (Rc::downgrade(self), Rc::clone(hub));
        let found = lookup::look_up(&self.address);
        hub.local.spawn_local(async move {
            let found = found.await;
            let Some(connection) = connection.upgrade() else {
                return;
            };
            match found {
                Ok(targets) => connection.begin_at(&its_hub, targets),
                Err(error) => {
                    connection.fail(&its_hub, error);
                    connection.tell();
                }
            }
        });
    }

    /// Has the loop begin a session at the first of these that works.
    fn begin_at(self: &Rc<Self>, hub: &Hub, targets: Vec<String>) {
        let mut state = self.state.borrow_mut();
        state.phase = Phase::Wanted;
        state.targets = targets.into();
        state.failed_targets.clear();
        drop(state);
        hub.want(self);
        self.tell();
    }

    async fn bind(
        self: &Rc<Self>,
        hub: &Rc<Hub>,
        session: SessionId,
        method: &'static MethodDescriptor,
    ) -> Result<Encoding, Status> {
        let mut asked = false;
        loop {
            let (binding, version) = {
                let state = self.state.borrow();
                if !matches!(state.phase, Phase::Open(open) if open == session) {
                    return Err(self.why_down(&state));
                }
                (state.bindings.get(&method.id).cloned(), state.version)
            };
            match binding {
                Some(Binding::Bound(encoding)) => return Ok(encoding),
                Some(Binding::Refused(status)) => return Err(status),
                Some(Binding::Failed(status)) if asked => return Err(status),
                Some(Binding::Asking) => {
                    asked = true;
                    self.changed(version).await;
                }
                Some(Binding::Failed(_)) | None => self.ask(hub, session, method),
            }
        }
    }

    /// Asks the server for its version of a method. Not a part of the call that is waiting for
    /// it: others may be waiting, too, when that one is given up.
    fn ask(self: &Rc<Self>, hub: &Rc<Hub>, session: SessionId, method: &'static MethodDescriptor) {
        let mut state = self.state.borrow_mut();
        state.bindings.insert(method.id, Binding::Asking);
        drop(state);
        let (connection, question) = (
            Rc::downgrade(self),
            binding::ask(&hub.local, session, method),
        );
        hub.local.spawn_local(async move {
            let answer = question.await;
            let Some(connection) = connection.upgrade() else {
                return;
            };
            let binding = match answer {
                Ok(encoding) => Binding::Bound(encoding),
                Err(status) if status.code() == Code::FailedPrecondition => {
                    Binding::Refused(status)
                }
                Err(status) => Binding::Failed(status),
            };
            connection.handle_answer(session, method.id, binding);
        });
    }

    fn handle_answer(&self, session: SessionId, method: u32, binding: Binding) {
        let mut state = self.state.borrow_mut();
        if matches!(state.phase, Phase::Open(open) if open == session)
            && let Entry::Occupied(mut entry) = state.bindings.entry(method)
        {
            entry.insert(binding);
        }
        drop(state);
        self.tell();
    }

    fn why_down(&self, state: &Ref<'_, State>) -> Status {
        match &state.phase {
            Phase::Down { error, .. } => error.clone(),
            _ => Status::unavailable(format!(
                "{}: the session ended before the call was sent; it did not run, try again",
                self.address
            )),
        }
    }

    // ---- for the loop ----

    /// The session that it has or is about to have.
    pub(crate) fn session(&self) -> Option<SessionId> {
        match self.state.borrow().phase {
            Phase::Opening(session) | Phase::Open(session) => Some(session),
            _ => None,
        }
    }

    /// Where to begin a session, if one is wanted.
    pub(crate) fn target(&self) -> Option<String> {
        let state = self.state.borrow();
        let target = state.targets.front();
        target
            .filter(|_| matches!(state.phase, Phase::Wanted))
            .cloned()
    }

    /// Takes in how an attempt to begin a session went.
    pub(crate) fn handle_connect(&self, hub: &Hub, result: Result<SessionId, OpenError>) {
        match result {
            Ok(session) => {
                let mut state = self.state.borrow_mut();
                state.phase = Phase::Opening(session);
                state.bindings.clear();
            }
            Err(error) => self.fail_target(hub, error.into()),
        }
        self.tell();
    }

    /// Takes in where its session stands.
    pub(crate) fn handle_state(self: &Rc<Self>, hub: &Hub, session_state: Option<SessionState>) {
        let mut state = self.state.borrow_mut();
        state.doubted = false;
        let mut failure = None;
        match (session_state, &state.phase) {
            (Some(SessionState::Connecting), _) => return,
            (Some(SessionState::Connected), Phase::Opening(session)) => {
                state.phase = Phase::Open(*session);
                state.failures = 0;
            }
            (Some(SessionState::Connected), _) => {}
            (Some(SessionState::Ended(error)), Phase::Opening(_)) => {
                let target = state.targets.front();
                let target = target.map_or(self.address.as_str(), String::as_str);
                failure = Some(format!("connect {target}: {error}"));
            }
            (Some(SessionState::Ended(_)) | None, _) => {
                state.phase = Phase::Idle;
                state.bindings.clear();
            }
        }
        drop(state);
        if let Some(text) = failure {
            self.fail_target(hub, Status::unavailable(text));
        }
        self.tell();
    }

    /// No session begins at the target: the next one's turn, or the attempt failed.
    fn fail_target(&self, hub: &Hub, error: Status) {
        let mut state = self.state.borrow_mut();
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
        self.fail(hub, error);
    }

    fn fail(&self, hub: &Hub, error: Status) {
        let mut state = self.state.borrow_mut();
        let pause_ns = (BACKOFF_MIN_NS << state.failures.min(16)).min(BACKOFF_MAX_NS);
        let jitter_ns = hub.random() % (pause_ns / 2);
        state.failures += 1;
        state.phase = Phase::Down {
            until_ns: hub.now_ns() + pause_ns * 3 / 4 + jitter_ns,
            error,
        };
    }

    // ---- waiting ----

    fn tell(&self) {
        let mut state = self.state.borrow_mut();
        state.version += 1;
        if let Some(shown) = &state.shown {
            shown.set(match state.phase {
                Phase::Idle => crate::ChannelState::Idle,
                Phase::Resolving | Phase::Wanted | Phase::Opening(_) => {
                    crate::ChannelState::Connecting
                }
                Phase::Open(_) => crate::ChannelState::Ready,
                Phase::Down { .. } => crate::ChannelState::TransientFailure,
            });
        }
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        waiters.into_iter().for_each(Waker::wake);
    }

    /// Waits until the version is another one.
    async fn changed(&self, version: u64) {
        std::future::poll_fn(|cx| {
            let mut state = self.state.borrow_mut();
            if state.version != version {
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

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(session) = self.session() {
            self.local.close(session);
        }
    }
}

#[cfg(test)]
mod tests {
    use starling_endpoint::EndpointConfig;
    use starling_io_udp::{UdpConfig, UdpIo};

    use super::*;
    use crate::address::Way;
    use crate::core::Core;

    fn core(address: &str) -> (Core<UdpIo>, u16) {
        let io = UdpIo::bind(address, UdpConfig::default()).expect("loopback");
        let port = io.local_socket_address().port();
        let core = Core::new(io, Way::Udp, &EndpointConfig::default());
        (core.expect("a sound configuration"), port)
    }

    /// Tries a name that stands for these, until that has come to an end.
    fn attempt(server: &mut Core<UdpIo>, name: &str, targets: &[String]) -> Phase {
        let (mut client, _) = core("udp://[::]:0");
        let address = Address::parse(name).expect("well formed");
        let connection = client.hub.connection(address);
        connection.begin_at(&client.hub, targets.to_vec());
        let begun = std::time::Instant::now();
        loop {
            client.turn().expect("a device");
            server.turn().expect("a device");
            let phase = connection.state.borrow().phase.clone();
            match phase {
                Phase::Wanted | Phase::Opening(_) => {}
                end => return end,
            }
            assert!(begun.elapsed().as_secs() < 60, "no end of it");
        }
    }

    #[test]
    fn a_target_that_the_network_refuses_is_followed_by_the_next() {
        let (mut server, port) = core("udp://127.0.0.1:0");
        let name = format!("udp://kv:{port}");
        let refused = format!("udp://[::1]:{port}");
        let impossible = "udp://0.0.0.0:1".to_owned();
        let works = format!("udp://127.0.0.1:{port}");

        let targets = [refused.clone(), impossible.clone(), works];
        let end = attempt(&mut server, &name, &targets);
        assert!(matches!(end, Phase::Open(_)), "{end:?}");

        let targets = [refused, impossible];
        let Phase::Down { error, .. } = attempt(&mut server, &name, &targets) else {
            panic!("nobody is there");
        };
        assert_eq!(error.code(), Code::Unavailable);
        for tried in targets.iter().chain([&name]) {
            assert!(error.message().contains(tried), "{error}");
        }
    }
}
