//! Standard output, and text of others on a terminal.

use std::borrow::Cow;
use std::io::{self, Write};

use crate::error::CliError;

/// Writes text to standard output.
pub(crate) fn print(text: &str) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(CliError::Output)
}

/// Text that others have sent, without what would move a terminal's cursor or change its colours: such characters are
/// written as in Rust.
pub(crate) fn harmless(text: &str) -> Cow<'_, str> {
    let is_plain = |letter: char| !letter.is_control() || matches!(letter, '\n' | '\t');
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let letters = text.chars().map(|letter| match is_plain(letter) {
        true => letter.to_string(),
        false => letter.escape_default().to_string(),
    });
    Cow::Owned(letters.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_change_a_terminal_is_written_out() {
        for plain in ["", "a b\tc\nd", "\u{e9}\u{4e2d}"] {
            assert!(matches!(harmless(plain), Cow::Borrowed(same) if same == plain));
        }
        assert_eq!(
            harmless("\x1b[2Jgone\r\n\u{9b}"),
            "\\u{1b}[2Jgone\\r\n\\u{9b}"
        );
    }
}
