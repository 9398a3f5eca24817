//! The list of planted bugs, `xtask/planted/*.txt`: small changes of the protocol's sources, each of which
//! breaks a promise or is named as equivalent.
//!
//! ```text
//! # name-of-the-bug
//! What it breaks, in words.
//! = Why no test can tell it from the original; only of one that is equivalent.
//! ? Why nothing finds it yet; only of one that is known not to be found.
//! @ crates/proto/src/file.rs
//! < the lines before the original, if it is not the only place that has its text
//! - the lines of the original
//! + the lines in their place
//! ```
//! A bug may change several places: each begins with its file. White space makes no difference. Original and
//! replacement are whole statements, ending with `;` or `}`, or an
//! expression. The sources get all bugs at once, each behind a condition (see [`Sources`]), so that one build
//! has all of them.

use std::collections::BTreeMap;
use std::path::Path;

/// A bug of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bug {
    pub(crate) name: String,
    /// Why it makes no difference, if it makes none.
    pub(crate) equivalent: Option<String>,
    /// Neither the tests nor a hunt find it yet.
    pub(crate) open: bool,
    changes: Vec<Change>,
}

/// One change of the sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Change {
    /// The source file, from the workspace's root.
    file: String,
    /// What comes before the original.
    before: String,
    original: String,
    replacement: String,
}

/// Reads all lists, in the order of their names.
pub(crate) fn read(root: &Path) -> Result<Vec<Bug>, String> {
    let directory = root.join("xtask/planted");
    let entries = std::fs::read_dir(&directory).map_err(|error| error.to_string())?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let mut bugs = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
        let parsed = parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        bugs.extend(parsed);
    }
    let mut names: Vec<&str> = bugs.iter().map(|bug| bug.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("{} is in the list twice", pair[0])),
        None => Ok(bugs),
    }
}

fn parse(text: &str) -> Result<Vec<Bug>, String> {
    let mut bugs: Vec<Bug> = Vec::new();
    for line in text.lines() {
        let (mark, rest) = line.split_at(line.len().min(2));
        if mark == "# " {
            bugs.push(Bug {
                name: rest.to_owned(),
                equivalent: None,
                open: false,
                changes: Vec::new(),
            });
            continue;
        }
        let Some(bug) = bugs.last_mut() else {
            continue;
        };
        match (mark.trim_end(), bug.changes.last_mut()) {
            ("=", _) => bug.equivalent = Some(rest.to_owned()),
            ("?", _) => bug.open = true,
            ("@", _) => bug.changes.push(Change {
                file: rest.to_owned(),
                ..Change::default()
            }),
            ("<", Some(change)) => change.before += rest,
            ("-", Some(change)) => change.original += &format!("{rest}\n"),
            ("+", Some(change)) => change.replacement += &format!("{rest}\n"),
            _ => {}
        }
    }
    let is_empty = |bug: &&Bug| bug.changes.iter().all(|change| change.original.is_empty());
    match bugs.iter().find(is_empty) {
        Some(bug) => Err(format!("{} changes nothing", bug.name)),
        None => Ok(bugs),
    }
}

/// The one place of a change's original in `text`, white space aside.
fn find(text: &str, change: &Change) -> Result<(usize, usize), String> {
    let Change {
        before, original, ..
    } = change;
    let is_word = |it: &&(usize, char)| !it.1.is_whitespace();
    let places: Vec<(usize, char)> = text.char_indices().collect();
    let places: Vec<&(usize, char)> = places.iter().filter(is_word).collect();
    let chars =
        |text: &str| -> Vec<char> { text.chars().filter(|it| !it.is_whitespace()).collect() };
    let (skipped, wanted) = (chars(before).len(), chars(&format!("{before}{original}")));
    let is_here =
        |window: &&[&(usize, char)]| window.iter().map(|it| it.1).eq(wanted.iter().copied());
    let mut found = places.windows(wanted.len().max(1)).filter(is_here);
    let (Some(first), None) = (found.next(), found.next()) else {
        return Err(format!("not once in its file: {original}"));
    };
    let last = first.last().expect("a window is not empty");
    Ok((first[skipped].0, last.0 + last.1.len_utf8()))
}

/// Sources with all bugs, each of which acts if `crate::planted::acts(its place in the list)`.
pub(crate) type Sources = BTreeMap<String, String>;

/// A change, with its bug and the bug's place in the list.
type Planted<'a> = (usize, &'a Bug, &'a Change);

/// The sources that the bugs change, with all of them.
pub(crate) fn plant(root: &Path, bugs: &[Bug]) -> Result<Sources, String> {
    let mut by_file: BTreeMap<&str, Vec<Planted<'_>>> = BTreeMap::new();
    for (number, bug) in bugs.iter().enumerate() {
        for change in &bug.changes {
            by_file
                .entry(&change.file)
                .or_default()
                .push((number, bug, change));
        }
    }
    let mut sources = Sources::new();
    for (file, changes) in by_file {
        let text = std::fs::read_to_string(root.join(file));
        let text = text.map_err(|error| format!("{file}: {error}"))?;
        let planted = plant_in(&text, &changes).map_err(|error| format!("{file}: {error}"))?;
        sources.insert(file.to_owned(), planted);
    }
    Ok(sources)
}

fn plant_in(text: &str, changes: &[Planted<'_>]) -> Result<String, String> {
    // Bugs at the same place are alternatives.
    let mut places: BTreeMap<(usize, usize), Vec<Planted<'_>>> = BTreeMap::new();
    let mut errors = Vec::new();
    for &(number, bug, change) in changes {
        match find(text, change) {
            Ok(place) => places.entry(place).or_default().push((number, bug, change)),
            Err(error) => errors.push(format!("{}: {error}", bug.name)),
        }
    }
    if !errors.is_empty() {
        return Err(errors.join("\n"));
    }
    let mut planted = String::new();
    let mut done = 0;
    for ((from, to), changes) in places {
        if from < done {
            return Err(format!("{} overlaps another bug", changes[0].1.name));
        }
        planted += &text[done..from];
        planted += &alternatives(&text[from..to], &changes);
        done = to;
    }
    Ok(planted + &text[done..])
}

/// The original, or what one of these bugs has in its place.
fn alternatives(original: &str, changes: &[Planted<'_>]) -> String {
    let mut choice = String::new();
    for (number, _, change) in changes {
        let replacement = change.replacement.trim_end();
        choice += &format!("if crate::planted::acts({number}) {{ {replacement} }} else ");
    }
    let is_statement = original.ends_with([';', '}']);
    match is_statement {
        true => format!("{choice} {{ {original} }}"),
        false => format!("({choice} {{ {original} }})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
# one
Words.
@ a.rs
- x = 1;
# two
= No difference.
@ a.rs
- y  <
-   z
+ y <= z
";

    #[test]
    fn bugs_are_planted_behind_conditions() {
        let bugs = parse(LIST).unwrap();
        assert_eq!(bugs[1].equivalent.as_deref(), Some("No difference."));
        let places = [
            (0, &bugs[0], &bugs[0].changes[0]),
            (1, &bugs[1], &bugs[1].changes[0]),
        ];
        let planted = plant_in("if y < z {\n  x = 1; }", &places).unwrap();
        let expected = "if (if crate::planted::acts(1) { y <= z } else  { y < z }) {\n  \
                        if crate::planted::acts(0) {  } else  { x = 1; } }";
        assert_eq!(planted, expected);
    }

    #[test]
    fn a_bug_that_does_not_apply_is_an_error() {
        let bugs = parse(LIST).unwrap();
        let places = [(0, &bugs[0], &bugs[0].changes[0])];
        for text in ["", "x = 2;", "x = 1; x = 1;"] {
            let error = plant_in(text, &places).unwrap_err();
            assert!(error.contains("one: not once"), "{error}");
        }
        assert!(parse("# one\n@ a.rs\n").is_err());
    }

    /// The list is kept with the sources: each bug still applies.
    #[test]
    fn all_planted_bugs_apply_to_the_sources() {
        let bugs = read(crate::root()).unwrap();
        assert!(bugs.len() >= 40, "{} bugs", bugs.len());
        plant(crate::root(), &bugs).unwrap();
    }
}
