//! A queue in which flows take turns: one item of each, and the items of a flow in the order in which they came.
//! So a flow with thousands of items that wait delays another one's by one.

use std::collections::{HashMap, VecDeque};

/// A flow's queue has room for so many items from the beginning.
const ROOM: usize = 64;
/// Queues without items that are kept for the next flows, because of their memory.
const SPARE: usize = 64;

/// Items by flow.
#[derive(Debug)]
pub(crate) struct FlowQueue<T> {
    by_flow: HashMap<u64, VecDeque<T>>,
    /// The flows with items, in the order of their turns.
    turns: VecDeque<u64>,
    spare: Vec<VecDeque<T>>,
    items: usize,
}

impl<T> Default for FlowQueue<T> {
    fn default() -> Self {
        Self {
            by_flow: HashMap::new(),
            turns: VecDeque::new(),
            spare: Vec::new(),
            items: 0,
        }
    }
}

impl<T> FlowQueue<T> {
    pub(crate) fn len(&self) -> usize {
        self.items
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// Items of a flow.
    pub(crate) fn count(&self, flow: u64) -> usize {
        self.by_flow.get(&flow).map_or(0, VecDeque::len)
    }

    /// Puts an item behind those of its flow.
    pub(crate) fn push(&mut self, flow: u64, item: T) {
        let (turns, spare) = (&mut self.turns, &mut self.spare);
        let of_flow = self.by_flow.entry(flow).or_insert_with(|| {
            turns.push_back(flow);
            let unused = spare.pop();
            unused.unwrap_or_else(|| VecDeque::with_capacity(ROOM))
        });
        of_flow.push_back(item);
        self.items += 1;
    }

    /// Removes the first item of the flow whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let flow = self.turns.pop_front()?;
        let of_flow = self.by_flow.get_mut(&flow)?;
        let item = of_flow.pop_front()?;
        self.items -= 1;
        if !of_flow.is_empty() {
            self.turns.push_back(flow);
        } else if let Some(unused) = self.by_flow.remove(&flow)
            && self.spare.len() < SPARE
        {
            self.spare.push(unused);
        }
        Some(item)
    }

    /// Removes the last item of a flow.
    pub(crate) fn pop_last(&mut self, flow: u64) -> Option<T> {
        let of_flow = self.by_flow.get_mut(&flow)?;
        let item = of_flow.pop_back()?;
        self.items -= 1;
        if of_flow.is_empty() {
            self.turns.retain(|other| *other != flow);
            self.by_flow.remove(&flow);
        }
        Some(item)
    }

    /// Puts an item back that was just removed: it is the next one again.
    pub(crate) fn put_back(&mut self, flow: u64, item: T) {
        self.turns.retain(|other| *other != flow);
        self.turns.push_front(flow);
        self.by_flow.entry(flow).or_default().push_front(item);
        self.items += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(queue: &mut FlowQueue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn flows_take_turns_and_keep_their_order() {
        let mut queue = FlowQueue::default();
        for item in 0..5 {
            queue.push(1, item);
        }
        queue.push(2, 20);
        queue.push(3, 30);
        queue.push(2, 21);
        assert_eq!((queue.len(), queue.count(1), queue.count(2)), (8, 5, 2));
        assert_eq!(drain(&mut queue), [0, 20, 30, 1, 21, 2, 3, 4]);
        assert!(queue.is_empty() && queue.by_flow.is_empty() && queue.turns.is_empty());
        assert_eq!((queue.pop(), queue.count(1)), (None, 0));
    }

    #[test]
    fn an_item_that_is_put_back_is_the_next_one() {
        let mut queue = FlowQueue::default();
        for (flow, item) in [(1, 10), (2, 20), (1, 11)] {
            queue.push(flow, item);
        }
        let first = queue.pop().unwrap();
        queue.put_back(1, first);
        assert_eq!(queue.len(), 3);
        assert_eq!(drain(&mut queue), [10, 20, 11]);
        queue.put_back(7, 70);
        assert_eq!(drain(&mut queue), [70]);
    }

    #[test]
    fn the_last_item_of_a_flow_can_be_taken_back() {
        let mut queue = FlowQueue::default();
        for (flow, item) in [(1, 10), (2, 20), (2, 21)] {
            queue.push(flow, item);
        }
        assert_eq!(queue.pop_last(2), Some(21));
        assert_eq!(queue.pop_last(1), Some(10));
        assert_eq!((queue.pop_last(1), queue.len()), (None, 1));
        assert_eq!(drain(&mut queue), [20]);
        assert!(queue.by_flow.is_empty() && queue.turns.is_empty());
    }
}
