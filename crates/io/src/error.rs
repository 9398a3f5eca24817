//! Errors of devices: what happened, which side is at fault, what to do.

use std::error::Error;
use std::fmt;
use std::ops::{Deref, DerefMut};

/// The side that has to act so that an error goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The caller: a malformed address, a flag that makes no sense.
    Caller,
    /// This host: a missing capability, a limit, a name already taken.
    Host,
    /// The other end: it is not there, or it misbehaved.
    Peer,
}

/// An error of a device. Its text has three parts: what was tried, what happened, what to do.
///
/// It is one word, so that functions which nearly always succeed return their result in registers.
pub struct IoError(Box<IoErrorParts>);

/// The parts of an [`IoError`], which dereferences to them.
#[derive(Debug, thiserror::Error)]
#[error("{attempt}: {problem}; {remedy}")]
pub struct IoErrorParts {
    /// The attempt: `bind udp://127.0.0.1:80`.
    pub attempt: String,
    /// The failure: `permission denied (os error 13)`.
    pub problem: String,
    /// The remedy: `use a port above 1023, or run with CAP_NET_BIND_SERVICE`.
    pub remedy: String,
    /// The side that has to do it.
    pub fault: Fault,
    /// The operating system's error, if a system call failed.
    #[source]
    pub source: Option<std::io::Error>,
}

impl Deref for IoError {
    type Target = IoErrorParts;

    fn deref(&self) -> &IoErrorParts {
        &self.0
    }
}

impl DerefMut for IoError {
    fn deref_mut(&mut self) -> &mut IoErrorParts {
        &mut self.0
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Error for IoError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// The same text as `Display`: what `main` prints if it returns the error.
impl fmt::Debug for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl IoError {
    /// An error with no system call behind it.
    pub fn new(
        fault: Fault,
        attempt: impl Into<String>,
        problem: impl fmt::Display,
        remedy: impl Into<String>,
    ) -> Self {
        Self(Box::new(IoErrorParts {
            attempt: attempt.into(),
            problem: problem.to_string(),
            remedy: remedy.into(),
            fault,
            source: None,
        }))
    }

    /// An error that a system call returned.
    pub fn from_os(
        fault: Fault,
        attempt: impl Into<String>,
        source: std::io::Error,
        remedy: impl Into<String>,
    ) -> Self {
        Self::new(fault, attempt, &source, remedy).with_source(source)
    }

    /// The same error with the operating system's error behind it.
    #[must_use]
    pub fn with_source(mut self, source: std::io::Error) -> Self {
        self.0.source = Some(source);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_what_happened_and_what_to_do() {
        let error = IoError::new(Fault::Caller, "open udp://x", "no port", "write host:port");
        assert_eq!(error.to_string(), "open udp://x: no port; write host:port");
    }
}
