//! Requests, an ideal server of them, and the highest load that a server can take.
//!
//! The measure is RPCValet's (ASPLOS 2019, figures 2 and 9): the highest load at which the 99th
//! percentile of latency stays within [`SLO`] mean service times. The ideal shares no code with the
//! systems it is compared with: the simulated dispatcher, or a real server that gets the very same
//! requests.

mod service;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hdrhistogram::Histogram;

pub use service::{Arrival, Service, arrivals};

/// The 99th percentile may be so many times the mean service time.
pub const SLO: f64 = 10.0;

/// A histogram of times: up to 100 s, three digits.
pub(crate) fn times() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 100_000_000_000, 3).expect("sound bounds")
}

/// Latencies of all but the first tenth of `count` requests, if workers take from one queue at no
/// cost (M/G/n, first come first served). By the recurrence of Kiefer and Wolfowitz (1955), a
/// request begins when it has arrived and the first worker is free.
pub fn ideal(
    workers: usize,
    arrivals: impl Iterator<Item = Arrival>,
    count: usize,
) -> Histogram<u64> {
    let mut latencies_ns = times();
    let mut free_ns: BinaryHeap<Reverse<u64>> = (0..workers).map(|_| Reverse(0)).collect();
    for (index, arrival) in arrivals.take(count).enumerate() {
        let Reverse(first_ns) = free_ns.pop().expect("at least one worker");
        let done_ns = first_ns.max(arrival.at_ns) + arrival.service_ns;
        free_ns.push(Reverse(done_ns));
        if index >= count / 10 {
            latencies_ns.saturating_record(done_ns - arrival.at_ns);
        }
    }
    latencies_ns
}

/// The resolution of the search for the highest load.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    /// Steps of the load, of which the last would be all of capacity and is not taken.
    pub steps: u32,
    /// Halvings of the step that holds the limit.
    pub halvings: u32,
    /// The tail latency, in mean service times, above which the search tries no higher load: [`SLO`],
    /// or more to show the tail latency in saturation.
    pub until: f64,
}

impl Search {
    /// Raises the load until the tail latency is longer than [`Search::until`]. Returns the highest load
    /// before the first at which it is longer than [`SLO`], and the tail latency at each step.
    ///
    /// # Errors
    /// The first of `tail`.
    pub fn run<E>(
        self,
        mut tail: impl FnMut(f64) -> Result<f64, E>,
    ) -> Result<(f64, Vec<(f64, f64)>), E> {
        let (mut within, mut points) = (0.0, Vec::new());
        let mut is_within = true;
        for step in 1..self.steps {
            let load = f64::from(step) / f64::from(self.steps);
            let tail = tail(load)?;
            points.push((load, tail));
            is_within &= tail <= SLO;
            if is_within {
                within = load;
            } else if tail > self.until {
                break;
            }
        }
        let mut step = 1.0 / f64::from(self.steps);
        for _ in 0..self.halvings {
            step /= 2.0;
            if tail(within + step)? <= SLO {
                within += step;
            }
        }
        Ok((within, points))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const MEAN_NS: f64 = 10_000.0;

    /// M/M/1: the time in the system is exponential with a mean of 1 / (1 - load).
    #[test]
    fn one_worker_has_the_textbooks_latency() {
        let load = arrivals(Service::Exponential, MEAN_NS, 1, 0.5, 1);
        let latencies = ideal(1, load, 1_000_000);
        let mean = latencies.mean() / MEAN_NS;
        assert!((mean - 2.0).abs() < 0.05, "{mean}");
        let p99 = latencies.value_at_quantile(0.99) as f64 / MEAN_NS;
        assert!((p99 - 2.0 * 100_f64.ln()).abs() < 0.3, "{p99}");
    }

    #[test]
    fn a_request_alone_takes_its_service_time() {
        let lone = Arrival {
            at_ns: 5,
            service_ns: 1_000,
            flow: 0,
        };
        assert!(ideal(4, std::iter::once(lone), 1).equivalent(1_000, 1_000));
    }

    #[test]
    fn the_limit_is_found_between_two_steps() {
        let search = Search {
            steps: 10,
            halvings: 4,
            until: SLO,
        };
        let tail = |load: f64| Ok::<_, Infallible>(if load <= 0.43 { SLO } else { SLO + 1.0 });
        let Ok((limit, points)) = search.run(tail);
        assert!((limit - 0.425).abs() < 1e-9, "{limit}");
        assert_eq!(
            points.len(),
            5,
            "the search stops at the first step that is too long"
        );
        let Ok((limit, points)) = search.run(|_| Ok::<_, Infallible>(1.0));
        assert!(limit > 0.99 && limit < 1.0, "{limit}");
        assert_eq!(points.len(), 9);
        assert_eq!(search.run(|_| Err("broken")), Err("broken"));
    }

    #[test]
    fn a_sweep_ends_when_the_tail_exceeds_its_bound() {
        let search = Search {
            steps: 10,
            halvings: 4,
            until: 50.0,
        };
        // It is longer than allowed at 0.4, and once more within at 0.5.
        let tails = [1.0, 2.0, 9.0, 11.0, 8.0, 40.0, 60.0, 90.0, 99.0];
        let tail = |load: f64| Ok::<_, Infallible>(tails[(load * 10.0 - 0.01) as usize]);
        let Ok((limit, points)) = search.run(tail);
        assert!((0.3..0.4).contains(&limit), "{limit}");
        let seen: Vec<f64> = points.iter().map(|point| point.1).collect();
        assert_eq!(seen, tails[..7]);
    }
}
