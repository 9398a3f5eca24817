//! From files to checked descriptors.

use std::path::{Path, PathBuf};

use prost_reflect::{DescriptorPool, FileDescriptor, Syntax};
use protox::file::{
    ChainFileResolver, File, FileResolver, GoogleFileResolver, IncludeFileResolver,
};

use crate::error::{Error, unsupported};

/// The file with Starling's options, as imports name it.
pub(crate) const OPTIONS_FILE: &str = "starling/options.proto";

/// Files that only describe others: no code is generated for them.
const META_FILES: [&str; 3] = [
    OPTIONS_FILE,
    "google/protobuf/descriptor.proto",
    "google/protobuf/compiler/plugin.proto",
];

/// Compiled `.proto` files.
pub(crate) struct Loaded {
    /// All files, imports included.
    pub(crate) pool: DescriptorPool,
    /// Those that were read from disk.
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
    // The debug form of this error has the place in the source.
    compiler
        .open_files(protos)
        .map_err(|error| Error::Proto(format!("{error:?}")))?;
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

fn check(file: &FileDescriptor) -> Result<(), Error> {
    if file.syntax() != Syntax::Proto3 {
        let problem = "only proto3 is supported; start the file with `syntax = \"proto3\";`";
        return Err(unsupported(file.name(), file.package_name(), problem));
    }
    // Proto3 allows extensions of options only. They say nothing to us and change nothing.
    for service in file.services() {
        for method in service.methods() {
            if method.is_client_streaming() || method.is_server_streaming() {
                let problem = "streaming is not supported yet; use a unary method";
                return Err(unsupported(file.name(), method.full_name(), problem));
            }
        }
    }
    Ok(())
}
