//! Starling: datacenter RPC in microseconds.
//!
//! A service is described once, in a `.proto` file. `starling-build` makes a trait, a server and a
//! client of it, which run unchanged over whatever the address asks for: `udp://host:port` between
//! hosts, `shm://name` between processes of one host, `xdp://ifname/host:port` between hosts past the
//! kernel's network stack.
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
//! A request of one packet is read where it was received. The reply is written into the buffer that it
//! stays in until the client has it, and is copied once on its way: into a datagram, a ring or the
//! network card's packet memory. Large ones are not over `udp://`, where the kernel takes them from
//! there.
//!
//! `Cargo.toml` has `starling` among its dependencies and `starling-build` among its
//! build-dependencies, nothing else.
//!
//! # Addresses
//!
//! | address | reaches |
//! |---|---|
//! | `udp://host:port` | any host, by the kernel's UDP |
//! | `shm://name` | a process of this host |
//! | `xdp://ifname/host:port` | any host, past the kernel's network stack, by the interface `ifname` of this host |
//! | `xdp://ifname/host:port?queue=N&mode=MODE` | the same, by the queue `N` rather than 0, in a mode rather than in the best that works: `zero-copy`, `driver` or `generic` |
//! | `xdp://ifname/host:port?frames=N` | the same, with room for `N` frames that wait to be received, a power of two from 64 to 32768, rather than 4096: it locks less memory, or more. Channels that share a thread have what the first of them said |
//!
//! A queue of an interface belongs to one endpoint at a time. What a process needs besides, such as a
//! [`Channel`] beside a [`Server`], or one for IPv6 beside one for IPv4, takes a queue of its own:
//! `xdp://eth0/10.0.0.7:9000?queue=1`. `ethtool -l eth0` tells how many there are. Answers that the
//! card gives to another queue come by the kernel: slower, not lost. An interface with one queue does
//! for both ways by one endpoint: the calls of a nested handler, or of a [`LocalChannel`], go by the
//! queue that the endpoint has.
//!
//! # Messages
//!
//! A message `Volume` is three types: `Volume` owns its memory, `VolumeView<'_>` reads and
//! `VolumeMut<'_>` writes one that lies elsewhere, such as in a datagram. `view()` and `as_mut()`
//! lead from one to the other, `to_owned()` copies, and all of them print with `{:?}`. Fields have
//! methods:
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
//! A whole message is set with `copy_from(view)`, so a handler can answer with one that it has. What
//! is declared within a message is in a module: `volume::State`. A name that is a keyword is written
//! `r#type()`; a field whose methods would clash with others is called after its number as well.
//!
//! # Two kinds of callers
//!
//! The same generated client stands on either of them:
//!
//! | | [`Channel`] | [`LocalChannel`] |
//! |---|---|---|
//! | for | any thread, any executor | the thread that owns an [`Endpoint`] |
//! | calls are made | by a background thread | by that thread itself |
//! | waiting | `.await`, or `.wait()` in a plain thread | [`Endpoint::block_on`] |
//!
//! # Three kinds of handlers
//!
//! *Inline* ones run in the dispatch thread, to completion, and take microseconds at most; that is
//! what a method is unless the `.proto` file says `option (starling.mode) = WORKER` or `NESTED`, which
//! needs `import "starling/options.proto"`.
//! *Worker* ones run in a pool of threads. *Nested* ones are `async`, run in the dispatch thread, and
//! make calls of their own through their [`NestedContext`].
//!
//! # How calls end
//!
//! With a [`Response`] or a [`Status`], whose codes are gRPC's. A handler runs at most once for each
//! call, whatever the network does. A call whose server dies ends with UNAVAILABLE; it is not made
//! again, because it may have run. [`CallOptions`] has a timeout, metadata, and whether to wait for
//! a server that is not there yet. Each method of a client has a second form that takes them,
//! `greet_with(&request, &options)`; `HelloClient::with_options` sets them for all others. There is
//! no timeout unless one is set. Dropping a call cancels it.
//!
//! # What is going on
//!
//! [`ServerHandle::stats`] and [`Channel::stats`] say what a thread has done ([`Stats`]), what its
//! session protocol has done and dropped ([`ProtocolStats`]), and what its device has counted: which datagrams were dropped and why, what took the slow path, and in which
//! mode an interface works ([`DeviceReport`], which has a table of the names). `starling serve` prints
//! the same.
//!
//! # Versions
//!
//! When a client first uses a method in a session, the two ends compare their versions of it. Equal
//! ones exchange messages as they lie in memory; others exchange protobuf, by whose rules they may
//! differ. If they differ beyond that, calls of that method end with FAILED_PRECONDITION, naming the
//! field. Servers answer for that, and describe themselves, with [`reflection`].

#![forbid(unsafe_code)]

mod address;
mod binding;
mod call_cell;
mod caller;
mod channel;
mod channel_call;
mod channel_factory;
mod channel_state;
mod connection;
mod connections;
mod core;
mod device;
mod driver;
mod endpoint;
mod error;
mod executor;
mod local;
mod lookup;
mod message;
mod nested;
mod options;
mod permits;
pub mod reflection;
mod registry;
mod retry;
mod server;
mod service;
mod settings;
mod stats;
mod wait;

pub use address::{Address, AddressError, Scheme};
pub use caller::Caller;
pub use channel::{Channel, ChannelBuilder, ChannelCall};
pub use channel_state::ChannelState;
pub use endpoint::{Endpoint, EndpointBuilder};
pub use error::Error;
pub use local::{LocalCall, LocalChannel};
pub use message::{OwnedRequest, Request, Response};
pub use nested::NestedContext;
pub use options::CallOptions;
pub use server::{Server, ServerBuilder, ServerHandle};
pub use service::{Registrar, Service};
pub use starling_endpoint::{
    Code, EndpointConfig, Idle, LocalHandle, Metadata, MetadataError, MetadataView, ProtocolStats,
    Sleep, Stats, Status, Turn, WorkerConfig, WorkerConfigError, jbsq,
};
pub use starling_io::{DeviceReport, Fault, IoError, MessageMemory, Wake};
pub use starling_message::{Bytes, Message, MessageView};
pub use starling_proto::{Config as ProtocolConfig, ConfigError, Congestion};
pub use stats::ThreadStats;
pub use wait::block_on;

/// A channel to `address` that is connected: [`Channel::connect`].
pub async fn connect(address: &str) -> Result<Channel, Error> {
    Channel::connect(address).await
}

/// What generated code is written against; nothing here is for people.
pub mod stub {
    pub use crate::{
        CallOptions, Caller, NestedContext, OwnedRequest, Registrar, Request, Response, Service,
        Status,
    };
    pub use starling_message::*;
}

/// Includes the code that `starling-build` made of a package: `include_proto!("kv")`.
///
/// Packages that refer to each other are included together, as modules nested like the packages:
/// with `mod proto { starling::include_proto!("packages"); }`, the message `Block` of the package
/// `store.volume` is `proto::store::volume::Block`.
#[macro_export]
macro_rules! include_proto {
    ($package:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $package, ".rs"));
    };
}
