//! House rules that no compiler knows, as tests.
//!
//! | rule | why |
//! |---|---|
//! | a source file has at most 600 lines, a function at most 80 | a longer one holds two things |
//! | a source file opens with `//!`; the tests of a module need not | a reader learns first what it is and why it is so |
//! | a line has at most 120 columns; rows of tables are exempt | two files fit side by side |
//! | a path of the project in backticks in a document exists | a reader who follows it finds something |
//! | no path of somebody's machine | it is wrong everywhere else |
//! | no reminders in comments | what is missing is an issue, or is done now |
//! | no test is ignored | it rots; a test that cannot run says so and is counted |
//! | `unsafe` is allowed in the packages of [`text::UNSAFE_PACKAGES`] and in `tests` folders only | reviewers look for it there |
//! | the protocol and the balancing decisions have no clock, socket, thread, file or random source | their runs are the same for the same input |
//! | a crate depends only on the crates that [`layers`] gives it | a boundary that nobody checks does not last |
//! | no word stands in the code that the glossary replaces | one word for one thing |
//!
//! Generated sources are exempt: those in folders named `golden`, which tests compare with, and
//! files named `generated.rs`.

mod layers;
mod text;
mod words;

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

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

/// All text files below `folder` that people write.
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

/// Each text file with its path relative to the workspace's root.
fn workspace() -> Vec<(PathBuf, String)> {
    let root = crate::root();
    let mut paths = Vec::new();
    files(root, &mut paths).expect("the workspace can be read");
    paths
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("a source file is text");
            let relative = path.strip_prefix(root).unwrap_or(&path).to_path_buf();
            (relative, text)
        })
        .collect()
}

/// Fails with one violation a line.
fn assert_none(violations: &[Violation]) {
    let list: Vec<String> = violations.iter().map(ToString::to_string).collect();
    assert!(list.is_empty(), "\n{}", list.join("\n"));
}
