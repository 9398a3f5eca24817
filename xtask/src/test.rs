//! `cargo xtask test`: everything that has to hold, from the quickest check to the slowest.
//!
//! A step that is not made of tests counts as one. What cannot run here is skipped by name and
//! counted: a test says `skipped: NAME needs WHAT` and returns.

use std::fmt;
use std::process::ExitCode;
use std::time::Instant;

use crate::run::{cargo, command, succeeds, succeeds_with_lines};
use crate::{instructions, recorded};

/// Packages with models, and the checker that runs them: loom tries all interleavings of few threads,
/// shuttle random ones of many.
const MODELS: [(&str, &str); 5] = [
    ("starling-handoff", "loom"),
    ("starling-io-shm", "loom"),
    ("starling-proto", "loom"),
    ("starling-share", "loom"),
    ("starling-share", "shuttle"),
];

/// The counts of all tests so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
    skipped: u64,
    /// The names of the tests and commands that failed, which the end repeats.
    failures: Vec<String>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            passed,
            failed,
            skipped,
            ..
        } = self;
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

impl Tally {
    pub(crate) fn count(&mut self, name: &str, success: bool) {
        if success {
            self.passed += 1;
        } else {
            eprintln!("FAILED: {name}");
            self.failed += 1;
            self.failures.push(name.to_owned());
        }
    }

    /// Counts something that cannot be done here, and says why.
    pub(crate) fn skip(&mut self, name: &str, needs: &str) {
        println!("skipped: {name} needs {needs}");
        self.skipped += 1;
    }

    /// Runs `cargo test` with these arguments and counts its tests one by one.
    pub(crate) fn cargo_test(&mut self, command: &mut std::process::Command) {
        let mut lines = TestOutput::default();
        let success = succeeds_with_lines(command, |line| {
            if lines.take(line) {
                println!("{line}");
            }
        });
        let found = lines.tally();
        self.passed += found.passed;
        self.failed += found.failed;
        self.skipped += found.skipped;
        self.failures.extend(found.failures);
        if !success && found.failed == 0 {
            // It did not compile, or a test took its process down.
            self.count("cargo test", false);
        }
    }

    /// Says what has failed, and the counts.
    pub(crate) fn end(&self, begin: Instant) -> ExitCode {
        eprintln!("\n{} seconds", begin.elapsed().as_secs());
        for name in &self.failures {
            println!("FAILED: {name}");
        }
        println!("{self}");
        match self.failed {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    }
}

/// Reads libtest's output with `--show-output`, in which the output of passed tests follows a line
/// `successes:`.
#[derive(Debug, Default)]
struct TestOutput {
    tally: Tally,
    skipped_themselves: u64,
    in_successes: bool,
}

impl TestOutput {
    /// Takes one line; whether it is worth showing.
    fn take(&mut self, line: &str) -> bool {
        match line {
            "successes:" => self.in_successes = true,
            "failures:" => self.in_successes = false,
            _ => {}
        }
        if let Some(name) = failed_test(line) {
            self.tally.failures.push(name.to_owned());
        }
        if let Some(result) = line.strip_prefix("test result: ") {
            self.in_successes = false;
            self.take_result(result);
            return true;
        }
        if line.starts_with("seeds: ") {
            // The seeds of random runs, so that a failure on another machine can be replayed here.
            return true;
        }
        if line.starts_with("skipped: ") {
            // To libtest, a test that skipped itself has passed.
            self.skipped_themselves += 1;
            return true;
        }
        let of_success = line.starts_with("test ") && line.ends_with(" ok");
        !(self.in_successes || of_success || line.is_empty() || line.starts_with("running "))
    }

    /// `ok. 3 passed; 0 failed; 0 ignored; ...`
    fn take_result(&mut self, result: &str) {
        for part in result.split(['.', ';']) {
            let mut words = part.split_whitespace();
            let count = words.next().and_then(|word| word.parse::<u64>().ok());
            match (count, words.next()) {
                (Some(count), Some("passed")) => self.tally.passed += count,
                (Some(count), Some("failed")) => self.tally.failed += count,
                (Some(count), Some("ignored")) => self.tally.skipped += count,
                _ => {}
            }
        }
    }

    fn tally(&self) -> Tally {
        Tally {
            passed: self.tally.passed.saturating_sub(self.skipped_themselves),
            skipped: self.tally.skipped + self.skipped_themselves,
            ..self.tally.clone()
        }
    }
}

/// The name in a line `test NAME ... FAILED`.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

pub(crate) fn run() -> ExitCode {
    let begin = Instant::now();
    let mut tally = Tally::default();
    tally.count("format", succeeds(&mut cargo(&["fmt", "--all", "--check"])));
    tally.count(
        "lints",
        succeeds(&mut cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "--deny=warnings",
        ])),
    );
    tally.cargo_test(&mut cargo(&[
        "test",
        "--workspace",
        "--no-fail-fast",
        "--",
        "--show-output",
    ]));
    // The command as an operator installs it: without benchmarks, tonic and the simulator.
    tally.cargo_test(&mut cargo(&[
        "test",
        "--package=starling-cli",
        "--no-default-features",
        "--bin=starling",
        "--test=operator",
        "--",
        "--show-output",
    ]));
    tally.count(
        "documentation",
        succeeds(cargo(&["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings")),
    );
    for (package, checker) in MODELS {
        model(&mut tally, package, checker);
    }
    match instructions::compare() {
        instructions::Outcome::Skipped => tally.skipped += 1,
        outcome => tally.count("instructions", outcome == instructions::Outcome::Passed),
    }
    release(&mut tally);
    tally.end(begin)
}

/// The models of a package.
fn model(tally: &mut Tally, package: &str, checker: &str) {
    // Another cfg builds everything anew: keep it apart from the usual build.
    let target = format!("target/{checker}");
    let mut test = cargo(&["test", "--release", "--lib", "--package", package]);
    test.args(["--target-dir", &target, checker, "--", "--show-output"]);
    test.env("RUSTFLAGS", format!("--cfg {checker}"));
    // A model takes seconds; what a release is built with would cost minutes.
    for (setting, value) in [("LTO", "off"), ("CODEGEN_UNITS", "16"), ("DEBUG", "false")] {
        test.env(format!("CARGO_PROFILE_RELEASE_{setting}"), value);
    }
    tally.cargo_test(&mut test);
}

/// The tests of the release build: the recorded runs, which must be the same in it; a hunt; and the
/// shortest run of every benchmark, which finds a benchmark that no longer works.
fn release(tally: &mut Tally) {
    let built = succeeds(&mut cargo(&["build", "--release", "--bin", "starling"]));
    tally.count("release build", built);
    if built {
        let recorded = recorded::holds(&crate::release_binary());
        tally.count("recorded runs", recorded);
        // Fresh seeds, which it prints.
        let hunt = &mut command(
            crate::release_binary(),
            &["sim", "hunt", "--minutes", "0.5"],
        );
        tally.count("hunt", succeeds(hunt));
        let bench = &mut command(crate::release_binary(), &["bench", "all", "--quick"]);
        tally.count("benchmarks", succeeds(bench));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally_of(output: &str) -> (Tally, Vec<&str>) {
        let mut lines = TestOutput::default();
        let shown = output.lines().filter(|line| lines.take(line)).collect();
        (lines.tally(), shown)
    }

    #[test]
    fn passed_failed_ignored_and_skipped_are_counted() {
        let (tally, shown) = tally_of(
            "
running 4 tests
test a ... ok
test b ... ok
test c ... FAILED
test d ... ignored

successes:

---- a stdout ----
skipped: a needs root
some output
seeds: 5 to 9, fresh

successes:
    a
    b

failures:

---- c stdout ----
it broke

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s
test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s
",
        );
        let expected = Tally {
            passed: 6,
            failed: 1,
            skipped: 2,
            failures: vec!["c".to_owned()],
        };
        assert_eq!(tally, expected);
        assert!(shown.contains(&"it broke") && shown.contains(&"test c ... FAILED"));
        assert!(shown.contains(&"skipped: a needs root"));
        assert!(shown.contains(&"seeds: 5 to 9, fresh"));
        assert!(!shown.contains(&"some output") && !shown.contains(&"test a ... ok"));
    }

    #[test]
    fn the_summary_is_one_line_for_programs() {
        let tally = Tally {
            passed: 1,
            failed: 2,
            skipped: 3,
            failures: Vec::new(),
        };
        assert_eq!(tally.to_string(), "1 passed, 2 failed, 3 skipped");
    }
}
