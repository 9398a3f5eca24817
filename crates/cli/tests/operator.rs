//! The command as an operator installs it: without the feature `lab`.

mod common;

use std::process::Command;

/// Packages that only the feature `lab` may bring.
const LAB_PACKAGES: [&str; 4] = [
    "tonic",
    "starling-bench",
    "starling-bench-tonic",
    "starling-sim",
];

/// The names of the packages that the command depends on with these features.
fn packages(features: &[&str]) -> Vec<String> {
    let tree = ["tree", "--offline", "--package", "starling-cli"];
    let names = ["--edges", "normal", "--prefix", "none", "--format", "{p}"];
    let output = Command::new(env!("CARGO"))
        .args([&tree[..], &names, features].concat())
        .output()
        .expect("cargo runs this test");
    assert!(output.status.success(), "{}", common::text(&output.stderr));
    let tree = common::text(&output.stdout);
    let names = tree.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

#[test]
fn without_the_lab_the_command_has_no_tonic_simulator_or_benchmarks() {
    let operator = packages(&["--no-default-features"]);
    assert!(operator.contains(&"starling".to_owned()), "{operator:?}");
    let all = packages(&[]);
    for package in LAB_PACKAGES.map(str::to_owned) {
        assert!(!operator.contains(&package), "{package}");
        assert!(all.contains(&package), "{package} is not in the lab either");
    }
}

#[cfg(not(feature = "lab"))]
#[test]
fn a_subcommand_of_the_lab_says_how_to_get_it() {
    for name in ["bench", "sim", "demo"] {
        for more in [&[][..], &["--help"], &["rtt", "--only", "raw"]] {
            let output = common::run(&[&[name][..], more].concat());
            let error = common::text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{error}");
            assert!(error.contains(&format!("`starling {name}`")), "{error}");
            assert!(error.contains("cargo install --path crates/cli"), "{error}");
        }
    }
    let help = common::text(&common::run(&["--help"]).stdout);
    assert!(!help.contains("bench"), "{help}");
}
