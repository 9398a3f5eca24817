//! The settings of a channel.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use starling_balance::{LoadBalancing, MAX_BACKENDS, Policy, ServiceConfig};
use starling_endpoint::{EndpointConfig, Idle};
use starling_io::forks;
use starling_message::protobuf::DecodeLimits;

use super::Channel;
use crate::address::Address;
use crate::balancing::{AnyResolver, BalancedTransport, Balancing, HostName, Resolver, Source};
use crate::channel_call::Shared;
use crate::driver::{DirectTransport, Driver};
use crate::error::Error;
use crate::interceptor::Interceptors;
use crate::lookup;
use crate::managed::Management;
use crate::metrics::SharedRecorders;
use crate::permits::Permits;
use crate::plane::Transport;
use crate::policy::CallPolicy;
use crate::streaming::ByteAccount;
use crate::testing::TestClock;
use crate::threads;
use crate::time::Time;

/// Calls outstanding on a channel unless its builder sets another number.
const DEFAULT_CAPACITY: usize = 4096;
/// A host name is looked up anew after so long, unless its builder sets another time.
const REFRESH: Duration = Duration::from_secs(30);
/// Servers in the name of a channel, at most: it is in texts of errors and the metrics of each method.
const MOST_NAMED: usize = 4;

/// The settings of a [`Channel`].
#[derive(Clone)]
#[must_use = "a builder does nothing until `connect` or `lazy`"]
pub struct ChannelBuilder {
    addresses: Vec<String>,
    capacity: usize,
    fail_when_full: bool,
    own_endpoint: Option<EndpointConfig>,
    time: Time,
    balancing: BalancingOptions,
    service_config: Option<Arc<ServiceConfig>>,
    retry_buffer: (usize, usize),
    max_stream_bytes: Option<usize>,
    decode: DecodeLimits,
    management: Management,
}

/// Those that make a channel a balanced one.
#[derive(Clone, Default)]
struct BalancingOptions {
    /// Calls are balanced whatever else is set.
    is_balanced: bool,
    policy: Option<LoadBalancing>,
    resolver: Option<Arc<dyn AnyResolver>>,
    refresh: Option<Duration>,
    /// None: as the policy has it.
    health: Option<Option<String>>,
    idle_timeout: Option<Duration>,
    max_age: Option<Duration>,
}

impl ChannelBuilder {
    pub(super) fn new(addresses: Vec<String>) -> Self {
        Self {
            addresses,
            capacity: DEFAULT_CAPACITY,
            fail_when_full: false,
            own_endpoint: None,
            time: Time::default(),
            balancing: BalancingOptions::default(),
            service_config: None,
            retry_buffer: CallPolicy::BUFFER,
            max_stream_bytes: None,
            decode: DecodeLimits::default(),
            management: Management::default(),
        }
    }

    pub(super) fn balanced(mut self) -> Self {
        self.balancing.is_balanced = true;
        self
    }

    /// The most calls outstanding at once. The default is 4096, the least is 1. Further calls wait in
    /// their futures. Streams do not count: the server bounds them, by the sessions that it gives a client
    /// ([`ProtocolConfig::max_sessions_per_client`](crate::ProtocolConfig::max_sessions_per_client)).
    pub fn capacity(mut self, calls: usize) -> Self {
        self.capacity = calls.max(1);
        self
    }

    /// Has calls beyond the capacity end with RESOURCE_EXHAUSTED instead of waiting.
    pub fn fail_when_full(mut self) -> Self {
        self.fail_when_full = true;
        self
    }

    /// Has the managed service with this name make the channel's calls, whatever `STARLING_SERVICE` says. `mem://`
    /// stays within the process. `NAME?users=UID` is a service of another user than this process's and root.
    pub fn managed_by(mut self, service: impl Into<String>) -> Self {
        self.management = Management::By(service.into());
        self
    }

    /// Has the process make the channel's calls itself, whatever `STARLING_SERVICE` says.
    pub fn direct(mut self) -> Self {
        self.management = Management::Direct;
        self
    }

    /// Gives the channel an endpoint of its own.
    pub fn own_endpoint(mut self) -> Self {
        self.own_endpoint.get_or_insert_default();
        self
    }

    /// Sets how a thread that drives the endpoint behaves when there is nothing to do. Gives the
    /// channel its own endpoint.
    pub fn idle(mut self, idle: Idle) -> Self {
        self.own_endpoint.get_or_insert_default().idle = idle;
        self
    }

    /// Every setting of the endpoint. Gives the channel its own endpoint.
    pub fn endpoint_config(mut self, config: EndpointConfig) -> Self {
        self.own_endpoint = Some(config);
        self
    }

    /// The same time as that of an endpoint.
    pub(crate) fn time(self, time: &Time) -> Self {
        if !time.is_manual() {
            return self;
        }
        Self {
            time: time.clone(),
            ..self.own_endpoint()
        }
    }

    /// Takes the time from a clock that a test moves by hand: for deadlines, timeouts, keepalive, and pauses
    /// between attempts to connect and between retries. Gives the channel its own endpoint. A channel to several
    /// servers goes by the machine's time only, and cannot be made with a clock.
    pub fn clock(self, clock: &TestClock) -> Self {
        self.time(&clock.time())
    }

    /// How calls are divided among several servers. It comes before what a service config says. Without either,
    /// [`Channel::balanced`] divides them in turn, and any other channel takes the first server that works.
    ///
    /// With an address that has a host name, each of the addresses that the name stands for is a server. Names
    /// among several addresses stand for one server each.
    pub fn load_balancing(mut self, policy: LoadBalancing) -> Self {
        self.balancing.policy = Some(policy);
        self
    }

    /// Has a resolver find the servers. The channel's address is a name for people then.
    pub fn resolver(mut self, resolver: impl Resolver) -> Self {
        self.balancing.resolver = Some(Arc::new(resolver));
        self
    }

    /// Looks a host name up anew after so long, or sooner when a server fails. The default is 30 s.
    pub fn refresh(mut self, interval: Duration) -> Self {
        self.balancing.refresh = Some(interval);
        self
    }

    /// Has servers get calls only while they say that this service is healthy (`grpc.health.v1`, which every
    /// server has); an empty name is the server as a whole, which is the default of all policies but
    /// `pick_first`. `None` does not ask. It asks without interceptors and metadata of the channel's callers.
    pub fn health_check(mut self, service: Option<&str>) -> Self {
        self.balancing.health = Some(service.map(str::to_owned));
        self
    }

    /// A channel that has had no calls for so long closes its connections, and opens them with its next call. By
    /// default they stay. The least is 1 ms.
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.balancing.idle_timeout = Some(timeout.max(Duration::from_millis(1)));
        self
    }

    /// A connection that is older, give or take a tenth, is replaced by a new one. Its calls end where they are.
    /// By default connections have no age. The least is 1 ms.
    pub fn max_connection_age(mut self, age: Duration) -> Self {
        self.balancing.max_age = Some(age.max(Duration::from_millis(1)));
        self
    }

    /// What is done with the calls of each method: timeouts, retries, hedging; and how they are divided.
    pub fn service_config(mut self, config: ServiceConfig) -> Self {
        self.service_config = Some(Arc::new(config));
        self
    }

    /// The most bytes that are kept of a request to make it again, and of all requests of the channel together.
    /// The default is 1 MiB and 16 MiB. What does not fit is sent once.
    pub fn retry_buffer(mut self, of_a_call: usize, of_all: usize) -> Self {
        self.retry_buffer = (of_a_call, of_all);
        self
    }

    /// What the channel's streams hold in all beyond their windows
    /// ([`CallOptions::stream_window`](crate::CallOptions::stream_window)): messages that came and did not fit,
    /// and what messages are when they are decompressed or decoded from protobuf, until the reader drops them. A
    /// stream with one more ends with RESOURCE_EXHAUSTED. The default is 512 MiB; less than twice the largest message
    /// is too little, for one may be read while the next one comes.
    ///
    /// Within its window a stream holds up to twice as much: what waits, and what is read. The streams of the
    /// channels of an [`Endpoint`](crate::Endpoint) have the default together.
    pub fn max_stream_bytes(mut self, bytes: usize) -> Self {
        self.max_stream_bytes = Some(bytes);
        self
    }

    /// What a response or a message of a stream may take in memory that comes in protobuf, as from a server with
    /// another version of the schema. The default is 256 bytes for each byte that came and 64 KiB, at most
    /// 256 MiB.
    pub fn decode_limits(mut self, limits: impl Into<DecodeLimits>) -> Self {
        self.decode = limits.into();
        self
    }

    /// A channel that connects with its first call.
    ///
    /// # Errors
    /// If an address is malformed or there is none, if the device cannot be opened, or if a channel to several
    /// servers has a clock.
    pub fn lazy(self) -> Result<Channel, Error> {
        let settings = self.clone();
        let addresses = self.addresses.iter().map(|it| Address::parse(it));
        let addresses = match self.balancing.resolver {
            Some(_) => Vec::new(),
            None => addresses.collect::<Result<Vec<_>, _>>()?,
        };
        if let Some(balancing) = self.balancing_of(&addresses)? {
            if self.time.is_manual() {
                return Err(Error::ClockOfSeveral);
            }
            let balanced = BalancedTransport::new(balancing)?;
            let transport = Box::new(balanced.clone());
            return Ok(self.on(transport, Some(balanced), Some(settings)));
        }
        let address = addresses.into_iter().next().ok_or(Error::NoBackends)?;
        let address = self.management.via(address)?;
        let driver = match &self.own_endpoint {
            Some(config) => Arc::new(Driver::start(&address, &self.time, config)?),
            None => Driver::shared(&address)?,
        };
        let transport = DirectTransport::new(driver, address);
        Ok(self.on(Box::new(transport), None, Some(settings)))
    }

    /// The settings of a balanced channel. None: all calls go to one server.
    fn balancing_of(&self, addresses: &[Address]) -> Result<Option<Balancing>, Error> {
        let options = &self.balancing;
        if addresses.is_empty() && options.resolver.is_none() {
            return Err(Error::NoBackends);
        }
        if addresses.len() > MAX_BACKENDS {
            let given = addresses.len();
            return Err(Error::TooManyBackends { given });
        }
        let of_config = self
            .service_config
            .as_ref()
            .and_then(|config| config.balancing());
        let policy = options.policy.as_ref().or(of_config).cloned();
        let policy = policy.unwrap_or_else(|| match options.is_balanced {
            true => LoadBalancing::round_robin(),
            false => LoadBalancing::pick_first(),
        });
        let of_config = self
            .service_config
            .as_ref()
            .and_then(|config| config.health_service());
        let health = match (&options.health, of_config) {
            (Some(health), _) => health.clone(),
            (None, Some(service)) => Some(service.to_owned()),
            (None, None) => match policy.policy() {
                Policy::PickFirst { .. } => None,
                _ => Some(String::new()),
            },
        };
        let is_plain = policy == LoadBalancing::pick_first()
            && addresses.len() == 1
            && options.idle_timeout.is_none()
            && options.max_age.is_none()
            && health.is_none();
        if is_plain {
            return Ok(None);
        }
        let source = match (&options.resolver, addresses) {
            (Some(resolver), _) => Source::Resolver(Arc::clone(resolver)),
            (None, [address]) if lookup::is_needed(address) => {
                let address = address.clone();
                let refresh = options.refresh.unwrap_or(REFRESH);
                Source::Resolver(Arc::new(HostName { address, refresh }))
            }
            (None, _) => Source::List(self.addresses.clone()),
        };
        Ok(Some(Balancing {
            name: self.name().into(),
            source,
            policy,
            health,
            idle_timeout: options.idle_timeout,
            max_age: options.max_age,
            own_endpoint: self.own_endpoint.clone(),
            management: self.management.clone(),
        }))
    }

    /// The servers, and of many the first ones.
    fn name(&self) -> String {
        match self.addresses.len() {
            0..=MOST_NAMED => self.addresses.join(", "),
            all => {
                let named = &self.addresses[..MOST_NAMED - 1];
                format!("{} and {} more", named.join(", "), all - named.len())
            }
        }
    }

    /// A channel whose calls another plane makes, or a transport of your own. The address is a name for
    /// people. After a fork, such a channel does not work in the child.
    pub fn over(self, transport: impl Transport + 'static) -> Channel {
        self.on(Box::new(transport), None, None)
    }

    fn on(
        self,
        transport: Box<dyn Transport>,
        balanced: Option<BalancedTransport>,
        settings: Option<Self>,
    ) -> Channel {
        let address = self.name();
        let policy = self.service_config.as_ref();
        let policy = policy.and_then(|config| CallPolicy::new(config, self.retry_buffer, &address));
        let shared = Arc::new(Shared {
            transport,
            balanced,
            address,
            time: self.time,
            policy: policy.map(Arc::new),
            recorders: SharedRecorders::default(),
            permits: Permits::new(self.capacity),
            fail_when_full: self.fail_when_full,
            streams: ByteAccount::of_client(self.max_stream_bytes),
            decode: self.decode,
            process: forks(),
            settings,
            in_child: OnceLock::new(),
        });
        threads::add_channel(&shared);
        Channel {
            shared,
            interceptors: Interceptors::default(),
        }
    }

    /// A channel that is connected.
    ///
    /// # Errors
    /// Those of [`ChannelBuilder::lazy`], and [`Error::Unreachable`] if no server can be reached.
    pub async fn connect(self) -> Result<Channel, Error> {
        let channel = self.lazy()?;
        channel.ready().await.map_err(Error::Unreachable)?;
        Ok(channel)
    }
}

impl std::fmt::Debug for ChannelBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChannelBuilder")
            .field("addresses", &self.addresses)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}
