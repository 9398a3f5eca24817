//! TESTING.md names tests by the commands that run them. A test checks that these tests exist.

use std::path::{Path, PathBuf};

/// A `cargo test` of the document.
#[derive(Debug, Default, PartialEq, Eq)]
struct Command {
    packages: Vec<String>,
    /// Test binaries.
    tests: Vec<String>,
    /// Parts of tests' names.
    filters: Vec<String>,
}

/// The commands in the code spans of a text.
fn commands(text: &str) -> Vec<Command> {
    let spans = text.split('`').skip(1).step_by(2);
    let commands = spans.filter_map(|span| span.strip_prefix("cargo test "));
    commands.map(parse).collect()
}

fn parse(line: &str) -> Command {
    let mut command = Command::default();
    let mut words = line.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            "-p" => command.packages.extend(words.next().map(String::from)),
            "--test" => command.tests.extend(words.next().map(String::from)),
            option if option.starts_with('-') => {}
            filter => command.filters.push(filter.to_owned()),
        }
    }
    command
}

/// The folder of a package of the workspace.
fn folder(package: &str) -> Option<PathBuf> {
    let short = package.strip_prefix("starling-").unwrap_or(package);
    let folders = [format!("crates/{short}"), short.to_owned()];
    let mut folders = folders.iter().map(|folder| crate::root().join(folder));
    folders.find(|folder| folder.join("Cargo.toml").is_file())
}

/// Whether a source below `folder` has this in its path or in the name of a function or module.
fn mentions(folder: &Path, filter: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return false;
    };
    entries.flatten().any(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return mentions(&path, filter);
        }
        let is_source = path.extension().is_some_and(|extension| extension == "rs");
        let in_name = path.file_stem().is_some_and(|stem| stem == filter);
        let named = |line: &str| {
            let name = line.trim_start().trim_start_matches("pub(crate) ");
            let name = name
                .strip_prefix("fn ")
                .or_else(|| name.strip_prefix("mod "));
            name.is_some_and(|name| name.contains(filter))
        };
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        is_source && (in_name || text.lines().any(named))
    })
}

/// The packages, test files and tests that a command names and the workspace does not have.
fn missing(command: &Command) -> Vec<String> {
    let found: Vec<Option<PathBuf>> = command.packages.iter().map(|p| folder(p)).collect();
    let mut missing = Vec::new();
    for (package, folder) in command.packages.iter().zip(&found) {
        if folder.is_none() {
            missing.push(format!("package {package}"));
        }
    }
    let folders: Vec<&PathBuf> = found.iter().flatten().collect();
    for test in &command.tests {
        let file = |folder: &&&PathBuf| {
            let tests = folder.join("tests");
            tests.join(format!("{test}.rs")).is_file() || tests.join(test).join("main.rs").is_file()
        };
        if folders.iter().find(file).is_none() {
            missing.push(format!("--test {test} of {:?}", command.packages));
        }
    }
    for filter in &command.filters {
        if !folders.iter().any(|folder| mentions(folder, filter)) {
            missing.push(format!("a test like {filter} of {:?}", command.packages));
        }
    }
    missing
}

#[test]
fn what_the_commands_of_the_document_name_exists() {
    for document in ["TESTING.md", "PROTOCOL.md", "docs/notes/hunt.md"] {
        let path = crate::root().join(document);
        let text = std::fs::read_to_string(path).expect("the document is there");
        let missing: Vec<String> = commands(&text).iter().flat_map(missing).collect();
        assert!(missing.is_empty(), "{document}:\n{}", missing.join("\n"));
    }
}

#[test]
fn commands_are_taken_apart() {
    let text = "a `cargo test -p starling-proto --test pair names` b `cargo xtask test`";
    let expected = Command {
        packages: vec!["starling-proto".into()],
        tests: vec!["pair".into()],
        filters: vec!["names".into()],
    };
    assert_eq!(commands(text), [expected]);
    let wrong = parse("-p starling-nothing -p starling-proto --test nowhere surely_no_test");
    assert_eq!(missing(&wrong).len(), 3);
}
