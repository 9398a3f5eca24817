//! Round-trip time and retransmission timeout, after RFC 6298 in integer nanoseconds.

/// Smoothed round-trip time of a session.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rtt {
    srtt_ns: u32,
    rttvar_ns: u32,
}

/// Samples above this count as this: 4.29 s would not fit the fields.
const MAX_NS: u64 = 2_000_000_000;

impl Rtt {
    /// Records the round-trip time of a packet that was sent once (Karn's rule).
    #[inline]
    pub(crate) fn sample(&mut self, rtt_ns: u64) {
        let rtt = rtt_ns.min(MAX_NS) as u32;
        if self.srtt_ns == 0 {
            self.srtt_ns = rtt.max(1);
            self.rttvar_ns = rtt / 2;
            return;
        }
        // RTTVAR gains 1/4 of the deviation, SRTT 1/8 of the difference.
        let deviation = self.srtt_ns.abs_diff(rtt);
        self.rttvar_ns = self.rttvar_ns - self.rttvar_ns / 4 + deviation / 4;
        self.srtt_ns = (self.srtt_ns - self.srtt_ns / 8 + rtt / 8).max(1);
    }

    /// The smoothed round-trip time; zero before the first sample.
    #[inline]
    pub(crate) fn smoothed_ns(&self) -> u64 {
        u64::from(self.srtt_ns)
    }

    /// The timeout after `retries` retransmissions, doubled for each, within the bounds.
    pub(crate) fn timeout_ns(&self, retries: u8, min_ns: u64, max_ns: u64) -> u64 {
        let base = if self.srtt_ns == 0 {
            // No sample yet. RFC 6298 says one second, for the Internet; this is a datacenter.
            min_ns.max(10_000_000)
        } else {
            u64::from(self.srtt_ns) + 4 * u64::from(self.rttvar_ns)
        };
        let backoff = base.max(min_ns) << retries.min(16);
        backoff.min(max_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_follows_the_rtt_and_backs_off_within_bounds() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout_ns(0, 1_000, 50_000_000), 10_000_000);
        for _ in 0..100 {
            rtt.sample(8_000);
        }
        assert!((7_900..=8_000).contains(&rtt.smoothed_ns()));
        assert!(rtt.timeout_ns(0, 1_000, 50_000_000) < 9_000);
        assert_eq!(rtt.timeout_ns(0, 100_000, 50_000_000), 100_000);
        assert_eq!(rtt.timeout_ns(1, 100_000, 50_000_000), 200_000);
        assert_eq!(rtt.timeout_ns(255, 100_000, 50_000_000), 50_000_000);
        rtt.sample(u64::MAX);
        assert!(rtt.timeout_ns(0, 1_000, u64::MAX) > 100_000_000);
    }
}
