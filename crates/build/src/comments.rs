//! Doc comments from `.proto` comments.

use prost_reflect::FileDescriptor;

/// Doc comment lines for the element at `path` in a file; `fallback` if it has no comment.
pub(crate) fn doc(file: &FileDescriptor, path: &[i32], fallback: &str) -> String {
    let info = file.file_descriptor_proto().source_code_info.as_ref();
    let location = info.and_then(|info| info.location.iter().find(|at| at.path == path));
    let comment = location.and_then(|at| {
        let leading = at
            .leading_comments
            .as_deref()
            .filter(|text| !text.trim().is_empty());
        leading
            .or(at.trailing_comments.as_deref())
            .filter(|text| !text.trim().is_empty())
    });
    lines(comment.unwrap_or(fallback))
}

/// Text as `///` lines that rustdoc treats as prose: a `.proto` file has no Rust examples and no links
/// to Rust items.
pub(crate) fn lines(text: &str) -> String {
    let mut out = String::new();
    let mut in_fence = false;
    for line in text.trim_end().lines() {
        let line = line.trim_end();
        let line = line.strip_prefix(' ').unwrap_or(line);
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
            out.push_str(if in_fence {
                "/// ```text\n"
            } else {
                "/// ```\n"
            });
        } else if line.is_empty() {
            out.push_str("///\n");
        } else if in_fence {
            out.push_str(&format!("/// {line}\n"));
        } else {
            // Four spaces would make a code block, which rustdoc would run as a test.
            out.push_str(&format!("/// {}\n", escape(line.trim_start())));
        }
    }
    if in_fence {
        out.push_str("/// ```\n");
    }
    out
}

/// Escapes what Markdown would treat as links and tags, except within backticks.
fn escape(line: &str) -> String {
    let mut out = String::new();
    let mut in_code = false;
    for c in line.chars() {
        match c {
            '`' => in_code = !in_code,
            '[' | ']' | '<' | '>' if !in_code => out.push('\\'),
            _ => {}
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::lines;

    #[test]
    fn comments_become_prose() {
        assert_eq!(
            lines(" One [link].\n\n     indented\n"),
            "/// One \\[link\\].\n///\n/// indented\n"
        );
        assert_eq!(lines(" a `[b]` <c>"), "/// a `[b]` \\<c\\>\n");
    }

    #[test]
    fn fenced_blocks_become_text_and_are_closed() {
        assert_eq!(lines(" ```\n let x;"), "/// ```text\n/// let x;\n/// ```\n");
    }
}
