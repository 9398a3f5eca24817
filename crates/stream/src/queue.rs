//! A queue whose first element lies in it: mostly there is none, or one, and then nothing is allocated.

use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct Queue<T> {
    first: Option<T>,
    /// What is behind the first one. It keeps its memory until the queue is empty.
    #[expect(clippy::box_collection, reason = "thousands of queues are at rest")]
    rest: Option<Box<VecDeque<T>>>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            first: None,
            rest: None,
        }
    }
}

impl<T> Queue<T> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.as_ref().map_or(0, |rest| rest.len())
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&T> {
        self.first.as_ref()
    }

    #[inline]
    pub(crate) fn back_mut(&mut self) -> Option<&mut T> {
        let last = self.rest.as_mut().and_then(|rest| rest.back_mut());
        last.or(self.first.as_mut())
    }

    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        match at {
            0 => self.first.as_ref(),
            _ => self.rest.as_ref()?.get(at - 1),
        }
    }

    /// From the front.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        let rest = self.rest.iter().flat_map(|rest| rest.iter());
        self.first.iter().chain(rest)
    }

    /// From the front.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let rest = self.rest.iter_mut().flat_map(|rest| rest.iter_mut());
        self.first.iter_mut().chain(rest)
    }

    #[inline]
    pub(crate) fn push_back(&mut self, element: T) {
        match self.first {
            None => self.first = Some(element),
            Some(_) => self.rest.get_or_insert_default().push_back(element),
        }
    }

    /// Puts an element in front of the one that is `at`, or behind all.
    ///
    /// # Panics
    /// If there are fewer elements.
    #[inline]
    pub(crate) fn insert(&mut self, at: usize, element: T) {
        assert!(at <= self.len(), "{at} of {} elements", self.len());
        match (at, &mut self.first) {
            (0, None) => self.first = Some(element),
            (0, Some(first)) => {
                let second = std::mem::replace(first, element);
                self.rest.get_or_insert_default().push_front(second);
            }
            _ => self.rest.get_or_insert_default().insert(at - 1, element),
        }
    }

    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let next = self.rest.as_mut().and_then(|rest| rest.pop_front());
        if next.is_none() {
            self.rest = None;
        }
        std::mem::replace(&mut self.first, next)
    }

    pub(crate) fn pop_back(&mut self) -> Option<T> {
        let last = self.rest.as_mut().and_then(|rest| rest.pop_back());
        last.or_else(|| self.pop_front())
    }

    pub(crate) fn remove(&mut self, at: usize) -> Option<T> {
        match at {
            0 => self.pop_front(),
            _ => self.rest.as_mut()?.remove(at - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All operations, in an order that `seed` decides, beside a queue of the standard library.
    #[test]
    fn it_has_what_a_deque_has_and_no_memory_when_it_is_empty() {
        for seed in 1..200 {
            let (mut queue, mut model) = (Queue::default(), VecDeque::new());
            let mut random = seed;
            for element in 0..300_u64 {
                // xorshift64 (Marsaglia, 2003).
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let at = (random >> 8) as usize % (model.len() + 1);
                match random % 8 {
                    0 | 1 => {
                        queue.push_back(element);
                        model.push_back(element);
                    }
                    2 => {
                        queue.insert(at, element);
                        model.insert(at, element);
                    }
                    3 | 4 => assert_eq!(queue.pop_front(), model.pop_front()),
                    5 => assert_eq!(queue.pop_back(), model.pop_back()),
                    6 => assert_eq!(queue.remove(at), model.remove(at)),
                    _ => queue.iter_mut().chain(&mut model).for_each(|it| *it += 1),
                }
                assert_eq!(queue.len(), model.len());
                assert_eq!(queue.is_empty(), model.is_empty());
                assert_eq!(queue.front(), model.front());
                assert_eq!(queue.back_mut(), model.back_mut());
                assert_eq!(queue.get(at), model.get(at));
                assert!(queue.iter().eq(&model) && queue.iter().rev().eq(model.iter().rev()));
                assert!(queue.rest.is_none() || !model.is_empty());
            }
        }
    }
}
