//! Errors of calls and connects on this endpoint, and how the protocol's errors become statuses.

use std::fmt;

use starling_call::Status;
use starling_io::{Fault, IoError};
use starling_proto::{ConnectError, Msgbuf, NotMadeReason, Rejection, RequestError, SessionError};

/// Why a call was not made. Nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The session is over or never was.
    #[error("the session is over: connect again")]
    SessionOver,
    /// The server is shutting down. It takes what continues a stream, and no new calls.
    #[error("the server is shutting down: call elsewhere, or wait for it to come back")]
    Draining,
    /// Too many calls wait on this session.
    #[error("the session's queue is full: the server is slower than its caller; call less often")]
    QueueFull,
    /// The message is larger than one of the two ends takes.
    #[error(
        "the request has {len} bytes, and the smaller max_message of the two ends is {max}: \
         send less, or raise EndpointConfig::protocol.max_message on both"
    )]
    TooLarge {
        /// Bytes of the request with its header.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// Too many calls are outstanding on this endpoint.
    #[error(
        "this endpoint has its limit of {limit} calls outstanding: \
         wait for some to end, or raise EndpointConfig::max_calls"
    )]
    TooManyCalls {
        /// The limit.
        limit: usize,
    },
    /// A message has no room for the call header.
    #[error("the message is shorter than the {needed} bytes that its call header needs")]
    NoHeaderRoom {
        /// The value of `CallOptions::header_len`.
        needed: usize,
    },
    /// There is no such continuation.
    #[error("the continuation is not registered on this endpoint: register it before the call")]
    UnknownContinuation,
}

/// A call that was not made, with its message.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct CallNotMade {
    /// The reason.
    #[source]
    pub error: CallError,
    /// The message, to be used again.
    pub message: Msgbuf,
}

impl From<NotMadeReason> for CallError {
    fn from(reason: NotMadeReason) -> Self {
        match reason {
            NotMadeReason::UnknownSession => Self::SessionOver,
            NotMadeReason::Draining => Self::Draining,
            NotMadeReason::QueueFull => Self::QueueFull,
            NotMadeReason::TooLarge { len, max } => Self::TooLarge { len, max },
        }
    }
}

impl From<CallError> for Status {
    fn from(error: CallError) -> Self {
        let text = error.to_string();
        let status = match error {
            CallError::SessionOver | CallError::Draining => Status::unavailable(text),
            CallError::QueueFull | CallError::TooLarge { .. } | CallError::TooManyCalls { .. } => {
                Status::resource_exhausted(text)
            }
            CallError::NoHeaderRoom { .. } | CallError::UnknownContinuation => {
                Status::internal(text)
            }
        };
        status.with_not_run()
    }
}

/// Invalid settings of workers. The caller is at fault.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("WorkerConfig::{field} is {value}, it must be {must}")]
pub struct WorkerConfigError {
    /// The field.
    pub field: &'static str,
    /// Its value.
    pub value: String,
    /// The values that are allowed.
    pub must: &'static str,
}

/// The same text as `Display`: what `main` prints if it returns the error.
impl fmt::Debug for WorkerConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<WorkerConfigError> for IoError {
    fn from(error: WorkerConfigError) -> Self {
        let WorkerConfigError { field, value, must } = error;
        Self::new(
            Fault::Caller,
            "start worker threads",
            format!("WorkerConfig::{field} is {value}"),
            format!("it must be {must}"),
        )
    }
}

/// Why a session could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The device cannot reach the address.
    #[error(transparent)]
    Device(#[from] IoError),
    /// The session protocol cannot open a session.
    #[error("connect {address}: {error}")]
    Session {
        /// The address.
        address: String,
        /// The reason.
        #[source]
        error: ConnectError,
    },
}

impl From<OpenError> for Status {
    fn from(error: OpenError) -> Self {
        let text = error.to_string();
        let status = match error {
            OpenError::Device(_) => Status::unavailable(text),
            OpenError::Session { .. } => Status::resource_exhausted(text),
        };
        status.with_not_run()
    }
}

/// The status of a call that `peer` did not answer.
#[cold]
pub(crate) fn status_of_failure(peer: &str, error: RequestError, may_have_run: bool) -> Status {
    match error {
        RequestError::Session(SessionError::Closed) => {
            Status::cancelled(format!("{peer}: {error}"))
        }
        RequestError::Session(session) => {
            let remedy = if may_have_run {
                "the call may have run; connect again or elsewhere"
            } else {
                "the call did not run; connect again or elsewhere"
            };
            Status::unavailable(format!("{peer}: {session}; {remedy}"))
        }
        RequestError::Rejected(rejection) => {
            let text = format!("{peer}: {rejection}");
            match rejection {
                Rejection::TooLarge | Rejection::NoMemory => {
                    Status::resource_exhausted(text).with_not_run()
                }
                Rejection::Draining => Status::unavailable(text).with_not_run(),
                Rejection::ResponseExpired | Rejection::Other(_) => Status::unknown(text),
                Rejection::Malformed => Status::internal(text).with_not_run(),
            }
        }
        RequestError::ResponseTooLarge | RequestError::NoMemory | RequestError::NoSlot => {
            Status::resource_exhausted(format!("call to {peer}: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    #[test]
    fn the_status_of_a_failed_peer_is_unavailable_and_names_the_peer_and_the_remedy() {
        for (may_have_run, says) in [(true, "may have run"), (false, "did not run")] {
            let error = SessionError::PeerSilent.into();
            let status = status_of_failure("udp://h:1", error, may_have_run);
            assert_eq!(status.code(), Code::Unavailable);
            let text = status.message();
            assert!(text.starts_with("udp://h:1: the peer stopped answering"));
            assert!(text.contains(says), "{text}");
            assert!(text.ends_with("connect again or elsewhere"));
        }
    }

    #[test]
    fn a_message_that_is_too_large_is_resource_exhausted() {
        let status = status_of_failure("x", Rejection::TooLarge.into(), true);
        assert_eq!(status.code(), Code::ResourceExhausted);
        let status = Status::from(CallError::TooLarge { len: 2, max: 1 });
        assert_eq!(status.code(), Code::ResourceExhausted);
    }
}
