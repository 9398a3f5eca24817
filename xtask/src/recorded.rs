//! The release build repeats the runs that the debug build recorded: `crates/sim/tests/recorded.txt` has
//! a line `NAME SEED HASH` for each run, and the hash covers every datagram in it.

use std::path::Path;
use std::process::Command;

use crate::run::command;

/// Whether every recorded run is the same in the release build.
pub(crate) fn holds(starling: &Path) -> bool {
    let path = crate::root().join("crates/sim/tests/recorded.txt");
    let recorded = std::fs::read_to_string(path).unwrap_or_default();
    eprintln!("\n{} recorded runs", recorded.lines().count());
    let differ = |line: &&str| !is_as_recorded(starling, line);
    let differing: Vec<&str> = recorded.lines().filter(differ).collect();
    for line in &differing {
        eprintln!("not as recorded: {line}");
    }
    differing.is_empty() && !recorded.is_empty()
}

fn is_as_recorded(starling: &Path, line: &str) -> bool {
    let [name, seed, hash] = line.split(' ').collect::<Vec<_>>()[..] else {
        return false;
    };
    let mut run = run(starling, name, seed);
    let output = run.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).contains(&format!("trace {hash}"))
}

/// The command that repeats a recorded run.
fn run(starling: &Path, name: &str, seed: &str) -> Command {
    let mut run = command(starling, &["sim", "run", name, "--seed", seed]);
    if name != "random" {
        run.args(["--quick", "--nodes", "12", "--svg"]);
        run.arg(crate::target());
    }
    run
}
