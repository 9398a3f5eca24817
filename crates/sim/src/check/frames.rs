//! Where datagrams cross as frames, a device takes those that arrive as they were sent, reads of
//! them what they say, and drops those that are damaged, each for a reason.
//!
//! What damages frames is chosen so that every damage can be noticed; that a checksum misses one in
//! 65536 of the worse ones is not the device's fault.

use super::Violation;
use crate::fabric::Counters;

/// Complains if any frame was not read as it had to be.
pub fn frames(counters: &Counters) -> Result<(), Violation> {
    let counts = &counters.frames;
    let dropped: u64 = counts.dropped.values().sum();
    let detail = if counts.passed > 0 {
        format!("{} damaged frames were taken", counts.passed)
    } else if counts.misread > 0 {
        format!("{} good frames were not read as sent", counts.misread)
    } else if counts.damaged != dropped {
        format!("{} frames were damaged, {dropped} dropped", counts.damaged)
    } else {
        return Ok(());
    };
    Err(Violation::new("frames", detail))
}

#[cfg(test)]
mod tests {
    use starling_ethernet::Drop;

    use super::*;
    use crate::fabric::FrameCounts;

    #[test]
    fn a_frame_that_is_taken_or_dropped_wrongly_is_found() {
        let good = FrameCounts {
            damaged: 3,
            dropped: [(Drop::UdpChecksum, 2), (Drop::Truncated, 1)].into(),
            passed: 0,
            misread: 0,
        };
        let check = |frames: FrameCounts| {
            super::frames(&Counters {
                frames,
                ..Counters::default()
            })
        };
        assert_eq!(check(FrameCounts::default()), Ok(()));
        assert_eq!(check(good.clone()), Ok(()));
        let wrong = [
            FrameCounts {
                damaged: 4,
                passed: 1,
                ..good.clone()
            },
            FrameCounts {
                misread: 1,
                ..good.clone()
            },
            FrameCounts {
                damaged: 4,
                ..good.clone()
            },
            FrameCounts { damaged: 2, ..good },
        ];
        for counts in wrong {
            assert!(check(counts.clone()).is_err(), "{counts:?}");
        }
    }
}
