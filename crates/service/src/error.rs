//! Why the service cannot begin, or cannot go on.

use std::fmt;
use std::path::PathBuf;

use rustix::io::Errno;
use starling_endpoint::{ConfigError, Status};
use starling_io::IoError;
use starling_plugin_host::PluginError;

/// See the head of this file. The text says what to do.
#[derive(thiserror::Error)]
pub enum ServiceError {
    /// A device, or the system under it.
    #[error(transparent)]
    Device(#[from] IoError),
    /// The control interface.
    #[error(transparent)]
    Control(#[from] starling::Error),
    /// The settings of an endpoint.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The policies that it was to begin with.
    #[error("policies: {0}")]
    Policies(#[from] Status),
    /// A plug-in that it was to begin with.
    #[error("plugins: {0}")]
    Plugin(#[from] PluginError),
    /// The address of a collector of spans is malformed.
    #[error("otlp: {address:?} is no address of a collector: write http://HOST:4318")]
    Collector {
        /// The text.
        address: String,
    },
    /// The file of an identity cannot be looked at.
    #[error(
        "identities.{name}.exe: {}: {source}: write the path of a program that this service can see",
        .exe.display()
    )]
    Exe {
        /// The identity.
        name: String,
        /// Its program.
        exe: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A quota with which nothing could be done.
    #[error("{setting}: 0 lets nobody call: write at least 1, or leave it out")]
    ZeroQuota {
        /// As it is written in a service's file.
        setting: &'static str,
    },
    /// So many runtimes cannot be.
    #[error("runtimes: {runtimes}: write 1 to 64")]
    Runtimes {
        /// The number.
        runtimes: usize,
    },
    /// A runtime that is not for the applications of an identity.
    #[error("dedicated.{identity}: {runtime}: {problem}")]
    Dedicated {
        /// The identity.
        identity: String,
        /// The runtime.
        runtime: usize,
        /// What is wrong.
        problem: String,
    },
    /// A core on which no runtime can run.
    #[error("cores: {core}: this process may run on {cores:?} only")]
    Core {
        /// The number.
        core: usize,
        /// Those that it may.
        cores: Vec<usize>,
    },
    /// An address that is none of the service's devices.
    #[error(
        "{address}: the service has no such device: write udp://HOST:PORT, shm://NAME, xdp://IFNAME/HOST:PORT \
         or tcp://HOST:PORT"
    )]
    UnknownDevice {
        /// The address.
        address: String,
    },
}

impl ServiceError {
    pub(crate) fn system(attempt: &str, error: Errno) -> Self {
        let fault = starling_io::Fault::Host;
        let remedy = "check the limits of this process and host";
        Self::Device(IoError::from_os(fault, attempt, error.into(), remedy))
    }
}

/// The same text as `Display`: what `main` prints if it returns the error.
impl fmt::Debug for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
