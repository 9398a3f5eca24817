//! Typed messages in memory.
//!
//! This crate must not contain `unsafe`.
//!
//! A message is a run of bytes in one fixed layout (`LAYOUT.md`): position independent, little-endian,
//! without alignment. It is built in place at the end of a vector ([`Arena`]), sent by handing its
//! memory over, and read where it lies after one [`validate`] pass. Generated types give it accessors;
//! everything else works on tables ([`MessageLayout`]): generated ones, which are static, or those
//! made from a [`schema`] at run time, which belong to a set ([`Layouts`]).
//!
//! ```text
//!  .proto ──starling-build──▶ Foo, FooView, FooMut + MessageLayout
//!                                 │                    │
//!                    typed access │                    ├─ validate: bytes from a peer ─▶ views
//!                                 ▼                    ├─ protobuf: encode, decode
//!                     Reader / Writer over bytes       ├─ reflect: compare, copy, print
//!                                                      └─ schema: hash, compatibility of two peers
//! ```

#![forbid(unsafe_code)]

mod arena;
mod copy;
mod descriptor;
mod element;
mod layout;
mod layouts;
mod macros;
mod map;
mod message;
mod plan;
pub mod protobuf;
mod reader;
pub mod reflect;
mod repeated;
mod scalar;
pub mod schema;
mod validate;
mod value;
pub mod well_known;
mod writer;

pub use arena::{Arena, MAX_MESSAGE_BYTES};
pub use bytes::Bytes;
pub use descriptor::{MethodDescriptor, Mode, ServiceDescriptor, method_id, method_index};
pub use element::{Element, Value};
pub use layout::{
    EnumLayout, FieldLayout, Kind, MAX_DEPTH, MessageLayout, Nested, Presence, REFERENCE_SIZE,
    Shape, TAIL_OFFSET,
};
pub use layouts::{FieldRef, LayoutRef, Layouts};
pub use map::{MapMut, MapView};
pub use message::{Message, MessageView};
pub use plan::{Place, Plan, PlanError, PlanField, plan};
pub use reader::Reader;
pub use repeated::{RepeatedIter, RepeatedMut, RepeatedView};
pub use scalar::Scalar;
pub use validate::{FieldChecks, ValidationError, ValidationErrorKind, validate};
pub use writer::Writer;
