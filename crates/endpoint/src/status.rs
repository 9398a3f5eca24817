//! How a call ends: gRPC's canonical codes, a message for people, metadata for programs.

use std::borrow::Cow;
use std::fmt;

use starling_proto::Msgbuf;

use crate::header::MAX_STATUS_MESSAGE;
use crate::metadata::Metadata;

/// The canonical status codes of gRPC, with the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Code {
    /// The call succeeded.
    Ok = 0,
    /// The caller cancelled the call.
    Cancelled = 1,
    /// An error that fits no other code.
    Unknown = 2,
    /// The arguments are wrong whatever the state of the system.
    InvalidArgument = 3,
    /// The call was not over at its deadline. It may have taken effect.
    DeadlineExceeded = 4,
    /// What was asked for does not exist.
    NotFound = 5,
    /// What was to be created exists.
    AlreadyExists = 6,
    /// The caller may not do this.
    PermissionDenied = 7,
    /// A quota or a queue is used up.
    ResourceExhausted = 8,
    /// The system is not in the state that the call needs.
    FailedPrecondition = 9,
    /// The call lost against a concurrent one.
    Aborted = 10,
    /// Beyond the valid range.
    OutOfRange = 11,
    /// The server has no such method.
    Unimplemented = 12,
    /// The server broke one of its own rules.
    Internal = 13,
    /// The server cannot be reached now: try again, or elsewhere.
    Unavailable = 14,
    /// Data is lost or corrupt.
    DataLoss = 15,
    /// The caller has not proved who it is.
    Unauthenticated = 16,
}

impl Code {
    /// All codes, in the order of their numbers.
    pub const ALL: [Code; 17] = [
        Code::Ok,
        Code::Cancelled,
        Code::Unknown,
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::NotFound,
        Code::AlreadyExists,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::FailedPrecondition,
        Code::Aborted,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::Internal,
        Code::Unavailable,
        Code::DataLoss,
        Code::Unauthenticated,
    ];

    /// The code with this number, if there is one.
    pub fn from_u8(number: u8) -> Option<Code> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The name in capitals, as gRPC writes it.
    pub fn name(self) -> &'static str {
        match self {
            Code::Ok => "OK",
            Code::Cancelled => "CANCELLED",
            Code::Unknown => "UNKNOWN",
            Code::InvalidArgument => "INVALID_ARGUMENT",
            Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Code::NotFound => "NOT_FOUND",
            Code::AlreadyExists => "ALREADY_EXISTS",
            Code::PermissionDenied => "PERMISSION_DENIED",
            Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Code::FailedPrecondition => "FAILED_PRECONDITION",
            Code::Aborted => "ABORTED",
            Code::OutOfRange => "OUT_OF_RANGE",
            Code::Unimplemented => "UNIMPLEMENTED",
            Code::Internal => "INTERNAL",
            Code::Unavailable => "UNAVAILABLE",
            Code::DataLoss => "DATA_LOSS",
            Code::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The end of a call that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Status {
    code: Code,
    message: Cow<'static, str>,
    // Boxed because it is rare: a status is returned by value on the fast path.
    metadata: Option<Box<Metadata>>,
    unsent: Option<Box<Msgbuf>>,
    not_run: bool,
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
    /// A status. What of `message` is beyond [`MAX_STATUS_MESSAGE`] bytes is not sent.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            message: message.into(),
            metadata: None,
            unsent: None,
            not_run: false,
        }
    }

    /// The same status of a call whose handler did not run.
    pub(crate) fn with_not_run(mut self) -> Self {
        self.not_run = true;
        self
    }

    /// Whether the call may have had an effect on the server. If not it may be made again.
    pub fn may_have_run(&self) -> bool {
        !self.not_run
    }

    /// The status as the end of a request whose handler ran, whatever it says of the call that the
    /// handler had it from.
    pub(crate) fn of_handler(mut self) -> Self {
        self.not_run = false;
        self.unsent = None;
        self
    }

    /// The same status of a call whose request was never sent.
    pub(crate) fn with_unsent(mut self, request: Msgbuf) -> Self {
        self.unsent = Some(Box::new(request));
        self.with_not_run()
    }

    /// The request of a call that cannot have run, because its session ended before all of it was
    /// sent: the call may be made again on another session, with
    /// [`Context::call_message`](crate::Context::call_message). The header that it was made with
    /// is still there.
    pub fn take_unsent(&mut self) -> Option<Msgbuf> {
        self.unsent.take().map(|request| *request)
    }

    /// The same status with metadata.
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = (!metadata.is_empty()).then(|| Box::new(metadata));
        self
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// What went wrong, for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What the server sent along.
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
    fn numbers_and_names_are_those_of_grpc() {
        for (number, code) in Code::ALL.iter().enumerate() {
            assert_eq!(*code as usize, number);
            assert_eq!(Code::from_u8(number as u8), Some(*code));
        }
        assert_eq!(Code::from_u8(17), None);
        assert_eq!(Code::DeadlineExceeded.to_string(), "DEADLINE_EXCEEDED");
    }

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
    }
}
