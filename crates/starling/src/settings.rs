//! The settings that servers and endpoints share.

use starling_endpoint::{EndpointConfig, WorkerConfig};

use crate::registry::Registry;
use crate::time::Time;

/// Requests that wait for a worker, all methods together, unless set.
const WORKER_QUEUE: usize = 4096;

/// The services, and how they are served.
pub(crate) struct Settings {
    pub(crate) registry: Registry,
    pub(crate) config: EndpointConfig,
    pub(crate) workers: WorkerConfig,
    pub(crate) time: Time,
}

impl Default for Settings {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            registry: Registry::default(),
            config: EndpointConfig::default(),
            workers: WorkerConfig::new(threads, WORKER_QUEUE),
            time: Time::default(),
        }
    }
}

/// The builder methods for [`Settings`] in a field `settings`.
macro_rules! settings_methods {
    () => {
        /// Adds a service. All threads share it.
        pub fn add_service<S: $crate::service::Service>(mut self, service: S) -> Self {
            self.settings.registry.add(service);
            self
        }

        /// Adds a service whose methods have an interceptor of their own.
        pub fn add_intercepted<S: $crate::service::Service>(
            mut self,
            service: S,
            interceptor: impl $crate::Interceptor,
        ) -> Self {
            self.settings.registry.add_intercepted(service, interceptor);
            self
        }

        /// Adds an interceptor for all methods, those of health checks, reflection and introspection too. Channels to
        /// several servers ask for health without their interceptors and metadata: one that wants a token lets calls of
        /// `grpc.health.v1.Health` through, or is a service's own ([`Self::add_intercepted`]). The first one that is
        /// added sees a call first, and those of a service see it after all of these.
        pub fn interceptor(mut self, interceptor: impl $crate::Interceptor) -> Self {
            self.settings.registry.intercept(interceptor);
            self
        }

        /// Sets options of a method (`kv.Kv/Put`), of all methods of a service (`kv.Kv`), or of all services
        /// (an empty name). Those of a method come first, then those of its service. `build` refuses a name
        /// that no service and no method has.
        pub fn method_options(mut self, name: &str, options: $crate::MethodOptions) -> Self {
            self.settings.registry.set_options(name, options);
            self
        }

        /// Adds an interceptor for the calls that handlers make by channels of their
        /// [`NestedContext`](crate::NestedContext), such as one that hands on a trace.
        pub fn outgoing_interceptor(mut self, interceptor: impl $crate::Interceptor) -> Self {
            let registry = &mut self.settings.registry;
            registry.outgoing = registry.outgoing.with(interceptor);
            self
        }

        /// Worker threads of each dispatch thread, for methods that run in workers. The default is the
        /// number of the host's cores.
        pub fn workers(mut self, threads: usize) -> Self {
            self.settings.workers.threads = threads;
            self
        }

        /// Every setting of workers: threads, their queue, and which worker gets which request.
        pub fn worker_config(mut self, config: ::starling_endpoint::WorkerConfig) -> Self {
            self.settings.workers = config;
            self
        }

        /// Threads for worker handlers with streams, all clients together, at most: each such stream has one while its
        /// handler runs. A client may have as many as are still free: half of them if no other has any. Further streams
        /// end with RESOURCE_EXHAUSTED, and have not run. The default is 512. They are begun as they are needed, and
        /// end when they are idle for 10 s. One whose handler goes on after its stream outlives the server. All clients
        /// that come through one managed service are one client here. A message each way takes two switches of threads.
        pub fn stream_threads(self, threads: usize) -> Self {
            self.settings.registry.stream_threads.bound(threads);
            self
        }

        /// Has nested handlers run as tasks of an executor, whose timers and sockets they may use, instead
        /// of in the dispatch thread. It costs each call two thread switches. With tokio:
        ///
        /// ```
        /// # async fn with_tokio() {
        /// let runtime = tokio::runtime::Handle::current();
        /// let builder = starling::Server::builder().nested_executor(move |task| {
        ///     runtime.spawn(task);
        /// });
        /// # }
        /// ```
        ///
        /// A call whose task the executor drops ends with INTERNAL.
        pub fn nested_executor(
            mut self,
            spawn: impl Fn($crate::HandlerTask) + Send + Sync + 'static,
        ) -> Self {
            self.settings.registry.spawn = Some(::std::sync::Arc::new(spawn));
            self
        }

        /// Bytes of one stream's messages that wait for their handler; then the client waits. The default
        /// is 256 KiB.
        ///
        /// A stream that stays within its window holds up to twice as much: what waits, and what its handler
        /// reads. A client may send one message more, of any size; and at most twice the window, 120 KiB and
        /// a message wait. What is beyond the window, and what messages are when they are decompressed or decoded,
        /// counts in [`max_stream_bytes`](Self::max_stream_bytes) as long as the handler has it, until
        /// `into_message` makes it the handler's own.
        pub fn stream_window(mut self, bytes: u32) -> Self {
            self.settings.registry.streams.window = bytes.max(1);
            self
        }

        /// Streams that one client has at one dispatch thread, at most. Further ones end with
        /// RESOURCE_EXHAUSTED. The default is 12,288, and never more than three quarters of the slots that
        /// one client may have: each stream has one.
        pub fn max_streams_per_client(mut self, streams: usize) -> Self {
            self.settings.registry.streams.streams = streams;
            self
        }

        /// Bytes of all streams at one dispatch thread, all clients together: their windows, and what they
        /// hold beyond those. A client may have as many as are still free: half of them if no other has any.
        /// Beyond that, its further streams take one message at a time, and a stream whose message does not
        /// fit ends with RESOURCE_EXHAUSTED. The default is 512 MiB.
        ///
        /// So streams hold at most three times as much: what waits within the windows or is beyond them is
        /// within this bound, handlers may read as much as the windows once more, and as much may wait to be
        /// sent to clients, and an item for each stream. What a handler copies or keeps
        /// of earlier messages within the windows is its own, and so is what `into_message` gives it. Only the
        /// single request of a stream of responses counts, if it was decoded, until its handler ends.
        pub fn max_stream_bytes(mut self, bytes: usize) -> Self {
            self.settings.registry.streams.all_bytes = bytes;
            self
        }

        /// The windows of all streams of one client at one dispatch thread. When they are as much together,
        /// further streams take one message at a time. In the same way it bounds what waits to be sent to one
        /// client: further streams keep one item. The default is 64 MiB.
        pub fn max_stream_bytes_per_client(mut self, bytes: usize) -> Self {
            self.settings.registry.streams.bytes = bytes;
            self
        }

        /// What a message may take in memory that comes in protobuf, as from a peer with another version of the
        /// schema: requests, messages of streams, and responses of the calls that handlers make or, of an
        /// endpoint, of its own calls. The default is 256 bytes for each byte that came and 64 KiB, at most
        /// 256 MiB.
        ///
        /// Requests of async handlers are bounded together, while these run: what they became may be as much
        /// as [`EndpointConfig::max_waiting_bytes`](crate::EndpointConfig) once more, of which a client may
        /// have as much as is free. One more ends with RESOURCE_EXHAUSTED. Messages of streams count in
        /// [`max_stream_bytes`](Self::max_stream_bytes).
        pub fn decode_limits(mut self, limits: impl Into<$crate::DecodeLimits>) -> Self {
            self.settings.registry.decode = limits.into();
            self
        }

        /// What clients can make each dispatch thread hold at most, by these settings; the places of `shm` are
        /// those of an address without parameters.
        pub fn budgets(&self) -> $crate::Budgets {
            $crate::Budgets::of(&self.settings)
        }

        /// The statuses that health checks get (gRPC's `grpc.health.v1.Health`, which every server has). A
        /// program may set some before it serves.
        pub fn health(&self) -> $crate::Health {
            self.settings.registry.health.clone()
        }

        /// Watchers of the health of services, of all clients together, at most. A client may have as many as are
        /// still free: half of them if no other has any. Further ones get RESOURCE_EXHAUSTED. The default is
        /// 1,024. All clients that come through one managed service are one client here.
        pub fn max_health_watchers(self, watchers: usize) -> Self {
            self.settings.registry.health.bound_watchers(watchers);
            self
        }

        /// Whether clients may ask what the process does: its threads, sessions, channels and calls, without
        /// the contents of messages, as `starling inspect` does ([`introspection`]). They may, by default.
        ///
        /// [`introspection`]: crate::introspection
        pub fn introspection(mut self, is_open: bool) -> Self {
            self.settings.registry.has_introspection = is_open;
            self
        }

        /// Whether clients may ask for a description of the services, as `starling call` does
        /// ([`reflection`]). They may, by default. Clients with generated code work without it: one that knows
        /// the path of a method gets what it needs of that method to compare versions.
        ///
        /// [`reflection`]: crate::reflection
        pub fn reflection(mut self, is_open: bool) -> Self {
            self.settings.registry.has_reflection = is_open;
            self
        }

        /// What the server makes of the traces that its clients' calls come with, if traces are enabled: a client
        /// says itself whether its calls are sampled. The default is to follow 1,000 sampled calls a second.
        pub fn client_traces(mut self, traces: $crate::trace::ClientTraces) -> Self {
            self.settings.registry.client_traces = traces;
            self
        }

        /// Sets how a dispatch thread behaves when it is idle. By default it spins for a moment and
        /// then sleeps.
        pub fn idle(mut self, idle: ::starling_endpoint::Idle) -> Self {
            self.settings.config.idle = idle;
            self
        }

        /// Takes the time from a clock that a test moves by hand.
        pub fn clock(mut self, clock: &$crate::testing::TestClock) -> Self {
            self.settings.time = clock.time();
            self
        }

        /// Every setting of sessions, credits and timers.
        pub fn config(mut self, config: ::starling_endpoint::EndpointConfig) -> Self {
            self.settings.config = config;
            self
        }
    };
}
pub(crate) use settings_methods;
