//! How a call gets an open session: it waits for one, and has the connection connect if nobody has.

use std::sync::Arc;
use std::time::Duration;

use starling_endpoint::{CallOptions, MethodId, SessionId, Status};

use super::{Connection, Phase};
use crate::lookup;
use crate::managed::reach_method;
use crate::streaming::{ClientEnd, WaitingStream};

/// How long a call waits for an open session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Not at all: another server may make the call, or it is of use to a session that is open only.
    None,
    /// For the end of one attempt to connect.
    Attempt,
    /// Until an attempt succeeds.
    Endless,
}

impl Patience {
    pub(crate) fn of(wait_for_ready: bool) -> Self {
        match wait_for_ready {
            true => Self::Endless,
            false => Self::Attempt,
        }
    }
}

impl Connection {
    /// Waits for an open session that takes new calls.
    pub(crate) async fn open(self: &Arc<Self>, wait_for_ready: bool) -> Result<SessionId, Status> {
        self.open_for(Patience::of(wait_for_ready), false).await
    }

    pub(super) async fn open_for(
        self: &Arc<Self>,
        patience: Patience,
        continues: bool,
    ) -> Result<SessionId, Status> {
        let wait_for_ready = patience == Patience::Endless;
        let mut tried = false;
        loop {
            let (phase, is_usable, is_draining, version) = {
                let state = self.state.lock();
                let is_draining = state.draining && !state.suspected;
                (
                    state.phase.clone(),
                    state.is_usable(continues),
                    is_draining,
                    self.version(),
                )
            };
            match phase {
                Phase::Open(session) if is_usable => return Ok(session),
                Phase::Open(_) if is_draining && !wait_for_ready => return Err(self.draining()),
                Phase::Idle
                | Phase::Resolving
                | Phase::Wanted
                | Phase::Opening(_)
                | Phase::Reaching(_)
                    if patience == Patience::None =>
                {
                    return Err(self.down_status(&self.state.lock()));
                }
                Phase::Open(_)
                | Phase::Resolving
                | Phase::Wanted
                | Phase::Opening(_)
                | Phase::Reaching(_) => {
                    tried = true;
                    self.wait_for_change(version).await;
                }
                Phase::Down { error, .. }
                    if (tried || patience == Patience::None) && !wait_for_ready =>
                {
                    return Err(error);
                }
                Phase::Down { until_ns, error } if self.executor.now_ns() < until_ns => {
                    if !wait_for_ready {
                        return Err(error);
                    }
                    let pause_ns = until_ns.saturating_sub(self.executor.now_ns());
                    let pause = Duration::from_nanos(pause_ns);
                    self.executor.local.sleep(pause).await;
                }
                Phase::Idle | Phase::Down { .. } => self.start_attempt(),
            }
        }
    }

    /// Waits until a stream may begin in this session. False: the session takes no new calls any more.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED: the session gets no more slots; see [`StreamSlots`](crate::streaming::StreamSlots).
    pub(crate) async fn admit(
        self: &Arc<Self>,
        session: SessionId,
        stream: &ClientEnd,
    ) -> Result<bool, Status> {
        let mut waiting: Option<WaitingStream> = None;
        loop {
            let (is_usable, slots, version) = {
                let state = self.state.lock();
                let is_it = matches!(state.phase, Phase::Open(open) if open == session);
                let is_usable = is_it && state.is_usable(false);
                (is_usable, Arc::clone(&state.stream_slots), self.version())
            };
            if !is_usable {
                return Ok(false);
            }
            if stream.find_slot(&slots) {
                return Ok(true);
            }
            let has_asked = waiting.as_ref().is_some_and(|it| it.is_for(&slots));
            if has_asked && slots.is_full() {
                return Err(slots.full(self.address.as_str()));
            }
            if !has_asked {
                waiting = Some(slots.wait());
            }
            if slots.ask() {
                self.enqueue();
            }
            self.wait_for_change(version).await;
        }
    }

    /// Starts an attempt to connect. It is a task of its own, as [`Self::request_binding`] is, and
    /// continues after the call that waits for it has been given up.
    fn start_attempt(self: &Arc<Self>) {
        if !lookup::is_needed(&self.address) {
            return self.connect_to(vec![self.address.to_string()]);
        }
        self.change().phase = Phase::Resolving;
        self.notify();
        let connection = Arc::downgrade(self);
        let found = lookup::look_up(&self.address);
        self.executor.local.spawn(async move {
            let found = found.await;
            let Some(connection) = connection.upgrade() else {
                return;
            };
            match found {
                Ok(targets) => connection.connect_to(targets),
                Err(error) => {
                    connection.fail(error);
                    connection.notify();
                }
            }
        });
    }

    /// Asks the service at the other end of a session whether it has one with the server.
    pub(super) fn ask_whether_reached(self: &Arc<Self>, session: SessionId) {
        let local = &self.executor.local;
        let connection = Arc::downgrade(self);
        let reach = MethodId(reach_method().id);
        let asked = local.call(session, reach, &CallOptions::default(), |_| {});
        local.spawn(async move {
            let reached = asked.await;
            if let Some(connection) = connection.upgrade() {
                connection.handle_reached(session, reached.map(drop));
            }
        });
    }

    fn handle_reached(&self, session: SessionId, reached: Result<(), Status>) {
        let mut state = self.change();
        if !matches!(state.phase, Phase::Reaching(reaching) if reaching == session) {
            return;
        }
        match reached {
            Ok(()) => {
                state.phase = Phase::Open(session);
                state.failures = 0;
                drop(state);
            }
            Err(status) => {
                drop(state);
                self.executor.local.close(session);
                self.fail_target(status);
            }
        }
        self.notify();
    }

    /// Has the event loop open a session at the first of these targets that works.
    pub(super) fn connect_to(self: &Arc<Self>, targets: Vec<String>) {
        let mut state = self.change();
        state.phase = Phase::Wanted;
        state.targets = targets.into();
        state.failed_targets.clear();
        drop(state);
        self.enqueue();
        self.notify();
    }
}
