//! Ports: where devices receive. The ports of a process know each other by name.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex as SleepMutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use starling_io::{Wake, forks};

use crate::LINK_BYTES;

/// Where a device receives.
pub(crate) struct Port {
    /// Unique in this process.
    pub(crate) id: u64,
    pub(crate) name: Option<String>,
    /// The process that made it; see [`forks`].
    process: u32,
    /// Not a lock of `parking_lot`: a fork inherits its table of threads that sleep.
    queue: SleepMutex<Queue>,
    /// Datagrams in the queue, for a look without the lock.
    queued: AtomicUsize,
    arrived: Condvar,
}

#[derive(Default)]
struct Queue {
    datagrams: VecDeque<Datagram>,
    is_sleeping: bool,
    /// Times that the device slept.
    sleeps: u64,
    /// The waker was used.
    is_woken: bool,
    is_closed: bool,
}

/// A datagram on its way.
pub(crate) struct Datagram {
    pub(crate) from: Arc<Port>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) room: Room,
}

/// The bytes on the way from one device to another.
pub(crate) struct Link {
    sender: Arc<Port>,
    bytes: AtomicUsize,
    /// The sender found no room.
    is_starved: AtomicBool,
}

impl Link {
    pub(crate) fn new(sender: &Arc<Port>) -> Arc<Self> {
        Arc::new(Self {
            sender: Arc::clone(sender),
            bytes: AtomicUsize::new(0),
            is_starved: AtomicBool::new(false),
        })
    }

    /// Takes room for so many bytes more. The sender is woken when there is room again.
    pub(crate) fn take_room(link: &Arc<Self>, bytes: usize) -> Option<Room> {
        let take = || {
            let more = |used: usize| (used + bytes <= LINK_BYTES).then_some(used + bytes);
            let taken = (link.bytes).fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
            taken.is_ok().then(|| Room {
                link: Arc::clone(link),
                bytes,
            })
        };
        take().or_else(|| {
            link.is_starved.store(true, Ordering::SeqCst);
            // Room that was given back before the flag was set wakes nobody.
            take()
        })
    }
}

/// Room of a [`Link`] that a datagram takes until its receiver is done with it.
pub(crate) struct Room {
    link: Arc<Link>,
    bytes: usize,
}

impl Room {
    /// Takes room for more bytes of the same datagram. False if there is none.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        match Link::take_room(&self.link, bytes) {
            Some(mut more) => {
                self.bytes += std::mem::take(&mut more.bytes);
                true
            }
            None => false,
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.link.bytes.fetch_sub(self.bytes, Ordering::SeqCst);
        if self.link.is_starved.swap(false, Ordering::SeqCst) {
            self.link.sender.wake();
        }
    }
}

/// The ports of this process.
static PORTS: Mutex<Vec<Weak<Port>>> = Mutex::new(Vec::new());
/// Counts ports that were closed, so that devices look for peers that are gone.
static CLOSINGS: AtomicU64 = AtomicU64::new(0);
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

impl Port {
    /// A new port. `None` if another port has the name.
    pub(crate) fn open(name: Option<String>) -> Option<Arc<Self>> {
        let mut ports = PORTS.lock();
        ports.retain(|port| port.strong_count() > 0);
        if name.is_some() && find(&ports, name.as_deref()).is_some() {
            return None;
        }
        let port = Arc::new(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            name,
            process: forks(),
            queue: SleepMutex::default(),
            queued: AtomicUsize::new(0),
            arrived: Condvar::new(),
        });
        ports.push(Arc::downgrade(&port));
        Some(port)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open port of this name.
    pub(crate) fn named(name: &str) -> Option<Arc<Self>> {
        find(&PORTS.lock(), Some(name))
    }

    /// Ports that were closed in this process so far.
    pub(crate) fn closings() -> u64 {
        CLOSINGS.load(Ordering::SeqCst)
    }

    /// Nothing arrives here any more. All other devices look whether a peer of theirs is gone.
    pub(crate) fn close(&self) {
        let mut queue = self.queue();
        queue.is_closed = true;
        let datagrams = std::mem::take(&mut queue.datagrams);
        drop(queue);
        // Without the lock: room that is given back wakes its sender.
        drop(datagrams);
        CLOSINGS.fetch_add(1, Ordering::SeqCst);
        let others: Vec<_> = PORTS.lock().iter().filter_map(Weak::upgrade).collect();
        others.iter().for_each(|port| port.wake());
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.queue().is_closed
    }

    /// Delivers datagrams. False if the port is closed.
    pub(crate) fn deliver(&self, datagrams: &mut Vec<Datagram>) -> bool {
        let mut queue = self.queue();
        if queue.is_closed {
            drop(queue);
            datagrams.clear();
            return false;
        }
        queue.datagrams.extend(datagrams.drain(..));
        self.queued.store(queue.datagrams.len(), Ordering::SeqCst);
        if queue.is_sleeping {
            self.arrived.notify_one();
        }
        true
    }

    /// Moves at most so many datagrams into `burst`.
    pub(crate) fn receive(&self, burst: &mut Vec<Datagram>, most: usize) {
        if self.queued.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut queue = self.queue();
        let count = queue.datagrams.len().min(most);
        burst.extend(queue.datagrams.drain(..count));
        self.queued.store(queue.datagrams.len(), Ordering::SeqCst);
    }

    /// Sleeps until a datagram is there, the waker was used, or the time is over.
    pub(crate) fn wait(&self, timeout: Option<Duration>) {
        let mut queue = self.queue();
        if queue.datagrams.is_empty() && !queue.is_woken {
            queue.is_sleeping = true;
            queue.sleeps += 1;
            queue = match timeout {
                Some(timeout) => {
                    let waited = self.arrived.wait_timeout(queue, timeout);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => (self.arrived.wait(queue)).unwrap_or_else(PoisonError::into_inner),
            };
            queue.is_sleeping = false;
        }
        queue.is_woken = false;
    }
}

impl Wake for Port {
    fn wake(&self) {
        let mut queue = self.queue();
        queue.is_woken = true;
        if queue.is_sleeping {
            self.arrived.notify_one();
        }
    }

    fn at_rest(&self) -> Option<u64> {
        let queue = self.queue();
        let has_cause = queue.is_woken || !queue.datagrams.is_empty();
        (queue.is_sleeping && !has_cause).then_some(queue.sleeps)
    }
}

fn find(ports: &[Weak<Port>], name: Option<&str>) -> Option<Arc<Port>> {
    let process = forks();
    let mut open = ports.iter().filter_map(Weak::upgrade);
    // The ports of a process that this one is a fork of are served by nobody here.
    open.find(|port| port.name.as_deref() == name && port.process == process && !port.is_closed())
}
