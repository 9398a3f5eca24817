//! `starling bench` from outside: every suite runs and prints rows with the documented keys.

use std::collections::BTreeSet;
use std::process::{Command, Output};

use serde_json::Value;

fn starling(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_starling"))
        .args(arguments)
        .output()
        .expect("the binary was built for this test")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Each suite has a row of each of these systems and schemes.
const ROWS: &[(&str, &str, &str)] = &[
    ("rtt", "raw", "udp"),
    ("rtt", "raw", "shm"),
    ("rtt", "tonic", "grpc"),
    ("rate", "raw", "udp"),
    ("rate", "raw", "shm"),
    ("rate", "tonic", "grpc"),
    ("large", "tcp", "tcp"),
    ("large", "memcpy", "memory"),
    ("rtt", "starling", "udp"),
    ("rtt", "starling", "shm"),
    ("rtt", "starling", "tcp"),
    ("rate", "starling", "tcp"),
    ("large", "starling", "tcp"),
    ("rate", "starling", "udp"),
    ("rate", "starling", "shm"),
    ("large", "starling", "udp"),
    ("large", "starling", "shm"),
    ("sessions", "starling", "udp"),
    ("sessions", "starling", "shm"),
    ("factors", "starling", "udp"),
    ("factors", "starling", "shm"),
    ("breakdown", "starling", "udp"),
    ("breakdown", "starling", "shm"),
    ("dispatch", "starling", "shm"),
    ("interference", "starling", "udp"),
    ("interference", "starling", "shm"),
    ("channel", "channel", "udp"),
    ("channel", "channel", "shm"),
    ("channel", "local", "udp"),
    ("channel", "local", "shm"),
    ("channel", "mutex", "udp"),
    ("channel", "mutex", "shm"),
    ("channel", "endpoint", "udp"),
    ("channel", "endpoint", "shm"),
    ("channel", "tonic", "grpc"),
    ("streams", "channel", "udp"),
    ("streams", "channel", "shm"),
    ("streams", "tonic", "grpc"),
    ("slo", "ideal", "model"),
    ("slo", "starling", "udp"),
    ("slo", "starling", "shm"),
];

#[test]
fn every_suite_runs_and_prints_rows_with_the_documented_keys() {
    let short = ["--json", "--seconds", "0.002", "--repetitions", "1"];
    let run = |what: &[&str]| {
        let output = starling(&[&["bench"], what, &short].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let quick = "rtt rate large sessions factors breakdown dispatch interference channel streams";
    let quick: Vec<&str> = quick.split(' ').collect();
    // The other cases of `slo` work in the same way and take minutes.
    let some = ["ideal", "starling/shm/gev", "starling/udp/fixed/1x16"];
    let slo = some.map(|only| ["--only", only]).concat();
    let lines = run(&quick) + &run(&[&["slo"], &slo[..]].concat());
    let mut seen = BTreeSet::new();
    let mut names = BTreeSet::new();
    for line in lines.lines() {
        let row: Value = serde_json::from_str(line).expect("each line is one JSON object");
        let keys: BTreeSet<&str> = row
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let expected = [
            "case",
            "max",
            "metric",
            "min",
            "repetitions",
            "scheme",
            "suite",
            "system",
            "unit",
            "value",
        ];
        assert_eq!(keys, BTreeSet::from(expected), "{line}");
        let [value, min, max] = ["value", "min", "max"].map(|key| row[key].as_f64().unwrap());
        assert!(min <= value && value <= max, "{line}");
        // A stage may take less time than the stamps around it. In a short run of `slo`, all requests
        // may be late, or take less processor time than the kernel counts.
        let may_be_nothing = row["suite"] == "breakdown" || row["suite"] == "slo";
        assert!(value > 0.0 || may_be_nothing, "{line}");
        let name = |key: &str| row[key].as_str().unwrap().to_string();
        let row_name = ["suite", "system", "scheme", "case", "metric"].map(name);
        assert!(names.insert(row_name), "a second row of this name: {line}");
        seen.insert((name("suite"), name("system"), name("scheme")));
    }
    for &(suite, system, scheme) in ROWS {
        let row = (suite.to_string(), system.to_string(), scheme.to_string());
        assert!(seen.contains(&row), "no row of {row:?} in {seen:?}");
    }
}

#[test]
fn the_list_names_every_benchmark() {
    let output = starling(&["bench", "--list"]);
    assert!(output.status.success());
    let list = text(&output.stdout);
    for name in [
        "rtt:",
        "rate:",
        "large:",
        "raw/udp",
        "tonic/grpc",
        "memcpy/memory 8MiB",
        "tcp/tcp 64KiB blocking",
        "starling/udp batch=11",
        "starling/shm sessions=20000 server",
        "starling/shm off=timely_bypass",
        "channel/udp current-thread tasks=1024",
        "tonic/grpc multi-thread tasks=128",
        "channel/shm idle-streams=10000 server",
    ] {
        assert!(list.contains(name), "{name} is not in\n{list}");
    }
}

#[test]
fn the_table_of_slo_has_a_limit_and_its_picture_has_the_ideal() {
    let file = format!("starling-slo-{}.svg", std::process::id());
    let file = std::env::temp_dir().join(file);
    let output = starling(&[
        "bench",
        "slo",
        "--quick",
        "--only",
        "ideal/model/gev",
        "--only",
        "starling/shm/gev",
        "--svg",
        file.to_str().unwrap(),
    ]);
    let picture = std::fs::read_to_string(&file);
    // If the file is missing, an assertion below fails.
    let _ = std::fs::remove_file(&file);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    for column in ["throughput_under_slo", "of the ideal", "held longer"] {
        assert!(table.contains(column), "{table}");
    }
    assert!(!table.contains("p99 at"), "{table}");
    let picture = picture.expect("the command said it wrote the picture");
    assert_eq!(picture.matches("<polyline").count(), 4, "{picture}");
    for name in [">ideal<", ">1x16<", ">4x4<", ">16x1<"] {
        assert!(picture.contains(name), "{name} is not in the picture");
    }
}

#[test]
fn one_file_for_two_pictures_is_a_usage_error() {
    let output = starling(&["bench", "breakdown", "slo", "--svg", "x.svg"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("run one at a time"));
}

#[test]
fn an_impossible_selection_or_picture_is_a_usage_error_before_any_measurement() {
    for (arguments, expected) in [
        (&["rtt", "--only", "starling/rdma"][..], "it has raw/udp"),
        (&["rtt", "--svg", "x.svg"], "leave it out"),
        (
            &["policies", "--only", "managed/udp/null", "--svg", "x.svg"],
            "with its case `live`",
        ),
        (&["slo", "--svg", "no-such-directory/x.svg"], "that exists"),
        (&["slo", "--svg", "."], "that exists"),
    ] {
        let output = starling(&[&["bench"], arguments].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    }
}

#[test]
fn a_breakdown_has_a_row_for_every_stage_their_sum_and_a_picture() {
    let file = format!("starling-breakdown-{}.svg", std::process::id());
    let file = std::env::temp_dir().join(file);
    let output = starling(&[
        "bench",
        "breakdown",
        "--json",
        "--seconds",
        "0.02",
        "--repetitions",
        "1",
        "--svg",
        file.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for scheme in ["udp", "shm"] {
        check_stages(&text(&output.stdout), scheme);
    }
    let picture = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(picture.contains("server handler"), "{picture}");
}

#[test]
fn live_changes_have_a_time_line_as_rows_and_as_a_picture() {
    let file = format!("starling-policies-{}.svg", std::process::id());
    let file = std::env::temp_dir().join(file);
    let output = starling(&[
        "bench",
        "policies",
        "--quick",
        "--json",
        "--only",
        "managed/udp/live",
        "--svg",
        file.to_str().unwrap(),
    ]);
    let picture = std::fs::read_to_string(&file);
    // If the file is missing, an assertion below fails.
    let _ = std::fs::remove_file(&file);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows: Vec<Value> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("each line is one JSON object"))
        .collect();
    let of = |case: &str, metric: &str| {
        let such = rows
            .iter()
            .filter(|row| row["case"] == case && row["metric"] == metric);
        such.collect::<Vec<_>>()
    };
    assert_eq!(of("live", "longer gap").len(), 1);
    for kind in ["attach", "configure", "upgrade", "detach"] {
        let case = format!("live {kind}");
        assert!(!of(&case, "took").is_empty(), "{case}");
        assert_eq!(of(&case, "took").len(), of(&case, "gap").len(), "{case}");
    }
    let [changed, other] = ["live changed", "live other"].map(|case| of(case, "rate"));
    assert_eq!(changed.len(), other.len());
    for (at, row) in changed.iter().enumerate() {
        assert_eq!(row["at_ms"], at as f64 * 10.0, "{row}");
    }
    let calls = |rows: &[&Value]| rows.iter().map(|row| row["value"].as_f64().unwrap()).sum();
    let sums: [f64; 2] = [calls(&changed), calls(&other)];
    assert!(sums.iter().all(|calls| *calls > 0.0), "{sums:?}");
    let picture = picture.expect("the command was asked for the picture");
    assert!(picture.contains("class=\"mark\"") && picture.contains(">other<"));
}

#[test]
fn an_access_control_of_envoy_refuses_who_is_to_be_refused() {
    // Each answer is checked by the benchmark.
    let output = starling(&["bench", "policies", "--quick", "--json", "--only", "tonic"]);
    if text(&output.stderr).contains("nothing in suite") {
        let test = "an_access_control_of_envoy_refuses_who_is_to_be_refused";
        println!("skipped: {test} needs `envoy` on the path or in STARLING_ENVOY");
        return;
    }
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows = text(&output.stdout);
    for metric in ["rate", "of plain", "cost"] {
        let has = |line: &str| {
            let row: Value = serde_json::from_str(line).expect("each line is one JSON object");
            row["case"] == "proxies=2 access-control" && row["metric"] == metric
        };
        assert!(rows.lines().any(has), "{metric}: {rows}");
    }
}

/// Checks that a device has a row for each stage, one for their sum, and one for the whole call.
fn check_stages(lines: &str, scheme: &str) {
    let mut stages = 0;
    let mut added = 0.0;
    let (mut sum, mut round_trip) = (None, None);
    for line in lines.lines() {
        let row: Value = serde_json::from_str(line).expect("one JSON object a line");
        if row["scheme"] != scheme || row["system"] != "starling" {
            continue;
        }
        let value = row["value"].as_f64().unwrap();
        match row["metric"].as_str().unwrap() {
            "sum of stages" => sum = Some(value),
            "round trip" => round_trip = Some(value),
            "stamps" => assert!(value >= 0.0, "{line}"),
            _ => {
                stages += 1;
                added += value;
            }
        }
    }
    assert_eq!(stages, 18, "{scheme}");
    let sum = sum.expect("there is a sum");
    assert!(
        sum > 0.0 && (sum - added).abs() < 2.0,
        "{added} is not {sum}"
    );
    let round_trip = round_trip.expect("there is a round trip");
    assert!(round_trip > 0.0, "{scheme}: {round_trip}");
}

#[test]
fn a_breakdown_over_af_xdp_has_the_same_stages() {
    if let Err(problem) = starling_bench::veth::is_possible() {
        let test = "a_breakdown_over_af_xdp_has_the_same_stages";
        println!("skipped: {test} needs root, `ip` of iproute2 and AF_XDP ({problem})");
        return;
    }
    let output = starling(&[
        "bench",
        "breakdown",
        "--only",
        "starling/xdp",
        "--json",
        "--seconds",
        "0.02",
        "--repetitions",
        "1",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    check_stages(&text(&output.stdout), "xdp");
}

#[test]
fn a_wrong_command_line_is_status_2_and_lists_the_suites() {
    let output = starling(&["bench", "speed"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains(
        "rtt, rate, large, sessions, factors, breakdown, dispatch, slo, interference, channel, streams"
    ));
    assert_eq!(starling(&["bench"]).status.code(), Some(2));
    assert_eq!(
        starling(&["bench", "rtt", "--seconds", "-1"]).status.code(),
        Some(2)
    );
    assert_eq!(
        starling(&["bench", "rtt", "--repetitions", "0"])
            .status
            .code(),
        Some(2)
    );
    assert_eq!(starling(&["frobnicate"]).status.code(), Some(2));
}

#[test]
fn a_selection_without_benchmarks_is_status_2_and_lists_the_benchmarks() {
    let output = starling(&["bench", "rtt", "--only", "nobody"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("raw/udp"));
}

#[test]
fn an_unknown_role_is_an_error() {
    let output = starling(&["role", "nobody"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no role `nobody`"));
}

#[test]
fn completions_name_the_subcommands() {
    for shell in ["bash", "zsh", "fish"] {
        let output = starling(&["completions", shell]);
        assert!(output.status.success());
        let script = text(&output.stdout);
        assert!(
            ["starling", "bench", "demo", "serve", "call"]
                .iter()
                .all(|name| script.contains(name)),
            "{shell}"
        );
    }
}
