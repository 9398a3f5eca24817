//! `cargo xtask instructions`: the instructions of a small RPC, counted and compared.
//!
//! Time on a shared machine is noise; instructions are not. `valgrind --tool=callgrind` counts
//! those of whole runs, and the difference of two runs of different length is the cost of an RPC.
//! The command compares the counts with those in SPECIFICATION.md, between the two markers, so that a
//! change that makes an RPC more expensive must also change the document.

use std::process::{Command, ExitCode, Stdio};

use crate::run::{cargo, command, succeeds};

/// The command, as one types it.
pub(crate) const COMMAND: &str = "cargo xtask instructions";

/// The file with the recorded counts, one row `| name | count |` for each case.
const FILE: &str = "SPECIFICATION.md";
const BEGIN: &str = "<!-- instructions: begin -->";
const END: &str = "<!-- instructions: end -->";

/// The cases: the name in the table, and the arguments of the program whose instructions are counted.
const CASES: [(&str, [&str; 2]); 3] = [
    ("60 in flight, congestion control on", ["60", "on"]),
    ("60 in flight, congestion control off", ["60", "off"]),
    ("1 in flight, congestion control on", ["1", "on"]),
];

/// The cases of calls by generated code, with what users put around them, as docs/notes/interceptors.md has
/// them: the name, and the argument.
const CALLS: [(&str, &str); 10] = [
    ("a call", "plain"),
    ("with one interceptor at the client", "client-1"),
    ("with two at the client", "client-2"),
    ("with one at the server", "server-1"),
    ("with two at the server", "server-2"),
    ("with a pair of metadata", "metadata"),
    ("with a token, sent and checked", "token"),
    ("an item of a stream", "items"),
    ("seen by an interceptor of the client", "items-client"),
    ("seen by an interceptor of the server", "items-server"),
];

/// RPCs in the shorter and in the longer run.
const RPCS: [u64; 2] = [2_000, 12_000];

/// A count may grow by this much, in percent, before it has to be explained.
const TOLERANCE: u64 = 3;

/// The result of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    Skipped,
}

/// Counts, prints and compares.
pub(crate) fn run() -> ExitCode {
    match compare() {
        Outcome::Passed | Outcome::Skipped => ExitCode::SUCCESS,
        Outcome::Failed => ExitCode::FAILURE,
    }
}

/// Counts and prints those of calls by generated code.
pub(crate) fn run_calls() -> ExitCode {
    if !has_valgrind() {
        println!("skipped: instructions needs valgrind");
        return ExitCode::SUCCESS;
    }
    if !build("call-instructions") {
        return ExitCode::FAILURE;
    }
    println!("instructions of a call of 32 bytes over shm, client and server together");
    for (name, case) in CALLS {
        let Some(counted) = count_each("call-instructions", &[case]) else {
            eprintln!("FAILED: {name}: callgrind counted nothing");
            return ExitCode::FAILURE;
        };
        println!("{}", row(name, counted));
    }
    ExitCode::SUCCESS
}

/// The same as a step of a longer check.
pub(crate) fn compare() -> Outcome {
    if !has_valgrind() {
        println!("skipped: instructions needs valgrind");
        return Outcome::Skipped;
    }
    if !build("instructions") {
        return Outcome::Failed;
    }
    let file = std::fs::read_to_string(crate::root().join(FILE)).unwrap_or_default();
    let recorded = recorded(&file);
    let mut good = true;
    println!("instructions of a small RPC over shm, client and server together");
    for (name, arguments) in CASES {
        let Some(counted) = count_rpc(arguments) else {
            eprintln!("FAILED: {name}: callgrind counted nothing");
            good = false;
            continue;
        };
        let before = recorded.iter().find(|(case, _)| case == name);
        let before = before.map(|(_, count)| *count);
        println!("{}", row(name, counted));
        if let Some(why) = complaint(counted, before) {
            eprintln!("FAILED: {name}: {why}");
            good = false;
        }
    }
    if good {
        Outcome::Passed
    } else {
        eprintln!("if that is as it should be, put the rows above into {FILE}, and why");
        Outcome::Failed
    }
}

/// The counts of all cases; `None` if they cannot be counted here.
pub(crate) fn count_all() -> Option<Vec<(&'static str, u64)>> {
    if !has_valgrind() || !build("instructions") {
        return None;
    }
    let counts = CASES.map(|(name, arguments)| Some((name, count_rpc(arguments)?)));
    counts.into_iter().collect()
}

/// Builds a program whose instructions are counted.
fn build(program: &str) -> bool {
    succeeds(&mut cargo(&[
        "build",
        "--release",
        "--package",
        "starling-bench",
        "--bin",
        program,
    ]))
}

fn row(name: &str, count: u64) -> String {
    format!("| {name} | {count} |")
}

/// The fault of a count, if it has one.
fn complaint(counted: u64, recorded: Option<u64>) -> Option<String> {
    let Some(recorded) = recorded else {
        return Some(format!("{FILE} has no row for it"));
    };
    let most = recorded + recorded * TOLERANCE / 100;
    (counted > most).then(|| format!("{counted} instructions, {FILE} says {recorded}"))
}

/// The rows between the markers.
fn recorded(file: &str) -> Vec<(String, u64)> {
    let table = file
        .split_once(BEGIN)
        .and_then(|(_, rest)| rest.split_once(END))
        .map_or("", |(table, _)| table);
    table
        .lines()
        .filter_map(|line| {
            let mut cells = line.trim().trim_matches('|').split('|').map(str::trim);
            let name = cells.next()?.to_owned();
            let count = cells.next()?.replace(',', "").parse().ok()?;
            Some((name, count))
        })
        .collect()
}

fn has_valgrind() -> bool {
    Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Instructions of one RPC.
fn count_rpc(arguments: [&str; 2]) -> Option<u64> {
    count_each("instructions", &arguments)
}

/// Instructions of each of the things that a program does, from runs that do it often and less often.
fn count_each(program: &str, arguments: &[&str]) -> Option<u64> {
    let [few, many] = RPCS.map(|times| count_run(program, times, arguments));
    Some((many? - few?) / (RPCS[1] - RPCS[0]))
}

/// Instructions of a whole run.
fn count_run(program: &str, times: u64, arguments: &[&str]) -> Option<u64> {
    let program = crate::target().join("release").join(program);
    let options = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];
    let output = command("valgrind", &options)
        .arg(program)
        .arg(times.to_string())
        .args(arguments)
        .output()
        .ok()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let count = said
        .lines()
        .find_map(|line| line.split_once("Collected :"))
        .and_then(|(_, count)| count.trim().parse().ok());
    if !output.status.success() || count.is_none() {
        eprintln!("{said}");
        return None;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_counts_are_found_between_the_markers() {
        let file = format!(
            "| x | 1 |\n{BEGIN}\n\n| case | instructions |\n|---|---:|\n| a, b | 1,234 |\n\
             | c | 5 |\n{END}\n| y | 2 |\n"
        );
        let expected = vec![("a, b".to_owned(), 1234), ("c".to_owned(), 5)];
        assert_eq!(recorded(&file), expected);
        assert_eq!(recorded("no table"), Vec::new());
        assert_eq!(recorded(&format!("{END}{BEGIN}")), Vec::new());
    }

    #[test]
    fn growth_beyond_the_tolerance_is_a_failure() {
        assert_eq!(complaint(1030, Some(1000)), None);
        assert!(complaint(1031, Some(1000)).is_some());
        assert_eq!(complaint(1, Some(1000)), None);
        assert!(complaint(1, None).is_some());
    }

    #[test]
    fn every_case_is_recorded() {
        let file = std::fs::read_to_string(crate::root().join(FILE)).expect("the file is there");
        let names: Vec<String> = recorded(&file).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, CASES.map(|(name, _)| name.to_owned()));
    }
}
