//! A condition as it was written, without types.

use super::ExpressionError;
use super::parser::Parser;

/// A part of a condition, and where it begins.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ast {
    pub(super) at: usize,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum What {
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Ast>),
    /// Names of fields, from the request on.
    Field(Vec<String>),
    Metadata(String),
    /// `metadata` itself, behind `in`.
    AllMetadata,
    Not(Box<Ast>),
    And(Vec<Ast>),
    Or(Vec<Ast>),
    Compare(Comparison, Box<Ast>, Box<Ast>),
    In(Box<Ast>, Box<Ast>),
    Has(Box<Ast>),
    Size(Box<Ast>),
    Match(Matching, Box<Ast>, Box<Ast>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    pub(super) fn of(mark: &str) -> Option<Self> {
        Some(match mark {
            "==" => Self::Equal,
            "!=" => Self::NotEqual,
            "<" => Self::Less,
            "<=" => Self::LessOrEqual,
            ">" => Self::Greater,
            ">=" => Self::GreaterOrEqual,
            _ => return None,
        })
    }

    pub(super) fn holds<T: PartialOrd + ?Sized>(self, a: &T, b: &T) -> bool {
        match self {
            Self::Equal => a == b,
            Self::NotEqual => a != b,
            Self::Less => a < b,
            Self::LessOrEqual => a <= b,
            Self::Greater => a > b,
            Self::GreaterOrEqual => a >= b,
        }
    }
}

/// How a text has to do with another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Matching {
    StartsWith,
    EndsWith,
    Contains,
}

impl Ast {
    /// Reads a condition.
    ///
    /// # Errors
    /// What is wrong with it, and where. Its types are checked when it is compiled.
    pub(crate) fn parse(text: &str) -> Result<Self, ExpressionError> {
        Parser::new(text)?.whole()
    }
}
