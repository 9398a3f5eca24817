//! The README shows files of the project as they are: a code block after a line
//! `<!-- path/of/the/file -->` has that file's content, without the `//!` at its top.

use std::path::Path;

/// The blocks of a text, each with the path before it.
fn blocks(text: &str) -> Vec<(&str, String)> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let path = line
            .strip_prefix("<!-- ")
            .and_then(|l| l.strip_suffix(" -->"));
        let Some(path) = path else {
            continue;
        };
        let fence = lines.next().unwrap_or("");
        assert!(fence.starts_with("```"), "no code follows {path}");
        let code = lines.by_ref().take_while(|line| *line != "```");
        blocks.push((path, code.map(|line| format!("{line}\n")).collect()));
    }
    blocks
}

/// A file as it is shown.
fn shown(file: &str) -> String {
    let code = file.lines().skip_while(|line| line.starts_with("//!"));
    let code: String = code.map(|line| format!("{line}\n")).collect();
    code.trim_start().into()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = crate::root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_readme_shows_its_examples_as_they_are() {
    let readme = read("README.md");
    let blocks = blocks(&readme);
    let paths: Vec<&str> = blocks.iter().map(|(path, _)| *path).collect();
    assert_eq!(paths, ["examples/proto/hello.proto", "examples/hello.rs"]);
    for (path, block) in blocks {
        assert_eq!(block, shown(&read(path)), "README.md shows another {path}");
    }
}

#[test]
fn blocks_are_found_and_headers_are_left_out() {
    let text = "a\n<!-- b.rs -->\n```rust\nfn b() {}\n```\n```sh\nls\n```\n";
    assert_eq!(blocks(text), [("b.rs", "fn b() {}\n".to_string())]);
    assert_eq!(shown("//! B.\n//! It is.\n\nfn b() {}\n"), "fn b() {}\n");
    assert_eq!(shown("syntax;\n"), "syntax;\n");
}
