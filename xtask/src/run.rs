//! Running commands, said before it is done.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::process::{Command, Stdio};

/// A command that runs in the workspace's root.
pub(crate) fn command(program: impl AsRef<OsStr>, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(crate::root());
    command
}

/// The cargo that started this.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    command(
        std::env::var_os("CARGO").unwrap_or("cargo".into()),
        arguments,
    )
}

/// Prints a command as one could type it.
fn say(command: &Command) {
    let mut words: Vec<String> = Vec::new();
    for (name, value) in command.get_envs() {
        let value = value.unwrap_or_default().to_string_lossy();
        words.push(format!("{}='{value}'", name.to_string_lossy()));
    }
    let program = std::path::Path::new(command.get_program());
    let name = program.file_name().unwrap_or(command.get_program());
    words.push(name.to_string_lossy().into_owned());
    for argument in command.get_args() {
        words.push(argument.to_string_lossy().into_owned());
    }
    eprintln!("\n$ {}", words.join(" "));
}

/// Runs a command to its end; whether it succeeded. Its output goes where ours goes.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    say(command);
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("cannot be run: {error}");
            false
        }
    }
}

/// Like [`succeeds`], with each line of standard output handed to `line`.
pub(crate) fn succeeds_with_lines(command: &mut Command, mut line: impl FnMut(&str)) -> bool {
    say(command);
    let mut run = || -> io::Result<bool> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().expect("the output is piped");
        // Tests may print bytes that are no text.
        for bytes in BufReader::new(stdout).split(b'\n') {
            line(&String::from_utf8_lossy(&bytes?));
        }
        Ok(child.wait()?.success())
    };
    run().unwrap_or_else(|error| {
        eprintln!("cannot be run: {error}");
        false
    })
}
