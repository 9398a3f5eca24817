//! Errors of subcommands, and their exit status.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use starling::Status;
#[cfg(feature = "lab")]
use starling_bench::BenchError;
use starling_io::{Fault, IoError};
#[cfg(feature = "lab")]
use starling_sim::harness::Failure;
#[cfg(feature = "lab")]
use starling_sim::scenario::ScenarioFailure;

/// The exit status of a call that ended with a status: this plus the code.
const STATUS_BASE: u8 = 64;

/// An error of a subcommand.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    #[cfg(feature = "lab")]
    /// A benchmark failed.
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[cfg(feature = "lab")]
    /// A run of the demo failed, or an answer was wrong.
    #[error("{what}: {error}")]
    Demo {
        /// The run.
        what: String,
        /// The error.
        error: BenchError,
    },
    #[cfg(feature = "lab")]
    /// A simulated run broke a promise.
    #[error("{0}")]
    Promise(Box<Failure>),
    #[cfg(feature = "lab")]
    /// A hunt never took these branches.
    #[error("no run took these branches, so promises about them were not tested: {0}")]
    Untaken(String),
    #[cfg(feature = "lab")]
    /// A named scenario broke a promise.
    #[error(transparent)]
    Scenario(#[from] ScenarioFailure),
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
    /// Starling could not be set up.
    #[error(transparent)]
    Starling(#[from] starling::Error),
    /// The service could not begin, or had to stop.
    #[error(transparent)]
    Service(#[from] starling_service::ServiceError),
    /// A call ended with a status.
    #[error(transparent)]
    Status(#[from] Status),
    /// Some datapaths were not upgraded.
    #[error("{0}")]
    Stayed(String),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] IoError),
    /// A server was told to end, and calls were left after the drain timeout.
    #[error("the server ended before all of its calls were finished")]
    NotDrained,
    /// The operating system refused something.
    #[error("{attempt}: {source}")]
    System {
        /// The attempted action.
        attempt: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    #[cfg(feature = "lab")]
    /// Plots cannot be written to a directory.
    #[error(
        "plots cannot be written to {}: {source}; name another directory with --svg, or use --json",
        directory.display()
    )]
    PlotDirectory {
        /// The directory.
        directory: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Standard output cannot be written to.
    #[error("writing the output: {0}")]
    Output(#[source] io::Error),
    /// A device that has to work does not work.
    #[error("{0}: does not work here; the findings marked `bad` say why, and what to do")]
    DevicesLack(String),
    /// A server said that it, or a service of its, should not be called.
    #[error("{what}: {status}; it should not be called now")]
    NotServing {
        /// The server or the service.
        what: String,
        /// The server's word for it.
        status: String,
    },
    /// This program has to start itself, and its path is unknown.
    #[error("finding the path of this program: {0}")]
    OwnPath(#[source] io::Error),
}

impl CliError {
    /// Whether the reader of standard output has closed it, as `head` does.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The exit status of this process.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) | Self::Starling(starling::Error::Address(_)) => ExitCode::from(2),
            #[cfg(feature = "lab")]
            Self::PlotDirectory { .. } | Self::Bench(BenchError::NothingSelected { .. }) => {
                ExitCode::from(2)
            }
            Self::Device(error) | Self::Starling(starling::Error::Device(error))
                if error.fault == Fault::Caller =>
            {
                ExitCode::from(2)
            }
            Self::Status(status) => ExitCode::from(STATUS_BASE + status.code() as u8),
            _ => ExitCode::FAILURE,
        }
    }
}
