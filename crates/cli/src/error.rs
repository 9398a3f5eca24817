//! Why a subcommand failed.

use std::io;

use starling_bench::BenchError;

/// An error, in words for whoever typed the command.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// A benchmark failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    /// Standard output took no more.
    #[error("writing the output: {0}")]
    Output(#[source] io::Error),
    /// The path of this program, which has to start itself, is unknown.
    #[error("finding the path of this program: {0}")]
    OwnPath(#[source] io::Error),
}

impl CliError {
    /// The reader of standard output went away, as `head` does.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
