//! Latency histograms, and a cheap timer for consecutive operations.

use hdrhistogram::Histogram;

use crate::metric::{Metric, Sample};

/// The longest latency that is distinguished, in ns; longer ones count as this.
const LONGEST_NS: u64 = 60_000_000_000;

/// A histogram of latencies in ns, with a relative error of at most 0.1 %.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
}

impl Latencies {
    /// An empty histogram. Its memory (some 200 KiB) does not depend on what is recorded.
    pub fn new() -> Self {
        Self {
            histogram: Histogram::new_with_bounds(1, LONGEST_NS, 3)
                .expect("the bounds are constants that the histogram takes"),
        }
    }

    /// Records one latency.
    #[inline]
    pub fn record(&mut self, latency_ns: u64) {
        self.histogram.saturating_record(latency_ns);
    }

    /// Adds all latencies of another histogram.
    pub fn add(&mut self, other: &Self) {
        self.histogram
            .add(&other.histogram)
            .expect("both histograms have the same bounds");
    }

    /// The number of recorded latencies.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The latency, in ns, that `percent` of the recorded ones do not exceed; 0 for an empty
    /// histogram.
    pub fn percentile(&self, percent: f64) -> u64 {
        self.histogram.value_at_percentile(percent)
    }

    /// p50, p99 and p99.9, as the figures of one repetition.
    pub fn sample(&self) -> Sample {
        vec![
            (Metric::P50, self.percentile(50.0) as f64),
            (Metric::P99, self.percentile(99.0) as f64),
            (Metric::P999, self.percentile(99.9) as f64),
        ]
    }
}

/// Latencies that are buffered before they go into the histogram.
const BUFFERED: usize = 512;

/// Times consecutive operations, at the least cost to them.
///
/// A reading of the system's clock takes some 30 ns and waits for all earlier loads, which is much
/// beside a message through shared memory. This timer reads the processor's counter, some 8 ns, and
/// sorts latencies into the histogram in batches.
pub struct LatencyTimer {
    clock: quanta::Clock,
    last: u64,
    ticks: [u64; BUFFERED],
    count: usize,
    latencies: Latencies,
}

impl LatencyTimer {
    /// A timer; call [`LatencyTimer::start`] before the first operation. The first timer of a
    /// process takes some time to calibrate the processor's counter.
    pub fn new() -> Self {
        Self {
            clock: quanta::Clock::new(),
            last: 0,
            ticks: [0; BUFFERED],
            count: 0,
            latencies: Latencies::new(),
        }
    }

    /// The first operation begins now.
    #[inline]
    pub fn start(&mut self) {
        self.last = self.clock.raw();
    }

    /// An operation ends now, and the next one begins. True if the next one began late because the
    /// buffered latencies went into the histogram: a good moment to read a slower clock.
    #[inline]
    pub fn record(&mut self) -> bool {
        let now = self.clock.raw();
        self.ticks[self.count] = now.wrapping_sub(self.last);
        self.last = now;
        self.count += 1;
        let full = self.count == BUFFERED;
        if full {
            self.flush();
        }
        full
    }

    #[cold]
    fn flush(&mut self) {
        for &ticks in &self.ticks[..self.count] {
            self.latencies.record(self.clock.delta_as_nanos(0, ticks));
        }
        self.count = 0;
        self.start();
    }

    /// All latencies.
    pub fn into_latencies(mut self) -> Latencies {
        self.flush();
        self.latencies
    }
}

impl Default for LatencyTimer {
    fn default() -> Self {
        Self::new()
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_recorded_values() {
        let mut latencies = Latencies::new();
        for ns in 1..=1000 {
            latencies.record(ns);
        }
        assert_eq!(latencies.count(), 1000);
        assert_eq!(latencies.percentile(50.0), 500);
        assert_eq!(latencies.percentile(99.0), 990);
        assert!((999..=1000).contains(&latencies.percentile(99.9)));
    }

    #[test]
    fn an_empty_histogram_is_zero_and_a_too_long_latency_counts_as_the_longest() {
        let mut latencies = Latencies::new();
        assert_eq!(latencies.percentile(50.0), 0);
        latencies.record(u64::MAX);
        assert!(latencies.percentile(50.0) >= LONGEST_NS);
    }

    #[test]
    fn the_timer_records_every_operation_with_its_duration() {
        let mut timer = LatencyTimer::new();
        timer.start();
        let full = (0..BUFFERED + 10).filter(|_| timer.record()).count();
        assert_eq!(full, 1);
        std::thread::sleep(std::time::Duration::from_millis(2));
        timer.record();
        let latencies = timer.into_latencies();
        assert_eq!(latencies.count(), BUFFERED as u64 + 11);
        assert!(latencies.percentile(100.0) >= 1_900_000);
    }

    #[test]
    fn adding_a_histogram_keeps_every_value() {
        let (mut a, mut b) = (Latencies::new(), Latencies::new());
        a.record(10);
        b.record(20);
        b.record(30);
        a.add(&b);
        assert_eq!(a.count(), 3);
        assert_eq!(a.percentile(50.0), 20);
    }
}
