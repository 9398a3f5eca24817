//! The demo's plot of latencies, as SVG: a panel for each workload, and in it a curve of latency over
//! percentile for each system.
//!
//! ```text
//!   latency │        ╭─ tonic        Both axes are logarithmic: latency spans decades, and
//!    (log)  │  ─────╯                percentiles are spaced by the share of calls above them:
//!           │        ╭─ starling     each further nine takes the same width.
//!           │  ─────╯
//!           └──────────────── percentile (nines)
//! ```

use std::fmt::Write as _;

use starling_bench::Metric;
use starling_bench::kv::Workload;
use starling_bench::kv::drive::PERCENTILES;
use starling_bench::table::human;

use super::outcome::{IN_FLIGHT, Outcome};
use crate::lab::svg;

/// Size of a panel's field, and of the margins around it, in pixels.
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 32.0;
const ABOVE: f64 = 34.0;
const BELOW: f64 = 52.0;

/// Height of the title and the legend above all panels.
const TITLE: f64 = 66.0;

/// Panels side by side.
const COLUMNS: usize = 2;

/// The percentiles that the horizontal axis names. The axis ends with the last.
const MARKS: [f64; 6] = [0.0, 50.0, 90.0, 99.0, 99.9, 99.99];

fn colour(scheme: &str) -> &'static str {
    match scheme {
        "udp" => svg::BLUE,
        "shm" => svg::GREEN,
        _ => svg::RED,
    }
}

/// Calls of a [`LocalChannel`](starling::LocalChannel) have dashes, those through a service dots.
fn dashes(system: &str) -> &'static str {
    match system {
        "local" => r#" stroke-dasharray="6 4""#,
        "managed" => r#" stroke-dasharray="2 3""#,
        _ => "",
    }
}

/// The whole picture.
pub(super) fn svg(outcomes: &[Outcome]) -> String {
    let panels = Workload::YCSB;
    let rows = panels.len().div_ceil(COLUMNS);
    let (panel_width, panel_height) = (LEFT + WIDTH + RIGHT, ABOVE + HEIGHT + BELOW);
    let width = panel_width * COLUMNS as f64;
    let height = TITLE + panel_height * rows as f64;
    let title =
        format!("Latency of a key-value store, {IN_FLIGHT} calls in flight: lower is better");
    let mut svg = svg::open(width, height) + &svg::title((LEFT, 24.0), 17, &title);
    legend(&mut svg, outcomes);
    let scale = Scale::of(outcomes);
    for (index, workload) in panels.into_iter().enumerate() {
        let x = LEFT + panel_width * (index % COLUMNS) as f64;
        let y = TITLE + ABOVE + panel_height * (index / COLUMNS) as f64;
        let _ = writeln!(svg, r#"<g transform="translate({x} {y})">"#);
        panel(&mut svg, workload, outcomes, scale);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn legend(svg: &mut String, outcomes: &[Outcome]) {
    let first = outcomes.first().map(|outcome| outcome.workload);
    let systems = outcomes.iter().filter(|o| Some(o.workload) == first);
    for (index, outcome) in systems.enumerate() {
        let x = LEFT + 150.0 * index as f64;
        let _ = writeln!(
            svg,
            r#"<path d="M{x} 48h26" stroke="{}" stroke-width="3"{}/><text x="{}" y="52" font-size="13">{}/{}</text>"#,
            colour(outcome.scheme),
            dashes(outcome.system),
            x + 34.0,
            outcome.system,
            outcome.scheme
        );
    }
}

/// The range of latencies on the vertical axis, in whole decades.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scale {
    /// The exponent of the lowest latency: 3 stands for 1000 ns.
    low: i32,
    /// The exponent of the highest latency.
    high: i32,
}

impl Scale {
    fn of(outcomes: &[Outcome]) -> Self {
        let shown = outcomes.iter().flat_map(points).map(|(_, ns)| ns.log10());
        let (low, high) = shown.fold((f64::MAX, f64::MIN), |(low, high), log| {
            (low.min(log), high.max(log))
        });
        if low > high {
            return Self { low: 3, high: 6 };
        }
        let low = low.floor() as i32;
        Self {
            low,
            high: (high.ceil() as i32).max(low + 1),
        }
    }

    /// The distance of a latency from the top of the field, in pixels.
    fn y(self, ns: f64) -> f64 {
        let part = (ns.log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        HEIGHT * (1.0 - part)
    }
}

/// The distance of a percentile from the left end of the field, in pixels.
fn x(percentile: f64) -> f64 {
    let nines = |percentile: f64| (100.0 / (100.0 - percentile)).log10();
    WIDTH * nines(percentile) / nines(MARKS[MARKS.len() - 1])
}

/// The percentiles up to the end of the axis, with their latencies in ns.
fn points(outcome: &Outcome) -> impl Iterator<Item = (f64, f64)> + '_ {
    let last = MARKS[MARKS.len() - 1];
    PERCENTILES
        .iter()
        .zip(&outcome.figures.latencies_ns)
        .filter(move |(percentile, _)| **percentile <= last)
        .map(|(&percentile, &ns)| (percentile, (ns as f64).max(1.0)))
}

fn panel(svg: &mut String, workload: Workload, outcomes: &[Outcome], scale: Scale) {
    let _ = writeln!(
        svg,
        r#"<text x="0" y="-10" font-size="13" font-weight="bold">YCSB {workload}: {}</text>"#,
        workload.about()
    );
    for decade in scale.low..=scale.high {
        let y = scale.y(10f64.powi(decade));
        let label = human(Metric::P50, 10f64.powi(decade)).replace(".00", "");
        let _ = writeln!(
            svg,
            r##"<path d="M0 {y:.1}h{WIDTH}" stroke="#ddd"/><text x="-8" y="{:.1}" text-anchor="end">{}</text>"##,
            y + 4.0,
            label.replace(".0", "")
        );
    }
    for mark in MARKS {
        let x = x(mark);
        let _ = writeln!(
            svg,
            r##"<path d="M{x:.1} 0v{HEIGHT}" stroke="#eee"/>
<text x="{x:.1}" y="{}" text-anchor="middle">{mark}%</text>"##,
            HEIGHT + 17.0
        );
    }
    let _ = writeln!(
        svg,
        r##"<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#888"/>
<text x="{}" y="{}" text-anchor="middle" fill="#555">calls that took at most this long (percentile)</text>
<text transform="translate(-54 {}) rotate(-90)" text-anchor="middle" fill="#555">latency (log)</text>"##,
        WIDTH / 2.0,
        HEIGHT + 37.0,
        HEIGHT / 2.0
    );
    for outcome in outcomes.iter().filter(|o| o.workload == workload) {
        let line: Vec<String> = points(outcome)
            .map(|(percentile, ns)| format!("{:.1},{:.1}", x(percentile), scale.y(ns)))
            .collect();
        let _ = writeln!(
            svg,
            r#"<polyline points="{}" fill="none" stroke="{}" stroke-width="2.5" stroke-linejoin="round"{}/>"#,
            line.join(" "),
            colour(outcome.scheme),
            dashes(outcome.system)
        );
    }
}
