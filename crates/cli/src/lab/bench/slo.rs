//! The picture of the suite `slo`: a plot for each device and distribution of service times. A plot
//! has the tail latency over the load, with a curve for each dispatch policy and one for the ideal.

use starling_bench::table;
use starling_bench::{Metric, Row};
use starling_sim::scenario::{Curve, Plot};

use crate::lab::curves;

/// Plots side by side: the distributions of one device.
const COLUMNS: usize = 5;

/// All plots on one page, with a row of plots for each device.
pub(super) fn svg(rows: &[Row]) -> String {
    let plots: Vec<String> = plots(rows).iter().map(curves::svg).collect();
    curves::page(&plots, COLUMNS)
}

fn plots(rows: &[Row]) -> Vec<Plot> {
    let curves = || table::groups(rows).filter_map(curve);
    let mut plots: Vec<Plot> = Vec::new();
    for (row, curve) in curves().filter(|(row, _)| row.case.contains('/')) {
        let (service, _) = row.case.split_once('/').unwrap_or((&row.case, ""));
        let title = format!("{}: 16 workers, {service} service times", row.scheme);
        if plots.last().is_none_or(|plot| plot.title != title) {
            let ideal = curves().find(|(row, _)| row.case == service);
            plots.push(Plot {
                title,
                x: "load, of capacity",
                y: "p99, in mean service times",
                log: (false, true),
                curves: ideal.map(|(_, curve)| curve).into_iter().collect(),
            });
        }
        plots.last_mut().expect("there is one").curves.push(curve);
    }
    plots
}

/// The curve of one benchmark, with the first of its rows. `None`: the rows have no tail latency.
fn curve(rows: &[Row]) -> Option<(&Row, Curve)> {
    let points: Vec<(f64, f64)> = rows
        .iter()
        .filter_map(|row| match row.metric {
            Metric::Tail { tenths } => Some((f64::from(tenths) / 10.0, row.value)),
            _ => None,
        })
        .collect();
    let row = rows.first().filter(|_| !points.is_empty())?;
    let (_, policy) = row.case.split_once('/').unwrap_or(("", row.system));
    let name = policy.to_owned();
    Some((row, Curve { name, points }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_and_distribution_has_a_plot_with_the_ideal() {
        let row = |scheme, system, case: &str, tenths| Row {
            suite: "slo",
            scheme,
            system,
            case: case.into(),
            metric: Metric::Tail { tenths },
            value: f64::from(tenths),
            min: 1.0,
            max: 1.0,
            repetitions: 1,
        };
        let rows = [
            row("model", "ideal", "gev", 1),
            row("shm", "starling", "gev/1x16", 1),
            row("shm", "starling", "gev/1x16", 2),
            row("shm", "starling", "gev/16x1", 1),
            row("xdp", "starling", "fixed/1x16", 1),
        ];
        let plots = plots(&rows);
        let names: Vec<Vec<&str>> = plots
            .iter()
            .map(|plot| plot.curves.iter().map(|curve| &curve.name[..]).collect())
            .collect();
        assert_eq!(names, [vec!["ideal", "1x16", "16x1"], vec!["1x16"]]);
        assert_eq!(plots[0].curves[1].points, [(0.1, 1.0), (0.2, 2.0)]);
        assert_eq!(svg(&rows).matches("<polyline").count(), 4);
    }
}
