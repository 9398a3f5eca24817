//! A compiled condition: it holds of a request, or not.

use starling_call::Metadata;
use starling_message::reflect::{self, ValueRef};
use starling_message::{FieldRef, Reader, Shape};

use super::ast::{Comparison, Matching};
use crate::schema::PolicyMethod;

/// What a condition is about.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    /// The method, as its server has it.
    pub(crate) method: &'a PolicyMethod,
    /// Its request, of which the fields are valid that the condition reads.
    pub(crate) reader: Reader<'a>,
    pub(crate) metadata: &'a Metadata,
}

/// A condition whose types are right for one method.
#[derive(Clone, Debug)]
pub(crate) enum Test {
    Const(bool),
    Field(Path),
    Has(Path),
    HasMetadata(String),
    Not(Box<Test>),
    All(Vec<Test>),
    Any(Vec<Test>),
    Same(Box<Test>, Box<Test>),
    Ints(Comparison, Int, Int),
    Floats(Comparison, Float, Float),
    Texts(Comparison, Text, Text),
    Match(Matching, Text, Text),
    /// In order.
    IntIn(Int, Vec<i128>),
    /// In order of their lengths, and of texts of one length.
    TextIn(Text, Vec<Vec<u8>>),
    FloatIn(Float, Vec<f64>),
    IntAmong(Int, Path),
    FloatAmong(Float, Path),
    TextAmong(Text, Path),
}

/// Numbers of fields, from the request on.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(super) parents: Vec<u32>,
    pub(super) field: u32,
}

#[derive(Clone, Debug)]
pub(crate) enum Int {
    Const(i128),
    Field(Path),
    /// Characters of a text.
    Chars(Text),
    /// Bytes of a text.
    Bytes(Text),
    /// Values of a field.
    Count(Path),
}

#[derive(Clone, Debug)]
pub(crate) enum Float {
    Const(f64),
    Field(Path),
}

/// A string, or bytes.
#[derive(Clone, Debug)]
pub(crate) enum Text {
    Const(Vec<u8>),
    /// A field of the request that is empty if it is not set: where it lies.
    Plain(Path, u32),
    Field(Path),
    Metadata(String),
}

impl Test {
    pub(crate) fn holds(&self, of: &Subject<'_>) -> bool {
        match self {
            Self::Const(value) => *value,
            Self::Field(path) => matches!(path.value(of), Some(ValueRef::Bool(true))),
            Self::Has(path) => path
                .at(of)
                .is_some_and(|(field, at)| reflect::is_set(&field, at)),
            Self::HasMetadata(key) => of.metadata.value(key).is_some(),
            Self::Not(test) => !test.holds(of),
            Self::All(all) => all.iter().all(|test| test.holds(of)),
            Self::Any(all) => all.iter().any(|test| test.holds(of)),
            Self::Same(a, b) => a.holds(of) == b.holds(of),
            Self::Ints(comparison, a, b) => comparison.holds(&a.of(of), &b.of(of)),
            Self::Floats(comparison, a, b) => comparison.holds(&a.of(of), &b.of(of)),
            Self::Texts(comparison, a, b) => comparison.holds(a.of(of), b.of(of)),
            Self::Match(matching, text, with) => {
                let (text, with) = (text.of(of), with.of(of));
                match matching {
                    Matching::StartsWith => text.starts_with(with),
                    Matching::EndsWith => text.ends_with(with),
                    Matching::Contains => contains(text, with),
                }
            }
            Self::IntIn(value, list) => list.binary_search(&value.of(of)).is_ok(),
            Self::FloatIn(value, list) => list.contains(&value.of(of)),
            Self::TextIn(value, list) => {
                let value = value.of(of);
                // Most have another length, which is seen without a look at the bytes.
                let by = |other: &Vec<u8>| {
                    (other.len().cmp(&value.len())).then_with(|| (**other).cmp(value))
                };
                list.binary_search_by(by).is_ok()
            }
            Self::IntAmong(value, path) => {
                let value = value.of(of);
                path.values(of).any(|other| int(Some(other)) == value)
            }
            Self::FloatAmong(value, path) => {
                let value = value.of(of);
                path.values(of).any(|other| float(Some(other)) == value)
            }
            Self::TextAmong(value, path) => {
                let value = value.of(of);
                path.values(of).any(|other| text(Some(other)) == value)
            }
        }
    }
}

/// In linear time. Metadata may be no UTF-8.
fn contains(text: &[u8], with: &[u8]) -> bool {
    match std::str::from_utf8(with) {
        Ok(with) => String::from_utf8_lossy(text).contains(with),
        Err(_) => false,
    }
}

impl Path {
    /// The field, in the message that has it. `None`: that is not there.
    fn at<'a>(&self, of: &Subject<'a>) -> Option<(FieldRef<'a>, Reader<'a>)> {
        let mut layout = of.method.request();
        let mut reader = of.reader;
        for number in &self.parents {
            let field = layout.field(*number)?;
            if !reflect::is_set(&field, reader) {
                return None;
            }
            let ValueRef::Message(child, at) = reflect::value(field, reader, 0) else {
                return None;
            };
            (layout, reader) = (child, at);
        }
        Some((layout.field(self.field)?, reader))
    }

    /// The value of a singular field. `None`: it has the default.
    fn value<'a>(&self, of: &Subject<'a>) -> Option<ValueRef<'a>> {
        let (field, at) = self.at(of)?;
        let is_there = field.shape == Shape::Singular && reflect::is_set(&field, at);
        is_there.then(|| reflect::value(field, at, 0))
    }

    /// The bytes of a singular string or bytes field.
    fn bytes<'a>(&self, of: &Subject<'a>) -> &'a [u8] {
        let field = self
            .at(of)
            .filter(|(field, at)| field.shape == Shape::Singular && reflect::is_set(field, *at));
        field.map_or(&[], |(field, at)| at.bytes(field.offset))
    }

    fn values<'a>(&self, of: &Subject<'a>) -> impl Iterator<Item = ValueRef<'a>> {
        let at = self.at(of).into_iter();
        at.flat_map(|(field, at)| reflect::values(field, at))
    }
}

fn int(value: Option<ValueRef<'_>>) -> i128 {
    match value {
        Some(ValueRef::I32(value) | ValueRef::Enum(value)) => value.into(),
        Some(ValueRef::U32(value)) => value.into(),
        Some(ValueRef::I64(value)) => value.into(),
        Some(ValueRef::U64(value)) => value.into(),
        _ => 0,
    }
}

fn float(value: Option<ValueRef<'_>>) -> f64 {
    match value {
        Some(ValueRef::F32(value)) => value.into(),
        Some(ValueRef::F64(value)) => value,
        _ => 0.0,
    }
}

fn text(value: Option<ValueRef<'_>>) -> &[u8] {
    match value {
        Some(ValueRef::String(value)) => value.as_bytes(),
        Some(ValueRef::Bytes(value)) => value,
        _ => &[],
    }
}

impl Int {
    fn of(&self, of: &Subject<'_>) -> i128 {
        let chars =
            |text: &[u8]| std::str::from_utf8(text).map_or(text.len(), |it| it.chars().count());
        match self {
            Self::Const(value) => *value,
            Self::Field(path) => int(path.value(of)),
            Self::Chars(text) => chars(text.of(of)) as i128,
            Self::Bytes(text) => text.of(of).len() as i128,
            Self::Count(path) => path
                .at(of)
                .map_or(0, |(field, at)| reflect::count(&field, at).into()),
        }
    }
}

impl Float {
    fn of(&self, of: &Subject<'_>) -> f64 {
        match self {
            Self::Const(value) => *value,
            Self::Field(path) => float(path.value(of)),
        }
    }
}

impl Text {
    #[inline]
    fn of<'a>(&'a self, of: &Subject<'a>) -> &'a [u8] {
        match self {
            Self::Const(value) => value,
            Self::Plain(_, offset) => of.reader.bytes(*offset),
            Self::Field(path) => path.bytes(of),
            Self::Metadata(key) => of.metadata.value(key).unwrap_or(&[]),
        }
    }
}
