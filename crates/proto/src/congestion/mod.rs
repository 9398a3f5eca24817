//! Congestion control of client sessions: from round-trip times (and, later, marks) to a rate.
//!
//! Only clients run it: a server's packets answer a client's, so to pace the client's is enough
//! (eRPC, NSDI'19, section 5.2). One file per algorithm.

mod timely;

use crate::config::{Config, Congestion};
use timely::Timely;

/// What a rate controller must do.
pub(crate) trait RateControl {
    /// A packet that was sent once came back after `rtt_ns`.
    fn on_rtt(&mut self, now: u64, rtt_ns: u64);

    /// The rate to send at, in bits per second.
    fn rate_bps(&self) -> f64;
}

/// The controller of one session, with the common-case bypasses around the algorithm.
#[derive(Clone, Debug)]
pub(crate) enum Controller {
    /// Nothing is computed and nothing is paced.
    Off,
    /// Timely.
    Timely(Box<Bypass<Timely>>),
}

/// An algorithm behind eRPC's bypasses (section 5.2.2).
#[derive(Clone, Debug)]
pub(crate) struct Bypass<A> {
    algorithm: A,
    link_rate_bps: f64,
    /// At full rate, an RTT below this needs no update.
    low_ns: u64,
    rate_bypass: bool,
    pacing_bypass: bool,
    /// When the next packet may leave.
    next_send_ns: u64,
}

impl Controller {
    pub(crate) fn new(config: &Config) -> Self {
        match config.congestion {
            Congestion::Off => Self::Off,
            Congestion::Timely => {
                let link_rate_bps = config.link_rate_bps as f64;
                Self::Timely(Box::new(Bypass {
                    algorithm: Timely::new(link_rate_bps),
                    link_rate_bps,
                    low_ns: timely::LOW_NS,
                    rate_bypass: config.factors.timely_bypass,
                    pacing_bypass: config.factors.pacing_bypass,
                    next_send_ns: 0,
                }))
            }
        }
    }

    /// Takes a round-trip time; returns whether the session may send without pacing from now on.
    #[inline]
    pub(crate) fn on_rtt(&mut self, now: u64, rtt_ns: u64) -> bool {
        match self {
            Self::Off => true,
            Self::Timely(control) => {
                let full = control.algorithm.rate_bps() >= control.link_rate_bps;
                if !(full && rtt_ns < control.low_ns && control.rate_bypass) {
                    control.algorithm.on_rtt(now, rtt_ns);
                }
                control.is_unpaced()
            }
        }
    }

    /// Whether packets need not be paced now.
    pub(crate) fn is_unpaced(&self) -> bool {
        match self {
            Self::Off => true,
            Self::Timely(control) => control.is_unpaced(),
        }
    }

    /// When the next packet may leave.
    pub(crate) fn next_send_ns(&self) -> u64 {
        match self {
            Self::Off => 0,
            Self::Timely(control) => control.next_send_ns,
        }
    }

    /// A paced packet of `bytes` left.
    pub(crate) fn on_sent(&mut self, now: u64, bytes: usize) {
        if let Self::Timely(control) = self {
            let gap_ns = bytes as f64 * 8e9 / control.algorithm.rate_bps();
            // Credit for silence is not saved up: no burst after a pause.
            control.next_send_ns = control.next_send_ns.max(now) + gap_ns as u64;
        }
    }
}

impl<A: RateControl> Bypass<A> {
    fn is_unpaced(&self) -> bool {
        self.pacing_bypass && self.algorithm.rate_bps() >= self.link_rate_bps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Factors;

    #[test]
    fn an_uncongested_session_is_not_paced_and_a_congested_one_is() {
        let mut control = Controller::new(&Config::default());
        assert!(control.is_unpaced());
        let mut now = 0;
        for _ in 0..1000 {
            now += 10_000;
            assert!(control.on_rtt(now, 10_000));
        }
        for _ in 0..1000 {
            now += 3_000_000;
            control.on_rtt(now, 3_000_000);
        }
        assert!(!control.is_unpaced());
        control.on_sent(now, 1500);
        assert!(control.next_send_ns() > now);
    }

    #[test]
    fn the_bypasses_can_be_turned_off() {
        let config = Config {
            factors: Factors {
                pacing_bypass: false,
                ..Factors::default()
            },
            ..Config::default()
        };
        assert!(!Controller::new(&config).is_unpaced());
    }
}
