//! A link: bytes leave one after the other at its rate and arrive after its propagation delay.
//!
//! No queue is kept in memory. Bytes leave in order at a known rate. So the departure time of the
//! last bit gives the length of the queue, and a packet's arrival time is known when the link takes
//! it. A packet costs one event per hop.

/// The properties of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Bits per second. Not 0. Above 8 Tb/s a byte takes no time.
    pub rate_bps: u64,
    /// From the last bit sent to the last bit received, ns.
    pub propagation_ns: u64,
    /// Bytes that may wait in front of the link. Only a node's own link has such a limit; a
    /// switch's buffer bounds its queues.
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

/// When a packet arrives at the end of a link, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArrivalTimes {
    /// The first bit.
    pub(crate) head_ns: u64,
    /// The last bit.
    pub(crate) tail_ns: u64,
}

/// One direction of a cable with the queue in front of it.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    config: LinkConfig,
    ps_per_byte: u64,
    /// When the last bit taken so far will have left, in picoseconds, because a small packet takes
    /// few ns.
    free_at_ps: u64,
}

impl Link {
    pub(crate) fn new(config: LinkConfig) -> Self {
        assert!(config.rate_bps > 0, "a link of 0 bit/s delivers nothing");
        Self {
            config,
            ps_per_byte: 8_000_000_000_000 / config.rate_bps,
            free_at_ps: 0,
        }
    }

    /// Takes `bytes`, the first of which is here now and the last at `tail_ns`, however long the
    /// queue is. A packet that is cut through leaves no earlier than it arrives.
    pub(crate) fn take(&mut self, now_ns: u64, tail_ns: u64, bytes: u64) -> ArrivalTimes {
        let start_ps = self.free_at_ps.max(now_ns * 1000);
        let end_ps = (start_ps + bytes * self.ps_per_byte).max(tail_ns * 1000);
        self.free_at_ps = end_ps;
        ArrivalTimes {
            head_ns: start_ps / 1000 + self.config.propagation_ns,
            tail_ns: end_ps / 1000 + self.config.propagation_ns,
        }
    }

    /// Whether the queue has room for `bytes` more. An empty queue takes anything.
    pub(crate) fn has_room(&self, now_ns: u64, bytes: u64) -> bool {
        let queued = self.queued_bytes(now_ns);
        queued == 0 || queued + bytes <= self.config.queue_bytes
    }

    /// When the queue will have room for `bytes`.
    pub(crate) fn room_at_ns(&self, bytes: u64) -> u64 {
        let may_wait = self.config.queue_bytes.saturating_sub(bytes);
        let at_ps = self
            .free_at_ps
            .saturating_sub(may_wait.saturating_mul(self.ps_per_byte));
        at_ps.div_ceil(1000)
    }

    /// Bytes that have not left yet.
    pub(crate) fn queued_bytes(&self, now_ns: u64) -> u64 {
        let waiting_ps = self.free_at_ps.saturating_sub(now_ns * 1000);
        waiting_ps.checked_div(self.ps_per_byte).unwrap_or(0)
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

    /// When 1000 bytes that are here have arrived at the other end.
    fn send(link: &mut Link, now_ns: u64) -> u64 {
        link.take(now_ns, now_ns, 1000).tail_ns
    }

    #[test]
    fn back_to_back_datagrams_share_the_rate() {
        let mut link = gigabit(10_000);
        assert_eq!(send(&mut link, 0), 8_500);
        assert_eq!(send(&mut link, 0), 16_500);
        // The link fell idle: it starts afresh.
        assert_eq!(send(&mut link, 100_000), 108_500);
    }

    #[test]
    fn the_queue_is_bounded_and_drains() {
        let mut link = gigabit(2_000);
        send(&mut link, 0);
        assert!(link.has_room(0, 1000));
        send(&mut link, 0);
        assert!(!link.has_room(0, 1000));
        let again_ns = link.room_at_ns(1000);
        assert_eq!(again_ns, 8_000);
        assert!(!link.has_room(again_ns - 8, 1000));
        assert!(link.has_room(again_ns, 1000));
        // A datagram larger than the queue still passes when nothing waits.
        let mut narrow = gigabit(10);
        assert!(narrow.has_room(0, 1000));
        send(&mut narrow, 0);
        assert!(!narrow.has_room(7_000, 1000));
        assert_eq!(narrow.room_at_ns(1000), 8_000);
        assert!(narrow.has_room(8_000, 1000));
    }

    #[test]
    fn a_packet_that_is_cut_through_leaves_no_earlier_than_it_comes() {
        let mut fast = Link::new(LinkConfig {
            rate_bps: 100_000_000_000,
            ..LinkConfig::default()
        });
        // 1000 bytes that take until 320 to come would leave in 80.
        let forwarding = fast.take(0, 320, 1000);
        assert_eq!((forwarding.head_ns, forwarding.tail_ns), (1_000, 1_320));
        assert_eq!(fast.queued_bytes(120), 2_500);
    }
}
