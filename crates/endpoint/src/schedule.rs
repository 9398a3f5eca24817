//! Which turns do everything, and which only look for datagrams.
//!
//! A turn has one time, but reading the clock takes as long as a tenth of a round trip over shared
//! memory. So the loop does not read it between a datagram's arrival and its handler. It reads it
//! while nothing arrives, and a turn that finds datagrams uses that reading; only the second of two
//! turns in a row that find datagrams reads the clock itself. A loop that spins fast reads it in
//! every eighth idle turn. The seven other turns do nothing but ask the device. So round-trip
//! times are off by eight such turns at most, which is about as much as the clock takes.

/// A loop whose idle turns take less than this does not do everything in each of them. A system
/// call takes longer: only loops over devices that are polled in memory are so fast.
const FAST_NS: u64 = 200;
/// Idle turns of a fast loop, in a row, that only look for datagrams.
const SKIPS: u32 = 7;

/// Which idle turns to skip, and whether the time is known.
#[derive(Debug, Default)]
pub(crate) struct TurnSchedule {
    /// Idle turns that may still be skipped.
    pub(crate) skips: u32,
    /// The skips that were planned last.
    planned: u32,
    reading: Reading,
    /// When an idle turn last read the clock.
    idle_ns: u64,
}

/// What the next turn has to know of the last reading of the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reading {
    /// A turn that found datagrams has used it.
    #[default]
    Used,
    /// No turn with datagrams has used it.
    Fresh,
    /// The loop slept since.
    BeforeSleep,
    /// The owner did other things since.
    BeforeOtherWork,
}

/// What came between two turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Between {
    Nothing,
    Sleep,
    OtherWork,
}

impl TurnSchedule {
    /// Called when an idle turn has read the clock: plans the turns to skip. There are none if the
    /// turns are slow, or if the clock is too coarse to tell.
    pub(crate) fn plan(&mut self, now_ns: u64) {
        let gap_ns = now_ns.saturating_sub(self.idle_ns);
        let fast_ns = u64::from(self.planned + 1) * FAST_NS;
        self.planned = if (1..fast_ns).contains(&gap_ns) {
            SKIPS
        } else {
            0
        };
        self.skips = self.planned;
        self.idle_ns = now_ns;
        self.set_known();
    }

    /// The clock was just read.
    #[inline]
    pub(crate) fn set_known(&mut self) {
        self.reading = Reading::Fresh;
    }

    /// Whether the time is known well enough for a turn with datagrams, which uses it.
    #[inline]
    pub(crate) fn take_known(&mut self) -> bool {
        let known = self.reading == Reading::Fresh;
        if known {
            self.reading = Reading::Used;
        }
        known
    }

    /// The loop slept.
    pub(crate) fn set_slept(&mut self) {
        self.reading = Reading::BeforeSleep;
    }

    /// The owner did other things. If the loop slept, that says more.
    pub(crate) fn set_other_work(&mut self) {
        if self.reading != Reading::BeforeSleep {
            self.reading = Reading::BeforeOtherWork;
        }
    }

    /// What the loop did since the clock was read, which is read now.
    #[inline]
    pub(crate) fn take_between(&mut self) -> Between {
        let between = match self.reading {
            Reading::Used | Reading::Fresh => return Between::Nothing,
            Reading::BeforeSleep => Between::Sleep,
            Reading::BeforeOtherWork => Between::OtherWork,
        };
        self.reading = Reading::Used;
        between
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fast_loop_with_a_fine_clock_skips_turns() {
        let mut schedule = TurnSchedule::default();
        let mut now_ns = 1_000_000;
        let mut skips_after = |gap_ns| {
            now_ns += gap_ns;
            schedule.plan(now_ns);
            schedule.skips
        };
        assert_eq!(skips_after(0), 0, "whatever was before");
        assert_eq!(skips_after(FAST_NS), 0);
        assert_eq!(skips_after(FAST_NS - 1), SKIPS);
        assert_eq!(skips_after(u64::from(SKIPS + 1) * FAST_NS - 1), SKIPS);
        assert_eq!(skips_after(u64::from(SKIPS + 1) * FAST_NS), 0);
        assert_eq!(skips_after(1), SKIPS);
        assert_eq!(skips_after(0), 0, "a clock that stands still");
    }
}
