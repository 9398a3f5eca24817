//! A filter of round-trip times: standing delay, as of a queue, passes; a single stall does not.
//!
//! A virtual machine's core is descheduled for milliseconds now and then. Every packet in flight
//! then has a huge round-trip time, although there was no queue. A packet that is sent after the
//! first of them came back has a short one again. So the filter returns the shortest time of a
//! stretch. A stretch ends with a packet that was sent after the stretch began:
//!
//! ```text
//!  sent   │▁▁▁▁▁▁▁▁▁ a ▁▁▁▁▁▁▁▁▁▶│▁▁ b ▁▁▶│
//!                 stalled         ↑ a begins a stretch, b ends it: min(a, b) = b
//! ```

/// The shortest round-trip time of a stretch of time.
#[derive(Clone, Debug, Default)]
pub(super) struct RttFilter {
    /// When the first packet of the stretch came back; zero: no packet did.
    begun_at: u64,
    /// When the last packet came back.
    last_ack_at: u64,
    smallest_ns: u64,
}

impl RttFilter {
    /// Records a round-trip time. Returns the shortest of a stretch when the stretch ends. `sparse`:
    /// short times are not recorded, so a sample of long ago does not belong to the stretch.
    pub(super) fn record_rtt(&mut self, now: u64, rtt_ns: u64, sparse: bool) -> Option<u64> {
        let sent_at = now.saturating_sub(rtt_ns);
        let alone = sparse && sent_at > self.last_ack_at + self.smallest_ns;
        self.last_ack_at = now;
        if self.begun_at == 0 || alone {
            self.begin(now, rtt_ns);
            return None;
        }
        self.smallest_ns = self.smallest_ns.min(rtt_ns);
        if sent_at < self.begun_at {
            return None;
        }
        let smallest_ns = self.smallest_ns;
        self.begin(now, rtt_ns);
        Some(smallest_ns)
    }

    fn begin(&mut self, now: u64, rtt_ns: u64) {
        self.begun_at = now;
        self.smallest_ns = rtt_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_in_flight_together_are_one_stretch() {
        let mut filter = RttFilter::default();
        assert_eq!(filter.record_rtt(100_000, 50_000, false), None);
        assert_eq!(filter.record_rtt(110_000, 40_000, false), None);
        assert_eq!(filter.record_rtt(120_000, 60_000, false), None);
        // Sent when the first was back.
        assert_eq!(filter.record_rtt(155_000, 55_000, false), Some(40_000));
    }

    #[test]
    fn a_stall_of_either_end_leaves_no_trace() {
        let mut filter = RttFilter::default();
        let mut now = 1_000_000;
        for _ in 0..20 {
            for _ in 0..10 {
                now += 10_000;
                assert!(
                    filter
                        .record_rtt(now, 10_000, false)
                        .is_none_or(|rtt| rtt == 10_000)
                );
            }
            // The server was away: its late answers come back over many turns.
            now += 5_000_000;
            for _ in 0..60 {
                now += 300;
                let smallest = filter.record_rtt(now, 5_000_000, false);
                assert!(smallest.is_none_or(|rtt| rtt == 10_000), "{smallest:?}");
            }
        }
    }

    #[test]
    fn two_stalls_with_no_sample_between_are_two() {
        let mut filter = RttFilter::default();
        for now in [20_000_000, 60_000_000, 90_000_000] {
            assert_eq!(filter.record_rtt(now, 5_000_000, true), None);
        }
        // Back to back it is a queue.
        assert_eq!(
            filter.record_rtt(95_000_000, 5_000_000, true),
            Some(5_000_000)
        );
    }
}
