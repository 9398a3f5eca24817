//! Starling: datacenter RPC in microseconds.
#![forbid(unsafe_code)]

mod address;
mod binding;
mod cell;
mod channel;
mod connection;
mod core;
mod driver;
mod endpoint;
mod error;
mod hub;
mod local;
mod message;
mod nested;
mod options;
mod plane;
pub mod reflection;
mod registry;
mod server;
mod service;
mod wait;

pub use address::{Address, AddressError, Scheme};
pub use channel::{Channel, ChannelBuilder, ChannelCall, ChannelState};
pub use endpoint::{Endpoint, EndpointBuilder};
pub use error::Error;
pub use local::{LocalCall, LocalChannel};
pub use message::{OwnedRequest, Request, Response};
pub use nested::NestedContext;
pub use options::CallOptions;
pub use server::{Server, ServerBuilder, ServerHandle};
pub use service::{Caller, Registrar, Service};
pub use starling_endpoint::{
    Code, EndpointConfig, Idle, LocalHandle, Metadata, MetadataError, MetadataView, Status,
};
pub use starling_message::{Bytes, Message, MessageView};
pub use wait::block_on;

/// A channel to `address` that is connected: [`Channel::connect`].
pub async fn connect(address: &str) -> Result<Channel, Error> {
    Channel::connect(address).await
}

/// What generated code is written against. Not for anybody else.
pub mod stub {
    pub use crate::{
        CallOptions, Caller, NestedContext, OwnedRequest, Registrar, Request, Response, Service,
        Status,
    };
    pub use starling_message::*;
}

/// Includes the code that `starling-build` made of a package: `include_proto!("kv")`.
#[macro_export]
macro_rules! include_proto {
    ($package:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $package, ".rs"));
    };
}
