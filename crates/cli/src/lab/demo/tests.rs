use starling_bench::kv::drive::PERCENTILES;
use starling_bench::kv::{RunFigures, Workload};

use super::outcome::Outcome;
use super::{plot, report, systems};

/// The outcomes of every system in every workload. All times of a system are multiplied by its
/// `slowness`.
fn outcomes(slowness: [u64; 6]) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for workload in Workload::YCSB {
        for (system, slowness) in systems().iter().zip(slowness) {
            outcomes.push(Outcome {
                scheme: system.scheme,
                system: system.name,
                workload,
                figures: RunFigures {
                    calls: 1000,
                    elapsed_ns: 1_000_000 * slowness,
                    client_cpu_ns: 600_000 * slowness,
                    latencies_ns: (1..=PERCENTILES.len() as u64)
                        .map(|step| 1000 * step * slowness)
                        .collect(),
                },
                server_cpu_ns: 400_000 * slowness,
            });
        }
    }
    outcomes
}

#[test]
fn the_table_compares_each_system_with_tonic_and_has_a_verdict() {
    let text = report::text(&outcomes([2, 1, 4, 20, 2, 1]), 1000, "a.svg".as_ref());
    let line = |system: &str| {
        let line = text.lines().find(|line| line.contains(system));
        line.unwrap_or_else(|| panic!("no {system} in\n{text}"))
            .to_string()
    };
    let udp = line("channel/udp");
    assert!(udp.starts_with("A         50% get, 50% put"), "{text}");
    assert!(udp.contains("500 k/s    x10"), "{text}");
    assert!(udp.contains("2.00 us    x10"), "{text}");
    assert!(!line("tonic/grpc").contains('x'), "{text}");
    assert!(text.contains("Every answer was right: 24000 calls"));
    assert!(text.contains("Starling beat tonic on every workload over udp and shm"));
    assert!(text.contains("ahead in 100 of 100 figures."));
    assert!(text.contains("a.svg"));
}

#[test]
fn the_verdict_names_the_figures_in_which_starling_is_behind() {
    let text = report::text(&outcomes([2, 30, 4, 20, 2, 2]), 1000, "a.svg".as_ref());
    assert!(text.contains("Starling did NOT beat tonic on every workload over udp and shm"));
    assert!(
        text.contains("ahead in 80 of 100 figures; not in"),
        "{text}"
    );
    assert!(text.contains("E on channel/shm: CPU/call x0.67"), "{text}");
}

#[test]
fn a_longer_tail_latency_alone_does_not_change_the_verdict() {
    let mut outcomes = outcomes([2, 1, 4, 20, 2, 1]);
    outcomes[0].figures.latencies_ns.fill(1_000_000_000);
    let text = report::text(&outcomes, 1000, "a.svg".as_ref());
    assert!(text.contains("Starling beat tonic on every workload over udp and shm"));
    assert!(text.contains("A on channel/udp: p99 x0.00"), "{text}");
}

#[test]
fn rows_have_the_documented_keys() {
    let text = report::json(&outcomes([2, 1, 4, 20, 2, 1]));
    assert_eq!(text.lines().count(), 24 * 6);
    for line in text.lines() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        let keys: Vec<&String> = row.as_object().unwrap().keys().collect();
        let expected = "case max metric min repetitions scheme suite system unit value";
        assert_eq!(keys, expected.split(' ').collect::<Vec<_>>());
    }
}

#[test]
fn the_plot_has_a_panel_for_each_workload_and_a_curve_for_each_system() {
    let svg = plot::svg(&outcomes([2, 1, 4, 2000, 1, 1]));
    assert_eq!(svg.matches("<polyline").count(), 24);
    for workload in Workload::YCSB {
        assert!(svg.contains(&format!("YCSB {workload}:")));
    }
    for label in [
        "channel/udp",
        "channel/shm",
        "tonic/grpc",
        "local/udp",
        "managed/udp",
        "stroke-dasharray",
        "99.99%",
        "1 us",
        "100 ms",
    ] {
        assert!(svg.contains(label), "{label} is not in\n{svg}");
    }
    // All points lie inside the fields, and every opening tag has a closing tag.
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
    assert!(!svg.contains("points=\"-") && !svg.contains(",-"));
    assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
}

#[test]
fn a_plot_of_no_outcomes_is_a_whole_picture() {
    let svg = plot::svg(&[]);
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
}
