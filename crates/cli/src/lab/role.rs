//! `starling role`: the processes that other subcommands start.

use clap::Args;
use starling_bench::BenchError;

use crate::error::CliError;

/// The subcommand's name, for those who start it.
pub(crate) const NAME: &str = "role";

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// What to be.
    name: String,
    /// The number of a core, and what else the role needs.
    arguments: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let Arguments { name, arguments } = arguments;
    starling_bench::roles::serve(name, arguments)
        .or_else(|| starling_bench_tonic::serve(name, arguments))
        .unwrap_or_else(|| Err(BenchError::UnknownRole(name.clone())))?;
    Ok(())
}
