//! The counts of a recorder as numbers, for another one to go on with.
//!
//! ```text
//!  recorder    requests | responses | codes | code, durations | code, durations ...
//!  histogram   sum | values that follow | bucket, count | bucket, count ...     buckets in order, those with a count
//! ```
//!
//! Calls of a turn that is not over and calls in flight are not in it, and neither is what is counted of streams. With
//! other buckets it is another format: whoever saves it, and gives it a version, has to know.

use starling_call::Code;

use crate::cells::{Cell, Writers};
use crate::recorder::{CODES, CallRecorder};

type Cells<'a> = (&'a [Cell], &'a Cell);

fn save((buckets, sum): Cells<'_>, put: &mut impl FnMut(u64)) {
    let counted = || {
        let numbered = buckets.iter().enumerate();
        numbered.filter(|(_, count)| count.value() > 0)
    };
    put(sum.value());
    put(counted().count() as u64);
    for (bucket, count) in counted() {
        put(bucket as u64);
        put(count.value());
    }
}

/// `None`: it is not what [`save`] gives.
fn restore((buckets, sum): Cells<'_>, take: &mut impl FnMut() -> Option<u64>) -> Option<()> {
    sum.set_alone(take()?);
    let mut from = 0;
    for _ in 0..take()? {
        let bucket = usize::try_from(take()?).ok()?;
        let count = take()?;
        // In order, so that there are no more than there are buckets.
        let cell = buckets.get(bucket)?;
        if bucket < from || count == 0 {
            return None;
        }
        cell.set_alone(count);
        from = bucket + 1;
    }
    Some(())
}

impl CallRecorder {
    /// Gives its counts, number by number.
    pub fn save(&self, mut put: impl FnMut(u64)) {
        save(self.requests.cells(), &mut put);
        save(self.responses.cells(), &mut put);
        let durations = || {
            let by_code = self.durations.iter().enumerate();
            by_code.filter_map(|(code, durations)| Some((code, durations.get()?)))
        };
        put(durations().count() as u64);
        for (code, durations) in durations() {
            put(code as u64);
            save(durations.cells(), &mut put);
        }
    }

    /// One that goes on with the counts that another has given. `None`: they are none.
    pub fn restore(writers: Writers, mut take: impl FnMut() -> Option<u64>) -> Option<Self> {
        let recorder = Self::new(writers);
        restore(recorder.requests.cells(), &mut take)?;
        restore(recorder.responses.cells(), &mut take)?;
        let codes = take().filter(|codes| *codes <= CODES as u64)?;
        for _ in 0..codes {
            let code = u8::try_from(take()?).ok().and_then(Code::from_u8)?;
            let durations = recorder.durations[code as usize].get_or_init(Box::default);
            restore(durations.cells(), &mut take)?;
        }
        Some(recorder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorder() -> CallRecorder {
        let recorder = CallRecorder::new(Writers::One);
        for number in 0..40 {
            recorder.record(Code::Ok, 1 << number, number, Some(1 << number));
        }
        recorder.record(Code::Unavailable, u64::MAX, usize::MAX, None);
        recorder
    }

    fn numbers(recorder: &CallRecorder) -> Vec<u64> {
        let mut numbers = Vec::new();
        recorder.save(|number| numbers.push(number));
        numbers
    }

    fn restored(numbers: &[u64]) -> Option<CallRecorder> {
        let mut numbers = numbers.iter().copied();
        CallRecorder::restore(Writers::One, || numbers.next())
    }

    #[test]
    fn a_recorder_goes_on_with_the_counts_of_another() {
        for before in [CallRecorder::new(Writers::One), recorder()] {
            let after = restored(&numbers(&before)).expect("its own counts");
            assert_eq!(after.totals(), before.totals());
            for recorder in [&before, &after] {
                recorder.record(Code::Ok, 7000, 7, Some(7));
            }
            assert_eq!(after.totals(), before.totals());
        }
    }

    #[test]
    fn what_no_recorder_gave_is_none() {
        let whole = numbers(&recorder());
        for len in 0..whole.len() {
            assert!(restored(&whole[..len]).is_none(), "{len}");
        }
        // A bucket that is not there, one twice, one without a count, a code that is none.
        for wrong in [
            &[0, 1, 34, 1][..],
            &[0, 2, 3, 1, 3, 1],
            &[0, 1, 3, 0],
            &[0, 0, 0, 0, 1, 17, 0, 0],
            &[0, 0, 0, 0, 18],
            &[0, u64::MAX, 0, 1],
        ] {
            assert!(restored(wrong).is_none(), "{wrong:?}");
        }
    }
}
