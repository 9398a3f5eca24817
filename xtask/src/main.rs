//! `cargo xtask`: the project's own commands. Few dependencies, so that it builds in seconds.

mod bpf;
mod demo;
mod figures;
mod instructions;
mod planted;
#[cfg(test)]
mod readme;
mod recorded;
#[cfg(test)]
mod rules;
mod run;
mod sanitize;
mod soak;
mod test;
#[cfg(test)]
mod testing;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo xtask COMMAND

Commands:
  demo    Builds everything, then runs a key-value store over Starling and over gRPC side by side,
          checks every answer and prints a table; leaves a plot in target/demo.svg. The exit status
          is 0 only if every answer was right. With --quick, in a few seconds.
  test    Checks everything: format, lints, all tests, documentation, concurrency models, and a
          short run of every benchmark. Ends with the line `N passed, N failed, N skipped`;
          the exit status is 0 only if nothing failed.
  instructions [--calls]
          Counts the instructions of a small RPC (with valgrind) and compares them with those in
          SPECIFICATION.md. Part of `test`. With --calls, counts those of calls by generated code, with
          and without interceptors, and compares nothing.
  figures [--only PATTERN] [--repetitions N] | --check
          Measures what SPECIFICATION.md promises (figures/promises.toml), writes the results
          (figures/results.json) and the tables. It takes hours; keep the machine free of other
          work. --only: the promises whose id contains PATTERN. --repetitions: how often each
          command runs. --check measures nothing and compares the tables with the two files.
  planted [--only PATTERN] [--minutes N] [--by tests|hunt]
          Plants the bugs of xtask/planted in a copy of the protocol, one at a time, and looks whether
          its tests or a hunt find each.
  sanitize [--only miri|address|thread]
          Tests under tools that see undefined behaviour: miri, AddressSanitizer, ThreadSanitizer. What
          a host does not have is skipped by name. It takes an hour.
  soak [--minutes N | --hours N] [--seed S]
          Callers of all kinds share an endpoint while their threads are preempted at random: finds
          lost wake-ups. `test` runs it for some seconds. Beside them, a hunt, and the planted bugs.
  bpf     Builds the programs for the kernel, `*.bpf.c`, into the objects beside them, which are
          committed; `test` compares. Needs clang and libbpf's headers.
  help    Prints this.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["bpf"] => bpf::run(),
        ["demo"] => demo::run(&[]),
        ["demo", "--quick"] => demo::run(&["--quick"]),
        ["figures", ref options @ ..] => match figures::Options::parse(options) {
            Some(options) => figures::run(&options),
            None => usage(),
        },
        ["instructions"] => instructions::run(),
        ["instructions", "--calls"] => instructions::run_calls(),
        ["planted", ref options @ ..] => planted::run(options),
        ["sanitize", ref options @ ..] => sanitize::run(options),
        ["soak", ref options @ ..] => soak::run(options),
        ["test"] => test::run(),
        ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            ExitCode::SUCCESS
        }
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{HELP}");
    ExitCode::from(2)
}

/// The root of the workspace.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("this package is a folder of the workspace")
}

/// The folder for cargo's output.
fn target() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
    root().join(target)
}

/// The `starling` command of a release build.
fn release_binary() -> PathBuf {
    target().join("release").join("starling")
}
