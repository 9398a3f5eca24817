//! The mailboxes of workers: their slots, and the owner of an item at each time.
//!
//! A slot has two words; each holds a pointer to an item.
//!
//! | owner of an item | time |
//! |---|---|
//! | the caller of [`Dispatcher::push`] | before the call |
//! | the slot | while its pointer is in `given` |
//! | an [`ItemGuard`] | after the exchange that took the pointer out of `given` |
//! | the slot | while its pointer is in `done`, with the *phase* that is due |
//! | the caller of [`Dispatcher::poll_returned`] | after the call |
//!
//! The phase is the pointer's lowest bit. It flips each time that a slot is used. So the dispatcher
//! knows which pointers in `done` it has seen already, without writing there: that line moves to the
//! dispatcher and never has to be fetched back.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crossbeam_utils::CachePadded;
use starling_prefetch::prefetch_lines;

use crate::sync::Arc;
use crate::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

/// Items that a mailbox has room for: the pointers in a cache line. Under loom fewer, because loom
/// tries each value that each of them may hold.
pub const SLOTS: usize = if cfg!(loom) { 2 } else { 8 };

/// All slots of a mailbox, one bit each.
const ALL: u8 = u8::MAX >> (8 - SLOTS);

/// The bit of a pointer that holds the phase of its slot.
const PHASE: usize = 1;

type Slots<T> = CachePadded<[AtomicPtr<T>; SLOTS]>;

struct Mailbox<T> {
    given: Slots<T>,
    done: Slots<T>,
    /// The phases that the dispatcher still waited for when it was dropped, one bit for each slot.
    due: AtomicU8,
}

fn slots<T>() -> Slots<T> {
    CachePadded::new(std::array::from_fn(|_| AtomicPtr::default()))
}

fn phase_of<T>(pointer: *mut T) -> u8 {
    (pointer.addr() & PHASE) as u8
}

fn without_phase<T>(pointer: *mut T) -> *mut T {
    pointer.map_addr(|address| address & !PHASE)
}

struct Shared<T>(Box<[Mailbox<T>]>);

impl<T> Drop for Shared<T> {
    /// Drops the items that were never taken, or never polled.
    fn drop(&mut self) {
        for mailbox in &self.0 {
            let due = mailbox.due.load(Ordering::Relaxed);
            for slot in 0..SLOTS {
                let given = mailbox.given[slot].load(Ordering::Relaxed);
                let done = mailbox.done[slot].load(Ordering::Relaxed);
                let is_due = phase_of(done) == due >> slot & 1;
                for pointer in [Some(given), is_due.then_some(done)].into_iter().flatten() {
                    if !pointer.is_null() {
                        // SAFETY: the pointer is from `Box::into_raw`, and it has no other owner: it
                        // is in one of the two words, the dispatcher has not seen it, and no thread
                        // is left to take it.
                        drop(unsafe { Box::from_raw(without_phase(pointer)) });
                    }
                }
            }
        }
    }
}

/// Makes a dispatcher with `mailboxes` mailboxes, and the workers' side of the mailboxes.
pub fn dispatcher<T: Send>(mailboxes: usize) -> (Dispatcher<T>, Mailboxes<T>) {
    const {
        assert!(
            align_of::<T>() > PHASE,
            "the phase takes a bit of the pointer"
        )
    }
    let mailbox = || Mailbox {
        given: slots(),
        done: slots(),
        due: AtomicU8::new(u8::MAX),
    };
    let shared = Arc::new(Shared(
        std::iter::repeat_with(mailbox).take(mailboxes).collect(),
    ));
    let dispatcher = Dispatcher {
        states: vec![MailboxState::default(); mailboxes].into(),
        active: vec![0; mailboxes.div_ceil(64)].into(),
        pass: Pass::default(),
        shared: Arc::clone(&shared),
    };
    (dispatcher, Mailboxes(shared))
}

/// The dispatcher's state of a mailbox.
#[derive(Clone, Debug)]
struct MailboxState {
    /// Slots with an item that has not come back, one bit each.
    busy: u8,
    /// For busy slots the phase of their item, for the others the phase of the next item.
    phases: u8,
    /// The slot of the next item, if it is free.
    next: u8,
}

impl Default for MailboxState {
    fn default() -> Self {
        Self {
            busy: 0,
            // A null pointer has the other phase.
            phases: u8::MAX,
            next: 0,
        }
    }
}

/// The position of [`Dispatcher::poll_returned`] in its pass over all mailboxes.
#[derive(Debug, Default)]
struct Pass {
    mailbox: usize,
    /// Slots of the last mailbox whose items have come back and are not handed out yet.
    found: u8,
}

/// The side that pushes items to workers. Belongs to one thread.
pub struct Dispatcher<T> {
    states: Box<[MailboxState]>,
    /// Mailboxes with a busy slot, one bit each.
    active: Box<[u64]>,
    pass: Pass,
    shared: Arc<Shared<T>>,
}

impl<T> fmt::Debug for Dispatcher<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher")
            .field("states", &self.states)
            .finish_non_exhaustive()
    }
}

/// An item that came back, and the slot that is free now.
#[derive(Debug)]
pub struct Returned<T> {
    /// The mailbox that it was pushed to, whichever worker took it.
    pub mailbox: usize,
    /// The slot that [`Dispatcher::push`] returned.
    pub slot: usize,
    /// The item.
    pub item: Box<T>,
}

impl<T: Send> Dispatcher<T> {
    /// Puts an item into a mailbox; returns its slot. A worker that alone takes from a mailbox gets
    /// the items in the order in which they were pushed.
    ///
    /// # Panics
    /// [`SLOTS`] items of the mailbox have not come back.
    #[inline]
    pub fn push(&mut self, mailbox: usize, item: Box<T>) -> usize {
        let state = &mut self.states[mailbox];
        let free = ALL & !state.busy;
        assert!(free != 0, "mailbox {mailbox} has no free slot");
        // The first free slot at or after `next`, and around.
        let after = free & u8::MAX << state.next;
        let slot = if after == 0 { free } else { after }.trailing_zeros() as usize;
        state.next = (slot as u8 + 1) % SLOTS as u8;
        state.busy |= 1 << slot;
        self.active[mailbox / 64] |= 1 << (mailbox % 64);
        let phase = usize::from(state.phases >> slot & 1);
        let pointer = Box::into_raw(item).map_addr(|address| address | phase);
        // Release: the worker that takes the item sees it as it is now. The word was empty: the
        // item that was there has come back, and for that it was taken out first.
        self.shared.0[mailbox].given[slot].store(pointer, Ordering::Release);
        slot
    }

    /// An item that came back. The calls make a pass over all mailboxes; `None` ends the pass, and
    /// the next call begins another. All items of a mailbox come from one read of its line.
    #[inline]
    pub fn poll_returned(&mut self) -> Option<Returned<T>> {
        while self.pass.found == 0 {
            let Some(mailbox) = self.next_active() else {
                self.pass.mailbox = 0;
                return None;
            };
            self.pass = Pass {
                mailbox: mailbox + 1,
                found: self.returned_slots(mailbox),
            };
        }
        let (mailbox, slot) = (
            self.pass.mailbox - 1,
            self.pass.found.trailing_zeros() as usize,
        );
        let bit = 1 << slot;
        self.pass.found &= !bit;
        let state = &mut self.states[mailbox];
        state.busy &= !bit;
        state.phases ^= bit;
        if state.busy == 0 {
            self.active[mailbox / 64] &= !(1 << (mailbox % 64));
        }
        // Relaxed: `returned_slots` has loaded the same pointer.
        let pointer = self.shared.0[mailbox].done[slot].load(Ordering::Relaxed);
        // SAFETY: the pointer is from `Box::into_raw` in `push`. Its phase is the one that was due,
        // so an `ItemGuard` has given up the item. The item was not polled before: then another
        // phase would be due.
        let item = unsafe { Box::from_raw(without_phase(pointer)) };
        Some(Returned {
            mailbox,
            slot,
            item,
        })
    }

    /// Prefetches the lines in which items come back. To be called shortly before
    /// [`Dispatcher::poll_returned`].
    #[inline]
    pub fn prefetch(&self) {
        for (index, word) in self.active.iter().enumerate() {
            let mut word = *word;
            while word != 0 {
                let mailbox = index * 64 + word.trailing_zeros() as usize;
                word &= word - 1;
                prefetch_lines(&self.shared.0[mailbox].done, 1);
            }
        }
    }

    /// The next mailbox of the pass that has a busy slot.
    #[inline]
    fn next_active(&self) -> Option<usize> {
        let from = self.pass.mailbox;
        let mut mask = u64::MAX << (from % 64);
        for (index, word) in self.active.iter().enumerate().skip(from / 64) {
            if word & mask != 0 {
                return Some(index * 64 + (word & mask).trailing_zeros() as usize);
            }
            mask = u64::MAX;
        }
        None
    }

    /// The slots whose items have come back.
    #[inline]
    fn returned_slots(&self, mailbox: usize) -> u8 {
        let state = &self.states[mailbox];
        let (mut busy, mut found) = (state.busy, 0);
        while busy != 0 {
            let slot = busy.trailing_zeros() as usize;
            busy &= busy - 1;
            // Acquire: this thread sees what the worker did to the item.
            let pointer = self.shared.0[mailbox].done[slot].load(Ordering::Acquire);
            if !pointer.is_null() && phase_of(pointer) == state.phases >> slot & 1 {
                found |= 1 << slot;
                prefetch_lines(without_phase(pointer), ITEM_LINES);
            }
        }
        found
    }
}

impl<T> Drop for Dispatcher<T> {
    /// Items that are pushed or come back from now on are dropped with the last [`Mailboxes`].
    fn drop(&mut self) {
        for (mailbox, state) in self.shared.0.iter().zip(&self.states) {
            // Ordered before the drop of `Shared` by the reference count.
            mailbox.due.store(state.phases, Ordering::Relaxed);
        }
    }
}

/// The workers' side of the mailboxes.
pub struct Mailboxes<T>(Arc<Shared<T>>);

impl<T> Clone for Mailboxes<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Mailboxes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mailboxes({})", self.0.0.len())
    }
}

impl<T: Send> Mailboxes<T> {
    /// Takes an item out of a mailbox. `first` is the slot that is looked at first. A worker that
    /// alone takes from a mailbox, and passes the slot after its last item's, gets them in order.
    #[inline]
    pub fn take(&self, mailbox: usize, first: usize) -> Option<ItemGuard<'_, T>> {
        let slots = &self.0.0[mailbox];
        for index in 0..SLOTS {
            let slot = (first + index) % SLOTS;
            // A load first: an exchange would take the line from the dispatcher in any case.
            if slots.given[slot].load(Ordering::Relaxed).is_null() {
                continue;
            }
            // Acquire: see `Dispatcher::push`.
            let pointer = slots.given[slot].swap(std::ptr::null_mut(), Ordering::Acquire);
            if !pointer.is_null() {
                return Some(ItemGuard {
                    back: &slots.done[slot],
                    pointer,
                    slot,
                    item: PhantomData,
                });
            }
        }
        None
    }

    /// Whether a mailbox has no item to take.
    pub fn is_empty(&self, mailbox: usize) -> bool {
        let mut slots = self.0.0[mailbox].given.iter();
        slots.all(|slot| slot.load(Ordering::Relaxed).is_null())
    }
}

/// An item that a worker has taken. Dropping the guard returns the item to the dispatcher, also
/// during a panic.
pub struct ItemGuard<'a, T> {
    back: &'a AtomicPtr<T>,
    /// With the phase of the item.
    pointer: *mut T,
    slot: usize,
    item: PhantomData<&'a mut T>,
}

impl<T> ItemGuard<'_, T> {
    /// The slot of the item.
    pub fn slot(&self) -> usize {
        self.slot
    }
}

impl<T: fmt::Debug> fmt::Debug for ItemGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}

impl<T> Deref for ItemGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the pointer is from `Box::into_raw`, and this guard is its only owner until the
        // drop: the exchange in `take` gave the pointer to no other thread.
        unsafe { &*without_phase(self.pointer) }
    }
}

impl<T> DerefMut for ItemGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *without_phase(self.pointer) }
    }
}

impl<T> Drop for ItemGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: see `Dispatcher::returned_slots`.
        self.back.store(self.pointer, Ordering::Release);
    }
}

/// Lines of an item that are prefetched when it has come back.
const ITEM_LINES: usize = 4;

#[cfg(all(test, not(loom)))]
mod tests;
