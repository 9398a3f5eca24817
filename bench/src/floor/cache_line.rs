//! The floor of latency over shared memory: one cache line that goes back and forth.
//!
//! ```text
//!  client  store 1 ─────▶ sees 1            server
//!          sees 2  ◀───── store 2
//!          store 3 ─────▶ ...               odd values are the client's, even ones the server's
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::{BusyWait, Period, between_threads};
use crate::benchmark::Context;
use crate::error::BenchError;
use crate::latency::LatencyTimer;
use crate::metric::Sample;
use crate::pin::Cores;

/// Ends the server.
const STOP: u64 = u64::MAX;

/// Round trips between two readings of the clock in a probe, which needs only their mean.
const GROUP: u64 = 500;

/// Groups of round trips in one probe: some 5 ms in all if the cores are near.
const GROUPS: usize = 64;

/// The line, alone in a pair of lines: processors fetch the adjacent line too.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

impl Line {
    /// One round trip, from the even value `at`; returns the even value that it ends with.
    #[inline]
    fn round_trip(&self, at: u64, wait: BusyWait) -> u64 {
        self.0.store(at + 1, Ordering::Release);
        while self.0.load(Ordering::Acquire) != at + 2 {
            wait.pause();
        }
        at + 2
    }

    fn serve(&self, wait: BusyWait) {
        let mut expected = 1;
        loop {
            match self.0.load(Ordering::Acquire) {
                STOP => return,
                value if value == expected => {
                    self.0.store(value + 1, Ordering::Release);
                    expected += 2;
                }
                _ => wait.pause(),
            }
        }
    }
}

fn with_line<R>(cores: Cores, client: impl FnOnce(&Line, BusyWait) -> R) -> Result<R, BenchError> {
    let line = Line::default();
    let wait = BusyWait::on(cores);
    between_threads(
        cores,
        || line.serve(wait),
        || {
            let result = client(&line, wait);
            line.0.store(STOP, Ordering::Release);
            result
        },
    )
}

/// The present round trip, in ns: the median of the groups' means. The clock's own time and the
/// interruptions of single round trips do not count.
pub fn round_trip_ns(cores: Cores) -> Result<f64, BenchError> {
    with_line(cores, |line, wait| {
        let mut at = 0;
        let mut means = [0.0; GROUPS];
        for mean in &mut means {
            let begin = Instant::now();
            for _ in 0..GROUP {
                at = line.round_trip(at, wait);
            }
            *mean = begin.elapsed().as_nanos() as f64 / GROUP as f64;
        }
        means.sort_by(f64::total_cmp);
        means[GROUPS / 2]
    })
}

/// Latencies of single round trips. The clock is read once in each, as in all latency benchmarks.
pub fn latencies(context: &Context) -> Result<Sample, BenchError> {
    with_line(context.cores, |line, wait| {
        let mut at = 0;
        let warm_up = Period::warm_up(context);
        while !warm_up.is_over() {
            at = line.round_trip(at, wait);
        }
        let mut timer = LatencyTimer::new();
        let period = Period::measured(context);
        timer.start();
        loop {
            at = line.round_trip(at, wait);
            if timer.record() && period.is_over() {
                break timer.into_latencies().sample();
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_returns_after_each_round_trip_and_the_server_ends() {
        // Sharing a core, even on paper, makes both sides yield instead of spin.
        let cores = Cores::of_this_process().unwrap();
        let cores = Cores {
            server: cores.client,
            ..cores
        };
        let trips = with_line(cores, |line, wait| {
            let mut at = 0;
            for _ in 0..100 {
                at = line.round_trip(at, wait);
            }
            at / 2
        })
        .unwrap();
        assert_eq!(trips, 100);
    }
}
