//! Requests that are worked on outside their handler: deferred, or in workers.
//!
//! A request is cancelled at once when its caller no longer waits: the caller cancelled it, has
//! failed, or the deadline passed.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use starling_call::Cancellation;
use starling_proto::RequestId;

use crate::room::{Holding, Room};
use crate::server::{cancelled, expired};
use crate::slab::Slab;
use crate::timers::{NEVER, Timers};

/// So many requests may wait before anything is allocated.
const FEW: usize = 128;

/// Whether a request's caller waits, the key of its deadline if that has not passed, and the room that it takes.
#[derive(Debug)]
struct Entry {
    cancellation: Cancellation,
    /// [`NEVER`]: none. Not an `Option`: thousands of requests may wait.
    deadline: u64,
    holding: Option<Holding>,
}

const _: () = assert!(size_of::<(RequestId, Entry)>() == 48);

#[derive(Debug)]
pub(crate) struct Pending {
    requests: HashMap<RequestId, Entry, RandomState>,
    timers: Timers,
    /// The requests with a deadline, by its key.
    deadlines: Slab<RequestId>,
    room: Room,
}

impl Drop for Pending {
    /// The endpoint is dropped: no answer can be sent any more.
    fn drop(&mut self) {
        for entry in self.requests.values() {
            entry.cancellation.cancel(cancelled());
        }
    }
}

impl Pending {
    pub(crate) fn new(room: Room) -> Self {
        Self {
            // A table that is more than half full of live and removed entries may grow; one with so few live
            // ones cleans up in place.
            requests: HashMap::with_capacity_and_hasher(FEW, RandomState::default()),
            timers: Timers::default(),
            deadlines: Slab::new(usize::MAX),
            room,
        }
    }

    /// Whether there is room for one more request.
    pub(crate) fn admits(&self, request: Holding) -> bool {
        self.room.admits(request)
    }

    /// A request waits for its handler, and was admitted.
    pub(crate) fn hold(&mut self, request: Holding) {
        self.room.add(request);
    }

    /// It waits no more.
    pub(crate) fn release(&mut self, request: Holding) {
        self.room.remove(request);
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Requests that take room.
    pub(crate) fn waiting(&self) -> usize {
        self.room.requests()
    }

    /// Bytes of the messages of requests that wait.
    pub(crate) fn bytes(&self) -> usize {
        self.room.bytes()
    }

    /// The most memory that requests took since this was last asked, and now.
    pub(crate) fn take_most_held(&mut self) -> usize {
        self.room.take_most()
    }

    /// Adds a request. It takes room, and was admitted, unless `holding` is `None`.
    pub(crate) fn insert(
        &mut self,
        id: RequestId,
        cancellation: Cancellation,
        deadline_ns: u64,
        holding: Option<Holding>,
    ) {
        let mut entry = Entry {
            cancellation,
            deadline: NEVER,
            holding,
        };
        if let Some(holding) = holding {
            self.room.add(holding);
        }
        // If the table is full, with 2^31 requests, the deadline is not noticed; nothing else
        // fails.
        if deadline_ns != NEVER
            && let Ok(key) = self.deadlines.insert(id)
        {
            let live = &self.deadlines;
            self.timers
                .arm(deadline_ns, key, |key| live.get(key).is_some());
            entry.deadline = key;
        }
        self.requests.insert(id, entry);
    }

    /// Removes a request that was answered.
    pub(crate) fn remove(&mut self, id: RequestId) {
        let Some(entry) = self.requests.remove(&id) else {
            return;
        };
        if entry.deadline != NEVER {
            self.deadlines.remove(entry.deadline);
            self.timers.disarm();
        }
        if let Some(holding) = entry.holding {
            self.room.remove(holding);
        }
    }

    /// Cancels a request because its client no longer waits. It stays here, and takes room, until it is
    /// answered all the same.
    pub(crate) fn cancel(&mut self, id: RequestId) {
        if let Some(entry) = self.requests.get(&id) {
            entry.cancellation.cancel(cancelled());
        }
    }

    /// When the next deadline comes.
    pub(crate) fn next_deadline(&mut self) -> Option<u64> {
        let live = &self.deadlines;
        self.timers.next(|key| live.get(key).is_some())
    }

    /// Cancels the requests whose deadline has come.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        while let Some(key) = self.timers.pop_due(now_ns) {
            let Some(id) = self.deadlines.remove(key) else {
                continue;
            };
            self.timers.disarm();
            if let Some(entry) = self.requests.get_mut(&id) {
                entry.deadline = NEVER;
                entry.cancellation.cancel(expired());
            }
        }
    }
}
