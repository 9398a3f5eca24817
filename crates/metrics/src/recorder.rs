//! What one thread, or several, record of the calls of one method.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use starling_call::Code;

use crate::alike::{Key, Run};
use crate::cells::{Cell, Writers};
use crate::histogram::{Durations, Sizes};
use crate::totals::CallTotals;

/// The number of codes.
pub(crate) const CODES: usize = Code::ALL.len();

/// Records calls of one method.
///
/// A call that is answered in the turn in which it came is recorded by [`CallRecorder::record_in_turn`], and
/// its duration, that of the turn, with all others of the turn by [`CallRecorder::end_turn`]: no clock is read
/// for it. Any other call is begun and ended. What a thread ends in turns, [`CallRecorder::end_in_turn`] counts
/// with those of the turn that are alike.
#[derive(Debug)]
pub struct CallRecorder {
    writers: Writers,
    /// Calls of this turn that are counted when the next one is different, or the turn ends.
    run: Run,
    /// The codes of this turn, as bits.
    turn_codes: AtomicU32,
    /// Calls of this turn, by code.
    in_turn: [Cell; CODES],
    pub(crate) requests: Sizes,
    pub(crate) responses: Sizes,
    /// By code. Boxed, because few codes occur.
    pub(crate) durations: [OnceLock<Box<Durations>>; CODES],
    queued: OnceLock<Box<Durations>>,
    /// Calls that have begun here, less those that have ended here. It may be below zero: a call can begin in
    /// one thread and end in another, each with a recorder of its own.
    in_flight: Cell,
    messages_received: Cell,
    messages_sent: Cell,
    retries: Cell,
}

impl CallRecorder {
    /// One without counts.
    pub fn new(writers: Writers) -> Self {
        Self {
            writers,
            run: Run::default(),
            turn_codes: AtomicU32::new(0),
            in_turn: std::array::from_fn(|_| Cell::default()),
            requests: Sizes::default(),
            responses: Sizes::default(),
            durations: std::array::from_fn(|_| OnceLock::new()),
            queued: OnceLock::new(),
            in_flight: Cell::default(),
            messages_received: Cell::default(),
            messages_sent: Cell::default(),
            retries: Cell::default(),
        }
    }

    /// Records a call that has been answered in the turn in which it came: the bytes of its request and of
    /// its response. True if it is the first one of the turn, which has to be ended. Of a recorder with one
    /// writer.
    #[inline(always)]
    pub fn record_in_turn(&self, code: Code, request: usize, response: usize) -> bool {
        debug_assert_eq!(self.writers, Writers::One);
        let key = Key::of_turn(request, response);
        if code == Code::Ok && self.run.add(key, 0) {
            return false;
        }
        if code == Code::Ok && self.is_settled() && key.is_valid() {
            self.run.begin(key, 0);
            return true;
        }
        self.record_different(code, key, request, response)
    }

    #[inline(never)]
    fn record_different(&self, code: Code, key: Key, request: usize, response: usize) -> bool {
        let is_first = self.is_settled();
        self.end_run();
        if code == Code::Ok && key.is_valid() {
            self.run.begin(key, 0);
        } else {
            self.requests.record(request, 1, Writers::One);
            self.responses.record(response, 1, Writers::One);
            self.add_in_turn(code, 1);
        }
        is_first
    }

    /// Calls that take as long as the turn, and are counted but for that.
    fn add_in_turn(&self, code: Code, calls: u64) {
        self.in_turn[code as usize].add_alone(calls);
        let codes = self.turn_codes.load(Ordering::Relaxed) | 1 << code as u32;
        self.turn_codes.store(codes, Ordering::Relaxed);
    }

    /// Whether nothing of the turn is left for its end.
    fn is_settled(&self) -> bool {
        self.run.is_empty() && self.turn_codes.load(Ordering::Relaxed) == 0
    }

    /// Counts the calls of the run.
    fn end_run(&self) {
        let Some(run) = self.run.end() else {
            return;
        };
        self.requests.record(run.request, run.calls, Writers::One);
        self.responses.record(run.response, run.calls, Writers::One);
        let Some(bucket) = run.bucket else {
            return self.add_in_turn(Code::Ok, run.calls);
        };
        self.in_flight.add_alone(0u64.wrapping_sub(run.calls));
        let durations = self.durations_of(Code::Ok);
        durations.record_sum(bucket, run.calls, run.elapsed_ns, Writers::One);
    }

    #[inline]
    fn durations_of(&self, code: Code) -> &Durations {
        self.durations[code as usize].get_or_init(Box::default)
    }

    /// A call that was begun has ended well, after this time and with so many bytes. True if it is the first
    /// one of the turn, which has to be ended. Of a recorder with one writer.
    #[inline(always)]
    pub fn end_in_turn(&self, elapsed_ns: u64, request: usize, response: usize) -> bool {
        debug_assert_eq!(self.writers, Writers::One);
        let key = Key::of_duration(elapsed_ns, request, response);
        if self.run.add(key, elapsed_ns) {
            return false;
        }
        if self.is_settled() && key.is_valid() {
            self.run.begin(key, elapsed_ns);
            return true;
        }
        self.end_different(key, elapsed_ns, request, response);
        false
    }

    #[inline(never)]
    fn end_different(&self, key: Key, elapsed_ns: u64, request: usize, response: usize) {
        if key.is_valid() {
            self.end_run();
            self.run.begin(key, elapsed_ns);
        } else {
            self.end_with(Code::Ok, elapsed_ns, request, Some(response));
        }
    }

    /// The turn ends, which took so long.
    pub fn end_turn(&self, elapsed_ns: impl FnOnce() -> u64) {
        self.end_run();
        let mut codes = self.turn_codes.load(Ordering::Relaxed);
        if codes == 0 {
            return;
        }
        self.turn_codes.store(0, Ordering::Relaxed);
        let elapsed_ns = elapsed_ns();
        while codes != 0 {
            let code = codes.trailing_zeros() as usize;
            codes &= codes - 1;
            let calls = self.in_turn[code].take_alone();
            let durations = self.durations_of(Code::ALL[code]);
            durations.record(elapsed_ns, calls, Writers::One);
        }
    }

    /// A call begins. Of a recorder with one writer.
    #[inline]
    pub fn begin_alone(&self) {
        debug_assert_eq!(self.writers, Writers::One);
        self.in_flight.add_alone(1);
    }

    /// A call begins.
    #[inline]
    pub fn begin(&self) {
        self.in_flight.add(1, self.writers);
    }

    /// A call that was begun is made by another one, which counts it.
    pub fn leave(&self) {
        self.in_flight.add(u64::MAX, self.writers);
    }

    /// A call that was begun ends.
    #[inline]
    pub fn end(&self, code: Code, elapsed_ns: u64) {
        self.in_flight.add(u64::MAX, self.writers);
        self.record_duration(code, elapsed_ns);
    }

    #[inline]
    fn record_duration(&self, code: Code, elapsed_ns: u64) {
        let durations = self.durations_of(code);
        durations.record(elapsed_ns, 1, self.writers);
    }

    /// A call is over whose beginning was not recorded. It allocates only for the first call with its code.
    #[inline]
    pub fn record(&self, code: Code, elapsed_ns: u64, request: usize, response: Option<usize>) {
        self.record_request(request);
        if let Some(response) = response {
            self.record_response(response);
        }
        self.record_duration(code, elapsed_ns);
    }

    /// The same with the bytes of its request, and of its response if it has one.
    pub fn end_with(&self, code: Code, elapsed_ns: u64, request: usize, response: Option<usize>) {
        self.record_request(request);
        if let Some(response) = response {
            self.record_response(response);
        }
        self.end(code, elapsed_ns);
    }

    /// A request of so many bytes came or was sent. Of a stream, each message.
    #[inline]
    pub fn record_request(&self, bytes: usize) {
        self.requests.record(bytes, 1, self.writers);
    }

    /// A response of so many bytes was sent or came. Of a stream, each message.
    #[inline]
    pub fn record_response(&self, bytes: usize) {
        self.responses.record(bytes, 1, self.writers);
    }

    /// A call waited so long before anything was done for it.
    pub fn record_queued(&self, waited_ns: u64) {
        let queued = self.queued.get_or_init(Box::default);
        queued.record(waited_ns, 1, self.writers);
    }

    /// A message of a stream was taken by this end's reader.
    #[inline]
    pub fn record_message_received(&self) {
        self.messages_received.add(1, self.writers);
    }

    /// A message of a stream was sent by this end.
    #[inline]
    pub fn record_message_sent(&self) {
        self.messages_sent.add(1, self.writers);
    }

    /// A call is made once more.
    pub fn record_retry(&self) {
        self.retries.add(1, self.writers);
    }

    /// All counts. A call that is being recorded may be in some and not yet in others.
    pub fn totals(&self) -> CallTotals {
        let mut totals = CallTotals {
            requests: self.requests.totals(),
            responses: self.responses.totals(),
            queued: self
                .queued
                .get()
                .map(|queued| queued.totals())
                .unwrap_or_default(),
            in_flight: self.in_flight.value() as i64,
            messages_received: self.messages_received.value(),
            messages_sent: self.messages_sent.value(),
            retries: self.retries.value(),
            ..CallTotals::default()
        };
        for (code, durations) in Code::ALL.into_iter().zip(&self.durations) {
            if let Some(durations) = durations.get() {
                totals.durations.insert(code as u8, durations.totals());
            }
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calls_of_a_turn_take_as_long_as_the_turn() {
        let recorder = CallRecorder::new(Writers::One);
        assert!(recorder.record_in_turn(Code::Ok, 32, 100));
        assert!(!recorder.record_in_turn(Code::Ok, 32, 100));
        assert!(!recorder.record_in_turn(Code::NotFound, 5, 0));
        assert_eq!(recorder.totals().calls(), 0, "the turn is not over");
        recorder.end_turn(|| 700);
        recorder.end_turn(|| unreachable!("the turn had no calls"));
        let totals = recorder.totals();
        assert_eq!((totals.calls(), totals.errors()), (3, 1));
        assert_eq!(totals.duration(Code::Ok).sum(), 1400);
        assert_eq!(totals.duration(Code::NotFound).count(), 1);
        assert_eq!((totals.requests.count(), totals.requests.sum()), (3, 69));
        assert_eq!(totals.in_flight(), 0);
        assert!(
            recorder.record_in_turn(Code::Ok, 1, 1),
            "the first of the next turn"
        );
    }

    #[test]
    fn calls_of_a_turn_are_counted_when_it_ends_whether_they_are_alike_or_not() {
        let recorder = CallRecorder::new(Writers::One);
        let calls = [
            (1_000, 32, 100),
            (1_001, 32, 100),
            (9_000, 32, 100),
            (9_000, 5, 100),
            (9_000, 1 << 30, 0),
            (1_000, 32, 100),
        ];
        let mut is_first = Vec::new();
        for (elapsed_ns, request, response) in calls {
            recorder.begin();
            is_first.push(recorder.end_in_turn(elapsed_ns, request, response));
        }
        assert_eq!(is_first, [true, false, false, false, false, false]);
        recorder.begin();
        recorder.end_turn(|| unreachable!("each call has a time of its own"));
        let totals = recorder.totals();
        assert_eq!((totals.calls(), totals.in_flight()), (6, 1));
        assert_eq!(totals.duration(Code::Ok).sum(), 30_001);
        assert_eq!(totals.requests.sum(), 4 * 32 + 5 + (1 << 30));
        assert_eq!((totals.responses.count(), totals.responses.sum()), (6, 500));
        assert!(recorder.end_in_turn(1_000, 32, 100), "of the next turn");
    }

    #[test]
    fn a_call_is_in_flight_until_it_ends() {
        for writers in [Writers::One, Writers::Many] {
            let recorder = CallRecorder::new(writers);
            recorder.begin();
            recorder.begin();
            assert_eq!(recorder.totals().in_flight(), 2);
            recorder.end(Code::Unavailable, 5_000);
            recorder.record_queued(300);
            recorder.record_retry();
            let totals = recorder.totals();
            assert_eq!(
                (totals.in_flight(), totals.calls(), totals.errors()),
                (1, 1, 1)
            );
            assert_eq!((totals.queued.count(), totals.retries), (1, 1));
        }
    }

    #[test]
    fn many_writers_lose_nothing() {
        let recorder = CallRecorder::new(Writers::Many);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        recorder.begin();
                        recorder.record_request(10);
                        recorder.record_message_sent();
                        recorder.end(Code::Ok, 1000);
                    }
                });
            }
        });
        let totals = recorder.totals();
        assert_eq!(
            (totals.calls(), totals.in_flight(), totals.messages_sent),
            (4000, 0, 4000)
        );
        assert_eq!(totals.requests.sum(), 40_000);
    }
}
