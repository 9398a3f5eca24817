//! The latency plot: for each workload a panel, for each system a curve of latency over
//! percentile, as SVG.
//!
//! ```text
//!   latency │        ╭─ tonic        Both axes are logarithmic: latency spans decades, and
//!    (log)  │  ─────╯                percentiles are spaced by what is left above them, so
//!           │        ╭─ starling     that each further nine takes the same width.
//!           │  ─────╯
//!           └──────────────── percentile (nines)
//! ```

use std::fmt::Write as _;

use starling_bench::Metric;
use starling_bench::kv::Workload;
use starling_bench::kv::drive::PERCENTILES;
use starling_bench::table::human;

use super::outcome::{IN_FLIGHT, Outcome};

/// Size of a panel's field, and of the margins around it, in pixels.
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 230.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 32.0;
const ABOVE: f64 = 34.0;
const BELOW: f64 = 52.0;

/// Height of the title and the legend above all panels.
const TITLE: f64 = 66.0;

/// Panels in a line.
const COLUMNS: usize = 2;

/// The percentiles that the horizontal axis names; the last is where it ends.
const MARKS: [f64; 6] = [0.0, 50.0, 90.0, 99.0, 99.9, 99.99];

/// Colours that differ in lightness too, for those who do not see the difference in hue.
fn colour(scheme: &str) -> &'static str {
    match scheme {
        "udp" => "#0b5cad",
        "shm" => "#17a05d",
        _ => "#d1495b",
    }
}

/// The whole picture.
pub(super) fn svg(outcomes: &[Outcome]) -> String {
    let panels = Workload::YCSB;
    let rows = panels.len().div_ceil(COLUMNS);
    let (panel_width, panel_height) = (LEFT + WIDTH + RIGHT, ABOVE + HEIGHT + BELOW);
    let width = panel_width * COLUMNS as f64;
    let height = TITLE + panel_height * rows as f64;
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"
 width="{width}" height="{height}" font-family="system-ui, sans-serif" font-size="12" fill="#222">
<rect width="100%" height="100%" fill="#fff"/>
<text x="{LEFT}" y="24" font-size="17" font-weight="bold"
>Latency of a key-value store, {} calls in flight: lower is better</text>"##,
        IN_FLIGHT
    );
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
        let x = LEFT + 160.0 * index as f64;
        let _ = writeln!(
            svg,
            r#"<path d="M{x} 48h26" stroke="{}" stroke-width="3"/><text x="{}" y="52" font-size="13">{}/{}</text>"#,
            colour(outcome.scheme),
            x + 34.0,
            outcome.system,
            outcome.scheme
        );
    }
}

/// The latencies that the vertical axis spans, in whole decades.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scale {
    /// Powers of ten, in ns.
    low: i32,
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

    /// Pixels below the top of the field.
    fn y(self, ns: f64) -> f64 {
        let part = (ns.log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        HEIGHT * (1.0 - part)
    }
}

/// Pixels right of the field's left end.
fn x(percentile: f64) -> f64 {
    let nines = |percentile: f64| (100.0 / (100.0 - percentile)).log10();
    WIDTH * nines(percentile) / nines(MARKS[MARKS.len() - 1])
}

/// Percentiles within the plot, and their latencies in ns.
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
            r#"<polyline points="{}" fill="none" stroke="{}" stroke-width="2.5" stroke-linejoin="round"/>"#,
            line.join(" "),
            colour(outcome.scheme)
        );
    }
}
