//! Why something could not be set up. Calls end with a [`Status`](crate::Status) instead.

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
    Unreachable(starling_endpoint::Status),
    /// A setting cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
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

impl Error {
    pub(crate) fn system(attempt: &'static str, source: impl Into<std::io::Error>) -> Self {
        Self::System {
            attempt,
            source: source.into(),
        }
    }
}
