//! Runs the benchmarks of a suite and makes rows of their figures.
//!
//! Repetitions are interleaved (A B C, A B C, ...): the speed of a virtual machine changes from one
//! second to the next, and all benchmarks of a suite should see the same changes.

use std::collections::BTreeMap;

use crate::benchmark::{Benchmark, Context};
use crate::error::BenchError;
use crate::floor::cache_line;
use crate::metric::Metric;
use crate::placement::Placement;
use crate::row::Row;
use crate::selection::Selection;

/// The progress of a run, which it reports before each measurement.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Measurements done.
    pub done: usize,
    /// Measurements in all.
    pub total: usize,
    /// The benchmark that is measured now.
    pub now: String,
}

/// Which benchmarks to run, and how often.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Repetitions of each benchmark; at least one is run.
    pub repetitions: usize,
    /// Benchmarks wanted; empty: all.
    pub only: Vec<Selection>,
}

/// Runs benchmarks and returns their rows, in the order of `benchmarks`.
///
/// For a benchmark that depends on the cores' placement, a cache line's round trip is measured just
/// before and just after. It decides the placement that the row's case ends with. It has a row of
/// its own, of the system `raw`, whose case ends with `ping-pong`.
pub fn run(
    suite: &'static str,
    mut benchmarks: Vec<Benchmark>,
    plan: &Plan,
    context: &Context,
    progress: &mut dyn FnMut(Progress),
) -> Result<Vec<Row>, BenchError> {
    let names: Vec<String> = benchmarks.iter().map(ToString::to_string).collect();
    let is_wanted = |benchmark: &Benchmark| {
        plan.only.is_empty() || plan.only.iter().any(|only| only.selects(benchmark))
    };
    benchmarks.retain(is_wanted);
    if benchmarks.is_empty() {
        return Err(BenchError::NothingSelected {
            suite,
            there_is: names.join(", "),
        });
    }
    let total = plan.repetitions.max(1) * benchmarks.len();
    let mut figures: BTreeMap<Key, Vec<f64>> = BTreeMap::new();
    for done in 0..total {
        let index = done % benchmarks.len();
        let benchmark = &mut benchmarks[index];
        progress(Progress {
            done,
            total,
            now: benchmark.to_string(),
        });
        let mut add = |placement, is_probe, metric, value| {
            let key = Key {
                benchmark: index,
                placement,
                is_probe,
                metric,
            };
            figures.entry(key).or_default().push(value);
        };
        if benchmark.depends_on_placement {
            let before_ns = cache_line::round_trip_ns(context.cores)?;
            let sample = (benchmark.measure)(context)?;
            let after_ns = cache_line::round_trip_ns(context.cores)?;
            let placement = Some(Placement::of(before_ns, after_ns));
            for (metric, value) in sample {
                add(placement, false, metric, value);
            }
            add(placement, true, Metric::P50, (before_ns + after_ns) / 2.0);
        } else {
            for (metric, value) in (benchmark.measure)(context)? {
                add(None, false, metric, value);
            }
        }
    }
    Ok(figures
        .into_iter()
        .map(|(key, values)| key.row(suite, &benchmarks[key.benchmark], values))
        .collect())
}

/// The key of a row: figures of several repetitions with equal keys go into one row. Rows have the
/// order of their keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    benchmark: usize,
    placement: Option<Placement>,
    /// The cache line's round trip around the benchmark, not the benchmark.
    is_probe: bool,
    metric: Metric,
}

impl Key {
    fn row(self, suite: &'static str, benchmark: &Benchmark, mut values: Vec<f64>) -> Row {
        values.sort_by(f64::total_cmp);
        let mut case: Vec<&str> = Vec::new();
        if !benchmark.case.is_empty() {
            case.push(&benchmark.case);
        }
        case.extend(self.placement.map(Placement::name));
        if self.is_probe {
            case.push(benchmark.system);
            case.push("ping-pong");
        }
        Row {
            suite,
            scheme: benchmark.scheme,
            system: match self.is_probe {
                true => "raw",
                false => benchmark.system,
            },
            case: case.join(" "),
            metric: self.metric,
            value: median(&values),
            min: values[0],
            max: values[values.len() - 1],
            repetitions: values.len(),
        }
    }
}

/// The median of values in order; the mean of the two in the middle if their number is even.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        (sorted[middle - 1] + sorted[middle]) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;
    use crate::benchmark::Network;
    use crate::pin::Cores;
    use crate::process::Launcher;
    use crate::timeline::Kept;

    fn context() -> Context {
        let cores = Cores::of_this_process().unwrap();
        Context {
            launcher: Launcher::new("/nonexistent".into(), &[], cores),
            cores,
            seconds: 0.001,
            network: Network::Loopback,
            timeline: Kept::default(),
        }
    }

    fn constant(scheme: &'static str, system: &'static str, values: &[f64]) -> Benchmark {
        let mut values: std::vec::IntoIter<f64> = Vec::from(values).into_iter();
        Benchmark::new(scheme, system, "", move |_| {
            Ok(vec![(Metric::Rate, values.next().unwrap())])
        })
    }

    #[test]
    fn repetitions_of_the_benchmarks_are_interleaved() {
        let order = Rc::new(RefCell::new(Vec::new()));
        let benchmarks = ["a", "b"]
            .map(|name| {
                let order = Rc::clone(&order);
                Benchmark::new("udp", name, "", move |_| {
                    order.borrow_mut().push(name);
                    Ok(vec![(Metric::Rate, 1.0)])
                })
            })
            .into();
        let plan = Plan {
            repetitions: 3,
            only: vec![],
        };
        let mut reported = Vec::new();
        run("rate", benchmarks, &plan, &context(), &mut |p| {
            reported.push((p.done, p.total))
        })
        .unwrap();
        assert_eq!(*order.borrow(), ["a", "b", "a", "b", "a", "b"]);
        assert_eq!(reported.first(), Some(&(0, 6)));
        assert_eq!(reported.last(), Some(&(5, 6)));
    }

    #[test]
    fn a_row_has_the_median_and_the_spread_of_its_repetitions() {
        let plan = Plan {
            repetitions: 3,
            only: vec![],
        };
        let rows = run(
            "rate",
            vec![constant("udp", "raw", &[5.0, 100.0, 7.0])],
            &plan,
            &context(),
            &mut |_| (),
        )
        .unwrap();
        let [row] = &rows[..] else {
            panic!("one row expected, got {rows:?}")
        };
        assert_eq!(
            (row.value, row.min, row.max, row.repetitions),
            (7.0, 5.0, 100.0, 3)
        );
        assert_eq!(
            (row.scheme, row.system, row.case.as_str()),
            ("udp", "raw", "")
        );
    }

    #[test]
    fn only_selected_benchmarks_run() {
        let benchmarks = || {
            vec![
                constant("udp", "raw", &[1.0]),
                constant("grpc", "raw", &[2.0]),
                Benchmark {
                    case: "batch=3 more".into(),
                    ..constant("udp", "tonic", &[3.0])
                },
                Benchmark {
                    case: "batch=11".into(),
                    ..constant("udp", "tonic", &[4.0])
                },
            ]
        };
        let values = |only: &[&str]| -> Vec<f64> {
            let plan = Plan {
                repetitions: 1,
                only: only.iter().map(|text| text.parse().unwrap()).collect(),
            };
            run("rate", benchmarks(), &plan, &context(), &mut |_| ())
                .unwrap()
                .iter()
                .map(|row| row.value)
                .collect()
        };
        assert_eq!(values(&["raw"]), [1.0, 2.0]);
        assert_eq!(values(&["raw/grpc", "tonic"]), [2.0, 3.0, 4.0]);
        assert_eq!(values(&["tonic/udp/batch=3"]), [3.0]);
    }

    #[test]
    fn a_selection_of_nothing_names_the_benchmarks_of_the_suite() {
        let plan = Plan {
            repetitions: 1,
            only: vec!["nobody/udp".parse().unwrap()],
        };
        let error = run(
            "rate",
            vec![constant("udp", "raw", &[1.0])],
            &plan,
            &context(),
            &mut |_| (),
        )
        .unwrap_err();
        assert!(error.to_string().contains("raw/udp"), "{error}");
    }

    #[test]
    fn the_case_of_a_shared_memory_row_ends_with_the_placement() {
        let key = Key {
            benchmark: 0,
            placement: Some(Placement::Near),
            is_probe: true,
            metric: Metric::P50,
        };
        let mut benchmark = constant("shm", "starling", &[]);
        benchmark.case = "batch=3".into();
        let row = key.row("rate", &benchmark, vec![120.0]);
        assert_eq!(
            (row.system, row.case.as_str()),
            ("raw", "batch=3 near starling ping-pong")
        );
        let row = Key {
            is_probe: false,
            ..key
        }
        .row("rate", &benchmark, vec![1.0]);
        assert_eq!(
            (row.system, row.case.as_str()),
            ("starling", "batch=3 near")
        );
    }

    #[test]
    fn the_median_of_an_even_number_is_the_mean_of_the_two_in_the_middle() {
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), 3.0);
    }
}
