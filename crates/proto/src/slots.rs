//! The slots of a session: the first slot lies inside the session, the others apart.
//!
//! With many sessions, most have one request outstanding at a time, and a client takes the lowest
//! free slot. So the first slot lies beside the other fields that a request needs. The other slots
//! get memory when they are used for the first time, twice as many each time.

use std::ops::{Index, IndexMut};

/// With the second slot, so many get memory.
const LEAST: usize = 8;

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Slots<S> {
    first: S,
    /// Others, as far as they were used.
    rest: Vec<S>,
    count: u8,
}

impl<S: Default> Slots<S> {
    /// `count` idle slots.
    pub(crate) fn new(count: u16) -> Self {
        Self {
            first: S::default(),
            rest: Vec::new(),
            count: count.try_into().expect("at most 64 slots"),
        }
    }

    /// How many there are, used or not.
    pub(crate) fn count(&self) -> usize {
        self.count.into()
    }

    /// A slot that was used before.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&S> {
        if index == 0 {
            return Some(&self.first);
        }
        self.rest.get(index - 1)
    }

    /// A slot that was used before.
    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut S> {
        if index == 0 {
            return Some(&mut self.first);
        }
        self.rest.get_mut(index - 1)
    }

    /// A slot, to be used. `None`: the session has fewer slots.
    #[inline]
    pub(crate) fn enter(&mut self, index: usize) -> Option<&mut S> {
        // The first slot needs no look at the others, which would be another cache line.
        if index == 0 {
            return Some(&mut self.first);
        }
        if index > self.rest.len() {
            return self.make_rest(index);
        }
        self.rest.get_mut(index - 1)
    }

    #[cold]
    fn make_rest(&mut self, index: usize) -> Option<&mut S> {
        if index >= self.count() {
            return None;
        }
        let wanted = (index + 1).next_power_of_two().max(LEAST).min(self.count());
        self.rest.reserve_exact(wanted - 1 - self.rest.len());
        self.rest.resize_with(wanted - 1, S::default);
        self.get_mut(index)
    }

    /// The slots that were used before, and perhaps some that were not.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &S> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// As [`Slots::iter`].
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut S> {
        std::iter::once(&mut self.first).chain(&mut self.rest)
    }
}

impl<S: Default> Index<usize> for Slots<S> {
    type Output = S;

    #[inline]
    fn index(&self, index: usize) -> &S {
        self.get(index).expect("the slot is in use")
    }
}

impl<S: Default> IndexMut<usize> for Slots<S> {
    #[inline]
    fn index_mut(&mut self, index: usize) -> &mut S {
        self.get_mut(index).expect("the slot is in use")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_beyond_the_first_get_memory_when_one_is_used() {
        let mut slots = Slots::<u32>::new(3);
        assert_eq!((slots.count(), slots.iter().count()), (3, 1));
        slots[0] = 7;
        assert_eq!(slots.get(1), None);
        assert_eq!(slots.enter(0).copied(), Some(7));
        assert_eq!(slots.enter(3), None);
        assert_eq!(
            slots.iter().count(),
            1,
            "a slot that is not there makes none"
        );
        *slots.enter(2).unwrap() = 9;
        assert_eq!(slots.iter().copied().collect::<Vec<_>>(), [7, 0, 9]);
        assert_eq!(slots.get_mut(3), None);
        assert_eq!(slots.enter(usize::MAX), None);
        assert_eq!(Slots::<u32>::new(0).enter(1), None);
    }
}
