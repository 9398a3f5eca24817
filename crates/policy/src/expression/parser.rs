//! From words to an [`Ast`]: recursive descent, to a bounded depth.

use super::ast::{Ast, Comparison, Matching, What};
use super::lexer::{Token, tokens};
use super::{ExpressionError, MAX_BYTES, MAX_DEPTH};

pub(super) struct Parser {
    tokens: Vec<(usize, Token)>,
    next: usize,
    depth: usize,
    /// Where the text ends.
    end: usize,
}

type Parsed = Result<Ast, ExpressionError>;

impl Parser {
    pub(super) fn new(text: &str) -> Result<Self, ExpressionError> {
        if text.len() > MAX_BYTES {
            let problem = format!("the condition has more than {} KiB", MAX_BYTES >> 10);
            return Err(ExpressionError::new(0, problem));
        }
        Ok(Self {
            tokens: tokens(text)?,
            next: 0,
            depth: 0,
            end: text.chars().count(),
        })
    }

    /// The condition, with nothing behind it.
    pub(super) fn whole(mut self) -> Parsed {
        let ast = self.or()?;
        match self.tokens.get(self.next) {
            None => Ok(ast),
            Some(_) => Err(self.wrong("an operator, or the end")),
        }
    }

    fn at(&self) -> usize {
        self.tokens.get(self.next).map_or(self.end, |(at, _)| *at)
    }

    fn wrong(&self, expected: &str) -> ExpressionError {
        let found = match self.tokens.get(self.next) {
            None => "the text ends".to_owned(),
            Some((_, Token::Mark(mark))) => format!("`{mark}` is here"),
            Some((_, Token::Name(name))) => format!("`{name}` is here"),
            Some(_) => "a literal is here".to_owned(),
        };
        ExpressionError::new(self.at(), format!("{found}, where {expected} is expected"))
    }

    fn is_next(&self, mark: &str) -> bool {
        matches!(self.tokens.get(self.next), Some((_, Token::Mark(next))) if *next == mark)
    }

    fn take(&mut self, mark: &str) -> bool {
        let is_next = self.is_next(mark);
        self.next += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, mark: &str) -> Result<(), ExpressionError> {
        match self.take(mark) {
            true => Ok(()),
            false => Err(self.wrong(&format!("`{mark}`"))),
        }
    }

    fn name(&mut self) -> Option<String> {
        let Some((_, Token::Name(name))) = self.tokens.get(self.next) else {
            return None;
        };
        let name = name.clone();
        self.next += 1;
        Some(name)
    }

    fn or(&mut self) -> Parsed {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let problem = format!("it is nested more than {MAX_DEPTH} deep");
            return Err(ExpressionError::new(self.at(), problem));
        }
        let ast = self.joined("||", Self::and, What::Or);
        self.depth -= 1;
        ast
    }

    fn and(&mut self) -> Parsed {
        self.joined("&&", Self::compare, What::And)
    }

    fn joined(
        &mut self,
        mark: &str,
        part: fn(&mut Self) -> Parsed,
        join: fn(Vec<Ast>) -> What,
    ) -> Parsed {
        let at = self.at();
        let first = part(self)?;
        if !self.is_next(mark) {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.take(mark) {
            all.push(part(self)?);
        }
        let what = join(all);
        Ok(Ast { at, what })
    }

    fn compare(&mut self) -> Parsed {
        let at = self.at();
        let left = self.unary()?;
        let what: fn(Comparison, Box<Ast>, Box<Ast>) -> What = match self.tokens.get(self.next) {
            Some((_, Token::Name(name))) if name == "in" => |_, value, list| What::In(value, list),
            _ => What::Compare,
        };
        let comparison = match self.tokens.get(self.next) {
            Some((_, Token::Mark(mark))) => Comparison::of(mark),
            Some((_, Token::Name(name))) if name == "in" => Some(Comparison::Equal),
            _ => None,
        };
        let Some(comparison) = comparison else {
            return Ok(left);
        };
        self.next += 1;
        let what = what(comparison, left.into(), self.unary()?.into());
        Ok(Ast { at, what })
    }

    fn unary(&mut self) -> Parsed {
        let at = self.at();
        let mut is_not = false;
        let mut any = false;
        while self.take("!") {
            is_not = !is_not;
            any = true;
        }
        if any {
            let of = self.unary()?;
            // Twice is as none, but for the type.
            let not = |of: Ast| Ast {
                at,
                what: What::Not(of.into()),
            };
            return Ok(match is_not {
                true => not(of),
                false => not(not(of)),
            });
        }
        if self.take("-") {
            let what = match self.tokens.get(self.next) {
                Some((_, Token::Int(int))) => What::Int(-int),
                Some((_, Token::Float(float))) => What::Float(-float),
                _ => return Err(self.wrong("a number")),
            };
            self.next += 1;
            return Ok(Ast { at, what });
        }
        self.postfix()
    }

    fn postfix(&mut self) -> Parsed {
        let at = self.at();
        let of = self.primary()?;
        if !self.take(".") {
            return Ok(of);
        }
        let named = self.at();
        let name = self.name();
        self.expect("(")?;
        let matching = match name.as_deref() {
            Some("startsWith") => Matching::StartsWith,
            Some("endsWith") => Matching::EndsWith,
            Some("contains") => Matching::Contains,
            Some("size") => {
                self.expect(")")?;
                let what = What::Size(of.into());
                return Ok(Ast { at, what });
            }
            _ => {
                let known = "there are startsWith, endsWith, contains and size";
                let problem = format!("there is no such function: {known}");
                return Err(ExpressionError::new(named, problem));
            }
        };
        let with = self.or()?;
        self.expect(")")?;
        let what = What::Match(matching, of.into(), with.into());
        Ok(Ast { at, what })
    }

    fn primary(&mut self) -> Parsed {
        let at = self.at();
        let expected = "a value";
        let Some((_, token)) = self.tokens.get(self.next).cloned() else {
            return Err(self.wrong(expected));
        };
        self.next += 1;
        let what = match token {
            Token::Int(int) => What::Int(int),
            Token::Float(float) => What::Float(float),
            Token::Text(text) => What::Text(text),
            Token::Bytes(bytes) => What::Bytes(bytes),
            Token::Name(name) => return self.named(at, &name),
            Token::Mark("(") => {
                let inner = self.or()?;
                self.expect(")")?;
                return Ok(inner);
            }
            Token::Mark("[") => self.list()?,
            Token::Mark(_) => {
                self.next -= 1;
                return Err(self.wrong(expected));
            }
        };
        Ok(Ast { at, what })
    }

    fn list(&mut self) -> Result<What, ExpressionError> {
        let mut all = Vec::new();
        while !self.take("]") {
            if !all.is_empty() {
                self.expect(",")?;
                if self.take("]") {
                    break;
                }
            }
            all.push(self.or()?);
        }
        Ok(What::List(all))
    }

    fn named(&mut self, at: usize, name: &str) -> Parsed {
        let what = match name {
            "true" => What::Bool(true),
            "false" => What::Bool(false),
            "request" => self.field()?,
            "metadata" if self.take("[") => {
                let Some((_, Token::Text(key))) = self.tokens.get(self.next).cloned() else {
                    return Err(self.wrong("a key in quotes"));
                };
                self.next += 1;
                self.expect("]")?;
                What::Metadata(key)
            }
            "metadata" => What::AllMetadata,
            "has" | "size" if self.take("(") => {
                let of = self.or()?.into();
                self.expect(")")?;
                match name {
                    "has" => What::Has(of),
                    _ => What::Size(of),
                }
            }
            _ => {
                let known = "there are request.FIELD, metadata[\"KEY\"], has(..) and size(..)";
                let problem = format!("`{name}` is not known: {known}");
                return Err(ExpressionError::new(at, problem));
            }
        };
        Ok(Ast { at, what })
    }

    /// The fields behind `request`, up to a function.
    fn field(&mut self) -> Result<What, ExpressionError> {
        let mut path = Vec::new();
        let is_call = |parser: &Self| {
            let call = parser.tokens.get(parser.next + 2);
            matches!(call, Some((_, Token::Mark("("))))
        };
        while self.is_next(".") && !is_call(self) {
            self.next += 1;
            let name = self.name();
            path.push(name.ok_or_else(|| self.wrong("the name of a field"))?);
        }
        match path.is_empty() {
            true => Err(self.wrong("`.` and a field")),
            false => Ok(What::Field(path)),
        }
    }
}
