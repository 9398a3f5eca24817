//! The queue of what happens next: a hierarchical timing wheel keyed by virtual time.
//!
//! ```text
//!  level 0   4096 places of 1 ns        the present 4 us: one list for each nanosecond
//!  level 1   4096 places of 4 us        the present 17 ms
//!  level 2   4096 places of 17 ms       the present 69 s
//!  level 3   4096 places of 69 s        until the end of time, after 78 hours
//! ```
//!
//! To put in and to take out cost O(1), whatever is queued (a heap pays for each of the hundred
//! thousand packets that a datacenter has in flight), and entries live in one slab, so that a
//! packet's way through the network allocates nothing.
//!
//! The order is exact: by time, and of one nanosecond in the order in which things were put in.
//! For that no sequence number is needed. A list keeps its order; a place of a higher level is
//! emptied into lower ones, in its order, before anything can be put into those directly.

/// No entry.
const NONE: u32 = u32::MAX;
/// Bits of time that a level tells apart.
const BITS: u32 = 12;
const PLACES: usize = 1 << BITS;
const LEVELS: usize = 4;

/// When time ends, ns: what is put in for then or later never happens.
pub const END_NS: u64 = 1 << (BITS * LEVELS as u32);

/// One level: lists of entries by place, and which places have any.
struct Level {
    /// First and last entry of each place.
    lists: Box<[(u32, u32)]>,
    words: [u64; PLACES / 64],
    /// Which of `words` are not zero.
    summary: u64,
}

impl Level {
    fn new() -> Self {
        Self {
            lists: vec![(NONE, NONE); PLACES].into_boxed_slice(),
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

    fn mark_empty(&mut self, place: usize) {
        self.words[place / 64] &= !(1 << (place % 64));
        if self.words[place / 64] == 0 {
            self.summary &= !(1 << (place / 64));
        }
    }
}

struct Node<T> {
    at_ns: u64,
    next: u32,
    event: Option<T>,
}

/// A queue of events in virtual time.
pub struct Events<T> {
    now_ns: u64,
    levels: [Level; LEVELS],
    nodes: Vec<Node<T>>,
    free: u32,
    len: usize,
}

impl<T> Default for Events<T> {
    fn default() -> Self {
        Self {
            now_ns: 0,
            levels: std::array::from_fn(|_| Level::new()),
            nodes: Vec::new(),
            free: NONE,
            len: 0,
        }
    }
}

impl<T> Events<T> {
    /// The time of the last event taken out, ns.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// How many events are queued.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if nothing will ever happen.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts `event` in, to come out at `at_ns`, or now if that is past; never if it is
    /// [`END_NS`] or later.
    pub fn push(&mut self, at_ns: u64, event: T) {
        if at_ns >= END_NS {
            return;
        }
        let at_ns = at_ns.max(self.now_ns);
        let node = Node {
            at_ns,
            next: NONE,
            event: Some(event),
        };
        let index = if self.free == NONE {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 events at once")
        } else {
            let index = self.free;
            self.free = std::mem::replace(&mut self.nodes[index as usize], node).next;
            index
        };
        self.len += 1;
        self.link(index);
    }

    /// Takes the next event out and goes on to its time.
    pub fn pop(&mut self) -> Option<T> {
        if self.len == 0 {
            return None;
        }
        let place = loop {
            let from = (self.now_ns as usize) % PLACES;
            match self.levels[0].first_at(from) {
                Some(place) => break place,
                None => self.descend(),
            }
        };
        self.now_ns = (self.now_ns & !(PLACES as u64 - 1)) | place as u64;
        let level = &mut self.levels[0];
        let (first, last) = level.lists[place];
        let node = &mut self.nodes[first as usize];
        let event = node.event.take();
        if first == last {
            level.mark_empty(place);
        } else {
            level.lists[place].0 = node.next;
        }
        node.next = self.free;
        self.free = first;
        self.len -= 1;
        event
    }

    /// Empties the next place of the lowest higher level that has one into the levels below.
    fn descend(&mut self) {
        for level in 1..LEVELS {
            let shift = BITS * level as u32;
            // The present place of a level was emptied when its time came.
            let from = (self.now_ns >> shift) as usize % PLACES + 1;
            let Some(place) = self.levels[level].first_at(from) else {
                continue;
            };
            let above = !((1u64 << (shift + BITS)) - 1);
            self.now_ns = (self.now_ns & above) | (place as u64) << shift;
            let (mut index, last) = self.levels[level].lists[place];
            self.levels[level].mark_empty(place);
            loop {
                let next = std::mem::replace(&mut self.nodes[index as usize].next, NONE);
                self.link(index);
                if index == last {
                    return;
                }
                index = next;
            }
        }
        unreachable!("{} events are queued, but no place has one", self.len);
    }

    /// Appends an entry to the list of its time.
    fn link(&mut self, index: u32) {
        let at_ns = self.nodes[index as usize].at_ns;
        // The highest bit in which its time differs from the present says which level can tell.
        let difference = at_ns ^ self.now_ns;
        let level = (63 - (difference | 1).leading_zeros()) / BITS;
        let place = (at_ns >> (BITS * level)) as usize % PLACES;
        let level = &mut self.levels[level as usize];
        let bit = 1 << (place % 64);
        if level.words[place / 64] & bit == 0 {
            level.words[place / 64] |= bit;
            level.summary |= 1 << (place / 64);
            level.lists[place] = (index, index);
        } else {
            let last = std::mem::replace(&mut level.lists[place].1, index);
            self.nodes[last as usize].next = index;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;
    use std::collections::BinaryHeap;

    use super::*;
    use crate::rng::Rng;

    /// Against a heap of (time, sequence number): the same order, over all spans of time.
    #[test]
    fn the_order_is_that_of_a_heap() {
        let mut rng = Rng::new(5);
        for longest in [3, 5_000, 20_000_000, 1 << 38] {
            let mut events = Events::default();
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
    fn the_past_is_now_and_the_end_of_time_never_comes() {
        let mut events = Events::default();
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
    fn memory_is_used_again() {
        let mut events = Events::default();
        for round in 0..1000u64 {
            events.push(round * 10, round);
            events.push(round * 10 + 5, round);
            events.pop();
            events.pop();
        }
        assert_eq!(events.nodes.len(), 2);
    }
}
