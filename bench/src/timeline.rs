//! A time line: the calls that applications make in short intervals, and what is changed meanwhile.
//!
//! Each application counts its own calls by `Intervals`. They begin at whole numbers of a clock that all processes of
//! a host share, so those of two applications, and the moments of changes, lie on one line:
//!
//! ```text
//!  changed  │ 312 │ 309 │ 311 │ 308 │ ...     calls in each interval
//!  other    │ 310 │ 312 │ 307 │ 311 │ ...
//!           └──▲──┴─────┴──▲──┴─────┴─▶ time
//!           attach      configure
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

use crate::metric::Metric;
use crate::row::Row;

/// The length of an interval.
pub const INTERVAL_NS: u64 = 1_000_000;
/// Intervals in which an application counts; later calls are in none.
const LONGEST: usize = 120_000;
/// Intervals in a row for programs.
const TOGETHER: usize = 10;

/// Now, on the clock that all processes of this host share.
#[inline]
pub(crate) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // This clock begins at 0.
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Counts the calls of an application, from its beginning on.
pub(crate) struct Intervals {
    /// The number of the first one since the clock's beginning.
    first: u64,
    counts: Box<[AtomicU32]>,
}

impl Intervals {
    pub(crate) fn since(now_ns: u64) -> Self {
        Self {
            first: now_ns / INTERVAL_NS,
            counts: (0..LONGEST).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Counts a call. Only one thread may do so: two would lose calls.
    #[inline]
    pub(crate) fn count(&self, now_ns: u64) {
        let at = (now_ns / INTERVAL_NS).saturating_sub(self.first) as usize;
        if let Some(count) = self.counts.get(at) {
            count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    /// What was counted in the intervals that are over.
    pub(crate) fn counted(&self, now_ns: u64) -> Counted {
        let over = (now_ns / INTERVAL_NS).saturating_sub(self.first) as usize;
        let counts = self.counts.iter().take(over);
        Counted {
            first: self.first,
            calls: counts.map(|it| it.load(Ordering::Relaxed)).collect(),
        }
    }
}

/// The calls of an application in intervals that follow one another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    /// The number of the first interval.
    pub(crate) first: u64,
    pub(crate) calls: Vec<u32>,
}

impl Counted {
    /// One line, by which one process tells another.
    pub(crate) fn to_line(&self) -> String {
        let calls = self.calls.iter().map(|calls| format!(" {calls}"));
        self.first.to_string() + &calls.collect::<String>()
    }

    /// `None`: it is no such line.
    pub(crate) fn of_line(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        Some(Self {
            first: words.next()?.parse().ok()?,
            calls: words
                .map(|it| it.parse().ok())
                .collect::<Option<Vec<u32>>>()?,
        })
    }

    /// Those of the intervals `from..to`; fewer if it ends before.
    fn between(&self, from: u64, to: u64) -> &[u32] {
        let at = |number: u64| number.saturating_sub(self.first) as usize;
        let to = at(to).min(self.calls.len());
        &self.calls[at(from).min(to)..to]
    }
}

/// An application on a time line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Its name.
    pub name: &'static str,
    /// Its calls in each interval.
    pub calls: Vec<u32>,
}

impl Series {
    /// The calls a second in so many intervals together, one after the other.
    pub fn rates(&self, together: usize) -> impl Iterator<Item = f64> {
        let groups = self.calls.chunks_exact(together);
        groups.map(|group| per_second(group.iter().map(|calls| f64::from(*calls))))
    }

    /// The calls a second in each interval before and after some moments, on average, from `before` intervals before
    /// to as many after. Moments without as many around them do not count.
    pub fn around(&self, moments_ns: impl Iterator<Item = u64>, before: usize) -> Vec<f64> {
        let within = |at_ns: u64| {
            let at = (at_ns / INTERVAL_NS) as usize;
            self.calls.get(at.checked_sub(before)?..=at + before)
        };
        let windows: Vec<&[u32]> = moments_ns.filter_map(within).collect();
        let mean =
            |interval: usize| per_second(windows.iter().map(|window| f64::from(window[interval])));
        match windows.is_empty() {
            true => Vec::new(),
            false => (0..=2 * before).map(mean).collect(),
        }
    }
}

/// The mean rate in intervals with so many calls each.
fn per_second(calls: impl ExactSizeIterator<Item = f64>) -> f64 {
    let seconds = calls.len() as f64 * INTERVAL_NS as f64 / 1e9;
    calls.sum::<f64>() / seconds
}

/// A change on a time line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What is changed.
    pub what: &'static str,
    /// When, on the line.
    pub at_ns: u64,
    /// Until it is done.
    pub took_ns: u64,
    /// The longest time around it in which the changed application has no answer.
    pub gap_ns: u64,
}

/// Calls in intervals, and changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// The applications, all with as many intervals.
    pub series: Vec<Series>,
    /// In the order in which they are made.
    pub changes: Vec<Change>,
    /// The moments, on the line, at which everything was as at a change, but that nothing was changed.
    pub unchanged_ns: Vec<u64>,
}

impl Timeline {
    /// The whole intervals from `begun_ns` to `ended_ns` that all applications have. Times of changes are of the same
    /// clock as these two.
    pub(crate) fn new(
        (begun_ns, ended_ns): (u64, u64),
        applications: &[(&'static str, Counted)],
        changes: Vec<Change>,
        unchanged_ns: &[u64],
    ) -> Self {
        let (from, to) = (begun_ns.div_ceil(INTERVAL_NS), ended_ns / INTERVAL_NS);
        let calls = || applications.iter().map(|(_, it)| it.between(from, to));
        let length = calls().map(<[u32]>::len).min().unwrap_or(0);
        let names = applications.iter().map(|(name, _)| *name);
        let on_line = |at_ns: u64| {
            let at_ns = at_ns.checked_sub(from * INTERVAL_NS)?;
            (at_ns < length as u64 * INTERVAL_NS).then_some(at_ns)
        };
        let changes = changes.into_iter().filter_map(|change| {
            let at_ns = on_line(change.at_ns)?;
            Some(Change { at_ns, ..change })
        });
        Self {
            series: names
                .zip(calls())
                .map(|(name, calls)| Series {
                    name,
                    calls: calls[..length].to_vec(),
                })
                .collect(),
            changes: changes.collect(),
            unchanged_ns: unchanged_ns.iter().filter_map(|at| on_line(*at)).collect(),
        }
    }

    /// Rows of one repetition of a benchmark, one for 10 ms of an application and two for a change: the
    /// keys of [`Row`], and `at_ms`, when it begins.
    pub fn to_json(&self, suite: &'static str) -> Vec<Value> {
        let row = |name: &str, at_ns: u64, metric: Metric, value: f64| {
            let row = Row {
                suite,
                scheme: "udp",
                system: "managed",
                case: format!("live {name}"),
                metric,
                value,
                min: value,
                max: value,
                repetitions: 1,
            };
            let mut row = row.to_json();
            row["at_ms"] = (at_ns as f64 / 1e6).into();
            row
        };
        let intervals = self.series.iter().flat_map(|series| {
            let rates = series.rates(TOGETHER).enumerate();
            rates.map(|(at, rate)| {
                let at_ns = (at * TOGETHER) as u64 * INTERVAL_NS;
                row(series.name, at_ns, Metric::Rate, rate)
            })
        });
        let changes = self.changes.iter().flat_map(|change| {
            let of = |metric, ns: u64| row(change.what, change.at_ns, metric, ns as f64);
            [
                of(Metric::Took, change.took_ns),
                of(Metric::Gap, change.gap_ns),
            ]
        });
        intervals.chain(changes).collect()
    }
}

/// Where a benchmark leaves its time line: that of its last repetition is kept.
#[derive(Clone, Debug, Default)]
pub struct Kept(Arc<Mutex<Option<Timeline>>>);

impl Kept {
    pub(crate) fn keep(&self, timeline: Timeline) {
        *self.0.lock() = Some(timeline);
    }

    /// The time line, if there is one.
    pub fn take(&self) -> Option<Timeline> {
        self.0.lock().take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGUN: u64 = 7 * INTERVAL_NS;

    fn change(at_ns: u64) -> Change {
        Change {
            what: "attach",
            at_ns,
            took_ns: 5,
            gap_ns: 6,
        }
    }

    #[test]
    fn each_call_is_in_the_interval_of_its_time() {
        let intervals = Intervals::since(BEGUN + 3);
        for at in [3, 4, INTERVAL_NS - 1, INTERVAL_NS, 3 * INTERVAL_NS] {
            intervals.count(BEGUN + at);
        }
        let counted = intervals.counted(BEGUN + 3 * INTERVAL_NS + 1);
        let expected = Counted {
            first: 7,
            calls: vec![3, 1, 0],
        };
        assert_eq!(counted, expected, "the last interval is not over");
        assert_eq!(Counted::of_line(&counted.to_line()), Some(expected));
        assert_eq!(Counted::of_line("7 1 x"), None);
        assert_eq!(Counted::of_line(""), None);
    }

    #[test]
    fn calls_after_the_longest_time_are_in_no_interval() {
        let intervals = Intervals::since(0);
        let end_ns = LONGEST as u64 * INTERVAL_NS;
        intervals.count(end_ns - 1);
        intervals.count(end_ns);
        let calls = intervals.counted(2 * end_ns).calls;
        assert_eq!((calls.len(), calls[LONGEST - 1]), (LONGEST, 1));
    }

    #[test]
    fn a_time_line_has_the_whole_intervals_that_all_applications_have() {
        let of = |first, calls: &[u32]| Counted {
            first,
            calls: calls.to_vec(),
        };
        let applications = [
            ("changed", of(5, &[1, 2, 3, 4, 5, 6])),
            ("other", of(8, &[7, 8])),
        ];
        let changes = [BEGUN + 1, BEGUN + INTERVAL_NS + 1, BEGUN + 3 * INTERVAL_NS].map(change);
        let line = Timeline::new(
            (BEGUN + 1, BEGUN + 5 * INTERVAL_NS),
            &applications,
            changes.into(),
            &[BEGUN, BEGUN + INTERVAL_NS + 2],
        );
        let calls: Vec<&[u32]> = line.series.iter().map(|it| &*it.calls).collect();
        assert_eq!(calls, [[4, 5], [7, 8]]);
        assert_eq!(line.changes, [change(1)], "others are not within them");
        assert_eq!(line.unchanged_ns, [2]);
        let nothing = Timeline::new((0, BEGUN), &applications, Vec::new(), &[]);
        assert_eq!(nothing.series[1].calls, [0; 0]);
    }

    #[test]
    fn the_rates_around_moments_are_means() {
        let series = Series {
            name: "changed",
            calls: vec![1, 2, 3, 4, 5, 6],
        };
        let at = |interval: u64| interval * INTERVAL_NS + 7;
        let around = series.around([0, 1, 3, 5].map(at).into_iter(), 1);
        // Of 1 and 3: the others have no interval before or after.
        assert_eq!(around, [2000.0, 3000.0, 4000.0]);
        assert_eq!(series.around(std::iter::once(at(0)), 1), [0.0; 0]);
    }

    #[test]
    fn a_row_says_when_it_was() {
        let kept = Kept::default();
        kept.keep(Timeline {
            series: vec![Series {
                name: "other",
                calls: [vec![1; TOGETHER], vec![2; 2 * TOGETHER - 1]].concat(),
            }],
            changes: vec![change(12_345_000)],
            unchanged_ns: Vec::new(),
        });
        let rows = kept.take().expect("it was kept").to_json("policies");
        assert_eq!(kept.take(), None);
        assert_eq!(rows.len(), 4);
        assert_eq!(rows[1]["case"], "live other");
        assert_eq!(
            (&rows[1]["value"], &rows[1]["at_ms"]),
            (&2000.0.into(), &10.0.into())
        );
        assert_eq!(
            (&rows[2]["case"], &rows[2]["metric"]),
            (&"live attach".into(), &"took".into())
        );
        assert_eq!(
            (&rows[3]["value"], &rows[3]["at_ms"]),
            (&6.0.into(), &12.345.into())
        );
    }
}
