//! Policies as plug-ins of the managed service: native libraries that the service loads while it runs.
//!
//! ```text
//!  plug-in (a cdylib)                                        service (starling-plugin-host)
//!  a Policy ◀─ entry: panics end here ◀── abi::Table ◀────── PluginEngine, a PolicyEngine
//!               Rust objects stay here    functions, numbers,    checks all that comes back
//!                                         bytes by (address, length)
//! ```
//!
//! The author of a plug-in implements [`Policy`], exports it by [`export_policies!`], and builds a `cdylib`:
//!
//! ```
//! use starling_plugin::{Code, Policy, Request, Verdict};
//!
//! struct NoGuests;
//!
//! impl Policy for NoGuests {
//!     const NAME: &'static str = "no-guests";
//!     const SUMMARY: &'static str = "refuses calls of guests";
//!
//!     fn new(_settings: &str) -> Result<Self, String> {
//!         Ok(Self)
//!     }
//!
//!     fn on_request(&mut self, request: &mut Request<'_>) -> Verdict {
//!         match request.metadata("role") {
//!             Some(b"guest") => Verdict::refuse(Code::PermissionDenied, "guests may not call"),
//!             _ => Verdict::Pass,
//!         }
//!     }
//! }
//!
//! starling_plugin::export_policies!(NoGuests);
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`abi`] | what crosses between the two: plain data, with a version |
//! | [`policy`] | what an author writes |
//! | [`request`] | what a policy sees of calls |
//! | [`entry`] | the functions of the table, for each policy: no panic leaves them |
//!
//! This crate must not know the service: a plug-in links it.

#![allow(unsafe_code)]
#![allow(rustdoc::private_intra_doc_links)]

pub mod abi;
mod entry;
mod policy;
mod request;

pub use entry::kind;
pub use policy::{Policy, Verdict};
pub use request::{End, Request, Side};
pub use starling_call::{Code, Encoding, MetadataError, MethodId};

/// Exports policies: the table by which a service finds them in this library. Once in a `cdylib`.
#[macro_export]
macro_rules! export_policies {
    ($($policy:ty),+ $(,)?) => {
        const _: () = assert!(
            cfg!(panic = "unwind"),
            "a plug-in is built with `panic = \"unwind\"`: else a panic ends the service"
        );

        #[allow(unsafe_code, reason = "the service finds the table by its name")]
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub static STARLING_POLICY_PLUGIN: $crate::abi::Table = {
            const KINDS: &[$crate::abi::Kind] = &[$($crate::kind::<$policy>()),+];
            $crate::abi::Table::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"), KINDS)
        };
    };
}
