//! Compiles `.proto` files to Starling messages and stubs, from `build.rs`. No protoc is needed.
//!
//! This crate must not be linked into applications: only their `build.rs` uses it, and tools.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! starling_build::compile(&["proto/kv.proto"], &["proto"])?;
//! # Ok(())
//! # }
//! ```
//!
//! Each package becomes one file in `OUT_DIR`, `kv.rs` or `shop.order.rs`, and `packages.rs` includes
//! all of them as modules nested like the packages. A package that refers to another one finds it
//! through the parent modules. So either include `packages.rs` (with `include_proto!("packages")`, or
//! with `include!` and its path if [`Config::out_dir`] is set), or nest modules the same way. Well-known
//! types such as `google.protobuf.Timestamp` come with the runtime (`starling::well_known`). The
//! documentation of `starling` lists the names of accessors.
//!
//! A package `shop.order` and the declarations within a message `shop.Order` share the module
//! `shop::order`; only `packages.rs` joins them.
//!
//! A `build.rs` can return the error from `main`: cargo shows its text, with file, line and column.
//!
//! ```text
//!  .proto ──load──▶ descriptors ──schema──▶ canonical schemas, hashes
//!                        │                        │
//!                        ├──message, enumeration──┼──▶ layouts, views, owned types
//!                        └──service───────────────┴──▶ server trait, server, client
//! ```

mod comments;
mod enumeration;
mod error;
mod field;
mod load;
mod message;
mod names;
mod package;
mod schema;
mod service;
mod streaming;

use std::path::{Path, PathBuf};

pub use error::{Error, Place};
pub use schema::{schema_of, schemas};

/// Compiles `.proto` files into `OUT_DIR`. They and their imports are searched in `includes`.
pub fn compile(protos: &[impl AsRef<Path>], includes: &[impl AsRef<Path>]) -> Result<(), Error> {
    Config::new().compile(protos, includes)
}

/// How to generate code. All settings have defaults.
#[derive(Clone, Debug)]
pub struct Config {
    out_dir: Option<PathBuf>,
    runtime_path: String,
    extern_paths: Vec<(String, String)>,
    compile_well_known_types: bool,
    services: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            out_dir: None,
            runtime_path: "::starling::stub".to_owned(),
            extern_paths: Vec::new(),
            compile_well_known_types: false,
            services: true,
        }
    }
}

/// A generated file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedFile {
    /// Its name within the output directory.
    pub name: String,
    /// Its content.
    pub content: Vec<u8>,
}

impl Config {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes to this directory instead of `OUT_DIR`.
    pub fn out_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.out_dir = Some(path.into());
        self
    }

    /// The Rust path of the items that generated code uses; `::starling::stub` by default. For
    /// messages without services, `::starling_message` is enough.
    pub fn runtime_path(mut self, path: impl Into<String>) -> Self {
        self.runtime_path = path.into();
        self
    }

    /// Uses code for a package that was generated elsewhere, at this Rust path:
    /// `extern_path("google.protobuf", "::my_protos::google::protobuf")`.
    pub fn extern_path(mut self, package: impl Into<String>, rust_path: impl Into<String>) -> Self {
        self.extern_paths.push((package.into(), rust_path.into()));
        self
    }

    /// Generates the package `google.protobuf` like any other. Otherwise code refers to the types
    /// that come with the runtime, at `starling::well_known`, which convert to those of `std`.
    pub fn compile_well_known_types(mut self, yes: bool) -> Self {
        self.compile_well_known_types = yes;
        self
    }

    /// The Rust path of the package `google.protobuf`, if its types come with the runtime.
    pub(crate) fn well_known_path(&self) -> Option<String> {
        let is_given = |(package, _): &(String, String)| package == names::WELL_KNOWN;
        let comes = !self.compile_well_known_types && !self.extern_paths.iter().any(is_given);
        comes.then(|| format!("{}::well_known", self.runtime_path))
    }

    /// Whether to generate stubs for services; `true` by default.
    pub fn services(mut self, yes: bool) -> Self {
        self.services = yes;
        self
    }

    /// Compiles `.proto` files and writes the result. They and their imports are searched in
    /// `includes`. In `build.rs`, it also tells cargo which files to watch.
    pub fn compile(
        &self,
        protos: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<(), Error> {
        let out_dir = match &self.out_dir {
            Some(path) => path.clone(),
            None => std::env::var_os("OUT_DIR")
                .map(PathBuf::from)
                .ok_or(Error::NoOutDir)?,
        };
        let loaded = load::load(protos, includes)?;
        // Set in every build script, also in one that writes elsewhere.
        if std::env::var_os("OUT_DIR").is_some() {
            for path in &loaded.paths {
                println!("cargo:rerun-if-changed={}", path.display());
            }
        }
        for file in package::generate(self, &loaded.pool)? {
            let path = out_dir.join(&file.name);
            // An unchanged file keeps its time stamp, so cargo compiles nothing again.
            if std::fs::read(&path).is_ok_and(|old| old == file.content) {
                continue;
            }
            std::fs::write(&path, &file.content).map_err(|source| Error::Io {
                path: path.display().to_string(),
                source,
            })?;
        }
        Ok(())
    }

    /// Like [`Config::compile`], but returns the files instead of writing them.
    pub fn generate(
        &self,
        protos: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<Vec<GeneratedFile>, Error> {
        package::generate(self, &load::load(protos, includes)?.pool)
    }
}
