//! Runs whose trace hashes are recorded in `recorded.txt`. A seed means the same run in every
//! build, debug and release, and today as when it was recorded.
//!
//! After a change that intends to change runs, record them anew: `STARLING_RECORD=1 cargo test -p
//! starling-sim --test recorded`.
//!
//! `overload` and `slo` are not among them: they draw with logarithms, whose last bit depends on
//! the machine.

use std::fmt::Write as _;
use std::path::Path;

use starling_sim::harness::{self, RunPlan};
use starling_sim::scenario::{self, Options};

/// Random runs, by their seeds.
const SEEDS: std::ops::Range<u64> = 0..60;
/// Named scenarios of the recorded runs. They run quick, with this number of nodes and this seed.
const NAMES: [&str; 6] = [
    "loss",
    "incast",
    "background",
    "all-to-all",
    "node-failure",
    "descheduled",
];
const NODES: u32 = 12;
const SEED: u64 = 7;

fn random(seed: u64) -> u64 {
    let report = harness::run(&RunPlan::from_seed(seed));
    report.map_or_else(|failure| panic!("{failure}"), |report| report.trace_hash)
}

fn named(name: &str) -> u64 {
    let options = Options {
        seed: SEED,
        nodes: Some(NODES),
        quick: true,
    };
    let named = scenario::find(name).expect("a scenario");
    let ran = scenario::run(&named, options, &mut |_| {});
    ran.unwrap_or_else(|broken| panic!("{broken}")).0.trace_hash
}

#[test]
fn runs_match_their_recorded_hashes() {
    let mut text = String::new();
    for seed in SEEDS {
        let hash = random(seed);
        // An earlier run in the same process has no effect.
        assert_eq!(hash, random(seed), "seed {seed}");
        let _ = writeln!(text, "random {seed} {hash:016x}");
    }
    for name in NAMES {
        let _ = writeln!(text, "{name} {SEED} {:016x}", named(name));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorded.txt");
    if std::env::var_os("STARLING_RECORD").is_some() {
        std::fs::write(&path, &text).expect("the source tree can be written");
    }
    let recorded = std::fs::read_to_string(&path).expect("the record is part of the project");
    for (now, then) in text.lines().zip(recorded.lines()) {
        assert_eq!(
            now, then,
            "a run differs from its record; see the head of this file"
        );
    }
    assert_eq!(text.lines().count(), recorded.lines().count());
}
