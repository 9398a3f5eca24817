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
