//! Conditions on requests, a small part of the Common Expression Language (cel.dev): typed, checked against a method's
//! schema when they are compiled, and evaluated in time that is bounded by their size and the message's.
//!
//! ```text
//!  text ─ parse ─▶ Ast ─ compile(schema) ─▶ Test ─ holds(message) ─▶ bool
//! ```
//!
//! ```text
//!  or      = and ("||" and)*
//!  and     = compare ("&&" compare)*
//!  compare = unary [("==" | "!=" | "<" | "<=" | ">" | ">=" | "in") unary]
//!  unary   = ("!" | "-") unary | postfix
//!  primary = literal | list | "(" or ")" | "request" ("." field)+ | "metadata" "[" text "]"
//!          | "has" "(" or ")" | "size" "(" or ")"
//!  postfix = primary ["." ("startsWith" | "endsWith" | "contains" | "size") "(" [or] ")"]
//! ```
//!
//! It differs from CEL in that integers of all kinds compare by their value, an enumeration is its number, and what is
//! not there has the default of its type, messages and metadata included. Evaluation cannot fail.

mod ast;
mod compile;
mod lexer;
mod parser;
mod test;
#[cfg(test)]
mod tests;

pub(crate) use self::ast::Ast;
pub(crate) use self::test::{Subject, Test};

/// The longest text of a condition, in bytes.
pub(crate) const MAX_BYTES: usize = 256 << 10;
/// How deep it may be nested.
const MAX_DEPTH: usize = 40;

/// Why a condition is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at character {at}: {problem}")]
pub(crate) struct ExpressionError {
    /// From 1.
    at: usize,
    problem: String,
}

impl ExpressionError {
    fn new(at: usize, problem: impl Into<String>) -> Self {
        Self {
            at: at + 1,
            problem: problem.into(),
        }
    }
}
