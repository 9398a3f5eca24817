//! Devices with accept queues: they have the name of the device that listens, which gives them connections.
//!
//! ```text
//!  connect ─▶ device that listens ── assign ─┬─▶ none: its own
//!                                            └─▶ accept queue ─▶ another device
//! ```
//!
//! So a process can have a device for each of its clients, and drive them by different threads.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use starling_io::{EventfdWaker, IoError, PeerProcess, Wake};

use super::ShmIo;
use super::admission::Places;
use crate::closer::Closer;
use crate::config::ShmConfig;
use crate::handshake::Answer;
use crate::pending::CompletedHandshake;
use crate::sys;
use crate::users::{self, Origin};

/// Connections that wait for a device that is busy, at most. Further ones are refused.
const MAX_WAITING: usize = 256;

/// So many accept queues in a row may be closed for one connection.
const MAX_TRIES: usize = 3;

/// Descriptors of a device, besides those of its peers.
const FILES_OF_DEVICE: usize = 4;

/// Says which device gets a connection of a process.
pub(super) type Assign = dyn FnMut(Option<PeerProcess>) -> Option<AcceptQueue> + Send;

/// What all devices with accept queues of one name have together.
struct Budget {
    /// Peers, and message heaps of theirs.
    places: Places,
    /// Descriptors, for devices and peers.
    files: usize,
    of_one: usize,
    /// Peers, by whose they are.
    held: Mutex<HashMap<Option<Origin>, usize>>,
    heaps: AtomicUsize,
    devices: AtomicUsize,
}

impl Budget {
    fn held(&self) -> MutexGuard<'_, HashMap<Option<Origin>, usize>> {
        // Nothing panics while it has the lock.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a peer of this origin, if there is one.
    fn take(&self, origin: Option<Origin>) -> bool {
        let mut held = self.held();
        let own = held.get(&origin).copied().unwrap_or(0);
        let all: usize = held.values().sum();
        let files = all + FILES_OF_DEVICE * self.devices.load(Ordering::Relaxed);
        let has_place = all < self.places.peers && files < self.files;
        let fits = has_place && (origin.is_none() || own < self.of_one);
        if fits {
            held.insert(origin, own + 1);
        }
        fits
    }

    fn give_back(&self, origin: Option<Origin>) {
        let mut held = self.held();
        if let Some(own) = held.get_mut(&origin) {
            *own -= 1;
            if *own == 0 {
                held.remove(&origin);
            }
        }
    }
}

/// Makes devices of one name that have accept queues.
pub struct AcceptQueues {
    budget: Arc<Budget>,
    /// One for all of them: who listens looks whether it is behind.
    closer: Closer,
    address: String,
    config: ShmConfig,
}

struct Shared {
    waker: Arc<EventfdWaker>,
    budget: Arc<Budget>,
    /// Whether connections wait.
    has_some: AtomicBool,
    /// Whether one has come.
    is_used: AtomicBool,
    /// Connections that wait, and peers of the device.
    peers: AtomicUsize,
    /// `None`: it is closed.
    waiting: Mutex<Option<VecDeque<CompletedHandshake>>>,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Option<VecDeque<CompletedHandshake>>> {
        // Nothing panics while it has the lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, origin: Option<Origin>) {
        self.peers.fetch_sub(1, Ordering::AcqRel);
        self.budget.give_back(origin);
    }
}

/// The way to a device, for connections that come to another one's name.
#[derive(Clone)]
pub struct AcceptQueue(Arc<Shared>);

impl fmt::Debug for AcceptQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcceptQueue").finish_non_exhaustive()
    }
}

impl AcceptQueue {
    /// Whether the device is gone, or it was closed: a connection needs another one.
    pub fn is_closed(&self) -> bool {
        self.0.waiting().is_none()
    }

    /// Closes it if the device has no peers any more, and none wait. Returns whether it is closed. A new one stays
    /// open until a connection has come: that for which it was made is given to it in another thread.
    pub fn close_if_deserted(&self) -> bool {
        let is_deserted =
            || self.0.peers.load(Ordering::Acquire) == 0 && self.0.is_used.load(Ordering::Acquire);
        if !is_deserted() {
            return false;
        }
        let mut waiting = self.0.waiting();
        if is_deserted() {
            *waiting = None;
        }
        waiting.is_none()
    }

    /// Gives the device a connection, or refuses it. Returns it if the queue is closed.
    fn give(&self, handshake: CompletedHandshake) -> Option<CompletedHandshake> {
        let origin = Origin::of(&handshake.socket);
        let mut waiting = self.0.waiting();
        let Some(queue) = waiting.as_mut() else {
            return Some(handshake);
        };
        // Also if it is refused.
        self.0.is_used.store(true, Ordering::Release);
        if queue.len() >= MAX_WAITING || !self.0.budget.take(origin) {
            // If the peer does not receive the answer, it sees the connection close.
            let _ = sys::send(&handshake.socket, &Answer::Full.encode());
            return None;
        }
        queue.push_back(handshake);
        self.0.peers.fetch_add(1, Ordering::AcqRel);
        self.0.has_some.store(true, Ordering::Release);
        self.0.waker.wake();
        None
    }
}

/// An accept queue as its device has it.
pub(super) struct OwnQueue {
    queue: AcceptQueue,
    /// Whose peers have come through it and are not gone, and the message heaps of them.
    peers: RefCell<Vec<Option<Origin>>>,
    heaps: Cell<usize>,
}

impl OwnQueue {
    fn new(queue: AcceptQueue) -> Self {
        Self {
            queue,
            peers: RefCell::default(),
            heaps: Cell::new(0),
        }
    }

    /// The connections that have come.
    fn take(&self) -> VecDeque<CompletedHandshake> {
        let AcceptQueue(shared) = &self.queue;
        if !shared.has_some.swap(false, Ordering::AcqRel) {
            return VecDeque::new();
        }
        let mut waiting = shared.waiting();
        let taken = waiting.as_mut().map(std::mem::take).unwrap_or_default();
        let origins = taken.iter().map(|handshake| Origin::of(&handshake.socket));
        self.peers.borrow_mut().extend(origins);
        taken
    }

    /// Takes room for the message heap of a peer, if there is some.
    pub(super) fn take_heap(&self) -> bool {
        let budget = &self.queue.0.budget;
        let more = |heaps| (heaps < budget.places.heaps).then_some(heaps + 1);
        let (set, get) = (Ordering::Relaxed, Ordering::Relaxed);
        let is_taken = budget.heaps.fetch_update(set, get, more).is_ok();
        self.heaps.update(|heaps| heaps + usize::from(is_taken));
        is_taken
    }

    /// A peer is gone, or was not taken.
    pub(super) fn forget(&self, origin: Option<Origin>, has_heap: bool) {
        let mut peers = self.peers.borrow_mut();
        let place = peers.iter().position(|peer| *peer == origin);
        let Some(place) = place else {
            return;
        };
        peers.swap_remove(place);
        self.queue.0.forget(origin);
        if has_heap {
            self.heaps.update(|heaps| heaps - 1);
            self.queue.0.budget.heaps.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for OwnQueue {
    fn drop(&mut self) {
        let AcceptQueue(shared) = &self.queue;
        // Those that still wait see their connections close, as those that have come do.
        let waiting = shared.waiting().take().unwrap_or_default();
        let waiting = waiting.iter().map(|it| Origin::of(&it.socket));
        for origin in waiting.chain(self.peers.take()) {
            shared.forget(origin);
        }
        let budget = &shared.budget;
        budget.heaps.fetch_sub(self.heaps.get(), Ordering::Relaxed);
        budget.devices.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AcceptQueues {
    /// A device with a new accept queue.
    ///
    /// # Errors
    /// If the process has no file descriptors left.
    pub fn open(&self) -> Result<(ShmIo, AcceptQueue), IoError> {
        let attempt = format!("open a device of {}", self.address);
        let mut device = ShmIo::new(&attempt, None, self.address.clone(), self.config.clone())?;
        device.places = self.budget.places;
        device.closer = self.closer.clone();
        self.budget.devices.fetch_add(1, Ordering::Relaxed);
        let queue = AcceptQueue(Arc::new(Shared {
            waker: Arc::clone(&device.waker),
            budget: Arc::clone(&self.budget),
            has_some: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            peers: AtomicUsize::new(0),
            waiting: Mutex::new(Some(VecDeque::new())),
        }));
        device.queue = Some(OwnQueue::new(queue.clone()));
        Ok((device, queue))
    }
}

impl ShmIo {
    /// Makes accept queues for connections that come to this device's name. All devices with one have as many peers
    /// together as this one could have: it has an eighth of them itself from now on.
    pub fn accept_queues(&mut self) -> AcceptQueues {
        let (places, files) = self.places.of_several();
        self.places = self.places.an_eighth();
        AcceptQueues {
            closer: self.closer.clone(),
            budget: Arc::new(Budget {
                places,
                files,
                of_one: self.config.max_peers_of_one,
                held: Mutex::default(),
                heaps: AtomicUsize::new(0),
                devices: AtomicUsize::new(0),
            }),
            address: self.address.clone(),
            config: ShmConfig {
                heap_bytes: 0,
                ..self.config.clone()
            },
        }
    }

    /// Has somebody say which device gets each connection that comes to this one's name: this one, or another one by
    /// its accept queue. It is asked in this device's turns.
    pub fn assign_by(
        &mut self,
        assign: impl FnMut(Option<PeerProcess>) -> Option<AcceptQueue> + Send + 'static,
    ) {
        self.assign = Some(Box::new(assign));
    }

    /// Makes a peer of a connection, or gives it to the device that is to have it.
    pub(super) fn accept_or_give(&mut self, handshake: CompletedHandshake) {
        let Some(assign) = &mut self.assign else {
            return self.accept(handshake);
        };
        let process = users::process_of(&handshake.socket);
        let mut own = handshake;
        // A queue may be closed just now.
        for _ in 0..MAX_TRIES {
            let Some(queue) = assign(process) else {
                return self.accept(own);
            };
            match queue.give(own) {
                Some(again) => own = again,
                None => return,
            }
        }
        self.counts.refused += 1;
        let _ = sys::send(&own.socket, &Answer::Full.encode());
    }

    /// Makes peers of the connections that have come by the queue.
    pub(super) fn accept_given(&mut self) {
        let Some(queue) = &self.queue else {
            return;
        };
        for handshake in queue.take() {
            self.accept(handshake);
        }
    }
}
