//! `starling demo --quick` from outside: every system gives right answers in every workload.

mod common;

use std::collections::BTreeMap;

use common::{run, text};
use serde_json::Value;

#[test]
fn every_system_answers_every_workload_right() {
    let svg = std::env::temp_dir().join(format!("starling-demo-{}.svg", std::process::id()));
    let path = svg.to_str().expect("the folder's name is text");
    let output = run(&["demo", "--quick", "--json", "--svg", path]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let picture = std::fs::read_to_string(&svg).unwrap();
    std::fs::remove_file(&svg).unwrap();
    assert_eq!(picture.matches("<polyline").count(), 24);

    let mut figures: BTreeMap<[String; 4], f64> = BTreeMap::new();
    for line in text(&output.stdout).lines() {
        let row: Value = serde_json::from_str(line).expect("each line is one JSON object");
        let name = |key: &str| row[key].as_str().expect(key).to_string();
        assert_eq!(name("suite"), "demo");
        let key = ["system", "scheme", "case", "metric"].map(name);
        figures.insert(key, row["value"].as_f64().unwrap());
    }
    let systems = [
        ("channel", "udp"),
        ("channel", "shm"),
        ("managed", "udp"),
        ("tonic", "grpc"),
        ("local", "udp"),
        ("local", "shm"),
    ];
    for (system, scheme) in systems {
        for workload in ["A", "B", "C", "E"] {
            for metric in ["rate", "p50", "p99", "p99.9", "right_answers"] {
                let key = [system, scheme, workload, metric].map(String::from);
                let value = figures.get(&key);
                assert!(
                    value.is_some_and(|value| *value > 0.0),
                    "{key:?}: {value:?}"
                );
            }
        }
    }
}

#[test]
fn a_plot_that_cannot_be_written_is_an_error_before_anything_runs() {
    let output = run(&["demo", "--quick", "--svg", "no-such-folder/plot.svg"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("no-such-folder/plot.svg: "), "{said}");
    assert!(!said.contains("loading"), "{said}");
}
