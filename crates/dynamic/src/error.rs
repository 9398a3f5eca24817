//! Why a dynamic call has no response.

use std::fmt;

use starling::Status;

use crate::json::JsonError;

/// Why a dynamic call has no response.
#[derive(Clone, thiserror::Error)]
pub enum Error {
    /// The call, or the one that asks for the service's description, ended with this status.
    #[error(transparent)]
    Status(#[from] Status),
    /// The request's JSON is wrong. No call was made.
    #[error(transparent)]
    Json(#[from] JsonError),
}

/// The same text as `Display`: what `main` prints if it returns the error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
