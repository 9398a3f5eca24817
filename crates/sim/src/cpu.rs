//! The cost of an event loop's turn: the thread that ran it is busy for that long.
//!
//! A simulated host computes in no time. To model real cores, each thread is a server in the sense
//! of queueing theory. It runs a turn, and the turn's datagrams, frames, handlers and bytes keep it
//! busy. Datagrams that arrive meanwhile wait, and the next turn reads them in one burst.

/// The work of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Datagrams received.
    pub rx_packets: u64,
    /// Datagrams sent.
    pub tx_packets: u64,
    /// Frames read.
    pub rx_frames: u64,
    /// Frames appended.
    pub tx_frames: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Handlers and continuations run.
    pub handlers: u64,
    /// Time that they took beyond the usual, ns.
    pub extra_ns: u64,
}

impl Work {
    /// The sum of both.
    pub fn and(self, other: Self) -> Self {
        Self {
            rx_packets: self.rx_packets + other.rx_packets,
            tx_packets: self.tx_packets + other.tx_packets,
            rx_frames: self.rx_frames + other.rx_frames,
            tx_frames: self.tx_frames + other.tx_frames,
            rx_bytes: self.rx_bytes + other.rx_bytes,
            tx_bytes: self.tx_bytes + other.tx_bytes,
            handlers: self.handlers + other.handlers,
            extra_ns: self.extra_ns + other.extra_ns,
        }
    }
}

/// The costs of each kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuModel {
    /// A turn, whatever it does: a look at the device and the clock, the flush.
    pub turn_ns: u64,
    /// The device's part of a datagram that is received.
    pub rx_packet_ns: u64,
    /// The device's part of a datagram that is sent.
    pub tx_packet_ns: u64,
    /// A frame from the datagram to its session and slot.
    pub rx_frame_ns: u64,
    /// A frame from its slot into the open datagram.
    pub tx_frame_ns: u64,
    /// A handler or continuation that does next to nothing.
    pub handler_ns: u64,
    /// To copy a received byte to where it belongs, ps.
    pub rx_byte_ps: u64,
    /// To copy a byte into a datagram, ps.
    pub tx_byte_ps: u64,
}

impl CpuModel {
    /// Nothing costs anything.
    pub const FREE: Self = Self {
        turn_ns: 0,
        rx_packet_ns: 0,
        tx_packet_ns: 0,
        rx_frame_ns: 0,
        tx_frame_ns: 0,
        handler_ns: 0,
        rx_byte_ps: 0,
        tx_byte_ps: 0,
    };

    /// A polled network card that a process drives itself, as eRPC's.
    ///
    /// Calibrated in November 2026 by the figures of that time; an RPC has become
    /// cheaper since, and the model was left as it is, so that runs can be compared.
    ///
    /// - Frames and handlers: 886 instructions were counted for an RPC over shared memory, of which
    ///   130 were the rings'; at 20.3 M/s on each side an RPC took 49 ns, 9 instructions a ns
    ///   on each of two cores. The rest of 756 was, by its breakdown, 245 for two frames sent, 360
    ///   for two read and 150 for handler and continuation with their copies.
    /// - A turn: an RPC that was alone took 2166 instructions, two turns more than one of many.
    /// - Packets: eRPC spends 50 ns on each of the 20 M packets a second that a CX4 thread sends
    ///   and receives (NSDI'19, section 6.2); less our frame and handler, some 20 are the card's.
    /// - Bytes: 8 MiB go over shared memory at 25 GB/s, with one copy on each side in parallel.
    pub const POLLED: Self = Self {
        turn_ns: 70,
        rx_packet_ns: 20,
        tx_packet_ns: 20,
        rx_frame_ns: 20,
        tx_frame_ns: 14,
        handler_ns: 8,
        rx_byte_ps: 40,
        tx_byte_ps: 40,
    };

    /// Kernel UDP: an echo of one datagram a message runs at 0.31 M/s on each side (the floor of
    /// `udp` in docs/notes/rate.md), so to receive and to send one takes 1.6 us each; a byte is
    /// copied twice on each side (1 MiB at 8.4 GB/s).
    pub const KERNEL_UDP: Self = Self {
        turn_ns: 300,
        rx_packet_ns: 1_600,
        tx_packet_ns: 1_600,
        rx_byte_ps: 120,
        tx_byte_ps: 120,
        ..Self::POLLED
    };

    /// Whether nothing costs anything.
    pub fn is_free(&self) -> bool {
        *self == Self::FREE
    }

    /// How long the thread is busy with `work`.
    pub fn cost_ns(&self, work: &Work) -> u64 {
        let bytes_ps = work.rx_bytes * self.rx_byte_ps + work.tx_bytes * self.tx_byte_ps;
        self.turn_ns
            + work.rx_packets * self.rx_packet_ns
            + work.tx_packets * self.tx_packet_ns
            + work.rx_frames * self.rx_frame_ns
            + work.tx_frames * self.tx_frame_ns
            + work.handlers * self.handler_ns
            + bytes_ps / 1000
            + work.extra_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_add_up() {
        let work = Work {
            rx_packets: 2,
            rx_frames: 3,
            rx_bytes: 1_000,
            handlers: 1,
            ..Work::default()
        };
        let more = Work {
            extra_ns: 500,
            ..Work::default()
        };
        let cost_ns = CpuModel::POLLED.cost_ns(&work.and(more));
        assert_eq!(cost_ns, 70 + 40 + 60 + 40 + 8 + 500);
        assert_eq!(CpuModel::FREE.cost_ns(&work), 0);
        assert!(CpuModel::FREE.is_free());
    }

    /// One thread that issues and serves small RPCs in full bursts does what the calibration
    /// says: two packets in, two out, per RPC of either role.
    #[test]
    fn a_polled_thread_handles_about_ten_million_small_rpcs_a_second() {
        let burst = Work {
            rx_packets: 64,
            tx_packets: 64,
            rx_frames: 64,
            tx_frames: 64,
            rx_bytes: 64 * 56,
            tx_bytes: 64 * 56,
            handlers: 64,
            ..Work::default()
        };
        // 64 packets in and 64 out are 32 RPCs issued and 32 served.
        let each_ns = CpuModel::POLLED.cost_ns(&burst) as f64 / 64.0;
        assert!((75.0..110.0).contains(&each_ns), "{each_ns}");
    }
}
