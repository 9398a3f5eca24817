//! The event queue: a hierarchical timing wheel keyed by virtual time.
//!
//! ```text
//!  present   32 places of 1 ns          the present 32 ns: one list for each nanosecond
//!  level 1   4096 places of 32 ns       the present 131 us
//!  level 2   4096 places of 131 us      the present half second
//!  level 3   4096 places of 0.5 s       the present 37 minutes
//!  level 4   128 places of 37 minutes   until the end of time, after 78 hours
//! ```
//!
//! Insertion and removal cost O(1), whatever the length (the cost of a heap grows with the hundred
//! thousand packets that a datacenter has in flight). A place's events lie in one piece of memory,
//! in their order. Pieces are reused, the last one first. So the present stays in the first-level
//! cache, and the next events are read in one sweep, some nanoseconds ahead. At that moment their
//! owner can prefetch the memory of these events ([`EventQueue::pop_with_lookahead`]).
//!
//! The order is exact: by time, and within one nanosecond in the order of insertion. It needs no
//! sequence numbers. A list keeps its order, and a place of a higher level is emptied into lower
//! ones, in its order, before anything can be inserted into those directly.

/// No list.
const NONE: u32 = u32::MAX;
/// Bits of time that the present tells apart.
const PRESENT_BITS: u32 = 5;
const PRESENT: usize = 1 << PRESENT_BITS;
/// Bits of time that a level tells apart.
const BITS: u32 = 12;
const PLACES: usize = 1 << BITS;
const LEVELS: usize = 4;

/// The end of time, ns: an event for then or later never happens.
pub const END_NS: u64 = 1 << 48;

/// One level: which list each place has, if it has any.
struct Level {
    lists: Box<[u32]>,
    /// Which places have one.
    words: [u64; PLACES / 64],
    /// Which of `words` are not zero.
    summary: u64,
}

impl Level {
    fn new() -> Self {
        Self {
            lists: vec![NONE; PLACES].into_boxed_slice(),
            words: [0; PLACES / 64],
            summary: 0,
        }
    }

    /// The first place at or above `from` that is not empty.
    fn first_at(&self, from: usize) -> Option<usize> {
        let word = from / 64;
        let here = self.words.get(word)? & (!0 << (from % 64));
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        let above = self.summary & (!0u64).checked_shl(word as u32 + 1).unwrap_or(0);
        if above == 0 {
            return None;
        }
        let word = above.trailing_zeros() as usize;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }

    fn set_list(&mut self, place: usize, list: u32) {
        self.lists[place] = list;
        self.words[place / 64] |= 1 << (place % 64);
        self.summary |= 1 << (place / 64);
    }

    fn take_list(&mut self, place: usize) -> u32 {
        self.words[place / 64] &= !(1 << (place % 64));
        if self.words[place / 64] == 0 {
            self.summary &= !(1 << (place / 64));
        }
        std::mem::replace(&mut self.lists[place], NONE)
    }
}

/// A queue of events in virtual time.
pub struct EventQueue<T> {
    now_ns: u64,
    /// The events of each nanosecond of the present.
    present: [Vec<T>; PRESENT],
    /// Which of them are not empty.
    occupied: u64,
    /// How many events of this nanosecond were taken out.
    taken: usize,
    levels: [Level; LEVELS],
    /// The lists of the levels: events with their times.
    lists: Vec<Vec<(u64, T)>>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        Self {
            now_ns: 0,
            present: std::array::from_fn(|_| Vec::new()),
            occupied: 0,
            taken: 0,
            levels: std::array::from_fn(|_| Level::new()),
            lists: Vec::new(),
            free: Vec::new(),
            len: 0,
        }
    }
}

impl<T: Copy> EventQueue<T> {
    /// The time of the last event taken out, ns.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Allocates the memory of `lists` lists, of `events` events each, that are not of the present.
    pub(crate) fn reserve(&mut self, lists: usize, events: usize) {
        for _ in 0..lists {
            self.free.push(self.lists.len() as u32);
            self.lists.push(Vec::with_capacity(events));
        }
    }

    /// How many events are queued.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if no event is queued.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts `event` in, to come out at `at_ns`, or now if that is past; never if it is
    /// [`END_NS`] or later.
    pub fn push(&mut self, at_ns: u64, event: T) {
        if at_ns >= END_NS {
            return;
        }
        self.len += 1;
        self.link(at_ns.max(self.now_ns), event);
    }

    /// Takes the next event out and goes on to its time.
    pub fn pop(&mut self) -> Option<T> {
        self.pop_with_lookahead(|_| ())
    }

    /// Takes out the next event of the nanosecond of the last one, if there is one more.
    pub(crate) fn pop_present(&mut self) -> Option<T> {
        if self.taken == 0 { None } else { self.pop() }
    }

    /// [`EventQueue::pop`] that also shows events that are about to come out to `soon`, most of
    /// them a few dozen ns of virtual time ahead. Some events are never shown.
    pub fn pop_with_lookahead(&mut self, mut soon: impl FnMut(&T)) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        let place = loop {
            let here = self.occupied & !0 << (self.now_ns % PRESENT as u64);
            if here != 0 {
                break here.trailing_zeros();
            }
            self.descend(&mut soon);
        };
        self.now_ns = self.now_ns & !(PRESENT as u64 - 1) | u64::from(place);
        let list = &mut self.present[place as usize];
        let event = list[self.taken];
        self.taken += 1;
        if self.taken == list.len() {
            self.taken = 0;
            list.clear();
            self.occupied &= !(1 << place);
        }
        self.len -= 1;
        Some(event)
    }

    /// Empties the next place of the lowest level that has one into the levels below.
    fn descend(&mut self, soon: &mut impl FnMut(&T)) {
        for index in 0..LEVELS {
            let shift = PRESENT_BITS + BITS * index as u32;
            // The present place of a level was emptied when its time came.
            let from = (self.now_ns >> shift) as usize % PLACES + 1;
            let Some(place) = self.levels[index].first_at(from) else {
                continue;
            };
            let above = !((1u64 << (shift + BITS)) - 1);
            self.now_ns = (self.now_ns & above) | (place as u64) << shift;
            let number = self.levels[index].take_list(place);
            let mut list = std::mem::take(&mut self.lists[number as usize]);
            for (at_ns, event) in list.drain(..) {
                if self.link(at_ns, event) {
                    soon(&event);
                }
            }
            self.lists[number as usize] = list;
            self.free.push(number);
            return;
        }
        unreachable!("{} events are queued, but no place has one", self.len);
    }

    /// Appends an event to the list of its time; whether that is one of the present.
    fn link(&mut self, at_ns: u64, event: T) -> bool {
        // The highest bit in which its time differs from the present says which level can tell.
        let difference = at_ns ^ self.now_ns;
        if difference < PRESENT as u64 {
            let place = at_ns as usize % PRESENT;
            self.present[place].push(event);
            self.occupied |= 1 << place;
            return true;
        }
        let index = (63 - difference.leading_zeros() - PRESENT_BITS) / BITS;
        let place = (at_ns >> (PRESENT_BITS + BITS * index)) as usize % PLACES;
        let level = &mut self.levels[index as usize];
        let mut number = level.lists[place];
        if number == NONE {
            number = self.free.pop().unwrap_or_else(|| {
                self.lists.push(Vec::new());
                u32::try_from(self.lists.len() - 1).expect("as many lists as places at most")
            });
            level.set_list(place, number);
        }
        self.lists[number as usize].push((at_ns, event));
        false
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use super::*;
    use crate::rng::Rng;

    /// The order is that of a heap of (time, sequence number), over all spans of time.
    #[test]
    fn events_come_out_in_the_order_of_a_heap() {
        let mut rng = Rng::new(5);
        for longest in [3, 5_000, 20_000_000, 1 << 38] {
            let mut events = EventQueue::default();
            let mut heap = BinaryHeap::new();
            for sequence in 0..20_000u64 {
                let at_ns = events.now_ns() + rng.log_range(0, longest);
                events.push(at_ns, sequence);
                heap.push(Reverse((at_ns, sequence)));
                while rng.chance(500_000) {
                    let expected = heap.pop().map(|Reverse(entry)| entry);
                    let got = events.pop().map(|sequence| (events.now_ns(), sequence));
                    assert_eq!(got, expected);
                }
            }
            assert_eq!(events.len(), heap.len());
            while let Some(Reverse(expected)) = heap.pop() {
                let sequence = events.pop().expect("as many as in the heap");
                assert_eq!((events.now_ns(), sequence), expected);
            }
            assert!(events.is_empty() && events.pop().is_none());
        }
    }

    #[test]
    fn past_events_come_out_now_and_events_at_the_end_of_time_never() {
        let mut events = EventQueue::default();
        events.push(100, 'a');
        assert_eq!(events.pop(), Some('a'));
        events.push(3, 'b');
        events.push(END_NS, 'c');
        events.push(END_NS - 1, 'd');
        assert_eq!((events.pop(), events.now_ns()), (Some('b'), 100));
        assert_eq!((events.pop(), events.now_ns()), (Some('d'), END_NS - 1));
        assert_eq!(events.pop(), None);
    }

    #[test]
    fn buffers_are_reused() {
        let mut events = EventQueue::default();
        for round in 0..1000u64 {
            events.push(round * 10, round);
            events.push(round * 10 + 5, round);
            events.pop();
            events.pop();
        }
        assert!(events.lists.len() <= 2 && events.lists.iter().all(|list| list.capacity() <= 16));
    }
}
