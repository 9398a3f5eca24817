//! The seventeen status codes.

use std::fmt;

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
    /// The arguments are wrong in any state of the system.
    InvalidArgument = 3,
    /// The call was not over at its deadline. It may have taken effect.
    DeadlineExceeded = 4,
    /// The requested thing does not exist.
    NotFound = 5,
    /// The thing to create exists already.
    AlreadyExists = 6,
    /// The caller may not do this.
    PermissionDenied = 7,
    /// A quota or a queue is used up.
    ResourceExhausted = 8,
    /// The system is not in the state that the call needs.
    FailedPrecondition = 9,
    /// A concurrent call won a conflict.
    Aborted = 10,
    /// A value is beyond the valid range.
    OutOfRange = 11,
    /// The server has no such method.
    Unimplemented = 12,
    /// The server has a fault.
    Internal = 13,
    /// The server cannot be reached now: try again, or elsewhere.
    Unavailable = 14,
    /// Data is lost or corrupt.
    DataLoss = 15,
    /// The caller is not authenticated.
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
}
