//! Timely (SIGCOMM 2015), in the form of Zhu et al. (CoNEXT 2016, section 5), which has a fixed
//! point: the gradient weighs the decrease, the distance to a reference RTT gives its size.
//!
//! One thing is added: only standing delay changes the rate, see [`PathDelay`].

use super::path_delay::PathDelay;
use super::{Ack, Algorithm, Pace, was_idle};

/// Below this the queue is negligible: additive increase.
const LOW_NS: u64 = 50_000;
/// Above this: multiplicative decrease for any gradient.
const HIGH_NS: f64 = 1_000_000.0;
/// The RTT that the gradient's decrease steers towards.
const REFERENCE_NS: f64 = 50_000.0;
/// Weight of a new RTT difference.
const ALPHA: f64 = 0.46;
/// Strength of a decrease.
const BETA: f64 = 0.26;
/// RTT that normalises the gradient.
const BASE_NS: f64 = 20_000.0;
/// Low samples in a row before the increase is five times as fast (hyperactive increase, HAI).
const HAI_AFTER: u8 = 5;
/// No session is throttled below this: one small packet every few tens of microseconds.
const FLOOR_BPS: f64 = 15_000_000.0;

#[derive(Clone, Debug)]
pub(crate) struct Timely {
    rate_bps: f64,
    link_rate_bps: f64,
    /// Additive increase, a thousandth of the link.
    step_bps: f64,
    last_ns: f64,
    /// Smoothed difference between the RTTs of successive samples.
    difference_ns: f64,
    low_samples: u8,
    path: PathDelay,
    /// The last round-trip time, and the time of the last acknowledgement.
    rtt_ns: f64,
    last_ack_at: u64,
}

impl Timely {
    pub(super) fn new(link_rate_bps: f64) -> Self {
        Self {
            rate_bps: link_rate_bps,
            link_rate_bps,
            step_bps: link_rate_bps / 1000.0,
            last_ns: 0.0,
            difference_ns: 0.0,
            low_samples: 0,
            path: PathDelay::new(LOW_NS),
            rtt_ns: 0.0,
            last_ack_at: 0,
        }
    }

    fn update(&mut self, rtt_ns: f64) {
        let difference = if self.last_ns == 0.0 {
            0.0
        } else {
            rtt_ns - self.last_ns
        };
        self.last_ns = rtt_ns;
        self.difference_ns = (1.0 - ALPHA) * self.difference_ns + ALPHA * difference;

        if rtt_ns < LOW_NS as f64 {
            self.low_samples = self.low_samples.saturating_add(1);
            let hai_factor = if self.low_samples >= HAI_AFTER {
                5.0
            } else {
                1.0
            };
            self.rate_bps += hai_factor * self.step_bps;
        } else {
            self.low_samples = 0;
            if rtt_ns > HIGH_NS {
                self.rate_bps *= 1.0 - BETA * (1.0 - HIGH_NS / rtt_ns);
            } else {
                let gradient = self.difference_ns / BASE_NS;
                let weight = (2.0 * gradient + 0.5).clamp(0.0, 1.0);
                let error = ((rtt_ns - REFERENCE_NS) / REFERENCE_NS).min(1.0);
                self.rate_bps =
                    self.step_bps * (1.0 - weight) + self.rate_bps * (1.0 - BETA * weight * error);
            }
        }
        self.rate_bps = self.rate_bps.clamp(FLOOR_BPS, self.link_rate_bps);
    }
}

impl Algorithm for Timely {
    fn handle_ack(&mut self, ack: Ack) {
        self.last_ack_at = ack.now;
        self.rtt_ns = ack.rtt_ns.map_or(self.rtt_ns, |rtt_ns| rtt_ns as f64);
        let full = self.rate_bps >= self.link_rate_bps;
        if let Some(rtt_ns) = ack.rtt_ns
            && let Some(smallest_ns) = self.path.record_rtt(ack.now, rtt_ns, full)
        {
            self.update(self.path.queue_ns(smallest_ns) as f64);
        }
    }

    fn pace(&self) -> Option<Pace> {
        (self.rate_bps < self.link_rate_bps).then_some(Pace {
            window: u16::MAX,
            rate_bps: self.rate_bps,
            slack_ns: 0,
        })
    }

    /// Late answers give no round-trip time. Where all answers are late, only this raises the rate
    /// again.
    fn handle_wake(&mut self, now: u64) {
        if was_idle(now, self.last_ack_at, self.rtt_ns) {
            self.rate_bps = self.link_rate_bps;
            (self.last_ns, self.difference_ns) = (0.0, 0.0);
            self.low_samples = 0;
        }
    }

    fn ignorable_rtts_ns(&self) -> (u64, u64) {
        self.path.ignorable_rtts_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: f64 = 25e9;

    fn run(timely: &mut Timely, now: &mut u64, rtts: impl IntoIterator<Item = u64>) {
        for rtt in rtts {
            *now += rtt;
            timely.handle_ack(Ack {
                now: *now,
                rtt_ns: Some(rtt),
                packets: 1,
                marked: false,
                lost: false,
            });
        }
    }

    #[test]
    fn standing_queues_lower_the_rate_and_their_end_restores_it() {
        let mut timely = Timely::new(LINK);
        let mut now = 1;
        run(&mut timely, &mut now, (0..200).map(|i| 60_000 + i * 8_000));
        assert!(timely.rate_bps < LINK / 2.0, "{}", timely.rate_bps);
        run(&mut timely, &mut now, [10_000; 3000]);
        assert_eq!(timely.rate_bps, LINK);
    }

    #[test]
    fn a_session_that_was_idle_starts_anew() {
        let mut timely = Timely::new(LINK);
        let mut now = 1;
        run(&mut timely, &mut now, (0..200).map(|i| 60_000 + i * 8_000));
        let rate_bps = timely.rate_bps;
        timely.handle_wake(now + 2_000_000);
        assert_eq!(timely.rate_bps, rate_bps, "it is within four round trips");
        timely.handle_wake(now + 20_000_000);
        assert!(timely.pace().is_none());
    }

    #[test]
    fn a_stall_of_one_burst_does_not_throttle() {
        let mut timely = Timely::new(LINK);
        let mut now = 1;
        for _ in 0..50 {
            run(&mut timely, &mut now, [10_000; 40]);
            // The core was away for 5 ms: sixty packets come out of the queue in one burst.
            now += 5_000_000;
            for _ in 0..60 {
                run(&mut timely, &mut now, [])
            }
        }
        assert_eq!(timely.rate_bps, LINK);
    }

    #[test]
    fn the_rate_stays_within_its_bounds() {
        let mut timely = Timely::new(LINK);
        let mut now = 1;
        run(&mut timely, &mut now, [10_000]);
        run(&mut timely, &mut now, [1_500_000; 1000]);
        assert_eq!(timely.rate_bps, FLOOR_BPS);
    }

    #[test]
    fn the_delay_of_a_long_path_does_not_count_as_queueing() {
        let mut timely = Timely::new(LINK);
        let mut now = 1;
        run(
            &mut timely,
            &mut now,
            (0..1000).map(|i| 5_000_000 + i % 20 * 1000),
        );
        assert_eq!(timely.rate_bps, LINK);
    }
}
