//! The delay of a path itself, told apart from the delay of queues on it.
//!
//! The shortest round-trip time so far counts as the path's own, as in BBR (ACM Queue 2016). Delay
//! above it counts as queueing. A path that is rerouted and becomes longer looks like a queue that
//! never gets shorter. Congestion control shortens queues, so delay that stays above its target for
//! long is not a queue: then the shortest round-trip time of that period counts as the path's own.

use super::rtt_filter::RttFilter;

/// Delay that stays above the target for this long is the path's own.
const REROUTE_NS: u64 = 2_000_000_000;

/// An estimate of a path's own delay.
#[derive(Clone, Debug)]
pub(super) struct PathDelay {
    filter: RttFilter,
    /// Delay beyond the path's own and this is congestion.
    target_ns: u64,
    min_ns: u64,
    /// The time since which every delay is above the target, and the shortest of them.
    above_since: Option<u64>,
    above_ns: u64,
}

impl PathDelay {
    pub(super) fn new(target_ns: u64) -> Self {
        Self {
            filter: RttFilter::default(),
            target_ns,
            min_ns: u64::MAX,
            above_since: None,
            above_ns: u64::MAX,
        }
    }

    /// Records a round-trip time. Returns a standing one, when it is known. `sparse`: times within
    /// [`PathDelay::ignorable_rtts_ns`] are not recorded.
    pub(super) fn record_rtt(&mut self, now: u64, rtt_ns: u64, sparse: bool) -> Option<u64> {
        self.min_ns = self.min_ns.min(rtt_ns);
        let stands_ns = self.filter.record_rtt(now, rtt_ns, sparse)?;
        if sparse || self.queue_ns(stands_ns) <= self.target_ns {
            self.above_since = None;
            self.above_ns = u64::MAX;
            return Some(stands_ns);
        }
        self.above_ns = self.above_ns.min(stands_ns);
        let since = *self.above_since.get_or_insert(now);
        if now >= since + REROUTE_NS {
            self.min_ns = std::mem::replace(&mut self.above_ns, u64::MAX);
            self.above_since = None;
        }
        Some(stands_ns)
    }

    /// The part of a round-trip time above the path's own.
    pub(super) fn queue_ns(&self, rtt_ns: u64) -> u64 {
        rtt_ns.saturating_sub(self.min_ns)
    }

    /// Round-trip times in this range do not matter to a session that is not limited.
    pub(super) fn ignorable_rtts_ns(&self) -> (u64, u64) {
        if self.min_ns == u64::MAX {
            return (0, 0);
        }
        (self.min_ns, self.min_ns + self.target_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET_NS: u64 = 50_000;

    /// Round trips one after the other for so long.
    fn run(path: &mut PathDelay, now: &mut u64, rtt_ns: u64, for_ns: u64) {
        let end = *now + for_ns;
        while *now < end {
            *now += rtt_ns;
            path.record_rtt(*now, rtt_ns, false);
        }
    }

    #[test]
    fn delay_above_the_shortest_rtt_counts_as_queueing() {
        let mut path = PathDelay::new(TARGET_NS);
        let mut now = 1;
        assert_eq!(path.ignorable_rtts_ns(), (0, 0), "the first is news");
        run(&mut path, &mut now, 630_000, 10_000_000);
        run(&mut path, &mut now, 600_000, 10_000_000);
        assert_eq!(path.queue_ns(700_000), 100_000);
        assert_eq!(path.ignorable_rtts_ns(), (600_000, 650_000));
    }

    #[test]
    fn a_queue_that_comes_and_goes_stays_one() {
        let mut path = PathDelay::new(TARGET_NS);
        let mut now = 1;
        run(&mut path, &mut now, 10_000, 1_000_000);
        for _ in 0..20 {
            run(&mut path, &mut now, 1_000_000, 1_500_000_000);
            run(&mut path, &mut now, 40_000, 1_000_000);
        }
        assert_eq!(path.queue_ns(1_000_000), 990_000);
    }

    #[test]
    fn a_rerouted_path_gets_a_new_shortest_rtt_in_the_end() {
        let mut path = PathDelay::new(TARGET_NS);
        let mut now = 1;
        run(&mut path, &mut now, 600_000, 100_000_000);
        run(&mut path, &mut now, 5_000_000, REROUTE_NS / 2);
        assert_eq!(path.queue_ns(5_000_000), 4_400_000);
        run(&mut path, &mut now, 5_000_000, REROUTE_NS);
        assert_eq!(path.queue_ns(5_000_000), 0);
    }

    /// One end is away now and then, for seconds in all. Each time, all packets in flight are late.
    #[test]
    fn absences_of_a_host_do_not_lengthen_the_path() {
        let mut path = PathDelay::new(TARGET_NS);
        let mut now = 1;
        for _ in 0..1000 {
            run(&mut path, &mut now, 10_000, 100_000);
            now += 5_000_000;
            for _ in 0..60 {
                path.record_rtt(now, 5_000_000, false);
            }
        }
        assert_eq!(path.queue_ns(10_000), 0);
        assert_eq!(path.ignorable_rtts_ns().0, 10_000);
    }

    #[test]
    fn a_path_that_becomes_longer_in_two_steps_gets_a_new_shortest_rtt() {
        let mut path = PathDelay::new(TARGET_NS);
        let mut now = 1;
        run(&mut path, &mut now, 10_000, 100_000_000);
        run(&mut path, &mut now, 100_000, 500_000_000);
        run(&mut path, &mut now, 600_000, 2 * REROUTE_NS + 1_000_000_000);
        assert_eq!(path.queue_ns(600_000), 0);
    }
}
