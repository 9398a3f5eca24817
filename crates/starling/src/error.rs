//! Why something could not be set up. Calls end with a [`Status`](crate::Status) instead.

use starling_endpoint::{Status, WorkerConfigError};
use starling_io::IoError;
use starling_proto::ConfigError;

use crate::address::AddressError;

/// Why a server, an endpoint or a channel could not be made, or had to stop.
#[derive(Debug, thiserror::Error)]
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
    /// A network interface is to hand requests to workers, and no method runs in any.
    #[error(
        "the server is steered, and none of its methods runs in workers: say which do, with \
         `option (starling.mode) = WORKER` in the .proto file, or leave steered() away"
    )]
    NothingToSteer,
    /// A server without an address.
    #[error("the server has no address: call bind(\"udp://0.0.0.0:9000\") or bind(\"shm://name\")")]
    NoAddress,
    /// Two services have one name, or two methods one number on the wire.
    #[error("{first} and {second} cannot be served by one server: both have the number {id:#010x}")]
    MethodsCollide {
        /// Path of the method that was there.
        first: &'static str,
        /// Path of the method that was added.
        second: &'static str,
        /// The number that both have on the wire.
        id: u32,
    },
    /// The operating system gave no thread or no randomness.
    #[error("{attempt}: {source}")]
    System {
        /// What was tried.
        attempt: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A dispatch thread panicked, which is a fault of Starling.
    #[error("a dispatch thread panicked")]
    Panicked,
}

impl From<Error> for Status {
    /// For handlers that make calls: `cx.channel(address)?`. What the handler cannot set up is
    /// INTERNAL for its caller; a server that could not be reached is what it was.
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
    fn a_handler_passes_errors_on_as_statuses() {
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
}
