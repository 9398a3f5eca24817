//! How a call failed: a code, a message for people, metadata for programs.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;

use crate::code::Code;
use crate::field::MAX_STATUS_MESSAGE;
use crate::metadata::Metadata;

/// A request that was never sent: its call header and its body. A status carries it to the layer that
/// may make the call again; callers do not see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsent {
    /// The contiguous bytes; the call header comes first.
    pub head: Vec<u8>,
    /// The tail behind them, if the message has one.
    pub tail: Option<Bytes>,
}

impl Unsent {
    /// Adds the request to the status of its call, which did not run.
    pub fn attach_to(self, mut status: Status) -> Status {
        status.unsent = Some(Box::new(self));
        status.with_not_run()
    }

    /// The request of a call that cannot have run, because its session ended before all of the
    /// request was sent. The call may be made again on another session with this message, which
    /// still has the header of the first attempt.
    pub fn take_from(status: &mut Status) -> Option<Self> {
        status.unsent.take().map(|request| *request)
    }
}

/// The end of a call that did not succeed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Status {
    code: Code,
    message: Cow<'static, str>,
    // Boxed because it is rare: a status is returned by value on the fast path.
    metadata: Option<Box<Metadata>>,
    unsent: Option<Box<Unsent>>,
    not_run: bool,
}

/// The same text as `Display`: what `main` prints if it returns a status as its error.
impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $code:ident),* $(,)?) => {
        impl Status {
            $(
                $(#[$doc])*
                #[cold]
                pub fn $name(message: impl Into<Cow<'static, str>>) -> Self {
                    Self::new(Code::$code, message)
                }
            )*
        }
    };
}

constructors! {
    /// [`Code::Cancelled`] with a message.
    cancelled => Cancelled,
    /// [`Code::Unknown`] with a message.
    unknown => Unknown,
    /// [`Code::InvalidArgument`] with a message.
    invalid_argument => InvalidArgument,
    /// [`Code::DeadlineExceeded`] with a message.
    deadline_exceeded => DeadlineExceeded,
    /// [`Code::NotFound`] with a message.
    not_found => NotFound,
    /// [`Code::AlreadyExists`] with a message.
    already_exists => AlreadyExists,
    /// [`Code::PermissionDenied`] with a message.
    permission_denied => PermissionDenied,
    /// [`Code::ResourceExhausted`] with a message.
    resource_exhausted => ResourceExhausted,
    /// [`Code::FailedPrecondition`] with a message.
    failed_precondition => FailedPrecondition,
    /// [`Code::Aborted`] with a message.
    aborted => Aborted,
    /// [`Code::OutOfRange`] with a message.
    out_of_range => OutOfRange,
    /// [`Code::Unimplemented`] with a message.
    unimplemented => Unimplemented,
    /// [`Code::Internal`] with a message.
    internal => Internal,
    /// [`Code::Unavailable`] with a message.
    unavailable => Unavailable,
    /// [`Code::DataLoss`] with a message.
    data_loss => DataLoss,
    /// [`Code::Unauthenticated`] with a message.
    unauthenticated => Unauthenticated,
}

impl Status {
    /// A status. Only the first 1,024 bytes of `message` are sent to a peer.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            message: message.into(),
            metadata: None,
            unsent: None,
            not_run: false,
        }
    }

    /// The same status, of a call whose handler did not run.
    pub fn with_not_run(mut self) -> Self {
        self.not_run = true;
        self
    }

    /// The same status, of a call whose handler ran. A handler may return the status of a nested
    /// call that did not run; the handler itself ran all the same.
    pub fn with_run(mut self) -> Self {
        self.not_run = false;
        self.unsent = None;
        self
    }

    /// Whether the call may have had an effect on the server. False is certain: no handler ran, and the call may be
    /// made again. True: a request had left, or may have. A call with a timeout of 0, or one that an interceptor
    /// refuses after it has begun it, may say so though no handler ran.
    pub fn may_have_run(&self) -> bool {
        !self.not_run
    }

    /// How a call has failed for its caller. A handler may learn of the deadline before the caller's end does, and say
    /// CANCELLED: it is the deadline all the same. To be asked when the response comes.
    #[must_use]
    pub fn unless_late(mut self, is_late: impl FnOnce() -> bool) -> Self {
        if self.code == Code::Cancelled && is_late() {
            self.code = Code::DeadlineExceeded;
        }
        self
    }

    /// The same status with another message.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<Cow<'static, str>>) -> Self {
        self.message = message.into();
        self
    }

    /// The same status with metadata.
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = (!metadata.is_empty()).then(|| Box::new(metadata));
        self
    }

    /// The code.
    #[inline]
    pub fn code(&self) -> Code {
        self.code
    }

    /// The message, for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The metadata that the server sent with the status.
    pub fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_deref()
    }

    /// The part of the message that fits the wire.
    pub(crate) fn wire_message(&self) -> &str {
        &self.message[..self.message.floor_char_boundary(MAX_STATUS_MESSAGE)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let status = Status::internal("é".repeat(MAX_STATUS_MESSAGE));
        let wire = status.wire_message();
        assert!(wire.len() <= MAX_STATUS_MESSAGE && wire.len() >= MAX_STATUS_MESSAGE - 1);
        assert!(wire.chars().all(|c| c == 'é'));
    }

    #[test]
    fn the_text_names_the_code_first() {
        let status = Status::not_found("no key 7");
        assert_eq!(status.to_string(), "NOT_FOUND: no key 7");
        assert_eq!(format!("{status:?}"), status.to_string());
    }
}
