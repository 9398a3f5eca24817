//! Names in Rust.

use std::collections::HashMap;

use heck::{ToShoutySnakeCase, ToSnakeCase, ToUpperCamelCase};
use prost_reflect::{EnumDescriptor, FileDescriptor, MessageDescriptor};

use crate::error::{Element, Error, Place, unsupported};
use crate::load::has_code;

/// The module that holds all items of a package, so that one attribute applies to all.
pub(crate) const ITEMS: &str = "__items";

/// The name by which every generated module imports the runtime.
pub(crate) const RUNTIME: &str = "__rt";

/// The package whose types come with the runtime.
pub(crate) const WELL_KNOWN: &str = "google.protobuf";

/// Keywords that cannot be raw identifiers.
const NEVER: [&str; 4] = ["self", "super", "crate", "Self"];

const KEYWORDS: [&str; 48] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let",
    "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return",
    "static", "struct", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use",
    "virtual", "where", "while", "yield",
];

/// A valid identifier for any name.
pub(crate) fn identifier(name: &str) -> String {
    if name.is_empty() {
        // A name of underscores only has no words, so its case conversion is empty.
        "__".to_owned()
    } else if NEVER.contains(&name) {
        format!("{name}_")
    } else if KEYWORDS.contains(&name) {
        format!("r#{name}")
    } else if name.starts_with(|c: char| c.is_ascii_digit()) {
        format!("_{name}")
    } else {
        name.to_owned()
    }
}

/// `FooBar` as `foo_bar`, for methods and modules. It may not be an identifier yet.
pub(crate) fn snake(name: &str) -> String {
    name.to_snake_case()
}

/// `foo_bar` as `FooBar`: a type's name.
pub(crate) fn camel(name: &str) -> String {
    identifier(&name.to_upper_camel_case())
}

/// `FooBar` as `FOO_BAR`: a constant's name.
pub(crate) fn shouty(name: &str) -> String {
    identifier(&name.to_shouty_snake_case())
}

/// The module path of a package: `google.protobuf` as `google`, `protobuf`.
pub(crate) fn package_modules(package: &str) -> Vec<String> {
    package
        .split('.')
        .filter(|part| !part.is_empty())
        .map(|part| identifier(&snake(part)))
        .collect()
}

/// The position of generated code, from which paths to other types begin.
#[derive(Clone)]
pub(crate) struct Scope<'a> {
    pub(crate) package: &'a str,
    /// Modules within the package: one for each enclosing message.
    pub(crate) modules: Vec<String>,
    /// Packages generated elsewhere, and their Rust paths.
    pub(crate) extern_paths: &'a [(String, String)],
    /// The Rust path of [`WELL_KNOWN`], if it comes with the runtime.
    pub(crate) well_known: Option<&'a str>,
    /// The name of the runtime.
    pub(crate) runtime: &'a str,
}

impl Scope<'_> {
    /// The scope of a message's module in this scope.
    pub(crate) fn nested(&self, module: &str) -> Self {
        let mut inner = self.clone();
        inner.modules.push(module.to_owned());
        inner
    }

    /// The path by which users reach an item of this scope.
    fn public(&self, name: &str) -> Vec<String> {
        let mut path = package_modules(self.package);
        path.extend_from_slice(&self.modules);
        path.push(name.to_owned());
        path
    }

    /// The path from here to the item `name` of `package`, within the modules `parents`.
    fn path(&self, package: &str, parents: &[String], name: &str) -> String {
        let mut path: Vec<String> = Vec::new();
        if package == self.package {
            path.extend(std::iter::repeat_n("super".to_owned(), self.modules.len()));
        } else if let Some((_, rust)) = self.extern_paths.iter().find(|(name, _)| name == package) {
            path.push(rust.clone());
        } else if let Some(rust) = self.well_known.filter(|_| package == WELL_KNOWN) {
            path.push(rust.to_owned());
        } else {
            let (from, to) = (package_modules(self.package), package_modules(package));
            let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            let up = self.modules.len() + 1 + from.len() - common;
            path.extend(std::iter::repeat_n("super".to_owned(), up));
            path.extend_from_slice(&to[common..]);
        }
        path.extend(parents.iter().cloned());
        path.push(name.to_owned());
        path.join("::")
    }

    /// Refuses an `element` that uses a type without code, here or elsewhere.
    pub(crate) fn check_code(
        &self,
        element: &impl Element,
        file: &FileDescriptor,
        name: &str,
    ) -> Result<(), Error> {
        let package = file.package_name();
        if has_code(file) || self.extern_paths.iter().any(|(name, _)| name == package) {
            return Ok(());
        }
        let problem = format!(
            "no code is generated for `{name}`, nor for anything else in {}; use `bytes` for it, \
             or set Config::extern_path for its package",
            file.name()
        );
        Err(unsupported(element, problem))
    }

    /// The path of a message's type, or of an item named after it.
    pub(crate) fn message(&self, message: &MessageDescriptor, suffix: &str) -> String {
        let parents = parents(message.parent_message());
        self.path(
            message.package_name(),
            &parents,
            &(camel(message.name()) + suffix),
        )
    }

    /// The path of a message's layout.
    pub(crate) fn layout(&self, message: &MessageDescriptor) -> String {
        let parents = parents(message.parent_message());
        self.path(message.package_name(), &parents, &layout_name(message))
    }

    /// The path of an enumeration's type.
    pub(crate) fn enumeration(&self, enumeration: &EnumDescriptor) -> String {
        let parents = parents(enumeration.parent_message());
        self.path(
            enumeration.package_name(),
            &parents,
            &camel(enumeration.name()),
        )
    }
}

/// The modules of a message and of its enclosing messages, outermost first.
fn parents(message: Option<MessageDescriptor>) -> Vec<String> {
    let mut modules: Vec<String> = std::iter::successors(message, |m| m.parent_message())
        .map(|message| message_module(&message))
        .collect();
    modules.reverse();
    modules
}

/// The module that holds the declarations within a message.
pub(crate) fn message_module(message: &MessageDescriptor) -> String {
    identifier(&snake(message.name()))
}

/// The static that holds a message's layout. That of a map's entry is beside the map's message.
pub(crate) fn layout_name(message: &MessageDescriptor) -> String {
    shouty(message.name()) + "_LAYOUT"
}

/// Names that are used, in all packages, and by which elements. There is one table for packages and
/// messages, because a package and the declarations within a message of the same name share a module.
#[derive(Default)]
pub(crate) struct UsedNames {
    names: HashMap<Vec<String>, Place>,
    /// Modules of messages, and how deep in their package they lie.
    modules: HashMap<Vec<String>, usize>,
}

impl UsedNames {
    /// Adds the name of an element. Fails if another element has it.
    pub(crate) fn add(
        &mut self,
        scope: &Scope<'_>,
        element: &impl Element,
        name: String,
    ) -> Result<(), Error> {
        match self.names.insert(scope.public(&name), element.place()) {
            None => Ok(()),
            Some(other) => Err(Error::Clash {
                place: element.place(),
                name,
                other: Box::new(other),
            }),
        }
    }

    /// Adds the name of the module for a message's declarations.
    pub(crate) fn add_module(
        &mut self,
        scope: &Scope<'_>,
        message: &MessageDescriptor,
        module: String,
    ) -> Result<(), Error> {
        let depth = scope.modules.len() + 1;
        self.modules.insert(scope.public(&module), depth);
        self.add(scope, message, module)
    }

    /// The path from there to a message's module, if one has this path.
    pub(crate) fn hidden(&self, path: &[String]) -> Option<String> {
        let depth = *self.modules.get(path)?;
        let (up, down) = ("super::".repeat(depth), &path[path.len() - depth..]);
        Some(format!("{up}{ITEMS}::{}", down.join("::")))
    }
}
