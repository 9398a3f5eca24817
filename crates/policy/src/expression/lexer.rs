//! The words of a condition.

use super::ExpressionError;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Name(String),
    Int(i128),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    /// An operator or a bracket.
    Mark(&'static str),
}

/// Longer ones first.
const MARKS: [&str; 18] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "!", "-", "(", ")", "[", "]", ".", ",", "&", "|",
];

/// The words, each with its place in characters.
pub(super) fn tokens(text: &str) -> Result<Vec<(usize, Token)>, ExpressionError> {
    let mut lexer = Lexer {
        chars: text.chars().collect(),
        at: 0,
    };
    let mut tokens = Vec::new();
    loop {
        while lexer.peek(0).is_some_and(char::is_whitespace) {
            lexer.at += 1;
        }
        let Some(c) = lexer.peek(0) else {
            return Ok(tokens);
        };
        let at = lexer.at;
        tokens.push((at, lexer.token(c)?));
    }
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
}

impl Lexer {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn token(&mut self, c: char) -> Result<Token, ExpressionError> {
        let quote = |c: Option<char>| matches!(c, Some('"' | '\''));
        match c {
            '"' | '\'' => self.text().map(Token::Text),
            'b' if quote(self.peek(1)) => {
                self.at += 1;
                self.bytes().map(Token::Bytes)
            }
            '0'..='9' => self.number(),
            c if c.is_ascii_alphabetic() || c == '_' => {
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
                Ok(Token::Name(self.take_while(is_part)))
            }
            _ => self.mark(c),
        }
    }

    fn take_while(&mut self, is_part: impl Fn(char) -> bool) -> String {
        let rest = &self.chars[self.at..];
        let taken: String = rest.iter().take_while(|c| is_part(**c)).collect();
        self.at += taken.chars().count();
        taken
    }

    fn mark(&mut self, c: char) -> Result<Token, ExpressionError> {
        let at = self.at;
        let is_next = |mark: &&&str| {
            let mut chars = mark.chars().enumerate();
            chars.all(|(ahead, c)| self.peek(ahead) == Some(c))
        };
        match MARKS.iter().find(is_next) {
            Some(&"&") => Err(ExpressionError::new(at, "`&` is no operator: write `&&`")),
            Some(&"|") => Err(ExpressionError::new(at, "`|` is no operator: write `||`")),
            Some(mark) => {
                self.at += mark.len();
                Ok(Token::Mark(mark))
            }
            None if c == '=' => Err(ExpressionError::new(at, "`=` is no operator: write `==`")),
            None => Err(ExpressionError::new(
                at,
                format!("{c:?} has no meaning here"),
            )),
        }
    }

    fn number(&mut self) -> Result<Token, ExpressionError> {
        let at = self.at;
        let wrong = |text: &str| ExpressionError::new(at, format!("{text:?} is no number"));
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '_';
        let mut text = self.take_while(is_part);
        // The exponent of a float.
        if text.ends_with(['e', 'E']) && matches!(self.peek(0), Some('-' | '+')) && !is_hex(&text) {
            text.push(self.chars[self.at]);
            self.at += 1;
            text.push_str(&self.take_while(|c| c.is_ascii_alphanumeric()));
        }
        let digits = text.strip_suffix(['u', 'U']).unwrap_or(&text);
        let int = match is_hex(digits) {
            true => i128::from_str_radix(&digits[2..], 16),
            false => digits.parse(),
        };
        match int {
            Ok(int) if int <= i128::from(u64::MAX) => Ok(Token::Int(int)),
            Err(_) if text.contains(['.', 'e', 'E']) && !is_hex(&text) => {
                text.parse().map(Token::Float).map_err(|_| wrong(&text))
            }
            _ => Err(wrong(&text)),
        }
    }

    /// The content of a literal in quotes: characters, and bytes that an escape names.
    fn quoted(&mut self) -> Result<Vec<Result<char, u8>>, ExpressionError> {
        let begin = self.at;
        let end = self.chars[begin];
        self.at += 1;
        let mut content = Vec::new();
        loop {
            let at = self.at;
            let c = self.peek(0);
            self.at += 1;
            match c {
                None => return Err(ExpressionError::new(begin, "the text does not end")),
                Some(c) if c == end => return Ok(content),
                Some('\\') => {
                    let escaped = self.escape().ok_or_else(|| {
                        let known = "write \\\\, \\\", \\', \\n, \\r, \\t or \\xHH";
                        ExpressionError::new(at, format!("there is no such escape: {known}"))
                    })?;
                    content.push(escaped);
                }
                Some(c) => content.push(Ok(c)),
            }
        }
    }

    fn escape(&mut self) -> Option<Result<char, u8>> {
        let c = self.peek(0)?;
        self.at += 1;
        Some(match c {
            '\\' | '"' | '\'' => Ok(c),
            'n' => Ok('\n'),
            'r' => Ok('\r'),
            't' => Ok('\t'),
            'x' => {
                let digit = |ahead| self.peek(ahead)?.to_digit(16);
                let byte = digit(0)? * 16 + digit(1)?;
                self.at += 2;
                Err(byte as u8)
            }
            _ => return None,
        })
    }

    fn text(&mut self) -> Result<String, ExpressionError> {
        let at = self.at;
        let bytes = bytes_of(self.quoted()?);
        let no_text = |_| ExpressionError::new(at, "it is no UTF-8: write b\"...\" for bytes");
        String::from_utf8(bytes).map_err(no_text)
    }

    fn bytes(&mut self) -> Result<Vec<u8>, ExpressionError> {
        Ok(bytes_of(self.quoted()?))
    }
}

fn is_hex(text: &str) -> bool {
    text.starts_with("0x") || text.starts_with("0X")
}

fn bytes_of(content: Vec<Result<char, u8>>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in content {
        match part {
            Ok(c) => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            Err(byte) => bytes.push(byte),
        }
    }
    bytes
}
