//! The service as a unit of systemd.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::error::CliError;
use crate::output;

/// With the program at `/usr/local/bin` and without a file.
const UNIT: &str = include_str!("../../systemd/starling.service");

/// The command in it.
const COMMAND: &str = "ExecStart=/usr/local/bin/starling service run --any-user\n";

#[derive(Debug, Args)]
pub(super) struct UnitArguments {
    /// The service's file, by a path from the root: see `starling service run --help`.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The user of the service.
    #[arg(long, value_name = "NAME", default_value = "starling")]
    user: String,
}

/// Prints the unit with this program in it.
pub(super) fn print(arguments: &UnitArguments) -> Result<(), CliError> {
    let program = std::env::current_exe().map_err(CliError::OwnPath)?;
    let unit = unit(&program, arguments.config.as_deref(), &arguments.user);
    output::print(&unit.map_err(CliError::Usage)?)
}

fn unit(program: &Path, config: Option<&Path>, user: &str) -> Result<String, String> {
    let mut command = format!("ExecStart={} service run --any-user", word(program)?);
    if let Some(config) = config {
        if !config.is_absolute() {
            let text = "is no path from the root: systemd has another folder";
            return Err(format!("--config: {} {text}", config.display()));
        }
        command.push_str(&format!(" --config {}", word(config)?));
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if user.is_empty() || !user.chars().all(is_plain) {
        return Err(format!("--user: {user:?} is no name of a user"));
    }
    Ok(UNIT
        .replace(COMMAND, &format!("{command}\n"))
        .replace("User=starling\n", &format!("User={user}\n")))
}

/// A path as a word of a command of systemd.
fn word(path: &Path) -> Result<String, String> {
    let text = path
        .to_str()
        .filter(|text| !text.contains(char::is_control));
    let text = text.ok_or_else(|| format!("{} cannot be in a unit", path.display()))?;
    // `%` and `$` begin what systemd replaces.
    let text = text.replace('%', "%%").replace('$', "$$");
    Ok(match text.contains([' ', '"', '\'', '\\', ';']) {
        true => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
        false => text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_has_the_program_the_file_and_the_user() {
        let program = Path::new("/opt/a b/starling");
        let text = unit(program, Some(Path::new("/etc/100%.yaml")), "mesh").expect("a unit");
        let command =
            "ExecStart=\"/opt/a b/starling\" service run --any-user --config /etc/100%%.yaml\n";
        assert!(
            text.contains(command) && text.contains("\nUser=mesh\n"),
            "{text}"
        );
        let plain = unit(Path::new("/usr/local/bin/starling"), None, "starling");
        assert_eq!(plain.expect("a unit"), UNIT);
        assert!(unit(program, Some(Path::new("etc")), "mesh").is_err());
        assert!(unit(program, None, "a\nb").is_err());
        assert!(word(Path::new("/a\n")).is_err());
    }
}
