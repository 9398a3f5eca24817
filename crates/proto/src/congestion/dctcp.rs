//! DCTCP (SIGCOMM 2010) on a window that goes below one packet, as Swift's does (SIGCOMM 2020).
//!
//! A switch marks packets that find more than a threshold queued. Once a round trip, the window
//! decreases by half of the average share of marked packets; in each round without marks it grows by
//! a fixed amount. With a hundred senders to one port, the share of each is less than a packet in
//! flight: below one packet the window is a gap between packets.
//!
//! Marks come only from queues in the network, so a slow core at either end throttles no session.
//! Where nothing marks, delay takes their place. A standing delay well above that of the path and of
//! the hosts decreases the window by its excess, as with Swift's target. A packet that is lost
//! between others that arrive decreases it, too. A timeout does not: the other end may be away.

use super::path_delay::PathDelay;
use super::{Ack, Algorithm, MIN_RTT_NS, Pace, was_idle};

/// Weight of a new share of marked packets: DCTCP's.
const GAIN: f64 = 1.0 / 16.0;
/// The share that is assumed when the first mark comes. DCTCP assumes one: then a lone mark would
/// halve the speed for many round trips. If a larger decrease is needed, more marks follow.
const FIRST_ALPHA: f64 = 1.0 / 8.0;
/// Growth of the window in a round, in packets. TCP's growth is one: with a hundred senders, each
/// with about one packet in flight, that would double the queue.
const STEP: f64 = 1.0 / 4.0;
/// The growth accelerates with each round without a mark, to at most so many steps.
const MAX_STEPS: u32 = 32;
/// The least window, in packets.
const MIN_WINDOW: f64 = 1.0 / 64.0;
/// Delay alone does not decrease the window below this: one packet from each of a hundred senders is
/// a short queue.
const MIN_WINDOW_BY_DELAY: f64 = 1.0;
/// Delay that busy hosts add to the path's own.
const TARGET_NS: f64 = 50_000.0;
/// A queue of so many packets at the link's rate is no congestion: large packets on a slow link need
/// more time.
const TARGET_PACKETS: f64 = 8.0;
/// Strength of a decrease by delay, and the largest such decrease: Swift's values.
const BETA: f64 = 0.8;
const MAX_DECREASE: f64 = 0.5;
/// The decrease after a loss: CUBIC's (RFC 9438). DCTCP's half would cost a link that loses one
/// packet in a thousand four percent more throughput. In front of buffers too small to queue
/// anything, half causes more timeouts, not fewer.
const LOSS_DECREASE: f64 = 0.3;
/// Weight of a new round-trip time.
const RTT_GAIN: f64 = 0.125;

#[derive(Clone, Debug)]
pub(super) struct Dctcp {
    /// Packets in flight.
    window: f64,
    /// From here on the window limits nothing.
    limit: f64,
    /// Standing delay beyond the path's own and this is congestion.
    target_ns: f64,
    /// Bytes of a full packet.
    packet_bytes: f64,
    /// The share of packets that are marked, on average.
    alpha: f64,
    rtt_ns: f64,
    path: PathDelay,
    /// The present round: when it ends, and what was acknowledged in it.
    round_ends: u64,
    packets: u32,
    marked: u32,
    /// Rounds in a row without congestion.
    unmarked_rounds: u32,
    /// No decrease before this time: one a round trip.
    next_decrease_at: u64,
    /// The time of the last acknowledgement.
    last_ack_at: u64,
}

impl Dctcp {
    pub(super) fn new(limit: u16, packet_bytes: u32, link_rate_bps: f64) -> Self {
        let packet_bytes = f64::from(packet_bytes);
        let packet_ns = packet_bytes * 8e9 / link_rate_bps;
        let target_ns = TARGET_NS + TARGET_PACKETS * packet_ns;
        Self {
            window: f64::from(limit),
            limit: f64::from(limit),
            target_ns,
            packet_bytes,
            alpha: FIRST_ALPHA,
            rtt_ns: 0.0,
            path: PathDelay::new(target_ns as u64),
            round_ends: 0,
            packets: 0,
            marked: 0,
            unmarked_rounds: 0,
            next_decrease_at: 0,
            last_ack_at: 0,
        }
    }

    fn is_full(&self) -> bool {
        self.window >= self.limit
    }

    /// The share of the window that an answer leaves.
    fn remaining_share(&mut self, ack: &Ack) -> f64 {
        let mut keep = 1.0;
        if ack.marked {
            keep = 1.0 - self.alpha / 2.0;
        }
        if ack.lost {
            keep = 1.0 - LOSS_DECREASE;
        }
        let Some(rtt_ns) = ack.rtt_ns else {
            return keep;
        };
        if self.is_full() {
            // The sample before was long ago.
            self.rtt_ns = rtt_ns as f64;
        }
        if let Some(stands_ns) = self.path.record_rtt(ack.now, rtt_ns, self.is_full()) {
            let delay_ns = stands_ns as f64;
            self.rtt_ns += RTT_GAIN * (delay_ns - self.rtt_ns);
            let over_ns = self.path.queue_ns(stands_ns) as f64 - self.target_ns;
            if over_ns > 0.0 && self.window > MIN_WINDOW_BY_DELAY {
                keep = keep.min(1.0 - (BETA * over_ns / delay_ns).min(MAX_DECREASE));
            }
        }
        keep
    }

    fn end_round(&mut self, now: u64) {
        let share = f64::from(self.marked) / f64::from(self.packets.max(1));
        self.alpha += GAIN * (share - self.alpha);
        (self.packets, self.marked) = (0, 0);
        self.round_ends = now + self.rtt_ns as u64;
        self.unmarked_rounds = (self.unmarked_rounds + 1).min(MAX_STEPS);
        self.window += STEP * f64::from(self.unmarked_rounds);
        if self.is_full() {
            self.be_full();
        }
    }

    /// The session is not limited; the next mark counts as the first.
    fn be_full(&mut self) {
        self.window = self.limit;
        self.alpha = FIRST_ALPHA;
    }
}

impl Algorithm for Dctcp {
    fn handle_ack(&mut self, ack: Ack) {
        self.last_ack_at = ack.now;
        self.packets += ack.packets;
        if ack.marked {
            self.marked += ack.packets;
        }
        let keep = self.remaining_share(&ack);
        if keep < 1.0 {
            self.unmarked_rounds = 0;
            if ack.now >= self.next_decrease_at {
                self.next_decrease_at = ack.now + self.rtt_ns as u64;
                self.window = (self.window * keep).max(MIN_WINDOW);
            }
        }
        if ack.now >= self.round_ends {
            self.end_round(ack.now);
        }
    }

    fn pace(&self) -> Option<Pace> {
        if self.is_full() {
            return None;
        }
        Some(Pace {
            window: self.window.ceil() as u16,
            rate_bps: self.window * self.packet_bytes * 8e9 / self.rtt_ns.max(MIN_RTT_NS),
            slack_ns: (self.rtt_ns / 4.0) as u64,
        })
    }

    fn handle_wake(&mut self, now: u64) {
        if was_idle(now, self.last_ack_at, self.rtt_ns) {
            self.be_full();
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

    fn dctcp() -> Dctcp {
        Dctcp::new(32, 1056, LINK)
    }

    fn ack(now: u64, rtt_ns: u64, marked: bool) -> Ack {
        Ack {
            now,
            rtt_ns: Some(rtt_ns),
            packets: 1,
            marked,
            lost: false,
        }
    }

    /// Round trips of 10 us, of which a share in a hundred is marked.
    fn run(dctcp: &mut Dctcp, now: &mut u64, rounds: u32, percent: u32) {
        for round in 0..rounds {
            *now += 10_000;
            dctcp.handle_ack(ack(*now, 10_000, round * 37 % 100 < percent));
        }
    }

    #[test]
    fn an_unmarked_session_is_limited_by_nothing() {
        let mut dctcp = dctcp();
        let mut now = 1;
        run(&mut dctcp, &mut now, 1000, 0);
        assert!(dctcp.pace().is_none());
    }

    #[test]
    fn marks_lower_the_window_and_their_end_restores_it() {
        let mut dctcp = dctcp();
        let mut now = 1;
        run(&mut dctcp, &mut now, 1000, 100);
        let pace = dctcp.pace().expect("congested");
        assert_eq!(pace.window, 1);
        // Less than a packet of 1056 bytes in 10 us.
        assert!(pace.rate_bps < 0.6 * 1056.0 * 8e5, "{}", pace.rate_bps);
        run(&mut dctcp, &mut now, 60, 0);
        assert!(dctcp.pace().is_none());
    }

    /// The more is marked, the less is sent.
    #[test]
    fn the_window_follows_the_share_of_marks() {
        let window = |percent| {
            let mut dctcp = dctcp();
            let (mut now, mut sum) = (1, 0.0);
            for _ in 0..1000 {
                run(&mut dctcp, &mut now, 10, percent);
                sum += dctcp.window;
            }
            sum / 1000.0
        };
        let windows = [10, 30, 50, 80].map(window);
        assert!(windows.is_sorted_by(|a, b| a > b), "{windows:?}");
        assert!(windows[3] < 1.2 && windows[0] > 8.0, "{windows:?}");
    }

    #[test]
    fn a_mark_counts_once_a_round_trip() {
        let mut dctcp = dctcp();
        dctcp.handle_ack(ack(1_000_000, 10_000, true));
        let after_one = dctcp.window;
        for _ in 0..31 {
            dctcp.handle_ack(ack(1_000_000, 10_000, true));
        }
        assert_eq!(dctcp.window, after_one);
    }

    #[test]
    fn where_nothing_marks_delay_that_stands_lowers_the_window() {
        let mut dctcp = dctcp();
        let mut now = 1;
        run(&mut dctcp, &mut now, 2, 0);
        for _ in 0..200 {
            now += 300_000;
            dctcp.handle_ack(ack(now, 300_000, false));
        }
        assert!(dctcp.window < 2.0, "{}", dctcp.window);
        run(&mut dctcp, &mut now, 1000, 0);
        assert!(dctcp.pace().is_none());
    }

    #[test]
    fn losses_lower_the_window() {
        let mut dctcp = dctcp();
        let mut now = 1;
        run(&mut dctcp, &mut now, 10, 0);
        for _ in 0..5 {
            now += 10_000;
            dctcp.handle_ack(Ack {
                lost: true,
                ..ack(now, 10_000, false)
            });
        }
        assert!((4.0..10.0).contains(&dctcp.window), "{}", dctcp.window);
        run(&mut dctcp, &mut now, 60, 0);
        assert!(dctcp.pace().is_none());
    }

    #[test]
    fn the_delay_of_a_long_path_does_not_count_as_queueing() {
        let mut dctcp = dctcp();
        for round in 1..1000 {
            dctcp.handle_ack(ack(round * 5_000_000, 5_000_000 + round % 20 * 1000, false));
            assert!(dctcp.pace().is_none());
        }
    }

    #[test]
    fn a_session_that_was_idle_starts_anew() {
        let mut dctcp = dctcp();
        let mut now = 1;
        run(&mut dctcp, &mut now, 1000, 100);
        dctcp.handle_wake(now + 20_000);
        assert!(dctcp.window < 1.0, "{}", dctcp.window);
        dctcp.handle_wake(now + 200_000);
        assert!(dctcp.pace().is_none());
    }

    /// A core of either end is away for 5 ms now and then: its packets come out of the queue in
    /// one burst, or are answered in many.
    #[test]
    fn stalls_of_a_host_do_not_throttle() {
        let mut dctcp = dctcp();
        let mut now = 1;
        for apart_ns in [0, 300] {
            for _ in 0..50 {
                now += 5_000_000;
                for _ in 0..60 {
                    now += apart_ns;
                    dctcp.handle_ack(ack(now, 5_000_000, false));
                }
                now += 20_000_000;
            }
        }
        assert!(dctcp.pace().is_none());
    }

    #[test]
    fn the_window_stays_within_its_bounds() {
        let mut dctcp = dctcp();
        let mut now = 1;
        for _ in 0..10_000 {
            now += 2_000_000_000;
            dctcp.handle_ack(ack(now, 2_000_000_000, true));
        }
        assert!(dctcp.window >= MIN_WINDOW && dctcp.pace().is_some_and(|pace| pace.rate_bps > 0.0));
    }
}
