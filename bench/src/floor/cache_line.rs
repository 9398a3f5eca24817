//! The floor of shared memory's latency: one cache line that goes back and forth.
//!
//! ```text
//!  client  store 1 ─────▶ sees 1            server
//!          sees 2  ◀───── store 2
//!          store 3 ─────▶ ...               odd: the client's turn is over, even: the server's
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::{Period, Spin, between_threads};
use crate::contest::{Context, Sample};
use crate::error::BenchError;
use crate::latency::LapTimer;
use crate::pin::Cores;

/// Ends the server.
const STOP: u64 = u64::MAX;

/// Round trips between two readings of the clock, where only their mean is wanted.
const GROUP: u64 = 500;

/// Groups in one probe: some 5 ms in all if the cores are near.
const GROUPS: usize = 64;

/// The line, alone in its pair of lines: processors fetch the neighbour too.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

impl Line {
    /// One round trip, from the even value `at`; returns the even value that it ends with.
    #[inline]
    fn round_trip(&self, at: u64, spin: Spin) -> u64 {
        self.0.store(at + 1, Ordering::Release);
        while self.0.load(Ordering::Acquire) != at + 2 {
            spin.turn();
        }
        at + 2
    }

    fn serve(&self, spin: Spin) {
        let mut expected = 1;
        loop {
            match self.0.load(Ordering::Acquire) {
                STOP => return,
                value if value == expected => {
                    self.0.store(value + 1, Ordering::Release);
                    expected += 2;
                }
                _ => spin.turn(),
            }
        }
    }
}

fn with_line<R>(cores: Cores, client: impl FnOnce(&Line, Spin) -> R) -> Result<R, BenchError> {
    let line = Line::default();
    let spin = Spin::on(cores);
    between_threads(
        cores,
        || line.serve(spin),
        || {
            let result = client(&line, spin);
            line.0.store(STOP, Ordering::Release);
            result
        },
    )
}

/// The mean round trip of the moment, in ns, by the median of some groups: without the clock's
/// own time and without the interruptions of single round trips.
pub fn round_trip_ns(cores: Cores) -> Result<f64, BenchError> {
    with_line(cores, |line, spin| {
        let mut at = 0;
        let mut means = [0.0; GROUPS];
        for mean in &mut means {
            let begin = Instant::now();
            for _ in 0..GROUP {
                at = line.round_trip(at, spin);
            }
            *mean = begin.elapsed().as_nanos() as f64 / GROUP as f64;
        }
        means.sort_by(f64::total_cmp);
        means[GROUPS / 2]
    })
}

/// Latencies of single round trips, the clock read once in each, as every latency here is taken.
pub fn latencies(context: &Context) -> Result<Sample, BenchError> {
    with_line(context.cores, |line, spin| {
        let mut at = 0;
        let warm_up = Period::warm_up(context);
        while !warm_up.over() {
            at = line.round_trip(at, spin);
        }
        let mut timer = LapTimer::new();
        let period = Period::measured(context);
        timer.begin();
        loop {
            at = line.round_trip(at, spin);
            if timer.lap() && period.over() {
                break timer.into_latencies().sample();
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_comes_back_and_the_server_ends() {
        // Sharing a core, even on paper, makes both sides yield instead of spin.
        let cores = Cores::of_this_process().unwrap();
        let cores = Cores {
            server: cores.client,
            ..cores
        };
        let trips = with_line(cores, |line, spin| {
            let mut at = 0;
            for _ in 0..100 {
                at = line.round_trip(at, spin);
            }
            at / 2
        })
        .unwrap();
        assert_eq!(trips, 100);
    }
}
