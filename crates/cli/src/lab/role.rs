//! `starling role`: the processes that other subcommands start.

use clap::Args;
use starling_bench::BenchError;

use crate::error::CliError;

/// The name of the subcommand, for the subcommands that start such processes.
pub(crate) const NAME: &str = "role";

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The role of this process.
    name: String,
    /// The number of the core to run on, and the arguments of the role.
    arguments: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), CliError> {
    let Arguments { name, arguments } = arguments;
    starling_bench::roles::serve(name, arguments)
        .or_else(|| starling_bench_tonic::serve(name, arguments))
        .unwrap_or_else(|| Err(BenchError::UnknownRole(name.clone())))?;
    Ok(())
}
