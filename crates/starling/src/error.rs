//! Why a server, an endpoint or a channel could not be made. Calls end with a
//! [`Status`](crate::Status) instead.

use std::fmt;

use starling_balance::{MAX_BACKENDS, ServiceConfigError};
use starling_endpoint::{ConfigError, Status, WorkerConfigError};
use starling_io::IoError;

use crate::address::AddressError;

/// Why a server, an endpoint or a channel could not be made, or had to stop.
#[derive(thiserror::Error)]
pub enum Error {
    /// The address cannot work.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The device could not be opened, or failed.
    #[error(transparent)]
    Device(#[from] IoError),
    /// The server could not be reached.
    #[error(transparent)]
    Unreachable(Status),
    /// A setting cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A setting of workers cannot work.
    #[error(transparent)]
    Workers(#[from] WorkerConfigError),
    /// A server is to be steered, and none of its methods runs in workers.
    #[error(
        "the server is steered, but none of its methods runs in workers: mark those that do with \
         `option (starling.mode) = WORKER` in the .proto file, or do not call steered()"
    )]
    NothingToSteer,
    /// The server or endpoint has no address.
    #[error("the server has no address: call bind(\"udp://0.0.0.0:9000\") or bind(\"shm://name\")")]
    NoAddress,
    /// An endpoint has services, and no peer can reach it.
    #[error(
        "the endpoint has services and serves none of them, for it only reaches others: \
         call bind(\"udp://0.0.0.0:9000\") in place of reach(), or add no services"
    )]
    ServesNothing,
    /// A balanced channel has no address, and no resolver that would find some.
    #[error(
        "the channel has no server: name at least one address, or set a resolver \
         (ChannelBuilder::resolver)"
    )]
    NoBackends,
    /// A channel is to have more servers than it can.
    #[error(
        "the channel has {given} servers, and a channel has {MAX_BACKENDS} at most: have several channels"
    )]
    TooManyBackends {
        /// The addresses.
        given: usize,
    },
    /// A channel to several servers has a test's clock.
    #[error(
        "a channel to several servers goes by the machine's time: do not call ChannelBuilder::clock, or name one \
         address without load balancing, an age and an idle timeout"
    )]
    ClockOfSeveral,
    /// A service config cannot be used.
    #[error(transparent)]
    ServiceConfig(#[from] ServiceConfigError),
    /// Two services have the same name, or two methods the same method id.
    #[error(
        "one server cannot serve both {first} and {second}: both have the method id {id:#010x}"
    )]
    MethodsCollide {
        /// Path of the method that was added first.
        first: &'static str,
        /// Path of the method that was added second.
        second: &'static str,
        /// The method id of both.
        id: u32,
    },
    /// Options were set for a name that no service and no method has.
    #[error(
        "method_options has {name:?}, which is no service and no method of the server: write kv.Kv or \
         kv.Kv/Put; a method of the server is {example}"
    )]
    UnknownMethod {
        /// The name.
        name: String,
        /// The path of some method.
        example: String,
    },
    /// The operating system could not start a thread, or gave no randomness.
    #[error("{attempt}: {source}")]
    System {
        /// The action that Starling attempted.
        attempt: &'static str,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A dispatch thread panicked. This is a bug of Starling.
    #[error(
        "a dispatch thread panicked, a bug of Starling: standard error has the panic's text, \
         report it with the backtrace (RUST_BACKTRACE=1)"
    )]
    Panicked,
}

/// The same text as `Display`: what `main` prints if it returns the error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Error> for Status {
    /// For handlers that make calls: `cx.channel(address)?`. A server that the handler could not reach
    /// keeps its status. Every other error is INTERNAL for the handler's caller.
    fn from(error: Error) -> Self {
        match error {
            Error::Unreachable(status) => status,
            error => Status::internal(error.to_string()),
        }
    }
}

impl Error {
    pub(crate) fn system(attempt: &'static str, source: impl Into<std::io::Error>) -> Self {
        Self::System {
            attempt,
            source: source.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_server_keeps_its_status_and_other_errors_are_internal() {
        let handler = |address: &str| -> Result<(), Status> {
            crate::Address::parse(address).map_err(Error::from)?;
            Err(Error::Unreachable(Status::unavailable("nobody")))?
        };
        let status = handler("kv:9000").expect_err("no scheme");
        assert_eq!(status.code(), starling_endpoint::Code::Internal);
        assert!(status.message().contains("kv:9000"), "{status}");
        let status = handler("shm://kv").expect_err("as made");
        assert_eq!(status, Status::unavailable("nobody"));
    }

    #[test]
    fn main_prints_the_same_text_as_a_log() {
        let error = Error::NoAddress;
        assert_eq!(format!("{error:?}"), error.to_string());
        let error = Error::from(crate::Address::parse("kv:9000").expect_err("no scheme"));
        assert_eq!(format!("{error:?}"), error.to_string());
    }
}
