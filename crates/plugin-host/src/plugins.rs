//! The plug-ins of a service, and what has gone wrong with them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use starling_io::{Clock, MonotonicClock};
use starling_policy::{Kind, PolicyEngine, PolicySpec, SpecError};

use crate::engine::{BOUND_NS, Failure, PluginEngine};
use crate::library::{FileError, load, read};
use crate::table::{PluginKind, TableError, check};
use crate::watch::Watch;

/// Libraries of a service, at most: they stay until it ends.
const MAX_LIBRARIES: usize = 64;

/// A library with policies.
#[derive(Clone, Debug)]
pub struct Plugin {
    /// Where it was read.
    pub file: Arc<PathBuf>,
    /// As it says.
    pub name: String,
    /// As it says.
    pub version: String,
    /// Its kinds.
    pub kinds: Vec<PluginKind>,
}

/// Why a file is not added.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", .file.display())]
pub struct PluginError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    #[source]
    pub problem: Problem,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// It is not loaded.
    #[error(transparent)]
    File(#[from] FileError),
    /// Its table is not taken.
    #[error(transparent)]
    Table(#[from] TableError),
    /// There are enough.
    #[error(
        "{MAX_LIBRARIES} libraries were loaded since the service began, and stay until it ends: start it anew"
    )]
    TooMany,
}

/// What has gone wrong with plug-ins since the service began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Files that were not taken.
    pub files: u64,
    /// Calls that panicked.
    pub panics: u64,
    /// Calls that took too long.
    pub blocks: u64,
    /// Calls that returned what cannot be.
    pub malformed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Faults {
    files: AtomicU64,
    pub(crate) panics: AtomicU64,
    blocks: AtomicU64,
    malformed: AtomicU64,
}

impl Faults {
    pub(crate) fn count(&self, failure: &Failure) {
        let count = match failure {
            Failure::Refused(_) => return,
            Failure::Panicked(_) => &self.panics,
            Failure::Blocked(_) => &self.blocks,
            Failure::Malformed(_) => &self.malformed,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// What the engines of a service share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) faults: Faults,
    pub(crate) watch: Watch,
}

/// The plug-ins of a service. Its operator adds them, from any thread.
#[derive(Debug, Default)]
pub struct Plugins {
    clock: MonotonicClock,
    added: Mutex<Added>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Added {
    /// In the order in which they came.
    plugins: Vec<Plugin>,
    /// Those that are no plug-ins are loaded, too.
    loaded: usize,
}

impl Plugins {
    /// None yet. The clock measures how long their calls take.
    pub fn new(clock: MonotonicClock) -> Self {
        Self {
            clock,
            ..Self::default()
        }
    }

    /// Loads a file. Engines that are built from now on are made by it, if it has their kind.
    ///
    /// # Errors
    /// Why it is none of a plug-in, or not to be trusted.
    pub fn add(&self, file: &Path) -> Result<Plugin, PluginError> {
        self.load(file).map_err(|problem| {
            self.shared.faults.files.fetch_add(1, Ordering::Relaxed);
            PluginError {
                file: file.to_owned(),
                problem,
            }
        })
    }

    fn load(&self, file: &Path) -> Result<Plugin, Problem> {
        let bytes = read(file)?;
        let file = Arc::new(file.to_owned());
        self.reserve()?;
        // Others go on meanwhile: its initializers may take long.
        let table = load(&file, &bytes)?;
        // SAFETY: the header says that it is a table, and the library stays.
        let contents = unsafe { check(table, &file)? };
        let plugin = Plugin {
            file,
            name: contents.name,
            version: contents.version,
            kinds: contents.kinds,
        };
        tracing::info!(file = %plugin.file.display(), name = plugin.name, version = plugin.version, "plug-in");
        self.added.lock().plugins.push(plugin.clone());
        Ok(plugin)
    }

    /// Takes the place of a library, for good.
    fn reserve(&self) -> Result<(), Problem> {
        let mut added = self.added.lock();
        if added.loaded == MAX_LIBRARIES {
            return Err(Problem::TooMany);
        }
        added.loaded += 1;
        Ok(())
    }

    /// All, in the order in which they were added.
    pub fn list(&self) -> Vec<Plugin> {
        self.added.lock().plugins.clone()
    }

    /// The kind of this name, of the plug-in that was added last.
    pub fn find(&self, kind: &str) -> Option<PluginKind> {
        let added = self.added.lock();
        let mut newest_first = added.plugins.iter().rev().flat_map(|plugin| &plugin.kinds);
        newest_first.find(|own| own.name == kind).cloned()
    }

    /// An engine for a policy, whose kind is built in or of a plug-in.
    ///
    /// # Errors
    /// If there is no such kind, or these are no settings of it, or the plug-in fails.
    pub fn build(&self, spec: &PolicySpec) -> Result<Box<dyn PolicyEngine>, SpecError> {
        if Kind::find(&spec.kind).is_some() {
            return spec.build();
        }
        let Some(kind) = self.find(&spec.kind) else {
            let added = self.added.lock();
            let kinds = added.plugins.iter().flat_map(|plugin| &plugin.kinds);
            let mut names: Vec<_> = kinds.map(|kind| kind.name.clone()).collect();
            names.sort_unstable();
            names.dedup();
            return Err(SpecError::unknown_kind(&spec.kind, &names));
        };
        let engine = PluginEngine::build(&kind, spec, &self.clock, &self.shared)?;
        Ok(Box::new(engine))
    }

    /// What has gone wrong so far. None: there was no plug-in, and nothing that could have been one.
    pub fn faults(&self) -> Option<FaultCounts> {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let of = &self.shared.faults;
        let counts = FaultCounts {
            files: get(&of.files),
            panics: get(&of.panics),
            blocks: get(&of.blocks),
            malformed: get(&of.malformed),
        };
        let is_used = counts != FaultCounts::default() || !self.added.lock().plugins.is_empty();
        is_used.then_some(counts)
    }

    /// The policy that blocks its thread now, if one does, and how long it has: for the operator.
    pub fn blocking(&self) -> Option<String> {
        let long = self.shared.watch.longer_than(BOUND_NS, self.clock.now_ns());
        let (name, for_ns) = long.into_iter().max_by_key(|(_, for_ns)| *for_ns)?;
        let for_ms = for_ns / 1_000_000;
        Some(format!(
            "{name}, has not returned for {for_ms} ms, and cannot be interrupted: start the service anew without it"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_libraries_has_a_bound() {
        let plugins = Plugins::default();
        for _ in 0..MAX_LIBRARIES {
            assert!(plugins.reserve().is_ok());
        }
        let own = std::env::current_exe().expect("a path");
        let error = plugins.reserve().expect_err("one more").to_string();
        assert!(error.starts_with("64 libraries were loaded"), "{error}");
        assert_eq!(plugins.faults(), None);
        assert!(plugins.add(&own.join("none")).is_err());
        let files = plugins.faults().expect("one").files;
        assert_eq!((files, plugins.list().len()), (1, 0));
    }

    #[test]
    fn a_kind_that_nobody_has_is_unknown_and_a_built_in_one_is_built() {
        let plugins = Plugins::default();
        let spec = |kind: &str| {
            let json = format!(r#"{{"name":"a","kind":"{kind}"}}"#);
            PolicySpec::parse(&json).expect("a policy")
        };
        assert!(plugins.build(&spec("null")).is_ok());
        let error = plugins.build(&spec("nul")).err().expect("unknown");
        assert_eq!(error, SpecError::unknown_kind("nul", &[]));
    }
}
