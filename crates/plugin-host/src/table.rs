//! What a library says that it has: checked before any function of it is called.

use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::Arc;

use starling_plugin::abi;
use starling_policy::{Kind, check_name};

use crate::plugins::Plugin;

/// Kinds of a plug-in, at most.
const MAX_KINDS: usize = 64;
/// Bytes of a text of a table, at most.
const MAX_TEXT: usize = 1024;

/// Why a table is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Something else has this name.
    #[error("its table does not begin as one: it is no plug-in")]
    Magic,
    /// It was built with another version of `starling-plugin`.
    #[error(
        "it was built for version {theirs} of the interface, and this service has {}: build it with this service's \
         starling-plugin",
        abi::VERSION
    )]
    Version {
        /// The plug-in's.
        theirs: u32,
    },
    /// It says that it is of this version, and is not.
    #[error(
        "its layout is another one than this service's, although the version is the same: build it with this \
         service's starling-plugin, for the same target"
    )]
    Layout,
    /// None, or too many.
    #[error("it has {0} kinds of policies: a plug-in has 1 to {MAX_KINDS}")]
    Kinds(usize),
    /// A text is none.
    #[error("{what}: {problem}")]
    Text {
        /// Which.
        what: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// The service itself has a kind of this name.
    #[error("its kind {0:?} is built in: give it another name")]
    BuiltIn(String),
    /// Two kinds have one name.
    #[error("it has the kind {0:?} twice")]
    Twice(String),
    /// A function is missing.
    #[error("its kind {kind:?} lacks the function {function}")]
    Function {
        /// The kind.
        kind: String,
        /// Which.
        function: &'static str,
    },
    /// States have 16 bits for their version.
    #[error("its kind {kind:?} has states of version {version}: 65535 is the last")]
    StateVersion {
        /// The kind.
        kind: String,
        /// As it says.
        version: u32,
    },
}

/// The functions of a kind. All are there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Functions {
    pub(crate) build: unsafe extern "C" fn(abi::Bytes, *mut *mut c_void, abi::Sink) -> u32,
    pub(crate) destroy: unsafe extern "C" fn(*mut c_void, abi::Sink) -> u32,
    pub(crate) on_request:
        unsafe extern "C" fn(*mut c_void, *const abi::Request, *mut abi::Verdict, abi::Sink) -> u32,
    pub(crate) on_end: unsafe extern "C" fn(*mut c_void, *const abi::End, abi::Sink) -> u32,
    pub(crate) save: unsafe extern "C" fn(*mut c_void, abi::Sink) -> u32,
    pub(crate) restore: unsafe extern "C" fn(*mut c_void, u32, abi::Bytes, abi::Sink) -> u32,
}

/// A kind of policies that a plug-in has.
#[derive(Clone, Debug)]
pub struct PluginKind {
    /// As operators write it.
    pub name: String,
    /// What it does, in a line.
    pub summary: String,
    /// Its settings, as an operator begins with.
    pub example: String,
    /// The version of its states, and the newest that it reads.
    pub state_version: u16,
    /// The plug-in's.
    pub(crate) file: Arc<PathBuf>,
    pub(crate) functions: Functions,
}

impl PluginKind {
    /// Whether it is this plug-in's, and not another's that was read where this one was.
    pub fn is_of(&self, plugin: &Plugin) -> bool {
        Arc::ptr_eq(&self.file, &plugin.file)
    }
}

/// What a table has.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) kinds: Vec<PluginKind>,
}

/// Checks the table of the library of a file.
///
/// # Safety
/// If a header of this version stands there, then so does a table, and what it points to is there for good.
pub(crate) unsafe fn check(
    table: *const abi::Table,
    file: &Arc<PathBuf>,
) -> Result<Contents, TableError> {
    // SAFETY: all versions begin with it; it may lie anywhere.
    let header = unsafe { table.cast::<abi::Header>().read_unaligned() };
    let current = abi::Header::CURRENT;
    if header.magic != current.magic {
        return Err(TableError::Magic);
    }
    if header.version != current.version {
        let theirs = header.version;
        return Err(TableError::Version { theirs });
    }
    if (header.size, header.layout) != (current.size, current.layout) {
        return Err(TableError::Layout);
    }
    // SAFETY: the caller's promise.
    let table = unsafe { table.read_unaligned() };
    if table.kinds.is_null() || !(1..=MAX_KINDS).contains(&table.kinds_len) {
        return Err(TableError::Kinds(table.kinds_len));
    }
    let mut kinds = Vec::<PluginKind>::new();
    for number in 0..table.kinds_len {
        // SAFETY: the caller's promise.
        let kind = unsafe { check_kind(&table.kinds.add(number).read_unaligned(), file)? };
        if kinds.iter().any(|other| other.name == kind.name) {
            return Err(TableError::Twice(kind.name));
        }
        kinds.push(kind);
    }
    Ok(Contents {
        // SAFETY: the caller's promise.
        name: unsafe { text("its name", table.name)? },
        // SAFETY: the caller's promise.
        version: unsafe { text("its version", table.version)? },
        kinds,
    })
}

/// # Safety
/// What it points to is there for good.
unsafe fn check_kind(kind: &abi::Kind, file: &Arc<PathBuf>) -> Result<PluginKind, TableError> {
    // SAFETY: the caller's promise.
    let name = unsafe { text("the name of a kind", kind.name)? };
    check_name(&name).map_err(|problem| TableError::Text {
        what: "the name of a kind",
        problem,
    })?;
    if Kind::find(&name).is_some() {
        return Err(TableError::BuiltIn(name));
    }
    let version = kind.state_version;
    let state_version = u16::try_from(version).map_err(|_| TableError::StateVersion {
        kind: name.clone(),
        version,
    })?;
    let lacks = |function| TableError::Function {
        kind: name.clone(),
        function,
    };
    let functions = Functions {
        build: kind.build.ok_or_else(|| lacks("build"))?,
        destroy: kind.destroy.ok_or_else(|| lacks("destroy"))?,
        on_request: kind.on_request.ok_or_else(|| lacks("on_request"))?,
        on_end: kind.on_end.ok_or_else(|| lacks("on_end"))?,
        save: kind.save.ok_or_else(|| lacks("save"))?,
        restore: kind.restore.ok_or_else(|| lacks("restore"))?,
    };
    Ok(PluginKind {
        // SAFETY: the caller's promise.
        summary: unsafe { text("the summary of a kind", kind.summary)? },
        // SAFETY: the caller's promise.
        example: unsafe { text("the example of a kind", kind.example)? },
        name,
        state_version,
        file: Arc::clone(file),
        functions,
    })
}

/// A text of a table.
///
/// # Safety
/// If its length is possible, it is there.
unsafe fn text(what: &'static str, bytes: abi::Bytes) -> Result<String, TableError> {
    let wrong = |problem: String| TableError::Text { what, problem };
    if bytes.len > MAX_TEXT || (bytes.data.is_null() && bytes.len > 0) {
        return Err(wrong(format!(
            "it has {} bytes, and {MAX_TEXT} are taken at most",
            bytes.len
        )));
    }
    // SAFETY: the caller's promise.
    let text = std::str::from_utf8(unsafe { bytes.as_slice() });
    let text = text.map_err(|error| wrong(error.to_string()))?;
    match text.contains(char::is_control) {
        true => Err(wrong("it has control characters".to_owned())),
        false => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{KIND, table_of};

    fn checked(table: &abi::Table) -> Result<Contents, TableError> {
        // SAFETY: a table, or one whose header says that it is none.
        unsafe { check(table, &Arc::default()) }
    }

    fn error_of(change: impl Fn(&mut abi::Table)) -> TableError {
        let mut table = table_of(&[KIND]);
        change(&mut table);
        checked(&table).expect_err("it is wrong")
    }

    fn error_of_kind(change: impl Fn(&mut abi::Kind)) -> TableError {
        let mut kind = KIND;
        change(&mut kind);
        checked(&table_of(&[kind])).expect_err("it is wrong")
    }

    #[test]
    fn a_table_of_this_version_is_read() {
        let contents = checked(&table_of(&[KIND])).expect("a table");
        assert_eq!((&*contents.name, &*contents.version), ("test", "1.2.3"));
        let kind = &contents.kinds[0];
        assert_eq!((&*kind.name, kind.state_version), ("probe", 2));
        assert_eq!(kind.example, "{}");
    }

    #[test]
    fn tables_of_others_are_refused() {
        assert_eq!(
            error_of(|table| table.header.magic[0] = 0),
            TableError::Magic
        );
        let theirs = abi::VERSION + 1;
        let later = error_of(|table| table.header.version = theirs);
        assert_eq!(later, TableError::Version { theirs });
        assert_eq!(
            error_of(|table| table.header.layout ^= 1),
            TableError::Layout
        );
        assert_eq!(error_of(|table| table.header.size -= 8), TableError::Layout);
        let none = error_of(|table| table.kinds_len = 0);
        assert_eq!(none, TableError::Kinds(0));
        assert_eq!(
            error_of(|table| table.kinds_len = usize::MAX),
            TableError::Kinds(usize::MAX)
        );
        assert_eq!(
            error_of(|table| table.kinds = std::ptr::null()),
            TableError::Kinds(1)
        );
        let twice = checked(&table_of(&[KIND, KIND])).expect_err("twice");
        assert_eq!(twice, TableError::Twice("probe".to_owned()));
    }

    #[test]
    fn texts_and_functions_are_checked() {
        type Change = fn(&mut abi::Kind);
        let is_text = |error: TableError, what: &str| {
            let text = error.to_string();
            assert!(text.starts_with(what), "{text}");
        };
        is_text(
            error_of(|table| table.name.len = usize::MAX),
            "its name: it has 1844",
        );
        let null = abi::Bytes {
            data: std::ptr::null(),
            len: 3,
        };
        is_text(error_of(|table| table.version = null), "its version: ");
        is_text(
            error_of_kind(|kind| kind.summary = abi::Bytes::of(b"\xff")),
            "the summary of a kind: ",
        );
        is_text(
            error_of_kind(|kind| kind.example = abi::Bytes::of(b"\x1b[2J")),
            "the example of a kind: ",
        );
        for name in ["", "a b", "\u{e4}"] {
            let error = error_of_kind(|kind| kind.name = abi::Bytes::of(name.as_bytes()));
            is_text(error, "the name of a kind: ");
        }
        let built_in = error_of_kind(|kind| kind.name = abi::Bytes::of(b"null"));
        assert_eq!(built_in, TableError::BuiltIn("null".to_owned()));
        let version = error_of_kind(|kind| kind.state_version = 1 << 16);
        assert!(version.to_string().contains("version 65536"), "{version}");
        let lacks: [(_, Change); 6] = [
            ("build", |kind| kind.build = None),
            ("destroy", |kind| kind.destroy = None),
            ("on_request", |kind| kind.on_request = None),
            ("on_end", |kind| kind.on_end = None),
            ("save", |kind| kind.save = None),
            ("restore", |kind| kind.restore = None),
        ];
        for (function, change) in lacks {
            let kind = "probe".to_owned();
            assert_eq!(
                error_of_kind(change),
                TableError::Function { kind, function }
            );
        }
    }
}
