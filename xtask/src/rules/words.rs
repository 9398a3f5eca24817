//! Words that the glossary replaces do not come back: `docs/GLOSSARY.md` lists them in its table
//! of words that are not used, with the words that stand in their place.

use std::path::Path;

use super::{Violation, assert_none, workspace};

const GLOSSARY: &str = "docs/GLOSSARY.md";

/// The heading of the table that lists them.
const HEADING: &str = "## Not used";

/// Each word that is not used, with the words in its place.
fn replaced(glossary: &str) -> Vec<(String, String)> {
    let table = glossary.split_once(HEADING).map_or("", |(_, rest)| rest);
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let mut words = Vec::new();
    for row in rows {
        let mut cells = row.trim_matches('|').splitn(2, '|');
        let old = cells.next().unwrap_or_default();
        let new = cells.next().unwrap_or_default().trim().to_owned();
        for word in old.split(',') {
            words.push((word.trim().trim_matches('`').to_owned(), new.clone()));
        }
    }
    words
}

/// The lines of a text that use a replaced word as a whole identifier.
fn check(path: &Path, text: &str, replaced: &[(String, String)]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        let found = replaced
            .iter()
            .find(|(old, _)| words.clone().any(|word| word == old));
        if let (Some((old, new)), true) = (found, words.next().is_some()) {
            violations.push(Violation {
                file: path.to_path_buf(),
                line: index + 1,
                what: format!("{old} is not used: {new}"),
            });
        }
    }
    violations
}

#[test]
fn no_word_that_the_glossary_replaces_is_used() {
    let texts = workspace();
    let glossary = texts.iter().find(|(path, _)| path == Path::new(GLOSSARY));
    let replaced = replaced(&glossary.expect("there is a glossary").1);
    assert!(replaced.len() > 20, "the table of words was not found");
    let sources = texts
        .iter()
        .filter(|(path, _)| path.extension().is_some_and(|e| e == "rs"));
    let violations: Vec<Violation> = sources
        .flat_map(|(path, text)| check(path, text, &replaced))
        .collect();
    assert_none(&violations);
}

#[test]
fn a_replaced_word_is_found_as_a_whole_word_only() {
    let glossary = "x\n## Not used\n\n| not | but |\n|---|---|\n| `Foo`, `foo_bar` | `Baz` |\n";
    let replaced = replaced(glossary);
    assert_eq!(replaced.len(), 2);
    let found = |text: &str| check(Path::new("a.rs"), text, &replaced).len();
    assert_eq!(found("struct Foo;\nfn foo_bar() {}\n"), 2);
    assert_eq!(found("struct Food; // foo bar\n"), 0);
}
