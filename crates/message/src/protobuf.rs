//! The protobuf encoding of messages, driven by their tables.
//!
//! For the grpc plane, and for peers whose schema differs from ours. The semantics are proto3's:
//! unknown fields are skipped; repeated scalars are written packed and read in either form; the last
//! occurrence of a singular field counts, and sub-messages merge; enumerations are open. It works on
//! our layout tables, so no protobuf crate replaces it.

mod decode;
mod encode;
mod error;
mod limits;
mod wire;

pub use decode::decode;
pub use encode::{EncodeError, encode};
pub use error::{DecodeError, DecodeErrorKind};
pub use limits::DecodeLimits;
