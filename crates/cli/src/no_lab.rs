//! The subcommands of the module `lab` in a program that was built without the feature `lab`. The help
//! does not list them, and each ends with an error that says how to get it.

use clap::{Args, Subcommand};

use crate::error::CliError;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(hide = true, disable_help_flag = true)]
    Demo(Arguments),
    #[command(hide = true, disable_help_flag = true)]
    Bench(Arguments),
    #[command(hide = true, disable_help_flag = true)]
    Sim(Arguments),
}

/// Whatever follows the name: the error is the same.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _all: Vec<String>,
}

pub(crate) fn run(command: &Command) -> Result<(), CliError> {
    let name = match command {
        Command::Demo(_) => "demo",
        Command::Bench(_) => "bench",
        Command::Sim(_) => "sim",
    };
    Err(CliError::Usage(format!(
        "`starling {name}` is not in this program, which was built without the feature `lab`. To get \
         it, run in Starling's source tree: cargo install --path crates/cli"
    )))
}
