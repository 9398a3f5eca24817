//! Calls of services that are known only at run time: by path, with dynamic messages, JSON in and out.
//!
//! The server describes its services itself, so neither a `.proto` file nor generated code is needed.
//! `starling call` stands on this crate.
//!
//! ```text
//!  DynamicClient                             server
//!    │ ── ListServices ─────────────────────▶ starling.reflection.Reflection
//!    │ ── DescribeService(pkg.Service) ─────▶   a FileDescriptorSet
//!    │    JSON ─▶ DynamicMessage ─▶ protobuf
//!    │ ── the call itself, in protobuf ─────▶ pkg.Service
//!    │    protobuf ─▶ DynamicMessage ─▶ JSON
//! ```
//!
//! ```
//! # use std::time::Duration;
//! # use starling::{CallOptions, Channel, Server};
//! # use starling_dynamic::{DynamicClient, Error};
//! # use starling_sample_services::kv;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = Server::builder().bind("mem://dynamic-doc")?;
//! # let server = server.add_service(kv::server(0)).build()?.spawn()?;
//! let client = DynamicClient::new(Channel::lazy("mem://dynamic-doc")?)
//!     .with_options(CallOptions::with_timeout(Duration::from_secs(1)));
//! let stored = starling::block_on(async {
//!     let put = client.method("kv.Kv/Put").await?;
//!     let request = put.request_from_json(r#"{"key": "aGVsbG8=", "value": "d29ybGQ="}"#)?;
//!     client.call(&put, &request).await?;
//!     let get = client.method("kv.Kv/Get").await?;
//!     let request = get.request_from_json(r#"{"key": "aGVsbG8="}"#)?;
//!     Ok::<_, Error>(client.call(&get, &request).await?.to_json())
//! })?;
//! assert!(stored.contains("d29ybGQ="));
//! # Ok(())
//! # }
//! ```
//!
//! Messages are in protobuf on the wire. A call costs the conversion at both ends, so generated code is
//! for what has to be fast.

#![forbid(unsafe_code)]

mod client;
mod error;
mod json;
mod method;
mod notation;

pub use client::{DynamicCall, DynamicClient, DynamicResponse};
pub use error::Error;
pub use json::JsonError;
pub use method::DynamicMethod;
pub use notation::service_notation;
pub use prost_reflect::{
    DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor, ServiceDescriptor, Value,
};
