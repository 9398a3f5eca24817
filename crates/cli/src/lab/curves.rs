//! Plots as SVG: curves over two axes, each linear or logarithmic, and marked moments. A page holds several plots.

use std::fmt::Write as _;

use starling_sim::scenario::Plot;

use crate::lab::svg::{self, escaped};

/// Size of the field, and of the margins around it, in pixels.
const FIELD: (f64, f64) = (560.0, 320.0);
const LEFT: f64 = 78.0;
const TOP: f64 = 48.0;
/// The legend stands right of the field.
const LEGEND: f64 = 190.0;
const BELOW: f64 = 56.0;

/// The colours of the curves, by their order.
const COLOURS: [&str; 6] = [
    svg::BLUE,
    svg::RED,
    svg::GREEN,
    svg::PURPLE,
    svg::AMBER,
    "#555555",
];

/// A curve of more points than this is thin.
const MANY: usize = 150;

/// Moments at which the same thing happened: a line across the field at each, and their name in the legend.
#[derive(Clone, Debug)]
pub(crate) struct Marks {
    pub(crate) name: String,
    /// On the horizontal axis.
    pub(crate) at: Vec<f64>,
}

/// One axis.
#[derive(Clone, Copy, Debug)]
struct Axis {
    low: f64,
    high: f64,
    log: bool,
}

impl Axis {
    /// The axis that shows all `values`: a logarithmic axis spans whole decades, a linear axis begins
    /// at zero.
    fn of(values: impl Iterator<Item = f64>, log: bool) -> Self {
        let finite = values.filter(|value| value.is_finite() && (!log || *value > 0.0));
        let (low, high) = finite.fold((f64::MAX, f64::MIN), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let (low, high) = if low > high { (1.0, 10.0) } else { (low, high) };
        if log {
            let low = 10f64.powf(low.log10().floor());
            let high = 10f64.powf(high.log10().ceil()).max(low * 10.0);
            Self { low, high, log }
        } else {
            let step = step(high.max(1e-9));
            Self {
                low: 0.0,
                high: (high / step).ceil() * step,
                log,
            }
        }
    }

    /// The position of a value on the axis, from 0 to 1.
    fn part(self, value: f64) -> f64 {
        if self.log {
            (value.max(self.low) / self.low).log10() / (self.high / self.low).log10()
        } else {
            (value - self.low) / (self.high - self.low)
        }
    }

    /// The values that have a grid line and a label.
    fn marks(self) -> Vec<f64> {
        if self.log {
            let decades = (self.high / self.low).log10().round() as i32;
            (0..=decades).map(|n| self.low * 10f64.powi(n)).collect()
        } else {
            let step = step(self.high);
            let count = (self.high / step).round() as i32;
            (0..=count).map(|n| f64::from(n) * step).collect()
        }
    }
}

/// A round distance between marks, so that an axis up to `high` has four to ten of them.
fn step(high: f64) -> f64 {
    let decade = 10f64.powf(high.log10().floor());
    match high / decade {
        share if share < 2.0 => decade / 5.0,
        share if share < 5.0 => decade / 2.0,
        _ => decade,
    }
}

fn label(value: f64) -> String {
    if value != 0.0 && (value.abs() < 0.001 || value.abs() >= 1e6) {
        format!("{value:.0e}")
    } else {
        format!("{}", (value * 1e4).round() / 1e4)
    }
}

/// Several plots, as [`svg`] and [`marked`] draw them, on one page, `columns` of them side by side.
pub(crate) fn page(plots: &[String], columns: usize) -> String {
    let wide = LEFT + FIELD.0 + LEGEND;
    let high = TOP + FIELD.1 + BELOW;
    let lines = plots.len().div_ceil(columns).max(1);
    let (all_wide, all_high) = (
        wide * columns.min(plots.len()).max(1) as f64,
        high * lines as f64,
    );
    let mut page = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {all_wide} {all_high}"
 width="{all_wide}" height="{all_high}">
"#
    );
    for (index, plot) in plots.iter().enumerate() {
        let x = wide * (index % columns) as f64;
        let y = high * (index / columns) as f64;
        let _ = write!(page, "<g transform=\"translate({x} {y})\">\n{plot}</g>\n");
    }
    page + "</svg>\n"
}

/// One plot.
pub(crate) fn svg(plot: &Plot) -> String {
    marked(plot, &[])
}

/// One plot in which moments are marked.
pub(crate) fn marked(plot: &Plot, marks: &[Marks]) -> String {
    let points = || plot.curves.iter().flat_map(|curve| &curve.points);
    let x = Axis::of(points().map(|point| point.0), plot.log.0);
    let y = Axis::of(points().map(|point| point.1), plot.log.1);
    let (width, height) = FIELD;
    let across = |value: f64| LEFT + width * x.part(value);
    let down = |value: f64| TOP + height * (1.0 - y.part(value));
    let (all_wide, all_high) = (LEFT + width + LEGEND, TOP + height + BELOW);
    let mut svg = svg::open(all_wide, all_high) + &svg::title((LEFT, 26.0), 16, &plot.title);
    let (right, bottom) = (LEFT + width, TOP + height);
    for mark in x.marks() {
        let _ = writeln!(
            svg,
            r##"<path d="M{0:.1} {TOP}V{bottom}" stroke="#eee"/>
<text x="{0:.1}" y="{1}" text-anchor="middle">{2}</text>"##,
            across(mark),
            bottom + 18.0,
            label(mark)
        );
    }
    for mark in y.marks() {
        let _ = writeln!(
            svg,
            r##"<path d="M{LEFT} {0:.1}H{right}" stroke="#ddd"/>
<text x="{1}" y="{2:.1}" text-anchor="end">{3}</text>"##,
            down(mark),
            LEFT - 8.0,
            down(mark) + 4.0,
            label(mark)
        );
    }
    let _ = writeln!(
        svg,
        r##"<rect x="{LEFT}" y="{TOP}" width="{width}" height="{height}" fill="none" stroke="#888"/>
<text x="{}" y="{}" text-anchor="middle" fill="#555">{}</text>
<text transform="translate(20 {}) rotate(-90)" text-anchor="middle" fill="#555">{}</text>"##,
        LEFT + width / 2.0,
        bottom + 42.0,
        escaped(plot.x),
        TOP + height / 2.0,
        escaped(plot.y)
    );
    for (index, curve) in plot.curves.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let line: Vec<String> = curve
            .points
            .iter()
            .map(|&(a, b)| format!("{:.1},{:.1}", across(a), down(b)))
            .collect();
        let width = if line.len() > MANY { 1.0 } else { 2.5 };
        let _ = writeln!(
            svg,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"/>"#,
            line.join(" ")
        );
        legend(&mut svg, right, index, &curve.name, colour);
    }
    for (index, marks) in (plot.curves.len()..).zip(marks) {
        let colour = COLOURS[index % COLOURS.len()];
        for at in &marks.at {
            let _ = writeln!(
                svg,
                r#"<path class="mark" d="M{:.1} {TOP}V{bottom}" stroke="{colour}" stroke-dasharray="4 3"/>"#,
                across(*at)
            );
        }
        legend(&mut svg, right, index, &marks.name, colour);
    }
    svg.push_str("</svg>\n");
    svg
}

/// A line of the legend: a stroke and what it stands for.
fn legend(svg: &mut String, right: f64, index: usize, name: &str, colour: &str) {
    let at = TOP + 14.0 + 20.0 * index as f64;
    let _ = writeln!(
        svg,
        r#"<path d="M{} {at}h24" stroke="{colour}" stroke-width="3"/><text x="{}" y="{}">{}</text>"#,
        right + 14.0,
        right + 46.0,
        at + 4.0,
        escaped(name)
    );
}

#[cfg(test)]
mod tests {
    use starling_sim::scenario::Curve;

    use super::*;

    #[test]
    fn an_axis_spans_its_values_and_has_round_marks() {
        let log = Axis::of([0.0, 3.0, 450.0].into_iter(), true);
        assert_eq!((log.low, log.high), (1.0, 1000.0));
        assert_eq!(log.marks(), [1.0, 10.0, 100.0, 1000.0]);
        assert!((log.part(10.0) - 1.0 / 3.0).abs() < 1e-9);
        let linear = Axis::of([18.0, 96.3].into_iter(), false);
        assert_eq!(linear.high, 100.0);
        assert!(linear.marks().len() >= 4);
        let nothing = Axis::of(std::iter::empty(), false);
        assert!(nothing.high > 0.0);
    }

    #[test]
    fn a_plot_draws_each_curve_and_names_it() {
        let curve = |name: &str| Curve {
            name: name.into(),
            points: vec![(1.0, 2.0), (2.0, 50.0)],
        };
        let plot = Plot {
            title: "a < b".into(),
            x: "x",
            y: "y",
            log: (false, true),
            curves: vec![curve("one"), curve("two")],
        };
        let marks = Marks {
            name: "now".into(),
            at: vec![1.5, 2.0],
        };
        let picture = marked(&plot, &[marks]);
        assert_eq!(picture.matches("<polyline").count(), 2);
        assert_eq!(picture.matches("class=\"mark\"").count(), 2);
        assert!(picture.contains("M638.0 48V368"), "the axis ends with 2");
        assert!(
            [">two<", ">now<", "a &lt; b"]
                .iter()
                .all(|it| picture.contains(it))
        );
        assert!(!picture.contains("NaN"));
    }

    #[test]
    fn a_page_places_its_plots_row_by_row() {
        let plot = Plot {
            title: "t".into(),
            x: "x",
            y: "y",
            log: (false, false),
            curves: vec![],
        };
        let page = page(&vec![svg(&plot); 3], 2);
        let places: Vec<&str> = page
            .lines()
            .filter_map(|line| line.strip_prefix("<g transform=\"translate("))
            .collect();
        assert_eq!(places, ["0 0)\">", "828 0)\">", "0 424)\">"]);
        assert!(page.contains("viewBox=\"0 0 1656 848\""), "{page}");
    }
}
