//! Programs that run in the kernel: C sources named `*.bpf.c`, each with its object beside it.
//!
//! The objects are committed, so that a build needs no C compiler. On a machine with one, a test builds
//! them again, and compares them if it is the same compiler. After a change of a source, run `cargo xtask
//! bpf`. The language is C, because the kernel's verifier is made for it and stable Rust has no such target.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The end of a source's name.
const SOURCE: &str = ".bpf.c";

/// The folders that hold the crates.
const FOLDERS: [&str; 2] = ["crates", "bench"];

/// Builds all objects in place.
pub(crate) fn run() -> ExitCode {
    let built = sources().and_then(|sources| {
        for source in sources {
            println!("{}", source.display());
            build(&source, &source.with_extension("o"))?;
        }
        Ok(())
    });
    match built {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}\n`clang` is needed, and libbpf's headers (Debian: libbpf-dev)");
            ExitCode::FAILURE
        }
    }
}

/// All sources of the workspace, in order.
fn sources() -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for folder in FOLDERS {
        find(&crate::root().join(folder), &mut found)?;
    }
    found.sort();
    Ok(found)
}

fn find(folder: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            find(&path, found)?;
        } else if name.ends_with(SOURCE) {
            found.push(path);
        }
    }
    Ok(())
}

/// Compiles `source` into `object`. No path of this machine gets into it.
fn build(source: &Path, object: &Path) -> io::Result<()> {
    let folder = source.parent().unwrap_or(Path::new("."));
    let headers = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    // The third version of the instructions has atomic ones that answer (Linux 5.12).
    let arguments = "-O2 -g -target bpf -mcpu=v3 -Wall -Wextra -Werror -fdebug-compilation-dir=.";
    let mut command = Command::new("clang");
    command
        .current_dir(folder)
        .args(arguments.split(' '))
        // Where Debian keeps the headers that differ from processor to processor.
        .args(["-idirafter", &headers])
        .args([OsStr::new("-c"), source.file_name().unwrap_or_default()])
        .args([OsStr::new("-o"), object.as_os_str()]);
    let status = command.status()?;
    if !status.success() {
        return Err(io::Error::other(format!("{}: {status}", source.display())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The compiler's name and version, as it writes it into objects.
    fn compiler() -> Option<String> {
        let output = Command::new("clang").arg("--version").output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        text.lines().next().map(str::to_owned)
    }

    #[test]
    fn objects_are_those_of_their_sources() {
        let test = "objects_are_those_of_their_sources";
        let sources = sources().expect("the workspace can be read");
        assert!(!sources.is_empty());
        for source in sources {
            let committed = source.with_extension("o");
            let committed = std::fs::read(committed).expect("an object beside each source");
            let headers = Path::new("/usr/include/bpf/bpf_helpers.h").exists();
            let Some(compiler) = compiler().filter(|_| headers) else {
                println!("skipped: {test} needs clang and libbpf's headers");
                return;
            };
            let name = format!("starling-bpf-{}.o", std::process::id());
            let object = std::env::temp_dir().join(name);
            let built = build(&source, &object).and_then(|()| std::fs::read(&object));
            let _ = std::fs::remove_file(&object);
            let built = built.expect("the source compiles");
            let mut parts = committed.windows(compiler.len());
            if !parts.any(|part| part == compiler.as_bytes()) {
                println!("skipped: {test} needs the clang of the objects to compare them");
                continue;
            }
            let same = built == committed;
            assert!(same, "{}: run `cargo xtask bpf`", source.display());
        }
    }
}
