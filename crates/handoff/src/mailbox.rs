//! The slots of each worker, and who owns an item at which time.
//!
//! A slot's two words are pointers. An item is owned by
//!
//! | who | while |
//! |---|---|
//! | whoever calls [`Dispatcher::push`] | before that |
//! | the slot | its pointer is in `given` |
//! | a [`ItemGuard`] | after the exchange that took the pointer out of `given` |
//! | the slot | its pointer is in `done`, with the *phase* that is due |
//! | whoever called [`Dispatcher::poll_returned`] | after that |
//!
//! The phase is the pointer's lowest bit, and another one each time that a slot is used. So the dispatcher
//! knows what it has seen of `done` already without writing there: that line goes to the dispatcher and
//! never has to be fetched back.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crossbeam_utils::CachePadded;
use starling_prefetch::prefetch_lines;

use crate::sync::Arc;
use crate::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

/// Items that a mailbox has room for: as many as there are pointers in a cache line. (Under loom fewer,
/// as it tries whatever each of them may hold.)
pub const SLOTS: usize = if cfg!(loom) { 2 } else { 8 };

/// All slots of a mailbox, a bit for each.
const ALL: u8 = u8::MAX >> (8 - SLOTS);

/// The bit of a pointer that says in which phase its slot is.
const PHASE: usize = 1;

type Slots<T> = CachePadded<[AtomicPtr<T>; SLOTS]>;

struct Mailbox<T> {
    given: Slots<T>,
    done: Slots<T>,
    /// The phases that the dispatcher still waited for when it was dropped, a bit for each slot.
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
    /// Items that were never taken, or never taken back.
    fn drop(&mut self) {
        for mailbox in &self.0 {
            let due = mailbox.due.load(Ordering::Relaxed);
            for slot in 0..SLOTS {
                let given = mailbox.given[slot].load(Ordering::Relaxed);
                let done = mailbox.done[slot].load(Ordering::Relaxed);
                let is_due = phase_of(done) == due >> slot & 1;
                for pointer in [Some(given), is_due.then_some(done)].into_iter().flatten() {
                    if !pointer.is_null() {
                        // SAFETY: it is from `Box::into_raw`, and nobody else has it: it is in one
                        // of the two words, not seen by the dispatcher, and nobody is left to take it.
                        drop(unsafe { Box::from_raw(without_phase(pointer)) });
                    }
                }
            }
        }
    }
}

/// A dispatcher for so many mailboxes, and the mailboxes as workers see them.
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
        look: Look::default(),
        shared: Arc::clone(&shared),
    };
    (dispatcher, Mailboxes(shared))
}

/// What the dispatcher knows of a mailbox.
#[derive(Clone, Debug)]
struct MailboxState {
    /// Slots with an item that has not come back, a bit for each.
    busy: u8,
    /// Laps of those; of the others, of the next item.
    phases: u8,
    /// Where the next item goes, if that is free.
    next: u8,
}

impl Default for MailboxState {
    fn default() -> Self {
        Self {
            busy: 0,
            // Not that of a null pointer.
            phases: u8::MAX,
            next: 0,
        }
    }
}

/// How far [`Dispatcher::poll_returned`] is in its look at all mailboxes.
#[derive(Debug, Default)]
struct Look {
    mailbox: usize,
    /// Slots of the mailbox whose items have come back and are not taken yet.
    found: u8,
}

/// The side that hands over. Belongs to one thread.
pub struct Dispatcher<T> {
    states: Box<[MailboxState]>,
    /// Mailboxes with a busy slot, a bit for each.
    active: Box<[u64]>,
    look: Look,
    shared: Arc<Shared<T>>,
}

impl<T> fmt::Debug for Dispatcher<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher")
            .field("states", &self.states)
            .finish_non_exhaustive()
    }
}

/// An item that came back, and the place that is free now.
#[derive(Debug)]
pub struct Returned<T> {
    /// The mailbox that it was given to, whoever took it.
    pub mailbox: usize,
    /// What [`Dispatcher::push`] returned.
    pub slot: usize,
    /// The item.
    pub item: Box<T>,
}

impl<T: Send> Dispatcher<T> {
    /// Puts an item into a mailbox; returns its slot. A worker that looks takes those of one mailbox in
    /// the order that they were given in, as long as nobody else takes from it.
    ///
    /// # Panics
    /// If [`SLOTS`] items of the mailbox have not come back.
    #[inline]
    pub fn push(&mut self, mailbox: usize, item: Box<T>) -> usize {
        let state = &mut self.states[mailbox];
        let free = ALL & !state.busy;
        assert!(free != 0, "mailbox {mailbox} has no free slot");
        // The first one at or after `next`, and around.
        let after = free & u8::MAX << state.next;
        let slot = if after == 0 { free } else { after }.trailing_zeros() as usize;
        state.next = (slot as u8 + 1) % SLOTS as u8;
        state.busy |= 1 << slot;
        self.active[mailbox / 64] |= 1 << (mailbox % 64);
        let phase = usize::from(state.phases >> slot & 1);
        let pointer = Box::into_raw(item).map_addr(|address| address | phase);
        // Release: whoever takes it sees the item as it is now. Empty before, as what was there
        // had come back, for which it was taken out first.
        self.shared.0[mailbox].given[slot].store(pointer, Ordering::Release);
        slot
    }

    /// An item that came back. Looks at each mailbox once; `None` ends the look, and the next call
    /// begins another one. All that is found in a mailbox comes from one look at its line.
    #[inline]
    pub fn poll_returned(&mut self) -> Option<Returned<T>> {
        while self.look.found == 0 {
            let Some(mailbox) = self.next_active() else {
                self.look.mailbox = 0;
                return None;
            };
            self.look = Look {
                mailbox: mailbox + 1,
                found: self.look_at(mailbox),
            };
        }
        let (mailbox, slot) = (
            self.look.mailbox - 1,
            self.look.found.trailing_zeros() as usize,
        );
        let bit = 1 << slot;
        self.look.found &= !bit;
        let state = &mut self.states[mailbox];
        state.busy &= !bit;
        state.phases ^= bit;
        if state.busy == 0 {
            self.active[mailbox / 64] &= !(1 << (mailbox % 64));
        }
        // Relaxed: `look_at` has loaded the same pointer.
        let pointer = self.shared.0[mailbox].done[slot].load(Ordering::Relaxed);
        // SAFETY: from `Box::into_raw` in `push`. Its phase is the one that was due, so a `ItemGuard` has
        // given up the item, and it was not taken back before: then another phase would be due.
        let item = unsafe { Box::from_raw(without_phase(pointer)) };
        Some(Returned {
            mailbox,
            slot,
            item,
        })
    }

    /// Asks for the lines in which items come back, to be looked at a little later.
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

    /// The first mailbox at or after the one that is to be looked at next that has something.
    #[inline]
    fn next_active(&self) -> Option<usize> {
        let from = self.look.mailbox;
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
    fn look_at(&self, mailbox: usize) -> u8 {
        let state = &self.states[mailbox];
        let (mut busy, mut found) = (state.busy, 0);
        while busy != 0 {
            let slot = busy.trailing_zeros() as usize;
            busy &= busy - 1;
            // Acquire: what was done to the item is seen by who takes it back.
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
    /// What is given or comes back from now on is dropped with the last of the [`Mailboxes`].
    fn drop(&mut self) {
        for (mailbox, state) in self.shared.0.iter().zip(&self.states) {
            // Ordered before the drop of `Shared` by the reference count.
            mailbox.due.store(state.phases, Ordering::Relaxed);
        }
    }
}

/// The mailboxes as workers see them.
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
    /// Takes an item out of a mailbox. Who always takes from one mailbox, alone, and passes the slot
    /// after that of its last item as `first`, gets them in order.
    #[inline]
    pub fn take(&self, mailbox: usize, first: usize) -> Option<ItemGuard<'_, T>> {
        let slots = &self.0.0[mailbox];
        for index in 0..SLOTS {
            let slot = (first + index) % SLOTS;
            // A look first: an exchange would take the line away from the dispatcher in any case.
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

    /// Whether nobody has to take anything out of a mailbox.
    pub fn is_empty(&self, mailbox: usize) -> bool {
        let mut slots = self.0.0[mailbox].given.iter();
        slots.all(|slot| slot.load(Ordering::Relaxed).is_null())
    }
}

/// An item that a worker has. Goes back to the dispatcher when it is dropped, also by a panic.
pub struct ItemGuard<'a, T> {
    back: &'a AtomicPtr<T>,
    /// With its phase.
    pointer: *mut T,
    slot: usize,
    item: PhantomData<&'a mut T>,
}

impl<T> ItemGuard<'_, T> {
    /// Its slot.
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
        // SAFETY: from `Box::into_raw`, and this is the only one who has it until the drop: the
        // exchange in `take` gave the pointer to nobody else.
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
        // Release: see `Dispatcher::look_at`.
        self.back.store(self.pointer, Ordering::Release);
    }
}

/// Lines of an item that are asked for when it has come back.
const ITEM_LINES: usize = 4;

#[cfg(all(test, not(loom)))]
mod tests;
