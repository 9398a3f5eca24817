//! One benchmark: a system over one device or transport, in one case.

use std::fmt;

use crate::error::BenchError;
use crate::metric::Sample;
use crate::pin::Cores;
use crate::process::Launcher;
use crate::timeline::Kept;

/// The arguments of one repetition of a benchmark.
#[derive(Clone, Debug)]
pub struct Context {
    /// Starts servers.
    pub launcher: Launcher,
    /// The cores; the calling thread is on the client's already.
    pub cores: Cores,
    /// How long to measure, in seconds, after a warm-up of a tenth of that.
    pub seconds: f64,
    /// The network between client and server.
    pub network: Network,
    /// Takes the time line, if the benchmark has one.
    pub timeline: Kept,
}

/// The network between client and server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Both are on this host.
    #[default]
    Loopback,
    /// Each is in a network namespace of its own: see [`crate::veth`].
    Veth,
}

impl Network {
    /// The client's IPv4 address.
    pub fn client(self) -> &'static str {
        match self {
            Self::Loopback => "127.0.0.1",
            Self::Veth => starling_netns::IPV4[0],
        }
    }

    /// The server's IPv4 address.
    pub fn server(self) -> &'static str {
        match self {
            Self::Loopback => "127.0.0.1",
            Self::Veth => starling_netns::IPV4[1],
        }
    }
}

/// Measures one repetition.
pub type Measure = Box<dyn FnMut(&Context) -> Result<Sample, BenchError>>;

/// One system over one device or transport in one case. Its function starts the server, measures,
/// and leaves nothing running.
pub struct Benchmark {
    /// See [`Row::scheme`](crate::Row::scheme).
    pub scheme: &'static str,
    /// See [`Row::system`](crate::Row::system).
    pub system: &'static str,
    /// See [`Row::case`](crate::Row::case), without the placement.
    pub case: String,
    /// Measures one repetition.
    pub measure: Measure,
    /// Whether its figures depend on how far apart the two cores are: see
    /// [`Placement`](crate::placement::Placement).
    pub depends_on_placement: bool,
}

impl Benchmark {
    /// A benchmark from its three names and its function. Those over shared memory depend on the
    /// cores' placement.
    pub fn new(
        scheme: &'static str,
        system: &'static str,
        case: impl Into<String>,
        measure: impl FnMut(&Context) -> Result<Sample, BenchError> + 'static,
    ) -> Self {
        Self {
            scheme,
            system,
            case: case.into(),
            measure: Box::new(measure),
            depends_on_placement: scheme == "shm",
        }
    }

    /// The same, but its figures do not depend on the cores' placement.
    #[must_use]
    pub fn in_any_placement(self) -> Self {
        Self {
            depends_on_placement: false,
            ..self
        }
    }
}

impl fmt::Display for Benchmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.system, self.scheme)?;
        if !self.case.is_empty() {
            write!(f, " {}", self.case)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Benchmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Benchmark({self})")
    }
}
