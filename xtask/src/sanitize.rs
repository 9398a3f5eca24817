//! `cargo xtask sanitize`: tests of the crates with `unsafe`, and of what they carry, under tools that see
//! undefined behaviour.
//!
//! | part | tool | sees | does not see |
//! |---|---|---|---|
//! | `miri` | an interpreter (nightly) | all undefined behaviour, also of references and bytes that nobody wrote | what makes system calls that it does not know |
//! | `address` | AddressSanitizer, by the project's own compiler | accesses out of bounds and after free, leaks | what other processes and the kernel do with shared memory |
//! | `thread` | ThreadSanitizer, with a standard library built for it (nightly) | data races of what happens to happen | that two mappings are the same memory: it goes by addresses |
//!
//! It is not part of `cargo xtask test`: it takes long, and tools that not everyone has.

use std::env::consts::ARCH;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::run::{cargo, command};
use crate::test::Tally;

/// The unit tests that miri runs: a package, and the tests if it does not run all. It cannot run what needs
///
/// - `starling-io`: the processor's time stamps (`rdtsc`), as all do that read the clock; sockets and the resolver;
/// - `starling-io-shm`: memory that has two mappings (`memfd_create`), so all of `ring`, `map` and `heap`;
/// - `starling-io-udp`: UDP sockets;
/// - `starling-io-xdp`: netlink and AF_XDP sockets, and their rings;
/// - `starling-netns`: other processes.
const MIRI: [(&str, &[&str]); 8] = [
    ("starling-handoff", &[]),
    (
        "starling-io",
        &["--skip", "clock", "--skip", "reactor", "--skip", "resolve"],
    ),
    ("starling-io-shm", &["handshake"]),
    ("starling-io-udp", &["staging", "sys::addr"]),
    ("starling-io-xdp", &["any_bytes", "a_vlan"]),
    ("starling-msgbuf", &[]),
    ("starling-prefetch", &[]),
    ("starling-stream", &[]),
];

/// The devices.
const DEVICES: [&str; 5] = [
    "starling-io-mem",
    "starling-io-shm",
    "starling-io-tcp",
    "starling-io-udp",
    "starling-io-xdp",
];

/// A test of the devices that measures memory. AddressSanitizer keeps what is freed for a while, to see who uses it.
const MEASURES_MEMORY: &str = "memory_for_large_frames_is_reused";

/// What has memory that threads share.
const THREADED: [&str; 4] = [
    "starling-handoff",
    "starling-io-mem",
    "starling-io-shm",
    "starling-share",
];

type Part = (&'static str, fn(&mut Tally));
const PARTS: [Part; 3] = [("miri", miri), ("address", address), ("thread", thread)];

pub(crate) fn run(arguments: &[&str]) -> ExitCode {
    let chosen = match *arguments {
        [] => None,
        ["--only", part] if PARTS.iter().any(|(name, _)| *name == part) => Some(part),
        _ => return crate::usage(),
    };
    let begin = Instant::now();
    let mut tally = Tally::default();
    for (name, part) in PARTS {
        if chosen.is_none_or(|chosen| chosen == name) {
            part(&mut tally);
        }
    }
    tally.end(begin)
}

fn miri(tally: &mut Tally) {
    let Some(nightly) = output(command("rustc", &["+nightly", "--print", "sysroot"])) else {
        return tally.skip("miri", "a nightly toolchain");
    };
    // Else it would fetch them.
    if !has_library_sources(&nightly) {
        return tally.skip("miri", "the component rust-src of the nightly toolchain");
    }
    if output(command("cargo", &["+nightly", "miri", "--version"])).is_none() {
        return tally.skip("miri", "the component miri of the nightly toolchain");
    }
    for (package, which) in MIRI {
        let mut test = command(
            "cargo",
            &["+nightly", "miri", "test", "--lib", "--package", package],
        );
        test.arg("--target-dir").arg(crate::target().join("miri"));
        test.args(["--", "--show-output"]);
        test.args(which);
        // Random inputs, few of them: it interprets.
        test.env("MIRIFLAGS", "-Zmiri-disable-isolation");
        test.env("BOLERO_RANDOM_ITERATIONS", "20");
        tally.cargo_test(&mut test);
    }
}

fn address(tally: &mut Tally) {
    let libraries = output(command("rustc", &["--print", "target-libdir"])).unwrap_or_default();
    if !has_file(Path::new(libraries.trim()), "_rt.asan.a") {
        return tally.skip("address", "a compiler with AddressSanitizer's runtime");
    }
    let mut test = cargo(&["test"]);
    // The compiler is the project's own, so its features are not to be had otherwise.
    test.env("RUSTC_BOOTSTRAP", "1");
    tally.skip(MEASURES_MEMORY, "an allocator that uses freed memory again");
    let which = ["--skip", MEASURES_MEMORY];
    sanitized(tally, test, "address", &DEVICES, &which);
}

fn thread(tally: &mut Tally) {
    let Some(nightly) = output(command("rustc", &["+nightly", "--print", "sysroot"])) else {
        return tally.skip("thread", "a nightly toolchain");
    };
    if !has_library_sources(&nightly) {
        return tally.skip("thread", "the component rust-src of the nightly toolchain");
    }
    let test = command("cargo", &["+nightly", "test", "-Zbuild-std"]);
    sanitized(tally, test, "thread", &THREADED, &[]);
}

/// Runs the tests of packages with a sanitizer, in a folder of its own.
fn sanitized(
    tally: &mut Tally,
    mut test: Command,
    sanitizer: &str,
    packages: &[&str],
    which: &[&str],
) {
    test.args(packages.iter().flat_map(|package| ["--package", package]));
    // With a target, build scripts and macros are built as usual.
    test.args([
        "--tests",
        "--no-fail-fast",
        "--target",
        &format!("{ARCH}-unknown-linux-gnu"),
    ]);
    test.arg("--target-dir")
        .arg(crate::target().join("sanitize"));
    test.args(["--", "--show-output"]).args(which);
    test.env("RUSTFLAGS", format!("-Zsanitizer={sanitizer}"));
    tally.cargo_test(&mut test);
}

/// What a command prints, if it succeeds.
fn output(mut command: Command) -> Option<String> {
    let output = command
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}

fn has_library_sources(sysroot: &str) -> bool {
    let sysroot = Path::new(sysroot.trim());
    sysroot.join("lib/rustlib/src/rust/library").is_dir()
}

fn has_file(folder: &Path, ending: &str) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .into_iter()
        .any(|entry| entry.file_name().to_string_lossy().ends_with(ending))
}
