//! House rules that no compiler knows, as a test.
//!
//! | rule | why |
//! |---|---|
//! | a source file has fewer than 800 lines | what is longer is two things |
//! | a source file opens with `//!`; the tests of a module need not | a reader learns first what it is and why it is so |
//! | no path of somebody's machine | it is wrong everywhere else |
//! | no reminders in comments | what is missing is an issue, or done now |
//! | no test is ignored | it rots; one that cannot run says so and is counted |
//! | `unsafe` is allowed in the packages of [`UNSAFE_PACKAGES`] and in `tests` folders only | that is where it is looked for |
//! | the protocol has no clock, socket, thread, file or random source | its runs are the same for the same input |
//!
//! Generated sources keep none: those in folders named `golden`, which are there to be compared
//! with, and files named `generated.rs`.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

/// The first number of lines that is too many.
const TOO_MANY_LINES: usize = 800;

/// Folders of the packages that may allow `unsafe`.
const UNSAFE_PACKAGES: [&str; 5] = [
    "crates/handoff",
    "crates/io-udp",
    "crates/io-shm",
    "crates/io-xdp",
    "crates/netns",
];

/// Top folders that exist on machines, not in a project.
const MACHINE_FOLDERS: [&str; 5] = ["home", "root", "tmp", "work", "Users"];

/// Reminders, in halves, since this file is checked too.
const REMINDERS: [&str; 3] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

/// The package that is a pure state machine.
const PURE_PACKAGE: &str = "crates/proto";

/// What a pure state machine does not mention outside its comments.
const IMPURE: [&str; 12] = [
    "Instant",
    "SystemTime",
    "UdpSocket",
    "UnixStream",
    "TcpStream",
    "std::thread",
    "std::fs",
    "std::io",
    "std::env",
    "std::process",
    "rand::",
    "getrandom",
];

/// The only dependencies that it may have: none of them touches the outside (`prefetch-index` is one
/// processor hint, which changes nothing but the time).
const PURE_DEPENDENCIES: [&str; 4] = ["bytes", "prefetch-index", "siphasher", "thiserror"];

/// A place where a rule is broken.
#[derive(Debug, PartialEq, Eq)]
struct Violation {
    file: PathBuf,
    /// Counted from 1; 0: the file as a whole.
    line: usize,
    what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.what)
    }
}

/// Checks one file; `path` is relative to the workspace's root.
fn check(path: &Path, text: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut report = |line: usize, what: &str| {
        violations.push(Violation {
            file: path.to_path_buf(),
            line,
            what: what.to_string(),
        });
    };
    let is_source = path.extension().is_some_and(|extension| extension == "rs");
    let may_be_unsafe = UNSAFE_PACKAGES.iter().any(|f| path.starts_with(f))
        || path.components().any(|part| part.as_os_str() == "tests");
    let is_pure = path.starts_with(PURE_PACKAGE);
    if is_source {
        if text.lines().count() >= TOO_MANY_LINES {
            report(0, "too long: split it");
        }
        if !text.starts_with("//!") && !path.ends_with("tests.rs") {
            report(1, "does not open with //!");
        }
    }
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if let Some(folder) = MACHINE_FOLDERS.iter().find(|f| names_path(line, f)) {
            report(number, &format!("a path in /{folder} of some machine"));
        }
        for reminder in REMINDERS {
            let mut words = line.split(|c: char| !c.is_alphanumeric());
            if words.any(|word| word == reminder) {
                report(number, &format!("a reminder: {reminder}"));
            }
        }
        if !is_source {
            continue;
        }
        let code = line.split("//").next().unwrap_or("");
        if code.trim_start().starts_with(concat!("#[", "ignore")) {
            report(number, "an ignored test");
        }
        if code.contains(concat!("allow(", "unsafe_code")) && !may_be_unsafe {
            report(number, "unsafe code is allowed here");
        }
        let impure = IMPURE.iter().find(|name| code.contains(*name));
        if let Some(name) = impure.filter(|_| is_pure) {
            report(number, &format!("the protocol mentions {name}"));
        }
    }
    if is_pure && path.ends_with("Cargo.toml") {
        for name in dependencies(text) {
            if !PURE_DEPENDENCIES.contains(&name) {
                report(0, &format!("the protocol depends on {name}"));
            }
        }
    }
    violations
}

/// Whether a line has an absolute path into the top folder `folder`.
fn names_path(line: &str, folder: &str) -> bool {
    let path = format!("/{folder}/");
    line.match_indices(&path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "/._-}*~".contains(c))
    })
}

/// The names under `[dependencies]` of a manifest.
fn dependencies(manifest: &str) -> impl Iterator<Item = &str> {
    manifest
        .lines()
        .skip_while(|line| *line != "[dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(['.', ' ', '=']).next())
        .filter(|name| !name.is_empty())
}

/// All text files below `folder` that somebody wrote.
fn files(folder: &Path, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            let foreign = name == ".git" || name == "golden" || name.starts_with("target");
            if !foreign {
                files(&path, found)?;
            }
        } else if path.extension().is_some_and(is_text) && name != "generated.rs" {
            found.push(path);
        }
    }
    Ok(())
}

fn is_text(extension: &OsStr) -> bool {
    ["rs", "toml", "md", "proto", "yml", "sh"]
        .iter()
        .any(|known| extension == *known)
}

/// Checks the whole workspace.
fn check_all(root: &Path) -> std::io::Result<Vec<Violation>> {
    let mut paths = Vec::new();
    files(root, &mut paths)?;
    let mut violations = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path)?;
        let relative = path.strip_prefix(root).unwrap_or(&path);
        violations.extend(check(relative, &text));
    }
    Ok(violations)
}

#[test]
fn the_workspace_keeps_the_house_rules() {
    let violations = check_all(crate::root()).expect("the workspace can be read");
    let list: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(list.is_empty(), "\n{}", list.join("\n"));
}

#[test]
fn each_rule_finds_what_it_is_for() {
    let found = |path: &str, text: &str| -> Vec<String> {
        let violations = check(Path::new(path), text);
        violations.into_iter().map(|v| v.what).collect()
    };
    assert_eq!(found("a.rs", "//! Fine.\n"), [""; 0]);
    assert_eq!(found("a.rs", "fn main() {}\n"), ["does not open with //!"]);
    assert_eq!(found("a/tests.rs", "use super::*;\n"), [""; 0]);
    let long = format!("//! Long.\n{}", "\n".repeat(TOO_MANY_LINES));
    assert_eq!(found("a.rs", &long), ["too long: split it"]);
    let path = format!("see /{}/me/notes", "home");
    assert_eq!(found("a.md", &path).len(), 1);
    assert_eq!(
        found("a.md", &format!("see crates/{}/notes", "home")),
        [""; 0]
    );
    assert_eq!(
        found("a.md", &format!("a {} of mine", REMINDERS[0])).len(),
        1
    );
    let ignored = format!("//! Tests.\n    {}]\n", concat!("#[", "ignore"));
    assert_eq!(found("a.rs", &ignored), ["an ignored test"]);
    let allowed = format!("//! Io.\n#![{})]\n", concat!("allow(", "unsafe_code"));
    assert_eq!(found("crates/io-udp/src/lib.rs", &allowed), [""; 0]);
    assert_eq!(found("crates/sim/src/lib.rs", &allowed).len(), 1);
    assert_eq!(found("crates/sim/tests/allocations.rs", &allowed), [""; 0]);
    let clock = "//! Proto.\nlet now = Instant::now();\n// Instant is fine in a comment.\n";
    assert_eq!(found("crates/proto/src/a.rs", clock).len(), 1);
    assert_eq!(found("crates/sim/src/a.rs", clock), [""; 0]);
    let manifest =
        "[dependencies]\nbytes.workspace = true\ntokio = \"1\"\n\n[dev-dependencies]\nx = \"1\"\n";
    assert_eq!(
        found("crates/proto/Cargo.toml", manifest),
        ["the protocol depends on tokio"]
    );
}
