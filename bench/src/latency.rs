//! Latencies, collected.

use hdrhistogram::Histogram;

use crate::contest::Sample;
use crate::row::Metric;

/// The longest latency told apart, in ns; longer ones count as this.
const LONGEST_NS: u64 = 60_000_000_000;

/// A histogram of latencies in ns, within 0.1 % of what was recorded.
#[derive(Clone, Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
}

impl Latencies {
    /// An empty histogram. Holds a fixed amount of memory (some 200 KiB) whatever is recorded.
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

    /// Adds what another histogram holds.
    pub fn add(&mut self, other: &Self) {
        self.histogram
            .add(&other.histogram)
            .expect("both histograms have the same bounds");
    }

    /// How many were recorded.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The latency, in ns, that `percent` of the recorded ones do not exceed; 0 of an empty one.
    pub fn percentile(&self, percent: f64) -> u64 {
        self.histogram.value_at_percentile(percent)
    }

    /// p50, p99 and p99.9, as the figures of one round.
    pub fn sample(&self) -> Sample {
        vec![
            (Metric::P50, self.percentile(50.0) as f64),
            (Metric::P99, self.percentile(99.0) as f64),
            (Metric::P999, self.percentile(99.9) as f64),
        ]
    }
}

/// Laps between two transfers into the histogram.
const LAPS: usize = 512;

/// Times one operation after the other, at the least cost to the operations.
///
/// The system's clock takes some 30 ns and waits for all loads before it, which is a good part of
/// what a message through shared memory takes. This reads the processor's counter, some 8 ns, and
/// leaves the sorting into a histogram for later.
pub struct LapTimer {
    clock: quanta::Clock,
    last: u64,
    laps: [u64; LAPS],
    count: usize,
    latencies: Latencies,
}

impl LapTimer {
    /// A timer whose first lap begins with [`LapTimer::begin`]. The first one of a process takes
    /// some time to find out how fast the processor counts.
    pub fn new() -> Self {
        Self {
            clock: quanta::Clock::new(),
            last: 0,
            laps: [0; LAPS],
            count: 0,
            latencies: Latencies::new(),
        }
    }

    /// A lap begins now.
    #[inline]
    pub fn begin(&mut self) {
        self.last = self.clock.raw();
    }

    /// A lap ends now, and the next one begins. True when the next one began late, because the
    /// laps so far were put into the histogram: a good moment to look at a slower clock.
    #[inline]
    pub fn lap(&mut self) -> bool {
        let now = self.clock.raw();
        self.laps[self.count] = now.wrapping_sub(self.last);
        self.last = now;
        self.count += 1;
        let full = self.count == LAPS;
        if full {
            self.sort_in();
        }
        full
    }

    #[cold]
    fn sort_in(&mut self) {
        for &lap in &self.laps[..self.count] {
            self.latencies.record(self.clock.delta_as_nanos(0, lap));
        }
        self.count = 0;
        self.begin();
    }

    /// All laps.
    pub fn into_latencies(mut self) -> Latencies {
        self.sort_in();
        self.latencies
    }
}

impl Default for LapTimer {
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
    fn percentiles_of_known_values() {
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
    fn nothing_recorded_is_zero_and_too_long_is_the_longest() {
        let mut latencies = Latencies::new();
        assert_eq!(latencies.percentile(50.0), 0);
        latencies.record(u64::MAX);
        assert!(latencies.percentile(50.0) >= LONGEST_NS);
    }

    #[test]
    fn every_lap_is_counted_and_takes_as_long_as_it_took() {
        let mut timer = LapTimer::new();
        timer.begin();
        let full = (0..LAPS + 10).filter(|_| timer.lap()).count();
        assert_eq!(full, 1);
        std::thread::sleep(std::time::Duration::from_millis(2));
        timer.lap();
        let latencies = timer.into_latencies();
        assert_eq!(latencies.count(), LAPS as u64 + 11);
        assert!(latencies.percentile(100.0) >= 1_900_000);
    }

    #[test]
    fn adding_keeps_every_value() {
        let (mut a, mut b) = (Latencies::new(), Latencies::new());
        a.record(10);
        b.record(20);
        b.record(30);
        a.add(&b);
        assert_eq!(a.count(), 3);
        assert_eq!(a.percentile(50.0), 20);
    }
}
