//! Generates files from descriptors, one for each package.

use std::collections::{BTreeMap, BTreeSet};

use prost_reflect::prost::Message as _;
use prost_reflect::{DescriptorPool, FileDescriptor};
use prost_types::{FileDescriptorProto, FileDescriptorSet};

use crate::error::{Error, Place};
use crate::load::{ALL_PACKAGES, PACKAGE, has_code};
use crate::names::{ITEMS, RUNTIME, Scope, UsedNames, WELL_KNOWN, camel, package_modules};
use crate::{Config, GeneratedFile, enumeration, message, service};

/// All files, ordered by name.
pub(crate) fn generate(
    config: &Config,
    pool: &DescriptorPool,
) -> Result<Vec<GeneratedFile>, Error> {
    let well_known = config.well_known_path();
    let is_elsewhere = |package: &str| {
        config.extern_paths.iter().any(|(name, _)| name == package)
            || (well_known.is_some() && package == WELL_KNOWN)
    };
    let mut packages: BTreeMap<String, Vec<FileDescriptor>> = BTreeMap::new();
    for file in pool.files().filter(has_code) {
        let package = file.package_name();
        if !is_elsewhere(package) {
            packages.entry(package.to_owned()).or_default().push(file);
        }
    }
    let mut tree = Modules::default();
    for (package, files) in &mut packages {
        files.sort_by(|a, b| a.name().cmp(b.name()));
        let path = package_modules(package);
        let place = Place::of(&files[0], &[PACKAGE], package);
        if let Some(other) = tree.at(&path).package.replace(place.clone()) {
            return Err(Error::Clash {
                place,
                name: path.join("::"),
                other: Box::new(other),
            });
        }
    }
    let (mut generated, mut used) = (Vec::new(), UsedNames::default());
    for (package, files) in &packages {
        let scope = Scope {
            package,
            modules: Vec::new(),
            extern_paths: &config.extern_paths,
            well_known: well_known.as_deref(),
            runtime: RUNTIME,
        };
        generate_package(config, &scope, files, &mut used, &mut generated)?;
    }
    let mut text = String::new();
    tree.write(&mut Vec::new(), &used, &mut text);
    generated.push(GeneratedFile {
        name: format!("{ALL_PACKAGES}.rs"),
        content: format(&text),
    });
    generated.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(generated)
}

/// Name of a package's file, without its ending.
fn stem(package: &str) -> &str {
    if package.is_empty() { "_" } else { package }
}

fn generate_package(
    config: &Config,
    scope: &Scope<'_>,
    files: &[FileDescriptor],
    used: &mut UsedNames,
    generated: &mut Vec<GeneratedFile>,
) -> Result<(), Error> {
    let package = scope.package;
    let mut items = String::new();
    for file in files {
        for enumeration in file.enums() {
            used.add(scope, &enumeration, camel(enumeration.name()))?;
            enumeration::generate(&enumeration, scope, &mut items);
        }
        for message in file.messages() {
            message::generate(&message, scope, used, &mut items)?;
        }
    }
    if config.services && files.iter().any(|file| file.services().len() > 0) {
        let set = format!("{}.fds", stem(package));
        for file in files {
            for service in file.services() {
                service::generate(&service, scope, &set, used, &mut items)?;
            }
        }
        generated.push(GeneratedFile {
            name: set,
            content: descriptor_set(files),
        });
    }
    let text = format!(
        "#[allow(dead_code, nonstandard_style, unreachable_pub, unused_imports, clippy::all, clippy::pedantic)]
        mod {ITEMS} {{ use {} as {RUNTIME}; {items} }}
        #[allow(unused_imports, unreachable_pub)]
        pub use {ITEMS}::*;\n",
        config.runtime_path,
    );
    let name = format!("{}.rs", stem(package));
    generated.push(GeneratedFile {
        name,
        content: format(&text),
    });
    Ok(())
}

/// These files and their imports, imports first, without comments.
fn descriptor_set(files: &[FileDescriptor]) -> Vec<u8> {
    fn add(file: &FileDescriptor, seen: &mut BTreeSet<String>, out: &mut Vec<FileDescriptorProto>) {
        if !seen.insert(file.name().to_owned()) {
            return;
        }
        for import in file.dependencies() {
            add(&import, seen, out);
        }
        let proto = file.file_descriptor_proto().clone();
        out.push(FileDescriptorProto {
            source_code_info: None,
            ..proto
        });
    }
    let (mut seen, mut file) = (BTreeSet::new(), Vec::new());
    for each in files {
        add(each, &mut seen, &mut file);
    }
    FileDescriptorSet { file }.encode_to_vec()
}

/// Formats code.
///
/// # Panics
/// If the code is not Rust, which is a bug of this crate.
fn format(text: &str) -> Vec<u8> {
    let parsed = syn::parse_file(text)
        .unwrap_or_else(|error| panic!("generated code does not parse: {error}\n{text}"));
    let pretty = prettyplease::unparse(&parsed);
    format!("// Generated by starling-build. Do not edit.\n\n{pretty}").into_bytes()
}

/// Modules nested like the packages.
#[derive(Default)]
struct Modules {
    /// The package that this is the module of.
    package: Option<Place>,
    inner: BTreeMap<String, Modules>,
}

impl Modules {
    fn at(&mut self, path: &[String]) -> &mut Modules {
        path.iter().fold(self, |module, name| {
            module.inner.entry(name.clone()).or_default()
        })
    }

    fn write(&self, path: &mut Vec<String>, used: &UsedNames, out: &mut String) {
        if let Some(package) = &self.package {
            // In the same directory as this file.
            let file = format!("{}.rs", stem(&package.element));
            out.push_str(&format!("include!({file:?});\n"));
        }
        // This module hides that of a message with the same name.
        if let Some(hidden) = used.hidden(path) {
            out.push_str(&format!(
                "#[allow(unused_imports, unreachable_pub)] pub use {hidden}::*;\n"
            ));
        }
        for (name, module) in &self.inner {
            out.push_str(&format!("#[allow(missing_docs)] pub mod {name} {{"));
            path.push(name.clone());
            module.write(path, used, out);
            path.pop();
            out.push_str("}\n");
        }
    }
}
