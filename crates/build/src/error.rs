//! What can go wrong, always naming the file and the element.

/// Why no code was generated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A `.proto` file does not compile. The text has its place.
    #[error("{0}")]
    Proto(String),
    /// A `.proto` file is valid, but uses something that Starling does not support.
    #[error("{file}: {element}: {problem}")]
    Unsupported {
        /// The file, as imports name it.
        file: String,
        /// Full name of the element.
        element: String,
        /// What is not supported about it, and what to do instead.
        problem: String,
    },
    /// Two elements would get the same name in Rust.
    #[error("{file}: {element}: the name `{name}` in Rust is already taken by {other}")]
    Clash {
        /// The file, as imports name it.
        file: String,
        /// Full name of the element that came second.
        element: String,
        /// The Rust name.
        name: String,
        /// Full name of the element that came first.
        other: String,
    },
    /// A file could not be written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// `OUT_DIR` is not set: not called from `build.rs`, and no output directory was given.
    #[error("OUT_DIR is not set: call this from build.rs, or give Config::out_dir")]
    NoOutDir,
}

/// An [`Error::Unsupported`].
pub(crate) fn unsupported(file: &str, element: &str, problem: impl Into<String>) -> Error {
    Error::Unsupported {
        file: file.to_owned(),
        element: element.to_owned(),
        problem: problem.into(),
    }
}
