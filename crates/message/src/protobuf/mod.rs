//! The protobuf encoding of messages, driven by their tables.
//!
//! For the grpc plane, and for peers whose schema differs from ours. Semantics are proto3's:
//! unknown fields are skipped, repeated scalars are written packed and read either way, the last
//! occurrence of a singular field counts and sub-messages merge, enumerations are open.

mod decode;
mod encode;
mod wire;

pub use decode::{DecodeError, DecodeErrorKind, decode};
pub use encode::{EncodeError, encode};
