//! What the message heaps of a device's clients may take together.
//!
//! A heap keeps a descriptor and the pages that it has used, until its client is gone and nobody has a message in it.
//! So all of them have one budget, of which the clients of one origin get half: what one of them has read slowly leaves
//! the others something. A message for which the budget has no room is made in ordinary memory, and goes through the
//! ring.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use starling_io::forks;

use crate::config::MIN_HEAP_BYTES;
use crate::heap::MessageHeap;
use crate::users::Origin;

/// The heap of one client is so much smaller than what all may take.
const CLIENTS_AT_ONCE: usize = 4;

/// Makes the heaps of a device's clients.
pub(crate) struct ClientHeaps {
    /// Of each.
    bytes: usize,
    budget: Arc<Budget>,
}

impl ClientHeaps {
    /// Heaps with at most so many bytes and descriptors together.
    pub(crate) fn new(bytes: usize, files: usize) -> Self {
        Self {
            bytes: (bytes / CLIENTS_AT_ONCE).max(MIN_HEAP_BYTES),
            budget: Arc::new(Budget {
                all: Amount { bytes, files },
                held: Mutex::default(),
                forks: forks(),
            }),
        }
    }

    /// The heap of a client, which takes nothing before the first message is made for it.
    pub(crate) fn of_client(&self, origin: Option<Origin>) -> MessageHeap {
        MessageHeap::of_client(self.bytes, &self.budget, origin)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amount {
    bytes: usize,
    files: usize,
}

impl Amount {
    fn fits(self, most: Self) -> bool {
        self.bytes <= most.bytes && self.files <= most.files
    }

    fn plus(self, more: Self) -> Self {
        Self {
            bytes: self.bytes + more.bytes,
            files: self.files + more.files,
        }
    }
}

/// What all heaps of clients may take, and what they have.
pub(crate) struct Budget {
    all: Amount,
    /// By whose clients they are. Those of whom the kernel says nothing count as one.
    held: Mutex<HashMap<Option<Origin>, Amount>>,
    /// Where in the order of forks it was made. In a child, a thread that is not there may have the lock.
    forks: u32,
}

impl Budget {
    fn held(&self) -> MutexGuard<'_, HashMap<Option<Origin>, Amount>> {
        // Nothing panics while it has the lock.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The part of a heap that is made now, for a message of so many bytes, if one more may be.
    pub(crate) fn begin(self: &Arc<Self>, origin: Option<Origin>, bytes: usize) -> Option<Part> {
        let one = Amount { bytes, files: 1 };
        (self.forks == forks() && self.take(origin, one)).then(|| Part {
            budget: Arc::clone(self),
            origin,
            has: one,
        })
    }

    fn take(&self, origin: Option<Origin>, more: Amount) -> bool {
        let mut held = self.held();
        let all = held.values().fold(more, |sum, amount| sum.plus(*amount));
        let own = held.get(&origin).copied().unwrap_or_default().plus(more);
        let of_one = Amount {
            bytes: self.all.bytes.div_ceil(2),
            files: self.all.files.div_ceil(2),
        };
        let fits = all.fits(self.all) && own.fits(of_one);
        if fits {
            held.insert(origin, own);
        }
        fits
    }
}

/// What one heap has of the budget, until it is dropped.
pub(crate) struct Part {
    budget: Arc<Budget>,
    origin: Option<Origin>,
    has: Amount,
}

impl Part {
    /// The heap is to use its first so many bytes. Returns whether it may.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> bool {
        let more = Amount {
            bytes: bytes.saturating_sub(self.has.bytes),
            files: 0,
        };
        let may = more.bytes == 0 || self.budget.take(self.origin, more);
        if may {
            self.has = self.has.plus(more);
        }
        may
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.budget.forks != forks() {
            return;
        }
        let mut held = self.budget.held();
        if let Some(own) = held.get_mut(&self.origin) {
            own.bytes -= self.has.bytes;
            own.files -= self.has.files;
            if *own == Amount::default() {
                held.remove(&self.origin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(bytes: usize, files: usize) -> Arc<Budget> {
        ClientHeaps::new(bytes, files).budget
    }

    #[test]
    fn one_origin_gets_half_and_all_get_what_there_is() {
        let budget = budget(100, 4);
        let [one, two, three] = [1, 2, 3].map(|pid| Some(Origin::Process(pid)));
        let mut first = budget.begin(one, 10).expect("the first");
        assert!(first.grow_to(50) && !first.grow_to(51), "half of 100");
        assert!(first.grow_to(20), "it has them");
        let second = budget.begin(one, 0).expect("half of the files");
        assert!(budget.begin(one, 0).is_none());
        let mut other = budget.begin(two, 0).expect("another origin");
        assert!(other.grow_to(40) && !other.grow_to(51));
        assert!(budget.begin(three, 11).is_none(), "there are 10 bytes");
        let mut third = budget.begin(three, 10).expect("the last file");
        assert!(budget.begin(two, 0).is_none(), "no file is left");
        assert!(third.grow_to(10) && !third.grow_to(11), "all have 100");
        drop(first);
        assert!(third.grow_to(50) && budget.begin(one, 0).is_some());
        drop((second, other, third));
        assert!(budget.held().is_empty());
    }
}
