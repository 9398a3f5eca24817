//! Which crate may know which: the map in ARCHITECTURE.md as a table, checked against the manifests.
//!
//! Only `[dependencies]` count: tests and build scripts may use what they like.

use std::path::{Path, PathBuf};

use super::{Violation, assert_none, workspace};

/// The folder of a package, and the packages of the workspace that it may depend on. A row stands
/// below the rows of all packages that it names, so there is no cycle.
const LAYERS: &[(&str, &[&str])] = &[
    // Leaves: each is a subject of its own.
    ("crates/compress", &[]),
    ("crates/msgbuf", &[]),
    ("crates/netns", &[]),
    ("crates/prefetch", &[]),
    ("xtask", &[]),
    ("crates/call", &["msgbuf"]),
    ("crates/io", &["msgbuf"]),
    ("crates/balance", &["call"]),
    ("crates/handoff", &["prefetch"]),
    ("crates/message", &["msgbuf"]),
    ("crates/metrics", &["call"]),
    ("crates/plugin", &["call"]),
    ("crates/policy", &["balance", "call", "message", "metrics"]),
    ("crates/plugin-host", &["call", "io", "plugin", "policy"]),
    ("crates/stream", &["call", "msgbuf"]),
    ("crates/proto", &["msgbuf", "prefetch"]),
    ("crates/share", &["io"]),
    // Devices know how to move datagrams, and do not know their content.
    ("crates/ethernet", &["io"]),
    ("crates/io-mem", &["io"]),
    ("crates/io-shm", &["io", "prefetch"]),
    ("crates/io-tcp", &["io"]),
    ("crates/io-testing", &["io"]),
    ("crates/io-udp", &["io"]),
    ("crates/io-xdp", &["ethernet", "io", "io-udp"]),
    // The event loop knows the protocol and no device.
    ("crates/endpoint", &["call", "handoff", "io", "proto"]),
    // The simulator is a device, and drives what ships.
    (
        "crates/sim",
        &[
            "call", "endpoint", "ethernet", "io", "prefetch", "proto", "share", "stream",
        ],
    ),
    ("crates/build", &["message"]),
    (
        "crates/starling",
        &[
            "balance", "call", "compress", "endpoint", "io", "io-mem", "io-shm", "io-tcp",
            "io-udp", "io-xdp", "message", "metrics", "msgbuf", "share", "stream",
        ],
    ),
    // The managed plane's service calls on by endpoints of its own, and serves its control interface by the library.
    (
        "crates/service",
        &[
            "compress",
            "endpoint",
            "io",
            "io-shm",
            "io-tcp",
            "io-udp",
            "io-xdp",
            "message",
            "metrics",
            "plugin-host",
            "policy",
            "starling",
        ],
    ),
    ("crates/dynamic", &["starling"]),
    ("examples/plugin", &["plugin"]),
    ("crates/otlp", &["starling"]),
    ("crates/sample-services", &["starling"]),
    ("crates/tower", &["starling"]),
];

/// Packages that stand beside or above the library: examples, benchmarks, sample services and the
/// command.
const ABOVE: [&str; 5] = [
    "bench",
    "bench/tonic",
    "crates/cli",
    "crates/sample-services",
    "examples",
];

/// The packages of the workspace that a manifest has under `[dependencies]`, without their prefix.
fn known_to(manifest: &str) -> impl Iterator<Item = &str> {
    dependencies(manifest).filter_map(|name| match name {
        "starling" => Some(name),
        _ => name.strip_prefix("starling-"),
    })
}

/// The names under `[dependencies]` of a manifest.
pub(super) fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    manifest
        .lines()
        .skip_while(|line| *line != "[dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty())
}

/// The violations among the dependencies of the package in `folder`.
fn check(folder: &Path, manifest: &str) -> Vec<Violation> {
    let violation = |what: String| Violation {
        file: folder.join("Cargo.toml"),
        line: 0,
        what,
    };
    if ABOVE.iter().any(|above| folder == Path::new(above)) {
        return Vec::new();
    }
    let Some((_, allowed)) = LAYERS.iter().find(|(row, _)| folder == Path::new(row)) else {
        return vec![violation(
            "the package has no row in the table of layers".into(),
        )];
    };
    known_to(manifest)
        .filter(|name| !allowed.contains(name))
        .map(|name| violation(format!("the package must not know {name}")))
        .collect()
}

/// The folder of a package, if the file is its manifest.
fn package_of(file: &Path, text: &str) -> Option<PathBuf> {
    let is_manifest = file.file_name()? == "Cargo.toml" && text.contains("[package]");
    let is_test = file.components().any(|part| part.as_os_str() == "tests");
    (is_manifest && !is_test).then(|| file.parent().map(Path::to_path_buf))?
}

#[test]
fn crates_know_only_the_crates_below_them() {
    let mut violations = Vec::new();
    for (path, text) in workspace() {
        if let Some(folder) = package_of(&path, &text) {
            violations.extend(check(&folder, &text));
        }
    }
    assert_none(&violations);
}

#[test]
fn the_table_of_layers_has_no_cycle() {
    for (index, (row, allowed)) in LAYERS.iter().enumerate() {
        for name in *allowed {
            let folder = format!("crates/{name}");
            let is_above = LAYERS[..index].iter().any(|(above, _)| *above == folder);
            assert!(is_above, "{row} knows {name}, which has no row above it");
        }
    }
}

#[test]
fn a_crate_that_knows_too_much_is_found() {
    let found = |folder: &str, manifest: &str| check(Path::new(folder), manifest).len();
    let manifest = "[package]\n\n[dependencies]\nbytes.workspace = true\n\
                    starling-io.workspace = true\n\n[dev-dependencies]\nstarling-sim = \"1\"\n";
    assert_eq!(found("crates/io-udp", manifest), 0);
    assert_eq!(found("crates/proto", manifest), 1);
    assert_eq!(found("crates/unheard-of", manifest), 1);
    assert_eq!(found("crates/cli", manifest), 0);
}
