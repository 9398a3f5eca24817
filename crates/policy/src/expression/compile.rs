//! From an [`Ast`] to a [`Test`]: names become numbers of fields, and types are checked.

use std::cell::RefCell;

use starling_call::Metadata;
use starling_message::{FieldRef, Kind, LayoutRef, Presence, Shape};

use super::ExpressionError;
use super::ast::{Ast, Comparison, Matching, What};
use super::test::{Float, Int, Path, Test, Text};

/// Fields that an error names.
const NAMED: usize = 12;

/// A part of a condition, with its type.
enum Typed {
    Bool(Test),
    Int(Int),
    Float(Float),
    String(Text),
    Bytes(Text),
    Message(Path),
    /// A repeated field with values of a kind.
    Repeated(Path, Kind),
    Map(Path),
    List,
    Metadata,
}

impl Typed {
    fn name(&self) -> &'static str {
        match self {
            Self::Bool(_) => "a bool",
            Self::Int(_) => "an integer",
            Self::Float(_) => "a float",
            Self::String(_) => "a string",
            Self::Bytes(_) => "bytes",
            Self::Message(_) => "a message",
            Self::Repeated(..) => "a repeated field",
            Self::Map(_) => "a map",
            Self::List => "a list",
            Self::Metadata => "all metadata",
        }
    }
}

impl Ast {
    /// A test of requests with this layout. The numbers of the fields of the request that it reads, or reads messages
    /// of, are appended to `fields`.
    ///
    /// # Errors
    /// A field that the message does not have, or a type that does not fit.
    pub(crate) fn compile(
        &self,
        layout: LayoutRef<'_>,
        fields: &mut Vec<u32>,
    ) -> Result<Test, ExpressionError> {
        let fields = RefCell::new(fields);
        Compiler { layout, fields }.test(self)
    }
}

struct Compiler<'l> {
    layout: LayoutRef<'l>,
    /// Those of the request that are read.
    fields: RefCell<&'l mut Vec<u32>>,
}

impl Compiler<'_> {
    fn test(&self, ast: &Ast) -> Result<Test, ExpressionError> {
        match self.typed(ast)? {
            Typed::Bool(test) => Ok(test),
            other => {
                let problem = format!("{} is here, where a bool is expected", other.name());
                Err(ExpressionError::new(ast.at, problem))
            }
        }
    }

    fn tests(&self, all: &[Ast]) -> Result<Vec<Test>, ExpressionError> {
        all.iter().map(|ast| self.test(ast)).collect()
    }

    fn typed(&self, ast: &Ast) -> Result<Typed, ExpressionError> {
        let test = match &ast.what {
            What::Bool(value) => Test::Const(*value),
            What::Int(value) => return Ok(Typed::Int(Int::Const(*value))),
            What::Float(value) => return Ok(Typed::Float(Float::Const(*value))),
            What::Text(text) => return Ok(Typed::String(Text::Const(text.clone().into_bytes()))),
            What::Bytes(bytes) => return Ok(Typed::Bytes(Text::Const(bytes.clone()))),
            What::List(_) => return Ok(Typed::List),
            What::Metadata(key) => {
                check_key(ast.at, key)?;
                return Ok(Typed::String(Text::Metadata(key.clone())));
            }
            What::AllMetadata => return Ok(Typed::Metadata),
            What::Field(path) => return self.field(ast.at, path),
            What::Size(of) => return self.size(of),
            What::Not(of) => Test::Not(self.test(of)?.into()),
            What::And(all) => Test::All(self.tests(all)?),
            What::Or(all) => Test::Any(self.tests(all)?),
            What::Has(of) => self.has(of)?,
            What::Compare(comparison, a, b) => self.compare(ast.at, *comparison, a, b)?,
            What::In(value, list) => self.is_in(value, list)?,
            What::Match(matching, text, with) => match (self.typed(text)?, self.typed(with)?) {
                (Typed::String(text), Typed::String(with)) => Test::Match(*matching, text, with),
                // Of long bytes that would take too long.
                (Typed::Bytes(text), Typed::Bytes(with)) if *matching != Matching::Contains => {
                    Test::Match(*matching, text, with)
                }
                (a, b) => return Err(unequal(ast.at, &a, &b, "be found in")),
            },
        };
        Ok(Typed::Bool(test))
    }

    /// The type of a field of the request, by the names that lead there.
    fn field(&self, at: usize, names: &[String]) -> Result<Typed, ExpressionError> {
        let mut layout = self.layout;
        let mut parents = Vec::new();
        let mut names = names.iter();
        let mut name = names.next().map_or("", |name| name);
        loop {
            let field = layout.fields().find(|field| field.name() == name);
            let field = field.ok_or_else(|| unknown(at, layout, name))?;
            let Some(next) = names.next() else {
                let number = field.number;
                let first = parents.first().copied();
                self.fields.borrow_mut().push(first.unwrap_or(number));
                return Ok(typed_field(
                    Path {
                        parents,
                        field: number,
                    },
                    field,
                ));
            };
            let message = field.message().filter(|_| field.shape == Shape::Singular);
            layout = message.ok_or_else(|| {
                let problem = format!("{}.{name} is no message, and has no {next}", layout.name());
                ExpressionError::new(at, problem)
            })?;
            parents.push(field.number);
            name = next;
        }
    }

    fn size(&self, of: &Ast) -> Result<Typed, ExpressionError> {
        Ok(Typed::Int(match self.typed(of)? {
            Typed::String(text) => Int::Chars(text),
            Typed::Bytes(text) => Int::Bytes(text),
            Typed::Repeated(path, _) | Typed::Map(path) => Int::Count(path),
            other => {
                let problem = format!("{} has no size", other.name());
                return Err(ExpressionError::new(of.at, problem));
            }
        }))
    }

    fn has(&self, of: &Ast) -> Result<Test, ExpressionError> {
        match &of.what {
            What::Metadata(key) => {
                check_key(of.at, key)?;
                return Ok(Test::HasMetadata(key.clone()));
            }
            What::Field(_) => {}
            _ => {
                let problem = "has(..) takes request.FIELD or metadata[\"KEY\"]";
                return Err(ExpressionError::new(of.at, problem));
            }
        }
        let path = match self.typed(of)? {
            Typed::Bool(Test::Field(path))
            | Typed::Int(Int::Field(path))
            | Typed::Float(Float::Field(path))
            | Typed::String(Text::Field(path) | Text::Plain(path, _))
            | Typed::Bytes(Text::Field(path) | Text::Plain(path, _))
            | Typed::Message(path)
            | Typed::Repeated(path, _)
            | Typed::Map(path) => path,
            _ => unreachable!("a field is one of these"),
        };
        Ok(Test::Has(path))
    }

    fn compare(
        &self,
        at: usize,
        comparison: Comparison,
        a: &Ast,
        b: &Ast,
    ) -> Result<Test, ExpressionError> {
        Ok(match (self.typed(a)?, self.typed(b)?) {
            (Typed::Int(a), Typed::Int(b)) => Test::Ints(comparison, a, b),
            (Typed::Float(a), Typed::Float(b)) => Test::Floats(comparison, a, b),
            // Literals fit both.
            (Typed::Float(a), Typed::Int(Int::Const(b))) => {
                Test::Floats(comparison, a, Float::Const(b as f64))
            }
            (Typed::Int(Int::Const(a)), Typed::Float(b)) => {
                Test::Floats(comparison, Float::Const(a as f64), b)
            }
            (Typed::String(a), Typed::String(b)) | (Typed::Bytes(a), Typed::Bytes(b)) => {
                Test::Texts(comparison, a, b)
            }
            (Typed::Bool(a), Typed::Bool(b)) => {
                let same = Test::Same(a.into(), b.into());
                match comparison {
                    Comparison::Equal => same,
                    Comparison::NotEqual => Test::Not(same.into()),
                    _ => return Err(ExpressionError::new(at, "bools have no order")),
                }
            }
            (a, b) => return Err(unequal(at, &a, &b, "be compared with")),
        })
    }

    fn is_in(&self, value: &Ast, list: &Ast) -> Result<Test, ExpressionError> {
        let typed = self.typed(value)?;
        if let What::List(all) = &list.what {
            return self.is_in_list(value.at, typed, all);
        }
        Ok(match (typed, self.typed(list)?) {
            (Typed::Int(value), Typed::Repeated(path, kind)) if is_int(kind) => {
                Test::IntAmong(value, path)
            }
            (Typed::Float(value), Typed::Repeated(path, Kind::Float | Kind::Double)) => {
                Test::FloatAmong(value, path)
            }
            (Typed::String(value), Typed::Repeated(path, Kind::String))
            | (Typed::Bytes(value), Typed::Repeated(path, Kind::Bytes)) => {
                Test::TextAmong(value, path)
            }
            (Typed::String(Text::Const(key)), Typed::Metadata) => {
                let key = String::from_utf8_lossy(&key).into_owned();
                check_key(value.at, &key)?;
                Test::HasMetadata(key)
            }
            (a, b) => return Err(unequal(list.at, &a, &b, "be in")),
        })
    }

    fn is_in_list(&self, at: usize, value: Typed, all: &[Ast]) -> Result<Test, ExpressionError> {
        let expected = value.name();
        let wrong = |of: &Ast| {
            let problem =
                format!("the list has something else than {expected} here: write literals");
            ExpressionError::new(of.at, problem)
        };
        Ok(match value {
            Typed::Int(value) => {
                let int = |of: &Ast| match of.what {
                    What::Int(int) => Ok(int),
                    _ => Err(wrong(of)),
                };
                let mut list = all.iter().map(int).collect::<Result<Vec<_>, _>>()?;
                list.sort_unstable();
                Test::IntIn(value, list)
            }
            Typed::Float(value) => {
                let float = |of: &Ast| match of.what {
                    What::Float(float) => Ok(float),
                    What::Int(int) => Ok(int as f64),
                    _ => Err(wrong(of)),
                };
                Test::FloatIn(value, all.iter().map(float).collect::<Result<_, _>>()?)
            }
            Typed::String(value) => {
                let text = |of: &Ast| match &of.what {
                    What::Text(text) => Ok(text.clone().into_bytes()),
                    _ => Err(wrong(of)),
                };
                in_texts(value, all.iter().map(text).collect::<Result<_, _>>()?)
            }
            Typed::Bytes(value) => {
                let bytes = |of: &Ast| match &of.what {
                    What::Bytes(bytes) => Ok(bytes.clone()),
                    _ => Err(wrong(of)),
                };
                in_texts(value, all.iter().map(bytes).collect::<Result<_, _>>()?)
            }
            other => return Err(unequal(at, &other, &Typed::List, "be in")),
        })
    }
}

/// Whether a text is one of these.
fn in_texts(value: Text, mut list: Vec<Vec<u8>>) -> Test {
    list.sort_unstable_by(|a, b| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
    Test::TextIn(value, list)
}

/// A key that no request can have would make a condition that never holds.
fn check_key(at: usize, key: &str) -> Result<(), ExpressionError> {
    let inserted = Metadata::new().insert(key, "");
    inserted.map_err(|error| ExpressionError::new(at, format!("metadata[{key:?}]: {error}")))
}

fn is_int(kind: Kind) -> bool {
    !matches!(
        kind,
        Kind::Bool | Kind::Float | Kind::Double | Kind::String | Kind::Bytes | Kind::Message
    )
}

fn typed_field(path: Path, field: FieldRef<'_>) -> Typed {
    match (field.shape, field.kind) {
        (Shape::Map, _) => Typed::Map(path),
        (Shape::Repeated, kind) => Typed::Repeated(path, kind),
        (Shape::Singular, Kind::Bool) => Typed::Bool(Test::Field(path)),
        (Shape::Singular, Kind::Float | Kind::Double) => Typed::Float(Float::Field(path)),
        (Shape::Singular, Kind::String) => Typed::String(text_field(path, field)),
        (Shape::Singular, Kind::Bytes) => Typed::Bytes(text_field(path, field)),
        (Shape::Singular, Kind::Message) => Typed::Message(path),
        (Shape::Singular, _) => Typed::Int(Int::Field(path)),
    }
}

fn text_field(path: Path, field: FieldRef<'_>) -> Text {
    match field.presence {
        Presence::Implicit if path.parents.is_empty() => Text::Plain(path, field.offset),
        _ => Text::Field(path),
    }
}

fn unequal(at: usize, a: &Typed, b: &Typed, attempt: &str) -> ExpressionError {
    let problem = format!("{} cannot {attempt} {}", a.name(), b.name());
    ExpressionError::new(at, problem)
}

fn unknown(at: usize, layout: LayoutRef<'_>, name: &str) -> ExpressionError {
    let names: Vec<_> = layout
        .fields()
        .take(NAMED)
        .map(|field| field.name())
        .collect();
    let more = match layout.fields().len() > NAMED {
        true => ", and others",
        false => "",
    };
    let problem = match names.is_empty() {
        true => format!("{} has no fields", layout.name()),
        false => format!(
            "{} has no field {name}: it has {}{more}",
            layout.name(),
            names.join(", ")
        ),
    };
    ExpressionError::new(at, problem)
}
