//! Where datagrams cross as frames, a device accepts the frames that arrive as they were sent and
//! reads their fields correctly. It drops damaged frames, each for a reason.
//!
//! The damage is chosen so that a device can notice all of it. A checksum misses one in 65536 of
//! the worse damages, which is not the device's fault.

use super::Violation;
use crate::fabric::Counters;

/// Complains if any frame was not read as it had to be.
pub fn frames(counters: &Counters) -> Result<(), Violation> {
    let counts = &counters.frames;
    let dropped: u64 = counts.dropped.values().sum();
    let detail = if counts.passed > 0 {
        format!("{} damaged frames were accepted", counts.passed)
    } else if counts.misread > 0 {
        format!("{} good frames were misread", counts.misread)
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
