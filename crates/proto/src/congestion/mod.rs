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

/// The controller of one session, with eRPC's common-case bypasses (section 5.2.2) around the
/// algorithm: what an uncongested session needs is in two plain fields.
#[derive(Clone, Debug)]
pub(crate) struct Controller {
    /// A shorter round-trip time needs no update: zero unless at full rate.
    calm_ns: u32,
    /// Packets need not be paced.
    unpaced: bool,
    /// `None`: nothing is computed and nothing is paced.
    rate: Option<Box<Rate>>,
}

#[derive(Clone, Debug)]
struct Rate {
    algorithm: Timely,
    link_rate_bps: f64,
    rate_bypass: bool,
    pacing_bypass: bool,
    /// When the next packet may leave.
    next_send_ns: u64,
}

impl Default for Controller {
    /// None: nothing is computed and nothing is paced.
    fn default() -> Self {
        Self {
            calm_ns: u32::MAX,
            unpaced: true,
            rate: None,
        }
    }
}

impl Controller {
    pub(crate) fn new(config: &Config) -> Self {
        let link_rate_bps = config.link_rate_bps as f64;
        let rate = match config.congestion {
            Congestion::Off => None,
            Congestion::Timely => Some(Box::new(Rate {
                algorithm: Timely::new(link_rate_bps),
                link_rate_bps,
                rate_bypass: config.factors.timely_bypass,
                pacing_bypass: config.factors.pacing_bypass,
                next_send_ns: 0,
            })),
        };
        let mut controller = Self {
            rate,
            ..Self::default()
        };
        controller.look();
        controller
    }

    /// Takes a round-trip time; returns whether the session may send without pacing from now on.
    #[inline]
    pub(crate) fn on_rtt(&mut self, now: u64, rtt_ns: u64) -> bool {
        if rtt_ns >= self.calm_ns.into() {
            self.update(now, rtt_ns);
        }
        self.unpaced
    }

    #[cold]
    fn update(&mut self, now: u64, rtt_ns: u64) {
        if let Some(rate) = &mut self.rate {
            rate.algorithm.on_rtt(now, rtt_ns);
            self.look();
        }
    }

    /// Looks which bypasses the rate allows.
    fn look(&mut self) {
        if let Some(rate) = &self.rate {
            let full = rate.algorithm.rate_bps() >= rate.link_rate_bps;
            self.calm_ns = if full && rate.rate_bypass {
                timely::LOW_NS as u32
            } else {
                0
            };
            self.unpaced = full && rate.pacing_bypass;
        }
    }

    /// Whether packets need not be paced now.
    #[inline]
    pub(crate) fn is_unpaced(&self) -> bool {
        self.unpaced
    }

    /// When the next packet may leave.
    pub(crate) fn next_send_ns(&self) -> u64 {
        self.rate.as_ref().map_or(0, |rate| rate.next_send_ns)
    }

    /// A paced packet of `bytes` left.
    pub(crate) fn on_sent(&mut self, now: u64, bytes: usize) {
        if let Some(rate) = &mut self.rate {
            let gap_ns = bytes as f64 * 8e9 / rate.algorithm.rate_bps();
            // Credit for silence is not saved up: no burst after a pause.
            rate.next_send_ns = rate.next_send_ns.max(now) + gap_ns as u64;
        }
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
