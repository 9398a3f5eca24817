//! The connections of one endpoint, and the work that its event loop does for them.
//!
//! Futures use a connection, and a future cannot borrow the endpoint. So a connection that needs the
//! endpoint puts itself into the poll queue, and the event loop polls the queue between turns.
//!
//! ```text
//!   futures ── push ──▶ PollQueue ──▶ Connections::poll ── connect ──▶ endpoint
//!      ▲                                      │
//!      └───────────── wakers ◀── Connection ◀─┴─ state of its session
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use starling_endpoint::{ProtocolConfig, SessionState, SlotRoom};

use crate::address::Address;
use crate::channel_state::ChannelState;
use crate::connection::{Connection, PollQueue};
use crate::device::{Device, Raw};
use crate::executor::Executor;
use crate::metrics::ClientMetrics;
use crate::streaming::StreamSlots;

/// What has become of an endpoint's sessions since its connections were last polled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionChanges {
    /// Some have ended, or begun to drain.
    pub(crate) have_ended: bool,
    /// Some have joined others, or left them.
    pub(crate) have_grown: bool,
}

pub(crate) struct Connections {
    executor: Arc<Executor>,
    queue: Weak<PollQueue>,
    protocol: ProtocolConfig,
    all: Mutex<Vec<Weak<Connection>>>,
    /// The metrics of calls by address, while a connection has them.
    metrics: Mutex<HashMap<Address, Weak<ClientMetrics>>>,
    /// Connections that are found by their address. They stay for the life of the endpoint.
    shared: Mutex<HashMap<Address, Arc<Connection>>>,
}

impl Connections {
    pub(crate) fn new(
        executor: &Arc<Executor>,
        queue: &Arc<PollQueue>,
        protocol: &ProtocolConfig,
    ) -> Arc<Self> {
        Arc::new(Self {
            executor: Arc::clone(executor),
            queue: Arc::downgrade(queue),
            protocol: protocol.clone(),
            all: Mutex::default(),
            metrics: Mutex::default(),
            shared: Mutex::default(),
        })
    }

    /// A connection of the caller's own. Its session is closed with the last reference.
    pub(crate) fn open(&self, address: Address) -> Arc<Connection> {
        let (executor, queue) = (Arc::clone(&self.executor), Weak::clone(&self.queue));
        let metrics = self.metrics(&address);
        let stream_slots = StreamSlots::of(&self.protocol);
        let connection = Connection::new(address, executor, queue, metrics, stream_slots);
        let connection = Arc::new(connection);
        let mut all = self.all.lock();
        all.retain(|connection| connection.strong_count() > 0);
        all.push(Arc::downgrade(&connection));
        connection
    }

    /// The metrics of calls to this address, if they are enabled.
    fn metrics(&self, address: &Address) -> Option<Arc<ClientMetrics>> {
        let mut known = self.metrics.lock();
        if let Some(metrics) = known.get(address).and_then(Weak::upgrade) {
            return Some(metrics);
        }
        let metrics = Arc::new(ClientMetrics::of(address.as_str(), &self.executor)?);
        known.retain(|_, metrics| metrics.strong_count() > 0);
        known.insert(address.clone(), Arc::downgrade(&metrics));
        Some(metrics)
    }

    /// The connection to an address that all futures of this thread share.
    pub(crate) fn shared(&self, address: Address) -> Arc<Connection> {
        let mut shared = self.shared.lock();
        let connection = shared
            .entry(address)
            .or_insert_with_key(|address| self.open(address.clone()));
        Arc::clone(connection)
    }

    /// The addresses of at most so many connections, and where each stands.
    pub(crate) fn states(&self, most: usize) -> Vec<(String, ChannelState)> {
        let all: Vec<_> = (self.all.lock().iter())
            .filter_map(Weak::upgrade)
            .take(most)
            .collect();
        let state = |it: Arc<Connection>| (it.address().to_string(), it.state());
        all.into_iter().map(state).collect()
    }

    /// Between two turns: opens sessions, and gives connections the state of theirs. Returns whether anything
    /// changed.
    #[cold]
    pub(crate) fn poll<I: Device>(
        &self,
        queue: &PollQueue,
        raw: &mut Raw<I>,
        changes: SessionChanges,
    ) -> bool {
        let mut changed = changes.have_ended;
        let queued = queue.take();
        if changes.have_ended || changes.have_grown {
            let all: Vec<_> = self.all.lock().iter().filter_map(Weak::upgrade).collect();
            for connection in all {
                let Some(session) = connection.session() else {
                    continue;
                };
                (connection.stream_slots()).set_slots(raw.protocol().group_slots(session));
                if changes.have_ended {
                    connection.handle_state(raw.session_state(session));
                }
            }
        }
        for connection in queued {
            while let Some(target) = connection.target() {
                changed = true;
                connection.handle_connect(raw.connect(&target));
            }
            let state = connection
                .session()
                .map(|session| raw.session_state(session));
            if let Some(state) = state {
                if connection.awaits_state() {
                    // First: those that wait for it begin streams at once.
                    let slots = connection
                        .session()
                        .map(|it| raw.protocol().group_slots(it));
                    connection.stream_slots().set_slots(slots.unwrap_or(0));
                    connection.handle_state(state);
                    changed |= state != Some(SessionState::Connecting);
                }
                let is_connecting = state == Some(SessionState::Connecting);
                let is_growing = !is_connecting && get_slots(&connection, raw, &mut changed);
                if is_connecting || is_growing || connection.target().is_some() {
                    queue.keep(connection);
                }
            }
        }
        changed
    }
}

/// Gets slots for streams that wait for them. Returns whether they are on their way.
fn get_slots<I: Device>(connection: &Connection, raw: &mut Raw<I>, changed: &mut bool) -> bool {
    let wanted = connection.stream_slots().wanted();
    let Some((session, wanted)) = connection.session().zip(wanted) else {
        return false;
    };
    let before = raw.protocol().stats().sessions_added;
    let reserved = raw.reserve_slots(session, wanted);
    let slots = raw.protocol().group_slots(session);
    // Without any, the session has ended, of which the connection hears next: whoever waits is not refused.
    let waits = reserved == SlotRoom::Growing || slots == 0;
    if !waits {
        connection.handle_slots(slots, reserved == SlotRoom::None);
    }
    *changed |= !waits || raw.protocol().stats().sessions_added != before;
    waits
}
