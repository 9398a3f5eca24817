//! What a balanced channel is made with.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use starling_balance::LoadBalancing;
use starling_endpoint::EndpointConfig;

use super::resolver::AnyResolver;
use crate::managed::Management;

/// Where the addresses of backends come from.
#[derive(Clone)]
pub(crate) enum Source {
    /// The program has named them.
    List(Vec<String>),
    /// A resolver finds them.
    Resolver(Arc<dyn AnyResolver>),
}

/// The settings of a balanced channel.
#[derive(Clone, Debug)]
pub(crate) struct Balancing {
    /// For people: in texts of errors.
    pub(crate) name: Arc<str>,
    pub(crate) source: Source,
    pub(crate) policy: LoadBalancing,
    /// The service whose health counts.
    pub(crate) health: Option<String>,
    /// A channel without calls for so long closes its connections.
    pub(crate) idle_timeout: Option<Duration>,
    /// A connection that is older is replaced.
    pub(crate) max_age: Option<Duration>,
    pub(crate) own_endpoint: Option<EndpointConfig>,
    pub(crate) management: Management,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::List(addresses) => f.debug_list().entries(addresses).finish(),
            Self::Resolver(_) => f.write_str("Resolver(..)"),
        }
    }
}
