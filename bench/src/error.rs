//! What can go wrong in a benchmark.

use std::io;
use std::time::Duration;

use crate::kv::WrongAnswer;

/// Why a benchmark has no figures.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A system call failed.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// What the system said.
        source: io::Error,
    },
    /// A process of ours ended, or said something else than it had to.
    #[error("the process `{role}` did not go on: {said}")]
    Process {
        /// Its role.
        role: String,
        /// What it said instead, or that it ended.
        said: String,
    },
    /// A server did not answer.
    #[error("{system} over {plane}: no answer within {after:?}")]
    NoAnswer {
        /// The plane of the contestant.
        plane: &'static str,
        /// The system of the contestant.
        system: &'static str,
        /// How long was waited.
        after: Duration,
    },
    /// A server answered something else than it had to.
    #[error("{system} over {plane}: a wrong answer: {what}")]
    WrongEcho {
        /// The plane of the contestant.
        plane: &'static str,
        /// The system of the contestant.
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
        /// Its own message.
        what: String,
    },
    /// There is no server of that role.
    #[error("there is no server role `{0}`")]
    UnknownRole(String),
    /// A server role was started with arguments that it cannot use.
    #[error("the server role `{role}` cannot use its arguments: {why}")]
    BadRoleArguments {
        /// The role.
        role: String,
        /// What it needs.
        why: String,
    },
    /// `--only` left nothing to run.
    #[error("nothing in suite `{suite}` matches --only; it has {there_is}")]
    NothingSelected {
        /// The suite.
        suite: &'static str,
        /// What could be selected.
        there_is: String,
    },
}

impl BenchError {
    /// For `map_err`: wraps an I/O error with what was being done.
    pub fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}
