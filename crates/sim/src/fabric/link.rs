//! A link: bytes leave one after the other at its rate and arrive after its propagation delay.

/// What a link is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Bits per second. Not 0.
    pub rate_bps: u64,
    /// From the last bit sent to the last bit received, ns.
    pub propagation_ns: u64,
    /// Bytes that may wait in front of the link before it takes no more.
    pub queue_bytes: u64,
}

impl Default for LinkConfig {
    /// 25 Gb/s, 1 us, 1 MiB: a host's port in the paper's CX4 cluster (eRPC, NSDI'19, table 1).
    fn default() -> Self {
        Self {
            rate_bps: 25_000_000_000,
            propagation_ns: 1_000,
            queue_bytes: 1 << 20,
        }
    }
}

/// One direction of a cable with the queue in front of it.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    config: LinkConfig,
    /// When the last bit taken so far will have left.
    free_at_ns: u64,
}

impl Link {
    pub(crate) fn new(config: LinkConfig) -> Self {
        assert!(config.rate_bps > 0, "a link of 0 bit/s delivers nothing");
        Self {
            config,
            free_at_ns: 0,
        }
    }

    /// Takes `bytes` at `now_ns` and says when they arrive, or `None` if the queue has no room.
    /// An empty queue takes anything.
    pub(crate) fn transmit(&mut self, now_ns: u64, bytes: u64) -> Option<u64> {
        let queued = self.queued_bytes(now_ns);
        if queued > 0 && queued + bytes > self.config.queue_bytes {
            return None;
        }
        self.free_at_ns = self.free_at_ns.max(now_ns) + self.duration_ns(bytes);
        Some(self.free_at_ns + self.config.propagation_ns)
    }

    /// When the queue will have room for `bytes`.
    pub(crate) fn room_at_ns(&self, bytes: u64) -> u64 {
        let may_wait = self.config.queue_bytes.saturating_sub(bytes);
        self.free_at_ns.saturating_sub(self.duration_ns(may_wait))
    }

    fn queued_bytes(&self, now_ns: u64) -> u64 {
        let waiting_ns = self.free_at_ns.saturating_sub(now_ns);
        (u128::from(waiting_ns) * u128::from(self.config.rate_bps) / 8_000_000_000) as u64
    }

    fn duration_ns(&self, bytes: u64) -> u64 {
        (u128::from(bytes) * 8_000_000_000 / u128::from(self.config.rate_bps)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gigabit(queue_bytes: u64) -> Link {
        Link::new(LinkConfig {
            rate_bps: 1_000_000_000,
            propagation_ns: 500,
            queue_bytes,
        })
    }

    #[test]
    fn back_to_back_datagrams_share_the_rate() {
        let mut link = gigabit(10_000);
        assert_eq!(link.transmit(0, 1000), Some(8_500));
        assert_eq!(link.transmit(0, 1000), Some(16_500));
        // The link fell idle: it starts afresh.
        assert_eq!(link.transmit(100_000, 1000), Some(108_500));
    }

    #[test]
    fn the_queue_is_bounded_and_drains() {
        let mut link = gigabit(2_000);
        assert!(link.transmit(0, 1000).is_some());
        assert!(link.transmit(0, 1000).is_some());
        assert_eq!(link.transmit(0, 1000), None);
        let again_ns = link.room_at_ns(1000);
        assert_eq!(again_ns, 8_000);
        assert_eq!(link.transmit(again_ns - 8, 1000), None);
        assert!(link.transmit(again_ns, 1000).is_some());
        // A datagram larger than the queue still passes when nothing waits.
        let mut narrow = gigabit(10);
        assert!(narrow.transmit(0, 1000).is_some());
        assert_eq!(narrow.transmit(7_000, 1000), None);
        assert_eq!(narrow.room_at_ns(1000), 8_000);
        assert!(narrow.transmit(8_000, 1000).is_some());
    }
}
