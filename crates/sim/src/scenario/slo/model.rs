//! Workers behind the dispatch code that ships.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use hdrhistogram::Histogram;
use starling_endpoint::jbsq::{Decision, Jbsq, QueueModel};

use crate::queueing::{Arrival, times};

/// The dispatcher's time for a request: half when it arrives, half when it is done. The thread pool
/// takes 14 to 34 ns where two cores are near and some 90 where they are far from each other
/// (`starling bench dispatch`, two requests a worker); a cache line takes 45 and 220, so this is in
/// between as [`HANDOVER_NS`] is.
const DISPATCH_NS: u64 = 50;
/// The time that a cache line takes from core to core.
const HANDOVER_NS: u64 = 100;

/// The bound of the dispatcher's queue: none is refused.
const QUEUE: usize = usize::MAX;

/// Events of one time, in the order in which they are handled.
type Schedule = BinaryHeap<Reverse<(u64, u64, Event)>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A request reaches the worker that it was given to.
    Reaches { worker: usize, request: usize },
    /// A worker is done with its request.
    Done { worker: usize },
    /// The dispatcher learns that the worker is done.
    Heard { worker: usize },
}

struct Machine {
    policy: Jbsq<usize>,
    schedule: Schedule,
    told: u64,
    /// The time until which the dispatcher is busy.
    busy_until_ns: u64,
    dispatch_ns: u64,
    handover_ns: u64,
    /// The requests of each worker that have not begun.
    waiting: Vec<VecDeque<usize>>,
    /// The current request of each worker.
    running: Vec<Option<usize>>,
    /// The arrival and service time of each request.
    requests: Vec<Arrival>,
    latencies_ns: Histogram<u64>,
    skipped: usize,
}

impl Machine {
    fn tell(&mut self, at_ns: u64, event: Event) {
        self.told += 1;
        self.schedule.push(Reverse((at_ns, self.told, event)));
    }

    /// The dispatcher does half of its work on a request; returns when it is done.
    fn dispatch(&mut self, now_ns: u64) -> u64 {
        self.busy_until_ns = self.busy_until_ns.max(now_ns) + self.dispatch_ns / 2;
        self.busy_until_ns
    }

    fn arrive(&mut self, arrival: Arrival) {
        let request = self.requests.len();
        self.requests.push(arrival);
        let done_ns = self.dispatch(arrival.at_ns);
        match self.policy.submit(arrival.flow, request) {
            Decision::Assigned(worker, request) => self.give(done_ns, worker, request),
            Decision::Queued => {}
            Decision::Refused(_) => unreachable!("the queue has no bound"),
        }
    }

    fn give(&mut self, now_ns: u64, worker: usize, request: usize) {
        self.tell(
            now_ns + self.handover_ns,
            Event::Reaches { worker, request },
        );
    }

    fn handle(&mut self, now_ns: u64, event: Event) {
        match event {
            Event::Reaches { worker, request } => {
                self.waiting[worker].push_back(request);
                if self.running[worker].is_none() {
                    self.start(now_ns, worker);
                }
            }
            Event::Done { worker } => {
                let request = self.running[worker].take().expect("it ran");
                if request >= self.skipped {
                    let latency_ns = now_ns - self.requests[request].at_ns;
                    self.latencies_ns.saturating_record(latency_ns);
                }
                self.tell(now_ns + self.handover_ns, Event::Heard { worker });
                self.start(now_ns, worker);
            }
            Event::Heard { worker } => {
                let done_ns = self.dispatch(now_ns);
                if let Some(request) = self.policy.complete(worker) {
                    self.give(done_ns, worker, request);
                }
            }
        }
    }

    fn start(&mut self, now_ns: u64, worker: usize) {
        if let Some(request) = self.waiting[worker].pop_front() {
            self.running[worker] = Some(request);
            let done_ns = now_ns + self.requests[request].service_ns;
            self.tell(done_ns, Event::Done { worker });
        }
    }
}

/// Latencies of all but the first tenth of `count` requests, with the shipped policy. Partitioned
/// requests reach their worker without the dispatcher, as from a network card.
pub(super) fn dispatched(
    model: QueueModel,
    depth: u8,
    workers: usize,
    arrivals: impl Iterator<Item = Arrival>,
    count: usize,
) -> Histogram<u64> {
    let free = model == QueueModel::Partitioned;
    let mut machine = Machine {
        policy: Jbsq::new(model, workers, depth, QUEUE),
        schedule: Schedule::new(),
        told: 0,
        busy_until_ns: 0,
        dispatch_ns: if free { 0 } else { DISPATCH_NS },
        handover_ns: if free { 0 } else { HANDOVER_NS },
        waiting: vec![VecDeque::new(); workers],
        running: vec![None; workers],
        requests: Vec::with_capacity(count),
        latencies_ns: times(),
        skipped: count / 10,
    };
    for arrival in arrivals.take(count) {
        while let Some(&Reverse((at_ns, _, event))) = machine.schedule.peek()
            && at_ns <= arrival.at_ns
        {
            machine.schedule.pop();
            machine.handle(at_ns, event);
        }
        machine.arrive(arrival);
    }
    while let Some(Reverse((at_ns, _, event))) = machine.schedule.pop() {
        machine.handle(at_ns, event);
    }
    machine.latencies_ns
}

#[cfg(test)]
mod tests {
    use super::super::MEAN_NS;
    use super::*;
    use crate::queueing::{Service, arrivals};

    /// Each of many workers that share nothing is M/M/1, with a mean of 1 / (1 - load).
    #[test]
    fn partitioned_workers_have_the_textbooks_latency() {
        let load = arrivals(Service::Exponential, MEAN_NS, 16, 0.5, 1);
        let parted = dispatched(QueueModel::Partitioned, 2, 16, load, 1_000_000);
        assert!((parted.mean() / MEAN_NS - 2.0).abs() < 0.05);
    }

    #[test]
    fn a_request_alone_takes_its_service_time_and_the_dispatchers() {
        let lone = Arrival {
            at_ns: 5,
            service_ns: 1_000,
            flow: 0,
        };
        let run = |count| dispatched(QueueModel::SingleQueue, 2, 4, std::iter::once(lone), count);
        let expected = 1_000 + DISPATCH_NS / 2 + HANDOVER_NS;
        assert!(run(1).equivalent(run(1).max(), expected));
    }
}
