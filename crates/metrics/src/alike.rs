//! Calls of one turn that are alike: a run of them is counted at its end, as one.
//!
//! A busy thread ends many calls of a method in one turn, and most have the same sizes. So a call of a run costs
//! a comparison and two additions, not three histograms.

use crate::cells::Cell;
use crate::histogram::duration_bucket;

/// In place of a bucket: a call takes as long as the turn.
const OF_TURN: usize = 127;
/// A message of a call in a run has less than 2 to the power of this, in bytes.
const SIZE_BITS: u32 = 28;
/// Each key of a run has this bit.
const IS_KEY: u64 = 1 << 63;

/// What calls of a run have in common: the bucket of their durations and the sizes of their messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(u64);

impl Key {
    /// Of a call that takes as long as the turn.
    #[inline(always)]
    pub(crate) fn of_turn(request: usize, response: usize) -> Self {
        Self::new(OF_TURN, request, response)
    }

    /// Of a call that took so long.
    #[inline(always)]
    pub(crate) fn of_duration(elapsed_ns: u64, request: usize, response: usize) -> Self {
        Self::new(duration_bucket(elapsed_ns), request, response)
    }

    #[inline(always)]
    fn new(bucket: usize, request: usize, response: usize) -> Self {
        if (request | response) >> SIZE_BITS != 0 {
            return Self(0);
        }
        let sizes = (request as u64) << SIZE_BITS | response as u64;
        Self(IS_KEY | (bucket as u64) << (2 * SIZE_BITS) | sizes)
    }

    /// Whether there can be a run of such calls: their messages are not too large.
    pub(crate) fn is_valid(self) -> bool {
        self.0 & IS_KEY != 0
    }
}

/// The run of a recorder. It has one writer, and nobody else reads it.
#[derive(Debug, Default)]
pub(crate) struct Run {
    /// 0: there is no run.
    key: Cell,
    calls: Cell,
    elapsed_ns: Cell,
}

/// A run that has ended.
pub(crate) struct EndedRun {
    /// The bucket of the durations. `None`: that of the turn.
    pub(crate) bucket: Option<usize>,
    pub(crate) request: usize,
    pub(crate) response: usize,
    pub(crate) calls: u64,
    /// The sum of the durations.
    pub(crate) elapsed_ns: u64,
}

impl Run {
    /// Adds a call if it is like those of the run.
    #[inline(always)]
    pub(crate) fn add(&self, key: Key, elapsed_ns: u64) -> bool {
        if self.key.value() != key.0 || !key.is_valid() {
            return false;
        }
        self.calls.add_alone(1);
        self.elapsed_ns.add_alone(elapsed_ns);
        true
    }

    /// Begins a run, when there is none.
    pub(crate) fn begin(&self, key: Key, elapsed_ns: u64) {
        debug_assert!(self.is_empty() && key.is_valid());
        self.key.set_alone(key.0);
        self.calls.set_alone(1);
        self.elapsed_ns.set_alone(elapsed_ns);
    }

    /// Whether there is no run.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.key.value() == 0
    }

    /// Ends the run, if there is one.
    pub(crate) fn end(&self) -> Option<EndedRun> {
        let key = self.key.take_alone();
        if key == 0 {
            return None;
        }
        let size = |bits: u64| (bits & ((1 << SIZE_BITS) - 1)) as usize;
        let bucket = (key & !IS_KEY) >> (2 * SIZE_BITS);
        Some(EndedRun {
            bucket: Some(bucket as usize).filter(|bucket| *bucket != OF_TURN),
            request: size(key >> SIZE_BITS),
            response: size(key),
            calls: self.calls.take_alone(),
            elapsed_ns: self.elapsed_ns.take_alone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::DURATIONS;

    #[test]
    fn a_run_has_calls_that_are_alike() {
        let run = Run::default();
        let key = Key::of_duration(5_000, 32, 700);
        assert!(!run.add(key, 5_000) && run.end().is_none());
        run.begin(key, 5_000);
        assert!(run.add(Key::of_duration(5_001, 32, 700), 5_001));
        assert!(!run.add(Key::of_duration(50_000, 32, 700), 50_000));
        assert!(!run.add(Key::of_duration(5_000, 33, 700), 5_000));
        assert!(!run.add(Key::of_duration(5_000, 32, 701), 5_000));
        assert!(!run.add(Key::of_turn(32, 700), 0));
        let ended = run.end().expect("a run");
        assert_eq!(ended.bucket, Some(duration_bucket(5_000)));
        assert_eq!((ended.request, ended.response), (32, 700));
        assert_eq!((ended.calls, ended.elapsed_ns), (2, 10_001));
        assert!(run.is_empty());
    }

    #[test]
    fn extremes_keep_apart() {
        const { assert!(DURATIONS <= OF_TURN) };
        let most = (1 << SIZE_BITS) - 1;
        let run = Run::default();
        run.begin(Key::of_turn(most, most), 0);
        let ended = run.end().expect("a run");
        assert_eq!(
            (ended.bucket, ended.request, ended.response),
            (None, most, most)
        );
        run.begin(Key::of_duration(u64::MAX, 0, most), u64::MAX);
        let ended = run.end().expect("a run");
        assert_eq!((ended.bucket, ended.request), (Some(DURATIONS - 1), 0));
        for (request, response) in [(most + 1, 0), (0, most + 1), (usize::MAX, 0)] {
            let key = Key::of_turn(request, response);
            assert!(!key.is_valid() && !run.add(key, 0), "{request} {response}");
        }
    }
}
