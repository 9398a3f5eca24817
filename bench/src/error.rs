//! The errors of benchmarks.

use std::io;
use std::time::Duration;

use crate::kv::WrongAnswer;

/// Why a benchmark has no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A system call failed.
    #[error("{doing}: {source}")]
    Io {
        /// The attempted action.
        doing: String,
        /// The system's error.
        source: io::Error,
    },
    /// A server or load generator ended, or printed an unexpected line.
    #[error("the process `{role}` failed: {said}")]
    Process {
        /// Its role.
        role: String,
        /// The line that it printed, or that it ended.
        said: String,
    },
    /// A server did not answer.
    #[error("{system} over {scheme}: no answer within {after:?}")]
    NoAnswer {
        /// The device of the benchmark.
        scheme: &'static str,
        /// The system of the benchmark.
        system: &'static str,
        /// How long the client waited.
        after: Duration,
    },
    /// A server's answer is not the expected one.
    #[error("{system} over {scheme}: a wrong answer: {what}")]
    WrongEcho {
        /// The device of the benchmark.
        scheme: &'static str,
        /// The system of the benchmark.
        system: &'static str,
        /// What was wrong.
        what: String,
    },
    /// The key-value store's answer contradicts the model.
    #[error(transparent)]
    WrongAnswer(#[from] WrongAnswer),
    /// A call over one of the systems failed.
    #[error("{system}: {what}")]
    Call {
        /// The system whose call it was.
        system: &'static str,
        /// The system's own message.
        what: String,
    },
    /// No process has that role.
    #[error("there is no role `{0}`")]
    UnknownRole(String),
    /// A process was started in a role with arguments that the role cannot use.
    #[error("the role `{role}` cannot use its arguments: {why}")]
    BadRoleArguments {
        /// The role.
        role: String,
        /// The expected arguments.
        why: String,
    },
    /// `--only` selects no benchmark.
    #[error("nothing in suite `{suite}` matches --only; it has {there_is}")]
    NothingSelected {
        /// The suite.
        suite: &'static str,
        /// The benchmarks of the suite.
        there_is: String,
    },
}

impl BenchError {
    /// For `map_err`: wraps an I/O error with the attempted action.
    pub fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}
