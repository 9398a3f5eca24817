//! The services that `starling serve` offers to try things on, and that the benchmarks call:
//! written on generated stubs, with nothing below the crate `starling`.
//!
//! | module | holds |
//! |---|---|
//! | [`echo`] | the server of `bench.Echo` |
//! | [`kv`] | the server of `kv.Kv`, and its store |

pub mod echo;
pub mod kv;

/// Stubs made by build.rs.
pub mod api {
    /// Package `bench`.
    pub mod bench {
        starling::include_proto!("bench");
    }
    /// Package `kv`.
    pub mod kv {
        starling::include_proto!("kv");
    }
}
