//! Congestion control of client sessions: round-trip times and marks give a window and a rate.
//!
//! Only clients run it. A server's packets answer a client's, so it is enough to pace requests and
//! requests for response (eRPC, NSDI'19, section 5.2).
//!
//! ```text
//!  Ack ──▶ Controller ──(uncongested: nothing to do)
//!               └──────▶ Algorithm ──▶ Pace: packets in flight, bits per second
//! ```
//!
//! # How to add an algorithm
//!
//! 1. A file `congestion/<name>.rs` with a type that implements [`Algorithm`]: acknowledgements go
//!    in, a [`Pace`] comes out. [`Dctcp`] is the example; `path_delay.rs` and `rtt_filter.rs` tell
//!    queueing delay from the path's own delay and from stalls of a host.
//! 2. A variant of [`Congestion`] in `config.rs`, one of [`AnyAlgorithm`] here, and a line in
//!    [`Controller::new`].
//! 3. The formulas and constants in PROTOCOL.md, and tests in the new file: marks or delay lower the
//!    rate, their end restores it, a stall of a host does not.
//!
//! 4. In the simulator: its name in `scenario/incast.rs`, which matches all algorithms, and its place
//!    among what random runs draw, in `harness/plan/base_draw.rs` and `harness/plan/topology_draw.rs`.
//!
//! Nothing else of what ships knows which algorithm runs.

mod dctcp;
mod path_delay;
mod rtt_filter;
mod timely;

use crate::config::{Config, Congestion};
use dctcp::Dctcp;
use timely::Timely;

/// The facts about the network that an answer carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack {
    pub(crate) now: u64,
    /// The round-trip time of one of the packets, if it was sent once and its answer did not wait
    /// for a handler.
    pub(crate) rtt_ns: Option<u64>,
    /// Packets that were acknowledged.
    pub(crate) packets: u32,
    /// A queue marked one of the packets.
    pub(crate) marked: bool,
    /// A packet is lost, between others that arrived.
    pub(crate) lost: bool,
}

/// The limits of a congested session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Fragments in flight, at least one.
    window: u16,
    rate_bps: f64,
    /// How much a packet may leave early because those before it left late.
    slack_ns: u64,
}

/// A congestion control algorithm.
trait Algorithm {
    /// Packets were acknowledged.
    fn handle_ack(&mut self, ack: Ack);

    /// The limits of the session. `None`: it is not limited.
    fn pace(&self) -> Option<Pace>;

    /// The session had nothing to send, and has now.
    fn handle_wake(&mut self, _now: u64) {}

    /// A range of round-trip times: while the session is not limited, unmarked packets within it
    /// change nothing.
    fn ignorable_rtts_ns(&self) -> (u64, u64);
}

/// A session that had nothing to send for so many round trips starts anew.
const IDLE_ROUNDS: f64 = 4.0;
/// A shorter round trip counts as this long.
const MIN_RTT_NS: f64 = 1000.0;

/// Whether a session was idle for long that had its last answer at `last_ack_at` and sends now.
fn was_idle(now: u64, last_ack_at: u64, rtt_ns: f64) -> bool {
    now > last_ack_at + (IDLE_ROUNDS * rtt_ns.max(MIN_RTT_NS)) as u64
}

/// [`Controller`] rounds round-trip times to 2 to this power in ns: about a microsecond.
const IGNORED_SHIFT: u32 = 10;

/// The controller of one session, with eRPC's common-case bypasses (section 5.2.2) around the
/// algorithm: an uncongested session needs only plain fields.
#[derive(Clone, Debug)]
pub(crate) struct Controller {
    /// A round-trip time from this one on, in units of 1024 ns, needs no update ...
    ignored_from: u16,
    /// ... if it is less than so many units longer: none unless the session is uncongested.
    ignored_span: u16,
    /// Fragments that may be in flight.
    window: u16,
    /// Packets need not be paced.
    unpaced: bool,
    /// `None`: nothing is computed and nothing is paced.
    state: Option<Box<State>>,
}

#[derive(Clone, Debug)]
struct State {
    algorithm: AnyAlgorithm,
    rate_bypass: bool,
    pacing_bypass: bool,
    link_rate_bps: f64,
    pace: Pace,
    /// When the next packet may leave.
    next_send_ns: u64,
}

#[derive(Clone, Debug)]
enum AnyAlgorithm {
    Timely(Timely),
    Dctcp(Dctcp),
}

impl AnyAlgorithm {
    fn algorithm(&self) -> &dyn Algorithm {
        match self {
            Self::Timely(timely) => timely,
            Self::Dctcp(dctcp) => dctcp,
        }
    }

    fn algorithm_mut(&mut self) -> &mut dyn Algorithm {
        match self {
            Self::Timely(timely) => timely,
            Self::Dctcp(dctcp) => dctcp,
        }
    }
}

impl Default for Controller {
    /// None: nothing is computed and nothing is paced.
    fn default() -> Self {
        Self {
            ignored_from: 0,
            ignored_span: u16::MAX,
            window: u16::MAX,
            unpaced: true,
            state: None,
        }
    }
}

impl Controller {
    /// For a session with full packets of `packet_bytes`.
    pub(crate) fn new(config: &Config, packet_bytes: u32) -> Self {
        let link_rate_bps = config.link_rate_bps as f64;
        let algorithm = match config.congestion {
            Congestion::Off => return Self::default(),
            Congestion::Timely => AnyAlgorithm::Timely(Timely::new(link_rate_bps)),
            Congestion::Dctcp => {
                AnyAlgorithm::Dctcp(Dctcp::new(config.credits, packet_bytes, link_rate_bps))
            }
        };
        let mut controller = Self {
            state: Some(Box::new(State {
                algorithm,
                rate_bypass: config.factors.timely_bypass,
                pacing_bypass: config.factors.pacing_bypass,
                link_rate_bps,
                pace: Pace {
                    window: u16::MAX,
                    rate_bps: link_rate_bps,
                    slack_ns: 0,
                },
                next_send_ns: 0,
            })),
            ..Self::default()
        };
        controller.refresh();
        controller
    }

    /// Whether the algorithm must know of an unmarked packet with this round-trip time.
    #[inline]
    pub(crate) fn needs_update(&self, rtt_ns: u64) -> bool {
        (rtt_ns >> IGNORED_SHIFT).wrapping_sub(self.ignored_from.into()) >= self.ignored_span.into()
    }

    /// Handles what an answer says. Returns whether the session may send without pacing from now on.
    #[inline]
    pub(crate) fn handle_ack(&mut self, ack: Ack) -> bool {
        let told = ack.rtt_ns;
        if ack.marked
            || ack.lost
            || told.map_or(self.ignored_span == 0, |rtt_ns| self.needs_update(rtt_ns))
        {
            self.update(ack);
        }
        self.unpaced
    }

    /// The session had nothing to send, and has now.
    #[inline]
    pub(crate) fn handle_wake(&mut self, now: u64) {
        if !self.unpaced {
            self.wake(now);
        }
    }

    #[cold]
    fn wake(&mut self, now: u64) {
        if let Some(state) = &mut self.state {
            state.algorithm.algorithm_mut().handle_wake(now);
            self.refresh();
        }
    }

    #[cold]
    fn update(&mut self, ack: Ack) {
        if let Some(state) = &mut self.state {
            state.algorithm.algorithm_mut().handle_ack(ack);
            self.refresh();
        }
    }

    /// Recomputes what may be sent, and which bypasses that allows.
    fn refresh(&mut self) {
        let Some(state) = &mut self.state else {
            return;
        };
        let algorithm = state.algorithm.algorithm();
        let limits = algorithm.pace();
        self.unpaced = limits.is_none() && state.pacing_bypass;
        (self.ignored_from, self.ignored_span) = (0, 0);
        if limits.is_none() && state.rate_bypass {
            let (from, to) = algorithm.ignorable_rtts_ns();
            let (from, span) = (from >> IGNORED_SHIFT, (to - from) >> IGNORED_SHIFT);
            if let (Ok(from), Ok(span)) = (from.try_into(), span.try_into()) {
                (self.ignored_from, self.ignored_span) = (from, span);
            }
        }
        state.pace = limits.unwrap_or(Pace {
            window: u16::MAX,
            rate_bps: state.link_rate_bps,
            slack_ns: 0,
        });
        self.window = state.pace.window;
    }

    /// Whether packets need not be paced now.
    #[inline]
    pub(crate) fn is_unpaced(&self) -> bool {
        self.unpaced
    }

    /// The window and the rate, if the session is limited now.
    pub(crate) fn limits(&self) -> Option<(u16, u64)> {
        let state = self.state.as_ref().filter(|_| !self.unpaced)?;
        Some((state.pace.window, state.pace.rate_bps as u64))
    }

    /// Fragments that may be in flight.
    #[inline]
    pub(crate) fn window(&self) -> u16 {
        self.window
    }

    /// When the next packet may leave.
    pub(crate) fn next_send_ns(&self) -> u64 {
        self.state.as_ref().map_or(0, |state| state.next_send_ns)
    }

    /// How many packets of `bytes`, up to `most`, may leave before `until`.
    pub(crate) fn burst(&self, now: u64, until: u64, bytes: usize, most: u32) -> u32 {
        let Some(state) = self.state.as_ref().filter(|_| !self.unpaced) else {
            return most;
        };
        let mut next = state.next_send_ns;
        let mut count = 0;
        while count < most && next <= until {
            next = state.after(next, now, bytes);
            count += 1;
        }
        count
    }

    /// A packet of `bytes` was sent, or was asked for. On a session that is not paced it does not
    /// count: the link may be faster than configured, and the bytes that it has carried are no debt.
    pub(crate) fn record_sent(&mut self, now: u64, bytes: usize) {
        if self.unpaced {
            return;
        }
        if let Some(state) = &mut self.state {
            state.next_send_ns = state.after(state.next_send_ns, now, bytes);
        }
    }
}

impl State {
    /// When a packet may leave after one of `bytes` that was due at `next` and leaves `now`.
    fn after(&self, next: u64, now: u64, bytes: usize) -> u64 {
        let gap_ns = bytes as f64 * 8e9 / self.pace.rate_bps;
        // A pause saves up at most the slack: no burst follows it.
        next.max(now.saturating_sub(self.pace.slack_ns)) + gap_ns as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Factors;

    const PACKET: usize = 1500;

    fn config(congestion: Congestion) -> Config {
        Config {
            congestion,
            ..Config::default()
        }
    }

    fn record_answer(control: &mut Controller, now: u64, rtt_ns: u64) -> bool {
        control.handle_ack(Ack {
            now,
            rtt_ns: Some(rtt_ns),
            packets: 1,
            marked: false,
            lost: false,
        })
    }

    fn congested(congestion: Congestion) -> (Controller, u64) {
        let mut control = Controller::new(&config(congestion), PACKET as u32);
        assert!(control.is_unpaced());
        let mut now = 0;
        for _ in 0..1000 {
            now += 10_000;
            assert!(record_answer(&mut control, now, 10_000));
        }
        for _ in 0..500 {
            now += 3_000_000;
            record_answer(&mut control, now, 3_000_000);
        }
        (control, now)
    }

    #[test]
    fn an_uncongested_session_is_not_paced_and_a_congested_one_is() {
        for congestion in [Congestion::Timely, Congestion::Dctcp] {
            let (mut control, now) = congested(congestion);
            assert!(!control.is_unpaced());
            assert_eq!(control.burst(now, now, PACKET, 10), 1, "{congestion:?}");
            control.record_sent(now, PACKET);
            assert!(control.next_send_ns() > now);
            assert_eq!(control.burst(now, now, PACKET, 10), 0, "{congestion:?}");
        }
    }

    /// On an uncongested session, only a first, a shorter or a much longer round trip needs an
    /// update.
    #[test]
    fn a_usual_rtt_of_an_uncongested_session_needs_no_update() {
        for congestion in [Congestion::Timely, Congestion::Dctcp] {
            let mut control = Controller::new(&config(congestion), PACKET as u32);
            assert!(control.needs_update(700_000));
            record_answer(&mut control, 1_000_000, 700_000);
            assert!(control.needs_update(600_000));
            record_answer(&mut control, 2_000_000, 600_000);
            assert!(!control.needs_update(601_000) && !control.needs_update(640_000));
            assert!(control.needs_update(590_000) && control.needs_update(700_000));
            assert!(control.is_unpaced());
        }
        let off = Controller::new(&config(Congestion::Off), PACKET as u32);
        assert!(!off.needs_update(0) && !off.needs_update(60_000_000));
    }

    #[test]
    fn a_burst_is_as_large_as_what_is_sent_one_by_one() {
        let (mut control, now) = congested(Congestion::Dctcp);
        let until = now + 50_000_000;
        let burst = control.burst(now, until, PACKET, 1000);
        let mut sent = 0;
        while control.next_send_ns() <= until {
            control.record_sent(now, PACKET);
            sent += 1;
        }
        assert_eq!(burst, sent);
        assert!(sent > 1);
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
        assert!(!Controller::new(&config, PACKET as u32).is_unpaced());
    }
}
