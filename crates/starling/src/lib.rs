//! Starling: datacenter RPC in microseconds.
//!
//! This crate must not leak the layers below it into what users import.
//!
//! A `.proto` file describes a service once. `starling-build` generates a trait, a server and a client
//! from it. They run unchanged over the device that the address names: `udp://host:port` between
//! hosts, `shm://name` between processes of one host, `xdp://ifname/host:port` between hosts past the
//! kernel's network stack, `tcp://host:port` where firewalls pass nothing else, `mem://name` within one process, for
//! tests.
//!
//! # A service and a client
//!
//! `proto/hello.proto`:
//!
//! ```text
//! syntax = "proto3";
//! package hello;
//!
//! message HelloRequest { string name = 1; }
//! message HelloReply   { string text = 1; }
//!
//! service Hello {
//!   rpc Greet(HelloRequest) returns (HelloReply);
//! }
//! ```
//!
//! `build.rs`:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! starling_build::compile(&["proto/hello.proto"], &["proto"])?;
//! # Ok(())
//! # }
//! ```
//!
//! `src/main.rs`:
//!
//! ```
//! use starling::{Channel, Request, Server, Status};
//!
//! # /*
//! starling::include_proto!("hello");
//! # */
//! # use starling_test_protos::hello::*;
//!
//! struct Greeter;
//!
//! impl Hello for Greeter {
//!     fn greet(
//!         &self,
//!         request: Request<'_, HelloRequest>,
//!         mut reply: HelloReplyMut<'_>,
//!     ) -> Result<(), Status> {
//!         reply.set_text(&format!("Hello, {}!", request.message().name()));
//!         Ok(())
//!     }
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let server = Server::builder()
//!         .bind("udp://127.0.0.1:0")?
//!         .add_service(HelloServer::new(Greeter))
//!         .build()?
//!         .spawn()?;
//!
//!     let client = HelloClient::new(Channel::lazy(server.address())?);
//!     let mut request = HelloRequest::new();
//!     request.set_name("world");
//!     let reply = client.greet(&request).wait()?;
//!     assert_eq!(reply.message().text(), "Hello, world!");
//!     Ok(())
//! }
//! ```
//!
//! The handler reads a request of one packet where it was received. It writes the reply into a buffer
//! that keeps the reply until the client has it. The reply is copied once on its way: into a datagram,
//! a ring or the network card's packet memory. A large reply over `udp://` is not copied: the kernel
//! takes it from the buffer. A large bytes field that is made in [`Channel::memory`], or in a handler's
//! [`Request::memory`] or [`NestedContext::memory`], and set by `set_..._bytes`, is sent from there: over
//! `shm://` it is copied once.
//!
//! `Cargo.toml` needs `starling` among its dependencies and `starling-build` among its
//! build-dependencies, nothing else.
//!
//! # Addresses
//!
//! | address | reaches |
//! |---|---|
//! | `udp://host:port` | any host, by the kernel's UDP |
//! | `tcp://host:port` | any host, by TCP connections |
//! | `shm://name` | a process of this host, of the same user or root's |
//! | `shm://name?users=any`, `?users=UID` | the same, of any user, or of this one too: at both ends |
//! | `shm://name?target=ADDRESS` | through the managed service `name` of this host, the server at `ADDRESS`: what `STARLING_SERVICE` makes of it, see [`managed`] |
//! | `shm://name?peers=N&peers_of_one=N` | at a server: room for `N` clients instead of 1,024, and for `N` of one process instead of 512 |
//! | `xdp://ifname/host:port` | any host, past the kernel's network stack, by the interface `ifname` of this host |
//! | `xdp://ifname/host:port?queue=N&mode=MODE` | the same, by queue `N` instead of 0, in mode `zero-copy`, `driver` or `generic` instead of the best one that works |
//! | `xdp://ifname/host:port?frames=N` | the same, with room for `N` received frames instead of 4096, a power of two from 64 to 32768: it locks less memory, or more. Among channels that share a thread, the first one decides |
//!
//! A queue of an interface belongs to one endpoint at a time. Each further endpoint of a process needs
//! a queue of its own, such as a [`Channel`] beside a [`Server`], or a channel for IPv6 beside one for
//! IPv4: `xdp://eth0/10.0.0.7:9000?queue=1`. `ethtool -l eth0` prints the number of queues. Responses
//! that the card puts into another queue come by the kernel: slower, not lost. With one queue, one
//! endpoint can both serve and call: the calls of a nested handler, or of a [`LocalChannel`], go by the
//! endpoint's own queue.
//!
//! # Messages
//!
//! A message `Volume` is three types. `Volume` owns its memory. `VolumeView<'_>` reads, and
//! `VolumeMut<'_>` writes, a message in other memory, such as a datagram. `view()` and `as_mut()` make
//! one of the other, `to_owned()` copies, and all of them print with `{:?}`. Fields have methods:
//!
//! | in the `.proto` file | to read | to write |
//! |---|---|---|
//! | `string name`, `uint64 size`, ... | `name()`, `size()`: empty or 0 if unset | `set_name("v")`, `set_size(1)`, `clear_name()` |
//! | `optional uint32 level` | `level()`, `has_level()`, `level_opt()` | `set_level(3)`, `clear_level()` |
//! | `bytes data` | `data()`: `&[u8]` | `set_data(&[..])`, or `set_data_bytes(`[`Bytes`]`)` without a copy |
//! | `Extent extent` | `extent()`: a view, with nothing set if it is absent; `has_extent()`, `extent_opt()` | `extent_mut().set_..`, `set_extent(view)` |
//! | `repeated Extent extents` | `extents()`: `iter()`, `get(index)`, `len()` | `extents_mut()`: `push_default()`, `push_view(view)`; of other types `push(value)`, `extend(values)` |
//! | `map<string, uint32> labels` | `labels()`: `get("a")`, `iter()`, `len()` | `labels_mut()`: `insert("a", 1)`; of messages `get_or_default("a")` |
//! | `oneof limit { uint64 iops; ... }` | `limit()`: `Option<VolumeLimit>`, an enum; each case also as an optional field | `set_iops(5)`, `clear_limit()` |
//! | `State state`, `enum State { STATE_ON = 1; }` | `state()`: a number that may be unknown; compare with `State::ON` | `set_state(State::ON)` |
//!
//! `copy_from(view)` sets a whole message, so a handler can answer with a message that it has. Types
//! that are declared inside a message are in a module: `volume::State`. A name that is a keyword is
//! written `r#type()`. If the methods of two fields would have the same name, the name gets the field's
//! number as well.
//!
//! An owned message is also built in one expression: each field has a `with_` method beside its setter, as in
//! `Volume::new().with_name("v").with_level(3)`; repeated fields and maps take an iterator. The types of
//! `google.protobuf` are in [`well_known`], with conversions to those of `std`.
//!
//! # Two kinds of callers
//!
//! The same generated client works with either of them:
//!
//! | | [`Channel`] | [`LocalChannel`] |
//! |---|---|---|
//! | for | any thread, any executor | the futures of one [`Endpoint`] |
//! | calls are made | by a thread that waits for one; in a tokio runtime by a task of it; else in the background | by the thread that runs the endpoint |
//! | waiting | `.await`, or `.wait()` in a plain thread | [`Endpoint::block_on`] |
//! | one call after the other, `shm` and `udp` | 1.0 and 8 us | 0.8 and 8 us |
//! | one of 64 at once, the demo's store, A to C | 0.9 to 1.1 and 1.1 to 1.6 us | 0.7 to 0.8 and 1.0 to 1.5 us |
//! | other executors than tokio | 6 and 13 us: a thread in the background ends the call | not for them |
//!
//! Take a [`Channel`] unless a thread of yours does little but make calls and answer them, such as that
//! of a consensus protocol, a cache or a load generator. Then give this thread an [`Endpoint`]: it has
//! no queue between threads, no allocation for a call, and can serve and call at once. The figures are
//! those of one machine, 32 bytes each way; docs/notes/channel.md and docs/notes/demo.md have them.
//!
//! # Three kinds of handlers
//!
//! An *inline* handler runs in the dispatch thread, to completion, and takes microseconds at most. A
//! method is inline unless the `.proto` file says `option (starling.mode) = WORKER` or `NESTED`, which
//! needs `import "starling/options.proto"`.
//! A *worker* handler runs in a pool of threads, and one with streams in a thread of its own. A *nested* handler is
//! `async`, runs in the dispatch thread, and makes calls of its own through its [`NestedContext`].
//!
//! # Streams
//!
//! `stream` in the `.proto` file makes requests, responses or both a stream. Both ends have the same two
//! types, [`StreamSender`] and [`StreamReceiver`]. Handlers are `async`, as nested ones. With
//! `option (starling.mode) = WORKER` they are not: each runs in a thread of its own
//! ([`ServerBuilder::stream_threads`]), reads by [`StreamReceiver::blocking`] and sends by
//! [`StreamSender::send_wait`].
//!
//! | in the `.proto` file | the client's method returns | the handler gets, and returns |
//! |---|---|---|
//! | `rpc List(A) returns (stream B)` | `StreamReceiver<B>` | `OwnedRequest<A>`, `StreamSender<B>`; `Result<(), Status>` |
//! | `rpc Put(stream A) returns (B)` | [`StreamCall`]`<A, B>` | `StreamReceiver<A>`; `Result<B, Status>` |
//! | `rpc Chat(stream A) returns (stream B)` | `(StreamSender<A>, StreamReceiver<B>)` | both; `Result<(), Status>` |
//!
//! ```no_run
//! # use starling_test_protos::streams::*;
//! # async fn run(client: StreamsClient<starling::Channel>) -> Result<(), starling::Status> {
//! let mut numbers = client.count(&Range::new().with_to(10));
//! while let Some(number) = numbers.message().await? {
//!     println!("{}", number.message().value());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! In a plain thread, `for number in numbers.blocking()` does the same. A `StreamReceiver` is also a
//! `futures` stream, and a `StreamSender` a sink. Messages come in order, each at most once, and a stream's
//! status comes after all messages that were sent before it. Small messages that are ready leave together.
//!
//! | to send | to read | for |
//! |---|---|---|
//! | [`StreamSender::send`] | [`StreamReceiver::message`]: read where it lies, until the next one is asked for | most |
//! | [`StreamSender::send_each`]: built where it is sent from | [`StreamReceiver::bundle`]: all that came together | many small messages |
//! | the sink | the stream, [`StreamReceiver::blocking`]: an item has a share in the memory that it came in | combinators, messages that are kept |
//!
//! None of them allocates for each message, unless the ends have different schemas.
//!
//! A sender waits while the reader is behind by its window, 256 KiB unless set ([`CallOptions::stream_window`],
//! [`ServerBuilder::stream_window`]). For one client, a dispatch thread has windows of
//! [`ServerBuilder::max_stream_bytes_per_client`]; streams beyond that take one message at a time. Windows and
//! what is held beyond them, as a large message is, are at most [`ServerBuilder::max_stream_bytes`] for all
//! clients; at a client, [`ChannelBuilder::max_stream_bytes`] bounds what its streams hold beyond their windows.
//! A stream with a message that does not fit ends with RESOURCE_EXHAUSTED. A stream at rest takes a slot of a
//! session, one held request and no buffers.
//!
//! A client that drops the receiver cancels the call, and the handler's future is dropped. A deadline is that
//! of the whole stream. `examples/chat.rs` has a chat room.
//!
//! # How calls end
//!
//! A call ends with a [`Response`] or a [`Status`], whose codes are gRPC's. A handler runs at most once
//! for each call, even if the network loses, repeats or delays datagrams. A call whose server dies ends
//! with UNAVAILABLE. It is not made again, because it may have run. [`CallOptions`] has a timeout,
//! metadata, and whether to wait for a server that is not there yet. Each method of a client has a
//! second form that takes options, `greet_with(&request, &options)`. `HelloClient::with_options` sets
//! the options of all other calls. There is no timeout unless one is set. Dropping a call cancels it.
//!
//! A status has metadata, too, and [`details`]: messages that say more, for programs.
//!
//! # Interceptors
//!
//! An [`Interceptor`] stands around calls: those of a channel ([`Channel::intercept`],
//! [`LocalChannel::intercept`]), of a server ([`ServerBuilder::interceptor`]), of one service
//! ([`ServerBuilder::add_intercepted`]), or those that a server's handlers make
//! ([`ServerBuilder::outgoing_interceptor`]). It is async, changes metadata, deadline, messages and status, and
//! may answer or repeat a call. A stream is one call to it, which lasts. The crate `starling-tower` makes layers
//! of tower interceptors.
//!
//! # Compression, and sizes of messages
//!
//! A client says by [`CallOptions`] how its requests are compressed, and takes compressed responses then; a
//! server says by [`ServerBuilder::method_options`] how its responses are, for clients that take that.
//! [`Compression`] has the algorithms. Both ends may bound requests and responses; a message beyond a bound ends
//! its call with RESOURCE_EXHAUSTED, and the status says whose bound and which setting it is.
//!
//! ```
//! # use starling::{Channel, Server, Error};
//! # use starling_test_protos::hello::*;
//! # fn check(greeter: impl Hello) -> Result<(), Error> {
//! use starling::{CallOptions, Compression, MethodOptions};
//!
//! let options = MethodOptions::default().compression(Compression::lz4()).max_request_bytes(4 << 20);
//! let server = Server::builder()
//!     .bind("udp://0.0.0.0:9000")?
//!     .add_service(HelloServer::new(greeter))
//!     .method_options("hello.Hello", options)
//!     .build()?;
//!
//! let options = CallOptions::default().compression(Compression::lz4()).max_response_bytes(1 << 20);
//! let client = HelloClient::new(Channel::lazy("udp://kv-0:9000")?).with_options(options);
//! # drop((server, client));
//! # Ok(())
//! # }
//! ```
//!
//! # Several servers
//!
//! [`Channel::balanced`] is one channel to several servers. The stubs are the same.
//!
//! ```no_run
//! # use starling::{Channel, LoadBalancing, RetryPolicy, ServiceConfig};
//! # fn open() -> Result<Channel, starling::Error> {
//! let channel = Channel::balanced(["udp://kv-0:9000", "udp://kv-1:9000", "udp://kv-2:9000"])
//!     .load_balancing(LoadBalancing::least_request())
//!     .service_config(ServiceConfig::new().retry_idempotent(RetryPolicy::default()))
//!     .lazy()?;
//! # Ok(channel)
//! # }
//! ```
//!
//! | what | how |
//! |---|---|
//! | where servers come from | a list; a host name with several addresses and a policy other than `pick_first`; a [`Resolver`] |
//! | which one gets a call | [`LoadBalancing`]: `round_robin`, `least_request`, `weighted_round_robin` by the servers' [`LoadReport`]s, `ring_hash` by metadata, `pick_first`; of all or of a subset |
//! | which ones get none | those that cannot be reached, say that they are not serving ([`health`]), shut down, or fail more than the others ([`OutlierDetection`]) |
//! | what is made again without being asked | a call that did not run, whatever its method: at another server, at most 16 |
//! | what is made again if the method's policy says so | a call that failed ([`RetryPolicy`]), or takes long ([`HedgingPolicy`]); a stream while its server has answered nothing, by retries only: streams of requests mostly not, see [`RetryPolicy`] |
//! | policies for each method | [`ServiceConfig`], also as gRPC's JSON: a field that cannot be honoured is an error that names it |
//! | connections | [`ChannelBuilder::max_connection_age`], [`ChannelBuilder::idle_timeout`] |
//! | a call to all or some servers | [`FanOut`] |
//!
//! A server that shuts down tells its clients first, so a rolling restart fails no call. Without a retry policy each
//! call runs at most once.
//!
//! # Recipes
//!
//! *A server inside a runtime*, and nested handlers that use tokio's timers and sockets:
//!
//! ```no_run
//! # use starling_test_protos::hello::*;
//! # async fn run(greeter: impl Hello) -> Result<(), starling::Error> {
//! let runtime = tokio::runtime::Handle::current();
//! let server = starling::Server::builder()
//!     .bind("udp://0.0.0.0:9000")?
//!     .nested_executor(move |task| drop(runtime.spawn(task)))
//!     .add_service(HelloServer::new(greeter))
//!     .build()?;
//! server.serve().await
//! # }
//! ```
//!
//! Inline and worker handlers are no futures. They use `Handle::block_on` of a runtime at most in a
//! worker.
//!
//! *A token with each call*, and a server that asks for it: an [`Interceptor`] at each end, as in
//! `examples/token.rs`. Nothing is encrypted, so this is for trusted networks.
//!
//! *Metrics beside those of another library*: their text is one. With OpenMetrics, insert it before `# EOF`.
//!
//! ```
//! # fn gather() -> String { String::new() }
//! let page = gather() + &starling::metrics::prometheus();
//! # drop(page);
//! ```
//!
//! *Only processes of one user*, over `shm`: an [`Interceptor`] that looks at `call.peer()`, or a handler:
//!
//! ```
//! # use starling::{Request, Status};
//! # use starling_test_protos::hello::HelloRequest;
//! # fn check(request: &Request<'_, HelloRequest>, allowed: u32) -> Result<(), Status> {
//! match request.peer().process().and_then(|process| process.uid) {
//!     Some(uid) if uid == allowed => Ok(()),
//!     _ => Err(Status::permission_denied(format!("not for {}", request.peer()))),
//! }
//! # }
//! ```
//!
//! *Servers each of which has a part of the keys*: a channel for each. They share one endpoint
//! and its threads.
//!
//! ```no_run
//! # use starling::{Channel, Error};
//! # use starling_test_protos::hello::*;
//! # fn shards() -> Result<(), Error> {
//! let shards: Vec<_> = ["udp://kv-0:9000", "udp://kv-1:9000"]
//!     .into_iter()
//!     .map(|address| Channel::lazy(address).map(HelloClient::new))
//!     .collect::<Result<_, _>>()?;
//! # let key = 7;
//! let shard = &shards[key % shards.len()];
//! # Ok(())
//! # }
//! ```
//!
//! *Tests of a service without a network*: bind it to `mem://name`, a name of the test's own, and connect
//! to the same address. Everything else is as over a network: sessions, deadlines, cancellation, limits.
//! [`testing`] has a clock that the test moves, and faults for its calls.
//!
//! ```
//! # use starling::{Channel, Server};
//! # use starling_test_protos::hello::*;
//! # fn check(greeter: impl Hello) -> Result<(), Box<dyn std::error::Error>> {
//! let server = Server::builder().bind("mem://greets")?;
//! let server = server.add_service(HelloServer::new(greeter)).build()?.spawn()?;
//! let client = HelloClient::new(Channel::lazy(server.address())?);
//! let reply = client.greet(&HelloRequest::new().with_name("x")).wait()?;
//! assert_eq!(reply.message().text(), "Hello, x!");
//! # Ok(())
//! # }
//! ```
//!
//! *A service whose `.proto` file the program does not have*: the crate `starling-dynamic` calls it by
//! path, with dynamic messages or JSON, as the server describes it. [`Channel::call_protobuf`] does so
//! with bytes.
//!
//! # What is not there
//!
//! | missing | meanwhile |
//! |---|---|
//! | encryption and authentication | trusted networks only; a token in metadata |
//! | gRPC, policies in the managed service | a server of your own beside it; interceptors |
//! | `proto2` and editions | `syntax = "proto3"` |
//! | calls of streaming methods without generated code: by `starling call`, `starling-dynamic`, [`Channel::call_protobuf`] | generated code |
//!
//! # Stats
//!
//! [`ServerHandle::stats`] and [`Channel::stats`] return what a thread has done ([`Stats`]), what its
//! session protocol has done and dropped ([`ProtocolStats`]), and what its device has counted: which
//! datagrams were dropped and why, what took the slow path, and in which mode an interface works
//! ([`DeviceReport`], which has a table of the names). `starling serve` prints the same.
//!
//! # Metrics, traces, introspection
//!
//! [`metrics::enable`] has servers and channels that are made afterwards measured: durations, sizes and statuses of
//! each method, for Prometheus ([`metrics::prometheus`], [`metrics::serve`]) or for the program
//! ([`metrics::snapshot`]). [`trace::enable`] has them take part in traces, with spans of the crate `tracing` and
//! W3C trace context in metadata. The crate `starling-otlp` sends both to a collector. What is not enabled costs
//! a branch.
//!
//! Every server has [`introspection`], which `starling inspect` asks for: threads, sessions, channels and calls
//! of its process, without the contents of messages. [`ServerBuilder::introspection`] and
//! [`ServerBuilder::reflection`] switch these services off.
//!
//! # Who calls
//!
//! `peer()` of a request, of a [`NestedContext`] and of an [`InterceptedCall`] is the caller: its address, and
//! over `shm` its process, user and group. `is_cancelled()` and `cancelled()` say when nobody waits for the call
//! any more.
//!
//! # Health
//!
//! Every server has gRPC's health checks (`grpc.health.v1.Health`), which `starling health` asks for. Its
//! services are SERVING while it serves, and NOT_SERVING as soon as it begins to shut down. A program says
//! otherwise by [`ServerHandle::health`], or by [`ServerBuilder::health`] before it serves. [`health`] has the
//! client.
//!
//! # Versions
//!
//! When a client first uses a method in a session, client and server compare their versions of it. If
//! they are equal, messages go as they lie in memory. If they differ by protobuf's rules for compatible
//! changes, messages go in protobuf. If they differ beyond that, calls of that method end with
//! FAILED_PRECONDITION, naming the field. Servers compare versions, and describe themselves, with
//! [`reflection`].

#![forbid(unsafe_code)]

mod address;
mod balancing;
mod binding;
mod budgets;
mod call_cell;
mod caller;
mod channel;
mod channel_call;
mod channel_factory;
mod channel_state;
mod client_counts;
mod coding;
mod compression;
mod connection;
mod connections;
mod core;
pub mod details;
mod device;
mod driver;
mod endpoint;
mod error;
mod executor;
mod fan_out;
pub mod health;
mod interceptor;
pub mod introspection;
mod local;
mod lookup;
pub mod managed;
mod message;
mod method_options;
pub mod metrics;
mod nested;
mod options;
mod permits;
pub mod plane;
mod policy;
mod protobuf_call;
pub mod reflection;
mod registry;
mod retry;
mod server;
mod service;
mod settings;
mod stats;
mod streaming;
pub mod testing;
mod threads;
mod time;
pub mod trace;
mod wait;

pub use address::{Address, AddressError};
pub use balancing::{BackendState, Resolver, Resolving};
pub use budgets::{Budget, BudgetUnit, Budgets};
pub use caller::Caller;
pub use channel::{Channel, ChannelBuilder, ChannelCall};
pub use channel_state::ChannelState;
pub use compression::Compression;
pub use endpoint::{Endpoint, EndpointBuilder};
pub use error::Error;
pub use fan_out::{Answers, FanOut, Fanned, FannedCall};
pub use health::{BackendHealth, Health, HealthError, ServingStatus};
pub use interceptor::{
    InterceptedCall, InterceptedItem, InterceptedResponse, Interceptor, Next, Side,
};
pub use local::{LocalCall, LocalChannel};
pub use message::{OwnedRequest, Request, Response};
pub use method_options::MethodOptions;
pub use nested::NestedContext;
pub use options::{CallOptions, MessageOptions};
pub use protobuf_call::{ProtobufCall, ProtobufResponse};
pub use registry::HandlerTask;
pub use server::{Server, ServerBuilder, ServerHandle};
pub use service::{Registrar, Service};
pub use starling_balance::{
    FailurePercentage, HedgingPolicy, LOAD_REPORT_KEY, LoadBalancing, LoadReport, LoadReportError,
    MethodConfig, OutlierDetection, PREVIOUS_ATTEMPTS_KEY, PUSHBACK_KEY, Resolved, RetryPolicy,
    RingHash, ServiceConfig, ServiceConfigError, SuccessRate, Throttling, Weighting,
};
pub use starling_endpoint::{
    Cancellation, Cancelled, Code, ConfigError, Congestion, EndpointConfig, Idle, LocalHandle,
    Metadata, MetadataError, MetadataView, Peer, ProcessCredentials, ProtocolConfig, ProtocolStats,
    Sleep, Stats, Status, Turn, WorkerConfig, WorkerConfigError, jbsq,
};
pub use starling_io::{DeviceReport, Fault, IoError, IoErrorParts, MessageMemory, Wake};
pub use starling_message::protobuf::DecodeLimits;
pub use starling_message::{Bytes, Message, MessageView, well_known};
pub use stats::ThreadStats;
pub use streaming::{
    Blocking, NextMessage, StreamBundle, StreamBundleIter, StreamCall, StreamItem, StreamReceiver,
    StreamSender,
};
pub use wait::block_on;

/// A channel to `address` that is connected: [`Channel::connect`].
pub async fn connect(address: &str) -> Result<Channel, Error> {
    Channel::connect(address).await
}

/// The items that generated code uses. Nothing here is for other code.
pub mod stub {
    pub use crate::streaming::{receive_only, receive_only_wait, send_only};
    pub use crate::{
        CallOptions, Caller, NestedContext, OwnedRequest, Registrar, Request, Response, Service,
        Status, StreamCall, StreamReceiver, StreamSender,
    };
    pub use starling_message::*;
}

/// Includes the code that `starling-build` generated from a package: `include_proto!("kv")`.
///
/// Packages that refer to each other are included together, as modules nested like the packages.
/// With `mod proto { starling::include_proto!("packages"); }`, the message `Block` of the package
/// `store.volume` is `proto::store::volume::Block`.
#[macro_export]
macro_rules! include_proto {
    ($package:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $package, ".rs"));
    };
}
