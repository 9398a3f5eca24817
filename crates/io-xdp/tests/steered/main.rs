//! Endpoints whose workers get requests from the XDP program itself, between two namespaces joined by
//! veth.

#[path = "../common/mod.rs"]
mod common;

mod calls;
mod harness;
mod lifecycle;
