//! A file on its way into the process.
//!
//! What is checked is what is loaded: the file is opened once, and copied to memory that nobody can write. So whoever
//! may write to its directory can only put another file of the same owners in its place, and a file that is written
//! over later changes nothing, also not the code that runs. A library is never unloaded: engines, threads and
//! thread-local values of it may be left.

use std::error::Error;
use std::ffi::c_void;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use starling_plugin::abi;

use crate::elf::end_of;

/// The largest file.
const MAX_BYTES: u64 = 128 << 20;
/// Whoever else may write to a file, by its mode.
const OTHERS: u32 = 0o022;

/// Why a file is not loaded.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Its path depends on where the service was started.
    #[error("write its path from the root: the service may have another directory")]
    Relative,
    /// The system does not give it, or not the memory for it.
    #[error("{0}")]
    System(#[from] io::Error),
    /// It is a directory, a device or a pipe.
    #[error("it is no regular file")]
    Irregular,
    /// Another user could change it.
    #[error("it is user {0}'s: a plug-in has to be root's, or the service's own user's")]
    Owner(u32),
    /// Other users can change it.
    #[error("users other than its owner may write to it (its mode is {0:o}): chmod go-w")]
    Writable(u32),
    /// It is larger than any plug-in.
    #[error("it has {0} bytes, and {MAX_BYTES} are taken at most: strip it")]
    TooLarge(u64),
    /// A part of it is missing.
    #[error("it is cut: it has {len} bytes, and its segments end at byte {end}: copy it again")]
    Cut {
        /// Its length.
        len: u64,
        /// Where it should end.
        end: u64,
    },
    /// It is no library, or lacks what it needs.
    #[error("it cannot be loaded: {0}")]
    NoLibrary(String),
    /// It is a library, and no plug-in.
    #[error(
        "it is a library without the table {}: export its policies by `export_policies!`",
        abi::SYMBOL
    )]
    NoTable,
}

/// Checks a file, before anything of it is run. Returns its bytes.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    if !path.is_absolute() {
        return Err(FileError::Relative);
    }
    // A pipe would have the service wait for a writer.
    let file = File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    let of = file.metadata()?;
    if !of.is_file() {
        return Err(FileError::Irregular);
    }
    check_owner(of.uid(), of.mode())?;
    if of.len() > MAX_BYTES {
        return Err(FileError::TooLarge(of.len()));
    }
    let mut bytes = Vec::new();
    // It may have grown.
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn check_owner(user: u32, mode: u32) -> Result<(), FileError> {
    let own = rustix::process::geteuid();
    if user != own.as_raw() && user != 0 {
        return Err(FileError::Owner(user));
    }
    match mode & OTHERS {
        0 => Ok(()),
        _ => Err(FileError::Writable(mode & 0o7777)),
    }
}

/// Loads a library of these bytes for as long as the process runs. Returns its table, of which nothing is checked.
/// Its initializers run here.
pub(crate) fn load(path: &Path, bytes: &[u8]) -> Result<*const abi::Table, FileError> {
    let len = bytes.len() as u64;
    if let Some(end) = end_of(bytes).filter(|end| *end > len) {
        return Err(FileError::Cut { len, end });
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let copy = sealed(&name, bytes)?;
    let by = format!("/proc/self/fd/{}", copy.as_raw_fd());
    // SAFETY: the operator wants its code to run in this process, and nobody can change it any more.
    let library = unsafe { Library::open(Some(&by), RTLD_NOW | RTLD_LOCAL) };
    let library = library.map_err(|error| {
        let text = error
            .source()
            .map_or(error.to_string(), ToString::to_string);
        FileError::NoLibrary(text.replace(&by, &path.to_string_lossy()))
    })?;
    // The loader knows a library by its path: no other may have this one.
    std::mem::forget(copy);
    // SAFETY: the type of a static is its address.
    let table = unsafe { library.get::<*const c_void>(abi::SYMBOL.as_bytes()) };
    let table = table.map(|symbol| symbol.into_raw());
    std::mem::forget(library);
    match table {
        Ok(table) if !table.is_null() => Ok(table.cast_const().cast()),
        _ => Err(FileError::NoTable),
    }
}

/// A file in memory that nobody can change.
fn sealed(name: &str, bytes: &[u8]) -> Result<OwnedFd, io::Error> {
    let name: String = name.chars().filter(|c| *c != '\0').take(60).collect();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create(name, flags)?);
    file.write_all(bytes)?;
    let all = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, all)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use super::*;

    /// A directory of a test's own, which goes with it.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).expect("a directory");
            Self(path)
        }

        fn file(&self, name: &str, mode: u32) -> PathBuf {
            let path = self.0.join(name);
            std::fs::write(&path, b"no library").expect("a file");
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("its own");
            path
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_files_that_nobody_else_can_write_are_read() {
        let directory = Directory::new("plugin-files");
        let problem = |path: &Path| read(path).map(drop).expect_err("refused").to_string();
        let fine = directory.file("fine.so", 0o644);
        assert_eq!(read(&fine).expect("its own"), b"no library");
        for mode in [0o646, 0o664, 0o777] {
            let text = problem(&directory.file("open.so", mode));
            assert!(text.contains(&format!("its mode is {mode:o}")), "{text}");
        }
        for (path, expected) in [
            (Path::new("plugin.so"), "path from the root"),
            (&directory.0, "no regular file"),
            (Path::new("/dev/null"), "no regular file"),
            (&directory.0.join("none.so"), "No such file"),
        ] {
            let text = problem(path);
            assert!(text.contains(expected), "{}: {text}", path.display());
        }
        let pipe = directory.0.join("pipe.so");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0)
            .expect("a pipe");
        assert!(problem(&pipe).contains("no regular file"));
        let large = directory.file("large.so", 0o644);
        let file = File::options().write(true).open(&large).expect("its own");
        file.set_len(MAX_BYTES + 1).expect("it is sparse");
        assert!(problem(&large).contains("strip it"));
    }

    #[test]
    fn the_owner_is_root_or_the_services_user() {
        let own = rustix::process::geteuid().as_raw();
        assert!(check_owner(own, 0o100_755).is_ok() && check_owner(0, 0o100_644).is_ok());
        let other = check_owner(own + 1, 0o100_644).expect_err("another user's");
        assert!(
            other.to_string().contains(&format!("user {}'s", own + 1)),
            "{other}"
        );
    }

    #[test]
    fn what_is_no_plugin_is_not_loaded_and_says_why() {
        let path = Path::new("/opt/text.so");
        let text = load(path, b"no library")
            .map(drop)
            .expect_err("a text")
            .to_string();
        assert!(
            text.contains("/opt/text.so") && !text.contains("/proc/"),
            "{text}"
        );
        let nothing = load(path, b"").map(drop).expect_err("nothing").to_string();
        assert!(nothing.contains("cannot be loaded"), "{nothing}");
    }
}
