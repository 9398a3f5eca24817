//! One of the servers behind a balanced channel.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use starling_balance::{Counts, LOAD_REPORT_KEY, LoadReport, Resolved, Weight, Weighting};
use starling_endpoint::{MetadataView, Status};
use starling_io::{Clock, MonotonicClock};

use super::balancer::Balancer;
use super::placement::{Attempt, Routing};
use super::readiness::Listed;
use crate::channel_state::ChannelState;
use crate::health::{BackendHealth, HealthCell};
use crate::plane::{CallHandle, Operation, Reply, Transport};

/// One of the servers behind a balanced channel, as its channel sees it now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendState {
    /// Its address.
    pub address: String,
    /// Where its connection stands.
    pub state: ChannelState,
    /// What it says of its health.
    pub health: BackendHealth,
    /// It gets no calls for a while, because too many of them failed.
    pub is_ejected: bool,
    /// Calls that are not over.
    pub outstanding: u64,
    /// The channel divides its calls between it and others: it does so a moment after the backend is ready.
    has_share: bool,
}

impl BackendState {
    /// Whether it gets calls.
    pub fn takes_calls(&self) -> bool {
        let is_well = self.health.is_well() && !self.is_ejected;
        self.has_share && self.state == ChannelState::Ready && is_well
    }
}

/// The weight of a backend, by its load reports.
struct Weighed {
    weight: Mutex<Weight>,
    settings: Weighting,
    clock: MonotonicClock,
}

/// How the calls of an address end, over all of its connections.
#[derive(Default)]
pub(super) struct Record {
    is_ejected: AtomicBool,
    successes: AtomicU32,
    failures: AtomicU32,
}

impl Record {
    pub(super) fn set_ejected(&self, is_ejected: bool) {
        self.is_ejected.store(is_ejected, Ordering::Relaxed);
    }

    fn count(&self, is_ok: bool) {
        let count = match is_ok {
            true => &self.successes,
            false => &self.failures,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// How calls ended since the last time that this was asked.
    pub(super) fn take_counts(&self) -> Counts {
        Counts {
            successes: self.successes.swap(0, Ordering::Relaxed),
            failures: self.failures.swap(0, Ordering::Relaxed),
        }
    }
}

pub(crate) struct Backend {
    /// No other backend of the channel has or had it, and it is not 0.
    pub(super) id: u64,
    pub(super) resolved: Resolved,
    record: Arc<Record>,
    pub(super) transport: Box<dyn Transport>,
    pub(super) balancer: Weak<Balancer>,
    health: Arc<HealthCell>,
    outstanding: AtomicU64,
    /// Kept if load reports count.
    weighed: Option<Weighed>,
    /// The operation that keeps it connected.
    connecting: Mutex<Option<CallHandle>>,
}

impl Backend {
    /// Of this address. `watcher` is woken when its state or its health changes. `service`: the one whose health
    /// counts.
    pub(super) fn new(
        id: u64,
        listed: &Listed,
        transport: Box<dyn Transport>,
        balancer: &Weak<Balancer>,
        watcher: &Waker,
        service: Option<&str>,
        weighting: Option<(&Weighting, &MonotonicClock)>,
    ) -> Arc<Self> {
        let health = match service {
            Some(_) => BackendHealth::Pending,
            None => BackendHealth::Unchecked,
        };
        let health = Arc::new(HealthCell::new(health, Some(watcher.clone())));
        transport.watch_state(watcher.clone());
        if let Some(service) = service {
            transport.watch_health(service, Arc::clone(&health));
        }
        Arc::new(Self {
            id,
            resolved: listed.resolved.clone(),
            record: Arc::clone(&listed.record),
            transport,
            balancer: Weak::clone(balancer),
            health,
            outstanding: AtomicU64::new(0),
            weighed: weighting.map(|(settings, clock)| Weighed {
                weight: Mutex::default(),
                settings: settings.clone(),
                clock: clock.clone(),
            }),
            connecting: Mutex::default(),
        })
    }

    /// Its name for hashing.
    pub(super) fn key(&self) -> &str {
        let key = self.resolved.hash_key.as_deref();
        key.unwrap_or(&self.resolved.address)
    }

    /// Whether calls may go there now.
    pub(super) fn is_usable(&self) -> bool {
        self.transport.state() == ChannelState::Ready
            && self.health().is_well()
            && !self.is_ejected()
    }

    pub(super) fn health(&self) -> BackendHealth {
        self.health.health()
    }

    pub(super) fn is_ejected(&self) -> bool {
        self.record.is_ejected.load(Ordering::Relaxed)
    }

    pub(super) fn outstanding(&self) -> u64 {
        self.outstanding.load(Ordering::Relaxed)
    }

    pub(super) fn report(&self, has_share: bool) -> BackendState {
        BackendState {
            address: self.resolved.address.clone(),
            state: self.transport.state(),
            health: self.health(),
            is_ejected: self.is_ejected(),
            outstanding: self.outstanding(),
            has_share,
        }
    }

    /// Its weight, by its load reports; 0: none is known.
    pub(super) fn weight(&self, now_ns: u64) -> f64 {
        let weighed = self.weighed.as_ref();
        weighed.map_or(0.0, |it| it.weight.lock().current(now_ns, &it.settings))
    }

    pub(super) fn handle_connected(&self) {
        if let Some(weighed) = &self.weighed {
            weighed.weight.lock().handle_connected();
        }
    }

    // ---- connecting ----

    /// Has it connect, and go on trying, unless it does already.
    ///
    /// # Errors
    /// Its transport has ended. There has to be another one.
    pub(super) fn connect(&self) -> Result<(), Status> {
        let mut connecting = self.connecting.lock();
        if let Some(before) = connecting.take() {
            match before.0.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => {
                    *connecting = Some(before);
                    return Ok(());
                }
                Poll::Ready(result) => drop(result?),
            }
        }
        let wait_for_ready = true;
        let call = CallHandle::unattended(Operation::Connect { wait_for_ready });
        *connecting = Some(call.clone());
        drop(connecting);
        self.transport.start(Reply::new(call));
        self.transport.flush();
        Ok(())
    }

    /// Whether its last attempt to connect failed.
    pub(super) fn has_failed(&self) -> bool {
        self.transport.state() == ChannelState::TransientFailure
    }

    /// Has it stop trying. A connection that stands, stands.
    pub(super) fn stop_connecting(&self) {
        let call = self.connecting.lock().take();
        if let Some(call) = call
            && call.0.abandon()
        {
            self.transport.cancel(&call);
        }
    }

    // ---- calls ----

    /// Makes a call there.
    pub(super) fn send(self: &Arc<Self>, reply: Reply, routing: Option<Box<Routing>>) {
        if let Some(pin) = routing.as_ref().and_then(|routing| routing.pin.as_ref()) {
            pin.set(self);
        }
        let attempt = Attempt::begin(self).with_routing(routing);
        reply.call().0.place(attempt);
        self.transport.start(reply);
    }

    /// Makes a call there and nowhere else.
    pub(super) fn send_only(self: &Arc<Self>, reply: Reply) {
        if let Some(balancer) = self.balancer.upgrade() {
            balancer.count_use();
        }
        reply.call().0.place(Attempt::begin(self).pinned());
        self.transport.start(reply);
    }

    pub(super) fn begin_call(&self) {
        self.outstanding.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end_call(&self) {
        self.outstanding.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes in how a call ended, and the metadata of its response or its trailers.
    pub(super) fn handle_end(&self, is_ok: bool, metadata: MetadataView<'_>) {
        self.record.count(is_ok);
        if let Some(weighed) = &self.weighed
            && let Some(report) = metadata.value(LOAD_REPORT_KEY)
            && let Ok(report) = LoadReport::from_bytes(report)
        {
            let now_ns = weighed.clock.now_ns();
            let mut weight = weighed.weight.lock();
            weight.handle_report(now_ns, &report, &weighed.settings);
        }
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend")
            .field("id", &self.id)
            .field("address", &self.resolved.address)
            .finish_non_exhaustive()
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.stop_connecting();
        self.health.close();
    }
}
