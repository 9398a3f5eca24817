//! Errors. Each one names the place in the file and the element.

use std::fmt;

use prost_reflect::{
    EnumDescriptor, FieldDescriptor, FileDescriptor, MessageDescriptor, MethodDescriptor,
    OneofDescriptor, ServiceDescriptor,
};

/// Why no code was generated.
#[derive(thiserror::Error)]
pub enum Error {
    /// A `.proto` file does not compile. The text says where.
    #[error("{0}")]
    Proto(String),
    /// A `.proto` file is valid, but uses something that Starling does not support.
    #[error("{place}: {problem}")]
    Unsupported {
        /// Where it is used.
        place: Place,
        /// The unsupported feature, and the remedy.
        problem: String,
    },
    /// Two elements would get the same name in Rust.
    #[error(
        "{place}: the name `{name}` in Rust is already taken by {other}; rename one of them in its file"
    )]
    Clash {
        /// The element that came second.
        place: Place,
        /// The Rust name.
        name: String,
        /// The element that came first.
        other: Box<Place>,
    },
    /// A file could not be written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// `OUT_DIR` is not set: the caller is not a `build.rs` and has set no output directory.
    #[error("OUT_DIR is not set: call this from build.rs, or set Config::out_dir")]
    NoOutDir,
}

impl fmt::Debug for Error {
    /// The text itself: a `build.rs` that returns the error from `main` prints this form.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An element of a `.proto` file, and its position: `kv.proto:7:3: kv.Kv.Watch`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, as imports name it.
    pub file: String,
    /// Line and column, from 1, if they are known.
    pub at: Option<(u32, u32)>,
    /// Full name of the element; empty if it is the file itself.
    pub element: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some((line, column)) = self.at {
            write!(f, ":{line}:{column}")?;
        }
        match &*self.element {
            "" => Ok(()),
            element => write!(f, ": {element}"),
        }
    }
}

impl Place {
    /// The element `name` at a path of the file's source information.
    pub(crate) fn of(file: &FileDescriptor, path: &[i32], name: &str) -> Self {
        let info = file.file_descriptor_proto().source_code_info.as_ref();
        let location = info.and_then(|info| info.location.iter().find(|at| at.path == path));
        let from_one = |number: i32| u32::try_from(number).map_or(0, |number| number + 1);
        let at = location.and_then(|location| match location.span[..] {
            [line, column, ..] => Some((from_one(line), from_one(column))),
            _ => None,
        });
        Place {
            file: file.name().to_owned(),
            at,
            element: name.to_owned(),
        }
    }
}

/// Something that has a place.
pub(crate) trait Element {
    /// Its place.
    fn place(&self) -> Place;
}

macro_rules! elements {
    ($($type:ident)*) => {$(
        impl Element for $type {
            fn place(&self) -> Place {
                Place::of(&self.parent_file(), self.path(), self.full_name())
            }
        }
    )*};
}

elements!(EnumDescriptor FieldDescriptor MessageDescriptor MethodDescriptor OneofDescriptor ServiceDescriptor);

/// An [`Error::Unsupported`].
pub(crate) fn unsupported(element: &impl Element, problem: impl Into<String>) -> Error {
    Error::Unsupported {
        place: element.place(),
        problem: problem.into(),
    }
}
