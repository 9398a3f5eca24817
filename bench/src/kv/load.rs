//! The load: draws the next operation, and checks its answer with the model.

use super::model::{Model, Moment, WrongAnswer};
use super::random::Random;
use super::workload::{Kind, Workload};
use super::zipf::Zipf;
use crate::latency::Latencies;
use starling_sample_services::kv::record::{self, Key, Value};

/// The exponent of YCSB's Zipf distribution.
pub const THETA: f64 = 0.99;

/// The longest scan of YCSB E, in records.
pub const MAX_SCAN: u64 = 100;

/// Keys of one [`Op::MultiGet`].
pub const MULTI_GET_KEYS: usize = 8;

/// One call to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Its answer goes to [`Load::handle_get`].
    Get {
        /// The key.
        key: Key,
    },
    /// Its answer goes to [`Load::handle_put`].
    Put {
        /// The key.
        key: Key,
        /// The value.
        value: Value,
    },
    /// Its answer goes to [`Load::handle_delete`].
    Delete {
        /// The key.
        key: Key,
    },
    /// Its answer goes to [`Load::handle_scan`].
    Scan {
        /// The first key.
        start: Key,
        /// The most records.
        limit: u32,
    },
    /// Its answer goes to [`Load::handle_multi_get`].
    MultiGet {
        /// The keys.
        keys: [Key; MULTI_GET_KEYS],
    },
}

/// Matches an answer with its operation. Valid until the answer has been handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u32);

impl Ticket {
    /// A number below the limit of operations in flight; no other ticket in flight has it.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// An operation in flight, with the model's knowledge at its issue.
#[derive(Clone, Copy, Debug)]
enum Expected {
    Get {
        id: u64,
        floor: u32,
    },
    Put {
        id: u64,
        version: u32,
        oldest: u32,
    },
    Delete {
        id: u64,
        version: u32,
        oldest: u32,
        existed: Option<bool>,
    },
    Scan {
        start: u64,
        limit: u32,
        began: Moment,
    },
    MultiGet {
        records: [(u64, u32); MULTI_GET_KEYS],
    },
}

impl Expected {
    fn name(&self) -> &'static str {
        match self {
            Self::Get { .. } => "Get",
            Self::Put { .. } => "Put",
            Self::Delete { .. } => "Delete",
            Self::Scan { .. } => "Scan",
            Self::MultiGet { .. } => "MultiGet",
        }
    }

    /// The version that this operation writes to record `id`, if it writes there.
    fn writes(&self, id: u64) -> Option<u32> {
        match *self {
            Self::Put {
                id: own, version, ..
            }
            | Self::Delete {
                id: own, version, ..
            } => (own == id).then_some(version),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    expected: Expected,
    issued_at_ns: u64,
}

/// Issues the operations of a workload, a limited number at a time, and checks the answers.
pub struct Load {
    workload: Workload,
    model: Model,
    zipf: Zipf,
    random: Random,
    in_flight: Vec<Option<InFlight>>,
    free: Vec<u32>,
    stopped: bool,
    latencies: Latencies,
}

impl Load {
    /// A load on a store that holds `records` initial records (see [`record::initial`]), with at
    /// most `in_flight` operations at a time.
    pub fn new(records: u64, workload: Workload, seed: u64, in_flight: u32) -> Self {
        Self {
            workload,
            model: Model::new(records),
            zipf: Zipf::new(records, THETA),
            random: Random::new(seed),
            in_flight: vec![None; in_flight as usize],
            free: (0..in_flight).rev().collect(),
            stopped: false,
            latencies: Latencies::new(),
        }
    }

    /// Continues with another workload on the same records.
    ///
    /// # Panics
    /// If operations are in flight.
    pub fn switch_to(&mut self, workload: Workload) {
        assert!(self.is_idle(), "operations of two workloads would mix");
        self.workload = workload;
        self.stopped = false;
    }

    /// Whether no operation is in flight.
    pub fn is_idle(&self) -> bool {
        self.free.len() == self.in_flight.len()
    }

    /// Issues no more operations until [`Load::switch_to`].
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// The latencies of all operations that ended since the last call of this.
    pub fn take_latencies(&mut self) -> Latencies {
        std::mem::take(&mut self.latencies)
    }

    /// Operations that ended since the last [`Load::take_latencies`].
    pub fn calls(&self) -> u64 {
        self.latencies.count()
    }

    /// The next operation; `None` at the limit, and after [`Load::stop`].
    pub fn poll(&mut self, now_ns: u64) -> Option<(Ticket, Op)> {
        if self.stopped {
            return None;
        }
        let ticket = self.free.pop()?;
        let kind = self.workload.draw(&mut self.random);
        let (expected, op) = match kind {
            Kind::Get => self.get(),
            Kind::Update => {
                let id = self.draw();
                self.put(id)
            }
            Kind::Insert => self.put(self.model.records()),
            Kind::Delete => self.delete(),
            Kind::Scan => self.scan(),
            Kind::MultiGet => self.multi_get(),
        };
        self.in_flight[ticket as usize] = Some(InFlight {
            expected,
            issued_at_ns: now_ns,
        });
        Some((Ticket(ticket), op))
    }

    /// One of the initial records, by popularity.
    fn draw(&mut self) -> u64 {
        self.zipf.draw(&mut self.random)
    }

    fn get(&mut self) -> (Expected, Op) {
        let id = self.draw();
        let floor = self.model.floor(id);
        let key = record::key(id);
        (Expected::Get { id, floor }, Op::Get { key })
    }

    fn put(&mut self, id: u64) -> (Expected, Op) {
        let version = self.model.begin_put(id);
        let expected = Expected::Put {
            id,
            version,
            oldest: self.oldest_write(id, version),
        };
        let key = record::key(id);
        let value = record::value(id, version);
        (expected, Op::Put { key, value })
    }

    fn delete(&mut self) -> (Expected, Op) {
        let id = self.draw();
        let (version, existed) = self.model.begin_delete(id);
        let expected = Expected::Delete {
            id,
            version,
            oldest: self.oldest_write(id, version),
            existed,
        };
        let key = record::key(id);
        (expected, Op::Delete { key })
    }

    fn scan(&mut self) -> (Expected, Op) {
        let start = record::place(self.draw());
        let limit = 1 + self.random.below(MAX_SCAN) as u32;
        let began = self.model.begin_scan();
        let expected = Expected::Scan {
            start,
            limit,
            began,
        };
        let start = record::key_at(start);
        (expected, Op::Scan { start, limit })
    }

    fn multi_get(&mut self) -> (Expected, Op) {
        let records = std::array::from_fn(|_| {
            let id = self.draw();
            (id, self.model.floor(id))
        });
        let keys = records.map(|(id, _)| record::key(id));
        (Expected::MultiGet { records }, Op::MultiGet { keys })
    }

    /// The oldest write to record `id` in flight; `own` if there is none before it.
    fn oldest_write(&self, id: u64, own: u32) -> u32 {
        let in_flight = self.in_flight.iter().flatten();
        in_flight
            .filter_map(|in_flight| in_flight.expected.writes(id))
            .fold(own, u32::min)
    }

    /// Ends an operation, whatever its answer.
    fn end(&mut self, ticket: Ticket, now_ns: u64) -> Expected {
        let in_flight = self.in_flight[ticket.index()]
            .take()
            .expect("each operation is answered once");
        self.free.push(ticket.0);
        self.latencies
            .record(now_ns.saturating_sub(in_flight.issued_at_ns));
        in_flight.expected
    }

    /// The answer to [`Op::Get`]: the value, if there was one.
    pub fn handle_get(
        &mut self,
        ticket: Ticket,
        now_ns: u64,
        found: Option<&[u8]>,
    ) -> Result<(), WrongAnswer> {
        match self.end(ticket, now_ns) {
            Expected::Get { id, floor } => self.model.check(id, floor, found),
            other => Err(kind(&other, "Get")),
        }
    }

    /// The answer to [`Op::Put`].
    pub fn handle_put(&mut self, ticket: Ticket, now_ns: u64) -> Result<(), WrongAnswer> {
        match self.end(ticket, now_ns) {
            Expected::Put { id, oldest, .. } => {
                self.model.end_write(id, oldest);
                Ok(())
            }
            other => Err(kind(&other, "Put")),
        }
    }

    /// The answer to [`Op::Delete`]: whether there was such a key.
    pub fn handle_delete(
        &mut self,
        ticket: Ticket,
        now_ns: u64,
        said: bool,
    ) -> Result<(), WrongAnswer> {
        match self.end(ticket, now_ns) {
            Expected::Delete {
                id,
                version,
                oldest,
                existed,
            } => {
                self.model.end_write(id, oldest);
                // A write issued since may have taken effect first.
                let alone = self.model.issued(id) == version;
                if alone && existed.is_some_and(|existed| existed != said) {
                    let key = record::key(id);
                    return Err(WrongAnswer::Existed {
                        key: String::from_utf8_lossy(&key).into_owned(),
                        said,
                    });
                }
                Ok(())
            }
            other => Err(kind(&other, "Delete")),
        }
    }

    /// The answer to [`Op::Scan`]: the records, in the order of the answer.
    pub fn handle_scan<'a>(
        &mut self,
        ticket: Ticket,
        now_ns: u64,
        found: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Result<(), WrongAnswer> {
        match self.end(ticket, now_ns) {
            Expected::Scan {
                start,
                limit,
                began,
            } => self.model.end_scan(began, start, limit as usize, found),
            other => Err(kind(&other, "Scan")),
        }
    }

    /// The answer to [`Op::MultiGet`]: the values, in the order of the keys.
    pub fn handle_multi_get<'a>(
        &mut self,
        ticket: Ticket,
        now_ns: u64,
        found: impl Iterator<Item = Option<&'a [u8]>>,
    ) -> Result<(), WrongAnswer> {
        match self.end(ticket, now_ns) {
            Expected::MultiGet { records } => {
                let mut records = records.iter();
                let mut got = 0;
                for found in found.take(MULTI_GET_KEYS + 1) {
                    got += 1;
                    if let Some(&(id, floor)) = records.next() {
                        self.model.check(id, floor, found)?;
                    }
                }
                if got != MULTI_GET_KEYS {
                    return Err(WrongAnswer::Count {
                        what: "answers of a MultiGet",
                        expected: MULTI_GET_KEYS,
                        got,
                    });
                }
                Ok(())
            }
            other => Err(kind(&other, "MultiGet")),
        }
    }
}

fn kind(asked: &Expected, got: &'static str) -> WrongAnswer {
    WrongAnswer::Kind {
        asked: asked.name(),
        got,
    }
}

#[cfg(test)]
mod tests {
    use starling_sample_services::kv::Store;

    use super::*;

    /// A server with a correct store.
    struct Server {
        store: Store,
    }

    impl Server {
        fn new(records: u64) -> Self {
            Self {
                store: Store::with_initial(records),
            }
        }

        fn answer(&self, load: &mut Load, ticket: Ticket, op: Op) -> Result<(), WrongAnswer> {
            match op {
                Op::Get { key } => {
                    let found = |value: Option<&[u8]>| load.handle_get(ticket, 0, value);
                    self.store.get(&key, found).unwrap()
                }
                Op::Put { key, value } => {
                    self.store.put(&key, &value).unwrap();
                    load.handle_put(ticket, 0)
                }
                Op::Delete { key } => {
                    load.handle_delete(ticket, 0, self.store.delete(&key).unwrap())
                }
                Op::Scan { start, limit } => {
                    let mut found = Vec::new();
                    self.store
                        .scan(&start, limit, |key, value| {
                            found.push((key.to_vec(), value.to_vec()));
                        })
                        .unwrap();
                    load.handle_scan(ticket, 0, found.iter().map(|(k, v)| (&k[..], &v[..])))
                }
                Op::MultiGet { keys } => {
                    let copy = |value: Option<&[u8]>| value.map(<[u8]>::to_vec);
                    let found = keys.map(|key| self.store.get(&key, copy).unwrap());
                    load.handle_multi_get(ticket, 0, found.iter().map(Option::as_deref))
                }
            }
        }
    }

    #[test]
    fn a_correct_store_passes_every_workload_in_any_order_of_execution() {
        const RECORDS: u64 = 200;
        for seed in 0..20 {
            let server = Server::new(RECORDS);
            let mut load = Load::new(RECORDS, Workload::A, seed, 16);
            let mut order = Random::new(seed);
            for workload in Workload::YCSB.into_iter().chain([Workload::All]) {
                load.switch_to(workload);
                let mut waiting = Vec::new();
                for _ in 0..1_000 {
                    waiting.extend(load.poll(0));
                    // The network executes calls in no particular order.
                    if waiting.len() == 16 || order.below(2) == 0 {
                        let index = order.below(waiting.len() as u64) as usize;
                        let (ticket, op) = waiting.swap_remove(index);
                        server.answer(&mut load, ticket, op).unwrap();
                    }
                }
                load.stop();
                assert!(load.poll(0).is_none());
                for (ticket, op) in waiting {
                    server.answer(&mut load, ticket, op).unwrap();
                }
                assert!(load.is_idle());
            }
        }
    }

    #[test]
    fn a_lost_write_is_detected() {
        let server = Server::new(10);
        let mut load = Load::new(10, Workload::A, 1, 1);
        let mut lost = false;
        let caught = (0..1000).any(|_| {
            let (ticket, op) = load.poll(0).unwrap();
            match op {
                Op::Put { .. } if !lost => {
                    lost = true;
                    load.handle_put(ticket, 0).unwrap();
                    false
                }
                op => server.answer(&mut load, ticket, op).is_err(),
            }
        });
        assert!(lost && caught);
    }

    #[test]
    fn the_limit_in_flight_holds_until_an_answer_arrives() {
        let mut load = Load::new(10, Workload::C, 1, 2);
        let (first, _) = load.poll(0).unwrap();
        let (second, _) = load.poll(0).unwrap();
        assert_ne!(first.index(), second.index());
        assert!(load.poll(0).is_none());
        // A wrong answer ends the operation too.
        assert!(load.handle_get(first, 7, None).is_err());
        assert!(load.poll(0).is_some());
        assert_eq!(load.take_latencies().percentile(50.0), 7);
        assert_eq!(load.take_latencies().count(), 0);
    }

    #[test]
    fn an_answer_of_another_kind_or_length_is_wrong() {
        let mut load = Load::new(10, Workload::C, 1, 1);
        let (ticket, _) = load.poll(0).unwrap();
        assert_eq!(
            load.handle_put(ticket, 0),
            Err(WrongAnswer::Kind {
                asked: "Get",
                got: "Put"
            })
        );
        load.switch_to(Workload::All);
        let ticket = loop {
            match load.poll(0).unwrap() {
                (ticket, Op::MultiGet { .. }) => break ticket,
                (ticket, _) => {
                    let _ = load.handle_put(ticket, 0);
                }
            }
        };
        assert!(matches!(
            load.handle_multi_get(ticket, 0, std::iter::empty()),
            Err(WrongAnswer::Count { got: 0, .. })
        ));
    }

    #[test]
    fn the_same_seed_gives_the_same_operations() {
        let ops = |seed| {
            let mut load = Load::new(100, Workload::All, seed, 50);
            std::iter::from_fn(|| load.poll(0))
                .map(|(_, op)| op)
                .collect::<Vec<_>>()
        };
        assert_eq!(ops(3), ops(3));
        assert_ne!(ops(3), ops(4));
    }
}
