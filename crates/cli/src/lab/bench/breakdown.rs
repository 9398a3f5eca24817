//! The picture of the suite `breakdown`: the stages of a call along an axis of time, with a row of
//! bars for the client and one for the server.
//!
//! ```text
//!  client ▐▓▓░░▌                                 ▐░░▓▌
//!  server        ▐░░▓▓▒▒░░▌
//!         0 ────────────── time ────────────────────▶
//! ```

use std::fmt::Write as _;

use starling_bench::breakdown::stage::{Kind, Side, Stage};
use starling_bench::table;
use starling_bench::{Metric, Row};

use crate::lab::svg;

/// Width of the axis of time, and of the margins beside it, in pixels.
const WIDTH: f64 = 820.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 40.0;

/// Height of a row of bars, and of a device: its two rows and its axis.
const ROW: f64 = 26.0;
const DEVICE: f64 = 120.0;

/// Height of the title and the legend.
const TOP: f64 = 84.0;

fn colour(kind: Kind) -> &'static str {
    match kind {
        Kind::Marshal => svg::AMBER,
        Kind::Transport => svg::BLUE,
        Kind::Io => "#6fb1e8",
        Kind::InFlight => "#dddddd",
        Kind::Dispatch => svg::PURPLE,
        Kind::Handler => svg::GREEN,
    }
}

/// The picture of these figures, one device below the other.
pub(super) fn svg(rows: &[Row]) -> String {
    let schemes: Vec<&[Row]> = table::groups(rows)
        .filter(|group| group.iter().any(|row| stage_of(row).is_some()))
        .collect();
    let height = TOP + DEVICE * schemes.len() as f64;
    let mut svg = svg::open(LEFT + WIDTH + RIGHT, height);
    svg += &svg::title((20.0, 26.0), 17, "Where the time of a small read goes");
    for (index, kind) in Kind::ALL.into_iter().enumerate() {
        let x = LEFT + 120.0 * index as f64;
        let _ = writeln!(
            svg,
            r#"<rect x="{x}" y="42" width="14" height="14" fill="{}"/><text x="{}" y="54">{}</text>"#,
            colour(kind),
            x + 20.0,
            kind.name()
        );
    }
    for (index, rows) in schemes.into_iter().enumerate() {
        let y = TOP + DEVICE * index as f64;
        let _ = writeln!(svg, r#"<g transform="translate(0 {y})">"#);
        device(&mut svg, rows);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn stage_of(row: &Row) -> Option<(Stage, f64)> {
    match row.metric {
        Metric::Stage(stage) => Some((stage, row.value)),
        _ => None,
    }
}

/// One device: the rows of client and server, and the axis.
fn device(svg: &mut String, rows: &[Row]) {
    let total: f64 = rows.iter().filter_map(stage_of).map(|(_, ns)| ns).sum();
    let scale = WIDTH / total.max(1.0);
    let name = format!("{} {}", rows[0].scheme, rows[0].case);
    let _ = writeln!(
        svg,
        r#"<text x="20" y="{}" font-size="14" font-weight="bold">{}</text>"#,
        ROW,
        name.trim_end()
    );
    for (side, text) in [(Side::Client, "client"), (Side::Server, "server")] {
        let _ = writeln!(
            svg,
            r#"<text x="{}" y="{}" text-anchor="end">{text}</text>"#,
            LEFT - 10.0,
            top(side) + ROW * 0.68,
        );
    }
    let mut x = LEFT;
    for (stage, ns) in rows.iter().filter_map(stage_of) {
        let width = ns * scale;
        let (y, height) = match stage.side() {
            Some(side) => (top(side), ROW),
            None => (top(Side::Client), 2.0 * ROW + 4.0),
        };
        let _ = writeln!(
            svg,
            r##"<rect fill="{}" stroke="#fff" stroke-width="0.5"
 x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height}"><title>{}: {}</title></rect>"##,
            colour(stage.kind()),
            stage.name(),
            table::human(Metric::Stage(stage), ns)
        );
        x += width;
    }
    let below = top(Side::Server) + ROW + 16.0;
    let _ = writeln!(
        svg,
        r#"<text x="{LEFT}" y="{below}">0</text><text x="{x}" y="{below}" text-anchor="end">{}</text>"#,
        table::human(Metric::StagesSum, total)
    );
}

/// The distance of a row's top from the top of its device.
fn top(side: Side) -> f64 {
    match side {
        Side::Client => 8.0,
        Side::Server => 12.0 + ROW,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_is_drawn_where_the_one_before_it_ends() {
        let row = |metric, value| Row {
            suite: "breakdown",
            scheme: "udp",
            system: "starling",
            case: String::new(),
            metric,
            value,
            min: value,
            max: value,
            repetitions: 1,
        };
        let mut rows: Vec<Row> = Stage::ALL
            .map(|stage| row(Metric::Stage(stage), 100.0))
            .into();
        rows.push(row(Metric::RoundTrip, 1800.0));
        let svg = svg(&rows);
        let bars: Vec<(f64, f64)> = svg
            .lines()
            .filter(|line| line.contains("<title>"))
            .map(|line| (number(line, " x="), number(line, " width=")))
            .collect();
        assert_eq!(bars.len(), Stage::ALL.len());
        for pair in bars.windows(2) {
            assert!((pair[0].0 + pair[0].1 - pair[1].0).abs() < 0.2, "{pair:?}");
        }
        let last = bars[bars.len() - 1];
        assert!((last.0 + last.1 - LEFT - WIDTH).abs() < 0.2);
        assert!(svg.contains("1.80 us"), "the axis ends with the sum");
    }

    fn number(line: &str, key: &str) -> f64 {
        let rest = &line[line.find(key).unwrap() + key.len() + 1..];
        rest[..rest.find('"').unwrap()].parse().unwrap()
    }
}
