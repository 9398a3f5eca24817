//! The picture of the suite `policies`: the time line of its case `live`. One plot has the whole of it, the next one
//! its first second with the changes. Two applications take turns on a core, so the last one has the means around all
//! changes, in which turns even out, beside those around moments without one: the applications are asked for their
//! counts just before both.

use starling_bench::timeline::{Change, INTERVAL_NS, Timeline};
use starling_sim::scenario::{Curve, Plot};

use crate::lab::curves::{self, Marks};

/// The case that has a time line.
pub(super) const CASE: &str = "live";

/// What the second plot shows.
const SHOWN_NS: u64 = 1_000_000_000;
/// What the third one shows of the time before a change, and after.
const AROUND: usize = 10;

/// All plots on one page, one below the other.
pub(super) fn svg(timeline: &Timeline) -> String {
    let changes = &timeline.changes;
    let title = format!(
        "Two applications of one service, {} changes of a policy of one: by 100 ms",
        changes.len()
    );
    let all = curves::svg(&rates(timeline, usize::MAX, 100, title));
    let intervals = (SHOWN_NS / INTERVAL_NS) as usize;
    let title = "The first second of it: by 10 ms".into();
    let shown = curves::marked(&rates(timeline, intervals, 10, title), &marks(changes));
    curves::page(&[all, shown, curves::svg(&around(timeline))], 1)
}

/// The rates in the first so many intervals, of several together.
fn rates(timeline: &Timeline, intervals: usize, together: usize, title: String) -> Plot {
    let second = |at: usize| (at * together) as f64 * INTERVAL_NS as f64 / 1e9;
    let curves = timeline.series.iter().map(|series| {
        let rates = series.rates(together);
        let rates = rates.take(intervals / together).enumerate();
        Curve {
            name: series.name.into(),
            points: rates.map(|(at, rate)| (second(at), rate / 1e3)).collect(),
        }
    });
    Plot {
        title,
        x: "seconds",
        y: "thousand calls a second",
        log: (false, false),
        curves: curves.collect(),
    }
}

/// The moments of the changes, by their kinds, in the order in which these are made first.
fn marks(changes: &[Change]) -> Vec<Marks> {
    let mut all: Vec<Marks> = Vec::new();
    for change in changes.iter().filter(|change| change.at_ns < SHOWN_NS) {
        let at = change.at_ns as f64 / 1e9;
        match all.iter_mut().find(|marks| marks.name == change.what) {
            Some(marks) => marks.at.push(at),
            None => all.push(Marks {
                name: change.what.into(),
                at: vec![at],
            }),
        }
    }
    all
}

/// The mean rates around all changes, and around as many moments without one.
fn around(timeline: &Timeline) -> Plot {
    let changes: Vec<u64> = timeline.changes.iter().map(|it| it.at_ns).collect();
    let of = |moments: &[u64], without: &'static str| {
        let curves = timeline.series.iter().map(move |series| {
            let rates = series.around(moments.iter().copied(), AROUND);
            let points = (0..).zip(rates);
            Curve {
                name: format!("{}{without}", series.name),
                points: points
                    .map(|(at, rate)| (f64::from(at), rate / 1e3))
                    .collect(),
            }
        });
        curves.collect::<Vec<_>>()
    };
    let curves = [of(&changes, ""), of(&timeline.unchanged_ns, ", no change")];
    Plot {
        title: "The mean around all changes: by 1 ms".into(),
        x: "milliseconds; a change is made in the one after 10",
        y: "thousand calls a second",
        log: (false, false),
        curves: curves.concat(),
    }
}

#[cfg(test)]
mod tests {
    use starling_bench::timeline::Series;

    use super::*;

    fn timeline() -> Timeline {
        let series = |name| Series {
            name,
            calls: (0..1500).collect(),
        };
        let change = |number: u64| Change {
            what: ["attach", "detach"][number as usize % 2],
            at_ns: 100_000_000 + 300_000_000 * number,
            took_ns: 1,
            gap_ns: 20_000 + number,
        };
        Timeline {
            series: vec![series("changed"), series("other")],
            changes: (0..4).map(change).collect(),
            unchanged_ns: vec![50_000_000],
        }
    }

    #[test]
    fn the_picture_has_all_calls_the_first_second_and_the_means() {
        let svg = svg(&timeline());
        assert_eq!(svg.matches("<polyline").count(), 8);
        assert!(svg.contains("4 changes of a policy"), "{svg}");
        assert_eq!(svg.matches("class=\"mark\"").count(), 3, "within a second");
        assert!([">changed<", ">attach<"].iter().all(|it| svg.contains(it)));
    }

    #[test]
    fn a_point_is_a_rate_by_its_time() {
        let plot = rates(&timeline(), 1000, 10, String::new());
        let points = &plot.curves[1].points;
        // The mean of 500 to 509 calls in 1 ms.
        assert_eq!((points.len(), points[50]), (100, (0.5, 504.5)));
        let plot = around(&timeline());
        let points = &plot.curves[0].points;
        // The changes are 100, 400, 700 and 1000 ms after the beginning, and so many calls are in 1 ms there.
        assert_eq!((points.len(), points[AROUND]), (21, (10.0, 550.0)));
        assert_eq!(plot.curves[3].name, "other, no change");
        assert_eq!(plot.curves[3].points[AROUND], (10.0, 50.0));
    }
}
