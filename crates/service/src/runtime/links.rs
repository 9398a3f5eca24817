//! The links of a runtime: which take turns, and which wait.
//!
//! ```text
//!           has work, or a call is made on it
//!   parked ───────────────────────────────────▶ active: a turn in each round
//!     ▲                                            │
//!     └──────────── spun for long enough ──────────┘
//! ```

use std::os::fd::OwnedFd;
use std::time::Duration;

use slab::Slab;
use starling_io::{Clock, MonotonicClock, ReactorWait};
use starling_io_shm::AcceptQueue;

use super::poller::Poller;
use crate::error::ServiceError;
use crate::link::Link;

pub(super) type LinkId = usize;

/// How long a runtime sleeps at most while a link cannot be watched.
const UNWATCHED_SLEEP_NS: u64 = 1_000_000;

/// Who waits for a link's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Nobody: it takes turns.
    None,
    /// The runtime's poller: the link is parked.
    Watched,
    /// Nobody can: it takes turns, and its device is looked at when it is due.
    Unwatched,
}

pub(super) struct LinkEntry {
    pub(super) link: Box<dyn Link>,
    /// The process whose link it is, and the way by which its connections come.
    pub(super) queue: Option<(u32, AcceptQueue)>,
    /// Watched while it is parked. None: it cannot be.
    descriptor: Option<OwnedFd>,
    wait: Wait,
    /// When it has to take a turn though nothing arrives. Known while it is parked.
    due_ns: Option<u64>,
    /// [`Link::sessions_changed`], as it was last seen.
    pub(super) sessions_seen: u64,
    /// Routes that end at it.
    pub(super) routes: usize,
    /// Those of them whose session is not open yet.
    pub(super) connecting: usize,
}

pub(super) struct Links {
    entries: Slab<LinkEntry>,
    clock: MonotonicClock,
    poller: Poller,
    /// One that span when links were parked last.
    spinning: Option<LinkId>,
    deserted: Vec<LinkId>,
}

impl Links {
    pub(super) fn new(clock: MonotonicClock, poller: Poller) -> Self {
        Self {
            entries: Slab::new(),
            clock,
            poller,
            spinning: None,
            deserted: Vec::new(),
        }
    }

    /// A link that spins.
    pub(super) fn spinning(&self) -> Option<LinkId> {
        self.spinning
    }

    pub(super) fn poller(&self) -> &Poller {
        &self.poller
    }

    pub(super) fn insert(&mut self, link: Box<dyn Link>) -> Result<LinkId, ServiceError> {
        self.admit(link, None)
    }

    /// The links by which a process connects.
    pub(super) fn of_process(&self, process: u32) -> Vec<LinkId> {
        let is_of = |entry: &LinkEntry| entry.queue.as_ref().is_some_and(|(of, _)| *of == process);
        let own = self.entries.iter().filter(|(_, entry)| is_of(entry));
        own.map(|(id, _)| id).collect()
    }

    /// The links by which processes connected that have no connection any more. None comes by them from now on.
    pub(super) fn take_deserted(&mut self) -> Vec<LinkId> {
        std::mem::take(&mut self.deserted)
    }

    pub(super) fn admit(
        &mut self,
        mut link: Box<dyn Link>,
        queue: Option<(u32, AcceptQueue)>,
    ) -> Result<LinkId, ServiceError> {
        let descriptor = link.descriptor();
        let place = self.entries.vacant_entry();
        if let Some(descriptor) = &descriptor {
            self.poller.add(place.key(), descriptor)?;
        }
        let id = place.key();
        place.insert(LinkEntry {
            link,
            queue,
            descriptor,
            wait: Wait::None,
            due_ns: None,
            sessions_seen: 0,
            routes: 0,
            connecting: 0,
        });
        Ok(id)
    }

    /// Takes out a link, which goes on elsewhere.
    pub(super) fn take(&mut self, id: LinkId) -> Option<LinkEntry> {
        self.wake(id);
        let entry = self.entries.try_remove(id)?;
        if let Some(descriptor) = &entry.descriptor {
            self.poller.remove(descriptor);
        }
        Some(entry)
    }

    /// Goes on with a link that was taken out elsewhere.
    pub(super) fn put(&mut self, entry: LinkEntry) -> Result<LinkId, Box<LinkEntry>> {
        let place = self.entries.vacant_entry();
        let watched = entry.descriptor.as_ref();
        let watched = watched.map_or(Ok(()), |it| self.poller.add(place.key(), it));
        if watched.is_err() {
            return Err(Box::new(entry));
        }
        let id = place.key();
        place.insert(entry);
        Ok(id)
    }

    /// Ends a link, and its sessions: what was said last leaves. Returns the process whose own link it was.
    pub(super) fn remove(&mut self, id: LinkId) -> Option<u32> {
        self.wake(id);
        let mut entry = self.entries.try_remove(id)?;
        entry.link.end();
        entry.queue.map(|(process, _)| process)
    }

    /// Ends all links.
    pub(super) fn end_all(&mut self) {
        let all: Vec<LinkId> = self.entries.iter().map(|(id, _)| id).collect();
        for id in all {
            self.remove(id);
        }
    }

    /// A link that is not parked, or of which only is asked how it is.
    pub(super) fn get_mut(&mut self, id: LinkId) -> Option<&mut LinkEntry> {
        self.entries.get_mut(id)
    }

    /// A link, to use it: it takes a turn in the next round.
    pub(super) fn awake(&mut self, id: LinkId) -> Option<&mut LinkEntry> {
        self.wake(id);
        self.entries.get_mut(id)
    }

    fn wake(&mut self, id: LinkId) {
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        entry.due_ns = None;
        if std::mem::replace(&mut entry.wait, Wait::None) != Wait::None {
            // Has the device look at what it waits for. If it fails, so does the turn that follows.
            let _ = entry.link.end_wait();
        }
    }

    /// The links that take turns.
    pub(super) fn active(&self, into: &mut Vec<LinkId>) {
        into.clear();
        let active = (self.entries.iter()).filter(|(_, entry)| entry.wait != Wait::Watched);
        into.extend(active.map(|(id, _)| id));
    }

    /// Parks the links that do not spin. Returns whether the runtime may sleep.
    pub(super) fn park(&mut self) -> Result<bool, ServiceError> {
        let mut all = true;
        self.spinning = None;
        for (id, entry) in &mut self.entries {
            if entry.wait != Wait::None {
                continue;
            }
            if let Some((_, queue)) = &entry.queue
                && queue.close_if_deserted()
            {
                self.deserted.push(id);
            }
            if entry.link.spins() {
                all = false;
                self.spinning = Some(id);
                continue;
            }
            let due_ns = entry.link.next_timer_ns();
            match (entry.link.begin_wait(), &entry.descriptor) {
                (Ok(ReactorWait::Begun), Some(descriptor)) => {
                    entry.wait = Wait::Watched;
                    entry.due_ns = due_ns;
                    self.poller.watch(id, descriptor)?;
                }
                // There were none left for it.
                (Ok(ReactorWait::Begun), None) => {
                    let _ = entry.link.end_wait();
                    entry.wait = Wait::Unwatched;
                    entry.due_ns = Some(self.clock.now_ns() + UNWATCHED_SLEEP_NS);
                }
                (Ok(ReactorWait::Unsupported), _) => {
                    entry.wait = Wait::Unwatched;
                    entry.due_ns = Some(self.clock.now_ns() + UNWATCHED_SLEEP_NS);
                }
                // A failure shows in its next turn.
                (Ok(ReactorWait::Ready) | Err(_), _) => all = false,
            }
        }
        Ok(all)
    }

    /// Wakes the links for which something arrived, or whose time has come, after a sleep if `may_sleep`, at most until
    /// the given time.
    pub(super) fn look(
        &mut self,
        may_sleep: bool,
        until_ns: Option<u64>,
    ) -> Result<(), ServiceError> {
        let due_ns = self
            .entries
            .iter()
            .filter_map(|(_, entry)| entry.due_ns)
            .chain(until_ns)
            .min();
        let timeout = match (may_sleep, due_ns) {
            (false, _) => Some(Duration::ZERO),
            (true, None) => None,
            (true, Some(due_ns)) => Some(Duration::from_nanos(
                due_ns.saturating_sub(self.clock.now_ns()),
            )),
        };
        for id in self.poller.wait(timeout)? {
            self.wake(id);
        }
        let now_ns = match due_ns {
            Some(_) => self.clock.now_ns(),
            None => return Ok(()),
        };
        let is_due = |entry: &LinkEntry| entry.due_ns.is_some_and(|due_ns| due_ns <= now_ns);
        let due = self.entries.iter().filter(|(_, entry)| is_due(entry));
        let due: Vec<LinkId> = due.map(|(id, _)| id).collect();
        for id in due {
            self.wake(id);
        }
        Ok(())
    }
}
