//! The slots of each worker, and who owns an item at which time.
//!
//! A slot's two words are pointers. An item is owned by
//!
//! | who | while |
//! |---|---|
//! | whoever calls [`Desk::give`] | before that |
//! | the slot | its pointer is in `given` |
//! | a [`Taken`] | after the exchange that took the pointer out of `given` |
//! | the slot | its pointer is in `done`, with the *lap* that is due |
//! | whoever called [`Desk::take_back`] | after that |
//!
//! The lap is the pointer's lowest bit, and another one each time that a slot is used. So the desk
//! knows what it has seen of `done` already without writing there: that line goes to the desk and
//! never has to be fetched back.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crossbeam_utils::CachePadded;

use crate::sync::Arc;
use crate::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

/// Items that a seat has room for: as many as there are pointers in a cache line. (Under loom fewer,
/// as it tries whatever each of them may hold.)
pub const SLOTS: usize = if cfg!(loom) { 2 } else { 8 };

/// All slots of a seat, a bit for each.
const ALL: u8 = u8::MAX >> (8 - SLOTS);

/// The bit of a pointer that says in which lap its slot is.
const LAP: usize = 1;

type Slots<T> = CachePadded<[AtomicPtr<T>; SLOTS]>;

struct Seat<T> {
    given: Slots<T>,
    done: Slots<T>,
    /// The laps that the desk still waited for when it was dropped, a bit for each slot.
    due: AtomicU8,
}

fn slots<T>() -> Slots<T> {
    CachePadded::new(std::array::from_fn(|_| AtomicPtr::default()))
}

fn lap_of<T>(pointer: *mut T) -> u8 {
    (pointer.addr() & LAP) as u8
}

fn without_lap<T>(pointer: *mut T) -> *mut T {
    pointer.map_addr(|address| address & !LAP)
}

struct Shared<T>(Box<[Seat<T>]>);

impl<T> Drop for Shared<T> {
    /// Items that were never taken, or never taken back.
    fn drop(&mut self) {
        for seat in &self.0 {
            let due = seat.due.load(Ordering::Relaxed);
            for slot in 0..SLOTS {
                let given = seat.given[slot].load(Ordering::Relaxed);
                let done = seat.done[slot].load(Ordering::Relaxed);
                let is_due = lap_of(done) == due >> slot & 1;
                for pointer in [Some(given), is_due.then_some(done)].into_iter().flatten() {
                    if !pointer.is_null() {
                        // SAFETY: it is from `Box::into_raw`, and nobody else has it: it is in one
                        // of the two words, not seen by the desk, and nobody is left to take it.
                        drop(unsafe { Box::from_raw(without_lap(pointer)) });
                    }
                }
            }
        }
    }
}

/// A desk for so many seats, and the seats as workers see them.
pub fn desk<T: Send>(seats: usize) -> (Desk<T>, Seats<T>) {
    const { assert!(align_of::<T>() > LAP, "the lap takes a bit of the pointer") }
    let seat = || Seat {
        given: slots(),
        done: slots(),
        due: AtomicU8::new(u8::MAX),
    };
    let shared = Arc::new(Shared(std::iter::repeat_with(seat).take(seats).collect()));
    let desk = Desk {
        books: vec![Book::default(); seats].into(),
        active: vec![0; seats.div_ceil(64)].into(),
        look: Look::default(),
        shared: Arc::clone(&shared),
    };
    (desk, Seats(shared))
}

/// What the desk knows of a seat.
#[derive(Clone, Debug)]
struct Book {
    /// Slots with an item that has not come back, a bit for each.
    busy: u8,
    /// Laps of those; of the others, of the next item.
    laps: u8,
    /// Where the next item goes, if that is free.
    next: u8,
}

impl Default for Book {
    fn default() -> Self {
        Self {
            busy: 0,
            // Not that of a null pointer.
            laps: u8::MAX,
            next: 0,
        }
    }
}

/// How far [`Desk::take_back`] is in its look at all seats.
#[derive(Debug, Default)]
struct Look {
    seat: usize,
    /// Slots of the seat whose items have come back and are not taken yet.
    found: u8,
}

/// The side that hands over. Belongs to one thread.
pub struct Desk<T> {
    books: Box<[Book]>,
    /// Seats with a busy slot, a bit for each.
    active: Box<[u64]>,
    look: Look,
    shared: Arc<Shared<T>>,
}

impl<T> fmt::Debug for Desk<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk")
            .field("books", &self.books)
            .finish_non_exhaustive()
    }
}

/// An item that came back, and the place that is free now.
#[derive(Debug)]
pub struct Back<T> {
    /// The seat that it was given to, whoever took it.
    pub seat: usize,
    /// What [`Desk::give`] returned.
    pub slot: usize,
    /// The item.
    pub item: Box<T>,
}

impl<T: Send> Desk<T> {
    /// Puts an item into a seat; returns its slot. A worker that looks takes those of one seat in
    /// the order that they were given in, as long as nobody else takes from it.
    ///
    /// # Panics
    /// If [`SLOTS`] items of the seat have not come back.
    #[inline]
    pub fn give(&mut self, seat: usize, item: Box<T>) -> usize {
        let book = &mut self.books[seat];
        let free = ALL & !book.busy;
        assert!(free != 0, "seat {seat} has no free slot");
        // The first one at or after `next`, and around.
        let after = free & u8::MAX << book.next;
        let slot = if after == 0 { free } else { after }.trailing_zeros() as usize;
        book.next = (slot as u8 + 1) % SLOTS as u8;
        book.busy |= 1 << slot;
        self.active[seat / 64] |= 1 << (seat % 64);
        let lap = usize::from(book.laps >> slot & 1);
        let pointer = Box::into_raw(item).map_addr(|address| address | lap);
        // Release: whoever takes it sees the item as it is now. Empty before, as what was there
        // had come back, for which it was taken out first.
        self.shared.0[seat].given[slot].store(pointer, Ordering::Release);
        slot
    }

    /// An item that came back. Looks at each seat once; `None` ends the look, and the next call
    /// begins another one. All that is found in a seat comes from one look at its line.
    #[inline]
    pub fn take_back(&mut self) -> Option<Back<T>> {
        while self.look.found == 0 {
            let Some(seat) = self.next_active() else {
                self.look.seat = 0;
                return None;
            };
            self.look = Look {
                seat: seat + 1,
                found: self.look_at(seat),
            };
        }
        let (seat, slot) = (
            self.look.seat - 1,
            self.look.found.trailing_zeros() as usize,
        );
        let bit = 1 << slot;
        self.look.found &= !bit;
        let book = &mut self.books[seat];
        book.busy &= !bit;
        book.laps ^= bit;
        if book.busy == 0 {
            self.active[seat / 64] &= !(1 << (seat % 64));
        }
        // Relaxed: `look_at` has loaded the same pointer.
        let pointer = self.shared.0[seat].done[slot].load(Ordering::Relaxed);
        // SAFETY: from `Box::into_raw` in `give`. Its lap is the one that was due, so a `Taken` has
        // given up the item, and it was not taken back before: then another lap would be due.
        let item = unsafe { Box::from_raw(without_lap(pointer)) };
        Some(Back { seat, slot, item })
    }

    /// Asks for the lines in which items come back, to be looked at a little later.
    #[inline]
    pub fn prefetch(&self) {
        for (index, word) in self.active.iter().enumerate() {
            let mut word = *word;
            while word != 0 {
                let seat = index * 64 + word.trailing_zeros() as usize;
                word &= word - 1;
                prefetch(&raw const self.shared.0[seat].done, 1);
            }
        }
    }

    /// The first seat at or after the one that is to be looked at next that has something.
    #[inline]
    fn next_active(&self) -> Option<usize> {
        let from = self.look.seat;
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
    fn look_at(&self, seat: usize) -> u8 {
        let book = &self.books[seat];
        let (mut busy, mut found) = (book.busy, 0);
        while busy != 0 {
            let slot = busy.trailing_zeros() as usize;
            busy &= busy - 1;
            // Acquire: what was done to the item is seen by who takes it back.
            let pointer = self.shared.0[seat].done[slot].load(Ordering::Acquire);
            if !pointer.is_null() && lap_of(pointer) == book.laps >> slot & 1 {
                found |= 1 << slot;
                prefetch(without_lap(pointer), ITEM_LINES);
            }
        }
        found
    }
}

impl<T> Drop for Desk<T> {
    /// What is given or comes back from now on is dropped with the last of the [`Seats`].
    fn drop(&mut self) {
        for (seat, book) in self.shared.0.iter().zip(&self.books) {
            // Ordered before the drop of `Shared` by the reference count.
            seat.due.store(book.laps, Ordering::Relaxed);
        }
    }
}

/// The seats as workers see them.
pub struct Seats<T>(Arc<Shared<T>>);

impl<T> Clone for Seats<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Seats<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seats({})", self.0.0.len())
    }
}

impl<T: Send> Seats<T> {
    /// Takes an item out of a seat. Who always takes from one seat, alone, and passes the slot
    /// after that of its last item as `first`, gets them in order.
    #[inline]
    pub fn take(&self, seat: usize, first: usize) -> Option<Taken<'_, T>> {
        let slots = &self.0.0[seat];
        for index in 0..SLOTS {
            let slot = (first + index) % SLOTS;
            // A look first: an exchange would take the line away from the desk in any case.
            if slots.given[slot].load(Ordering::Relaxed).is_null() {
                continue;
            }
            // Acquire: see `Desk::give`.
            let pointer = slots.given[slot].swap(std::ptr::null_mut(), Ordering::Acquire);
            if !pointer.is_null() {
                return Some(Taken {
                    back: &slots.done[slot],
                    pointer,
                    slot,
                    item: PhantomData,
                });
            }
        }
        None
    }

    /// Whether nobody has to take anything out of a seat.
    pub fn is_empty(&self, seat: usize) -> bool {
        let mut slots = self.0.0[seat].given.iter();
        slots.all(|slot| slot.load(Ordering::Relaxed).is_null())
    }
}

/// An item that a worker has. Goes back to the desk when it is dropped, also by a panic.
pub struct Taken<'a, T> {
    back: &'a AtomicPtr<T>,
    /// With its lap.
    pointer: *mut T,
    slot: usize,
    item: PhantomData<&'a mut T>,
}

impl<T> Taken<'_, T> {
    /// Its slot.
    pub fn slot(&self) -> usize {
        self.slot
    }
}

impl<T: fmt::Debug> fmt::Debug for Taken<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, f)
    }
}

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: from `Box::into_raw`, and this is the only one who has it until the drop: the
        // exchange in `take` gave the pointer to nobody else.
        unsafe { &*without_lap(self.pointer) }
    }
}

impl<T> DerefMut for Taken<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *without_lap(self.pointer) }
    }
}

impl<T> Drop for Taken<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: see `Desk::look_at`.
        self.back.store(self.pointer, Ordering::Release);
    }
}

/// Lines of an item that are asked for when it has come back.
const ITEM_LINES: usize = 4;

/// Asks for the first `lines` cache lines of what is at `pointer`.
#[inline]
fn prefetch<T>(pointer: *const T, lines: usize) {
    #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
    for line in 0..lines.min(size_of::<T>().div_ceil(64)) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch may be given any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(pointer.cast::<i8>().wrapping_add(line * 64)) }
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, miri)))))]
    let _ = (pointer, lines);
}

#[cfg(all(test, not(loom)))]
#[path = "seats_tests.rs"]
mod tests;
