//! Which worker runs what, and when: join-bounded-shortest-queue, as a pure state machine.
//!
//! A server whose cores all take from one queue has the shortest tail, but a queue that all of them
//! lock is slow. RPCValet (Daglis, Sutherland, Falsafi, ASPLOS 2019) gets the same tail without
//! such a queue: the receiver gives a request to the worker with the fewest outstanding ones, and
//! holds it back while all workers have as many as the bound. The bound is two: the request that
//! runs, and one to continue with while the completion is on its way. So at most one request waits
//! behind a long one. Flows whose items are held back take turns, so that one with many of them delays another
//! one's by one.
//!
//! [`QueueModel::Partitioned`] is what receive-side scaling does, for comparison: each flow has one
//! worker, under any load. [`QueueModel::Grouped`] is in between.
//!
//! Nothing here runs an item or knows what it is: a thread pool and a simulator use the same code.

use crate::flow_queue::FlowQueue;

/// The greatest bound on the outstanding requests of one worker.
pub const MAX_DEPTH: u8 = 8;

/// Which workers may run a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueModel {
    /// Any worker (1xN).
    #[default]
    SingleQueue,
    /// The workers of one group, which the flow selects (KxM). The number of groups is at least
    /// one; if it is greater than the number of workers, there are as many groups as workers.
    Grouped(usize),
    /// One worker, which the flow selects (Nx1).
    Partitioned,
}

impl QueueModel {
    fn groups(self, workers: usize) -> usize {
        match self {
            Self::SingleQueue => 1,
            Self::Grouped(groups) => groups.clamp(1, workers),
            Self::Partitioned => workers,
        }
    }
}

/// The dispatch decision on a submitted item.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision<T> {
    /// It goes to this worker, now.
    Assigned(usize, T),
    /// It waits in the queue; [`Jbsq::complete`] returns it.
    Queued,
    /// It goes nowhere: the queue is full, or its flow has its share of the queue.
    Refused(T),
}

/// The state of all workers and queues.
///
/// Invariant: items wait in a group only while each of its workers has as many as the bound.
#[derive(Debug)]
pub struct Jbsq<T> {
    depth: u8,
    /// Items with each worker.
    loads: Vec<u8>,
    groups: Vec<Group<T>>,
    waiting: usize,
    /// Items with workers that have begun another one before.
    behind: usize,
    capacity: usize,
}

#[derive(Debug)]
struct Group<T> {
    workers: std::ops::Range<usize>,
    queue: FlowQueue<T>,
    /// For each load below the depth, the workers that have it.
    by_load: Vec<Set>,
}

impl<T> Jbsq<T> {
    /// `workers` (at least one), each with at most `depth` items (clamped to 1 to [`MAX_DEPTH`]), and
    /// at most `capacity` items that wait, in a queue or behind the item that a worker runs. A flow
    /// has at most as many items in the queues as there is room for further ones, so it leaves room
    /// for others: the dynamic threshold of Choudhury and Hahne (IEEE/ACM ToN 6(2), 1998).
    pub fn new(model: QueueModel, workers: usize, depth: u8, capacity: usize) -> Self {
        let (workers, depth) = (workers.max(1), depth.clamp(1, MAX_DEPTH));
        let count = model.groups(workers);
        let groups = (0..count).map(|index| {
            let workers = index * workers / count..(index + 1) * workers / count;
            let mut by_load = vec![Set::new(workers.len()); depth.into()];
            (0..workers.len()).for_each(|place| by_load[0].insert(place));
            Group {
                workers,
                queue: FlowQueue::default(),
                by_load,
            }
        });
        Self {
            depth,
            loads: vec![0; workers],
            groups: groups.collect(),
            waiting: 0,
            behind: 0,
            capacity,
        }
    }

    /// Submits an item of a flow. Items with the same flow number stay together.
    #[inline]
    pub fn submit(&mut self, flow: u64, item: T) -> Decision<T> {
        let index = self.group_of_flow(flow);
        let group = &mut self.groups[index];
        let shortest = group.shortest();
        let is_begun = shortest.is_some_and(|worker| self.loads[worker] == 0);
        let free = self.capacity.saturating_sub(self.waiting + self.behind);
        if !is_begun && free == 0 {
            return Decision::Refused(item);
        }
        if let Some(worker) = shortest {
            let load = &mut self.loads[worker];
            self.behind += usize::from(*load > 0);
            group.reload(worker, *load, *load + 1);
            *load += 1;
            return Decision::Assigned(worker, item);
        }
        if group.queue.count(flow) >= free {
            return Decision::Refused(item);
        }
        self.waiting += 1;
        group.queue.push(flow, item);
        Decision::Queued
    }

    /// Records that a worker has completed one of its items. The returned item is its next one: flows whose
    /// items wait take turns.
    ///
    /// # Panics
    /// If the worker had none.
    #[inline]
    pub fn complete(&mut self, worker: usize) -> Option<T> {
        let index = self.group_of_worker(worker);
        let group = &mut self.groups[index];
        let load = &mut self.loads[worker];
        assert!(*load > 0, "worker {worker} completed what it never had");
        if let Some(item) = group.queue.pop() {
            self.waiting -= 1;
            return Some(item);
        }
        self.behind -= usize::from(*load > 1);
        group.reload(worker, *load, *load - 1);
        *load -= 1;
        None
    }

    /// Items in the queues.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Outstanding items of a worker.
    pub fn load(&self, worker: usize) -> u8 {
        self.loads[worker]
    }

    /// The bound on the outstanding items of one worker.
    pub fn depth(&self) -> u8 {
        self.depth
    }

    /// The workers of a worker's group.
    pub fn group_of(&self, worker: usize) -> std::ops::Range<usize> {
        self.groups[self.group_of_worker(worker)].workers.clone()
    }

    fn group_of_flow(&self, flow: u64) -> usize {
        if self.groups.len() == 1 {
            return 0;
        }
        // Fibonacci hashing: it spreads consecutive flow numbers, too.
        let mixed = flow.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mixed) * self.groups.len() as u128) >> 64) as usize
    }

    fn group_of_worker(&self, worker: usize) -> usize {
        // The inverse of the bounds in `new`: the last group that does not begin after the worker.
        let (workers, count) = (self.loads.len(), self.groups.len());
        ((worker + 1) * count - 1) / workers
    }
}

impl<T> Group<T> {
    /// The first of the workers with the fewest items, if that is below the bound. The first, so
    /// that under low load few workers are awake and their caches are warm.
    #[inline]
    fn shortest(&self) -> Option<usize> {
        let place = self.by_load.iter().find_map(Set::first)?;
        Some(self.workers.start + place)
    }

    #[inline]
    fn reload(&mut self, worker: usize, before: u8, after: u8) {
        let place = worker - self.workers.start;
        // Workers at the bound are in no set.
        if let Some(set) = self.by_load.get_mut(usize::from(before)) {
            set.remove(place);
        }
        if let Some(set) = self.by_load.get_mut(usize::from(after)) {
            set.insert(place);
        }
    }
}

/// A set of small numbers.
#[derive(Clone, Debug)]
struct Set(Vec<u64>);

impl Set {
    fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)])
    }

    #[inline]
    fn insert(&mut self, place: usize) {
        self.0[place / 64] |= 1 << (place % 64);
    }

    #[inline]
    fn remove(&mut self, place: usize) {
        self.0[place / 64] &= !(1 << (place % 64));
    }

    #[inline]
    fn first(&self) -> Option<usize> {
        let word = self.0.iter().position(|word| *word != 0)?;
        Some(word * 64 + self.0[word].trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn assigned<T>(decision: Decision<T>) -> usize {
        match decision {
            Decision::Assigned(worker, _) => worker,
            _ => panic!("it should have been given to a worker"),
        }
    }

    #[test]
    fn the_shortest_queue_is_joined_up_to_the_bound() {
        let mut jbsq = Jbsq::new(QueueModel::SingleQueue, 3, 2, 5);
        let order: Vec<_> = (0..6)
            .map(|item| assigned(jbsq.submit(item, item)))
            .collect();
        assert_eq!(order, [0, 1, 2, 0, 1, 2]);
        assert_eq!(jbsq.submit(6, 6), Decision::Queued);
        assert_eq!(jbsq.submit(7, 7), Decision::Queued);
        assert_eq!(jbsq.submit(8, 8), Decision::Refused(8));
        // The first free worker gets the item whose turn it is; a stalled worker gets nothing more.
        assert_eq!(jbsq.complete(1), Some(6));
        assert_eq!(jbsq.complete(1), Some(7));
        assert_eq!(jbsq.complete(1), None);
        assert_eq!(jbsq.load(0), 2);
        assert_eq!(assigned(jbsq.submit(9, 9)), 1);
    }

    #[test]
    fn only_items_that_would_wait_are_refused() {
        let mut jbsq = Jbsq::new(QueueModel::SingleQueue, 2, 8, 1);
        let order: Vec<_> = (0..3)
            .map(|item| assigned(jbsq.submit(item, item)))
            .collect();
        assert_eq!(order, [0, 1, 0], "the third is behind the first");
        assert_eq!(jbsq.submit(3, 3), Decision::Refused(3));
        assert_eq!(jbsq.complete(1), None);
        assert_eq!(assigned(jbsq.submit(4, 4)), 1, "it begins at once");
        assert_eq!(jbsq.submit(5, 5), Decision::Refused(5));
        assert_eq!(jbsq.complete(0), None);
        assert_eq!(assigned(jbsq.submit(6, 6)), 0);
    }

    #[test]
    fn a_flow_leaves_room_in_the_queue_for_others() {
        let fill = |jbsq: &mut Jbsq<()>, flow| {
            let mut queued = 0;
            while jbsq.submit(flow, ()) == Decision::Queued {
                queued += 1;
            }
            queued
        };
        // One runs and one is behind it. A hundred may wait.
        let mut jbsq = Jbsq::new(QueueModel::SingleQueue, 1, 2, 101);
        assert_eq!(assigned(jbsq.submit(7, ())), 0);
        assert_eq!(assigned(jbsq.submit(7, ())), 0);
        assert_eq!(fill(&mut jbsq, 7), 50);
        assert_eq!(fill(&mut jbsq, 7), 0);
        assert_eq!(fill(&mut jbsq, 8), 25);
        assert_eq!(fill(&mut jbsq, 9), 13);
        assert_eq!(jbsq.waiting(), 88);
        // What waited is no part of a share any more.
        while jbsq.complete(0).is_some() {}
        assert_eq!(jbsq.complete(0), None);
        assert_eq!(jbsq.groups[0].queue.count(7), 0);
        assert_eq!(jbsq.load(0), 0);
    }

    #[test]
    fn a_flow_stays_in_its_group() {
        for (model, groups) in [(QueueModel::Grouped(4), 4), (QueueModel::Partitioned, 16)] {
            let mut jbsq = Jbsq::new(model, 16, 2, 1000);
            let mut hit = std::collections::BTreeSet::new();
            for flow in 0..200 {
                let worker = assigned(jbsq.submit(flow, ()));
                let group = jbsq.group_of(worker);
                assert!(group.contains(&worker));
                assert_eq!(group.len(), 16 / groups);
                hit.insert(group.start);
                assert_eq!(jbsq.complete(worker), None);
                assert_eq!(assigned(jbsq.submit(flow, ())), group.start);
                assert_eq!(jbsq.complete(group.start), None);
            }
            assert_eq!(hit.len(), groups, "flows are spread over all groups");
        }
    }

    #[test]
    fn groups_of_unlike_sizes_hold_every_worker_once() {
        for workers in 1..70 {
            for groups in 1..=workers {
                let jbsq = Jbsq::<()>::new(QueueModel::Grouped(groups), workers, 2, 0);
                for worker in 0..workers {
                    assert!(jbsq.group_of(worker).contains(&worker));
                }
                let sum: usize = jbsq.groups.iter().map(|group| group.workers.len()).sum();
                assert_eq!((jbsq.groups.len(), sum), (groups, workers));
            }
        }
    }

    /// Against the definition: each step compared with a search through all workers.
    #[test]
    fn random_steps_agree_with_the_definition() {
        bolero::check!()
            .with_type::<(u8, u8, u8, Vec<(bool, u8)>)>()
            .for_each(|(workers, groups, depth, steps)| {
                let workers = usize::from(workers % 100) + 1;
                let model = match groups {
                    0 => QueueModel::SingleQueue,
                    1 => QueueModel::Partitioned,
                    _ => QueueModel::Grouped(usize::from(*groups)),
                };
                let mut jbsq = Jbsq::new(model, workers, *depth, 5);
                let depth = depth.clamp(&1, &MAX_DEPTH);
                let mut busy: Vec<usize> = Vec::new();
                let mut next = 0_u32;
                let mut waiting: Vec<(std::ops::Range<usize>, u64, u32)> = Vec::new();
                // By group, the flows with items, in the order of their turns.
                let mut turns: HashMap<usize, Vec<u64>> = HashMap::new();
                for (arrives, number) in steps {
                    if *arrives {
                        let flow = u64::from(*number);
                        let group = jbsq.groups[jbsq.group_of_flow(flow)].workers.clone();
                        let shortest = group
                            .clone()
                            .min_by_key(|worker| (jbsq.load(*worker), *worker))
                            .expect("no group is empty");
                        let least = jbsq.load(shortest);
                        let behind = |worker| usize::from(jbsq.load(worker).saturating_sub(1));
                        let behind: usize = (0..workers).map(behind).sum();
                        let free = 5_usize.saturating_sub(behind + waiting.len());
                        let of_flow = waiting.iter().filter(|(_, of, _)| *of == flow).count();
                        let has_share = least < *depth || of_flow < free;
                        let has_room = least == 0 || (free > 0 && has_share);
                        match jbsq.submit(flow, next) {
                            Decision::Assigned(worker, item) => {
                                assert_eq!((worker, item), (shortest, next));
                                assert!(least < *depth && has_room);
                                busy.push(worker);
                            }
                            Decision::Queued => {
                                assert!(least == *depth && has_room);
                                let turns = turns.entry(group.start).or_default();
                                if of_flow == 0 {
                                    turns.push(flow);
                                }
                                waiting.push((group, flow, next));
                            }
                            Decision::Refused(item) => {
                                assert!(item == next && !has_room);
                            }
                        }
                        next += 1;
                    } else if !busy.is_empty() {
                        let worker = busy.swap_remove(usize::from(*number) % busy.len());
                        let turns = turns.entry(jbsq.group_of(worker).start).or_default();
                        let first = (!turns.is_empty()).then(|| {
                            let flow = turns.remove(0);
                            let first = waiting.iter().position(|(_, of, _)| *of == flow);
                            let (.., item) = waiting.remove(first.expect("it has a turn"));
                            if waiting.iter().any(|(_, of, _)| *of == flow) {
                                turns.push(flow);
                            }
                            item
                        });
                        let item = jbsq.complete(worker);
                        assert_eq!(item, first);
                        busy.extend(item.map(|_| worker));
                    }
                    assert_eq!(jbsq.waiting(), waiting.len());
                    let loads: usize = (0..workers).map(|w| usize::from(jbsq.load(w))).sum();
                    assert_eq!(loads, busy.len());
                }
            });
    }
}
