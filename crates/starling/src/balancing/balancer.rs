//! Gives each call of a balanced channel to a backend.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use starling_balance::{Pick, Picker, Policy, Random, Readiness, hash};
use starling_endpoint::{Code, Encoding, OwnedMessage, Status};
use starling_io::{Clock, MonotonicClock};

use super::backend::Backend;
use super::background::{self, Notifier};
use super::control::{Control, run};
use super::placement::Routing;
use super::queue::{Entry, Kind, Queue, Queued};
use super::settings::Balancing;
use crate::address::Address;
use crate::channel_state::ChannelState;
use crate::driver::{DirectTransport, Driver};
use crate::error::Error;
use crate::plane::{OutgoingCall, Reply, Transport};
use crate::time::Time;

/// A call that so many backends have given back fails.
const MOST_TRIED: usize = 16;

/// The backends of a channel at a moment, and how to pick one.
pub(super) struct Snapshot {
    /// Each one has a higher version than the one before.
    pub(super) version: u64,
    pub(super) backends: Vec<Arc<Backend>>,
    /// Whether each of them was ready for calls.
    pub(super) is_ready: Vec<bool>,
    pub(super) picker: Picker,
    /// The channel is idle, or waits for the resolver's first answer: calls wait.
    pub(super) is_starting: bool,
    /// Nobody asks for backends.
    pub(super) is_idle: bool,
    /// Why no backend can take calls.
    pub(super) failure: Status,
    /// All backends are driven together.
    pub(super) is_one_loop: bool,
}

impl Snapshot {
    /// That of a channel that nobody has used yet.
    pub(super) fn idle(version: u64) -> Self {
        Self {
            version,
            backends: Vec::new(),
            is_ready: Vec::new(),
            picker: Picker::new(&Policy::default(), &[], &mut Random::new(0)),
            is_starting: true,
            is_idle: true,
            failure: Status::unavailable("the channel is not connected yet"),
            is_one_loop: false,
        }
    }
}

/// What a call does next.
enum Next {
    Send(Arc<Backend>),
    /// By a snapshot of this version. True: the snapshot is older than what its backends say.
    Wait(u64, bool),
    Fail(u64, Status),
}

pub(crate) struct Balancer {
    pub(super) this: Weak<Self>,
    pub(super) settings: Balancing,
    pub(super) snapshot: RwLock<Arc<Snapshot>>,
    pub(super) queue: Queue,
    pub(super) notifier: Arc<Notifier>,
    /// For the task in the background only.
    pub(super) control: Mutex<Control>,
    /// Also those that are not in the snapshot any more, and whose calls are not over.
    by_id: RwLock<HashMap<u64, Weak<Backend>>>,
    /// The channel's own endpoints, if it has its own.
    drivers: Mutex<Vec<(Address, Arc<Driver>)>>,
    /// Operations so far.
    started: AtomicU64,
    /// Somebody asks for the backends of an idle channel.
    is_wanted: AtomicBool,
    clock: MonotonicClock,
}

impl Balancer {
    pub(super) fn start(settings: Balancing) -> Result<Arc<Self>, Error> {
        let driver = background::driver()?;
        let notifier = Notifier::new(Arc::clone(&driver));
        let balancer = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            control: Mutex::new(Control::new(&settings)),
            settings,
            snapshot: RwLock::new(Arc::new(Snapshot::idle(0))),
            queue: Queue::default(),
            notifier: Arc::clone(&notifier),
            by_id: RwLock::default(),
            drivers: Mutex::default(),
            started: AtomicU64::new(0),
            is_wanted: AtomicBool::new(false),
            clock: MonotonicClock::new(),
        });
        let weak = Weak::clone(&balancer.this);
        driver.spawn(Box::new(move |executor| {
            Box::pin(run(weak, notifier, executor))
        }));
        Ok(balancer)
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    pub(super) fn clock(&self) -> &MonotonicClock {
        &self.clock
    }

    /// Wakes the task in the background.
    pub(super) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.notifier))
    }

    /// The channel is used: from now on its idle time begins anew.
    pub(super) fn count_use(&self) {
        self.started.fetch_add(1, Ordering::Relaxed);
    }

    /// Has the channel find its backends, if it is idle by this snapshot, though no call waits for one.
    pub(super) fn request_backends(&self, snapshot: &Snapshot) {
        self.count_use();
        if snapshot.is_idle {
            self.is_wanted.store(true, Ordering::Release);
            self.notifier.notify();
        }
    }

    pub(super) fn take_wanted(&self) -> bool {
        self.is_wanted.swap(false, Ordering::AcqRel)
    }

    pub(super) fn started(&self) -> u64 {
        self.started.load(Ordering::Relaxed)
    }

    pub(super) fn current(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read())
    }

    /// The channel as a whole (gRPC, "Connectivity Semantics").
    pub(super) fn state(&self) -> ChannelState {
        let snapshot = self.current();
        if snapshot.is_idle && self.queue.is_empty() {
            return ChannelState::Idle;
        }
        match snapshot.picker.readiness() {
            Readiness::Ready => ChannelState::Ready,
            Readiness::Pending => ChannelState::Connecting,
            Readiness::Failed if snapshot.is_starting => ChannelState::Connecting,
            Readiness::Failed => ChannelState::TransientFailure,
        }
    }

    // ---- backends ----

    /// A transport to an address.
    pub(super) fn open(&self, address: &Address) -> Result<Box<dyn Transport>, Error> {
        let address = &self.settings.management.via(address.clone())?;
        let driver = match &self.settings.own_endpoint {
            None => Driver::shared(address)?,
            Some(config) => {
                let mut drivers = self.drivers.lock();
                let reaching = drivers.iter().find(|(own, _)| own.reaches(address));
                match reaching {
                    Some((_, driver)) => Arc::clone(driver),
                    None => {
                        let driver = Arc::new(Driver::start(address, &Time::default(), config)?);
                        drivers.push((address.clone(), Arc::clone(&driver)));
                        driver
                    }
                }
            }
        };
        Ok(Box::new(DirectTransport::new(driver, address.clone())))
    }

    /// Keeps a backend to be found by its id.
    pub(super) fn remember(&self, backend: &Arc<Backend>) {
        let mut by_id = self.by_id.write();
        by_id.retain(|_, backend| backend.strong_count() > 0);
        by_id.insert(backend.id, Arc::downgrade(backend));
    }

    pub(super) fn find(&self, id: u64) -> Option<Arc<Backend>> {
        self.by_id.read().get(&id).and_then(Weak::upgrade)
    }

    // ---- operations ----

    /// Begins an operation.
    pub(super) fn begin(&self, reply: Reply, routing: Option<Box<Routing>>) {
        self.count_use();
        if let Some(entry) =
            Entry::new(reply, routing, &self.settings.name, |call| self.place(call))
            && self.dispatch(entry)
        {
            self.notifier.notify();
        }
    }

    /// Hands an operation on, or has it wait. Returns whether the background has to hear of it.
    #[must_use]
    fn dispatch(&self, mut entry: Entry) -> bool {
        loop {
            let (version, is_stale) = match self.decide(&entry) {
                Next::Send(backend) => {
                    send(&backend, entry);
                    return false;
                }
                Next::Wait(version, is_stale) => (version, is_stale),
                Next::Fail(version, status) => {
                    if !entry.waits {
                        entry.fail(status);
                        return false;
                    }
                    (version, false)
                }
            };
            // A backend that was in the way may be well by the next snapshot.
            entry.forget_tried();
            match self.queue.push(entry, version) {
                Queued::Waits(is_earlier) => {
                    return is_earlier || is_stale || self.snapshot.read().is_starting;
                }
                Queued::Again(again) => entry = again,
            }
        }
    }

    /// Looks at the operations that wait, by a snapshot that was just published or is the same. Returns
    /// whether some wait although a backend seems to be ready: they are to be looked at again soon.
    pub(super) fn dispatch_queued(&self, version: u64) -> bool {
        let mut again = false;
        let now = Instant::now();
        for entry in self.queue.take(version) {
            // A panic is that of a caller's waker. It has been reported, and the other calls go on.
            let looked_at = catch_unwind(AssertUnwindSafe(|| self.look_at(entry, version, now)));
            again |= looked_at.unwrap_or(false);
        }
        again
    }

    /// Looks at an operation that has waited. Returns whether it is to be looked at again soon.
    fn look_at(&self, entry: Entry, version: u64, now: Instant) -> bool {
        if entry.reply.call().is_abandoned() {
            return false;
        }
        if entry.deadline.is_some_and(|deadline| deadline <= now) {
            let is_resolved = !self.snapshot.read().is_starting;
            entry.expire(&self.settings.name, is_resolved);
            return false;
        }
        match self.decide(&entry) {
            Next::Send(backend) => {
                let call = entry.reply.call().clone();
                send(&backend, entry);
                // Its caller waits for no loop yet.
                backend.transport.flush();
                call.0.move_on();
                false
            }
            Next::Fail(_, status) if !entry.waits => {
                entry.fail(status);
                false
            }
            next @ (Next::Wait(..) | Next::Fail(..)) => {
                // No other snapshot can come meanwhile: this task publishes them.
                let _ = self.queue.push(entry, version);
                matches!(next, Next::Wait(_, true))
            }
        }
    }

    /// A call did not run at a backend, and may be made at another one.
    pub(super) fn go_elsewhere(&self, reply: Reply, routing: Box<Routing>, status: Status) {
        let is_last = routing.tried.len() >= MOST_TRIED;
        // No snapshot to come says that there are slots for a stream again. But a backend may come back.
        let lacks_slot = status.code() == Code::ResourceExhausted;
        let call = reply.call().clone();
        let name = &self.settings.name;
        let Some(entry) = Entry::new(reply, Some(routing), name, |call| self.place(call)) else {
            return;
        };
        if is_last {
            return entry.fail(status);
        }
        match self.decide(&entry) {
            Next::Send(backend) => {
                send(&backend, entry);
                backend.transport.flush();
                // It may be in another loop now.
                call.0.move_on();
            }
            // What this backend said is more than that there is no other one.
            Next::Fail(..) if !entry.waits => entry.fail(status),
            Next::Wait(..) | Next::Fail(..) if lacks_slot && !self.has_others(&entry) => {
                entry.fail(status);
            }
            Next::Wait(..) | Next::Fail(..) => {
                if self.dispatch(entry) {
                    self.notifier.notify();
                }
            }
        }
    }

    /// Whether there is a backend that the operation has not tried: one that is ready, unless it waits.
    fn has_others(&self, entry: &Entry) -> bool {
        let snapshot = self.snapshot.read();
        let mut untried = (snapshot.backends.iter()).filter(|it| !entry.has_tried(it.id));
        untried.any(|it| entry.waits || it.is_usable())
    }

    fn decide(&self, entry: &Entry) -> Next {
        let snapshot = self.snapshot.read();
        let version = snapshot.version;
        let Kind::Call(place) = entry.kind else {
            return match snapshot.picker.readiness() {
                Readiness::Failed if !snapshot.is_starting => {
                    Next::Fail(version, snapshot.failure.clone())
                }
                // Its connection stands: there is nothing to send.
                Readiness::Ready => match snapshot.backends.iter().find(|it| it.is_usable()) {
                    Some(backend) => Next::Send(Arc::clone(backend)),
                    None => Next::Wait(version, true),
                },
                _ => Next::Wait(version, false),
            };
        };
        let is_stale = Cell::new(false);
        let is_usable = |index: usize| {
            let backend: &Arc<Backend> = &snapshot.backends[index];
            if entry.has_tried(backend.id) {
                return false;
            }
            let is_usable = backend.is_usable();
            is_stale.set(is_stale.get() || !is_usable);
            is_usable
        };
        let is_better =
            |index: usize| is_usable(index) && !entry.avoids(snapshot.backends[index].id);
        let load = |index: usize| snapshot.backends[index].outstanding();
        let mut random = random();
        let mut picked = snapshot.picker.pick(place, &mut random, is_better, load);
        if entry.avoids_any() && !matches!(picked, Pick::Backend(_)) {
            picked = snapshot.picker.pick(place, &mut random, is_usable, load);
        }
        match picked {
            Pick::Backend(index) => Next::Send(Arc::clone(&snapshot.backends[index])),
            Pick::Wait => Next::Wait(version, is_stale.get()),
            Pick::Fail if is_stale.get() => Next::Wait(version, true),
            // One has become usable since, of which the next snapshot knows.
            Pick::Fail
                if snapshot.picker.readiness() == Readiness::Failed
                    && (0..snapshot.backends.len()).any(is_usable) =>
            {
                Next::Wait(version, true)
            }
            Pick::Fail if snapshot.is_starting => Next::Wait(version, false),
            Pick::Fail => Next::Fail(version, snapshot.failure.clone()),
        }
    }

    /// Where on the ring a call is, if there is a ring and the call has a key (gRPC A76).
    fn place(&self, call: &OutgoingCall) -> Option<u64> {
        let Policy::RingHash(ring) = self.settings.policy.policy() else {
            return None;
        };
        let metadata = call.message.metadata.view();
        let mut values = metadata.iter().filter(|(key, _)| *key == ring.key());
        let (_, first) = values.next().filter(|(_, first)| !first.is_empty())?;
        let Some((_, second)) = values.next() else {
            return Some(hash(first));
        };
        let mut joined = [first, second].join(&b',');
        for (_, value) in values {
            joined.push(b',');
            joined.extend_from_slice(value);
        }
        Some(hash(&joined))
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        // The tasks in the background end.
        self.control.get_mut().stop_asking();
        self.notifier.notify();
    }
}

fn send(backend: &Arc<Backend>, mut entry: Entry) {
    entry.leave();
    match entry.kind {
        Kind::Call(_) => backend.send(entry.reply, entry.routing),
        // The backend is connected.
        Kind::Connect => {
            let empty = (OwnedMessage::default(), Encoding::Native);
            entry.reply.finish(Ok(empty));
        }
    }
}

/// A series of random numbers.
pub(crate) fn random() -> Random {
    thread_local! {
        static SEEDS: Cell<u64> = Cell::new(RandomState::new().hash_one(std::process::id()));
    }
    let mut seeds = Random::new(SEEDS.get());
    let seed = seeds.next_u64();
    SEEDS.set(seed);
    Random::new(seed)
}
