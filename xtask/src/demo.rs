//! `cargo xtask demo`: from a fresh clone to the demo's table.

use std::process::ExitCode;

use crate::run::{cargo, command, succeeds};

const PLAN: &str = "\
This builds the `starling` command and runs `starling demo`. It installs nothing: cargo fetches the
crates that Cargo.lock names, and everything that is built stays in the target folder. The first
build takes some minutes, the demo about one.";

/// The name of the plot in the target folder.
const SVG: &str = "demo.svg";

/// Runs it; `options` are `starling demo`'s own.
pub(crate) fn run(options: &[&str]) -> ExitCode {
    eprintln!("{PLAN}");
    let build = ["build", "--release", "--bin", "starling"];
    if !succeeds(&mut cargo(&build)) {
        return ExitCode::FAILURE;
    }
    let svg = crate::target().join(SVG);
    let mut demo = command(crate::release_binary(), &["demo"]);
    demo.args(options).arg("--svg").arg(svg);
    if succeeds(&mut demo) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
