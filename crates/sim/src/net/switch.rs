//! A switch: one buffer that its ports share, and congestion marks.
//!
//! A port may hold `alpha` times the free bytes of the buffer (Choudhury and Hahne, "Dynamic queue
//! length thresholds for shared-memory packet switches", 1998): one congested port gets most of the
//! buffer, and many share it. Marking is by a threshold (DCTCP, SIGCOMM'10, section 3.1) or by a
//! probability that grows with the queue (RED as DCQCN uses it, SIGCOMM'15, section 3.1).

use crate::rng::{PPM, Rng};

/// When packets that say they are capable of it are marked "congestion experienced".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Marking {
    /// Never.
    #[default]
    Off,
    /// Whenever at least this many bytes wait in front of the port.
    Threshold {
        /// Bytes.
        bytes: u64,
    },
    /// With a probability that grows from 0 at `from_bytes` to `most_ppm` at `to_bytes`; above
    /// `to_bytes` always.
    Red {
        /// Below this, never.
        from_bytes: u64,
        /// Above this, always.
        to_bytes: u64,
        /// Probability just below `to_bytes`.
        most_ppm: u32,
    },
}

impl Marking {
    pub(crate) fn marks(self, queued: u64, rng: &mut Rng) -> bool {
        match self {
            Self::Off => false,
            Self::Threshold { bytes } => queued >= bytes,
            Self::Red {
                from_bytes,
                to_bytes,
                most_ppm,
            } => {
                if queued < from_bytes {
                    return false;
                }
                if queued >= to_bytes {
                    return true;
                }
                let share = (queued - from_bytes) * u64::from(most_ppm) / (to_bytes - from_bytes);
                rng.chance((share as u32).min(PPM))
            }
        }
    }
}

/// The properties of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Memory for packets, all ports together, bytes.
    pub buffer_bytes: u64,
    /// A port may hold 2^`alpha_log2` times the free bytes.
    pub alpha_log2: i8,
    /// From the first bit received to the first bit sent, with nothing in the way, ns.
    pub latency_ns: u64,
    /// A packet is sent on while it still comes in. Otherwise it is stored first.
    pub cut_through: bool,
    /// ECN.
    pub marking: Marking,
}

impl Default for SwitchConfig {
    /// A Mellanox Spectrum of the paper's CX4 cluster: 12 MB shared by all ports, cut-through,
    /// 300 ns for a packet of layer 3 (eRPC, NSDI'19, sections 2.1, 3 and 6.1); no marks.
    fn default() -> Self {
        Self {
            buffer_bytes: 12_000_000,
            alpha_log2: 3,
            latency_ns: 300,
            cut_through: true,
            marking: Marking::Off,
        }
    }
}

/// The buffer of one switch.
#[derive(Clone, Debug)]
pub(crate) struct SharedBuffer {
    bytes: u64,
    alpha_log2: i8,
    /// An upper bound of the bytes that wait. Departures are subtracted only when the answer
    /// depends on them.
    at_most: u64,
}

impl SharedBuffer {
    pub(crate) fn new(config: &SwitchConfig) -> Self {
        Self {
            bytes: config.buffer_bytes,
            alpha_log2: config.alpha_log2,
            at_most: 0,
        }
    }

    /// Whether a port where `queued` bytes wait takes `size` more. `count` adds up the bytes that
    /// wait at all ports; it is called only if the answer depends on it.
    pub(crate) fn admit(&mut self, queued: u64, size: u64, count: impl FnOnce() -> u64) -> bool {
        if !self.fits(queued, size) {
            self.at_most = count();
            if !self.fits(queued, size) {
                return false;
            }
        }
        self.at_most += size;
        true
    }

    fn fits(&self, queued: u64, size: u64) -> bool {
        let free = self.bytes.saturating_sub(self.at_most);
        let threshold = if self.alpha_log2 >= 0 {
            free << self.alpha_log2
        } else {
            free >> -self.alpha_log2
        };
        size <= free && queued + size <= threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(alpha_log2: i8) -> SharedBuffer {
        SharedBuffer::new(&SwitchConfig {
            buffer_bytes: 1000,
            alpha_log2,
            ..SwitchConfig::default()
        })
    }

    #[test]
    fn one_port_gets_alpha_parts_and_several_share() {
        // Alone with alpha 1: half of the buffer.
        let mut one = buffer(0);
        let mut queued = 0;
        while one.admit(queued, 10, || queued) {
            queued += 10;
        }
        assert_eq!(queued, 500);
        // With alpha 8: eight ninths.
        let mut one = buffer(3);
        let mut queued = 0;
        while one.admit(queued, 10, || queued) {
            queued += 10;
        }
        assert_eq!(queued, 890);
        // Two ports that fill in turn share fairly.
        let mut two = buffer(0);
        let mut queued = [0, 0];
        let mut refused = 0;
        for turn in (0..2).cycle() {
            let total = queued.iter().sum();
            if two.admit(queued[turn], 10, || total) {
                queued[turn] += 10;
                refused = 0;
            } else {
                refused += 1;
                if refused == 2 {
                    break;
                }
            }
        }
        assert!((650..=680).contains(&(queued[0] + queued[1])));
        assert!(queued[0].abs_diff(queued[1]) <= 10);
    }

    #[test]
    fn a_packet_that_left_makes_room() {
        let mut buffer = buffer(0);
        assert!(buffer.admit(0, 400, || 0));
        assert!(buffer.admit(0, 300, || 700));
        assert!(!buffer.admit(0, 400, || 700));
        assert!(buffer.admit(0, 400, || 100), "600 bytes have left");
    }

    #[test]
    fn marks_begin_at_the_threshold() {
        let mut rng = Rng::new(1);
        let threshold = Marking::Threshold { bytes: 100 };
        assert!(!threshold.marks(99, &mut rng) && threshold.marks(100, &mut rng));
        let red = Marking::Red {
            from_bytes: 100,
            to_bytes: 200,
            most_ppm: 200_000,
        };
        assert!(!red.marks(99, &mut rng) && red.marks(200, &mut rng));
        let hits = (0..10_000).filter(|_| red.marks(150, &mut rng)).count();
        assert!((800..1200).contains(&hits), "{hits}");
    }
}
