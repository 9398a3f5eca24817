//! Rules about the text of one file.

use std::path::Path;

use super::layers::dependencies;
use super::{Violation, assert_none, workspace};

/// The most lines of a source file.
const FILE_LINES: usize = 600;

/// The most lines of a function, from `fn` to its closing brace.
const FUNCTION_LINES: usize = 80;

/// The most columns of a line, but for rows of tables.
const COLUMNS: usize = 120;

/// Folders of the packages that may allow `unsafe`.
pub(super) const UNSAFE_PACKAGES: [&str; 9] = [
    "crates/handoff",
    "crates/io",
    "crates/io-udp",
    "crates/io-shm",
    "crates/io-xdp",
    "crates/netns",
    "crates/plugin",
    "crates/plugin-host",
    "crates/prefetch",
];

/// Top folders that exist on machines, not in a project.
const MACHINE_FOLDERS: [&str; 5] = ["home", "root", "tmp", "work", "Users"];

/// Top folders of the project, as documents name them.
const PROJECT_FOLDERS: [&str; 6] = ["bench", "crates", "docs", "examples", "figures", "xtask"];

/// Reminders, in halves, since this file is checked too.
const REMINDERS: [&str; 3] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];

/// The packages that are pure: they decide, and others act. With the only dependencies that each may have:
/// none of them touches the outside (`starling-prefetch` is one processor hint, which changes nothing but the
/// time).
const PURE_PACKAGES: [(&str, &[&str]); 2] = [
    (
        "crates/balance",
        &[
            "serde",
            "serde_json",
            "starling-call",
            "thiserror",
            "xxhash-rust",
        ],
    ),
    (
        "crates/proto",
        &[
            "bytes",
            "siphasher",
            "starling-msgbuf",
            "starling-prefetch",
            "thiserror",
        ],
    ),
];

/// Words that the code of a pure package does not have outside its comments.
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
    let pure = PURE_PACKAGES
        .iter()
        .find(|(folder, _)| path.starts_with(folder));
    if is_source {
        if text.lines().count() > FILE_LINES {
            report(0, "the file is too long: split it");
        }
        for (line, length) in long_functions(text) {
            report(line, &format!("a function of {length} lines: split it"));
        }
        if !text.starts_with("//!") && !path.ends_with("tests.rs") {
            report(1, "does not open with //!");
        }
    }
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if line.chars().count() > COLUMNS && !is_table_row(line) {
            report(number, "the line is too long");
        }
        if let Some(folder) = MACHINE_FOLDERS.iter().find(|f| names_path(line, f)) {
            report(number, &format!("a path in /{folder} of some machine"));
        }
        if path.extension().is_some_and(|e| e == "md") {
            for named in named_paths(line).filter(|named| !crate::root().join(named).exists()) {
                report(number, &format!("there is no {named}"));
            }
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
        if let Some(name) = impure.filter(|_| pure.is_some()) {
            report(number, &format!("a pure package mentions {name}"));
        }
    }
    if let Some((_, allowed)) = pure.filter(|_| path.ends_with("Cargo.toml")) {
        for name in dependencies(text).filter(|name| !allowed.contains(name)) {
            report(0, &format!("a pure package depends on {name}"));
        }
    }
    violations
}

/// The paths of the project that a line of a document names in backticks.
fn named_paths(line: &str) -> impl Iterator<Item = &str> {
    let spans = line.split('`').skip(1).step_by(2);
    spans.filter(|span| {
        let top = span.split('/').next().unwrap_or_default();
        let is_ours = span.contains('/') && PROJECT_FOLDERS.contains(&top);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        is_ours && span.chars().all(is_plain) && !span.contains("NAME")
    })
}

/// Whether a line is a row of a Markdown table, in a document or in a comment.
fn is_table_row(line: &str) -> bool {
    let line = line.trim_start();
    let comment = line.strip_prefix("//!").or(line.strip_prefix("///"));
    comment.unwrap_or(line).trim_start().starts_with('|')
}

/// The functions with more than [`FUNCTION_LINES`] lines: where each begins, and its length.
/// The text is as rustfmt leaves it, so a function ends at the first brace with its own indentation.
fn long_functions(text: &str) -> Vec<(usize, usize)> {
    let indentation = |line: &str| line.len() - line.trim_start().len();
    let mut found = Vec::new();
    let mut open: Option<(usize, usize)> = None;
    for (index, line) in text.lines().enumerate() {
        match open {
            None if begins_function(line) && !line.ends_with('}') => {
                open = Some((index, indentation(line)));
            }
            Some((begin, column)) if indentation(line) == column && !line.trim().is_empty() => {
                if line.ends_with('}') {
                    let length = index - begin + 1;
                    if length > FUNCTION_LINES {
                        found.push((begin + 1, length));
                    }
                    open = None;
                } else if line.ends_with(';') {
                    open = None;
                }
            }
            _ => {}
        }
    }
    found
}

/// Whether a line begins a function that is not wholly on it.
fn begins_function(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default().trim_start();
    let mut words = code.split_whitespace().take_while(|word| *word != "fn");
    let is_qualifier = |word: &str| {
        let known = ["pub", "const", "async", "unsafe", "extern", "\"C\""];
        known.contains(&word) || word.starts_with("pub(")
    };
    code.contains("fn ") && words.all(is_qualifier) && !code.ends_with(';')
}

/// Whether a line has an absolute path into the top folder `folder`.
fn names_path(line: &str, folder: &str) -> bool {
    let path = format!("/{folder}/");
    line.match_indices(&path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "/._-}*~".contains(c))
    })
}

#[test]
fn the_texts_of_the_workspace_keep_the_rules() {
    let violations: Vec<Violation> = workspace()
        .iter()
        .flat_map(|(path, text)| check(path, text))
        .collect();
    assert_none(&violations);
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
    let long = format!("//! Long.\n{}", "\n".repeat(FILE_LINES));
    assert_eq!(found("a.rs", &long), ["the file is too long: split it"]);
    let named = "`crates/proto` and `xtask/src/nothing.rs`";
    assert_eq!(found("a.md", named), ["there is no xtask/src/nothing.rs"]);
    let wide = "x".repeat(COLUMNS + 1);
    assert_eq!(found("a.md", &wide), ["the line is too long"]);
    assert_eq!(found("a.md", &format!("| {wide} |")), [""; 0]);
    assert_eq!(found("a.rs", &format!("//! | {wide} |\n")), [""; 0]);
    let function = |lines: usize| {
        let body = "        x();\n".repeat(lines - 2);
        format!("//! F.\nimpl A {{\n    pub(crate) fn f(\n{body}    }}\n}}\n")
    };
    assert_eq!(found("a.rs", &function(FUNCTION_LINES)), [""; 0]);
    assert_eq!(
        found("a.rs", &function(FUNCTION_LINES + 1)),
        [format!(
            "a function of {} lines: split it",
            FUNCTION_LINES + 1
        )]
    );
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
        ["a pure package depends on tokio"]
    );
}
