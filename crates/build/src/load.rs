//! Loads files into checked descriptors.

use std::path::{Path, PathBuf};

use prost_reflect::{DescriptorPool, FileDescriptor, Syntax};
use protox::file::{
    ChainFileResolver, File, FileResolver, GoogleFileResolver, IncludeFileResolver,
};

use crate::error::{Error, Place};

/// The import path of the file with Starling's options.
pub(crate) const OPTIONS_FILE: &str = "starling/options.proto";

/// The name of the generated file that includes all packages, without its extension.
pub(crate) const ALL_PACKAGES: &str = "packages";

/// Files that only describe others: no code is generated for them.
const META_FILES: [&str; 3] = [
    OPTIONS_FILE,
    "google/protobuf/descriptor.proto",
    "google/protobuf/compiler/plugin.proto",
];

/// Field numbers in a file's descriptor, by which source information refers to these statements.
pub(crate) const PACKAGE: i32 = 2;
const SYNTAX: i32 = 12;

/// The error for any other syntax.
const PROTO3: &str = "only proto3 is supported; start the file with `syntax = \"proto3\";`";

/// Google's files, which need no include directory; missing imports of them are common.
const GOOGLE_FILES: [&str; 10] = [
    "google/protobuf/any.proto",
    "google/protobuf/api.proto",
    "google/protobuf/duration.proto",
    "google/protobuf/empty.proto",
    "google/protobuf/field_mask.proto",
    "google/protobuf/source_context.proto",
    "google/protobuf/struct.proto",
    "google/protobuf/timestamp.proto",
    "google/protobuf/type.proto",
    "google/protobuf/wrappers.proto",
];

/// Compiled `.proto` files.
pub(crate) struct Loaded {
    /// All files, imports included.
    pub(crate) pool: DescriptorPool,
    /// The files that were read from disk.
    pub(crate) paths: Vec<PathBuf>,
}

/// Whether code is generated for a file.
pub(crate) fn has_code(file: &FileDescriptor) -> bool {
    !META_FILES.contains(&file.name())
}

struct OptionsResolver;

impl FileResolver for OptionsResolver {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        match name {
            OPTIONS_FILE => {
                File::from_source(name, include_str!("../proto/starling/options.proto"))
            }
            _ => Err(protox::Error::file_not_found(name)),
        }
    }
}

pub(crate) fn load(
    protos: &[impl AsRef<Path>],
    includes: &[impl AsRef<Path>],
) -> Result<Loaded, Error> {
    let mut resolver = ChainFileResolver::new();
    for include in includes {
        resolver.add(IncludeFileResolver::new(include.as_ref().to_owned()));
    }
    resolver.add(OptionsResolver);
    resolver.add(GoogleFileResolver::new());
    let mut compiler = protox::Compiler::with_file_resolver(resolver);
    compiler.include_source_info(true).include_imports(true);
    // The debug form of this error contains the position.
    compiler.open_files(protos).map_err(|error| {
        let advice = advice(&error, includes).map_or_else(String::new, |text| format!("; {text}"));
        Error::Proto(format!("{error:?}{advice}"))
    })?;
    let paths = compiler
        .files()
        .filter_map(|file| file.path().map(Path::to_owned))
        .collect();
    let pool = compiler.descriptor_pool();
    for file in pool.files().filter(has_code) {
        check(&file)?;
    }
    Ok(Loaded { pool, paths })
}

/// The remedy for a mistake, if the error's text does not give it.
fn advice(error: &protox::Error, includes: &[impl AsRef<Path>]) -> Option<String> {
    if error.is_file_not_found() {
        let directories: Vec<String> = includes
            .iter()
            .map(|include| include.as_ref().display().to_string())
            .collect();
        let from = std::env::current_dir().unwrap_or_default();
        return Some(format!(
            "searched these include directories, relative to {}: {}",
            from.display(),
            directories.join(", ")
        ));
    }
    let text = error.to_string();
    if text.ends_with("found 'edition'") {
        return Some(PROTO3.to_owned());
    }
    if text.contains("type 'starling.Mode'") {
        return Some("it is INLINE, WORKER or NESTED".to_owned());
    }
    let name = text
        .strip_prefix("name '")?
        .strip_suffix("' is not defined")?;
    let known = match name.strip_prefix("starling.") {
        Some(_) => Some(OPTIONS_FILE),
        None => GOOGLE_FILES
            .iter()
            .copied()
            .find(|file| declares(file, name)),
    };
    Some(match known {
        Some(file) => format!("add `import \"{file}\";`"),
        None => "declare it, or import the file that declares it".to_owned(),
    })
}

/// The built-in file that declares a type of this full name.
fn declares(file: &str, name: &str) -> bool {
    let Ok(file) = GoogleFileResolver::new().open_file(file) else {
        return false;
    };
    let file = file.file_descriptor_proto();
    let Some(name) = name
        .strip_prefix(file.package())
        .and_then(|name| name.strip_prefix('.'))
    else {
        return false;
    };
    let mut messages = file.message_type.iter().map(|message| message.name());
    let mut enums = file.enum_type.iter().map(|enumeration| enumeration.name());
    messages.any(|message| message == name) || enums.any(|enumeration| enumeration == name)
}

fn check(file: &FileDescriptor) -> Result<(), Error> {
    // A file of older syntax that only extends options, such as a linter's, is irrelevant here.
    let declares = file.messages().len() + file.enums().len() + file.services().len() > 0;
    if file.syntax() != Syntax::Proto3 && declares {
        return Err(Error::Unsupported {
            place: Place::of(file, &[SYNTAX], ""),
            problem: PROTO3.into(),
        });
    }
    if file.package_name() == ALL_PACKAGES {
        let problem = "the file `packages.rs` includes all packages; rename this one";
        return Err(Error::Unsupported {
            place: Place::of(file, &[PACKAGE], file.package_name()),
            problem: problem.into(),
        });
    }
    // Proto3 allows extensions only of options, which are irrelevant here.
    Ok(())
}
