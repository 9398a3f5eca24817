//! Where the time of a call goes, as SVG: client and server as two lanes, time from left to right.
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

/// Width of the field of time, and what stands left of it, in pixels.
const WIDTH: f64 = 820.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 40.0;

/// Height of a lane, and of a device's two with what stands around them.
const LANE: f64 = 26.0;
const PLANE: f64 = 120.0;

/// Height of the title and the legend.
const TOP: f64 = 84.0;

/// Different in lightness as well as in hue.
fn colour(kind: Kind) -> &'static str {
    match kind {
        Kind::Marshal => "#c98a1b",
        Kind::Transport => "#0b5cad",
        Kind::Io => "#6fb1e8",
        Kind::Way => "#dddddd",
        Kind::Dispatch => "#8d5fc2",
        Kind::Handler => "#17a05d",
    }
}

/// The picture of the suite's rows.
pub(super) fn svg(rows: &[Row]) -> String {
    let schemes: Vec<&[Row]> = table::groups(rows)
        .filter(|group| group.iter().any(|row| stage_of(row).is_some()))
        .collect();
    let (width, height) = (LEFT + WIDTH + RIGHT, TOP + PLANE * schemes.len() as f64);
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"
 width="{width}" height="{height}" font-family="system-ui, sans-serif" font-size="12" fill="#222">
<rect width="100%" height="100%" fill="#fff"/>
<text x="20" y="26" font-size="17" font-weight="bold">Where the time of a small read goes</text>"##,
    );
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
        let y = TOP + PLANE * index as f64;
        let _ = writeln!(svg, r#"<g transform="translate(0 {y})">"#);
        scheme(&mut svg, rows);
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

/// One device: both lanes, and the axis.
fn scheme(svg: &mut String, rows: &[Row]) {
    let total: f64 = rows.iter().filter_map(stage_of).map(|(_, ns)| ns).sum();
    let scale = WIDTH / total.max(1.0);
    let name = format!("{} {}", rows[0].scheme, rows[0].case);
    let _ = writeln!(
        svg,
        r#"<text x="20" y="{}" font-size="14" font-weight="bold">{}</text>"#,
        LANE,
        name.trim_end()
    );
    for (side, text) in [(Side::Client, "client"), (Side::Server, "server")] {
        let _ = writeln!(
            svg,
            r#"<text x="{}" y="{}" text-anchor="end">{text}</text>"#,
            LEFT - 10.0,
            lane(side) + LANE * 0.68,
        );
    }
    let mut x = LEFT;
    for (stage, ns) in rows.iter().filter_map(stage_of) {
        let width = ns * scale;
        let (y, height) = match stage.side() {
            Some(side) => (lane(side), LANE),
            None => (lane(Side::Client), 2.0 * LANE + 4.0),
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
    let below = lane(Side::Server) + LANE + 16.0;
    let _ = writeln!(
        svg,
        r#"<text x="{LEFT}" y="{below}">0</text><text x="{x}" y="{below}" text-anchor="end">{}</text>"#,
        table::human(Metric::StagesSum, total)
    );
}

/// The top of a lane, below that of its device.
fn lane(side: Side) -> f64 {
    match side {
        Side::Client => 8.0,
        Side::Server => 12.0 + LANE,
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
        let blocks: Vec<(f64, f64)> = svg
            .lines()
            .filter(|line| line.contains("<title>"))
            .map(|line| (number(line, " x="), number(line, " width=")))
            .collect();
        assert_eq!(blocks.len(), Stage::ALL.len());
        for pair in blocks.windows(2) {
            assert!((pair[0].0 + pair[0].1 - pair[1].0).abs() < 0.2, "{pair:?}");
        }
        let last = blocks[blocks.len() - 1];
        assert!((last.0 + last.1 - LEFT - WIDTH).abs() < 0.2);
        assert!(svg.contains("1.80 us"), "the axis ends with the sum");
    }

    fn number(line: &str, key: &str) -> f64 {
        let rest = &line[line.find(key).unwrap() + key.len() + 1..];
        rest[..rest.find('"').unwrap()].parse().unwrap()
    }
}
