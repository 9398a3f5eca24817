//! Latencies of many callers in one histogram.
//!
//! A histogram takes some 200 KiB, too much for each of a thousand callers. A lock for each call would
//! show in its latency. So a caller keeps a few latencies, and adds them to the histogram together.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::latency::Latencies;

/// Latencies that a caller keeps.
const KEPT: usize = 32;

/// What callers did in a period.
#[derive(Debug)]
pub struct Run {
    /// All latencies of all callers.
    pub latencies: Latencies,
    /// From the first caller's start to the last one's end.
    pub elapsed: Duration,
}

/// A period, and the histogram that its callers share.
#[derive(Debug)]
pub(super) struct Shared {
    clock: quanta::Clock,
    /// When the period began, by the processor's counter.
    begin: u64,
    length_ns: u64,
    latencies: Mutex<Latencies>,
}

impl Shared {
    /// A period that begins now.
    pub(super) fn begin(length: Duration) -> Arc<Self> {
        let latencies = Mutex::new(Latencies::new());
        // The first clock of a process takes some time to calibrate the processor's counter.
        let clock = quanta::Clock::new();
        Arc::new(Self {
            begin: clock.raw(),
            clock,
            length_ns: length.as_nanos() as u64,
            latencies,
        })
    }

    /// What all callers did. To be called after their end.
    pub(super) fn end(&self) -> Run {
        let elapsed_ns = self.since_begin_ns(self.clock.raw());
        Run {
            latencies: std::mem::take(&mut self.latencies.lock()),
            elapsed: Duration::from_nanos(elapsed_ns),
        }
    }

    #[inline]
    fn since_begin_ns(&self, now: u64) -> u64 {
        self.clock.delta_as_nanos(self.begin, now)
    }
}

/// The timer of one caller.
#[derive(Debug)]
pub(super) struct Recorder {
    shared: Arc<Shared>,
    /// The end of the last call.
    last: u64,
    ticks: [u64; KEPT],
    count: usize,
}

impl Recorder {
    /// A timer; the caller's first call begins now.
    pub(super) fn start(shared: Arc<Shared>) -> Self {
        Self {
            last: shared.clock.raw(),
            shared,
            ticks: [0; KEPT],
            count: 0,
        }
    }

    /// A call ends now. True if another one begins, false if the period is over.
    #[inline]
    pub(super) fn record(&mut self) -> bool {
        let now = self.shared.clock.raw();
        self.ticks[self.count] = now.wrapping_sub(self.last);
        self.last = now;
        self.count += 1;
        let goes_on = self.shared.since_begin_ns(now) < self.shared.length_ns;
        if self.count == KEPT || !goes_on {
            self.flush();
        }
        goes_on
    }

    #[cold]
    fn flush(&mut self) {
        let mut latencies = self.shared.latencies.lock();
        for &ticks in &self.ticks[..self.count] {
            latencies.record(self.shared.clock.delta_as_nanos(0, ticks));
        }
        drop(latencies);
        self.count = 0;
        // This work is not part of the next call.
        self.last = self.shared.clock.raw();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_of_every_caller_is_in_the_histogram() {
        let shared = Shared::begin(Duration::from_secs(3600));
        for _ in 0..2 {
            let mut recorder = Recorder::start(Arc::clone(&shared));
            for _ in 0..2 * KEPT {
                assert!(recorder.record());
            }
        }
        assert_eq!(shared.end().latencies.count(), 4 * KEPT as u64);
    }

    #[test]
    fn the_last_call_is_recorded_although_it_ends_after_the_period() {
        let shared = Shared::begin(Duration::ZERO);
        let mut recorder = Recorder::start(Arc::clone(&shared));
        std::thread::sleep(Duration::from_millis(2));
        assert!(!recorder.record());
        let run = shared.end();
        assert_eq!(run.latencies.count(), 1);
        assert!(run.latencies.percentile(50.0) >= 1_900_000);
        assert!(run.elapsed >= Duration::from_micros(1900));
    }
}
